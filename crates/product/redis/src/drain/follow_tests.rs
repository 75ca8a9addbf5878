// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is told beside the drain: all that is not drained, in order, also while the drain moves on.

use std::cell::Cell;

use erb_abi::{LogWriter, Logs, Written};
use proptest::prelude::*;

use super::*;

fn put(writer: &mut LogWriter<'_>, lsn: u64) {
    let value = lsn.to_string();
    writer.put(&Written {
        lsn,
        db: (lsn % 3) as u16,
        key: format!("key {lsn}").as_bytes(),
        value: value.as_bytes(),
        expiry_ms: lsn % 2,
    });
}

fn told(follower: &mut Follower, log: &Logs) -> Vec<u64> {
    let mut told = Vec::new();
    while let Some(one) = follower.next(log).expect("records") {
        assert_eq!(one.value, one.lsn.to_string().as_bytes());
        assert_eq!(one.key, format!("key {}", one.lsn).as_bytes());
        assert_eq!(
            (u64::from(one.db), one.expiry_ms),
            (one.lsn % 3, one.lsn % 2)
        );
        told.push(one.lsn);
    }
    told
}

#[test]
fn a_missing_lsn_is_waited_for_and_what_is_drained_is_left_out() {
    let logs = Logs::zeros(3);
    let [mut a, mut b, mut c] = [0, 1, 2].map(|ring| LogWriter::new(&logs, ring));
    for _ in 0..7 {
        let _ = a.next_lsn();
    }
    put(&mut a, 1);
    put(&mut b, 2);
    put(&mut a, 4);
    put(&mut b, 5);
    let mut follower = Follower::default();
    follower.begin(&logs, 0);
    assert_eq!(told(&mut follower, &logs), [1, 2]);
    put(&mut c, 3);
    assert_eq!(told(&mut follower, &logs), [3, 4, 5]);
    put(&mut c, 7);
    assert_eq!(told(&mut follower, &logs), [] as [u64; 0]);
    logs.set_drained(6, 0);
    assert_eq!(told(&mut follower, &logs), [7]);
    follower.begin(&logs, 3);
    assert_eq!(told(&mut follower, &logs), [7], "the rest is drained");
}

#[test]
fn what_cannot_be_a_record_is_told_as_that() {
    let logs = Logs::zeros(1);
    let mut writer = LogWriter::new(&logs, 0);
    let _ = writer.next_lsn();
    writer.put_bytes(&[0xff; 64]);
    let mut follower = Follower::default();
    follower.begin(&logs, 0);
    assert!(matches!(follower.next(&logs), Err(LogError::Record { .. })));
    writer.skip_to(5 << 20);
    follower.begin(&logs, 0);
    assert!(matches!(follower.next(&logs), Err(LogError::Head { .. })));
}

proptest! {
    #[test]
    fn all_rings_are_merged(rings in prop::collection::vec(0usize..4, 1..200), behind in 0u64..200) {
        let logs = Logs::zeros(4);
        let mut writers = [0, 1, 2, 3].map(|ring| LogWriter::new(&logs, ring));
        for ring in &rings {
            let lsn = writers[*ring].next_lsn();
            put(&mut writers[*ring], lsn);
        }
        let mut follower = Follower::default();
        follower.begin(&logs, behind);
        let all: Vec<u64> = (behind + 1..=rings.len() as u64).collect();
        prop_assert_eq!(told(&mut follower, &logs), all);
    }
}

/// A log whose drain frees a record, which its CPU then writes over, while that is copied.
struct Racing<'a> {
    logs: &'a Logs,
    /// How many copies from now on.
    left: Cell<u32>,
}

impl Log for Racing<'_> {
    fn count(&self) -> usize {
        self.logs.count()
    }
    fn head(&self, ring: usize) -> u64 {
        self.logs.head(ring)
    }
    fn tail(&self, ring: usize) -> u64 {
        self.logs.tail(ring)
    }
    fn set_tail(&self, ring: usize, at: u64) {
        self.logs.set_tail(ring, at);
    }
    fn copy(&self, ring: usize, at: u64, from: usize, to: &mut [u8]) {
        self.left.set(self.left.get().wrapping_sub(1));
        if self.left.get() == 0 {
            // The drain's order: what is drained, then its room.
            self.logs.set_drained(3, 0);
            self.logs.set_tail(ring, 3 * 64);
        }
        match self.left.get() == 0 && at < 3 * 64 {
            true => to.fill(0xa5),
            false => self.logs.copy(ring, at, from, to),
        }
    }
    fn lsn(&self) -> u64 {
        self.logs.lsn()
    }
    fn drained(&self) -> u64 {
        self.logs.drained()
    }
    fn fresh_ns(&self) -> u64 {
        0
    }
    fn set_drained(&self, lsn: u64, fresh_ns: u64) {
        self.logs.set_drained(lsn, fresh_ns);
    }
}

#[test]
fn what_is_written_over_while_it_is_copied_is_not_told() {
    for copies in 1..12 {
        let logs = Logs::zeros(1);
        let mut writer = LogWriter::new(&logs, 0);
        for _ in 0..5 {
            let lsn = writer.next_lsn();
            put(&mut writer, lsn);
        }
        assert_eq!(logs.head(0), 5 * 64, "a line each");
        let log = Racing {
            logs: &logs,
            left: Cell::new(copies),
        };
        let mut follower = Follower::default();
        follower.begin(&log, 0);
        let mut told = Vec::new();
        while let Some(one) = follower.next(&log).expect("records") {
            assert_eq!(one.key, format!("key {}", one.lsn).as_bytes());
            told.push(one.lsn);
        }
        let drained: Vec<u64> = told.iter().copied().filter(|lsn| *lsn <= 3).collect();
        assert_eq!(drained, (1..=drained.len() as u64).collect::<Vec<_>>());
        assert_eq!(told[drained.len()..], [4, 5], "{copies}: {told:?}");
    }
}
