// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What boosts have left on a disk that are no more.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use erb_journal::{Id, Segment, State, segments};

use super::{Findings, Patient};
use crate::journal::{STATE_ROOT, boot_id, tell_left};
use crate::kmod;
use crate::rundir::RunDir;

const SUBJECT: &str = "journal";

pub(super) fn examine(findings: &mut Findings, patient: &Patient) {
    let mut folders = BTreeSet::new();
    // There may be none, or they are not for whoever asks.
    if let Ok(all) = fs::read_dir(Path::new(STATE_ROOT).join("journal")) {
        folders.extend(all.flatten().map(|entry| entry.path()));
    }
    let boosts = RunDir::all_here().unwrap_or_default();
    let noted = boosts.iter().filter_map(|boost| boost.notes().ok());
    folders.extend(noted.filter_map(|notes| notes.journal_folder));
    look(findings, &folders, patient.journal_folder.as_ref());
    // Nobody needs it, so it is no fault that it is not there.
    match kmod::against() {
        None => findings.fine(
            SUBJECT,
            "--journal-sink kmod can be had: the kernel module is loaded",
        ),
        Some(why) => findings.fine(SUBJECT, format!("--journal-sink kmod cannot be had: {why}")),
    }
}

fn look(findings: &mut Findings, folders: &BTreeSet<PathBuf>, named: Option<&PathBuf>) {
    let boot = boot_id().ok();
    // The same one by another way is told once.
    let own = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    let all: BTreeSet<PathBuf> = folders.iter().chain(named).map(own).collect();
    for folder in &all {
        match segments(folder) {
            Ok(found) => tell(findings, folder, found, boot),
            Err(error) if named.map(own).as_ref() == Some(folder) => {
                findings.unknown(
                    SUBJECT,
                    format!("could not read {}: {error}", folder.display()),
                );
            }
            Err(_) => {}
        }
    }
}

fn tell(findings: &mut Findings, folder: &Path, mut found: Vec<Segment>, boot: Option<Id>) {
    // What was kept since the machine was started, a boost brings to Redis by itself.
    found.retain(|one| {
        let is_new = one.identity().is_some_and(|of| Some(of.boot) == boot);
        // A file that somebody has put beside the folders is his own.
        one.is_ours() && !one.is_empty() && !one.is_at_work && !is_new
    });
    let (unread, found): (Vec<_>, Vec<_>) = found.into_iter().partition(Segment::is_unread);
    // Nobody knows what these have, nor whether they are at work.
    if let Some(State::Unread(why)) = unread.first().map(|one| &one.state) {
        let (count, folder) = (unread.len(), folder.display());
        let text = format!("{count} segments in {folder} could not be read: {why}");
        findings.warn(SUBJECT, text);
    }
    if let Some(text) = tell_left(folder, &found) {
        findings.warn(SUBJECT, text);
    }
}

#[cfg(test)]
mod tests {
    use erb_journal::{Header, Identity, Write, encode_header, encode_record};

    use super::*;

    #[test]
    fn what_lies_in_a_boosts_folder_or_the_one_that_is_named_is_told_once() {
        let root = tempfile::tempdir().expect("a folder");
        let make = |name: &str| {
            let folder = root.path().join(name);
            fs::create_dir(&folder).expect("a folder");
            let header = Header {
                identity: Identity {
                    journal: Id([1; 16]),
                    boot: Id([2; 16]),
                },
                number: 1,
                first_lsn: 1,
            };
            let mut bytes = encode_header(&header).to_vec();
            let write = Write {
                lsn: 1,
                db: 0,
                expiry_ms: 0,
                key: b"key",
                value: b"value",
            };
            encode_record(&header, &write, &mut bytes);
            fs::write(folder.join("0000000000000001.erbj"), bytes).expect("a segment");
            folder
        };
        let (boosts, named) = (make("boosts"), make("named"));
        let told = |named: Option<&PathBuf>| {
            let mut findings = Findings::default();
            look(&mut findings, &BTreeSet::from([boosts.clone()]), named);
            let all = findings.told.into_iter().map(|one| one.text);
            all.collect::<Vec<_>>()
        };
        assert_eq!(told(None).len(), 1);
        assert_eq!(told(Some(&boosts)).len(), 1);
        let both = told(Some(&named));
        assert!(both.len() == 2 && both[1].contains("named"), "{both:?}");
        let none = told(Some(&root.path().join("none")));
        assert!(none[1].contains("could not read"), "{none:?}");
    }

    #[test]
    fn what_is_no_segment_is_not_told_and_what_cannot_be_read_as_that() {
        let root = tempfile::tempdir().expect("a folder");
        let (mine, folder) = (root.path().join("README"), root.path().join("eth0-6379"));
        fs::write(&mine, "mine").expect("a file");
        // Root may read any file, but no folder as one.
        fs::create_dir_all(folder.join("0000000000000001.erbj")).expect("a folder");
        let mut findings = Findings::default();
        look(&mut findings, &BTreeSet::from([mine, folder]), None);
        let all: Vec<String> = findings.told.into_iter().map(|one| one.text).collect();
        assert_eq!(all.len(), 1, "{all:?}");
        let is_told = all[0].contains("1 segments in") && all[0].contains("could not be read");
        assert!(is_told && !all[0].contains("SETs"), "{all:?}");
    }
}
