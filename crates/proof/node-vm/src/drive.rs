// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A drive with a write cache that a power cut takes away, as an NBD server for QEMU: numbers are those of NBD's
//! protocol document.
//!
//! Invariants:
//! 1. A write is in the cache when it is answered, and stable when a flush that came to it afterwards is answered; with
//!    FUA it is stable at once.
//! 2. Requests that wait are done in any order, so a flush covers what was answered before, and perhaps more.
//! 3. A cut decides for each sector of 512 bytes by itself: what is stable, or one of the writes since.
//! 4. A read sees the cache: what it gives, a cut may take back.
//! 5. After a cut every request fails until power is back.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

const SECTOR: usize = 512;
/// No request is longer; QEMU is told so.
const REQUEST_BYTES_MAX: u32 = 4 << 20;
/// For so long a request waits for others, among which it then may be the last.
const WAIT: Duration = Duration::from_micros(300);

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const OPTION_ABORT: u32 = 2;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_UNSUPPORTED: u32 = 0x8000_0001;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;
/// Flags are there; flush; FUA.
const EXPORT_FLAGS: u16 = 1 | 4 | 8;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const FUA: u16 = 1;
const INVALID: u32 = 22;
const NO_POWER: u32 = 5;

/// What is on the drive.
struct Medium {
    stable: Vec<u8>,
    /// Of each sector what was written since it was last stable, oldest first.
    cache: BTreeMap<usize, Vec<[u8; SECTOR]>>,
    random: fastrand::Rng,
    /// Says that a flush is done, and does none.
    lies: bool,
    has_power: bool,
    counts: Counts,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Writes, also with FUA.
    pub writes: u64,
    /// Those with FUA.
    pub fua: u64,
    /// Flushes.
    pub flushes: u64,
    /// Cuts of its power.
    pub cuts: u64,
    /// Sectors that were in the cache then.
    pub unsure: u64,
    /// Those of them that lost a write.
    pub lost: u64,
    /// Those that lost one while the drive lied.
    pub lied: u64,
}

/// A drive. Its clones are the same one.
#[derive(Clone)]
pub struct Drive(Arc<Mutex<Medium>>);

struct Request {
    kind: u16,
    flags: u16,
    cookie: u64,
    offset: u64,
    bytes: u32,
    data: Vec<u8>,
}

impl Drive {
    /// One with zeros.
    pub fn new(bytes: usize, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Medium {
            stable: vec![0; bytes],
            cache: BTreeMap::new(),
            random: fastrand::Rng::with_seed(seed),
            lies: false,
            has_power: true,
            counts: Counts::default(),
        })))
    }

    fn medium(&self) -> MutexGuard<'_, Medium> {
        self.0.lock().expect("nobody has failed with it")
    }

    /// Serves whoever connects to the socket, one after the other.
    pub fn serve(&self, socket: &Path) -> Result<()> {
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket)
            .with_context(|| format!("{} cannot be listened to", socket.display()))?;
        let drive = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let drive = drive.clone();
                // Who goes without a word was killed.
                thread::spawn(move || drive.serve_one(stream));
            }
        });
        Ok(())
    }

    /// From now on it says that it has flushed, and has not.
    pub fn lie(&self) {
        self.medium().lies = true;
    }

    /// Power goes.
    pub fn cut(&self) {
        self.medium().cut();
    }

    /// The same, and nothing of the cache gets to the medium.
    pub fn cut_all(&self) {
        self.medium().cut_with(0.0);
    }

    /// Power comes.
    pub fn power_on(&self) {
        self.medium().has_power = true;
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        self.medium().counts
    }

    fn serve_one(&self, mut stream: UnixStream) -> Result<()> {
        self.greet(&mut stream)?;
        let (waiting, came) = (Mutex::new(Vec::new()), Condvar::new());
        let answers = stream.try_clone()?;
        thread::scope(|scope| {
            scope.spawn(|| self.work(&waiting, &came, answers));
            let ended = take_requests(&mut stream, &waiting, &came);
            waiting.lock().expect("whole").push(None);
            came.notify_one();
            ended
        })
    }

    /// The handshake, of which QEMU uses one way.
    fn greet(&self, stream: &mut UnixStream) -> Result<()> {
        let size = self.medium().stable.len() as u64;
        stream.write_all(b"NBDMAGIC")?;
        stream.write_all(&OPTION_MAGIC.to_be_bytes())?;
        // Newstyle, fixed; no zeros behind it.
        stream.write_all(&3_u16.to_be_bytes())?;
        let _flags = u32_of(stream)?;
        loop {
            ensure!(u64_of(stream)? == OPTION_MAGIC, "no option");
            let (option, bytes) = (u32_of(stream)?, u32_of(stream)?);
            ensure!(bytes <= 65_536, "an option is short");
            io::copy(
                &mut Read::by_ref(stream).take(u64::from(bytes)),
                &mut io::sink(),
            )?;
            match option {
                OPTION_GO => {
                    let mut export = INFO_EXPORT.to_be_bytes().to_vec();
                    export.extend(size.to_be_bytes());
                    export.extend(EXPORT_FLAGS.to_be_bytes());
                    answer_option(stream, option, REPLY_INFO, &export)?;
                    let mut sizes = INFO_BLOCK_SIZE.to_be_bytes().to_vec();
                    for size in [SECTOR as u32, 4096, REQUEST_BYTES_MAX] {
                        sizes.extend(size.to_be_bytes());
                    }
                    answer_option(stream, option, REPLY_INFO, &sizes)?;
                    answer_option(stream, option, REPLY_ACK, &[])?;
                    return Ok(());
                }
                OPTION_ABORT => anyhow::bail!("it left"),
                _ => answer_option(stream, option, REPLY_UNSUPPORTED, &[])?,
            }
        }
    }

    fn work(&self, waiting: &Mutex<Vec<Option<Request>>>, came: &Condvar, mut to: UnixStream) {
        loop {
            let mut all = waiting.lock().expect("whole");
            while all.is_empty() {
                all = came.wait(all).expect("whole");
            }
            drop(all);
            thread::sleep(WAIT);
            let mut all = waiting.lock().expect("whole");
            let number = self.medium().random.usize(..all.len());
            let Some(request) = all.swap_remove(number) else {
                // Of what still waits nobody has heard an answer: it did not happen.
                return;
            };
            drop(all);
            let (error, data) = self.medium().run(&request);
            let mut reply = REPLY_MAGIC.to_be_bytes().to_vec();
            reply.extend(error.to_be_bytes());
            reply.extend(request.cookie.to_be_bytes());
            reply.extend(data);
            if to.write_all(&reply).is_err() {
                return;
            }
        }
    }
}

