// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control socket: one JSON object per line in, one out.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

use serde::{Deserialize, Serialize};

use crate::rundir::{RunDir, could_not};
use crate::{Error, Result};

/// Clients at once; they are commands of one operator.
const CLIENTS_MAX: usize = 16;

/// Longest request: a list of a million keys.
const REQUEST_BYTES_MAX: usize = 64 << 20;

/// What a client may ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// The status report.
    Status,
    /// The same, without being kept awake by it: nobody may ever read it.
    Sample,
    /// Stop answering; the daemon leaves when no connection needs it any more.
    Detach {
        /// Reset those connections and leave now.
        force: bool,
        /// What was answered in Redis's place and is not in Redis may be lost.
        #[serde(default)]
        discard: bool,
    },
    /// Fill these keys; answered when each is filled or refused.
    Fill {
        /// The keys.
        keys: Vec<String>,
        /// They hold hashes; without it, strings.
        #[serde(default)]
        hashes: bool,
    },
    /// Switch filling of missed keys on or off.
    Fills {
        /// On.
        on: bool,
    },
    /// Leave out what does not pay up to this level; none: as the daemon decides.
    Aside {
        /// 0 to 3.
        level: Option<u8>,
        /// Whether Redis tells of changes of what was read alone; none: as the daemon decides.
        #[serde(default)]
        of_read: Option<bool>,
    },
    /// The tracked connections.
    Conns,
    /// Keys by heat; from the first time on they are counted.
    Keys,
    /// End without detaching: another daemon goes on with what is at work.
    HandOver,
}

/// A connected client: its unfinished input and its unsent output.
struct Client {
    number: u64,
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    closed: bool,
}

/// The listening socket and its clients.
pub(crate) struct Server {
    listener: UnixListener,
    clients: Vec<Client>,
    next_number: u64,
}

impl Server {
    pub(crate) fn bind(run_dir: &RunDir) -> Result<Self> {
        let path = run_dir.socket();
        // The lock is ours: a socket there is a dead daemon's.
        let _ = fs::remove_file(&path);
        let what = could_not("make the control socket", &path);
        let listener = UnixListener::bind(&path).map_err(Error::io(&what))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(Error::io(&what))?;
        listener.set_nonblocking(true).map_err(Error::io(&what))?;
        Ok(Self {
            listener,
            clients: Vec::new(),
            next_number: 0,
        })
    }

    /// Descriptors to wait for, and whether each waits for room to write.
    pub(crate) fn fds(&self) -> Vec<(BorrowedFd<'_>, bool)> {
        let clients = self
            .clients
            .iter()
            .map(|client| (client.stream.as_fd(), !client.output.is_empty()));
        std::iter::once((self.listener.as_fd(), false))
            .chain(clients)
            .collect()
    }

    /// Accepts, reads, writes; returns whole requests with their client's number.
    pub(crate) fn turn(&mut self) -> Vec<(u64, std::result::Result<Request, String>)> {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.clients.len() < CLIENTS_MAX && stream.set_nonblocking(true).is_ok() {
                let number = self.next_number;
                self.next_number += 1;
                self.clients.push(Client {
                    number,
                    stream,
                    input: Vec::new(),
                    output: Vec::new(),
                    closed: false,
                });
            }
        }
        let mut requests = Vec::new();
        for client in &mut self.clients {
            client.write();
            client.read();
            while let Some(line) = client.line() {
                let request = serde_json::from_slice(&line).map_err(|error| error.to_string());
                requests.push((client.number, request));
            }
        }
        self.clients.retain(|client| !client.closed);
        requests
    }

    /// Sends one object to a client, if it is still there.
    pub(crate) fn answer(&mut self, number: u64, answer: &impl Serialize) {
        let Some(client) = self
            .clients
            .iter_mut()
            .find(|client| client.number == number)
        else {
            return;
        };
        match serde_json::to_vec(answer) {
            Ok(bytes) => client.output.extend(bytes),
            Err(error) => client
                .output
                .extend(format!("{{\"error\":\"{error}\"}}").bytes()),
        }
        client.output.push(b'\n');
        client.write();
    }
}

impl Client {
    fn read(&mut self) {
        let mut bytes = [0; 64 * 1024];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => self.closed = true,
                Ok(count) if self.input.len() + count > REQUEST_BYTES_MAX => self.closed = true,
                Ok(count) => {
                    self.input.extend_from_slice(&bytes[..count]);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.closed = true,
            }
            return;
        }
    }

    fn line(&mut self) -> Option<Vec<u8>> {
        let end = self.input.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.input.drain(..=end).collect();
        line.pop();
        Some(line)
    }

    fn write(&mut self) {
        while !self.output.is_empty() && !self.closed {
            match self.stream.write(&self.output) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.closed = true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_as_json() {
        let parse = |text: &str| serde_json::from_str::<Request>(text);
        assert_eq!(parse(r#"{"op":"status"}"#).unwrap(), Request::Status);
        assert_eq!(
            parse(r#"{"op":"detach","force":true}"#).unwrap(),
            Request::Detach {
                force: true,
                discard: false
            }
        );
        let keys = vec!["a".to_owned()];
        assert_eq!(
            parse(r#"{"op":"fill","keys":["a"]}"#).unwrap(),
            Request::Fill {
                keys: keys.clone(),
                hashes: false
            }
        );
        assert_eq!(
            parse(r#"{"op":"fill","keys":["a"],"hashes":true}"#).unwrap(),
            Request::Fill { keys, hashes: true }
        );
        assert_eq!(
            parse(r#"{"op":"fills","on":false}"#).unwrap(),
            Request::Fills { on: false }
        );
        for (line, level, of_read) in [
            ("null", None, None),
            ("2", Some(2), None),
            ("3", Some(3), None),
            (r#"0,"of_read":true"#, Some(0), Some(true)),
        ] {
            let line = format!(r#"{{"op":"aside","level":{line}}}"#);
            assert_eq!(parse(&line).unwrap(), Request::Aside { level, of_read });
        }
        assert_eq!(parse(r#"{"op":"hand_over"}"#).unwrap(), Request::HandOver);
        assert!(parse(r#"{"op":"shutdown"}"#).is_err());
    }
}
