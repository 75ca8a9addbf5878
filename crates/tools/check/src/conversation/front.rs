// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who answers: Redis counts the commands that it executes, so what it has not counted was answered
//! in front of it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::net::Conn;
use crate::resp;

/// Commands that may be answered in front of Redis, less those that ERB's fills send.
pub const ANSWERED: [&str; 13] = [
    "get", "mget", "exists", "ttl", "pttl", "substr", "hget", "hmget", "hgetall", "hexists",
    "hstrlen", "hkeys", "hvals",
];
/// Reads of a probe, of which one at least must not be Redis's.
const READS: i64 = 6;
/// Between them.
const PAUSE: Duration = Duration::from_millis(1);

/// How many of [`ANSWERED`] the Redis behind an address has executed.
///
/// # Errors
/// If it cannot be asked.
pub fn executed(address: SocketAddr, stall: Duration) -> Result<i64> {
    counted(&mut Conn::connect(address, stall)?)
        .with_context(|| format!("INFO commandstats of {address}"))
}

fn counted(conn: &mut Conn) -> Result<i64> {
    let reply = conn.call(&["INFO", "commandstats"])?;
    let text = String::from_utf8_lossy(&reply);
    let calls = text.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let number = rest.split(',').next()?.parse::<i64>().ok()?;
        ANSWERED.contains(&name).then_some(number)
    });
    Ok(calls.sum())
}

/// Reads a key of its own until that is answered in front of the Redis at `address`, at most for
/// `limit`; returns whether it was.
///
/// # Errors
/// If it cannot be asked.
pub fn wait(address: SocketAddr, stall: Duration, limit: Duration) -> Result<bool> {
    let end = Instant::now() + limit;
    let mut conn = Conn::connect(address, stall)?;
    let key = format!("conversation:probe:{:x}", fastrand::u64(..));
    conn.call(&["SET", &key, "v", "EX", "60"])?;
    let get = resp::command(&["GET", &key]);
    loop {
        let before = counted(&mut conn)?;
        for _ in 0..READS {
            conn.send(&get)?;
            conn.reply()?;
            std::thread::sleep(PAUSE);
        }
        if counted(&mut conn)? - before < READS {
            return Ok(true);
        }
        if Instant::now() > end {
            return Ok(false);
        }
    }
}
