// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk of which every nth operation fails, and whose power goes at any moment: what counts as durable is there.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::*;
use crate::format::Id;
use crate::read::SegmentReader;

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// Half of the bytes are written.
    Short,
    /// EIO.
    Error,
    /// ENOSPC.
    Full,
}

/// What a disk has of a file.
#[derive(Clone, Default)]
struct Content {
    bytes: Vec<u8>,
    /// So many outlive a loss of power for certain.
    synced: usize,
    /// A sync failed: what was not synced may never be.
    is_lost: bool,
    name_synced: bool,
}

/// Which operations, by their number.
type Choice = Box<dyn Fn(u64) -> bool>;

#[derive(Default)]
struct Disk {
    files: BTreeMap<u64, Content>,
    operations: u64,
    /// The operations of these numbers fail so.
    fails: Option<(Choice, Failure)>,
}

impl Disk {
    fn next(&mut self) -> io::Result<Option<Failure>> {
        self.operations += 1;
        let fails = self.fails.as_ref().filter(|(at, _)| at(self.operations));
        match fails.map(|(_, failure)| *failure) {
            Some(Failure::Error) => Err(io::Error::from_raw_os_error(5)),
            Some(Failure::Full) => Err(io::Error::from_raw_os_error(28)),
            other => Ok(other),
        }
    }

    /// What is told after the power went: LSNs, by what was synced alone.
    fn after_power(&self) -> Vec<u64> {
        let mut lsns = Vec::new();
        for content in self.files.values().filter(|content| content.name_synced) {
            let Ok(mut reader) = SegmentReader::open(&content.bytes[..content.synced]) else {
                continue;
            };
            while let Ok(Some(entry)) = reader.next_entry() {
                lsns.push(entry.lsn);
            }
        }
        lsns.sort_unstable();
        lsns.dedup();
        lsns
    }
}

#[derive(Clone, Default)]
struct Shared(Rc<RefCell<Disk>>);

impl Sink for Shared {
    type File = u64;

    fn create(&mut self, number: u64) -> io::Result<u64> {
        let mut disk = self.0.borrow_mut();
        disk.next()?;
        let had = disk.files.insert(number, Content::default());
        assert!(had.is_none(), "number {number} is used twice");
        Ok(number)
    }

    fn append(&mut self, file: &mut u64, bytes: &[u8]) -> io::Result<usize> {
        let mut disk = self.0.borrow_mut();
        let taken = match disk.next()? {
            Some(Failure::Short) => bytes.len() / 2,
            _ => bytes.len(),
        };
        let content = disk.files.get_mut(file).expect("a segment");
        assert!(!content.is_lost, "written behind a failed sync");
        content.bytes.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn sync(&mut self, file: &mut u64) -> io::Result<()> {
        let mut disk = self.0.borrow_mut();
        let done = disk.next();
        let content = disk.files.get_mut(file).expect("a segment");
        assert!(!content.is_lost, "synced behind a failed sync");
        if let Err(error) = done {
            content.is_lost = true;
            return Err(error);
        }
        content.synced = content.bytes.len();
        Ok(())
    }

    fn sync_names(&mut self) -> io::Result<()> {
        let mut disk = self.0.borrow_mut();
        disk.next()?;
        for content in disk.files.values_mut() {
            content.name_synced = true;
        }
        Ok(())
    }

    fn remove(&mut self, number: u64) -> io::Result<()> {
        let mut disk = self.0.borrow_mut();
        disk.next()?;
        disk.files.remove(&number);
        Ok(())
    }
}

fn journal() -> (Shared, Journal<Shared>) {
    let disk = Shared::default();
    let identity = Identity {
        journal: Id([1; 16]),
        boot: Id([2; 16]),
    };
    (disk.clone(), Journal::new(disk, identity, 1))
}

fn write(lsn: u64) -> Write<'static> {
    Write {
        lsn,
        db: 0,
        expiry_ms: 0,
        key: b"key",
        value: b"some value",
    }
}

/// As its owner does it: what is not drained goes in, from the first one on if the journal has begun anew.
fn keep(journal: &mut Journal<Shared>, drained: u64, lsn: u64) -> io::Result<()> {
    journal.drained(drained, drained)?;
    journal.prepare(drained + 1)?;
    for lsn in journal.last_put().max(drained) + 1..=lsn {
        journal.put(&write(lsn))?;
    }
    journal.flush()
}

fn numbers(journal: &Journal<Shared>) -> Vec<u64> {
    journal.numbers().collect()
}

