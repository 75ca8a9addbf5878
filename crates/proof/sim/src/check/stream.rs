// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection's entry beside the bytes that its client really said: a second, simple parser tells
//! what the scanners must have found. Looked at while no program is under way.
//!
//! | rule | what it says |
//! | --- | --- |
//! | S | between commands iff `next` is at one's end; `requests` counts all commands up to `next` but those answered fast |
//! | R | replies are counted neither before their commands are executed nor given up without reason |
//! | M | every unanswered write of known keys holds a mark for each, or the fence if they are too many |

use std::collections::BTreeMap;

use erb_abi as abi;
use erb_sim_kernel::{Datapath, Sock, tcp_state};
use erb_sim_redis::Bytes;

use crate::ConnId;
use crate::check::maps::is_unread;
use crate::time::Ns;
use crate::violation::Violation;

use super::held::Held;
use super::maps::addresses;
use super::wire::{Parsed, is, parse, show_argv};

/// Commands that write the keys named and no others: number of words (0: any that Redis takes), and
/// first key, last key, step; a last key of -1 is the last word.
const WRITES: [(&str, usize, (usize, isize, usize)); 15] = [
    ("set", 3, (1, 1, 1)),
    ("incr", 2, (1, 1, 1)),
    ("append", 3, (1, 1, 1)),
    ("setrange", 4, (1, 1, 1)),
    ("getset", 3, (1, 1, 1)),
    ("getdel", 2, (1, 1, 1)),
    ("setnx", 3, (1, 1, 1)),
    ("hset", 4, (1, 1, 1)),
    ("hdel", 3, (1, 1, 1)),
    ("del", 0, (1, -1, 1)),
    ("unlink", 0, (1, -1, 1)),
    ("mset", 0, (1, -1, 2)),
    ("msetnx", 0, (1, -1, 2)),
    ("rename", 3, (1, 2, 1)),
    ("move", 3, (1, 1, 1)),
];

/// The keys that a command writes, if [`WRITES`] knows it.
fn written(argv: &[Bytes]) -> Vec<Bytes> {
    let row = WRITES
        .iter()
        .find(|(name, words, _)| is(argv, name) && (*words == 0 || argv.len() == *words));
    let Some((_, _, (first, last, step))) = row else {
        return Vec::new();
    };
    let last = usize::try_from(*last).unwrap_or(argv.len() - 1);
    argv.iter()
        .take(last + 1)
        .skip(*first)
        .step_by(*step)
        .cloned()
        .collect()
}

/// Commands that get one reply at once, whatever it is, and leave the connection as it was.
const PLAIN: [&str; 43] = [
    "get", "set", "incr", "append", "setrange", "getset", "getdel", "setnx", "mget", "exists",
    "strlen", "ttl", "pttl", "getrange", "substr", "type", "ping", "echo", "del", "unlink",
    "pexpire", "psetex", "getex", "persist", "expire", "mset", "hello", "dbsize", "hset", "hdel",
    "msetnx", "rename", "copy", "move", "hget", "hmget", "hgetall", "hlen", "hexists", "hstrlen",
    "hkeys", "hvals", "hincrby",
];

/// A command of a client.
struct Command {
    /// Where it ends in the client's stream.
    end: usize,
    /// The keys that it writes.
    writes: Vec<Bytes>,
    /// It may go up although something that was answered is not drained (Y6); what a listener says by rote (A7), too.
    held: Held,
    /// The keys that it reads, if it is one that ERB answers.
    reads: Option<Vec<Bytes>>,
}

/// See [`Command::reads`].
fn read_keys(argv: &[Bytes]) -> Option<Vec<Bytes>> {
    const ONE_KEY: [&str; 14] = [
        "get", "strlen", "ttl", "pttl", "getrange", "substr", "hget", "hmget", "hgetall", "hlen",
        "hexists", "hstrlen", "hkeys", "hvals",
    ];
    if is(argv, "mget") || is(argv, "exists") {
        return Some(argv[1..].to_vec());
    }
    let one = ONE_KEY.iter().any(|name| is(argv, name));
    one.then(|| argv.get(1).cloned().into_iter().collect())
}

