// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What becomes of what the module retains, over a module that is made up.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::Path;

use erb_abi::{LogWriter, Written};
use erb_journal::{Id, State, segments};

use super::*;

/// As the device numbers them.
const WORK: u32 = 1;
const GATE_CLOSED: u32 = 2;
const GATE_WRITE: u32 = 3;

/// A module that was given files, and has what it did not write.
#[derive(Default)]
struct MadeUp {
    status: RefCell<IoStatus>,
    retained: RefCell<Vec<u64>>,
    /// First LSNs of the files that it was given.
    given: RefCell<Vec<u64>>,
    is_asked: Cell<bool>,
}

impl MadeUp {
    /// It has left its file, and has these.
    fn left(journal: u8, synced_lsn: u64, retained: &[u64], gate: u32) -> Self {
        let module = Self::default();
        *module.status.borrow_mut() = IoStatus {
            gate,
            state: IDLE,
            synced_lsn,
            journal: [journal; 16],
            ..IoStatus::default()
        };
        module.retain(retained);
        module
    }

    fn retain(&self, lsns: &[u64]) {
        *self.retained.borrow_mut() = lsns.to_vec();
        self.status.borrow_mut().retained_bytes = lsns.len() as u64 * 64;
    }
}

impl Calls for &MadeUp {
    fn give(&self, _: &impl AsFd, header: &Header, _: bool) -> io::Result<()> {
        self.given.borrow_mut().push(header.first_lsn);
        let mut status = self.status.borrow_mut();
        (status.gate, status.state) = (GATE_OPEN, WORK);
        status.files += 1;
        Ok(())
    }

    fn status(&self) -> io::Result<IoStatus> {
        Ok(*self.status.borrow())
    }

    fn sync(&self) -> io::Result<()> {
        self.is_asked.set(true);
        Ok(())
    }

    fn forget(&self, lsn: u64) -> io::Result<()> {
        let left = self.retained.borrow().clone();
        self.retain(
            &left
                .into_iter()
                .filter(|one| *one > lsn)
                .collect::<Vec<_>>(),
        );
        Ok(())
    }

    fn retained(&self, mut told: impl FnMut(Write<'_>) -> io::Result<()>) -> io::Result<()> {
        for lsn in self.retained.borrow().iter() {
            told(write(*lsn))?;
        }
        Ok(())
    }
}

const fn write(lsn: u64) -> Write<'static> {
    Write {
        lsn,
        db: 0,
        expiry_ms: 0,
        key: b"key",
        value: b"value",
    }
}

fn identity(journal: u8) -> Identity {
    Identity {
        journal: Id([journal; 16]),
        boot: Id([9; 16]),
    }
}

fn journal(folder: &Path) -> Journal<Disk> {
    Journal::new(Disk::open(folder).expect("the folder"), identity(1), 1)
}

/// What is in segments: whose, and which.
fn kept(folder: &Path) -> Vec<(Identity, u64)> {
    let mut kept = Vec::new();
    for segment in segments(folder).expect("the folder") {
        assert_eq!(segment.state, State::Sound);
        let own = segment.identity().expect("a header");
        let told = segment.tell(|entry| -> io::Result<()> {
            kept.push((own, entry.lsn));
            Ok(())
        });
        told.expect("the segment");
    }
    kept
}

fn own(lsns: &[u64]) -> Vec<(Identity, u64)> {
    lsns.iter().map(|lsn| (identity(1), *lsn)).collect()
}

/// So many SETs were answered.
fn answered(count: u64) -> Logs {
    let logs = Logs::zeros(1);
    let mut writer = LogWriter::new(&logs, 0);
    for _ in 0..count {
        let lsn = writer.next_lsn();
        writer.put(&Written {
            lsn,
            key: b"key",
            value: b"value",
            ..Written::default()
        });
    }
    logs
}

