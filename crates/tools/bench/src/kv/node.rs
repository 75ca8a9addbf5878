// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node that runs, and what its clients do.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use anyhow::{Result, anyhow};
use erb_kv::crowd::{Ask, Crowd, Told, Work};
use erb_kv::{Change, Client, Condition, Url, Write};
use erb_node::{NEW_RETENTION, Node, Options, Retention, Role};

use super::local;

/// Bytes of data of a batch that fills.
const BATCH_BYTES: usize = 900 << 10;
/// Rows of such a batch.
const BATCH_ROWS: usize = 4000;

/// A node over a new store.
pub struct Running {
    url: Url,
    path: PathBuf,
    stop: Option<UnixStream>,
    running: Option<JoinHandle<erb_node::Result<()>>>,
}

impl Running {
    pub fn start(folder: &Path, name: &str, bytes: u64) -> Result<Self> {
        Self::keeping(folder, name, bytes, NEW_RETENTION)
    }

    pub fn keeping(folder: &Path, name: &str, bytes: u64, keeps: Retention) -> Result<Self> {
        let path = local::format(folder, name, bytes, keeps)?;
        let node = Node::open(&Options {
            path: path.clone(),
            address: ([127, 0, 0, 1], 0).into(),
            nqn: erb_node::NQN.to_owned(),
            memory_bytes: local::MEMORY_BYTES,
            // What is measured comes from the disk.
            value_cache_bytes: 0,
            role: Role::Admin,
            is_clock_sure: false,
            hosts: None,
            is_open_to_all: false,
        })?;
        let url = format!("nvme://{}", node.address()).parse()?;
        let (stop, heard) = UnixStream::pair()?;
        Ok(Self {
            url,
            path,
            stop: Some(stop),
            running: Some(thread::spawn(move || node.run(heard.as_fd()))),
        })
    }

    pub fn client(&self) -> Result<Client> {
        Ok(Client::connect(&self.url)?)
    }

    pub fn crowd(&self, connections: usize) -> Result<Crowd> {
        let clients: Result<Vec<Client>> = (0..connections).map(|_| self.client()).collect();
        Ok(Crowd::new(clients?)?)
    }

    /// Gives keys a value by batches: the last version.
    pub fn fill(&self, keys: u64, key: impl Fn(u64) -> Vec<u8>, value: &[u8]) -> Result<u64> {
        let mut client = self.client()?;
        let rows = (BATCH_BYTES / (value.len() + 64)).clamp(1, BATCH_ROWS) as u64;
        let (mut next, mut last) = (0, 0);
        while next < keys {
            let end = (next + rows).min(keys);
            let batch: Vec<Write> = (next..end)
                .map(|number| Write {
                    key: erb_kv::plain(&key(number)),
                    change: Change::Put(value.to_vec()),
                    condition: Condition::Any,
                })
                .collect();
            last = client.batch(&batch)?;
            next = end;
        }
        Ok(last)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(running) = self.running.take() {
            // Whoever measures has heard of it already, by calls that failed.
            let _ = running.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What connections do together: so many of the same.
struct Same<F> {
    next: u64,
    count: u64,
    ask: F,
}

impl<F: FnMut(u64) -> Ask> Work for Same<F> {
    type Failed = anyhow::Error;

    fn next(&mut self, _connection: usize) -> Option<Ask> {
        if self.next == self.count {
            return None;
        }
        self.next += 1;
        Some((self.ask)(self.next - 1))
    }

    fn told(&mut self, _connection: usize, told: erb_kv::Result<Told>) -> Result<()> {
        told.map(drop).map_err(|error| anyhow!(error))
    }
}

/// So many of the same by all of these connections: how many a second.
pub fn many(crowd: &mut Crowd, count: u64, ask: impl FnMut(u64) -> Ask) -> Result<f64> {
    let begun = Instant::now();
    let mut work = Same {
        next: 0,
        count,
        ask,
    };
    crowd.run(&mut work)?;
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}
