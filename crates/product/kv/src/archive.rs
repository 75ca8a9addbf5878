// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file with the keys of a moment. It is read from front to back, and its end says that it is whole.
//!
//! Numbers are little endian, sums CRC32C. The file begins with a head and the prefix that all keys have:
//!
//! | at | head, 64 bytes |
//! | ---: | --- |
//! | 0 | `ERB-KV\r\n` |
//! | 8 | u32: format, 1 |
//! | 12 | u32: namespace |
//! | 16 | u64: moment, as a version: microseconds since 1970 times 4,096 |
//! | 24 | u16: bytes of the prefix |
//! | 26 | zeros |
//! | 60 | u32: sum of the bytes before and of the prefix |
//!
//! Then come records, each with its key and value behind it, in no order of keys:
//!
//! | at | record, 32 bytes |
//! | ---: | --- |
//! | 0 | u8: 1 a key with its value, 2 the end |
//! | 1 | zero |
//! | 2 | u16: bytes of the key |
//! | 4 | u32: bytes of the value |
//! | 8 | u64: version of the value; of the end: bytes of all values |
//! | 16 | u64: number of the record, from 0; of the end: how many there are |
//! | 24 | u32: sum of the value |
//! | 28 | u32: sum of the bytes before and of the key, begun with the sum of the head |
//!
//! Invariants:
//! 1. Nothing that a file says makes a reader allocate more than a key and a value may have.
//! 2. What a reader gives has the sums that it was written with. A value that has not is told, and costs that record.
//! 3. Behind a damaged record head nothing is read: where the next one begins is not known.
//! 4. Only the end, with the right numbers and nothing behind it, makes a file whole.

use std::io::{self, ErrorKind, Read, Write};

use erb_nvme::limits::{KEY_BYTES_MAX, TRANSFER_BYTES_MAX};

const MAGIC: &[u8; 8] = b"ERB-KV\r\n";
/// The format that is written and read.
pub const FORMAT: u32 = 1;
const HEAD_BYTES: usize = 64;
const RECORD_BYTES: usize = 32;
const VALUE: u8 = 1;
const END: u8 = 2;

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
        "the export has format {0}, this program reads {FORMAT}: take the version of erb that wrote it"
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
}

/// What a file is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The namespace.
    pub namespace: u32,
    /// The moment.
    pub moment: u64,
    /// What all keys begin with.
    pub prefix: Vec<u8>,
}

