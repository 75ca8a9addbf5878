// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client that does what ERB's daemon does as a client of Redis, where there is no ERB: it asks to
//! be told of all changes, in RESP3, and sends PING now and then. It comes back when it is killed.

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
/// Between two PINGs: others find that Redis has worked for it, as it now and then works for the
/// daemon.
const PAUSE: Duration = Duration::from_millis(1);

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
            let mut stream = first;
            while !told.load(Ordering::Relaxed) {
                thread::sleep(PAUSE);
                if stand_by(&mut stream).is_err()
                    && let Ok(next) = netns::run_in(&namespace, || greet(address))
                {
                    stream = next;
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

/// Sends PING and throws away what came.
fn stand_by(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut heard = [0; 65536];
    loop {
        match stream.read(&mut heard) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    match stream.write_all(b"PING\r\n") {
        // It is stopped or busy: it will read later.
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        done => done,
    }
}
