// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client that does what ERB's daemon does as a client of Redis, where there is no ERB: it asks to
//! be told of all changes, in RESP3, then asks what the daemon asks, again and again. It comes back when
//! it is killed.
//!
//! The daemon asks most right behind a command that may have changed Redis's state, so between a test's
//! own commands. This client cannot know when that is. So it rests for a moment only, and asks one
//! question at a time: a test that any of them disturbs is disturbed within few rounds.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use erb_lab::{LabState, netns};

/// What the daemon says first, as far as others can see it.
const GREETING: &[u8] = b"HELLO 3\r\nCLIENT SETNAME bystander\r\nCLIENT NO-EVICT ON\r\n\
    CLIENT TRACKING ON BCAST NOLOOP\r\n";
/// What the daemon asks for, in turn: for the lease, whether it may answer, who is connected, and a value
/// (of a key that nobody has).
const QUESTIONS: [&[u8]; 7] = [
    b"INFO stats commandstats\r\n",
    b"PING\r\n",
    b"INFO server replication persistence stats commandstats\r\n",
    b"CONFIG GET maxmemory maxmemory-policy requirepass timeout io-threads port tls-port\r\n",
    b"ACL LIST\r\n",
    b"CLIENT LIST\r\n",
    b"MULTI\r\nSELECT 9\r\nSTRLEN bystander\r\nGETRANGE bystander 0 9\r\nPEXPIRETIME bystander\r\nEXEC\r\n",
];
/// Between two questions: about as long as a test needs for two commands of its own.
const PAUSE: Duration = Duration::from_micros(100);

/// The client; it leaves when this is dropped.
pub struct Bystander {
    leave: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Bystander {
    /// Connects from the server's own namespace, as the daemon does.
    pub fn join(lab: &LabState) -> Result<Self> {
        let address = SocketAddr::from((lab.server.ipv4, lab.redis_port));
        let namespace = lab.server.namespace.clone();
        let first = netns::run_in(&namespace, || greet(address))
            .context("the further client cannot connect to Redis")?;
        let leave = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&leave);
        let thread = thread::spawn(move || {
            let mut asker = Asker::new(first);
            while !told.load(Ordering::Relaxed) {
                thread::sleep(PAUSE);
                if asker.go_on().is_err()
                    && let Ok(next) = netns::run_in(&namespace, || greet(address))
                {
                    asker = Asker::new(next);
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
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// One connection.
struct Asker {
    stream: TcpStream,
    /// Questions asked.
    asked: usize,
    /// The last one is not answered.
    waits: bool,
}

impl Asker {
    const fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            asked: 0,
            waits: false,
        }
    }

    /// Throws away what came, and asks the next question once something has come behind the last one.
    fn go_on(&mut self) -> std::io::Result<()> {
        self.waits &= !self.hear()?;
        if self.waits {
            return Ok(());
        }
        match self
            .stream
            .write_all(QUESTIONS[self.asked % QUESTIONS.len()])
        {
            // It is stopped or busy: it will read later.
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            done => done?,
        }
        self.asked += 1;
        self.waits = true;
        Ok(())
    }

    /// Whether anything came.
    fn hear(&mut self) -> std::io::Result<bool> {
        let mut bytes = [0; 65536];
        let mut heard = false;
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => heard = true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(heard),
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn one_question_after_the_other_is_asked_each_behind_an_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let mut asker = Asker::new(stream);
        for question in QUESTIONS.iter().chain(&QUESTIONS[..1]) {
            asker.stream.set_nonblocking(true).unwrap();
            asker.go_on().unwrap();
            asker.go_on().unwrap();
            let mut bytes = [0; 256];
            let length = server.read(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], *question);
            server.write_all(b"+OK\r\n").unwrap();
            // Until it is there.
            asker.stream.set_nonblocking(false).unwrap();
            asker.stream.peek(&mut bytes).unwrap();
        }
        drop(server);
        asker.stream.set_nonblocking(false).unwrap();
        assert!(asker.hear().is_err(), "an end that is not seen");
    }
}