#[test]
fn a_record_counts_when_file_and_name_are_synced() {
    let (disk, mut journal) = journal();
    journal.prepare(5).expect("a segment");
    assert!(journal.is_sound() && disk.0.borrow().files[&1].name_synced);
    journal.put(&write(6)).expect("put");
    assert_eq!(
        (journal.durable(), disk.0.borrow().after_power().len()),
        (0, 0)
    );
    journal.flush().expect("flush");
    assert_eq!(
        (journal.durable(), disk.0.borrow().after_power()),
        (6, vec![6])
    );
    let operations = disk.0.borrow().operations;
    journal.flush().expect("nothing to do");
    assert_eq!(disk.0.borrow().operations, operations);
}

#[test]
fn segments_go_when_all_of_theirs_is_drained() {
    let (disk, mut journal) = journal();
    keep(&mut journal, 0, 10).expect("kept");
    keep(&mut journal, 9, 12).expect("kept");
    assert_eq!(numbers(&journal), [1], "one is still wanted");
    // What lies between is drained, so a gap begins a new one.
    journal.put(&write(20)).expect("put");
    journal.flush().expect("flush");
    assert_eq!(numbers(&journal), [1, 2]);
    keep(&mut journal, 19, 20).expect("kept");
    assert_eq!(numbers(&journal), [2]);
    journal.drained(20, 20).expect("drained");
    assert!(disk.0.borrow().files.is_empty() && numbers(&journal).is_empty());
    assert_eq!(disk.0.borrow().after_power(), [] as [u64; 0]);
    journal.prepare(21).expect("the next");
    assert!(journal.is_sound());
    assert_eq!(numbers(&journal), [3], "a number is used once");
    journal.discard().expect("discarded");
    assert!(disk.0.borrow().files.is_empty());
}

#[test]
fn a_segment_has_an_end() {
    let (_, mut journal) = journal();
    journal.prepare(1).expect("a segment");
    let value = vec![0; 60_000];
    for lsn in 1..=SEGMENT_BYTES / 60_000 + 2 {
        journal
            .put(&Write {
                value: &value,
                ..write(lsn)
            })
            .expect("put");
    }
    journal.flush().expect("flush");
    assert_eq!(numbers(&journal), [1, 2]);
}

#[test]
fn what_failed_is_kept_until_another_segment_has_all_of_it() {
    for failure in [Failure::Short, Failure::Error, Failure::Full] {
        let (disk, mut journal) = journal();
        keep(&mut journal, 0, 10).expect("kept");
        let at = disk.0.borrow().operations;
        disk.0.borrow_mut().fails = Some((Box::new(move |now| now > at), failure));
        journal.put(&write(11)).expect("gathered");
        journal.flush().expect_err("a disk that fails");
        assert!(!journal.is_sound() && journal.fault().is_some());
        assert_eq!(journal.durable(), 0, "nothing counts");
        for _ in 0..3 {
            let kept = keep(&mut journal, 3, 12);
            assert!(kept.is_err() && !journal.is_sound(), "{failure:?}");
        }
        let after = disk.0.borrow().after_power();
        assert_eq!(after, (1..=10).collect::<Vec<_>>(), "{failure:?}");
        disk.0.borrow_mut().fails = None;
        keep(&mut journal, 3, 12).expect("mended");
        assert!(journal.is_sound() && journal.durable() == 12, "{failure:?}");
        // What was drained meanwhile, 1 to 3, may be in no log of Redis's that outlives a loss of power.
        assert_eq!(disk.0.borrow().after_power(), (1..=12).collect::<Vec<_>>());
        assert_eq!(numbers(&journal).len(), 2, "{failure:?}");
        journal.drained(11, 10).expect("not settled");
        assert_eq!(numbers(&journal).len(), 2, "{failure:?}");
        journal.drained(11, 11).expect("settled");
        assert_eq!(numbers(&journal).len(), 1, "{failure:?}");
    }
}

#[test]
fn a_failed_segment_whose_writes_are_drained_is_no_fault_any_more() {
    let (disk, mut journal) = journal();
    keep(&mut journal, 0, 10).expect("kept");
    let at = disk.0.borrow().operations;
    disk.0.borrow_mut().fails = Some((Box::new(move |now| now == at + 2), Failure::Error));
    journal.put(&write(11)).expect("gathered");
    journal.flush().expect_err("a sync that fails");
    journal.drained(11, 9).expect("drained");
    assert!(!journal.is_sound(), "there is no segment yet");
    journal.prepare(12).expect("a new segment");
    assert!(journal.is_sound() && journal.fault().is_none());
    assert_eq!(numbers(&journal), [1, 2], "it is not settled");
    journal.drained(11, 11).expect("settled");
    assert_eq!(numbers(&journal), [2]);
}

