// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can go wrong, in sentences that say what to do.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use erb_store::growth::NoGrowth;
use erb_store::layout::NoLayout;
use erb_store::opening::OpenError;
use erb_store::version::Doubt;

use crate::hosts::NoHosts;
use crate::{DESCRIPTORS_MIN, NQN};

/// Why the node does not do something.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened, read or written.
    #[error("{path}: {what}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// The file system has no direct I/O.
    #[error(
        "{0}: its file system has no direct I/O, so a write could not be known to be durable: use ext4, xfs or a \
         block device"
    )]
    NotDirect(PathBuf),
    /// The file lies in memory.
    #[error(
        "{0}: it lies in memory (tmpfs), where nothing survives: use a file on a disk, or a block device"
    )]
    InMemory(PathBuf),
    /// Neither a file nor a block device.
    #[error("{0}: neither a file nor a block device")]
    NotAFile(PathBuf),
    /// Another process has it.
    #[error("{path}: {holder} has it: a store has one node; `erb node stop` ends that one")]
    InUse {
        /// The file.
        path: PathBuf,
        /// Who.
        holder: String,
    },
    /// Another process makes it larger, or a new one of it.
    #[error("{0}: another process makes it larger: wait until that has ended")]
    Growing(PathBuf),
    /// Who has it serves nobody.
    #[error(
        "{path}: process {process} has it and is no node: it makes the store, checks it or makes it larger, and ends by itself"
    )]
    NotANode {
        /// The file.
        path: PathBuf,
        /// Who.
        process: i32,
    },
    /// Nobody has it.
    #[error("{0}: no node has it open")]
    NotRunning(PathBuf),
    /// There is something already.
    #[error(
        "{0}: it is there already: --force makes a new store of it, and everything in it is lost"
    )]
    Exists(PathBuf),
    /// A size is wrong.
    #[error("{0}")]
    Size(String),
    /// A store cannot be laid out so.
    #[error(transparent)]
    Layout(#[from] NoLayout),
    /// The store does not open.
    #[error("{path}: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: OpenError,
    },
    /// The file is smaller than its store.
    #[error(
        "{path}: it has {has} bytes and its store {wants}: it was cut off; restore a copy of it"
    )]
    Short {
        /// The file.
        path: PathBuf,
        /// Bytes that it has.
        has: u64,
        /// Bytes of the store.
        wants: u64,
    },
    /// It cannot grow so.
    #[error("{path}: {source}")]
    Grow {
        /// The file.
        path: PathBuf,
        /// Why.
        source: NoGrowth,
    },
    /// A running node has not taken the space that was added to its store.
    #[error("{path}: {why}; the space is there: run it again")]
    NotGrown {
        /// The file.
        path: PathBuf,
        /// Why.
        why: &'static str,
    },
    /// A repair has not come to its end.
    #[error(
        "the repair has not come to its end in time: nothing was lost by that; `erb node grow` gives it space"
    )]
    Late,
    /// The clock is in doubt.
    #[error("{0}; --clock-ok says that it is right")]
    Clock(Doubt),
    /// The address cannot be listened on.
    #[error("{address}: it cannot be listened on: {source}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// Others than this machine could connect, and need no secret.
    #[error(
        "{0}: it can be reached from other machines, and nobody would need a secret: `erb node host add` makes a file \
         of hosts, which --hosts names; --insecure lets everybody in all the same"
    )]
    NotLoopback(SocketAddr),
    /// A subsystem cannot have this name.
    #[error(
        "{0:?}: a subsystem's name has the form nqn.YYYY-MM.DOMAIN:NAME, the domain written backwards, in up to 223 \
         letters, digits and marks, like {NQN}"
    )]
    SubsystemNqn(String),
    /// Hardly any files may be open at a time.
    #[error(
        "{0} files may be open at a time, a node needs {DESCRIPTORS_MIN} and one for each connection beyond that: raise \
         it (ulimit -n, LimitNOFILE= of a service)"
    )]
    Descriptors(u64),
    /// A file with secrets cannot be opened, read or written.
    #[error("{path}: {what}: {source}")]
    SecretsFile {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// A file with secrets that others may know or change.
    #[error("{path}: it has secrets, and {why}")]
    NotPrivate {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// A file without secrets, or with something else.
    #[error(
        "{0}: it has to have one or two lines of the form DHHC-1:HH:BASE64:, as `erb node host add` writes them: the \
         host's secret, then the node's, which is another one"
    )]
    NoSecrets(PathBuf),
    /// A file that is no hosts'.
    #[error("{path}: no file of hosts: {source}")]
    Hosts {
        /// The file.
        path: PathBuf,
        /// Why.
        source: NoHosts,
    },
    /// The file of hosts is a copy of before a change.
    #[error(
        "{path}: the store was served to hosts of a newer file, so this is an old copy, and may have hosts that were \
         removed since: look through it, then `erb node host confirm` makes it the newest"
    )]
    OldHosts {
        /// The file.
        path: PathBuf,
    },
    /// A host is not in the file.
    #[error("{0}: there is no such host")]
    UnknownHost(String),
    /// A host is in the file already.
    #[error("{0}: it is there already: `rekey` gives it another secret, `role` another role")]
    KnownHost(String),
    /// A host cannot be added.
    #[error(transparent)]
    Nqn(NoHosts),
    /// A write has failed.
    #[error(
        "a write to the store has failed, so nothing more was acknowledged: look at the device, then start again"
    )]
    Failed,
    /// The system refuses something.
    #[error("{what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

/// What the node does, or why not.
pub type Result<T> = std::result::Result<T, Error>;

pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::System { what, source }
}
