// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A peer on this machine, to which the kernel copies: it reads what comes and drops it.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

use crate::cputime;

const BUFFER_BYTES: usize = 1 << 20;

/// A receiver of one connection after the other; ends when dropped.
pub struct Local {
    address: SocketAddr,
    taken_bytes: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    receiver: Option<JoinHandle<Result<()>>>,
}

impl Local {
    /// Listens on loopback; reads on this processor.
    pub fn build(core: usize) -> Result<Self> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no listener on loopback")?;
        let address = listener.local_addr()?;
        let (taken_bytes, stop) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (counted, told) = (Arc::clone(&taken_bytes), Arc::clone(&stop));
        let receiver = thread::Builder::new()
            .name("receiver".to_owned())
            .spawn(move || {
                cputime::pin_this(core)?;
                receive(&listener, &counted, &told)
            })?;
        Ok(Self {
            address,
            taken_bytes,
            stop,
            receiver: Some(receiver),
        })
    }

    pub fn connect(&self) -> Result<TcpStream> {
        TcpStream::connect(self.address).context("cannot connect to loopback")
    }

    /// Bytes that were read so far.
    pub fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Relaxed)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        // One more connection: the thread waits for it.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.receiver.take() {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => eprintln!("the receiver has failed: {error:#}"),
                Err(_) => eprintln!("the receiver has panicked"),
            }
        }
    }
}

fn receive(listener: &TcpListener, counted: &AtomicU64, stop: &AtomicBool) -> Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let (mut stream, _) = listener.accept()?;
        if stop.load(Relaxed) {
            return Ok(());
        }
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(bytes) => {
                    counted.fetch_add(bytes as u64, Relaxed);
                }
                // The sender's end is dropped with a reset once all of its tickets are done.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
}
