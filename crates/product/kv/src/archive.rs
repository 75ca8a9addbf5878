// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file with the keys of a moment, or with what has changed between two moments. It is read from front to back, and
//! its end says that it is whole.
//!
//! Numbers are little endian, sums CRC32C. The file begins with a head and the prefix that all keys have:
//!
//! | at | head, 64 bytes |
//! | ---: | --- |
//! | 0 | `ERB-KV\r\n` |
//! | 8 | u32: format: 1 all keys, 2 changes |
//! | 12 | u32: namespace |
//! | 16 | u64: moment, as a version: microseconds since 1970 times 4,096 |
//! | 24 | u16: bytes of the prefix |
//! | 26 | zeros |
//! | 32 | u64: of changes: since when, as a version; else zero |
//! | 40 | zeros |
//! | 60 | u32: sum of the bytes before and of the prefix |
//!
//! Then come records, each with its key and value behind it, in no order of keys:
//!
//! | at | record, 32 bytes |
//! | ---: | --- |
//! | 0 | u8: 1 a key with its value, 2 the end, 3 a key that was deleted; of changes alone |
//! | 1 | zero |
//! | 2 | u16: bytes of the key |
//! | 4 | u32: bytes of the value |
//! | 8 | u64: version of the value, or of the delete; of the end: bytes of all values |
//! | 16 | u64: number of the record, from 0; of the end: how many there are |
//! | 24 | u32: sum of the value |
//! | 28 | u32: sum of the bytes before and of the key, begun with the sum of the head |
//!
//! Invariants:
//! 1. Nothing that a file says makes a reader allocate more than a key and a value may have.
//! 2. What a reader gives has the sums that it was written with. A value that has not is told, and costs that record.
//! 3. Behind a damaged record head nothing is read: where the next one begins is not known.
//! 4. Only the end, with the right numbers and nothing behind it, makes a file whole.
//! 5. What a store would refuse for its size is refused here, before any of the file counts.
//! 6. A whole file names each key once: what comes of it does not depend on an order. See [`once`](crate::once).

use std::io::{self, ErrorKind, Read, Write};

use erb_nvme::limits::{KEY_BYTES_MAX, TRANSFER_BYTES_MAX};

use crate::once::Once;

const MAGIC: &[u8; 8] = b"ERB-KV\r\n";
/// The format of all keys of a moment.
pub const FORMAT: u32 = 1;
/// The format of changes. Who knows the other alone does not take some keys for all.
pub const FORMAT_OF_CHANGES: u32 = 2;
const HEAD_BYTES: usize = 64;
const RECORD_BYTES: usize = 32;
const VALUE: u8 = 1;
const END: u8 = 2;
const DELETED: u8 = 3;

/// Why a file cannot be read, or not any further.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system says so.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It begins otherwise.
    #[error("this is no export of a store")]
    NotAnArchive,
    /// A format that is not known.
    #[error(
        "the export has format {0}, this program reads {FORMAT} and {FORMAT_OF_CHANGES}: take the version of erb that wrote it"
    )]
    Format(u32),
    /// It ends too early.
    #[error("the export is cut short: it ends at byte {at}, within or before record {record}")]
    Short {
        /// Where it ends.
        at: u64,
        /// Which record is missing, counted from 0.
        record: u64,
    },
    /// A sum or a length is wrong.
    #[error("the export is damaged at byte {at}, in the {what}")]
    Damaged {
        /// Where it begins.
        at: u64,
        /// What it is.
        what: &'static str,
    },
    /// No export does that.
    #[error(
        "the export names a key twice, the second time before byte {at}: it was put together by hand"
    )]
    Twice {
        /// Bytes that were read by then.
        at: u64,
    },
    /// No export does that either.
    #[error(
        "the export has a key at byte {at} that no export has, by its {what}: it was put together by hand"
    )]
    Foreign {
        /// Where it begins.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
}

/// What a file is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The namespace.
    pub namespace: u32,
    /// The moment.
    pub moment: u64,
    /// It has what changed after this version alone. None: all keys.
    pub since: Option<u64>,
    /// What all keys begin with.
    pub prefix: Vec<u8>,
}

/// A key in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// The version that it had.
    pub version: u64,
    /// What it was.
    pub what: What,
}

/// What a key was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// It had this value.
    Value(Vec<u8>),
    /// It had a value, which is damaged.
    Damaged,
    /// It was deleted.
    Deleted,
}

