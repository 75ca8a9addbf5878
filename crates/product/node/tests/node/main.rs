// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node over a file on a disk, and clients of it over loopback.

mod edges;
mod history;
mod hostile;
mod hosts;
mod padding;
mod peer;
mod space;

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use erb_kv::{Client, Identity, RollBack, Secrets, Selector, Status, Target};
use erb_node::{Asking, Format, HostsFile, Node, Note, Options, Role};
use erb_report::NodeStatus;
use tempfile::TempDir;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const SMALL: u64 = 160 * MIB;

/// A folder on a disk: the one of the build.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

pub(crate) fn formatted(folder: &TempDir, bytes: u64, shards: u16) -> PathBuf {
    let path = folder.path().join("store");
    let wanted = Format {
        path: path.clone(),
        bytes: Some(bytes),
        shards,
        may_overwrite: false,
    };
    erb_node::format(&wanted, &mut |_, _| {}).expect("a store");
    path
}

pub(crate) fn options(path: &Path) -> Options {
    Options {
        path: path.to_owned(),
        address: "127.0.0.1:0".parse().expect("an address"),
        nqn: erb_node::NQN.to_owned(),
        memory_bytes: 256 * MIB,
        value_cache_bytes: 0,
        role: Role::Admin,
        hosts: None,
        is_open_to_all: false,
        is_clock_sure: false,
    }
}

const PATIENCE: Duration = Duration::from_secs(30);
/// A node gives a stranger a second more to prove itself: a failure that took so long may be the machine's.
const STRANGERS: Duration = Duration::from_secs(4);

/// What comes of it, unless the machine was too slow for what the node allows.
pub(crate) fn in_time<T>(connect: impl FnOnce() -> erb_kv::Result<T>) -> erb_kv::Result<T> {
    let begun = Instant::now();
    let connected = connect();
    match &connected {
        // These have an answer.
        Ok(_) | Err(erb_kv::Error::NotLetIn(_)) => {}
        Err(error) => assert_in_time(begun, error),
    }
    connected
}

/// Ends a test whose peer may have been ended because its time as a stranger was up.
pub(crate) fn assert_in_time(begun: Instant, why: impl std::fmt::Display) {
    let took = begun.elapsed();
    if took > STRANGERS {
        erb_steady::out_of_patience(format_args!("after {took:?}: {why}"));
    }
}

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    asking: Asking,
    notes: Arc<Mutex<Vec<Note>>>,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<erb_node::Result<()>>>,
}

pub(crate) const WRITER: &str = "nqn.2026-11.org.example:writer";
pub(crate) const ADMIN: &str = "nqn.2026-11.org.example:admin";

/// A file of hosts with a writer and an admin.
pub(crate) fn hosts(folder: &TempDir) -> (PathBuf, [Identity; 2]) {
    let path = folder.path().join("hosts");
    let both = [(WRITER, Role::Writer), (ADMIN, Role::Admin)];
    let both = both.map(|(nqn, role)| add(&path, nqn, role));
    (path, both)
}

pub(crate) fn add(path: &Path, nqn: &str, role: Role) -> Identity {
    let secrets: Secrets = erb_node::new_secrets();
    let added = HostsFile::change(path, true, |hosts| {
        hosts.add(nqn, [(1, role)].into(), secrets.clone())
    });
    added.expect("added");
    Identity {
        host: nqn.to_owned(),
        secrets: Some(secrets),
    }
}

impl Running {
    pub(crate) fn start(path: &Path) -> Self {
        Self::with(&options(path))
    }

    pub(crate) fn with(options: &Options) -> Self {
        let node = Node::open(options).expect("the store opens");
        let (address, asking) = (node.address(), node.asking());
        let (stop, heard) = UnixStream::pair().expect("a pair");
        let notes = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&notes);
        let mut tell = move |note| told.lock().expect("notes").push(note);
        let run = move || node.run_and_tell(heard.as_fd(), &mut tell);
        let thread = std::thread::spawn(run);
        Self {
            address,
            asking,
            notes,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub(crate) fn with_hosts(path: &Path, hosts: &Path) -> Self {
        Self::with(&Options {
            hosts: Some(hosts.to_owned()),
            ..options(path)
        })
    }

    pub(crate) fn url(&self) -> erb_kv::Url {
        let url = format!("nvme://{}", self.address);
        url.parse().expect("an address")
    }

    /// What it says to those who watch it.
    pub(crate) fn status(&self) -> NodeStatus {
        self.asking
            .status(erb_steady::patient(PATIENCE))
            .expect("it answers")
    }

    /// Waits until it has told something; what it told before is forgotten.
    pub(crate) fn await_note(&self, wanted: impl Fn(&Note) -> bool) {
        erb_steady::wait(PATIENCE, || {
            let mut notes = self.notes.lock().expect("notes");
            let at = notes.iter().position(&wanted);
            let at = at.ok_or_else(|| format!("told: {notes:?}"))?;
            notes.drain(..=at);
            Ok(())
        });
    }

    pub(crate) fn client(&self) -> Client {
        let client = in_time(|| Client::connect(&self.url()));
        client.expect("the node answers")
    }

    pub(crate) fn client_as(&self, identity: &Identity) -> Client {
        let client = in_time(|| Client::connect_as(&self.url(), identity));
        client.expect("the node lets it in")
    }

    pub(crate) fn stop(mut self) {
        self.stop = None;
        let ended = self.thread.take().map(JoinHandle::join);
        ended
            .expect("it runs")
            .expect("it does not panic")
            .expect("it ends well");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A test that fails has said why.
            let _ = thread.join();
        }
    }
}

pub(crate) fn value(client: &mut Client, key: &[u8]) -> Option<Vec<u8>> {
    match client.get(key, Selector::Head) {
        Ok(found) => Some(found.value),
        Err(error) if error.status() == Some(Status::ABSENT) => None,
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn status<T>(result: erb_kv::Result<T>) -> Option<Status> {
    result.err().and_then(|error| error.status())
}

pub(crate) fn to(prefix: &[u8], moment: u64) -> RollBack {
    RollBack {
        prefix: prefix.to_vec(),
        target: Target::Moment(moment),
        unless_written_since: None,
        is_dry_run: false,
    }
}

pub(crate) fn all(client: &mut Client, prefix: &[u8], moment: u64) -> Vec<(Vec<u8>, u32)> {
    let mut listing = client.listing(prefix, moment, 0).expect("a listing");
    let mut found = Vec::new();
    while let Some(page) = client.page(&mut listing).expect("a page") {
        found.extend(page.into_iter().map(|row| (row.key, row.bytes)));
    }
    found.sort_unstable();
    found
}