impl Medium {
    fn run(&mut self, request: &Request) -> (u32, Vec<u8>) {
        let (first, bytes) = (request.offset as usize, request.bytes as usize);
        let is_inside = first
            .checked_add(bytes)
            .is_some_and(|end| end <= self.stable.len());
        let is_whole = first % SECTOR == 0 && bytes % SECTOR == 0;
        match request.kind {
            _ if !self.has_power => (NO_POWER, Vec::new()),
            FLUSH => {
                self.counts.flushes += 1;
                if !self.lies {
                    self.flush();
                }
                (0, Vec::new())
            }
            READ if is_inside && is_whole => (0, self.read(first, bytes)),
            WRITE if is_inside && is_whole => {
                self.write(first, &request.data, request.flags & FUA != 0);
                (0, Vec::new())
            }
            _ => (INVALID, Vec::new()),
        }
    }

    fn read(&self, first: usize, bytes: usize) -> Vec<u8> {
        let mut data = self.stable[first..first + bytes].to_vec();
        let sectors = first / SECTOR..(first + bytes) / SECTOR;
        for (sector, writes) in self.cache.range(sectors) {
            if let Some(last) = writes.last() {
                data[sector * SECTOR - first..][..SECTOR].copy_from_slice(last);
            }
        }
        data
    }

    fn write(&mut self, first: usize, data: &[u8], is_stable: bool) {
        self.counts.writes += 1;
        self.counts.fua += u64::from(is_stable);
        for (sector, bytes) in (first / SECTOR..).zip(data.chunks_exact(SECTOR)) {
            if is_stable && !self.lies {
                self.cache.remove(&sector);
                self.stable[sector * SECTOR..][..SECTOR].copy_from_slice(bytes);
            } else {
                let bytes = bytes.try_into().expect("a sector");
                self.cache.entry(sector).or_default().push(bytes);
            }
        }
    }

    fn flush(&mut self) {
        for (sector, writes) in std::mem::take(&mut self.cache) {
            if let Some(last) = writes.last() {
                self.stable[sector * SECTOR..][..SECTOR].copy_from_slice(last);
            }
        }
    }

    fn cut(&mut self) {
        // None, all, or a part of what is in the cache gets to the medium.
        let chance = [0.0, 1.0, 0.5, 0.1, 0.9][self.random.usize(..5)];
        self.cut_with(chance);
    }

