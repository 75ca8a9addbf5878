// SPDX-License-Identifier: Apache-2.0 OR MIT
//! No read shows a key after Redis's own expiry.

use std::thread::sleep;
use std::time::{Duration, Instant};

use erb_check::net::Conn;
use erb_e2e::calls::{call, expect, get, set};
use erb_e2e::lab::{TestLab, scaled};
use erb_steady::out_of_patience;

/// Redis's clock, ms.
fn redis_time_ms(conn: &mut Conn) -> u64 {
    let reply = call(conn, "TIME");
    let fields: Vec<u64> = reply.lines().filter_map(|line| line.parse().ok()).collect();
    let [seconds, micros] = fields[..] else {
        panic!("TIME: {reply:?}")
    };
    seconds * 1000 + micros / 1000
}

/// Reads `key` all the time until Redis's clock has passed `expiry_ms`; says how often it was
/// there, and checks that it is gone in the first read that began after that.
fn read_to_the_end(reader: &mut Conn, clock: &mut Conn, key: &str, expiry_ms: u64) -> u32 {
    let mut there = 0;
    loop {
        let over = redis_time_ms(clock) > expiry_ms;
        let value = get(reader, key);
        if over {
            assert_eq!(value, None, "{key} read after its expiry");
            return there;
        }
        there += u32::from(value.is_some());
    }
}

/// Ways to make a key that expires then.
fn making(way: u64, key: &str, expiry: u64) -> String {
    match way {
        0 => format!("SET {key} v PXAT {expiry}"),
        1 => format!("SET {key} v;PEXPIREAT {key} {expiry}"),
        2 => format!("SET {key} v;GETEX {key} PXAT {expiry}"),
        3 => format!("SET {key} v EX 100;GET {key};PEXPIREAT {key} {expiry}"),
        _ => {
            format!("SET {key} v;PEXPIREAT {key} {expiry};PERSIST {key};PEXPIREAT {key} {expiry}")
        }
    }
}

#[test]
fn keys_are_never_read_after_they_expired_in_redis() {
    let lab = TestLab::boosted_with("expiry", &["--direct"]);
    let (mut writer, mut reader, mut clock) = (lab.client(), lab.client(), lab.unseen());
    let before = lab.counters();
    let rounds = scaled(40, 1_000);
    for round in 0.. {
        if round >= rounds {
            let fast = lab.counters().since(&before, "FAST_GET");
            if fast > 100 {
                break;
            }
            if round > 10 * rounds {
                out_of_patience(format_args!("only {fast} hits: the test shows nothing"));
            }
        }
        let key = format!("k{round}");
        let mut life_ms = 60 + round * 7 % 90;
        loop {
            let expiry = redis_time_ms(&mut clock) + life_ms;
            for command in making(round % 5, &key, expiry).split(';') {
                call(&mut writer, command);
            }
            if read_to_the_end(&mut reader, &mut clock, &key, expiry) > 0 {
                break;
            }
            // On a machine that does other things it had expired before it was read.
            life_ms = longer(life_ms, &key);
        }
    }
    lab.assert_settled();
}

/// A longer life of a key that was too short to show anything.
fn longer(life_ms: u64, key: &str) -> u64 {
    if life_ms > 60_000 {
        out_of_patience(format_args!(
            "{key} was gone before it was seen, after {life_ms} ms"
        ));
    }
    2 * life_ms
}

#[test]
fn a_new_expiry_on_a_hot_key_counts_at_once() {
    let lab = TestLab::boosted_with("expire", &["--direct"]);
    let (mut writer, mut reader, mut clock) = (lab.client(), lab.client(), lab.unseen());
    for round in 0..10 {
        let key = format!("hot{round}");
        set(&mut writer, &key, "v");
        lab.heat(&mut reader, &key);
        let expiry = redis_time_ms(&mut clock) + 40;
        expect(&mut writer, &format!("PEXPIREAT {key} {expiry}"), ":1\r\n");
        read_to_the_end(&mut reader, &mut clock, &key, expiry);
    }
    lab.assert_settled();
}

#[test]
fn a_key_that_was_made_to_last_is_read_past_its_old_expiry() {
    let lab = TestLab::boosted_with("persist", &["--direct"]);
    let (mut writer, mut reader) = (lab.client(), lab.client());
    for (round, keep) in [
        "PERSIST hot",
        "GETEX hot PERSIST",
        "SET hot v",
        "PEXPIRE hot 100000",
    ]
    .iter()
    .enumerate()
    {
        let mut life_ms = 1_500;
        loop {
            let began = Instant::now();
            expect(&mut writer, &format!("SET hot v PX {life_ms}"), "+OK\r\n");
            lab.heat(&mut reader, "hot");
            call(&mut writer, keep);
            let left = Duration::from_millis(life_ms).checked_sub(began.elapsed());
            if let Some(left) = left {
                sleep(left + Duration::from_millis(100));
                break;
            }
            life_ms = longer(life_ms, "hot");
        }
        assert_eq!(
            get(&mut reader, "hot").as_deref(),
            Some("v"),
            "round {round}: {keep}"
        );
        lab.heat(&mut reader, "hot");
    }
    lab.assert_settled();
}
