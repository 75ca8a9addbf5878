// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb kv export` and `erb kv import`.
//!
//! Invariants:
//! 1. Memory is bounded: an export holds [`CHUNK_BYTES`] and a value, an import a key and a value of each connection.
//! 2. While an export is written nothing is under way: whoever reads it may be slow.
//! 3. A file that is named is whole: before, nothing of an export has that name, and nothing of an import happens.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal, Read, Seek, Write};
use std::path::Path;

use erb_kv::archive::{self, Entry, Reader, What, Writer};
use erb_kv::crowd::{Ask, Crowd, Told, Work};
use erb_kv::{Client, Error, Head, Listed, Listing, Selector, Status, Url};
use indicatif::{BinaryBytes, ProgressBar, ProgressStyle};
use serde_json::json;
use tempfile::NamedTempFile;

use crate::kv::{Done, Failed, connect, print, say, shown, tell_lost, time_of};
use crate::kv_args::{ExportArgs, ImportArgs, OnlyUrl};
use crate::moment::{end_of, now_us, version_of};

/// Values of an export that are fetched together: so many bytes, or one value.
const CHUNK_BYTES: usize = 8 << 20;
/// Values are fetched over so many connections.
const READERS: usize = 8;
/// Keys are written over so many: more of them share a durable write.
const WRITERS: usize = 32;
/// Damaged keys that are named.
const NAMED: usize = 20;

fn bar(length: Option<u64>, is_silent: bool) -> ProgressBar {
    if is_silent || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match length {
        Some(length) => (
            ProgressBar::new(length),
            "{wide_bar} {bytes}/{total_bytes} {eta} {msg}",
        ),
        None => (
            ProgressBar::no_length(),
            "{spinner} {bytes} {bytes_per_sec} {msg}",
        ),
    };
    let style = ProgressStyle::with_template(template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn crowd(node: &OnlyUrl, connections: usize) -> Result<Crowd, Failed> {
    let clients: Result<Vec<Client>, Failed> = (0..connections).map(|_| connect(node)).collect();
    Ok(Crowd::new(clients?)?)
}

fn io_failed(what: &str, error: &io::Error) -> Failed {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failed::Io(format!("{what}: nobody reads any further")),
        _ => Failed::Io(format!("{what}: {error}")),
    }
}

fn is_deleted(row: &Listed) -> bool {
    u32::from(row.flags) & Head::DELETED != 0
}

/// Values of listed keys.
struct Fetch<'a> {
    rows: &'a [Listed],
    next: usize,
    /// By connection: which row it fetches.
    fetched_by: Vec<usize>,
    /// By row; none: it is damaged, or the key was deleted.
    values: Vec<Option<Vec<u8>>>,
}

