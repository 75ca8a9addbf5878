// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rings with anything in them: what is no record ends the draining, without a byte to Redis.

use bytes::BytesMut;
use erb_abi::{LogWriter, Logs, Written};
use proptest::prelude::*;

use super::oracle_tests::drain_into;
use super::*;

/// A record as it should be, and where its fields lie.
fn record(lsn: u64) -> Vec<u8> {
    let logs = Logs::zeros(1);
    let mut writer = LogWriter::new(&logs, 0);
    writer.put(&Written {
        lsn,
        key: b"key",
        value: b"value",
        ..Written::default()
    });
    let mut bytes = vec![0; 49];
    logs.copy(0, 0, 0, &mut bytes);
    bytes
}

/// What the drain says to these records of one ring.
fn says(records: &[Vec<u8>]) -> (Result<bool, LogError>, usize) {
    let logs = Logs::zeros(1);
    let mut writer = LogWriter::new(&logs, 0);
    for record in records {
        let _ = writer.next_lsn();
        writer.put_bytes(record);
    }
    let mut drain = drain_into(logs, 3);
    let mut output = BytesMut::new();
    let said = drain.begin(1_000_000, &mut output);
    if said.is_err() {
        assert_eq!(drain.begin(9_000_000, &mut output), said, "it stays so");
        assert_eq!(drain.next_ns(), None);
        assert_eq!(drain.log().tail(0), 0, "nothing is given up");
    }
    (said, output.len())
}

fn with(mut record: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    record[at..at + bytes.len()].copy_from_slice(bytes);
    record
}

#[test]
fn what_cannot_be_is_found_before_anything_is_said() {
    let good = || record(1);
    assert_eq!(says(&[good()]).0, Ok(true));
    let cases = [
        ("its length", with(good(), 16, &0u32.to_ne_bytes())),
        ("its length", with(good(), 16, &35u32.to_ne_bytes())),
        ("its length", with(good(), 16, &2113u32.to_ne_bytes())),
        ("its length", with(good(), 16, &u32::MAX.to_ne_bytes())),
        ("behind the head", with(good(), 16, &2112u32.to_ne_bytes())),
        ("lengths disagree", with(good(), 16, &50u32.to_ne_bytes())),
        ("kind", with(good(), 20, &0u16.to_ne_bytes())),
        ("kind", with(good(), 20, &9u16.to_ne_bytes())),
        ("lengths disagree", with(good(), 28, &6u16.to_ne_bytes())),
        ("longer than any", with(good(), 28, &1452u16.to_ne_bytes())),
        ("longer than any", with(good(), 30, &257u16.to_ne_bytes())),
        ("lengths disagree", with(good(), 30, &16u16.to_ne_bytes())),
        ("no string", with(good(), 33, &[1])),
        ("above the one before", with(good(), 0, &0u64.to_ne_bytes())),
        ("its length", vec![0; 64]),
    ];
    for (word, bad) in cases {
        let (said, bytes) = says(std::slice::from_ref(&bad));
        let text = said.expect_err(word).to_string();
        assert!(text.contains(word), "{word}: {text}");
        assert_eq!(bytes, 0);
        // Behind a good one it ends all the same: what comes first waits, and is not lost.
        let bad = match word {
            "above the one before" => bad,
            _ => with(bad, 0, &2u64.to_ne_bytes()),
        };
        assert!(says(&[good(), bad]).0.is_err(), "{word}");
    }
}

/// A ring that is full, and drained, has no batch any more that would free it.
#[test]
fn room_that_somebody_else_has_waited_for_is_freed_without_a_batch() {
    let mut logs = Logs::zeros(1);
    let kept = erb_abi::Kept::of(1);
    logs.wait_for(std::sync::Arc::clone(&kept));
    let mut writer = LogWriter::new(&logs, 0);
    let _ = writer.next_lsn();
    writer.put_bytes(&record(1));
    let head = logs.head(0);
    let mut drain = drain_into(logs, 3);
    assert_eq!(drain.begin(1_000_000, &mut BytesMut::new()), Ok(true));
    let answer = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n";
    let (_, next) = drain.take(answer, 2_000_000).unwrap();
    assert_eq!((next, drain.log().drained()), (Next::Done, 1));
    assert_eq!(drain.log().tail(0), 0, "not kept yet");
    drain.free_owed();
    assert!(drain.owes_room());
    assert_eq!(drain.log().tail(0), 0);
    kept.set(0, head);
    drain.free_owed();
    assert!(!drain.owes_room());
    assert_eq!(drain.log().tail(0), head);
}

#[test]
fn an_lsn_stands_once_and_grows() {
    assert!(says(&[record(1), record(1)]).0.is_err());
    // What is behind a missing one is not looked at.
    assert_eq!(says(&[record(2), record(1)]), (Ok(false), 0));
    assert!(says(&[record(1), record(3), record(2)]).0.is_ok());
    assert!(says(&[record(1), record(2), record(2)]).0.is_err());
    let logs = Logs::zeros(2);
    for ring in 0..2 {
        let mut writer = LogWriter::new(&logs, ring);
        let _ = writer.next_lsn();
        writer.put_bytes(&record(1));
    }
    let said = drain_into(logs, 3).begin(1_000_000, &mut BytesMut::new());
    assert!(said.unwrap_err().to_string().contains("stands twice"));
}