#[test]
fn what_is_drained_stays_until_it_is_settled_and_what_comes_next_has_a_segment() {
    let (disk, mut journal) = journal();
    keep(&mut journal, 0, 10).expect("kept");
    journal.drained(10, 4).expect("drained");
    assert_eq!(disk.0.borrow().after_power(), (1..=10).collect::<Vec<_>>());
    journal.prepare(11).expect("the next");
    assert!(journal.is_sound());
    assert_eq!(numbers(&journal), [1, 2]);
    journal.put(&write(15)).expect("put");
    journal.flush().expect("flush");
    journal.drained(14, 9).expect("drained");
    assert_eq!(numbers(&journal), [1, 2]);
    journal.drained(14, 10).expect("settled");
    assert_eq!(numbers(&journal), [2]);
    assert_eq!(
        (journal.durable(), disk.0.borrow().after_power()),
        (15, vec![15])
    );
}

/// Rounds of keeping and draining on a disk of which every nth operation fails.
#[test]
fn what_counts_as_durable_outlives_the_power_whatever_fails() {
    for failure in [Failure::Short, Failure::Error, Failure::Full] {
        for every in 1..40 {
            let (disk, mut journal) = journal();
            disk.0.borrow_mut().fails = Some((Box::new(move |now| now % every == 0), failure));
            let (mut drained, mut lsn) = (0, 0);
            for round in 0..60u64 {
                lsn += round % 5;
                let _ = keep(&mut journal, drained, lsn);
                let after = disk.0.borrow().after_power();
                for wanted in drained + 1..=journal.durable() {
                    assert!(
                        after.contains(&wanted),
                        "{failure:?} {every} {round}: {wanted}"
                    );
                }
                if journal.is_sound() {
                    assert!(journal.last_put() == journal.durable());
                }
                drained = (drained + round % 4).min(lsn);
            }
            disk.0.borrow_mut().fails = None;
            keep(&mut journal, drained, lsn).expect("a disk that works");
            keep(&mut journal, lsn, lsn).expect("a disk that works");
            assert!(
                journal.is_sound() && numbers(&journal).len() == 1,
                "{failure:?} {every}"
            );
        }
    }
}

#[test]
fn what_somebody_else_writes_has_a_number_of_its_own_and_goes_when_it_is_drained() {
    let (disk, mut journal) = journal();
    journal.prepare(1).expect("a segment");
    journal.put(&write(1)).expect("room");
    journal.close().expect("it is synced");
    assert_eq!(
        disk.0.borrow().after_power(),
        [1],
        "what was put in is there"
    );
    assert!(!journal.is_sound(), "it takes no more by itself");
    let identity = journal.identity;
    let (file, header) = journal.hand_out(identity, 2).expect("a segment");
    assert_eq!((header.number, header.first_lsn), (2, 2));
    assert_eq!(journal.numbers().collect::<Vec<_>>(), [1]);
    assert!(disk.0.borrow().files[&2].name_synced, "it can be written");
    journal.inherit(file, header.number, 9);
    journal.drained(8, 8).expect("the first goes");
    assert_eq!(journal.numbers().collect::<Vec<_>>(), [2]);
    journal.drained(9, 9).expect("and the second");
    assert!(disk.0.borrow().files.is_empty());
    disk.0.borrow_mut().fails = Some((Box::new(|_| true), Failure::Full));
    assert!(journal.hand_out(identity, 10).is_err());
    assert!(
        journal
            .fault()
            .is_some_and(|why| why.contains("0000000000000003"))
    );
}

#[test]
fn what_could_not_be_deleted_is_a_fault_until_it_is_whoever_has_the_segment_at_work() {
    let (disk, mut journal) = journal();
    keep(&mut journal, 0, 10).expect("kept");
    let at = disk.0.borrow().operations;
    disk.0.borrow_mut().fails = Some((Box::new(move |now| now >= at), Failure::Error));
    journal.drained(10, 10).expect_err("a disk that fails");
    assert!(journal.fault().is_some());
    disk.0.borrow_mut().fails = None;
    journal.drained(10, 10).expect("deleted");
    assert_eq!((journal.fault(), numbers(&journal)), (None, Vec::new()));
    assert!(disk.0.borrow().files.is_empty());
}

#[test]
fn writes_and_syncs_of_records_are_counted_and_no_others() {
    let (_, mut journal) = journal();
    let counts = |journal: &Journal<Shared>| (journal.batches(), journal.syncs());
    journal.prepare(1).expect("a segment");
    journal.flush().expect("nothing to sync");
    assert_eq!(counts(&journal), (0, 0), "a header is none");
    for lsn in 1..=5 {
        journal.put(&write(lsn)).expect("a place");
    }
    journal.write_out().expect("written");
    journal.write_out().expect("nothing to write");
    assert_eq!(counts(&journal), (1, 0));
    journal.flush().expect("synced");
    journal.put(&write(6)).expect("a place");
    journal.flush().expect("synced");
    assert_eq!(counts(&journal), (2, 2));
}
