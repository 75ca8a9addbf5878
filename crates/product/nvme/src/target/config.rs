// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a target serves, and to whom.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::auth::{Policy, Secrets};
use crate::limits::Limits;

/// What a host may do in a namespace. Each role may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Reads values, versions and listings.
    Reader,
    /// Puts, deletes, and restores single keys.
    Writer,
    /// Rolls scopes back, takes snapshots, and goes on when the store is full.
    Restorer,
    /// Releases snapshots and changes retention.
    Admin,
}

/// A host that may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its NQN.
    pub nqn: String,
    /// The number that its versions carry.
    pub number: u32,
    /// Namespaces that it sees, and its roles there.
    pub roles: BTreeMap<u32, Role>,
    /// What both ends prove that they know. Without it the host connects only where nothing is asked.
    pub secrets: Option<Secrets>,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its number, from 1.
    pub id: u32,
    /// Its globally unique identifier.
    pub nguid: [u8; 16],
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Bytes that it may have.
    pub size_bytes: u64,
}

/// An address under which the target listens, as the discovery log says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// IPv4 or IPv6, as text.
    pub address: String,
    /// TCP's port.
    pub port: u16,
}

/// Of whom proof is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Of everybody.
    Always,
    /// Of everybody who does not come over loopback.
    NotOnLoopback,
    /// Of nobody: an operator has forced it.
    Never,
}

/// What a target serves, and to whom.
#[derive(Clone, Debug)]
pub struct Config {
    /// The subsystem's NQN.
    pub nqn: String,
    /// Serial number, at most 20 bytes.
    pub serial: String,
    /// Model, at most 40 bytes.
    pub model: String,
    /// Firmware, at most 8 bytes.
    pub firmware: String,
    /// What is served.
    pub namespaces: Vec<Namespace>,
    /// Who may connect.
    pub hosts: Vec<Arc<Host>>,
    /// Roles of hosts that are not listed, where no proof is asked. Empty: such hosts are refused.
    pub guests: BTreeMap<u32, Role>,
    /// Of whom proof is asked.
    pub proof: Proof,
    /// Hashes and groups.
    pub policy: Policy,
    /// Where the target listens.
    pub ports: Vec<Port>,
    /// Bounds.
    pub limits: Limits,
}

impl Config {
    /// The host of a name, and whether it has to prove itself. Nothing: it may not connect.
    pub(super) fn host(&self, nqn: &str, is_loopback: bool) -> Option<(Arc<Host>, bool)> {
        let asks = match self.proof {
            Proof::Always => true,
            Proof::NotOnLoopback => !is_loopback,
            Proof::Never => false,
        };
        let listed = self.hosts.iter().find(|host| host.nqn == nqn);
        match listed {
            Some(host) => (!asks || host.secrets.is_some()).then(|| (Arc::clone(host), asks)),
            None if asks || self.guests.is_empty() => None,
            None => Some((
                Arc::new(Host {
                    nqn: nqn.to_owned(),
                    number: 0,
                    roles: self.guests.clone(),
                    secrets: None,
                }),
                false,
            )),
        }
    }
}
