// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a name means is Redis's to say: commands that redis.conf has renamed (C-3, C-39).

use erb_abi::{self as abi, ControlPlane as _, Keys};

use crate::scenario::{Scenario, Setup};
use crate::time::{MS, SECOND};

type Renamed = &'static [(&'static str, &'static str)];

fn setup(renamed: Renamed) -> Setup {
    Setup {
        renamed,
        ..Setup::default()
    }
}

/// The table is Redis's own: what it lacks is not there, keys are where it says.
pub(crate) fn own_table() {
    let s = Scenario::new(Setup::default());
    let path = s.world.server.path.borrow().clone().expect("a data path");
    let rows = path.command_rows().expect("a table");
    let row = |name: &str| {
        let key = abi::command_key_bytes(name).expect("a short name");
        rows.iter().find(|(other, _)| *other == key)
    };
    let copy = row("copy").expect("COPY").1;
    let second = Keys {
        first: 2,
        last: 2,
        ..Keys::FIRST
    };
    assert_eq!((copy.class, copy.keys), (abi::CMD_MARK, second));
    assert!(row("hmset").is_none(), "this Redis has none");
    assert!(row("client|reply").is_some() && row("get").is_some());
    assert_eq!(s.control().unknown_class, abi::CMD_FENCE);
    s.finish();
}

/// MGET is called mm, and its name belongs to EXISTS: that is never answered by values.
pub(crate) fn fast_command() {
    let mut s = Scenario::new(setup(&[("exists", "mget"), ("mget", "mm")]));
    s.cached(b"k", b"v");
    let client = s.fast();
    let fast = s.stat(abi::STAT_FAST_GET);
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nv\r\n");
    assert_eq!(
        s.stat(abi::STAT_FAST_GET),
        fast + 1,
        "the others are answered"
    );
    assert_eq!(s.call(client, &[b"MGET", b"k"]), b":1\r\n");
    assert_eq!(s.call(client, &[b"MM", b"k"]), b"*1\r\n$1\r\nv\r\n");
    assert!(
        s.call(client, &[b"EXISTS", b"k"])
            .starts_with(b"-ERR unknown")
    );
    s.finish();
}

/// APPEND goes by the name of a command that only reads.
pub(crate) fn write() {
    let mut s = Scenario::new(setup(&[("append", "type"), ("type", "kind")]));
    s.cached(b"k", b"old");
    let (reader, writer) = (s.fast(), s.fast());
    for round in 0..3 {
        let fast = s.stat(abi::STAT_FAST_GET);
        for _ in 0..200 {
            s.call(reader, &[b"GET", b"k"]);
            if s.stat(abi::STAT_FAST_GET) > fast {
                break;
            }
            s.run(5 * MS);
        }
        assert!(s.stat(abi::STAT_FAST_GET) > fast, "{}", s.counters());
        s.stop_daemon(true);
        let length = format!(":{}\r\n", 5 + 2 * round);
        assert_eq!(s.call(writer, &[b"TYPE", b"k", b"er"]), length.as_bytes());
        let value = s.call(reader, &[b"GET", b"k"]);
        assert_eq!(
            value.len(),
            4 + 3 + 2 * (round + 1) + 2,
            "{}",
            value.escape_ascii()
        );
        s.stop_daemon(false);
    }
    s.finish();
}

/// SUBSCRIBE goes by a name that nobody knows: what comes behind it is a subscriber's.
pub(crate) fn state() {
    let mut s = Scenario::new(setup(&[("subscribe", "listen")]));
    s.cached(b"k", b"v");
    let client = s.fast();
    s.call(client, &[b"LISTEN", b"news"]);
    let reply = s.call(client, &[b"GET", b"k"]);
    assert!(
        reply.starts_with(b"-ERR Can't execute"),
        "{}",
        reply.escape_ascii()
    );
    s.settle();
    assert_eq!(
        s.entry(client).map(|entry| u32::from(entry.state)),
        Some(abi::CONN_BYPASS)
    );
    s.finish();
}

/// STRLEN goes by another name: the daemon cannot fill, and nothing is answered.
pub(crate) fn needed() {
    let mut s = Scenario::new(Setup {
        attached: false,
        ..setup(&[("strlen", "len"), ("mset", "strlen")])
    });
    s.world.server.start_daemon();
    s.run(3 * SECOND);
    let client = s.open();
    assert_eq!(s.call(client, &[b"STRLEN", b"k", b"v"]), b"+OK\r\n");
    for _ in 0..20 {
        assert!(
            s.call(client, &[b"STRLEN", b"k"])
                .starts_with(b"-ERR wrong number")
        );
        assert_eq!(s.call(client, &[b"LEN", b"k"]), b":1\r\n");
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nv\r\n");
        s.run(20 * MS);
    }
    assert_eq!((s.fast_packets(), s.control().serving), (0, 0));
    // No finish(): without CLIENT LIST nothing is proved, and what fences stays.
}
