// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fast commands beside GET and PING: what each answers, byte for byte, and when none is.

use erb_abi::{self as abi, ControlPlane as _, FillEntry};
use erb_sim_kernel::Context;

use super::{Scenario, Setup, over_seeds};
use crate::ConnId;
use crate::server::Control;
use crate::time::{MS, SECOND, US};

/// A frame has room for long replies.
pub(super) fn roomy() -> Setup {
    Setup {
        veth: false,
        ..Setup::default()
    }
}

/// Packets are answered by XDP alone once a reply has been acknowledged.
pub(super) fn quiet(s: &mut Scenario) -> ConnId {
    let client = s.fast();
    s.run(100 * MS);
    client
}

/// Asks a command in words; whether it was answered fast.
pub(super) fn ask(s: &mut Scenario, client: ConnId, text: &str, reply: &[u8]) -> bool {
    let fast = ask_at_once(s, client, text, reply);
    s.run(100 * MS); // a reply of Redis's is acknowledged
    fast
}

/// The same, and nothing is waited for behind it.
pub(super) fn ask_at_once(s: &mut Scenario, client: ConnId, text: &str, reply: &[u8]) -> bool {
    let argv: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
    let fast = s.fast_packets();
    let got = s.call(client, &argv);
    assert_eq!(
        got.escape_ascii().to_string(),
        reply.escape_ascii().to_string(),
        "{text}"
    );
    s.fast_packets() > fast
}

/// Every read, and its odd forms.
pub(super) fn answers_of_reads() {
    let mut s = Scenario::new(roomy());
    s.cached(b"k", b"value");
    s.cached(b"empty", b"");
    let client = quiet(&mut s);
    let fast: [(&str, &[u8]); 15] = [
        ("MGET k", b"*1\r\n$5\r\nvalue\r\n"),
        (
            "mget empty k k",
            b"*3\r\n$0\r\n\r\n$5\r\nvalue\r\n$5\r\nvalue\r\n",
        ),
        ("EXISTS k", b":1\r\n"),
        ("EXISTS k empty k", b":3\r\n"),
        ("STRLEN k", b":5\r\n"),
        ("STRLEN empty", b":0\r\n"),
        ("TTL k", b":-1\r\n"),
        ("PTTL k", b":-1\r\n"),
        ("GETRANGE k 0 -1", b"$5\r\nvalue\r\n"),
        ("GETRANGE k 1 2", b"$2\r\nal\r\n"),
        ("GETRANGE k -3 100", b"$3\r\nlue\r\n"),
        ("GETRANGE k -2 -3", b"$0\r\n\r\n"),
        ("GETRANGE k 5 6", b"$0\r\n\r\n"),
        ("GETRANGE empty 0 -1", b"$0\r\n\r\n"),
        ("SUBSTR k 0 0", b"$1\r\nv\r\n"),
    ];
    for (text, reply) in fast {
        assert!(ask(&mut s, client, text, reply), "{text} went up");
    }
    let integer = b"-ERR value is not an integer or out of range\r\n";
    let up: [(&str, &[u8]); 10] = [
        ("MGET k none", b"*2\r\n$5\r\nvalue\r\n$-1\r\n"),
        ("MGET no-2 k", b"*2\r\n$-1\r\n$5\r\nvalue\r\n"),
        ("EXISTS k no-3", b":1\r\n"),
        ("STRLEN no-4", b":0\r\n"),
        ("TTL no-5", b":-2\r\n"),
        ("GETRANGE no-6 0 -1", b"$0\r\n\r\n"),
        ("GETRANGE k 0 -100", b"$1\r\nv\r\n"),
        ("GETRANGE k 00 1", integer),
        ("GETRANGE k -0 1", integer),
        ("GETRANGE k 0 99999999999999999999", integer),
    ];
    for (text, reply) in up {
        assert!(
            !ask(&mut s, client, text, reply),
            "{text} was answered fast"
        );
    }
    s.finish();
}

/// Together in one packet, with GET and PING.
pub(super) fn reads_in_one_packet() {
    let mut s = Scenario::new(roomy());
    s.cached(b"a", b"one");
    s.cached(b"b", b"two");
    let client = quiet(&mut s);
    let fast = s.fast_packets();
    s.ask_all(
        client,
        &[
            &[b"MGET", b"b", b"a"],
            &[b"PING"],
            &[b"GET", b"a"],
            &[b"STRLEN", b"b"],
            &[b"EXISTS", b"a", b"b"],
        ],
    );
    let reply = b"*2\r\n$3\r\ntwo\r\n$3\r\none\r\n+PONG\r\n$3\r\none\r\n:3\r\n:2\r\n";
    assert_eq!(s.answers(client), reply);
    assert_eq!(s.fast_packets(), fast + 1, "{}", s.counters());
    s.finish();
}