/// A command as it lies in what its client has said.
pub struct Said<'a> {
    /// Where it begins and ends.
    pub bytes: std::ops::Range<usize>,
    /// The keys that it writes.
    pub(crate) writes: &'a [Bytes],
    /// Whether it waits for what was answered before it.
    pub held: Held,
    /// See [`Command::reads`].
    pub(crate) reads: Option<&'a [Bytes]>,
}

/// What a client has said so far.
#[derive(Default)]
pub struct Stream {
    rest: Vec<u8>,
    said: usize,
    commands: Vec<Command>,
    /// Ends of bytes that are no command and get no reply.
    gaps: Vec<usize>,
    /// What follows is no command.
    pub broken: bool,
    /// Something that is not [`PLAIN`] was said.
    odd: bool,
    /// Commands that Redis has executed.
    pub executed: u32,
}

impl Stream {
    /// The client says more.
    pub fn sent(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let mut at = 0;
        while !self.broken && at < self.rest.len() {
            let rest = &self.rest[at..];
            match parse(rest) {
                Parsed::Request(argv, used) => {
                    self.odd |= rest[0] != b'*' || !PLAIN.iter().any(|name| is(&argv, name));
                    let writes = if rest[0] == b'*' {
                        written(&argv)
                    } else {
                        Vec::new()
                    };
                    at += used;
                    self.commands.push(Command {
                        end: self.said + at,
                        writes,
                        held: Held::of(&argv),
                        reads: read_keys(&argv),
                    });
                }
                Parsed::Nothing(used) => {
                    at += used;
                    self.gaps.push(self.said + at);
                }
                Parsed::More => break,
                Parsed::Broken => self.broken = true,
            }
        }
        self.said += at;
        self.rest.drain(..at);
    }

    /// Redis has executed one of its commands.
    pub(super) const fn executed(&mut self) {
        self.executed += 1;
    }

    /// All commands so far.
    pub fn commands(&self) -> impl Iterator<Item = Said<'_>> {
        let mut begin = 0;
        self.commands.iter().map(move |command| {
            let gap = self.gaps.partition_point(|gap| *gap < command.end);
            let behind = gap.checked_sub(1).map_or(0, |gap| self.gaps[gap]);
            let bytes = begin.max(behind)..command.end;
            begin = command.end;
            Said {
                bytes,
                writes: &command.writes,
                held: command.held,
                reads: command.reads.as_deref(),
            }
        })
    }

    /// Complete commands in the first `len` bytes, and whether those end with one.
    #[must_use]
    pub fn commands_in(&self, len: usize) -> (usize, bool) {
        let count = self.commands.partition_point(|command| command.end <= len);
        let at_end = len == 0
            || count > 0 && self.commands[count - 1].end == len
            || self.gaps.binary_search(&len).is_ok();
        (count, at_end)
    }
}

/// Rule and text.
pub type Broken = (&'static str, String);

/// What was seen of an entry the last time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    cookie: u64,
    in_delta: u32,
    /// Commands answered fast.
    pub fast: usize,
    /// Its requests and replies are counted.
    pub countable: bool,
    /// At least so many commands had been executed when the counts began.
    pub began: u32,
}

/// Compares entries with streams from one look to the next.
#[derive(Default)]
pub struct Streams {
    seen: BTreeMap<([u8; 16], u16), Seen>,
}

