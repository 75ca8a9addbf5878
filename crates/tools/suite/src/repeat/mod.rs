// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Between the suite and the server: each read of the fast list is sent again until ERB answers it, at
//! most nine times; the client gets the last reply. Without it the suite reads a key once,
//! then changes it, and ERB has nothing to answer. On a connection of which ERB first must hear from Redis
//! how it stands (after SELECT, EXEC and the like) a read waits for that, half a second at most.
//!
//! It sits in the client's namespace, so that ERB has its connections to answer. Redis without ERB is
//! asked through it too, and each read as often as the rules allow, but nobody is waited for in between.

mod patience;
mod reads;
mod relay;
mod reply;
mod request;
mod serve;
#[cfg(test)]
mod tests;
mod worth;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use erb_lab::{LabState, netns};

use self::patience::Patience;
use self::reads::Reads;
pub use self::reads::{Read, ReadTable};
use self::relay::Shared;
pub use self::reply::{Item, Replies};
use self::serve::serve;
use crate::witness::Witness;

/// The proxy; it ends when this is dropped.
pub struct Repeater {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Repeater {
    /// Listens at the client's own address, at Redis's port.
    pub fn start(lab: &LabState, witness: Option<Arc<dyn Witness>>) -> Result<Self> {
        let address = SocketAddr::from((lab.client.ipv4, lab.redis_port));
        let server = SocketAddr::from((lab.server.ipv4, lab.redis_port));
        let namespace = lab.client.namespace.clone();
        let listener = netns::run_in(&namespace, || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        })
        .context("the proxy that repeats reads cannot listen")?;
        let shared = Arc::new(Shared {
            server,
            witness,
            reads: Reads::default(),
            patience: Patience::default(),
            leave: AtomicBool::new(false),
        });
        let told = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            // Its connections are made in this namespace.
            match netns::enter_in_thread(&namespace) {
                Ok(()) => serve(&listener, &told).context("the proxy that repeats reads has ended"),
                Err(error) => Err(error),
            }
            .unwrap_or_else(|error| eprintln!("suite: {error:#}"));
        });
        Ok(Self {
            address,
            shared,
            thread: Some(thread),
        })
    }

    /// Where clients find it.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What became of the reads so far.
    pub fn reads(&self) -> ReadTable {
        self.shared.reads.table()
    }
}

impl Drop for Repeater {
    fn drop(&mut self) {
        self.shared.leave.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does not panic; and if it did, the run is over anyway.
            let _ = thread.join();
        }
    }
}
