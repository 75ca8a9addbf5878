// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ways to send a file's bytes, each as its best users do it: one call for a record where it has one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use dax_send::{MappedFile, Options, PageCache, Progress, Ring, Sender};
use memmap2::Mmap;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;
use tempfile::TempDir;

use crate::send::bare;

/// Records that wait for one call where a way gathers.
pub const BATCH: usize = 16;

/// A way to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// pread into a buffer, then send.
    ReadSend,
    /// sendfile of tmpfs with O_DIRECT: the stand-in for sendfile of DAX. Both copy each page.
    SendfileDaxPath,
    /// send from the mapping.
    MmapSend,
    /// sendfile from a warm page cache.
    SendfileWarm,
    /// `MSG_ZEROCOPY` by hand, a record a call: what this machine allows.
    Bare,
    /// dax-send, a record a call.
    ZeroCopy,
    /// dax-send, 16 records queued at once.
    ZeroCopyBatched,
    /// dax-send by io_uring, a record a call.
    ZeroCopyRing,
}

impl Way {
    pub const ALL: [Self; 8] = [
        Self::ReadSend,
        Self::SendfileDaxPath,
        Self::MmapSend,
        Self::SendfileWarm,
        Self::Bare,
        Self::ZeroCopy,
        Self::ZeroCopyBatched,
        Self::ZeroCopyRing,
    ];

    pub const fn title(self) -> &'static str {
        match self {
            Self::ReadSend => "read + send",
            Self::SendfileDaxPath => "sendfile, DAX path (stand-in)",
            Self::MmapSend => "mmap + send",
            Self::SendfileWarm => "sendfile, warm page cache",
            Self::Bare => "bare MSG_ZEROCOPY loop",
            Self::ZeroCopy => "dax-send",
            Self::ZeroCopyBatched => "dax-send, 16 at once",
            Self::ZeroCopyRing => "dax-send, io_uring",
        }
    }
}

/// A file in memory, opened in all the ways that are needed.
pub struct Source {
    file: File,
    direct: Option<File>,
    map: Mmap,
    mapped: Arc<MappedFile>,
    ring: Option<Arc<Ring>>,
    length_bytes: usize,
    _dir: TempDir,
}

/// What a run has cost.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    /// Processor time of the sending thread, with what the kernel did in its context.
    pub cpu_ns: u64,
    /// Zero-copy bytes, as the kernel has confirmed.
    pub zero_copy_bytes: u64,
    /// Zero-copy bytes that the kernel has copied after all.
    pub kernel_copied_bytes: u64,
}

