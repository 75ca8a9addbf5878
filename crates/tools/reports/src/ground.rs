// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where sequences are played: an address under test, and a plain server of the same version.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use erb_check::net::Conn;
use erb_check::pair::Pair;
use erb_check::resp::Reply;
use erb_lab::netns;

use crate::sequence::Need;

/// Longest wait for what a server needs to get ready.
const STALL: Duration = Duration::from_secs(30);

/// One of the two.
#[derive(Clone, Debug)]
pub struct Side {
    /// Its clients' network namespace; none: this one.
    pub namespace: Option<String>,
    /// Its address.
    pub address: SocketAddr,
}

impl Side {
    /// A server that is reached from here.
    #[must_use]
    pub const fn here(address: SocketAddr) -> Self {
        Self {
            namespace: None,
            address,
        }
    }

    /// A connection to it.
    ///
    /// # Errors
    /// If it cannot be reached.
    pub fn connect(&self, stall: Duration) -> Result<Conn> {
        match &self.namespace {
            None => Conn::connect(self.address, stall),
            Some(namespace) => netns::run_in(namespace, || Conn::connect(self.address, stall)),
        }
    }
}

/// Both.
#[derive(Clone, Debug)]
pub struct Ground {
    /// What is tried.
    pub target: Side,
    /// The same server by itself.
    pub twin: Side,
    /// Whether something answers in front of the target's server.
    pub in_front: bool,
    /// Whether another server is beside each, at the address that the table names.
    pub primary: bool,
}

impl Ground {
    /// The same connection to both.
    ///
    /// # Errors
    /// If one cannot be reached.
    pub fn pair(&self, stall: Duration) -> Result<Pair> {
        Ok(Pair {
            target: self
                .target
                .connect(stall)
                .context("the server under test")?,
            shadow: self.twin.connect(stall).context("the plain server")?,
        })
    }

    /// Why this cannot be had here; none: it can.
    ///
    /// # Errors
    /// If the plain server cannot be asked.
    pub fn lacks(&self, need: &Need) -> Result<Option<String>> {
        let mut twin = self.twin.connect(STALL)?;
        Ok(match need {
            Need::Command(name) => {
                let reply = twin.call(&["COMMAND", "INFO", name])?;
                // One element: nothing is known of it.
                let unknown = matches!(&reply[..], b"*1\r\n$-1\r\n" | b"*1\r\n*-1\r\n");
                unknown.then(|| format!("this server has no {name}"))
            }
            Need::Accepts(command) => {
                let words: Vec<&str> = command.split(' ').collect();
                let reply = twin.call(&words)?;
                let refused = matches!(Reply::parse(&reply), Reply::Error(_));
                refused.then(|| format!("this server does not take `{command}`"))
            }
            Need::Primary => {
                (!self.primary).then(|| "there is no other server to be a replica of".to_owned())
            }
            Need::Nowhere(why) => Some((*why).to_owned()),
        })
    }
}
