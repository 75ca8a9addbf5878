// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node to be measured, and the disk without it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use erb_kv::Url;
use erb_node::{Format, Node, Options, Role};

/// What one durable write costs the disk: the smallest that it takes.
const BLOCK: usize = 4096;
/// Blocks that are written in turn.
const BLOCKS: u64 = 256;

/// A node over a new store of 8 GiB.
pub struct Measured {
    pub url: Url,
    path: PathBuf,
    stop: UnixStream,
    running: JoinHandle<erb_node::Result<()>>,
}

impl Measured {
    pub fn start(folder: &Path) -> Self {
        let path = folder.join("measured");
        let wanted = Format {
            path: path.clone(),
            bytes: Some(8 << 30),
            shards: 1,
            may_overwrite: true,
        };
        erb_node::format(&wanted, &mut |_, _| {}).expect("a store");
        let node = Node::open(&Options {
            path: path.clone(),
            address: "127.0.0.1:0".parse().expect("an address"),
            nqn: erb_node::NQN.to_owned(),
            memory_bytes: 1 << 30,
            role: Role::Admin,
            hosts: None,
            is_open_to_all: false,
            is_clock_sure: false,
        });
        let node = node.expect("it opens");
        let url = format!("nvme://{}", node.address());
        let (stop, heard) = UnixStream::pair().expect("a pair");
        Self {
            url: url.parse().expect("an address"),
            path,
            stop,
            running: thread::spawn(move || node.run(heard.as_fd())),
        }
    }

    /// Ends the node, and takes its store away.
    pub fn end(self) {
        drop(self.stop);
        let ended = self.running.join().expect("it does not panic");
        ended.expect("it ends well");
        std::fs::remove_file(self.path).expect("removed");
    }
}

/// Durable writes of a block, one after the other, on the same file system.
pub struct Raw {
    file: File,
    path: PathBuf,
    memory: Vec<u8>,
    count: u64,
}

impl Raw {
    pub fn new(folder: &Path) -> io::Result<Self> {
        let path = folder.join("raw");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(libc::O_DIRECT | libc::O_DSYNC)
            .open(&path)?;
        let memory = vec![7; 2 * BLOCK];
        let count = 0;
        let mut raw = Self {
            file,
            path,
            memory,
            count,
        };
        // So that later ones change no metadata.
        (0..BLOCKS).try_for_each(|_| raw.write())?;
        Ok(raw)
    }

    pub fn write(&mut self) -> io::Result<()> {
        let from = self.memory.as_ptr().align_offset(BLOCK);
        let block = &self.memory[from..from + BLOCK];
        self.count += 1;
        self.file
            .write_all_at(block, self.count % BLOCKS * BLOCK as u64)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // It is in the way of nobody.
        let _ = std::fs::remove_file(&self.path);
    }
}
