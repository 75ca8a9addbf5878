// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random Redis traffic of which every command's and reply's end and meaning is known, because it
//! was made and not parsed: what the programs' streaming scanners are compared with. It judges them,
//! so it shares no code with them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use erb_abi as abi;
use erb_wire::resp::push_command;
use fastrand::Rng;

/// What a request that goes up does to the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// A mark on the set of each of these keys.
    Marks(Vec<Vec<u8>>),
    /// A share of the global fence, of what Redis may report to nobody.
    Fence,
    /// A share of the global fence that is settled.
    Settle,
}

/// One command of a stream.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Whether Redis answers it (empty lines and empty arrays are no requests).
    pub counts: bool,
    /// What it does to the cache.
    pub effect: Effect,
    /// Turns the connection to BYPASS.
    pub stateful: bool,
    /// Redis's state must be read again.
    pub gate: bool,
    /// EXEC: with a queued command that shuts the gate it does so again.
    pub exec: bool,
    /// MULTI: what comes behind it may be queued.
    pub multi: bool,
}

type Classes = BTreeMap<&'static str, abi::Meaning>;

/// `commands.def` by name.
static CLASSES: LazyLock<Classes> = LazyLock::new(|| {
    abi::COMMANDS
        .iter()
        .map(|command| (command.name, command.meaning()))
        .collect()
});

fn lower(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_ascii_lowercase()).unwrap_or_default()
}

/// The row of a command, or of a container's sub-command.
fn row_of(arguments: &[Vec<u8>]) -> Option<&'static abi::Meaning> {
    let name = lower(&arguments[0]);
    let row = CLASSES.get(name.as_str())?;
    if row.class != abi::CMD_CONTAINER {
        return Some(row);
    }
    let sub = arguments.get(1).map(|bytes| lower(bytes));
    [sub.unwrap_or_default().as_str(), "*"]
        .iter()
        .find_map(|sub| CLASSES.get(format!("{name}|{sub}").as_str()))
}

/// The class of a command written as an array.
fn class_of(arguments: &[Vec<u8>]) -> u32 {
    let Some(&abi::Meaning {
        class, argc: count, ..
    }) = row_of(arguments)
    else {
        return abi::CMD_FENCE;
    };
    if count != 0 && count as usize != arguments.len() {
        return match class {
            abi::CMD_GET | abi::CMD_PING => abi::CMD_HARMLESS,
            _ => abi::CMD_SETTLE,
        };
    }
    let sub = arguments
        .get(1)
        .map(|bytes| lower(bytes))
        .unwrap_or_default();
    match class {
        abi::CMD_HELLO if arguments.len() <= 2 => abi::CMD_HARMLESS,
        abi::CMD_HELLO => abi::CMD_STATEFUL,
        abi::CMD_SELECT if sub == "0" => abi::CMD_HARMLESS,
        abi::CMD_SELECT => abi::CMD_STATEFUL,
        other => other,
    }
}

/// What a `CMD_MARK` does: its keys are those of its row, the longest are never cached.
fn marks_of(arguments: &[Vec<u8>]) -> Effect {
    let keys = row_of(arguments).expect("a command that marks").keys;
    let end = match usize::try_from(keys.last) {
        Ok(last) => arguments.len().min(last + 1),
        Err(_) => arguments.len() + 1 - keys.last.unsigned_abs() as usize,
    };
    let places = (usize::from(keys.first)..end).step_by(usize::from(keys.step));
    if places.len() > abi::KEYS_MARKED_MAX as usize {
        return Effect::Settle;
    }
    let keys = places.map(|place| arguments[place].clone());
    Effect::Marks(
        keys.filter(|key| key.len() <= abi::KEY_BYTES_MAX as usize)
            .collect(),
    )
}

const fn is_countable(class: u32) -> bool {
    class != abi::CMD_UNCOUNTABLE && class != abi::CMD_MONITOR && class != abi::CMD_SILENT
}

const fn is_stateful(class: u32) -> bool {
    matches!(
        class,
        abi::CMD_STATEFUL
            | abi::CMD_EXEC
            | abi::CMD_AUTH
            | abi::CMD_MULTI
            | abi::CMD_DISCARD
            | abi::CMD_WATCH
            | abi::CMD_UNWATCH
            | abi::CMD_RESET
            | abi::CMD_BARRED
    )
}

