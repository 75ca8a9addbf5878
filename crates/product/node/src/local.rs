// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A store in this process, with no network before it; and a disk with no store on it. For measurements: both read and
//! write as the node does.
//!
//! Invariant: what was asked is answered once, as the node would answer it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use erb_nvme::backend::{Answer, Backend, Operation, Refused, Request, Ticket};

use crate::NAMESPACE;
use crate::backend::Store;
use crate::buffer::Aligned;
use crate::disk::{Disk, IoEnded};
use crate::engine::{Engine, Recovery};
use crate::error::{Error, Result, system};

/// What waits for something else than the disk is looked at again so soon.
const AGAIN: Duration = Duration::from_micros(200);
/// Zeros are written so many at once.
const ZEROS_BYTES: usize = 1 << 20;

/// A store without a network.
pub struct Local {
    store: Store,
}

impl Local {
    /// Opens a store that no node has.
    ///
    /// # Errors
    /// It does not open.
    pub fn open(path: &Path, memory_bytes: u64) -> Result<Self> {
        let engine = Engine::open(path, memory_bytes, false, Recovery::Sound)?;
        let store = Store::new(engine);
        Ok(Self { store })
    }

    /// Asks. What came of it has the number.
    pub fn ask(&mut self, number: u64, operation: Operation) {
        let request = Request {
            namespace: NAMESPACE,
            writer: 0,
            may_use_reserve: false,
            operation,
        };
        self.store.submit(Ticket(number), request);
    }

    /// Waits for an answer. None: nothing was asked that is not answered.
    ///
    /// # Errors
    /// A write has failed: nothing more is answered.
    pub fn answer(&mut self) -> Result<Option<(u64, std::result::Result<Answer, Refused>)>> {
        loop {
            if let Some((ticket, outcome)) = self.store.completed() {
                return Ok(Some((ticket.0, outcome)));
            }
            if self.store.is_idle() {
                return Ok(None);
            }
            self.store.turn()?;
            if self.store.is_busy() {
                continue;
            }
            if self.store.has_waiting() {
                std::thread::sleep(AGAIN);
            } else {
                self.store.engine.wait()?;
            }
        }
    }
}

/// A file of zeros on a disk, and nothing else.
pub struct Bare {
    disk: Disk,
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl Bare {
    /// Makes a file, which goes when this does.
    ///
    /// # Errors
    /// It is there already, or cannot be made.
    pub fn make(path: &Path, bytes: u64) -> Result<Self> {
        let failed = |what| {
            move |source| Error::File {
                path: path.to_owned(),
                what,
                source,
            }
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .map_err(failed("cannot be made"))?;
        let disk = Disk::new(&file).map_err(system("io_uring is not to be had"))?;
        let bare = Self {
            disk,
            file,
            path: path.to_owned(),
            bytes: bytes / ZEROS_BYTES as u64 * ZEROS_BYTES as u64,
        };
        let zeros = Aligned::zeroed(ZEROS_BYTES);
        for at in (0..bare.bytes).step_by(ZEROS_BYTES) {
            let written = bare.file.write_all_at(zeros.slice(), at);
            written.map_err(failed("cannot be written"))?;
        }
        bare.file
            .sync_all()
            .map_err(failed("cannot be made durable"))?;
        Ok(bare)
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Begins to write durably. Address and length are multiples of 4,096.
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        self.disk.write(address, bytes);
    }

    /// Begins to read. Address and length are multiples of 4,096.
    pub fn read(&mut self, address: u64, bytes: usize) {
        self.disk.read(address, bytes);
    }

    /// Waits until something has ended: how many.
    ///
    /// # Errors
    /// The disk has failed.
    pub fn ended(&mut self) -> Result<usize> {
        self.disk.wait().map_err(system("io_uring does not work"))?;
        let mut count = 0;
        while let Some((_, ended)) = self.disk.ended() {
            if matches!(ended, IoEnded::Write(false) | IoEnded::Read(None)) {
                return Err(Error::Failed);
            }
            count += 1;
        }
        Ok(count)
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // It is in the way of nobody.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use erb_nvme::backend::{Change, Condition, Key, Write};

    use super::*;
    use crate::{Format, format};

    fn put(key: u64) -> Operation {
        Operation::Write {
            write: Write {
                key: Key::Plain(key.to_le_bytes().to_vec()),
                change: Change::Put(vec![7; 100]),
                condition: Condition::Any,
            },
            must_exist: false,
        }
    }

    #[test]
    fn what_many_write_at_once_is_several_batches_of_like_size() {
        let program = std::env::current_exe().expect("a program");
        let folder = program.parent().expect("it lies in a folder");
        let folder = tempfile::tempdir_in(folder).expect("a folder on a disk");
        let path = folder.path().join("store");
        let wanted = Format {
            path: path.clone(),
            bytes: Some(160 << 20),
            shards: 1,
            may_overwrite: false,
        };
        format(&wanted, &mut |_, _| {}).expect("a store");
        let mut local = Local::open(&path, 64 << 20).expect("it opens");
        for round in 0..3 {
            (0..64).for_each(|number| local.ask(number, put(number)));
            let batches = local.store.engine.batches_under_way();
            // In the first round nobody knows yet how many there are.
            if round > 0 {
                assert_eq!(batches, [4], "round {round}");
            }
            for _ in 0..64 {
                let answer = local.answer().expect("the disk works");
                let (_, outcome) = answer.expect("each is answered");
                assert!(matches!(outcome, Ok(Answer::Version(_))), "{outcome:?}");
            }
            assert!(local.answer().expect("the disk works").is_none());
        }
    }
}
