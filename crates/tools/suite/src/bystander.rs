// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client that does what ERB's daemon does as a client of Redis, where there is no ERB: it asks to
//! be told of all changes, in RESP3, then asks what the daemon asks, again and again. It comes back when
//! it is killed.
//!
//! The daemon asks most right behind a command that may have changed Redis's state, so between a test's
//! own commands. This client cannot know when that is. So in three of four rounds it asks without a
//! pause: a test that a question disturbs is disturbed then.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use erb_lab::{LabState, netns};

use crate::repeat::{Item, Replies};

/// What the daemon says first, as far as others can see it.
const GREETING: &[u8] = b"HELLO 3\r\nCLIENT SETNAME bystander\r\nCLIENT NO-EVICT ON\r\n\
    CLIENT TRACKING ON BCAST NOLOOP\r\n";
/// Commands of the greeting.
const GREETED: usize = 4;
/// What the daemon asks for, in turn, and how many replies that has: for the lease, whether it may answer,
/// who is connected, and a value (of a key that nobody has).
const QUESTIONS: [(&[u8], usize); 7] = [
    (b"INFO stats commandstats\r\n", 1),
    (b"PING\r\n", 1),
    (
        b"INFO server clients replication persistence stats commandstats\r\n",
        1,
    ),
    (
        b"CONFIG GET maxmemory maxmemory-policy requirepass timeout io-threads port tls-port client-output-buffer-limit notify-keyspace-events\r\n",
        1,
    ),
    (b"ACL LIST\r\n", 1),
    (b"CLIENT LIST\r\n", 1),
    (
        b"MULTI\r\nSELECT 9\r\nSTRLEN bystander\r\nGETRANGE bystander 0 9\r\nPEXPIRETIME bystander\r\nEXEC\r\n",
        6,
    ),
];
/// Between two questions, where it pauses.
const PAUSE: Duration = Duration::from_millis(1);
/// Longest wait for an answer before a look at whether it shall leave.
const LOOK: Duration = Duration::from_millis(10);

/// The client; it leaves when this is dropped.
pub struct Bystander {
    leave: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Bystander {
    /// Connects from the server's own namespace, as the daemon does; `eager`: it asks without a pause.
    pub fn join(lab: &LabState, eager: bool) -> Result<Self> {
        let address = SocketAddr::from((lab.server.ipv4, lab.redis_port));
        let namespace = lab.server.namespace.clone();
        let first = netns::run_in(&namespace, || greet(address))
            .context("the further client cannot connect to Redis")?;
        let leave = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&leave);
        let thread = thread::spawn(move || {
            let mut asker = Asker::new(first);
            while !told.load(Ordering::Relaxed) {
                if !eager {
                    thread::sleep(PAUSE);
                }
                if asker.go_on().is_err() {
                    match netns::run_in(&namespace, || greet(address)) {
                        Ok(next) => asker = Asker::new(next),
                        Err(_) => thread::sleep(LOOK),
                    }
                }
            }
        });
        Ok(Self {
            leave,
            thread: Some(thread),
        })
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.leave.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does not panic; and if it did, the run is over anyway.
            let _ = thread.join();
        }
    }
}

fn greet(address: SocketAddr) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(GREETING)?;
    stream.set_read_timeout(Some(LOOK))?;
    stream.set_write_timeout(Some(LOOK))?;
    Ok(stream)
}

/// One connection.
struct Asker {
    stream: TcpStream,
    replies: Replies,
    /// Questions asked.
    asked: usize,
    /// Replies that have not come.
    owed: usize,
}

impl Asker {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            replies: Replies::default(),
            asked: 0,
            owed: GREETED,
        }
    }

    /// Asks the next question once the last one is answered, and takes what comes.
    fn go_on(&mut self) -> std::io::Result<()> {
        if self.owed == 0 {
            let (question, replies) = QUESTIONS[self.asked % QUESTIONS.len()];
            self.stream.write_all(question)?;
            (self.asked, self.owed) = (self.asked + 1, replies);
        }
        let mut bytes = [0; 65536];
        let length = match self.stream.read(&mut bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => length,
            // It is stopped or busy.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let mut rest = &bytes[..length];
        while !rest.is_empty() {
            let scanned = self.replies.scan(rest);
            let (length, item) = scanned.map_err(|_| ErrorKind::InvalidData)?;
            self.owed -= usize::from(matches!(item, Some(Item::Reply(_)))).min(self.owed);
            rest = &rest[length..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn one_question_after_the_other_is_asked_each_behind_an_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = greet(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let mut asker = Asker::new(stream);
        let mut bytes = vec![0; GREETING.len()];
        server.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, GREETING);
        server.write_all(b"%0\r\n+OK\r\n+OK\r\n+OK\r\n").unwrap();
        for (question, replies) in QUESTIONS.iter().chain(&QUESTIONS[..1]) {
            // What was there is taken, then asked, and not asked again for a push.
            while asker.owed > 0 {
                asker.go_on().unwrap();
            }
            asker.go_on().unwrap();
            server.write_all(b">1\r\n+x\r\n").unwrap();
            asker.go_on().unwrap();
            let mut bytes = [0; 512];
            let length = server.read(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], *question);
            server.write_all(&b"+OK\r\n".repeat(*replies)).unwrap();
        }
        drop(server);
        while asker.owed > 0 {
            asker.go_on().unwrap();
        }
        assert!(asker.go_on().is_err(), "an end that is not seen");
    }

    #[test]
    fn each_question_has_as_many_replies_as_commands() {
        let lines = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(lines(GREETING), GREETED);
        for (question, replies) in QUESTIONS {
            assert_eq!(lines(question), replies);
        }
    }
}