impl Request {
    /// A command written as an array of bulk strings.
    ///
    /// # Panics
    /// If it is one whose replies cannot be counted, or there are no arguments.
    #[must_use]
    pub fn array(arguments: &[Vec<u8>]) -> Self {
        let mut bytes = Vec::new();
        push_command(&mut bytes, arguments);
        let class = class_of(arguments);
        assert!(is_countable(class));
        let effect = match class {
            abi::CMD_MARK => marks_of(arguments),
            abi::CMD_FENCE | abi::CMD_GATE => Effect::Fence,
            abi::CMD_SETTLE | abi::CMD_EXEC | abi::CMD_CONFIG => Effect::Settle,
            _ => Effect::None,
        };
        Self {
            bytes,
            counts: true,
            effect,
            stateful: is_stateful(class),
            gate: class == abi::CMD_GATE || class == abi::CMD_CONFIG,
            exec: class == abi::CMD_EXEC,
            multi: class == abi::CMD_MULTI,
        }
    }

    /// What Redis takes without answering.
    #[must_use]
    pub fn silent(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            counts: false,
            effect: Effect::None,
            stateful: false,
            gate: false,
            exec: false,
            multi: false,
        }
    }

    /// A line: only its first word is understood, so a write closes the fence.
    #[must_use]
    pub fn inline(line: &str, effect: Effect) -> Self {
        Self {
            bytes: line.as_bytes().to_vec(),
            counts: true,
            effect,
            stateful: false,
            gate: false,
            exec: false,
            multi: false,
        }
    }

    /// A random command of every kind whose replies can be counted.
    #[must_use]
    pub fn random(rng: &mut Rng) -> Self {
        match rng.u8(..40) {
            0 => Self::silent(b"\r\n"),
            1 => Self::silent(b"*0\r\n"),
            2 => Self::silent(b"*-1\r\n"),
            3 => Self::inline("PING\r\n", Effect::None),
            4 => Self::inline("  get  some\tkey\r\n", Effect::None),
            5 => Self::inline("set a b\n", Effect::Settle),
            6 => Self::inline("flushall\r\n", Effect::Settle),
            7..=15 => Self::array(&[word(rng, "GET"), key(rng)]),
            16..=18 => Self::array(&[word(rng, "PING")]),
            19..=26 => Self::array(&[word(rng, "SET"), key(rng), value(rng)]),
            27 => Self::many_keys(rng),
            28 => Self::array(&[word(rng, "CLIENT"), word(rng, "SETNAME"), value(rng)]),
            29 => Self::array(&[word(rng, "CLIENT"), word(rng, "TRACKING"), word(rng, "ON")]),
            30 => Self::array(&[word(rng, "CONFIG"), word(rng, "SET"), key(rng), value(rng)]),
            31 => Self::array(&[
                word(rng, "a-name-that-is-far-too-long-for-the-table"),
                key(rng),
            ]),
            32 => Self::array(&[value(rng), key(rng)]),
            _ => Self::listed(rng),
        }
    }

    /// Few keys or as many as are marked, sometimes one too many.
    fn many_keys(rng: &mut Rng) -> Self {
        let most = abi::KEYS_MARKED_MAX as usize;
        let count = match rng.u8(..4) {
            0 => rng.usize(most - 1..most + 3),
            _ => rng.usize(..6),
        };
        let mut arguments = vec![match rng.u8(..3) {
            0 => word(rng, "MSET"),
            1 => word(rng, "DEL"),
            _ => word(rng, "PFCOUNT"),
        }];
        let valued = arguments[0].eq_ignore_ascii_case(b"mset");
        for _ in 0..count {
            arguments.push(key(rng));
            if valued {
                arguments.push(value(rng));
            }
        }
        Self::array(&arguments)
    }

    fn listed(rng: &mut Rng) -> Self {
        loop {
            let command = &abi::COMMANDS[rng.usize(..abi::COMMANDS.len())];
            let mut arguments: Vec<Vec<u8>> = command
                .name
                .split('|')
                .filter(|part| *part != "*")
                .map(|part| word(rng, part))
                .collect();
            for _ in 0..rng.usize(..4) {
                arguments.push(if rng.bool() { key(rng) } else { value(rng) });
            }
            if is_countable(class_of(&arguments)) {
                return Self::array(&arguments);
            }
        }
    }
}

