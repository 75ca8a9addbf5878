// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node over a file on a disk, and clients of it over loopback.

mod edges;
mod history;

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use erb_kv::{Client, RollBack, Selector, Status, Target};
use erb_node::{Format, Node, Options, Role};
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
        role: Role::Admin,
        is_clock_sure: false,
    }
}

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<erb_node::Result<()>>>,
}

impl Running {
    pub(crate) fn start(path: &Path) -> Self {
        Self::with(&options(path))
    }

    pub(crate) fn with(options: &Options) -> Self {
        let node = Node::open(options).expect("the store opens");
        let address = node.address();
        let (stop, heard) = UnixStream::pair().expect("a pair");
        let thread = std::thread::spawn(move || node.run(heard.as_fd()));
        Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub(crate) fn client(&self) -> Client {
        let url = format!("nvme://{}", self.address)
            .parse()
            .expect("an address");
        Client::connect(&url).expect("the node answers")
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
