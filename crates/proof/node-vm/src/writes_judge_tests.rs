// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is wrong is found.

use super::*;
use crate::writes_load::{COUNTER, Does, SUM, call};

#[test]
fn each_cut_can_be_asked_for() {
    let all = When::value_variants()
        .iter()
        .filter_map(When::to_possible_value);
    let names: Vec<String> = all.map(|value| value.get_name().to_owned()).collect();
    assert_eq!(names, erb_vm::options::CUTS);
}

/// Each client says a call each 10 ms, which is answered within one.
fn book(calls: u64) -> Book {
    let told = (0..calls).flat_map(|number| {
        (0..CLIENTS).map(move |client| Told {
            client,
            number,
            sent_us: 10_000 * number,
            answered_us: 10_000 * number + 1_000,
        })
    });
    Book {
        told: told.collect(),
        now_us: 10_000 * calls,
        waiting: 0,
    }
}

fn redis(calls: u64) -> Keys {
    (0..CLIENTS)
        .flat_map(|client| after(client, calls))
        .collect()
}

/// What setters said, in its order, as it is drained.
fn journal(numbers: std::ops::Range<u64>) -> Vec<Record> {
    let calls = numbers.flat_map(|number| (0..CLIENTS).map(move |client| call(client, number)));
    let sets = calls.filter_map(|(key, does)| match does {
        Does::Set(value) => Some((key, value)),
        Does::Add(_) => None,
    });
    let record = |(lsn, (key, value))| Record { lsn, key, value };
    (1..).zip(sets).map(record).collect()
}

fn left(calls: u64, numbers: std::ops::Range<u64>) -> Left {
    Left {
        redis: redis(calls),
        journal: journal(numbers),
    }
}

fn is_good(when: When, left: &Left) -> bool {
    judge(when, &book(1_000), left).is_ok()
}

#[test]
fn so_much_may_be_lost_and_not_more() {
    assert!(is_good(When::AtWork, &left(1_000, 0..0)));
    assert!(is_good(When::AtWork, &left(800, 0..0)), "2 s");
    assert!(!is_good(When::AtWork, &left(700, 0..0)), "3 s");
    assert!(is_good(When::Young, &left(800, 0..0)));
    let found = judge(When::AtWork, &book(1_000), &left(800, 800..900)).expect("good");
    assert_eq!((found.lacks, found.lacks_us), (800, 2_000_000 - 1_000));
    // Who counts has said two calls more that no journal has.
    assert!(found.lost > 400 && found.lost < 800, "{found:?}");
}

/// Redis stands still from this call on. Who counts is answered a SET, and then waits.
fn stopped(at: u64) -> Book {
    let mut book = book(1_000);
    let is_answered = |one: &Told| one.client != COUNTER || one.number <= at;
    book.told.retain(is_answered);
    let waits = book.told.iter().filter(|one| one.number >= at);
    book.waiting = waits.count();
    book
}

#[test]
fn what_waited_is_kept_without_a_gap() {
    let book = stopped(990);
    let left = |calls: u64| {
        let mut left = left(calls, 990..1_000);
        let is_said = |one: &Record| setter(&one.key) < Some((COUNTER, 991));
        left.journal.retain(is_said);
        let lsns = 1..;
        let records = left.journal.iter_mut().zip(lsns);
        records.for_each(|(one, lsn)| one.lsn = lsn);
        left
    };
    let is_good = |left: &Left| judge(When::Stopped, &book, left).is_ok();
    assert!(is_good(&left(990)) && is_good(&left(800)), "2 s");
    assert!(!is_good(&left(700)), "3 s");
    assert!(judge(When::Synced, &book, &left(990)).is_ok());
    assert!(judge(When::Synced, &book, &left(989)).is_err());
    let mut short = left(990);
    short.journal.pop();
    assert!(!is_good(&short), "the last");
    let mut gap = left(990);
    gap.journal.remove(12);
    assert!(!is_good(&gap), "a gap");
    let mut none = left(990);
    none.journal.clear();
    assert!(!is_good(&none), "nothing");
    // What was drained long before may lie there still.
    let mut older = left(990);
    older.journal.iter_mut().for_each(|one| one.lsn += 5_000);
    older.journal.splice(0..0, journal(700..710));
    assert!(is_good(&older));
}

#[test]
fn what_is_done_twice_or_out_of_its_order_is_found() {
    let with = |change: &dyn Fn(&mut Keys)| {
        let mut left = left(900, 0..0);
        change(&mut left.redis);
        is_good(When::AtWork, &left)
    };
    assert!(with(&|_| ()));
    let set = |key: &'static str, value: &'static str| {
        move |keys: &mut Keys| {
            keys.insert(key.to_owned(), value.to_owned());
        }
    };
    assert!(!with(&set("m7", "72")), "added twice");
    assert!(!with(&set("m7", "70")), "set again behind it");
    assert!(!with(&set(SUM, "301")), "counted twice");
    assert!(!with(&set("a7", "a8")), "another value");
    assert!(!with(&set("x", "y")), "nobody's key");
    assert!(!with(&|keys: &mut Keys| drop(keys.remove("b7"))), "a gap");
    assert!(!with(&|keys: &mut Keys| drop(keys.remove(SUM))), "no sum");
    // A client's calls may go alone, but not what others were answered before.
    let mut uneven = left(1_000, 0..0);
    let of_one = after(0, 999);
    uneven
        .redis
        .retain(|key, _| owner(key) != Some(0) || of_one.contains_key(key));
    assert!(is_good(When::AtWork, &uneven));
    let of_one = after(0, 990);
    uneven
        .redis
        .retain(|key, _| owner(key) != Some(0) || of_one.contains_key(key));
    assert!(!is_good(When::AtWork, &uneven), "no prefix of the whole");
    assert_eq!(owner(SUM), Some(COUNTER));
}

#[test]
fn a_journal_has_what_was_said_in_its_order() {
    let mut left = left(900, 800..1_000);
    assert!(
        is_good(When::All, &left),
        "{:?}",
        judge(When::All, &book(1_000), &left)
    );
    left.journal[5].value.push('!');
    assert!(!is_good(When::AtWork, &left), "another value");
    let mut left = self::left(900, 800..1_000);
    left.journal.swap(5, 50);
    assert!(!is_good(When::AtWork, &left), "another order");
    let mut left = self::left(900, 800..1_000);
    left.journal.remove(7);
    assert!(
        is_good(When::AtWork, &left) && !is_good(When::All, &left),
        "a gap"
    );
    assert!(!is_good(When::All, &self::left(1_000, 0..0)), "nothing");
    assert!(is_good(When::Synced, &self::left(1_000, 990..1_000)));
    assert!(!is_good(When::Synced, &self::left(998, 990..1_000)), "INCR");
}

#[test]
fn what_is_said_is_read() {
    let text = "{\"database\":0,\"key\":\"a7\",\"lsn\":4,\"value\":\"a7 v\"}\n\
                {\"database\":0,\"key\":\"m8\",\"lsn\":3,\"value\":\"80\"}\n";
    let records = records_of(text).expect("records");
    assert_eq!((records[0].lsn, &records[1].key[..]), (3, "a7"));
    let left = Left {
        redis: keys_of("m8 81\nb1 b1 v\n").expect("keys"),
        journal: records,
    };
    let keys = applied(&left);
    assert_eq!(
        (&keys["m8"][..], &keys["b1"][..], keys.len()),
        ("80", "b1 v", 3)
    );
}