/// A batch with such a record waits for a Redis that has the database, and all after it.
#[test]
fn a_record_of_a_database_that_redis_does_not_have_waits_with_all_of_its_batch() {
    let of_db = |lsn: u64, db: u16| {
        let bad = with(record(lsn), 34, &db.to_ne_bytes());
        with(bad, 0, &lsn.to_ne_bytes())
    };
    let logs = Logs::zeros(1);
    let mut writer = LogWriter::new(&logs, 0);
    for record in [of_db(1, 0), of_db(2, 3), of_db(3, 0)] {
        let _ = writer.next_lsn();
        writer.put_bytes(&record);
    }
    let (mut drain, mut output) = (drain_into(logs, 3), BytesMut::new());
    for try_ns in [3_000_000, 50_000_000] {
        assert_eq!(drain.begin(try_ns, &mut output), Ok(false));
        let refusal = drain.refusal().expect("it is told");
        assert!(refusal.text.contains("database 3"), "{refusal:?}");
        assert!(refusal.text.contains("`databases 4`"), "{refusal:?}");
    }
    assert_eq!((output.len(), drain.log().drained()), (0, 0));
    // Another process is there, which has not told how many it has; then it has.
    drain.lost();
    assert_eq!(drain.begin(100_000_000, &mut output), Ok(false));
    drain.set_databases(4);
    assert_eq!(drain.begin(101_000_000, &mut output), Ok(true));
    let said = String::from_utf8_lossy(&output).into_owned();
    assert!(said.contains("SELECT\r\n$1\r\n3\r\n"), "{said}");
}

/// Whatever it was refused for, what came after it may be in another database.
#[test]
fn a_select_that_is_refused_drains_nothing() {
    let logs = Logs::zeros(1);
    let mut writer = LogWriter::new(&logs, 0);
    let _ = writer.next_lsn();
    writer.put_bytes(&record(1));
    let mut drain = drain_into(logs, 3);
    assert_eq!(drain.begin(1_000_000, &mut BytesMut::new()), Ok(true));
    let answer = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n-ERR DB index is out of range\r\n+OK\r\n";
    drain.take(answer, 2_000_000).unwrap();
    assert_eq!(drain.log().drained(), 0);
    let refusal = drain.refusal().expect("it is told");
    assert!(refusal.text.contains("out of range"), "{refusal:?}");
}

#[test]
fn a_far_number_is_no_reason_to_believe_it() {
    // It waits for number 1 for ever, and tells so.
    let (said, bytes) = says(&[record(u64::MAX)]);
    assert_eq!((said, bytes), (Ok(false), 0));
}

#[test]
fn a_head_that_cannot_be_ends_it() {
    for head in [32, 63, (4 << 20) + 64, u64::MAX, u64::MAX - 63] {
        let logs = Logs::zeros(1);
        let mut writer = LogWriter::new(&logs, 0);
        let _ = writer.next_lsn();
        writer.skip_to(head);
        let said = drain_into(logs, 3).begin(1_000_000, &mut BytesMut::new());
        assert!(
            matches!(said, Err(LogError::Head { .. })),
            "{head}: {said:?}"
        );
    }
    // A tail that is wrong is found in the same way.
    let logs = Logs::zeros(1);
    let _ = LogWriter::new(&logs, 0).next_lsn();
    logs.set_tail(0, 64);
    let said = drain_into(logs, 3).begin(1_000_000, &mut BytesMut::new());
    assert!(matches!(said, Err(LogError::Head { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any bytes: it ends, or says something that is RESP; it never reads beyond a ring.
    #[test]
    fn arbitrary_rings_do_no_harm(
        mut records in prop::collection::vec(prop::collection::vec(any::<u8>(), 36..300), 1..6),
        right in any::<[bool; 6]>(),
        at in prop_oneof![Just(0u64), Just((4u64 << 20) - 64)],
    ) {
        let logs = Logs::zeros(1);
        let mut writer = LogWriter::new(&logs, 0);
        writer.begin_at(at);
        for (index, bytes) in records.iter_mut().enumerate() {
            let lsn = writer.next_lsn();
            // Right as far as the first looks go, so that the later ones are reached.
            if right[index] {
                bytes[..8].copy_from_slice(&lsn.to_ne_bytes());
                let length = bytes.len() as u32;
                bytes[16..20].copy_from_slice(&length.to_ne_bytes());
                bytes[20..22].copy_from_slice(&1u16.to_ne_bytes());
                bytes[33] = 0;
                bytes[34..36].copy_from_slice(&1u16.to_ne_bytes());
            }
            writer.put_bytes(bytes);
        }
        let mut drain = drain_into(logs, 3);
        let mut output = BytesMut::new();
        if drain.begin(1_000_000, &mut output) == Ok(true) {
            prop_assert!(output.starts_with(b"*1\r\n$5\r\nMULTI\r\n"));
            prop_assert!(output.ends_with(b"*1\r\n$4\r\nEXEC\r\n"));
        }
    }
}