#[test]
fn what_it_retains_is_written_down_when_the_daemon_has_become_the_sink() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut journal = journal(folder.path());
    let module = MadeUp::left(1, 4, &[5, 6, 8], GATE_WRITE);
    let look = |journal: &mut Journal<Disk>| take_left(|| Ok(&module), journal, identity(1));
    // It still writes what it can, or its disk does not answer.
    module.status.borrow_mut().state = WORK;
    assert!(!look(&mut journal).expect("it waits"));
    assert_eq!(kept(folder.path()), []);
    module.status.borrow_mut().state = IDLE;
    // Nothing can be made in the folder: it is not forgotten.
    let taken = folder.path().join("0000000000000001.erbj");
    fs::create_dir(&taken).expect("another's");
    let _ = look(&mut journal).expect_err("it has no place");
    assert_eq!(*module.retained.borrow(), [5, 6, 8]);
    fs::remove_dir(taken).expect("it goes");
    assert!(look(&mut journal).expect("it has one"));
    assert_eq!(kept(folder.path()), own(&[5, 6, 8]));
    assert_eq!(*module.retained.borrow(), [] as [u64; 0]);
    // They go as all others do.
    journal.drained(8, 7).expect("a disk");
    assert_eq!(kept(folder.path()), own(&[8]));
    journal.drained(8, 8).expect("a disk");
    assert_eq!(kept(folder.path()), []);
}

#[test]
fn what_came_twice_is_forgotten_with_the_rest() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut journal = journal(folder.path());
    let module = MadeUp::left(1, 4, &[5, 9, 3], GATE_BACKWARD);
    assert!(take_left(|| Ok(&module), &mut journal, identity(1)).expect("a place"));
    assert_eq!(kept(folder.path()), own(&[5, 9, 3]));
    assert_eq!(*module.retained.borrow(), [] as [u64; 0]);
}

#[test]
fn of_another_boost_or_without_a_module_nothing_is_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut journal = journal(folder.path());
    let module = MadeUp::left(2, 4, &[5, 6], GATE_CLOSED);
    assert!(take_left(|| Ok(&module), &mut journal, identity(1)).expect("another's"));
    assert_eq!(*module.retained.borrow(), [5, 6]);
    for (kind, is_known) in [
        (io::ErrorKind::ResourceBusy, false),
        (io::ErrorKind::NotFound, true),
    ] {
        let open = || -> io::Result<&MadeUp> { Err(kind.into()) };
        let known = take_left(open, &mut journal, identity(1));
        assert_eq!(known.expect("no failure"), is_known, "{kind}");
    }
    assert_eq!(kept(folder.path()), []);
}

#[test]
fn what_a_dead_daemon_has_left_goes_to_segments_of_its_own_and_behind_a_failure_to_the_next_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut journal = journal(folder.path());
    let logs = answered(9);
    logs.set_drained(9, 0);
    let mut all = Everything::of_nobody(logs.count());
    let mut by_module = ByModule::new(identity(1));
    let mut look = |module: &MadeUp, journal: &mut Journal<Disk>| {
        by_module.look(&module, journal, &logs, &mut all)
    };
    let module = MadeUp::left(1, 6, &[7, 8], GATE_CLOSED);
    look(&module, &mut journal).expect("a file is given");
    assert_eq!(kept(folder.path())[..2], own(&[7, 8]));
    assert_eq!(*module.given.borrow(), [10]);
    // Its disk is full, then it is not.
    *module.status.borrow_mut() = MadeUp::left(1, 5, &[], GATE_WRITE).status.into_inner();
    module.retain(&[6, 7, 8, 9]);
    look(&module, &mut journal).expect("the next file is given");
    assert_eq!(*module.given.borrow(), [10, 6]);
    assert_eq!(module.retained.borrow().len(), 4, "it writes them itself");
    // A number never came: what is behind it would wait for it.
    *module.status.borrow_mut() = MadeUp::left(1, 6, &[], GATE_GAP).status.into_inner();
    module.retain(&[8, 9]);
    look(&module, &mut journal).expect("the next file is given");
    assert_eq!(*module.given.borrow(), [10, 6, 10]);
    assert_eq!(*module.retained.borrow(), [] as [u64; 0]);
    assert!(!module.is_asked.get());
}
