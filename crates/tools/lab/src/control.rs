// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How one talks to the forwarder: one JSON line there, one JSON line back, on a unix socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::fault::Counters;
use crate::settings::{LinkChange, LinkSettings};

/// Longest line either side accepts: several times the longest that is ever sent.
pub(crate) const LINE_BYTES_MAX: u64 = 4096;
/// Longest wait for the other side: it answers between two batches of frames.
pub(crate) const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// What the forwarder is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// Report settings and counters.
    Get,
    /// Change some settings.
    Set(LinkChange),
    /// Clean settings, counters at zero.
    Reset,
}

/// Settings and counters of a middle box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReport {
    /// What it does to frames, both ways.
    pub settings: LinkSettings,
    /// What it did from the client to the server.
    pub to_server: Counters,
    /// What it did from the server to the client.
    pub to_client: Counters,
}

/// The forwarder's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// Done; this is how things are now.
    Ok(LinkReport),
    /// Refused, nothing changed.
    Error(String),
}

/// Sends one request to the forwarder behind `socket` and returns its report.
pub fn ask(socket: &Path, request: Request) -> Result<LinkReport> {
    let stream = UnixStream::connect(socket).with_context(|| {
        format!(
            "the middle box's forwarder does not listen on {}",
            socket.display()
        )
    })?;
    stream.set_read_timeout(Some(ANSWER_WAIT))?;
    stream.set_write_timeout(Some(ANSWER_WAIT))?;
    send(&stream, &request)?;
    let answer = receive(&stream).context("no answer from the middle box's forwarder")?;
    match answer {
        Answer::Ok(report) => Ok(report),
        Answer::Error(reason) => bail!("the middle box refused: {reason}"),
    }
}

/// Writes one value as a line.
pub(crate) fn send<T: Serialize>(mut stream: &UnixStream, value: &T) -> Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream
        .write_all(&line)
        .context("cannot write to the control socket")
}

/// Reads one line as a value.
pub(crate) fn receive<T: for<'de> Deserialize<'de>>(stream: &UnixStream) -> Result<T> {
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut line)?;
    if !line.ends_with('\n') {
        bail!("the line is cut off or longer than {LINE_BYTES_MAX} bytes");
    }
    serde_json::from_str(&line).context("not a line of this protocol")
}