impl Streams {
    /// Looks at all entries. `sock` shows the server's socket of an entry and whose connection it is;
    /// `whole`: no packet came in fragments, which the scanners do not see.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(
        &mut self,
        now: Ns,
        path: &Datapath,
        checks: &super::Checks,
        whole: bool,
        sock: impl Fn(&abi::conn_key) -> Option<(Sock, ConnId)>,
    ) -> Result<(), Violation> {
        // SAFETY: the map has one value, which stays where it is; no program runs.
        let control = unsafe { *path.control() };
        let set_of = |key: &[u8]| (control.hash.hash(key) & control.set_mask) as u32;
        let mut seen = BTreeMap::new();
        let mut error = None;
        path.each_conn(|key, conn| {
            let Some((sock, id)) = sock(key) else { return };
            let Some(stream) = checks.stream(id) else {
                return;
            };
            let is_others = conn.cookie != sock.cookie || is_unread(&control, conn);
            if is_others || sock.state != tcp_state::ESTABLISHED {
                return;
            }
            let at = (key.client_addr, key.client_port_be);
            let mut old = self.seen.get(&at).copied();
            old = old.filter(|old| old.cookie == conn.cookie);
            if let Some(old) = &mut old {
                old.countable &= whole;
            }
            match check_conn(old.as_ref(), conn, &sock, stream, set_of) {
                Ok(Some(now_seen)) => {
                    seen.insert(at, now_seen);
                }
                Ok(None) => {}
                Err((rule, text)) => {
                    let (client, _) = addresses(key);
                    let text = format!("entry of {client}: {text}");
                    error.get_or_insert(Violation::new(rule, now, text));
                }
            }
        });
        self.seen = seen;
        error.map_or(Ok(()), Err)
    }
}

const fn has(conn: &abi::conn, flag: u32) -> bool {
    conn.flags as u32 & flag != 0
}

/// Whether an admission has begun the counts anew: then they say nothing of the whole stream.
const fn recounted(conn: &abi::conn) -> bool {
    conn.h.kept as u32 & abi::CONN_K_RECOUNTED != 0
}

/// One entry; `None` if nothing can be said of it.
///
/// # Errors
/// The first rule that is broken.
pub fn check_conn(
    old: Option<&Seen>,
    conn: &abi::conn,
    sock: &Sock,
    stream: &Stream,
    set_of: impl Fn(&[u8]) -> u32,
) -> Result<Option<Seen>, Broken> {
    if conn.state == abi::CONN_OLD as u8 || stream.broken {
        return Ok(None);
    }
    let countable = !has(conn, abi::CONN_F_UNCOUNTABLE | abi::CONN_F_SCAN_LOST);
    if !countable && !stream.odd && old.is_some_and(|old| old.countable) {
        let text = format!("flags {:02x}, but all its commands are plain", conn.flags);
        return Err(("R", text));
    }
    if has(conn, abi::CONN_F_SCAN_LOST) {
        return Ok(None);
    }
    // Both spaces begin at the same number.
    let first = sock.rcv_nxt.wrapping_sub(sock.bytes_received as u32);
    let scanned = conn.next.wrapping_sub(first) as usize;
    let fast = check_scanned(old, conn, stream, scanned)?;
    if countable && !recounted(conn) && !stream.odd && conn.replies > stream.executed {
        let text = format!(
            "{} replies, {} executed commands",
            conn.replies, stream.executed
        );
        return Err(("R", text));
    }
    let began = began(old, conn, stream);
    if countable && !has(conn, abi::CONN_F_OVERFLOW) {
        check_marks(conn, stream, began, scanned, set_of)?;
    }
    Ok(Some(Seen {
        cookie: conn.cookie,
        in_delta: conn.in_delta,
        fast,
        countable,
        began,
    }))
}

/// How many commands had been executed when the entry's counts began, at least: what was executed since
/// then has been counted. Exact once nothing was under way at a look.
fn began(old: Option<&Seen>, conn: &abi::conn, stream: &Stream) -> u32 {
    if !recounted(conn) {
        return 0;
    }
    let now = stream.executed.saturating_sub(conn.requests);
    old.map_or(now, |old| old.began.max(now))
}