/// Writes a file.
pub struct Writer<W> {
    out: W,
    seed: u32,
    records: u64,
    value_bytes: u64,
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, number: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&number);
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes")
}

fn too_long() -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, "a key or value is too long")
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(mut out: W, head: &Head) -> io::Result<Self> {
        let prefix = u16::try_from(head.prefix.len()).map_err(|_| too_long())?;
        let mut bytes = [0; HEAD_BYTES];
        put(&mut bytes, 0, *MAGIC);
        let format = head.since.map_or(FORMAT, |_| FORMAT_OF_CHANGES);
        put(&mut bytes, 8, format.to_le_bytes());
        put(&mut bytes, 12, head.namespace.to_le_bytes());
        put(&mut bytes, 16, head.moment.to_le_bytes());
        put(&mut bytes, 24, prefix.to_le_bytes());
        put(&mut bytes, 32, head.since.unwrap_or(0).to_le_bytes());
        let seed = crc32c::crc32c_append(crc32c::crc32c(&bytes[..60]), &head.prefix);
        put(&mut bytes, 60, seed.to_le_bytes());
        out.write_all(&bytes)?;
        out.write_all(&head.prefix)?;
        Ok(Self {
            out,
            seed,
            records: 0,
            value_bytes: 0,
        })
    }

    fn record(&mut self, kind: u8, version: u64, key: &[u8], value: &[u8]) -> io::Result<()> {
        let key_bytes = u16::try_from(key.len()).map_err(|_| too_long())?;
        let value_bytes = u32::try_from(value.len()).map_err(|_| too_long())?;
        let mut bytes = [0; RECORD_BYTES];
        bytes[0] = kind;
        put(&mut bytes, 2, key_bytes.to_le_bytes());
        put(&mut bytes, 4, value_bytes.to_le_bytes());
        put(&mut bytes, 8, version.to_le_bytes());
        put(&mut bytes, 16, self.records.to_le_bytes());
        put(&mut bytes, 24, crc32c::crc32c(value).to_le_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c_append(self.seed, &bytes[..28]), key);
        put(&mut bytes, 28, sum.to_le_bytes());
        self.out.write_all(&bytes)?;
        self.out.write_all(key)?;
        self.out.write_all(value)
    }

    /// Adds a key.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn value(&mut self, key: &[u8], version: u64, value: &[u8]) -> io::Result<()> {
        self.record(VALUE, version, key, value)?;
        self.records += 1;
        self.value_bytes += value.len() as u64;
        Ok(())
    }

    /// Adds a key that was deleted.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn deleted(&mut self, key: &[u8], version: u64) -> io::Result<()> {
        self.record(DELETED, version, key, &[])?;
        self.records += 1;
        Ok(())
    }

    /// Ends the file, and gives back what it was written to.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn end(mut self) -> io::Result<W> {
        self.record(END, self.value_bytes, &[], &[])?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Reads a file.
pub struct Reader<R> {
    from: R,
    head: Head,
    seed: u32,
    at: u64,
    records: u64,
    value_bytes: u64,
    keys: Once,
    is_over: bool,
}

