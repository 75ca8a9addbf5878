// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a power cut leaves, at each flush: the log of a disk that is a target `log-writes` of the device mapper
//! (drivers/md/dm-log-writes.c) is replayed write by write, and behind each flush the file system is mounted and its segments are read.
//!
//! The log has marks, by who watched the module: `synced-N` and `written-N`, as soon as the module said so of the number N. Behind a
//! mark of the first kind each cut has to have all up to that number. Of the second kind some must not, else nothing was
//! looked at.

use std::fs::{self, File};
use std::io::{BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use erb_journal::SegmentReader;

const MAGIC: u64 = 0x6a_7366_7773_6872;
const VERSION: u64 = 1;
/// Bits of an entry's flags.
const FLUSH: u64 = 1 << 0;
const FUA: u64 = 1 << 1;
const DISCARD: u64 = 1 << 2;
const MARK: u64 = 1 << 3;
/// Of an entry, before its mark.
const ENTRY_BYTES: usize = 32;
/// Fewer show nothing.
const CUTS_MIN: usize = 10;

/// A write that the disk was given, or a mark.
struct Entry {
    /// Where it belongs, bytes.
    at: u64,
    flags: u64,
    data: Vec<u8>,
}

/// The log, from its first entry on.
struct Log {
    file: BufReader<File>,
    sector_bytes: u64,
    left: u64,
}

fn word(bytes: &[u8], number: usize) -> Result<u64> {
    let of = bytes.get(number * 8..number * 8 + 8);
    let of = of.context("the log has an end where none should be")?;
    Ok(u64::from_le_bytes(of.try_into()?))
}

impl Log {
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let mut file = BufReader::new(file);
        let mut head = [0; 28];
        file.read_exact(&mut head)?;
        ensure!(
            word(&head, 0)? == MAGIC && word(&head, 1)? == VERSION,
            "{} is no log of writes",
            path.display()
        );
        let sector_bytes = u64::from(u32::from_le_bytes(head[24..].try_into()?));
        file.seek(SeekFrom::Start(sector_bytes))?;
        Ok(Self {
            file,
            sector_bytes,
            left: word(&head, 2)?,
        })
    }

    fn next(&mut self) -> Result<Option<Entry>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let mut head = vec![0; usize::try_from(self.sector_bytes)?];
        self.file.read_exact(&mut head)?;
        let (sectors, flags) = (word(&head, 1)?, word(&head, 2)?);
        let bytes = match flags & (DISCARD | MARK) {
            0 => usize::try_from(sectors * self.sector_bytes)?,
            _ => 0,
        };
        let mut data = vec![0; bytes];
        self.file.read_exact(&mut data)?;
        if flags & MARK != 0 {
            let end = ENTRY_BYTES + usize::try_from(word(&head, 3)?)?;
            let mark = head.get(ENTRY_BYTES..end);
            data = mark.context("a mark is longer than a sector")?.to_vec();
        }
        Ok(Some(Entry {
            at: word(&head, 0)? * self.sector_bytes,
            flags,
            data,
        }))
    }
}

/// What was said by a mark: whether it is synced, up to which number.
fn said(mark: &[u8]) -> Option<(bool, u64)> {
    let text = std::str::from_utf8(mark).ok()?;
    let text = text.trim_end_matches('\0');
    let (what, number) = text.split_once('-')?;
    let is_synced = match what {
        "synced" => true,
        "written" => false,
        _ => return None,
    };
    Some((is_synced, number.parse().ok()?))
}

/// The last number of which all up to it are in the segments of a folder, named `….NUMBER`.
fn last_lsn(folder: &Path) -> Result<u64> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.metadata()?.is_file() {
            paths.push(entry.path());
        }
    }
    paths.sort();
    let mut last = 0;
    for path in paths {
        let name = path.display();
        // It is taken when its header is synced. Until then it may be empty, or zeros: ext4 knows a file's size before its bytes.
        let Ok(mut reader) = SegmentReader::open(BufReader::new(File::open(&path)?)) else {
            continue;
        };
        let first_lsn = reader.header().first_lsn;
        // The header is older than its first record, which follows that of the file before.
        let mut next = last + 1;
        // What a write tore is no record.
        while let Some(record) = reader.next_entry().unwrap_or_default() {
            ensure!(
                record.lsn == next && next >= first_lsn && record.key == next.to_le_bytes(),
                "{name} has the record {}, and should have {next}",
                record.lsn
            );
            next += 1;
        }
        last = next - 1;
    }
    Ok(last)
}

