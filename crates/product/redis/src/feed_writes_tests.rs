// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A batch on the feed: its answer in pieces, among pushes and other answers.

use erb_abi::{LogWriter, Written, hash_secret};

use super::*;
use crate::drain::{BATCH_NS, DrainSettings};

/// A log with these keys, each written once, and what drains it.
fn drain_of(keys: &[&str]) -> Drain<Logs> {
    let logs = Logs::zeros(1);
    let mut writer = LogWriter::new(&logs, 0);
    for key in keys {
        writer.put(&Written {
            lsn: writer.next_lsn(),
            key: key.as_bytes(),
            value: b"v",
            ..Written::default()
        });
    }
    let settings = DrainSettings {
        batch_ns: BATCH_NS,
        secret: hash_secret::of_seed(1),
    };
    let mut drain = Drain::new(logs, &settings);
    drain.set_databases(16);
    drain
}

/// What happened, in words.
fn words(events: &[Event]) -> Vec<String> {
    let word = |event: &Event| match event {
        Event::Drained => "drained".to_owned(),
        Event::Lease { sent_ns, .. } => format!("lease of {sent_ns}"),
        Event::Invalidated { keys, .. } => format!("{} keys written", keys.len()),
        Event::WriteTrial(came) => format!("tried: {came:?}"),
        _ => String::new(),
    };
    events
        .iter()
        .map(word)
        .filter(|word| !word.is_empty())
        .collect()
}

const PUSH: &str = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nx\r\n";

#[test]
fn a_batch_is_answered_in_its_turn_in_whatever_pieces_that_comes() {
    let answer = "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n";
    let said = format!(
        "{PUSH}$0\r\n\r\n+PONG\r\n+OK\r\n{PUSH}{}{PUSH}$0\r\n\r\n+PONG\r\n",
        &answer[5..]
    );
    for piece in [1, 2, 3, 7, 20, said.len()] {
        let (mut fixture, mut drain) = (Fixture::ready(), drain_of(&["k"]));
        fixture.redis.heard();
        fixture.feed.ping(1, 0);
        fixture.feed.begin_batch(&mut drain, 5_000_000).unwrap();
        fixture.feed.ping(2, 0);
        fixture.feed.flush().unwrap();
        let heard = fixture.redis.heard();
        let place = |word: &str| heard.find(word).unwrap();
        assert!(place("PING") < place("MULTI") && place("EXEC") < heard.rfind("PING").unwrap());
        for bytes in said.as_bytes().chunks(piece) {
            fixture.redis.say(bytes);
            let (cache, events) = (&fixture.cache, &mut fixture.events);
            let drain = Some(&mut drain);
            fixture
                .feed
                .handle_input(cache, drain, 6_000_000, events)
                .unwrap();
        }
        assert_eq!(
            words(&fixture.events),
            [
                "1 keys written",
                "lease of 1",
                "1 keys written",
                "drained",
                "1 keys written",
                "lease of 2"
            ],
            "in pieces of {piece}"
        );
        assert_eq!(drain.log().drained(), 1);
        assert!(!drain.is_under_way());
    }
}

#[test]
fn what_is_no_answer_to_a_batch_ends_the_feed() {
    let (mut fixture, mut drain) = (Fixture::ready(), drain_of(&["k"]));
    fixture.feed.begin_batch(&mut drain, 5_000_000).unwrap();
    fixture.redis.say("+PONG\r\n");
    let (cache, events) = (&fixture.cache, &mut fixture.events);
    let end = fixture
        .feed
        .handle_input(cache, Some(&mut drain), 6_000_000, events);
    assert!(end.is_err());
    drain.lost();
    assert_eq!(drain.log().drained(), 0);
    assert_eq!(drain.next_ns(), None, "the next Redis is not known yet");
    drain.set_databases(16);
    assert!(drain.next_ns().is_some(), "it is drained by the next feed");
}

#[test]
fn a_trial_tells_what_would_be_refused_and_a_missing_right_does_not_end_the_feed() {
    let mut fixture = Fixture::ready();
    fixture.redis.heard();
    for (said, want) in [
        (
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+OK\r\n",
            "tried: Ok(())",
        ),
        (
            "+OK\r\n-NOPERM no mset\r\n-NOPERM no set\r\n+QUEUED\r\n+OK\r\n",
            "tried: Err(\"NOPERM no mset\")",
        ),
        (
            "+OK\r\n-OOM full\r\n-OOM full\r\n+QUEUED\r\n+OK\r\n",
            "tried: Err(\"OOM full\")",
        ),
    ] {
        fixture.feed.try_batch();
        fixture.events.clear();
        fixture.say(said.as_bytes());
        assert_eq!(words(&fixture.events), [want]);
    }
    fixture.feed.flush().unwrap();
    let heard = fixture.redis.heard();
    assert!(
        heard.contains("DISCARD") && !heard.contains("EXEC"),
        "{heard}"
    );
}

#[test]
fn a_feed_that_is_asked_to_tell_less_does_not_count_as_telling_all() {
    use crate::reports::Reports;
    let mut fixture = Fixture::ready();
    assert!(fixture.feed.tells_all());
    fixture.feed.ask_reports(Reports::OfRead);
    assert!(
        !fixture.feed.tells_all(),
        "what is written behind the answer is not reported"
    );
    fixture.say(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n");
    assert!(!fixture.feed.tells_all());
    fixture.feed.ask_reports(Reports::All);
    fixture.say(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n");
    assert!(fixture.feed.tells_all());
}