/// Reads all of it; fewer bytes: that was the end.
fn fill(from: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < bytes.len() {
        match from.read(&mut bytes[count..]) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

impl<R: Read> Reader<R> {
    /// Reads the head.
    ///
    /// # Errors
    /// It is not such a file, or damaged.
    pub fn new(mut from: R) -> Result<Self, Error> {
        let mut bytes = [0; HEAD_BYTES];
        let count = fill(&mut from, &mut bytes)?;
        if count < MAGIC.len() || bytes[..MAGIC.len()] != *MAGIC {
            return Err(Error::NotAnArchive);
        }
        let short = |at| Error::Short { at, record: 0 };
        if count < HEAD_BYTES {
            return Err(short(count as u64));
        }
        let format = u32::from_le_bytes(take(&bytes, 8));
        let since = u64::from_le_bytes(take(&bytes, 32));
        let since = match format {
            FORMAT => None,
            FORMAT_OF_CHANGES => Some(since),
            _ => return Err(Error::Format(format)),
        };
        let damaged = Error::Damaged {
            at: 0,
            what: "head of the file",
        };
        let length = usize::from(u16::from_le_bytes(take(&bytes, 24)));
        if length > KEY_BYTES_MAX {
            return Err(damaged);
        }
        let mut prefix = vec![0; length];
        let count = fill(&mut from, &mut prefix)?;
        if count < length {
            return Err(short((HEAD_BYTES + count) as u64));
        }
        let seed = crc32c::crc32c_append(crc32c::crc32c(&bytes[..60]), &prefix);
        if seed != u32::from_le_bytes(take(&bytes, 60)) {
            return Err(damaged);
        }
        Ok(Self {
            from,
            head: Head {
                namespace: u32::from_le_bytes(take(&bytes, 12)),
                moment: u64::from_le_bytes(take(&bytes, 16)),
                since,
                prefix,
            },
            seed,
            at: (HEAD_BYTES + length) as u64,
            records: 0,
            value_bytes: 0,
            keys: Once::default(),
            is_over: false,
        })
    }

    /// What it is of.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Bytes that were read.
    #[must_use]
    pub fn at(&self) -> u64 {
        self.at
    }

    fn bytes(&mut self, length: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; length];
        let count = fill(&mut self.from, &mut bytes)?;
        self.at += count as u64;
        if count < length {
            return Err(Error::Short {
                at: self.at,
                record: self.records,
            });
        }
        Ok(bytes)
    }

    /// A key counts: it is another one than those before, as far as that is known yet.
    fn count(&mut self, key: &[u8]) -> Result<(), Error> {
        self.records += 1;
        match self.keys.add(key)? {
            true => Ok(()),
            false => Err(Error::Twice { at: self.at }),
        }
    }

    /// A key is one, and of what the head says.
    fn check(&self, key: &[u8], value_bytes: usize, version: u64, at: u64) -> Result<(), Error> {
        let is_storable = crate::fits(key, value_bytes);
        let what = match &self.head {
            _ if !is_storable => "size, which no store takes",
            head if !key.starts_with(&head.prefix) => "prefix",
            head if version > head.moment => "version, which is younger than the moment",
            head if head.since.is_some_and(|since| version <= since) => {
                "version, which had not changed"
            }
            _ => return Ok(()),
        };
        Err(Error::Foreign { at, what })
    }

    /// The next key; none: the file is whole.
    ///
    /// # Errors
    /// It ends too early, is damaged, names a key twice, or one that is not of what its head says. Nothing more comes then.
    pub fn entry(&mut self) -> Result<Option<Entry>, Error> {
        if self.is_over {
            return Ok(None);
        }
        let begun = self.at;
        let damaged = |what| Error::Damaged { at: begun, what };
        let head = self.bytes(RECORD_BYTES)?;
        let key_bytes = usize::from(u16::from_le_bytes(take(&head, 2)));
        let value_bytes = u32::from_le_bytes(take(&head, 4)) as usize;
        if key_bytes > KEY_BYTES_MAX || value_bytes > TRANSFER_BYTES_MAX {
            return Err(damaged("head of a record"));
        }
        let key = self.bytes(key_bytes)?;
        let sum = crc32c::crc32c_append(crc32c::crc32c_append(self.seed, &head[..28]), &key);
        let number = u64::from_le_bytes(take(&head, 16));
        if sum != u32::from_le_bytes(take(&head, 28)) || number != self.records {
            return Err(damaged("head of a record"));
        }
        let version = u64::from_le_bytes(take(&head, 8));
        if head[0] != END {
            self.check(&key, value_bytes, version, begun)?;
        }
        match head[0] {
            VALUE => {
                let value = self.bytes(value_bytes)?;
                self.count(&key)?;
                self.value_bytes += value.len() as u64;
                let is_right = crc32c::crc32c(&value) == u32::from_le_bytes(take(&head, 24));
                let what = if is_right {
                    What::Value(value)
                } else {
                    What::Damaged
                };
                Ok(Some(Entry { key, version, what }))
            }
            DELETED if self.head.since.is_some() && value_bytes == 0 => {
                self.count(&key)?;
                let what = What::Deleted;
                Ok(Some(Entry { key, version, what }))
            }
            END if version == self.value_bytes && key_bytes + value_bytes == 0 => {
                if fill(&mut self.from, &mut [0])? != 0 {
                    return Err(Error::Damaged {
                        at: self.at,
                        what: "bytes behind its end",
                    });
                }
                if !self.keys.finish()? {
                    return Err(Error::Twice { at: self.at });
                }
                self.is_over = true;
                Ok(None)
            }
            _ => Err(damaged("head of a record")),
        }
    }
}

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
