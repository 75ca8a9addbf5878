// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the core left on a disk that fails: segments, as the journal's reader reads them.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::process::Output;

use erb_journal::SegmentReader;

use crate::{Sanitizer, build, run};

/// What a run says of itself.
struct Said {
    pushed: u64,
    synced: u64,
}

/// The number behind a word.
fn number(text: &str, name: &str) -> Option<u64> {
    let mut words = text.split_whitespace().skip_while(|word| *word != name);
    words.nth(1).and_then(|number| number.parse().ok())
}

fn said(program: &Path, command: &str, seed: u64, count: u32, folder: &Path) -> Said {
    let arguments = [command, &seed.to_string(), &count.to_string()];
    let done = run(program, &arguments, folder);
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        done.status.success(),
        "seed {seed}: {text}{}",
        String::from_utf8_lossy(&done.stderr)
    );
    Said {
        pushed: number(&text, "pushed").expect("pushed"),
        synced: number(&text, "synced").expect("synced"),
    }
}

/// The last number of which all up to it are in segments, as they were pushed.
///
/// # Errors
/// What is wrong with one. Within a segment there is no gap: the reader looks for that.
fn last_lsn(folder: &Path) -> Result<u64, String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    names.sort();
    let mut next = 1;
    for name in names {
        let file = BufReader::new(File::open(&name).expect("a segment"));
        let mut reader = SegmentReader::open(file).map_err(|fault| fault.to_string())?;
        let first_lsn = reader.header().first_lsn;
        if first_lsn > next {
            return Err(format!("a gap before {name:?}"));
        }
        // The one before may have more than was known when this one was made.
        let mut behind = None;
        // A write that was short ends it: what it tore is no record.
        while let Some(entry) = reader.next_entry().unwrap_or_default() {
            let at = behind.unwrap_or(entry.lsn.min(next));
            let is_whole = entry.lsn == at
                && at >= first_lsn
                && entry.key == at.to_le_bytes()
                && u64::from(entry.db) == at % 16
                && entry.expiry_ms == if at % 3 == 0 { 0 } else { at }
                && entry.value.iter().all(|byte| *byte == at as u8);
            if !is_whole {
                return Err(format!("{name:?} has another record than {at}"));
            }
            behind = Some(at + 1);
        }
        next = next.max(behind.unwrap_or(0));
    }
    Ok(next - 1)
}

/// Whether what a run that went well says is synced is there.
pub fn is_right(done: &Output, folder: &Path) -> bool {
    let text = String::from_utf8_lossy(&done.stdout);
    last_lsn(folder).is_ok_and(|last| number(&text, "synced") == Some(last))
}

fn judge(folder: &Path, synced: u64) {
    let files = fs::read_dir(folder).expect("a folder").count();
    assert!(files > 2, "the disk never failed");
    assert_eq!(last_lsn(folder), Ok(synced), "what was synced is there");
}

#[test]
fn whatever_comes_in_any_order_nothing_that_was_pushed_is_lost() {
    let program = build("core-random", Sanitizer::Address);
    for seed in 1..=6 {
        let folder = tempfile::tempdir().expect("a folder");
        let said = said(&program, "random", seed, 20_000, folder.path());
        assert!(said.pushed > 1000 && said.synced > 1000, "seed {seed}");
        judge(folder.path(), said.synced);
    }
}

#[test]
fn processors_and_threads_that_run_at_once_lose_nothing() {
    let program = build("core-race", Sanitizer::Thread);
    for seed in 1..=3 {
        let folder = tempfile::tempdir().expect("a folder");
        let said = said(&program, "race", seed, 30_000, folder.path());
        assert_eq!(said.pushed, said.synced, "seed {seed}");
        judge(folder.path(), said.synced);
    }
}