/// S: returns how many commands were answered fast.
fn check_scanned(
    old: Option<&Seen>,
    conn: &abi::conn,
    stream: &Stream,
    scanned: usize,
) -> Result<usize, Broken> {
    if scanned > stream.said {
        let text = format!("{scanned} bytes scanned, {} said", stream.said);
        return Err(("S", text));
    }
    let (commands, at_end) = stream.commands_in(scanned);
    let idle = conn.h.in_.state == 0;
    if idle != at_end {
        let text = format!(
            "state {} behind {scanned} bytes, {commands} commands",
            conn.h.in_.state
        );
        return Err(("S", text));
    }
    if recounted(conn) {
        return Ok(0);
    }
    let requests = conn.requests as usize;
    if conn.requests < stream.executed {
        let text = format!("{requests} requests, {} executed", stream.executed);
        return Err(("S", text));
    }
    let counts = format!("{commands} commands, {requests} requests");
    let Some(fast) = commands.checked_sub(requests) else {
        return Err(("S", counts));
    };
    let before = old.map_or((0, 0), |old| (old.in_delta, old.fast));
    let consumed = conn.in_delta.wrapping_sub(before.0);
    let more = fast.checked_sub(before.1);
    // No command is shorter than an inline one of four letters.
    let right =
        more.is_some_and(|more| (more == 0) == (consumed == 0) && more * 6 <= consumed as usize);
    if !right {
        let text = format!("{counts}, {} fast before, {consumed} bytes since", before.1);
        return Err(("S", text));
    }
    Ok(fast)
}

/// M: what is answered fast comes while nothing is unanswered, so the last commands are those that
/// wait.
fn check_marks(
    conn: &abi::conn,
    stream: &Stream,
    began: u32,
    scanned: usize,
    set_of: impl Fn(&[u8]) -> u32,
) -> Result<(), Broken> {
    let (commands, _) = stream.commands_in(scanned);
    let waiting = conn.requests.wrapping_sub(conn.replies);
    for number in 0..waiting {
        let command = &stream.commands[commands - (waiting - number) as usize];
        let request = conn.replies.wrapping_add(number + 1);
        // Its reply waits, but proof may have come.
        if began.saturating_add(request) <= stream.executed {
            continue;
        }
        let used = conn.h.mark_head.wrapping_sub(conn.h.mark_tail);
        let mark_at = |number: u32| {
            let at = conn.h.mark_tail.wrapping_add(number) % abi::MARKS_IN_FLIGHT;
            conn.h.marks[at as usize]
        };
        // S3: its last byte is on its way still.
        let is_late = conn.h.late != 0 && number + 1 == waiting;
        let holds = |set: u32| {
            let waits = (used..used + u32::from(conn.h.half)).any(|at| mark_at(at).set == set);
            let share_waits = u32::from(conn.h.late) & !abi::PENDING_MARKS != 0;
            let held = (0..used).map(mark_at).any(|mark| {
                let shares = [abi::EFFECT_FENCE, abi::EFFECT_SETTLE].contains(&mark.set);
                mark.request == request && (mark.set & abi::MARK_SET == set || shares)
            });
            held || is_late && (waits || share_waits)
        };
        if command.writes.len() > abi::KEYS_MARKED_MAX as usize {
            if !holds(abi::EFFECT_FENCE) {
                let count = command.writes.len();
                return Err((
                    "M",
                    format!("no fence for request {request} of {count} keys"),
                ));
            }
            continue;
        }
        let short = |key: &&Bytes| key.len() <= abi::KEY_BYTES_MAX as usize;
        for key in command.writes.iter().filter(short) {
            let set = set_of(key);
            if !holds(set) {
                let key = show_argv(std::slice::from_ref(key));
                let text =
                    format!("no mark of set {set} for request {request}, which writes {key}");
                return Err(("M", text));
            }
        }
    }
    Ok(())
}