/// TTL and PTTL of a key until it is gone: the checks know the moment to the millisecond.
pub(super) fn time_that_is_left() {
    let mut s = Scenario::new(roomy());
    s.unseen(&[b"SET", b"k", b"v", b"PX", b"4321"]);
    let client = quiet(&mut s);
    for _ in 0..20 {
        s.call(client, &[b"GET", b"k"]);
        s.run(5 * MS);
    }
    s.run(100 * MS);
    let (ttl, pttl) = (s.stat(abi::STAT_FAST_TTL), s.stat(abi::STAT_FAST_PTTL));
    for step in 0..400 {
        s.call(client, &[b"TTL", b"k"]);
        s.call(client, &[b"PTTL", b"k"]);
        s.run(11 * MS + step * 7 * US);
    }
    assert!(s.stat(abi::STAT_FAST_TTL) > ttl + 100, "{}", s.counters());
    assert!(s.stat(abi::STAT_FAST_PTTL) > pttl + 100, "{}", s.counters());
    assert_eq!(s.call(client, &[b"PTTL", b"k"]), b":-2\r\n");
    s.finish();
}

/// Each key of an MGET is a miss of its own.
pub(super) fn misses_of_many() {
    let mut s = Scenario::new(roomy());
    s.unseen(&[b"MSET", b"a", b"1", b"b", b"2", b"c", b"3"]);
    let client = quiet(&mut s);
    for _ in 0..20 {
        let reply = s.call(client, &[b"MGET", b"a", b"b", b"c"]);
        assert_eq!(reply, b"*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n");
        s.run(20 * MS);
    }
    assert!(s.stat(abi::STAT_FAST_MGET) > 10, "{}", s.counters());
    assert_eq!(s.stat(abi::STAT_FILL_INSERTED), 3);
    s.run(SECOND);
    s.finish();
}

fn fill(control: &Control, key: &[u8], value: &[u8]) {
    let token = control.fill_begin(&[key]).expect("the program runs")[0];
    let entry = FillEntry {
        key,
        db: 0,
        kind: abi::ValueKind::String,
        value: Some(value),
        expiry_ms: 0,
        token,
    };
    let filled = control.fill_insert(&[entry]).expect("the program runs");
    assert_eq!(filled, [abi::FILL_OK]);
}

/// An entry goes and then another comes while MGET reads both: no moment had the two of them.
pub(super) fn keys_of_two_moments() {
    const KEYS: usize = 20; // enough for all of that to happen between the first and the last
    let setup = Setup {
        cpus: 3,
        switch: 300_000,
        veth: false,
        ..Setup::default()
    };
    let changed = std::cell::Cell::new(0);
    over_seeds(1..129, &setup, |mut s| {
        let keys: Vec<String> = (0..KEYS).map(|key| format!("key-{key:02}")).collect();
        let mut set: Vec<&[u8]> = vec![b"MSET"];
        set.extend(keys.iter().flat_map(|key| [key.as_bytes(), b"v"]));
        s.unseen(&set);
        let reader = quiet(&mut s);
        s.stop_daemon(true);
        let path = s.world.server.attached_path().expect("attached");
        let control = Control::new(path, std::rc::Rc::default());
        for key in &keys[..KEYS - 1] {
            fill(&control, key.as_bytes(), b"v");
        }
        let mut get: Vec<&[u8]> = vec![b"MGET"];
        get.extend(keys.iter().map(String::as_bytes));
        s.ask(reader, &get);
        s.run(29 * US);
        let (first, last) = (keys[0].clone(), keys[KEYS - 1].clone());
        s.world.server.cpus.spawn(2, Context::Process, move || {
            let first: &[&[u8]] = &[first.as_bytes()];
            control.invalidate(first).expect("the program runs");
            fill(&control, last.as_bytes(), b"v");
        });
        let reply = [b"*20\r\n".to_vec(), b"$1\r\nv\r\n".repeat(KEYS)].concat();
        assert_eq!(s.answers(reader), reply);
        assert_eq!(s.stat(abi::STAT_FAST_MGET), 0, "keys of two moments");
        changed.set(changed.get() + s.stat(abi::STAT_REFUSE_SET_CHANGED));
        s.stop_daemon(false);
        s.finish();
    });
    assert!(changed.get() > 0, "no set changed meanwhile");
}

/// What Redis knows by another name is not known to the fast path.
pub(super) fn switched_off() {
    let mut s = Scenario::new(roomy());
    s.cached(b"k", b"value");
    let client = quiet(&mut s);
    s.unseen(&[b"HSET", b"h", b"f", b"v"]);
    for _ in 0..20 {
        s.call(client, &[b"HGETALL", b"h"]);
        s.run(20 * MS);
    }
    for command in &abi::FAST_COMMANDS {
        let arguments = match command.name {
            "getrange" | "substr" => " k 0 -1",
            "ping" => "",
            "hget" | "hmget" | "hexists" | "hstrlen" => " h f",
            "hgetall" | "hlen" | "hkeys" | "hvals" => " h",
            _ => " k",
        };
        let text = format!("{}{arguments}", command.name);
        let argv: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
        let reply = s.call(client, &argv);
        s.run(100 * MS);
        assert!(ask(&mut s, client, &text, &reply), "{text} went up");
        let path = s.world.server.attached_path().expect("attached");
        // SAFETY: the block lives as long as the data path, and no program runs meanwhile.
        unsafe { (*path.control()).fast_off = 1 << command.kind };
        assert!(
            !ask(&mut s, client, &text, &reply),
            "{text} was answered fast"
        );
        // SAFETY: as above.
        unsafe { (*path.control()).fast_off = 0 };
    }
    s.finish();
}
