// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cache is closed and opened by an operator's word, under load, and no client notices.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use erb_check::net::Conn;
use erb_e2e::calls::{call, expect};
use erb_e2e::lab::{TestLab, scaled, wait};
use erb_e2e::stop::Stop;
use erb_report::Unread;

const CLIENTS: u64 = 4;
/// So long each of the two lasts under load.
const UNDER_LOAD: Duration = Duration::from_millis(1500);
const MOVE_WAIT: Duration = Duration::from_secs(60);

/// What a client reads is what it wrote last, and not older than what another was told to be written.
fn play(lab: &TestLab, mut conn: Conn, number: u64, told: &[AtomicU64], stops: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(number);
    for turn in 1_u64.. {
        if stops.load(Ordering::SeqCst) {
            return;
        }
        if turn % 500 == 0 {
            conn = lab.client(); // of whom ERB has never heard
        }
        if random.u8(..4) == 0 {
            expect(&mut conn, &format!("SET key{number} {turn}"), "+OK\r\n");
            told[usize::try_from(number).expect("few")].store(turn, Ordering::SeqCst);
        }
        let other = random.u64(..CLIENTS);
        let least = told[usize::try_from(other).expect("few")].load(Ordering::SeqCst);
        let reply = call(&mut conn, &format!("GET key{other}"));
        let value = reply.lines().nth(1).unwrap_or("0");
        let value: u64 = value.parse().expect("a number");
        assert!(
            value >= least,
            "key{other} was {least} before, and is {value}"
        );
    }
}

fn says(lab: &TestLab, word: &str) {
    let done = lab.erb(&["aside", word]);
    assert!(done.status.success(), "{done:?}");
}

fn wait_serving(lab: &TestLab, serving: bool) {
    wait(MOVE_WAIT, || {
        let status = lab.try_status()?;
        (status.serving == serving)
            .then_some(())
            .ok_or(format!("{:?}", status.not_serving))
    });
}

#[test]
fn the_cache_is_closed_and_opened_under_load_and_no_client_notices() {
    let lab = TestLab::boosted_with("closed", &["--direct"]);
    let told: Vec<AtomicU64> = (0..CLIENTS).map(|_| AtomicU64::new(0)).collect();
    let stops = AtomicBool::new(false);
    scope(|scope| {
        for number in 0..CLIENTS {
            let (conn, lab, told, stops) = (lab.client(), &lab, &told, &stops);
            scope.spawn(move || play(lab, conn, number, told, stops));
        }
        let _stop = Stop(&stops);
        for _ in 0..scaled(2, 10) {
            says(&lab, "3");
            wait_serving(&lab, false);
            wait(MOVE_WAIT, || {
                let status = lab.try_status()?;
                let is_closed = status.aside.unread != Unread::None;
                (is_closed && !status.redis.feed_up)
                    .then_some(())
                    .ok_or(format!("{:?}", status.not_serving))
            });
            let before = lab.status();
            assert_eq!(before.aside.level, 3);
            sleep(UNDER_LOAD);
            let answered = |status: &erb_report::Status| status.counter("FAST_PACKET");
            assert_eq!(
                answered(&lab.status()),
                answered(&before),
                "one was answered"
            );
            says(&lab, "0");
            wait_serving(&lab, true);
            wait(MOVE_WAIT, || {
                let now = answered(&lab.try_status()?);
                (now > answered(&before))
                    .then_some(())
                    .ok_or("nothing is answered".to_owned())
            });
            sleep(UNDER_LOAD);
        }
    });
    lab.assert_settled();
}

#[test]
fn where_nobody_needs_translation_no_packet_is_counted() {
    let lab = TestLab::boosted_with("closed-all", &["--direct"]);
    says(&lab, "3");
    wait_serving(&lab, false);
    sleep(UNDER_LOAD);
    let mut conn = lab.client();
    let before = lab.status();
    for turn in 0..100 {
        expect(&mut conn, &format!("SET k {turn}"), "+OK\r\n");
    }
    let now = lab.status();
    for counter in [
        "UP_UNREAD",
        "UP_TRANSLATED",
        "EGRESS_PLAIN",
        "EGRESS_TRANSLATED",
    ] {
        assert_eq!(now.counter(counter), before.counter(counter), "{counter}");
    }
    assert_eq!(now.connections.total, 0);
    assert_eq!(now.aside.unread, Unread::All);
    says(&lab, "0");
    wait_serving(&lab, true);
    lab.heat(&mut conn, "k");
    lab.assert_settled();
}

/// A load that no cache helps: all is written, and hardly anything read.
fn write(lab: &TestLab, number: u64, stops: &AtomicBool) {
    let mut conn = lab.client();
    for turn in 0_u64.. {
        if stops.load(Ordering::SeqCst) {
            return;
        }
        if turn % 1000 == 0 {
            conn = lab.client();
        }
        let key = format!("key{number}.{}", turn % 100);
        expect(&mut conn, &format!("SET {key} {turn}"), "+OK\r\n");
        if turn % 100 == 0 {
            assert!(call(&mut conn, &format!("GET {key}")).ends_with(&format!("\r\n{turn}\r\n")));
        }
    }
}

#[test]
fn a_load_that_no_cache_helps_closes_it_where_that_is_allowed() {
    let lab = TestLab::up("closed-hours", &["--direct"]);
    let done = lab.boost(&["--dev", "s0", "--close-after", "10s"]);
    assert!(done.status.success(), "{done:?}");
    lab.wait_admitting();
    // How often it was closed and opened by itself.
    let wait_moves = |closed: u64, opened: u64| {
        wait(MOVE_WAIT, || {
            let aside = lab.try_status()?.aside;
            let has_moved = aside.to_3 >= closed && aside.to_0 >= opened;
            has_moved.then_some(()).ok_or(format!("{aside:?}"))
        });
    };
    let stops = AtomicBool::new(false);
    scope(|scope| {
        for number in 0..CLIENTS {
            let (lab, stops) = (&lab, &stops);
            scope.spawn(move || write(lab, number, stops));
        }
        let _stop = Stop(&stops);
        wait_moves(1, 0);
        wait_serving(&lab, false);
        let said = lab.status().not_serving;
        assert!(
            said.iter().any(|why| why.contains("--close-after")),
            "{said:?}"
        );
        // It is opened to look, by itself, and closed again.
        wait_moves(1, 1);
        wait_moves(2, 1);
        says(&lab, "auto");
        wait_serving(&lab, true);
    });
    // ERB may have stepped aside from this load meanwhile, and comes back in its own time.
    says(&lab, "0");
    let mut conn = lab.client();
    expect(&mut conn, "SET k v", "+OK\r\n");
    lab.heat(&mut conn, "k");
    lab.assert_settled();
}