impl Source {
    /// Makes a file of so many bytes on tmpfs and reads it once.
    pub fn make(length_bytes: usize) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("erb-bench-")
            .tempdir_in("/dev/shm");
        let dir = dir.context("no room on /dev/shm (tmpfs)")?;
        let path: PathBuf = dir.path().join("file");
        let bytes: Vec<u8> = (0..length_bytes).map(|at| (at >> 3) as u8).collect();
        fs::write(&path, bytes).context("no room on /dev/shm (tmpfs)")?;
        let file = File::open(&path)?;
        // SAFETY: the file is ours alone, in a folder of a random name, and nobody writes to it.
        let map = unsafe { Mmap::map(&file) }.context("cannot map a file of tmpfs")?;
        // Every page is in the page tables before the first run.
        std::hint::black_box(
            map.iter()
                .step_by(4096)
                .map(|byte| u64::from(*byte))
                .sum::<u64>(),
        );
        Ok(Self {
            direct: direct(&path),
            ring: Ring::new().ok(),
            mapped: Arc::new(MappedFile::new(File::open(&path)?)?),
            file,
            map,
            length_bytes,
            _dir: dir,
        })
    }

    /// Whether this machine can send in this way; tmpfs has O_DIRECT since Linux 6.6, and io_uring may be forbidden.
    pub const fn has(&self, way: Way) -> bool {
        match way {
            Way::SendfileDaxPath => self.direct.is_some(),
            Way::ZeroCopyRing => self.ring.is_some(),
            _ => true,
        }
    }

    /// Sends so many bytes in records, over the file again and again.
    pub fn send(
        &self,
        way: Way,
        stream: TcpStream,
        record_bytes: usize,
        total_bytes: usize,
    ) -> Result<Spent> {
        let count = total_bytes / record_bytes;
        let places =
            (0..count).map(|number| number * record_bytes % (self.length_bytes - record_bytes + 1));
        let places = places.map(|at| at / record_bytes * record_bytes);
        match way {
            Way::ZeroCopy => self.by_dax_send(stream, None, places, record_bytes, 1),
            Way::ZeroCopyBatched => self.by_dax_send(stream, None, places, record_bytes, BATCH),
            Way::ZeroCopyRing => {
                self.by_dax_send(stream, self.ring.as_ref(), places, record_bytes, 1)
            }
            Way::Bare => {
                let begin = cpu_ns()?;
                let (zero_copy_bytes, kernel_copied_bytes) =
                    bare::send(&stream, &self.map, places, record_bytes)?;
                Ok(Spent {
                    cpu_ns: cpu_ns()? - begin,
                    zero_copy_bytes,
                    kernel_copied_bytes,
                })
            }
            _ => self.plainly(way, stream, places, record_bytes),
        }
    }

    fn plainly(
        &self,
        way: Way,
        mut stream: TcpStream,
        places: impl Iterator<Item = usize>,
        length: usize,
    ) -> Result<Spent> {
        let mut buffer = vec![0; length];
        let begin = cpu_ns()?;
        for at in places {
            match way {
                Way::ReadSend => {
                    self.file.read_exact_at(&mut buffer, at as u64)?;
                    stream.write_all(&buffer)?;
                }
                Way::MmapSend => stream.write_all(&self.map[at..at + length])?,
                Way::SendfileDaxPath => sendfile(
                    &stream,
                    self.direct.as_ref().context("O_DIRECT")?,
                    at,
                    length,
                )?,
                _ => sendfile(&stream, &self.file, at, length)?,
            }
        }
        Ok(Spent {
            cpu_ns: cpu_ns()? - begin,
            zero_copy_bytes: 0,
            kernel_copied_bytes: 0,
        })
    }

    fn by_dax_send(
        &self,
        stream: TcpStream,
        ring: Option<&Arc<Ring>>,
        places: impl Iterator<Item = usize>,
        length: usize,
        batch: usize,
    ) -> Result<Spent> {
        let sender = Sender::new(Options {
            page_cache: PageCache::ZeroCopy,
            copy_bytes_max: Some(0),
            ..Options::default()
        });
        let mut connection = match ring {
            Some(ring) => sender.connection_on(ring, stream)?,
            None => sender.connection(stream)?,
        };
        let places: Vec<u64> = places.map(|at| at as u64).collect();
        let begin = cpu_ns()?;
        let mut now = Instant::now();
        for (number, group) in places.chunks(batch).enumerate() {
            for at in group {
                connection.queue(&self.mapped, *at..*at + length as u64);
            }
            // As an event loop would: the clock is read once a turn.
            if number % BATCH == 0 {
                now = Instant::now();
            }
            while connection.advance(now)? == Progress::Blocked {
                let mut files = [PollFd::new(connection.stream().as_fd(), PollFlags::POLLOUT)];
                poll(&mut files, PollTimeout::from(100_u8))?;
                connection.completions(Instant::now())?;
            }
        }
        connection.finish()?;
        let counts = sender.counts();
        Ok(Spent {
            cpu_ns: cpu_ns()? - begin,
            zero_copy_bytes: counts.zero_copy_bytes,
            kernel_copied_bytes: counts.kernel_copied_bytes,
        })
    }
}

fn direct(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .ok()
}

fn sendfile(stream: &TcpStream, file: &File, at: usize, length: usize) -> Result<()> {
    let mut offset = i64::try_from(at)?;
    let end = i64::try_from(at + length)?;
    while offset < end {
        let left = usize::try_from(end - offset)?;
        let (to, from) = (stream.as_raw_fd(), file.as_raw_fd());
        // SAFETY: both descriptors are open through the call, and the offset is a valid place.
        let sent = unsafe { libc::sendfile(to, from, &raw mut offset, left) };
        if sent < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != ErrorKind::Interrupted {
                return Err(error).context("sendfile");
            }
        }
        ensure!(sent != 0, "sendfile has found the file's end");
    }
    Ok(())
}

/// Processor time of this thread so far.
fn cpu_ns() -> Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(u64::try_from(time.tv_sec())? * 1_000_000_000 + u64::try_from(time.tv_nsec())?)
}
