// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Write-through: what a SET says is answered from its reply on, and hides what no packet shows for no longer than
//! the lease.

use std::time::{Duration, Instant};

use erb_check::net::Conn;
use erb_e2e::calls::{expect, get, set};
use erb_e2e::lab::{STATE_WAIT, TestLab, scaled, wait};

/// How long a change that no packet shows may be hidden: the lease.
const HIDDEN_MAX: Duration = Duration::from_millis(100);

/// How long after the answer to an unseen change of `key` a read was sent that did not show it.
fn hidden(reader: &mut Conn, key: &str, (old, new): (&str, &str)) -> Duration {
    let done = Instant::now();
    let mut hidden = Duration::ZERO;
    loop {
        let sent = done.elapsed();
        let value = get(reader, key).expect("a value");
        if value == new {
            return hidden;
        }
        assert_eq!(value, old, "neither what was there nor what is");
        assert!(sent < 2 * HIDDEN_MAX, "hidden for {sent:?}");
        hidden = sent;
    }
}

fn hides_nothing_for_long(conns: [&mut Conn; 3]) {
    let [reader, writer, unseen] = conns;
    let longest = wait(STATE_WAIT, || {
        let mut longest = Duration::ZERO;
        for round in 0..scaled(40, 400) {
            let (old, new) = (format!("seen{round}"), format!("unseen{round}"));
            set(writer, "k", &old);
            assert_eq!(get(reader, "k").as_deref(), Some(&old[..]));
            set(unseen, "k", &new);
            longest = longest.max(hidden(reader, "k", (&old, &new)));
        }
        let any = (longest > Duration::ZERO).then_some(longest);
        any.ok_or("nothing was answered after it".to_owned())
    });
    println!("hidden for {longest:?} at most");
    assert!(longest <= HIDDEN_MAX, "hidden for {longest:?}");
}

#[test]
fn what_a_set_says_is_answered_at_once_and_hides_nothing_for_long() {
    let lab = TestLab::boosted_with("through", &["--direct"]);
    let (mut reader, mut writer, mut unseen) = (lab.client(), lab.client(), lab.unseen());
    set(&mut unseen, "k", "first");
    lab.heat(&mut reader, "k");
    lab.heat(&mut writer, "k");
    let rounds = scaled(200, 2_000);
    wait(STATE_WAIT, || {
        let before = lab.counters();
        for round in 0..rounds {
            let value = format!("seen{round}");
            set(&mut writer, "k", &value);
            for _ in 0..2 {
                assert_eq!(get(&mut reader, "k").as_deref(), Some(&value[..]));
                assert_eq!(get(&mut writer, "k").as_deref(), Some(&value[..]));
            }
        }
        let after = lab.counters();
        let moved = after.moved(&before);
        assert_eq!(after.since(&before, "CACHE_EVICTED"), 0, "{moved}");
        // But where the gate was shut or the lease came late, on a machine that does other things.
        let least = [("CACHE_WRITTEN", rounds * 3 / 4), ("FAST_GET", rounds * 2)];
        let all = least
            .iter()
            .all(|(counter, least)| after.since(&before, counter) >= *least);
        all.then_some(()).ok_or(moved)
    });
    hides_nothing_for_long([&mut reader, &mut writer, &mut unseen]);

    // What Redis refuses says nothing.
    lab.heat(&mut reader, "k");
    let kept = get(&mut reader, "k");
    expect(&mut unseen, "CONFIG SET maxmemory 1", "+OK\r\n");
    let before = lab.counters();
    let refused = writer.call(&["SET", "k", "refused"]).expect("a reply");
    assert!(refused.starts_with(b"-OOM"), "{refused:?}");
    assert_eq!(get(&mut reader, "k"), kept);
    assert_eq!(lab.counters().since(&before, "CACHE_WRITTEN"), 0);
    lab.assert_settled();
}
