// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the daemon does beside answering: it looks at Redis, and keeps connections known to it.

use erb_abi as abi;

use crate::client::session::Stage;
use crate::scenario::{Scenario, Setup};
use crate::time::{MS, SECOND};

/// A client that is always answered fast is no idle one, whatever `timeout` is now.
pub(crate) fn heartbeat_without_idle_limit() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let client = s.fast();
    let (began, fast) = (s.now(), s.stat(abi::STAT_FAST_GET));
    while s.now() - began < 150 * SECOND {
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nv\r\n");
        s.run(500 * MS);
    }
    assert!(s.stat(abi::STAT_FAST_GET) - fast > 200, "not fast");
    let up = s.stat(abi::STAT_REFUSE_HEARTBEAT);
    assert!((1..5).contains(&up), "{up} went up for it");
    // Who has been busy all the time is not idle for longer than two minutes.
    s.unseen(&[b"CONFIG", b"SET", b"timeout", b"120"]);
    s.run(3 * SECOND);
    assert_eq!(s.stage(client), Some(Stage::Open), "Redis closed it");
    s.finish();
}

/// A Redis in which RESETSTAT was ever called is looked at in two steps; PINGs go in between.
pub(crate) fn calls_of_a_late_state() {
    let mut s = Scenario::new(Setup {
        attached: false,
        ..Setup::default()
    });
    s.unseen(&[b"CONFIG", b"RESETSTAT"]);
    s.attach();
    s.cached(b"k", b"v");
    let client = s.fast();
    s.run(SECOND);
    let cleared = s.stat(abi::STAT_CACHE_CLEARED);
    for _ in 0..60 {
        // Longer than a tick: a PING is written while the state's first part waits.
        s.stop_redis(true);
        s.run(70 * MS);
        s.stop_redis(false);
        s.run(27 * MS);
        s.call(client, &[b"GET", b"k"]);
    }
    assert_eq!(
        s.stat(abi::STAT_CACHE_CLEARED),
        cleared,
        "nothing was swapped"
    );
    s.unseen(&[b"SWAPDB", b"0", b"1"]);
    s.run(SECOND);
    assert!(s.stat(abi::STAT_CACHE_CLEARED) > cleared, "SWAPDB is seen");
    s.finish();
}