fn run(program: &str, words: &[&Path]) -> Result<()> {
    let status = Command::new(program).args(words).status();
    let status = status.with_context(|| format!("cannot run {program}"))?;
    ensure!(status.success(), "{program} {words:?} failed");
    Ok(())
}

/// What a machine finds after a power cut that leaves so much of the disk. Its file system is a copy: it writes when it is mounted.
fn after_cut(disk: &Path, folder: &Path) -> Result<u64> {
    let (copy, at) = (folder.join("copy"), folder.join("at"));
    fs::copy(disk, &copy).context("cannot copy the disk")?;
    fs::create_dir_all(&at)?;
    run("mount", &[Path::new("-oloop"), &copy, &at])?;
    let found = last_lsn(&at);
    run("umount", &[&at])?;
    found
}

/// Judges a log: `disk` is what the disk was when it began, and is changed; `folder` is for copies.
///
/// # Errors
/// If something that was synced is missing behind a cut; if too little was looked at.
pub fn judge(log: &Path, disk: &Path, folder: &Path) -> Result<()> {
    let mut log = Log::open(log)?;
    let writes = File::options().write(true).open(disk)?;
    let (mut cuts, mut lacking, mut entries, mut marks) = (0, 0, 0_u64, 0);
    let (mut synced, mut written) = (0, 0);
    while let Some(entry) = log.next()? {
        entries += 1;
        if entry.flags & MARK != 0 {
            marks += 1;
            match said(&entry.data) {
                Some((true, number)) => synced = number,
                Some((false, number)) => written = number,
                None => {}
            }
            continue;
        }
        writes.write_all_at(&entry.data, entry.at)?;
        if entry.flags & (FLUSH | FUA) == 0 {
            continue;
        }
        cuts += 1;
        let found = after_cut(disk, folder)
            .with_context(|| format!("behind entry {entries}, the cut {cuts}"))?;
        if found < synced {
            bail!("cut {cuts} leaves {found} records, and {synced} were synced");
        }
        lacking += usize::from(found < written);
    }
    println!(
        "{entries} entries, {marks} of them marks; {cuts} cuts: each had what was synced, {lacking} lacked some that were only written"
    );
    ensure!(synced > 0 && cuts >= CUTS_MIN, "too little was cut");
    ensure!(lacking > 0, "no cut lost anything: nothing was shown");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read() {
        assert_eq!(said(b"synced-12\0"), Some((true, 12)));
        assert_eq!(said(b"written-7"), Some((false, 7)));
        assert_eq!(said(b"other-7"), None);
    }

    #[test]
    fn a_log_is_read_entry_by_entry() {
        let sector = |words: &[u64], rest: &[u8]| {
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            bytes.extend(rest);
            bytes.resize(512, 0);
            bytes
        };
        let mut bytes = sector(&[MAGIC, VERSION, 3], &512_u32.to_le_bytes());
        bytes.extend(sector(&[2, 1, FUA, 512], &[]));
        bytes.extend([7; 512]);
        bytes.extend(sector(&[0, 0, MARK, 8], b"synced-1"));
        bytes.extend(sector(&[0, 8, DISCARD, 4096], &[]));
        let path = std::env::temp_dir().join(format!("erb-cuts-{}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        let mut log = Log::open(&path).unwrap();
        let entry = log.next().unwrap().unwrap();
        assert_eq!(
            (entry.at, entry.flags, entry.data),
            (1024, FUA, vec![7; 512])
        );
        assert_eq!(log.next().unwrap().unwrap().data, b"synced-1");
        assert_eq!(log.next().unwrap().unwrap().data, b"");
        assert!(log.next().unwrap().is_none());
        fs::remove_file(path).unwrap();
    }
}