/// A key in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// The version that the value had.
    pub version: u64,
    /// The value; none: it is damaged.
    pub value: Option<Vec<u8>>,
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
        put(&mut bytes, 8, FORMAT.to_le_bytes());
        put(&mut bytes, 12, head.namespace.to_le_bytes());
        put(&mut bytes, 16, head.moment.to_le_bytes());
        put(&mut bytes, 24, prefix.to_le_bytes());
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
        if format != FORMAT {
            return Err(Error::Format(format));
        }
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
                prefix,
            },
            seed,
            at: (HEAD_BYTES + length) as u64,
            records: 0,
            value_bytes: 0,
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

    /// The next key; none: the file is whole.
    ///
    /// # Errors
    /// It ends too early, or is damaged. Nothing more comes then.
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
        match head[0] {
            VALUE => {
                let value = self.bytes(value_bytes)?;
                self.records += 1;
                self.value_bytes += value.len() as u64;
                let is_right = crc32c::crc32c(&value) == u32::from_le_bytes(take(&head, 24));
                Ok(Some(Entry {
                    key,
                    version,
                    value: is_right.then_some(value),
                }))
            }
            END if version == self.value_bytes && key_bytes + value_bytes == 0 => {
                if fill(&mut self.from, &mut [0])? != 0 {
                    return Err(Error::Damaged {
                        at: self.at,
                        what: "bytes behind its end",
                    });
                }
                self.is_over = true;
                Ok(None)
            }
            _ => Err(damaged("head of a record")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        Head {
            namespace: 1,
            moment: 7 << 12,
            prefix: b"a\xff".to_vec(),
        }
    }

    fn entries() -> Vec<Entry> {
        let sizes = [0, 1, 8192, TRANSFER_BYTES_MAX];
        let entries = sizes.iter().zip(0_u8..).map(|(&bytes, number)| Entry {
            key: [&b"a\xff"[..], &vec![number; usize::from(number) * 340]].concat(),
            version: u64::from(number) + 1,
            value: Some(vec![number; bytes]),
        });
        entries.collect()
    }

    fn written() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), &head()).expect("a head");
        for entry in entries() {
            let value = entry.value.expect("it is whole");
            writer
                .value(&entry.key, entry.version, &value)
                .expect("a record");
        }
        writer.end().expect("an end")
    }

    fn read(bytes: &[u8]) -> Result<Vec<Entry>, Error> {
        let mut reader = Reader::new(bytes)?;
        let mut all = Vec::new();
        while let Some(entry) = reader.entry()? {
            all.push(entry);
        }
        Ok(all)
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = written();
        assert_eq!(Reader::new(&bytes[..]).expect("a head").head(), &head());
        assert_eq!(read(&bytes).expect("it is whole"), entries());
        let none = Writer::new(Vec::new(), &head()).and_then(Writer::end);
        assert_eq!(read(&none.expect("an end")).expect("it is whole"), []);
    }

    #[test]
    fn a_file_that_is_cut_anywhere_is_not_whole() {
        let bytes = written();
        let last = bytes.len() - 1;
        for length in (0..600).chain([9_000, last - 40, last - 33, last - 32, last]) {
            let error = read(&bytes[..length]).expect_err("it is cut");
            let is_named = matches!(error, Error::Short { .. } | Error::NotAnArchive);
            assert!(is_named, "{length}: {error}");
        }
    }

    #[test]
    fn each_flipped_bit_is_found_and_a_value_costs_its_record_alone() {
        let bytes = written();
        let first_value = 64 + 2 + 32 + 2 + 32 + 342;
        for at in (0..600).chain([9_000, bytes.len() - 100, bytes.len() - 1]) {
            for bit in [0, 7] {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                match read(&damaged) {
                    Err(_) => {}
                    Ok(found) => {
                        let wanted = entries();
                        let changed = found.iter().zip(&wanted).filter(|(a, b)| a != b);
                        let changed: Vec<_> = changed.collect();
                        assert!(at >= first_value, "{at}: a head is not checked");
                        assert_eq!((found.len(), changed.len()), (wanted.len(), 1), "{at}");
                        assert_eq!(changed[0].0.value, None, "{at}");
                    }
                }
            }
        }
    }

    #[test]
    fn lengths_that_cannot_be_are_refused_before_anything_is_allocated() {
        let bytes = written();
        for (at, length) in [(66 + 2, 2), (66 + 4, 4), (24, 2)] {
            let mut wrong = bytes.clone();
            wrong[at..at + length].fill(0xff);
            let error = read(&wrong).expect_err("no key or value is so long");
            assert!(matches!(error, Error::Damaged { .. }), "{error}");
        }
    }

    #[test]
    fn formats_to_come_other_files_and_files_put_together_are_told() {
        let bytes = written();
        let mut newer = bytes.clone();
        newer[8] = 2;
        assert!(matches!(read(&newer), Err(Error::Format(2))));
        assert!(matches!(read(b"PK\x03\x04 zip"), Err(Error::NotAnArchive)));
        assert!(matches!(read(b""), Err(Error::NotAnArchive)));
        let twice = [&bytes[..], &bytes].concat();
        assert!(matches!(read(&twice), Err(Error::Damaged { .. })));
        // A record of another file, whose number is the next.
        let mut other = Writer::new(
            Vec::new(),
            &Head {
                moment: 8 << 12,
                ..head()
            },
        )
        .expect("a head");
        other.value(b"a\xff", 1, b"").expect("a record");
        let other = other.end().expect("an end");
        let mixed = [&bytes[..66], &other[66..]].concat();
        assert!(matches!(read(&mixed), Err(Error::Damaged { .. })));
    }
}
