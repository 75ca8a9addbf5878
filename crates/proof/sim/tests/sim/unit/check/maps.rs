// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entries that break an invariant of the maps, each beside one that does not.

use erb_abi as abi;
use erb_sim::check::maps::{
    Handler, check_conn, check_kernel, check_moved, check_redis, note, starved,
};
use erb_sim_kernel::{Sock, tcp_state};

fn entry() -> abi::conn {
    // SAFETY: plain data for which all zeros are a value.
    let mut conn: abi::conn = unsafe { std::mem::zeroed() };
    conn.cookie = 7;
    conn.next = 1_000;
    conn.up_max = 1_000;
    conn.in_edge = 1_000;
    conn.in_delta = 100;
    conn.out_delta = 200;
    conn.edge = 5_000;
    conn.egress_max = 5_000;
    conn.replay_from = 5_100;
    conn.requests = 3;
    conn.replies = 1;
    conn
}

fn rule(conn: &abi::conn) -> Option<&'static str> {
    let found = check_conn(conn).and_then(|()| check_redis(conn));
    found.err().map(|(rule, _)| rule)
}

/// A rule and what breaks it.
type Break = (&'static str, fn(&mut abi::conn));

#[test]
fn entries_that_are_wrong_by_themselves() {
    assert_eq!(rule(&entry()), None);
    let changes: [Break; 11] = [
        ("T2", |c| c.replay_from = 5_201),
        ("T2", |c| c.replay_from = 5_200 - abi::REPLAY_BYTES - 1),
        ("T3", |c| c.in_edge = 1_001),
        ("T3", |c| c.up_max = 1_001),
        ("T6", |c| c.replies = 4),
        ("H3", |c| c.in_at = 1),
        ("H3", |c| c.h.out.left = 1),
        ("T6", |c| c.h.half = 65),
        ("S", |c| c.h.half = 1),
        ("T6", |c| {
            c.h.mark_head = 1;
            c.h.marks[0].request = 1; // answered
        }),
        ("T6", |c| {
            c.h.mark_head = 1;
            c.h.marks[0].request = 4; // of what is not whole
        }),
    ];
    for (expected, change) in changes {
        let mut conn = entry();
        change(&mut conn);
        assert_eq!(rule(&conn), Some(expected));
    }
    let mut wrapped = entry();
    wrapped.next = 5;
    wrapped.up_max = u32::MAX - 5;
    wrapped.in_edge = u32::MAX;
    assert_eq!(rule(&wrapped), None, "sequence numbers wrap");
}

#[test]
fn entries_that_contradict_their_socket() {
    let sock = Sock {
        cookie: 7,
        rcv_nxt: 900,
        write_seq: 5_000,
        state: tcp_state::ESTABLISHED,
        ..Sock::default()
    };
    let rule = |conn: &abi::conn, sock: &Sock| check_kernel(conn, Some(sock)).err();
    let mut conn = entry();
    conn.state = abi::CONN_FAST as u8;
    assert_eq!(rule(&conn, &sock), None);
    let swallowed = Sock {
        rcv_nxt: 901,
        ..sock
    };
    assert_eq!(rule(&conn, &swallowed).unwrap().0, "T1");
    let behind = Sock {
        write_seq: 4_999,
        ..sock
    };
    assert_eq!(rule(&conn, &behind).unwrap().0, "T4");
    let other = Sock {
        cookie: 8,
        ..behind
    };
    assert_eq!(rule(&conn, &other), None, "another socket");
}

#[test]
fn a_starved_kernel_is_noticed() {
    let sock = Sock {
        cookie: 7,
        snd_una: 4_000,
        state: tcp_state::ESTABLISHED,
        ..Sock::default()
    };
    let mut old = note(&entry());
    for round in 1..5 {
        let mut conn = entry();
        conn.in_delta += round;
        old.starved = starved(Some(&old), &conn, Some(&sock));
        old.in_delta = conn.in_delta;
        assert_eq!(old.starved, round);
    }
    let fed = Sock {
        snd_una: 5_000,
        ..sock
    };
    assert_eq!(starved(Some(&old), &entry(), Some(&fed)), 0);
}

#[test]
fn changes_that_may_not_be() {
    let old = note(&entry());
    let rule = |change: fn(&mut abi::conn)| {
        let mut conn = entry();
        change(&mut conn);
        check_moved(&old, &conn, Handler::Redis)
            .err()
            .map(|(rule, _)| rule)
    };
    assert_eq!(rule(|_| {}), None);
    assert_eq!(rule(|c| c.in_delta += 1), Some("T1"));
    assert_eq!(rule(|c| c.edge += 1), Some("T4"));
    assert_eq!(rule(|c| c.next -= 1), Some("T3"));
    assert_eq!(rule(|c| c.replies -= 1), Some("T6"));
    assert_eq!(rule(|c| c.cookie = 9), None);
    assert_eq!(
        rule(|c| {
            c.in_delta += 20;
            c.out_delta += 7;
            c.edge += 50;
        }),
        None
    );
}
