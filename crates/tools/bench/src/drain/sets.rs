// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same writes by ordinary clients: SETs, some in a packet.

use anyhow::{Result, ensure};

use super::args::DIGITS;
use super::keys::{Keys, put_digits};
use crate::load::{Heard, Traffic};

const OK: &[u8] = b"+OK\r\n";

/// What one client asks.
pub struct Sets {
    keys: Keys,
    batch: usize,
    command: Vec<u8>,
    key_at: usize,
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
            replies: OK.repeat(batch as usize),
        }
    }
}

impl Traffic for Sets {
    type Asked = ();
    const OPERATIONS: usize = 1;

    fn ask(&mut self, (): &mut (), request: &mut Vec<u8>) -> Result<bool> {
        request.clear();
        for _ in 0..self.batch {
            let at = request.len() + self.key_at;
            request.extend_from_slice(&self.command);
            put_digits(&mut request[at..], u64::from(self.keys.draw()));
        }
        Ok(true)
    }

    fn hear(&mut self, (): &mut (), reply: &[u8], _: &mut Vec<u8>) -> Result<Heard> {
        let text = String::from_utf8_lossy(reply);
        ensure!(self.replies.starts_with(reply), "to SET came {text:?}");
        Ok(match reply.len() < self.replies.len() {
            true => Heard::Part,
            false => Heard::Done(0),
        })
    }
}
