// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was answered in Redis's place and cannot be brought there, to a file, before it is given up.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use erb_abi::Logs;
use erb_datapath::{Datapath, open_logs};
use erb_journal::{Header, Id, Identity, encode_header, encode_record, sync_folder_of};
use erb_redis::drain::Follower;

use crate::journal::{boot_id, new_id};
use crate::keeper::as_kept;
use crate::rundir::{Notes, RunDir};
use crate::{Error, Result};

/// A daemon that drains has so long.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// Between looks.
const LOOK: Duration = Duration::from_millis(20);

/// Writes all that is not in Redis to a new file, in the format of a journal's segment. Nothing may be answered any
/// more: a daemon was told to detach, or is dead. How many SETs; 0: there is no file, as all is in Redis.
///
/// # Errors
/// The file is there, or cannot be written; what is answered cannot be read. Nothing is given up then.
pub fn save_undrained(run_dir: &RunDir, path: &Path) -> Result<u64> {
    let notes = run_dir.notes()?;
    if notes.log_rings == 0 {
        return Ok(0);
    }
    let until = Instant::now() + DRAIN_MAX;
    loop {
        let undrained = match Datapath::open(&run_dir.pins(), 0) {
            Ok(datapath) => datapath.undrained(),
            // The daemon has left meanwhile, so all was drained.
            Err(_) if !run_dir.has_pins() => 0,
            Err(error) => return Err(error.into()),
        };
        if undrained == 0 {
            return Ok(0);
        }
        if !run_dir.is_locked() || Instant::now() >= until {
            break;
        }
        sleep(LOOK);
    }
    save_rest(run_dir, &notes, path)
}

/// The same of a dead daemon, whose notes these are.
///
/// # Errors
/// As [`save_undrained`].
pub(crate) fn save_rest(run_dir: &RunDir, notes: &Notes, path: &Path) -> Result<u64> {
    let logs = open_logs(&run_dir.pins())?;
    let id = match notes.journal.is_empty() {
        true => new_id()?,
        false => notes.journal.clone(),
    };
    let identity = Identity {
        journal: Id::parse(&id).unwrap_or_default(),
        boot: boot_id()?,
    };
    save(&logs, identity, path)
}

/// Makes the file; where that fails there is none.
fn save(logs: &Logs, identity: Identity, path: &Path) -> Result<u64> {
    let failed = |error: io::Error| {
        let advice = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "make room there, or name a file on another disk"
            }
            _ => "name another one, or try again",
        };
        let text = format!("{error}; nothing is given up: {advice}");
        let what = format!("could not write {} (--undrained-to)", path.display());
        Error::io(what)(io::Error::new(error.kind(), text))
    };
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let written = write(logs, identity, file.map_err(failed)?)
        .and_then(|count| sync_folder_of(path).map(|()| count));
    written.map_err(|error| {
        // What is there of it is not all, and its name would hinder the next try.
        let removed = fs::remove_file(path);
        let why = failed(error);
        if let Err(error) = removed {
            tracing::warn!("{} is not whole, and stays: {error}", path.display());
        }
        why
    })
}

fn write(logs: &Logs, identity: Identity, file: File) -> io::Result<u64> {
    let (drained, lsn) = (logs.drained(), logs.lsn());
    let header = Header {
        identity,
        number: 1,
        first_lsn: drained + 1,
    };
    let mut out = BufWriter::new(file);
    out.write_all(&encode_header(&header))?;
    let mut follower = Follower::default();
    follower.begin(logs, drained);
    let (mut count, mut last) = (0, drained);
    let mut record = Vec::new();
    while let Some(one) = follower.next(logs).map_err(io::Error::other)? {
        if count > 0 && one.lsn != last + 1 {
            return Err(io::Error::other("Redis takes it after all: try again"));
        }
        record.clear();
        encode_record(&header, &as_kept(one), &mut record);
        out.write_all(&record)?;
        (count, last) = (count + 1, one.lsn);
    }
    if last.max(logs.drained()) < lsn {
        return Err(io::Error::other(format!(
            "the SET with LSN {} is not in its ring yet: try again",
            last + 1
        )));
    }
    out.into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .sync_all()?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use erb_abi::{LogWriter, Written};
    use erb_journal::segments;

    use super::*;

    #[test]
    fn a_file_that_cannot_be_whole_is_taken_away_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("undrained");
        let logs = Logs::zeros(2);
        let mut writer = LogWriter::new(&logs, 0);
        let put = |writer: &mut LogWriter, lsn| {
            writer.put(&Written {
                lsn,
                key: b"key",
                value: b"value",
                ..Written::default()
            });
        };
        let first = writer.next_lsn();
        put(&mut writer, first);
        let second = writer.next_lsn();
        let why = save(&logs, Identity::default(), &path).expect_err("one is not there");
        let why = why.to_string();
        assert!(
            why.contains("LSN 2") && why.contains("--undrained-to") && !why.contains("--run-dir"),
            "{why}"
        );
        assert!(!path.exists());
        put(&mut writer, second);
        let count = save(&logs, Identity::default(), &path).expect("the file");
        assert_eq!(count, 2);
        assert_eq!(segments(&path).expect("the file")[0].records, 2);
        // What was there is another's.
        assert!(save(&logs, Identity::default(), &path).is_err() && path.exists());
    }
}