fn word(rng: &mut Rng, text: &str) -> Vec<u8> {
    text.bytes()
        .map(|byte| {
            if rng.bool() {
                byte.to_ascii_uppercase()
            } else {
                byte.to_ascii_lowercase()
            }
        })
        .collect()
}

fn noise(rng: &mut Rng, length: usize) -> Vec<u8> {
    (0..length).map(|_| rng.u8(..)).collect()
}

/// Keys of every length, also longer than ERB takes; few enough to meet again.
fn key(rng: &mut Rng) -> Vec<u8> {
    let length = match rng.u8(..8) {
        0 => rng.usize(..9),
        1 => rng.usize(250..264),
        _ => rng.usize(1..40),
    };
    noise(rng, length)
}

/// Values that look like RESP themselves, and some longer than a packet.
fn value(rng: &mut Rng) -> Vec<u8> {
    match rng.u8(..10) {
        0 => b"\r\n*1\r\n$8\r\nFLUSHALL\r\n".repeat(rng.usize(1..4)),
        1 => {
            let length = rng.usize(1000..4000);
            noise(rng, length)
        }
        _ => {
            let length = rng.usize(..300);
            noise(rng, length)
        }
    }
}

/// One reply of a stream.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// A push answers nothing.
    pub is_push: bool,
}

impl Reply {
    /// A random reply of RESP2 or RESP3, at most `depth` aggregates deep.
    #[must_use]
    pub fn random(rng: &mut Rng, depth: u32) -> Self {
        if rng.u8(..8) == 0 {
            let mut bytes = Vec::new();
            aggregate(rng, depth, b'>', 1, &mut bytes);
            return Self {
                bytes,
                is_push: true,
            };
        }
        let mut bytes = Vec::new();
        if rng.u8(..8) == 0 {
            aggregate(rng, depth, b'|', 2, &mut bytes);
        }
        element(rng, depth, &mut bytes);
        Self {
            bytes,
            is_push: false,
        }
    }
}

fn aggregate(rng: &mut Rng, depth: u32, kind: u8, per: usize, to: &mut Vec<u8>) {
    let count = rng.usize(..5);
    to.push(kind);
    to.extend(format!("{count}\r\n").bytes());
    for _ in 0..count * per {
        element(rng, depth.saturating_sub(1), to);
    }
}

fn element(rng: &mut Rng, depth: u32, to: &mut Vec<u8>) {
    let choices = if depth == 0 { 11 } else { 14 };
    match rng.u8(..choices) {
        0 => to.extend(b"+OK\r\n"),
        1 => to.extend(b"-ERR no\r\n"),
        2 => to.extend(format!(":{}\r\n", rng.i64(..)).bytes()),
        3 => to.extend(b"$-1\r\n"),
        4 => to.extend(b"*-1\r\n"),
        5 => to.extend(b"_\r\n"),
        6 => to.extend(b"#t\r\n"),
        7 => to.extend(b",-1.5e3\r\n"),
        8 => to.extend(b"(12345678901234567890\r\n"),
        9 | 10 => {
            let kind = [b'$', b'=', b'!'][rng.usize(..3)];
            let length = if rng.u8(..6) == 0 {
                rng.usize(..3000)
            } else {
                rng.usize(..40)
            };
            to.push(kind);
            to.extend(format!("{length}\r\n").bytes());
            to.extend(noise(rng, length));
            to.extend(b"\r\n");
        }
        11 => aggregate(rng, depth, b'*', 1, to),
        12 => aggregate(rng, depth, b'~', 1, to),
        _ => aggregate(rng, depth, b'%', 2, to),
    }
}

/// Cuts `bytes` into pieces of at most `longest` bytes, most of them short.
#[must_use]
pub fn cut(rng: &mut Rng, bytes: &[u8], longest: usize) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let most = if rng.bool() {
            longest
        } else {
            1 + longest / 64
        };
        let (piece, after) = rest.split_at(rng.usize(1..=most.min(rest.len())));
        pieces.push(piece.to_vec());
        rest = after;
    }
    pieces
}
