// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entries that contradict the stream of their client, each beside one that does not.

use erb_abi as abi;
use erb_sim::check::Held;
use erb_sim::check::stream::{Broken, Seen, Stream, check_conn};
use erb_sim_kernel::{Sock, tcp_state};

const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";
const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n";

/// Two reads and two writes, of which the last write is unanswered.
fn stream() -> Stream {
    let mut stream = Stream::default();
    for command in [GET, SET, GET, SET] {
        stream.sent(command);
    }
    stream.executed = 2;
    stream
}

fn scanned() -> usize {
    2 * GET.len() + 2 * SET.len()
}

/// The first command was answered fast.
fn entry() -> abi::conn {
    // SAFETY: plain data for which all zeros are a value.
    let mut conn: abi::conn = unsafe { std::mem::zeroed() };
    conn.cookie = 7;
    conn.state = abi::CONN_FAST as u8;
    conn.next = (scanned() as u32).wrapping_sub(10); // the stream begins at -10
    conn.in_delta = GET.len() as u32;
    conn.requests = 3;
    conn.replies = 2;
    conn.h.mark_head = 1;
    conn.h.marks[0] = abi::mark { request: 3, set: 5 };
    conn
}

fn sock() -> Sock {
    Sock {
        cookie: 7,
        rcv_nxt: 20,
        bytes_received: 30,
        state: tcp_state::ESTABLISHED,
        ..Sock::default()
    }
}

fn look(
    old: Option<&Seen>,
    stream: &Stream,
    change: fn(&mut abi::conn),
) -> Result<Option<Seen>, Broken> {
    let mut conn = entry();
    change(&mut conn);
    check_conn(old, &conn, &sock(), stream, |_| 5)
}

fn rule(change: fn(&mut abi::conn)) -> Option<&'static str> {
    look(None, &stream(), change).err().map(|(rule, _)| rule)
}

#[test]
fn an_entry_that_is_right_passes() {
    let seen = look(None, &stream(), |_| {}).unwrap().unwrap();
    assert_eq!((seen.fast, seen.countable), (1, true));
    assert!(look(Some(&seen), &stream(), |_| {}).is_ok());
}

#[test]
fn a_scanner_that_is_wrong_is_found() {
    assert_eq!(rule(|conn| conn.h.in_.state = 3), Some("S"));
    assert_eq!(rule(|conn| conn.next -= 1), Some("S"), "idle in a command");
    assert_eq!(rule(|conn| conn.next += 1), Some("S"), "never said");
    assert_eq!(
        rule(|conn| conn.requests = 4),
        Some("S"),
        "nothing was fast"
    );
    assert_eq!(rule(|conn| conn.requests = 5), Some("S"), "twice");
    assert_eq!(rule(|conn| conn.requests = 1), Some("S"), "two executed");
    assert_eq!(rule(|conn| conn.in_delta = 0), Some("S"));
    let seen = look(None, &stream(), |_| {}).unwrap().unwrap();
    let lost = look(Some(&seen), &stream(), |conn| conn.requests = 2);
    assert_eq!(
        lost.unwrap_err().0,
        "S",
        "one is missing since the last look"
    );
}

#[test]
fn replies_that_cannot_be_are_found() {
    let mut late = stream();
    late.executed = 1;
    assert_eq!(look(None, &late, |_| {}).unwrap_err().0, "R");
    let seen = look(None, &stream(), |_| {}).unwrap().unwrap();
    let given_up = |conn: &mut abi::conn| conn.flags |= abi::CONN_F_UNCOUNTABLE as u8;
    assert_eq!(look(Some(&seen), &stream(), given_up).unwrap_err().0, "R");
    let mut odd = stream();
    odd.sent(b"*1\r\n$7\r\nMONITOR\r\n");
    assert!(look(Some(&seen), &odd, given_up).is_ok());
}

#[test]
fn a_write_without_its_mark_is_found() {
    assert_eq!(rule(|conn| conn.h.mark_tail = 1), Some("M"));
    assert_eq!(rule(|conn| conn.h.marks[0].set = 6), Some("M"));
    assert_eq!(rule(|conn| conn.h.marks[0].request = 2), Some("M"));
    assert_eq!(rule(|conn| conn.replies = 1), None, "a read waits too");
}

#[test]
fn an_executed_write_needs_no_mark_wherever_counting_began() {
    fn recounted(conn: &mut abi::conn) {
        conn.h.kept |= abi::CONN_K_RECOUNTED as u16;
        (conn.requests, conn.replies, conn.h.mark_tail) = (1, 0, 1);
    }
    let mut stream = stream();
    assert_eq!(look(None, &stream, recounted).unwrap().unwrap().began, 1);
    let quiet = |conn: &mut abi::conn| {
        recounted(conn);
        conn.requests = 0;
    };
    let seen = look(None, &stream, quiet).unwrap();
    let missing = look(seen.as_ref(), &stream, recounted);
    assert_eq!(missing.unwrap_err().0, "M");
    stream.executed = 3;
    assert!(look(seen.as_ref(), &stream, recounted).is_ok());
}

#[test]
fn what_is_no_command_ends_where_it_ends() {
    let mut stream = Stream::default();
    stream.sent(b"\r\n");
    stream.sent(b"*0\r\nPING\r\n");
    let commands = stream.commands();
    let all: Vec<_> = commands.map(|said| (said.bytes, said.held)).collect();
    assert_eq!(all, [(6..12, Held::Never)]);
    assert_eq!(stream.commands_in(0), (0, true));
    assert_eq!(stream.commands_in(1), (0, false));
    assert_eq!(stream.commands_in(2), (0, true));
    assert_eq!(stream.commands_in(6), (0, true));
    assert_eq!(stream.commands_in(12), (1, true));
    stream.sent(b"*1\r\n+\r\n");
    assert!(stream.broken);
}
