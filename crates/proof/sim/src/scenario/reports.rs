// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Of which changes Redis tells the daemon moves, and what is cached stays true (`erb_redis::Reports`).

use erb_redis::Reports;

use super::{Scenario, Setup, over_seeds};
use crate::time::{MS, SECOND};

/// The lease, and what the coarse clock lags behind.
const HIDDEN: u64 = 110 * MS;

fn told(s: &mut Scenario, to: Reports) {
    let pinned = s.world.server.boost.with(|core| core.pin_reports(Some(to)));
    assert!(pinned.is_some(), "no daemon between its turns");
    becomes(s, to);
}

fn becomes(s: &mut Scenario, to: Reports) {
    let server = s.world.server.clone();
    s.until("Redis tells so", |_| {
        server.boost.with(|core| core.reports()) == Some(to)
    });
}

/// A change that nobody sees, of a key that is cached.
fn changes_unseen(s: &mut Scenario, client: crate::ConnId, value: &str) {
    s.is_fast_within(client, b"k", SECOND);
    s.unseen(&[b"SET", b"k", value.as_bytes()]);
    s.run(HIDDEN);
    let reply = format!("${}\r\n{value}\r\n", value.len());
    assert_eq!(s.call(client, &[b"GET", b"k"]), reply.as_bytes());
}

pub(super) fn moves_both_ways() {
    over_seeds(1..9, &Setup::default(), |s| {
        let mut s = s;
        s.cached(b"k", b"v");
        let client = s.fast();
        for round in 0..6 {
            s.is_fast_within(client, b"k", SECOND);
            let (to, epoch) = match round % 2 {
                0 => (Reports::OfRead, s.control().cache_epoch + 1),
                _ => (Reports::All, s.control().cache_epoch),
            };
            told(&mut s, to);
            assert_eq!(s.control().cache_epoch, epoch, "{to:?}");
            for again in 0..2 {
                changes_unseen(&mut s, client, &format!("v{round}.{again}"));
            }
        }
        s.finish();
    });
}

/// What is absent is read too: what makes it is reported.
pub(super) fn absent_keys_are_read_too() {
    let mut s = Scenario::new(Setup::default());
    let client = s.fast();
    told(&mut s, Reports::OfRead);
    for _ in 0..3 {
        s.is_fast_within(client, b"k", SECOND);
        s.unseen(&[b"SET", b"k", b"v"]);
        s.run(HIDDEN);
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nv\r\n");
        s.unseen(&[b"FLUSHALL"]);
        s.run(HIDDEN);
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$-1\r\n");
    }
    s.finish();
}

/// The next feed begins with reports of all, whatever the last one had.
pub(super) fn another_feed() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let client = s.fast();
    told(&mut s, Reports::OfRead);
    s.world.server.cut_feed();
    s.run(SECOND);
    changes_unseen(&mut s, client, "new");
    told(&mut s, Reports::OfRead);
    changes_unseen(&mut s, client, "newer");
    s.finish();
}

/// While something that was answered in Redis's place is not drained Redis tells of all, whatever was decided.
pub(super) fn while_absorbed() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let client = s.fast();
    told(&mut s, Reports::OfRead);
    assert!(s.world.server.absorb(0), "the set is marked");
    becomes(&mut s, Reports::All);
    changes_unseen(&mut s, client, "new");
    s.run(2 * SECOND);
    becomes(&mut s, Reports::All);
    s.world.server.drain();
    becomes(&mut s, Reports::OfRead);
    changes_unseen(&mut s, client, "newer");
    s.finish();
}
