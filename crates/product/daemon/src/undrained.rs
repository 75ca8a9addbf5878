// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was answered in Redis's place and cannot be brought there, to a file, before it is given up.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use erb_abi::Logs;
use erb_datapath::{Datapath, open_logs};
use erb_journal::{Header, Id, Identity, encode_header, encode_record, sync_folder_of};
use erb_redis::drain::Follower;

use crate::journal::{as_kept, boot_id, new_id};
use crate::rundir::{RunDir, could_not};
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
    let logs = open_logs(&run_dir.pins())?;
    let id = match notes.journal.is_empty() {
        true => new_id()?,
        false => notes.journal,
    };
    let identity = Identity {
        journal: Id::parse(&id).unwrap_or_default(),
        boot: boot_id()?,
    };
    let what = could_not("write", path);
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(Error::io(&what))?;
    write(&logs, identity, file)
        .and_then(|count| sync_folder_of(path).map(|()| count))
        .map_err(Error::io(&what))
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
