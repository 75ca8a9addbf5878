// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same writes by ordinary clients: SETs, or HSETs of one field, some in a packet.

use anyhow::{Result, ensure};

use super::args::DIGITS;
use super::keys::{Keys, put_digits};
use crate::load::{Heard, Traffic};

const OK: &[u8] = b"+OK\r\n";
/// To HSET of a field that is there.
const NONE_NEW: &[u8] = b":0\r\n";

/// Fields of a hash.
const FIELDS: u8 = 10;

/// What a hash's key begins with, before its digits.
const HASH: &str = "h";

/// The command by which a hash comes to be there.
pub fn hash_of(index: u32, value_size: u32) -> redis::Cmd {
    let (key, value) = (
        format!("{HASH}{index:0width$}", width = DIGITS as usize),
        "v".repeat(value_size as usize),
    );
    let mut command = redis::cmd("HSET");
    command.arg(key);
    for field in 0..FIELDS {
        command.arg(format!("field{field}")).arg(&value);
    }
    command
}

/// What one client asks.
pub struct Sets {
    keys: Keys,
    batch: usize,
    command: Vec<u8>,
    key_at: usize,
    /// Where the field's digit is, and which one is next; none: a SET.
    field: Option<(usize, u8)>,
    replies: Vec<u8>,
}

impl Sets {
    /// So many SETs in a packet, each with an expiry or not.
    pub fn new(keys: Keys, batch: u32, value_size: u32, expires: bool) -> Self {
        let words = if expires { 5 } else { 3 };
        let key_at = format!("*{words}\r\n$3\r\nSET\r\n${DIGITS}\r\n").len();
        let key = "0".repeat(DIGITS as usize);
        let value = "v".repeat(value_size as usize);
        let behind = if expires {
            "$2\r\nEX\r\n$4\r\n3600\r\n"
        } else {
            ""
        };
        let command = format!(
            "*{words}\r\n$3\r\nSET\r\n${DIGITS}\r\n{key}\r\n${value_size}\r\n{value}\r\n{behind}"
        );
        Self {
            keys,
            batch: batch as usize,
            command: command.into_bytes(),
            key_at,
            field: None,
            replies: OK.repeat(batch as usize),
        }
    }

    /// So many HSETs of one field in a packet.
    pub fn hashes(keys: Keys, batch: u32, value_size: u32) -> Self {
        let key = format!("{HASH}{}", "0".repeat(DIGITS as usize));
        let value = "v".repeat(value_size as usize);
        let head = format!("*4\r\n$4\r\nHSET\r\n${}\r\n", key.len());
        let key_at = head.len() + HASH.len();
        let field = format!("{head}{key}\r\n$6\r\nfield");
        let command = format!("{field}0\r\n${value_size}\r\n{value}\r\n");
        Self {
            keys,
            batch: batch as usize,
            command: command.into_bytes(),
            key_at,
            field: Some((field.len(), 0)),
            replies: NONE_NEW.repeat(batch as usize),
        }
    }
}

impl Traffic for Sets {
    type Asked = ();
    const OPERATIONS: usize = 1;

    fn ask(&mut self, (): &mut (), request: &mut Vec<u8>) -> Result<bool> {
        request.clear();
        for _ in 0..self.batch {
            let from = request.len();
            request.extend_from_slice(&self.command);
            put_digits(
                &mut request[from + self.key_at..],
                u64::from(self.keys.draw()),
            );
            if let Some((at, next)) = &mut self.field {
                request[from + *at] = b'0' + *next;
                *next = (*next + 1) % FIELDS;
            }
        }
        Ok(true)
    }

    fn hear(&mut self, (): &mut (), reply: &[u8], _: &mut Vec<u8>) -> Result<Heard> {
        let text = String::from_utf8_lossy(reply);
        ensure!(self.replies.starts_with(reply), "to a write came {text:?}");
        Ok(match reply.len() < self.replies.len() {
            true => Heard::Part,
            false => Heard::Done(0),
        })
    }
}