impl Work for Fetch<'_> {
    type Failed = Failed;

    fn next(&mut self, connection: usize) -> Option<Ask> {
        let mut row = self.rows.get(self.next)?;
        while is_deleted(row) {
            self.next += 1;
            row = self.rows.get(self.next)?;
        }
        self.fetched_by[connection] = self.next;
        self.next += 1;
        Some(Ask::Get {
            key: row.key.clone(),
            at: Selector::Version(row.version),
        })
    }

    fn told(&mut self, connection: usize, told: Result<Told, Error>) -> Done {
        let row = self.fetched_by[connection];
        match told {
            Ok(Told::Value(value)) => self.values[row] = Some(value.value),
            Ok(Told::Version(_)) => return Err(Error::Answer.into()),
            Err(Error::Status { status, .. }) if status == Status::DAMAGED => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// What an export has.
#[derive(Default)]
struct Exported {
    keys: u64,
    deleted: u64,
    value_bytes: u64,
    moment: u64,
    /// Only what has changed since this version.
    since: Option<u64>,
    damaged: Vec<Vec<u8>>,
}

/// Rows whose values together have [`CHUNK_BYTES`], or one row.
fn chunk(rows: &[Listed]) -> usize {
    let mut bytes = 0;
    let fits = |row: &&Listed| {
        bytes += row.bytes as usize;
        bytes <= CHUNK_BYTES
    };
    rows.iter().take_while(fits).count().max(1)
}

/// The next page. A node lets a listing go that nobody reads for a minute, as may be when standard output is slow.
fn page(
    client: &mut Client,
    listing: &mut Listing,
    prefix: &[u8],
) -> Result<Option<Vec<Listed>>, Failed> {
    match client.page(listing) {
        Err(Error::Status { status, .. })
            if status == Status::INVALID_FIELD && listing.moment() != 0 =>
        {
            client.reopen(listing, prefix)?;
            Ok(client.page(listing)?)
        }
        page => Ok(page?),
    }
}

/// Writes rows with their values.
fn write_rows<W: Write>(
    rows: &[Listed],
    crowd: &mut Crowd,
    (writer, name): (&mut Writer<W>, &str),
    done: &mut Exported,
) -> Done {
    let mut rest = rows;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(chunk(rest));
        rest = later;
        let mut fetch = Fetch {
            rows: now,
            next: 0,
            fetched_by: vec![0; crowd.len()],
            values: vec![None; now.len()],
        };
        crowd.run(&mut fetch)?;
        for (row, value) in now.iter().zip(fetch.values) {
            let written = match value {
                Some(value) => {
                    done.keys += 1;
                    done.value_bytes += value.len() as u64;
                    writer.value(&row.key, row.version, &value)
                }
                None if is_deleted(row) => {
                    done.deleted += 1;
                    writer.deleted(&row.key, row.version)
                }
                None => {
                    done.damaged.push(row.key.clone());
                    continue;
                }
            };
            written.map_err(|error| io_failed(name, &error))?;
        }
    }
    Ok(())
}

fn write_out(args: &ExportArgs, out: &mut dyn Write, name: &str) -> Result<Exported, Failed> {
    let url: Url = args.node.url.parse()?;
    let prefix = args.prefix.as_encoded_bytes();
    let mut client = connect(&args.node)?;
    let mut crowd = crowd(&args.node, READERS)?;
    let as_of = version_of(args.as_of, &mut client)?;
    let since = version_of(args.since, &mut client)?;
    let moment = as_of.unwrap_or(0);
    tell_lost(&mut client);
    let mut listing = match since {
        Some(since) => client.changes(prefix, moment, since)?,
        None => client.listing(prefix, moment, 0)?,
    };
    let (mut done, mut writer) = (Exported::default(), None);
    let bar = bar(None, args.node.json);
    let mut out = Some(BufWriter::new(out));
    while let Some(rows) = page(&mut client, &mut listing, prefix)? {
        if let Some(out) = out.take() {
            (done.moment, done.since) = (listing.moment(), since);
            let is_later = since.is_some_and(|since| since > done.moment);
            let is_to_come = |client: &mut Client| -> Result<bool, Failed> {
                let now = end_of(now_us(client)?).map_err(Failed::Usage)?;
                Ok(since.is_some_and(|since| since > now))
            };
            if is_later && (as_of.is_some() || is_to_come(&mut client)?) {
                let later = "what changed since a moment that is later than the one that is exported: give --since an earlier one";
                return Err(Failed::Usage(later.to_owned()));
            }
            let head = archive::Head {
                namespace: url.namespace,
                moment: done.moment,
                // Of a store in which nothing was written lately the moment is the last write.
                since: since.map(|since| since.min(done.moment)),
                prefix: prefix.to_vec(),
            };
            writer = Some(Writer::new(out, &head).map_err(|error| io_failed(name, &error))?);
        }
        let writer = writer.as_mut().expect("the first page has made it");
        write_rows(&rows, &mut crowd, (writer, name), &mut done)?;
        bar.set_position(done.value_bytes);
        bar.set_message(format!("{} keys", done.keys + done.deleted));
    }
    bar.finish_and_clear();
    let writer = writer.ok_or(Error::Answer)?;
    writer.end().map_err(|error| io_failed(name, &error))?;
    Ok(done)
}

fn to_file(args: &ExportArgs, path: &Path) -> Result<Exported, Failed> {
    let name = path.display().to_string();
    let failed = |error: &io::Error| io_failed(&name, error);
    if path.exists() && !args.force {
        let there = format!("{name}: it is there already; --force replaces it");
        return Err(Failed::Usage(there));
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut file = NamedTempFile::new_in(folder).map_err(|error| failed(&error))?;
    let done = write_out(args, file.as_file_mut(), &name)?;
    file.as_file().sync_all().map_err(|error| failed(&error))?;
    let kept = if args.force {
        file.persist(path)
    } else {
        file.persist_noclobber(path)
    };
    kept.map_err(|error| failed(&error.error))?;
    let folder = File::open(folder).and_then(|folder| folder.sync_all());
    folder.map_err(|error| failed(&error))?;
    Ok(done)
}

/// Writes the keys of a moment.
pub fn export(args: &ExportArgs) -> Done {
    let done = match &args.to {
        Some(path) => to_file(args, path)?,
        None if io::stdout().is_terminal() => {
            let nothing =
                "an export is not for a terminal: --to names a file, or put it into a pipe";
            return Err(Failed::Usage(nothing.to_owned()));
        }
        None => write_out(args, &mut io::stdout().lock(), "standard output")?,
    };
    let line = if args.node.json {
        let object = json!({
            "keys": done.keys,
            "deleted": done.deleted,
            "value_bytes": done.value_bytes,
            "moment": done.moment.to_string(),
            "since": done.since.map(|since| since.to_string()),
            "damaged": done.damaged.len(),
        });
        object.to_string()
    } else {
        let (size, moment) = (BinaryBytes(done.value_bytes), time_of(done.moment));
        let since = done.since.map(|since| {
            let (deleted, since) = (done.deleted, time_of(since));
            format!(", {deleted} deleted, since {since}")
        });
        let since = since.unwrap_or_default();
        format!(
            "exported: {} keys, {size}{since}, as of {moment}",
            done.keys
        )
    };
    if args.to.is_some() {
        print(&line)?;
    } else {
        eprintln!("{line}");
    }
    if done.damaged.is_empty() {
        return Ok(());
    }
    for key in done.damaged.iter().take(NAMED) {
        eprintln!("damaged, and not in the export: {}", shown(key));
    }
    Err(Failed::Io(format!(
        "{} values are damaged on the disk and not in the export, which is whole otherwise; `erb kv versions` shows \
         what they can be restored from",
        done.damaged.len()
    )))
}

/// What an import has done.
#[derive(Default)]
struct Imported {
    /// Of changes: since when, and the moment.
    changes: Option<(u64, u64)>,
    keys: u64,
    deleted: u64,
    value_bytes: u64,
    written: u64,
    unchanged: u64,
    damaged: u64,
}

impl Imported {
    fn of(head: &archive::Head) -> Self {
        Self {
            changes: head.since.map(|since| (since, head.moment)),
            ..Self::default()
        }
    }

    /// An entry was read. False: it is damaged.
    fn count(&mut self, what: &What) -> bool {
        match what {
            What::Value(value) => {
                self.keys += 1;
                self.value_bytes += value.len() as u64;
            }
            What::Deleted => self.deleted += 1,
            What::Damaged => self.damaged += 1,
        }
        *what != What::Damaged
    }
}

/// What a connection of an import does.
#[derive(Default)]
struct Seat {
    /// The key and the value that it shall have; none: it is deleted.
    entry: Option<(Vec<u8>, Vec<u8>)>,
    /// The key has another value, so it is to be written.
    is_other: bool,
}

/// Keys that get the values of a file.
struct Put<'a, R> {
    reader: &'a mut Reader<R>,
    seats: Vec<Seat>,
    bar: &'a ProgressBar,
    takes_damaged: bool,
    done: Imported,
    /// The first that went wrong. What is under way ends, and nothing more begins.
    failed: Option<Failed>,
    damage: Option<archive::Error>,
}

impl<R: Read> Put<'_, R> {
    /// The next key whose value can be read; no value: it was deleted.
    fn entry(&mut self) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        while self.failed.is_none() && self.damage.is_none() {
            let at = self.reader.at();
            let Entry { key, what, .. } = match self.reader.entry() {
                Ok(entry) => entry?,
                Err(error) => {
                    self.damage = Some(error);
                    return None;
                }
            };
            self.bar.set_position(self.reader.at());
            self.done.count(&what);
            match what {
                What::Value(value) => return Some((key, Some(value))),
                What::Deleted => return Some((key, None)),
                What::Damaged => {}
            }
            if !self.takes_damaged {
                let what = "value of a key";
                self.damage = Some(archive::Error::Damaged { at, what });
            } else if self.done.damaged <= NAMED as u64 {
                eprintln!("damaged, and not imported: {}", shown(&key));
            }
        }
        None
    }
}

