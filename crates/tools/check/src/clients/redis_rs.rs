// SPDX-License-Identifier: Apache-2.0 OR MIT
//! redis-rs with its defaults, in this process.

use std::net::SocketAddr;

use anyhow::{Result, anyhow, ensure};
use redis::{Commands, Connection, ConnectionLike};

use super::process::local_addresses;
use super::{CLIENT_TIMEOUT, Job, Status};

/// The crate's version, as pinned in Cargo.toml.
const VERSION: &str = "1.2.2";

/// Connects, reports the connection, verifies every reply.
///
/// # Errors
/// If the connection cannot be made.
pub fn drive(
    job: &Job,
    connected: impl Fn(&str, SocketAddr) -> Result<()>,
) -> Result<(Connection, Status)> {
    let pid = std::process::id() as i32;
    let before = local_addresses(pid, job.target)?;
    // RESP2 is the library's default; 3 is asked for as its documentation says.
    let query = if job.protocol == 3 {
        "/?protocol=resp3"
    } else {
        "/"
    };
    let client = redis::Client::open(format!("redis://{}{query}", job.target))?;
    let mut conn = client.get_connection_with_timeout(CLIENT_TIMEOUT)?;
    conn.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    ensure!(conn.check_connection(), "PING failed");
    let after = local_addresses(pid, job.target)?;
    let local = after
        .into_iter()
        .find(|a| !before.contains(a))
        .ok_or_else(|| anyhow!("no new connection to {}", job.target))?;
    connected(VERSION, local)?;
    let status = match work(&mut conn, job) {
        Ok(()) => Status::Passed,
        Err(wrong) => Status::Failed(format!("{wrong:#}")),
    };
    Ok((conn, status))
}

fn work(conn: &mut Connection, job: &Job) -> Result<()> {
    let Job {
        prefix, repeats, ..
    } = job;
    let (key, counter, gone) = (
        format!("{prefix}:k"),
        format!("{prefix}:n"),
        format!("{prefix}:gone"),
    );
    conn.set::<_, _, ()>(&key, "value")?;
    expect_get(conn, &key, b"value")?;
    for n in 1..=3 {
        let got: u64 = conn.incr(&counter, 1)?;
        ensure!(got == n, "INCR: got {got}, expected {n}");
    }
    conn.set::<_, _, ()>(&gone, b"\r\n\0\xff")?;
    expect_get(conn, &gone, b"\r\n\0\xff")?;
    let (expired, deleted): (bool, u64) = (conn.expire(&gone, 86_400)?, conn.del(&gone)?);
    ensure!(expired && deleted == 1, "EXPIRE {expired}, DEL {deleted}");
    let absent: Option<Vec<u8>> = conn.get(&gone)?;
    ensure!(absent.is_none(), "GET after DEL: got {absent:?}");
    let mut pipe = redis::pipe();
    for i in 0..10 {
        pipe.set(&key, i).ignore().get(&key);
    }
    let got: Vec<u64> = pipe.query(conn)?;
    ensure!(got == (0..10).collect::<Vec<_>>(), "pipeline: got {got:?}");
    for _ in 0..*repeats {
        expect_get(conn, &key, b"9")?;
    }
    Ok(())
}

fn expect_get(conn: &mut Connection, key: &str, want: &[u8]) -> Result<()> {
    let got: Vec<u8> = conn.get(key)?;
    ensure!(got == want, "GET: got {got:?}, expected {want:?}");
    Ok(())
}