    fn cut_with(&mut self, chance: f64) {
        self.has_power = false;
        self.counts.cuts += 1;
        self.counts.unsure += self.cache.len() as u64;
        for (sector, writes) in std::mem::take(&mut self.cache) {
            let kept = if self.random.f64() < chance {
                self.random.usize(..writes.len()) + 1
            } else {
                0
            };
            let has_lost = u64::from(kept < writes.len());
            self.counts.lost += has_lost;
            self.counts.lied += if self.lies { has_lost } else { 0 };
            if let Some(write) = writes[..kept].last() {
                self.stable[sector * SECTOR..][..SECTOR].copy_from_slice(write);
            }
        }
    }
}

fn take_requests(
    stream: &mut UnixStream,
    waiting: &Mutex<Vec<Option<Request>>>,
    came: &Condvar,
) -> Result<()> {
    loop {
        ensure!(u32_of(stream)? == REQUEST_MAGIC, "no request");
        let (flags, kind) = (u16_of(stream)?, u16_of(stream)?);
        let (cookie, offset, bytes) = (u64_of(stream)?, u64_of(stream)?, u32_of(stream)?);
        ensure!(bytes <= REQUEST_BYTES_MAX, "a request is too long");
        let mut data = Vec::new();
        if kind == WRITE {
            data.resize(bytes as usize, 0);
            stream.read_exact(&mut data)?;
        }
        if kind == DISCONNECT {
            return Ok(());
        }
        let request = Request {
            kind,
            flags,
            cookie,
            offset,
            bytes,
            data,
        };
        waiting.lock().expect("whole").push(Some(request));
        came.notify_one();
    }
}

fn answer_option(stream: &mut UnixStream, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    stream.write_all(&bytes)
}

fn bytes_of<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn u16_of(stream: &mut UnixStream) -> io::Result<u16> {
    bytes_of(stream).map(u16::from_be_bytes)
}

fn u32_of(stream: &mut UnixStream) -> io::Result<u32> {
    bytes_of(stream).map(u32::from_be_bytes)
}

fn u64_of(stream: &mut UnixStream) -> io::Result<u64> {
    bytes_of(stream).map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::{Drive, FLUSH, FUA, Medium, NO_POWER, READ, Request, SECTOR, WRITE};

    fn request(kind: u16, flags: u16, sector: usize, fill: u8) -> Request {
        Request {
            kind,
            flags,
            cookie: 0,
            offset: (sector * SECTOR) as u64,
            bytes: SECTOR as u32,
            data: vec![fill; SECTOR],
        }
    }

    fn medium(drive: &Drive) -> std::sync::MutexGuard<'_, Medium> {
        drive.medium()
    }

    #[test]
    fn what_is_flushed_or_written_with_fua_outlives_a_cut_and_the_rest_may_go() {
        let mut gone = 0;
        for seed in 0..64 {
            let drive = Drive::new(8 * SECTOR, seed);
            let mut medium = medium(&drive);
            medium.run(&request(WRITE, 0, 0, 1));
            medium.run(&request(FLUSH, 0, 0, 0));
            medium.run(&request(WRITE, FUA, 1, 2));
            medium.run(&request(WRITE, 0, 2, 3));
            assert_eq!(
                medium.read(2 * SECTOR, SECTOR),
                [3; SECTOR],
                "a read sees the cache"
            );
            medium.cut();
            let asked = medium.run(&request(READ, 0, 0, 0));
            assert_eq!(asked.0, NO_POWER);
            assert_eq!(medium.read(0, SECTOR), [1; SECTOR]);
            assert_eq!(medium.read(SECTOR, SECTOR), [2; SECTOR]);
            gone += usize::from(medium.read(2 * SECTOR, SECTOR) == [0; SECTOR]);
        }
        assert!((1..64).contains(&gone), "{gone} of 64");
    }

    #[test]
    fn a_drive_that_lies_loses_what_it_said_to_be_flushed() {
        let lost = (0..64).filter(|seed| {
            let drive = Drive::new(8 * SECTOR, *seed);
            drive.lie();
            let mut medium = medium(&drive);
            medium.run(&request(WRITE, FUA, 0, 1));
            medium.run(&request(FLUSH, 0, 0, 0));
            medium.cut();
            let is_lost = medium.read(0, SECTOR) == [0; SECTOR];
            assert_eq!(medium.counts.lied, u64::from(is_lost));
            is_lost
        });
        assert!(lost.count() > 0);
    }
}