impl<R: Read> Work for Put<'_, R> {
    type Failed = Failed;

    fn next(&mut self, connection: usize) -> Option<Ask> {
        let seat = &mut self.seats[connection];
        let is_other = std::mem::take(&mut seat.is_other);
        if let Some((key, value)) = seat.entry.take_if(|_| is_other) {
            return Some(Ask::Put { key, value });
        }
        let (key, value) = self.entry()?;
        let Some(value) = value else {
            self.seats[connection].entry = None;
            return Some(Ask::Delete { key });
        };
        let at = Selector::Head;
        let ask = Ask::Get {
            key: key.clone(),
            at,
        };
        self.seats[connection] = Seat {
            entry: Some((key, value)),
            is_other: false,
        };
        Some(ask)
    }

    fn told(&mut self, connection: usize, told: Result<Told, Error>) -> Done {
        let seat = &mut self.seats[connection];
        match told {
            Ok(Told::Version(0)) => self.done.unchanged += 1,
            Ok(Told::Version(_)) => {
                self.done.written += 1;
                self.bar
                    .set_message(format!("{} written", self.done.written));
            }
            Ok(Told::Value(found)) => {
                let is_same = seat
                    .entry
                    .as_ref()
                    .is_some_and(|(_, value)| *value == found.value);
                seat.is_other = !is_same;
                self.done.unchanged += u64::from(is_same);
            }
            Err(Error::Status { status, .. })
                if [Status::ABSENT, Status::DAMAGED].contains(&status) && !seat.is_other =>
            {
                seat.is_other = true;
            }
            Err(error) => {
                self.failed.get_or_insert(error.into());
            }
        }
        Ok(())
    }
}

/// Reads a file through: what is in it.
fn look_through(
    file: &mut File,
    name: &str,
    takes_damaged: bool,
    is_silent: bool,
) -> Result<Imported, Failed> {
    let length = file.metadata().map_or(0, |found| found.len());
    let bar = bar(Some(length), is_silent);
    bar.set_message("read through");
    let failed =
        |error: archive::Error| Failed::Io(format!("{name}: {error}; nothing was imported"));
    let mut reader = Reader::new(BufReader::new(&*file)).map_err(failed)?;
    let mut done = Imported::of(reader.head());
    loop {
        let at = reader.at();
        match reader.entry() {
            Ok(None) => break,
            Ok(Some(entry)) => {
                if !done.count(&entry.what) && !takes_damaged {
                    let what = "value of a key";
                    return Err(failed(archive::Error::Damaged { at, what }));
                }
            }
            Err(_) if takes_damaged => break,
            Err(error) => return Err(failed(error)),
        }
        bar.set_position(reader.at());
    }
    bar.finish_and_clear();
    Ok(done)
}

/// Imports what is read: what was done, and what was wrong with the file.
fn put_all<R: Read>(
    args: &ImportArgs,
    from: R,
    length: Option<u64>,
    name: &str,
) -> Result<(Imported, Option<archive::Error>), Failed> {
    let mut reader = match Reader::new(BufReader::new(from)) {
        Ok(reader) => reader,
        Err(error) => return Err(Failed::Io(format!("{name}: {error}; nothing was imported"))),
    };
    // What comes behind this moment can be taken back.
    let before = connect(&args.node)?.health()?.watermark;
    let mut crowd = crowd(&args.node, WRITERS)?;
    let bar = bar(length, args.node.json);
    let done = Imported::of(reader.head());
    let mut put = Put {
        reader: &mut reader,
        seats: (0..crowd.len()).map(|_| Seat::default()).collect(),
        bar: &bar,
        takes_damaged: args.damaged,
        done,
        failed: None,
        damage: None,
    };
    let run = crowd.run(&mut put);
    bar.finish_and_clear();
    let failed = run.err().or(put.failed.take());
    let (written, damage) = (put.done.written, put.damage.take());
    let is_bad = failed.is_some() || damage.is_some() && !args.damaged;
    if is_bad && written > 0 {
        eprintln!(
            "{written} keys were written before that; the import may be repeated, and a roll back to {before} takes them back"
        );
    }
    match failed {
        Some(failed) => Err(failed),
        None => Ok((put.done, damage)),
    }
}

fn tell(args: &ImportArgs, done: &Imported) -> Done {
    if args.node.json {
        return say(&json!({
            "keys": done.keys,
            "deleted": done.deleted,
            "since": done.changes.map(|(since, _)| since.to_string()),
            "value_bytes": done.value_bytes,
            "written": done.written,
            "unchanged": done.unchanged,
            "damaged": done.damaged,
            "dry_run": args.dry_run,
        }));
    }
    let size = BinaryBytes(done.value_bytes);
    let changes = done.changes.map(|(since, moment)| {
        let (deleted, since, moment) = (done.deleted, time_of(since), time_of(moment));
        format!(", {deleted} deleted: what has changed from {since} to {moment}")
    });
    let changes = changes.unwrap_or_default();
    if args.dry_run {
        return print(&format!(
            "in the export: {} keys, {size}{changes}",
            done.keys
        ));
    }
    print(&format!(
        "imported: {} keys, {size}{changes}; {} written, {} were so already",
        done.keys, done.written, done.unchanged
    ))
}

/// Gives keys the values of a file.
pub fn import(args: &ImportArgs) -> Done {
    let is_silent = args.node.json;
    let (done, damage) = match &args.file {
        Some(path) => {
            let name = path.display().to_string();
            let mut file = File::open(path).map_err(|error| io_failed(&name, &error))?;
            // What cannot be read twice is imported as it comes.
            let found = file.metadata().map_err(|error| io_failed(&name, &error))?;
            let is_file = found.is_file();
            if is_file || args.dry_run {
                let seen = look_through(&mut file, &name, args.damaged, is_silent)?;
                if args.dry_run {
                    return tell(args, &seen);
                }
                file.rewind().map_err(|error| io_failed(&name, &error))?;
            }
            put_all(args, file, is_file.then_some(found.len()), &name)?
        }
        None if args.dry_run => {
            let usage = "--dry-run needs a file: what standard input has can be read once";
            return Err(Failed::Usage(usage.to_owned()));
        }
        None => put_all(args, io::stdin().lock(), None, "standard input")?,
    };
    if let Some(damage) = &damage {
        if !args.damaged {
            return Err(Failed::Io(damage.to_string()));
        }
        eprintln!("{damage}; what came before was imported");
    }
    tell(args, &done)?;
    if damage.is_some() || done.damaged > 0 {
        return Err(Failed::Io("not all of the export could be read".to_owned()));
    }
    Ok(())
}
