// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SETs that are answered and handed to the kernel module, which keeps them all (`bpf/redis/keep.h`, `kmod/core`).

use std::cell::Cell;

use erb_abi::{self as abi, ControlBlock};
use erb_journal::{Entry, Header, Id, Identity, SegmentReader, encode_header};
use erb_sim_kernel::Datapath;

use super::absorb::absorbing;
use crate::ConnId;
use crate::scenario::{Scenario, Setup, over_seeds};
use crate::time::MS;

/// So long that six records fill a processor's memory of the module.
const LONG: [u8; 1_300] = [b'v'; 1_300];

/// More than fill that of two.
const ROUNDS: u64 = 16;

/// The module's file.
struct Kept {
    path: Datapath,
    bytes: Vec<u8>,
}

impl Kept {
    /// The programs are at work that hand each SET to the module, which has no file yet.
    fn insert(s: &Scenario) -> Self {
        let path = s.world.server.attached_path().expect("attached");
        path.set_keeps(true);
        Self {
            path,
            bytes: Vec::new(),
        }
    }

    fn lsn(&self) -> u64 {
        ControlBlock::control(&self.path).lsn()
    }

    /// The daemon hands a file over.
    fn begin(&mut self) {
        self.bytes = encode_header(&Header {
            identity: Identity {
                journal: Id([7; 16]),
                boot: Id([8; 16]),
            },
            number: 1,
            first_lsn: self.lsn() + 1,
        })
        .to_vec();
        let header = self.bytes.first_chunk().expect("a header");
        assert!(self.path.io_file(header), "the file is taken");
    }

    /// The module's threads write and sync.
    fn write(&mut self) {
        loop {
            let batch = self.path.io_write();
            if batch.is_empty() {
                return self.path.io_sync();
            }
            self.bytes.extend(batch);
        }
    }

    /// What is in the file is all that was answered, without a gap.
    fn ends(mut self, answered: u64) -> Vec<Entry> {
        self.write();
        let mut reader = SegmentReader::open(&self.bytes[..]).expect("a segment");
        let mut entries: Vec<Entry> = Vec::new();
        while let Some(entry) = reader.next_entry().expect("a record") {
            entries.push(entry);
        }
        let lsns: Vec<u64> = entries.iter().map(|entry| entry.lsn).collect();
        let last = self.lsn();
        let wanted: Vec<u64> = (last + 1 - answered..=last).collect();
        assert_eq!(lsns, wanted, "what was answered is in the file");
        entries
    }
}

/// Of clients on two processors each SET that is answered is in the module's file, in its order.
pub(crate) fn all() {
    let setup = Setup {
        switch: 300_000,
        ..absorbing()
    };
    let answered = Cell::new(0);
    over_seeds(1..65, &setup, |mut s| {
        let mut kept = Kept::insert(&s);
        kept.begin();
        let clients: Vec<ConnId> = (0..3).map(|_| s.fast()).collect();
        let reader = s.absorbs();
        s.world.server.steer_in_turn(&[0, 1]);
        for round in 0..4 {
            for (number, client) in clients.iter().enumerate() {
                let key = format!("k{number}");
                let value = format!("{round}");
                s.ask(*client, &[b"SET", key.as_bytes(), value.as_bytes()]);
            }
            s.run(MS);
            if round % 2 == 0 {
                kept.write();
            }
            s.reads(reader);
        }
        for client in clients {
            assert_eq!(s.answers(client), b"+OK\r\n".repeat(4));
        }
        s.drains();
        answered.set(answered.get() + s.absorbed());
        let entries = kept.ends(s.absorbed());
        for (number, round) in [(0, "3"), (2, "3")] {
            let key = format!("k{number}").into_bytes();
            let last = entries.iter().rev().find(|entry| entry.key == key);
            if let Some(last) = last.filter(|_| entries.len() == 12) {
                assert_eq!(last.value, round.as_bytes());
            }
        }
        s.finish();
    });
    assert!(answered.get() > 64, "{} were answered", answered.get());
}

/// What the module cannot take is not answered, and has no LSN: without a file, while its memory is full, when its gate is
/// shut.
pub(crate) fn refused() {
    let mut s = Scenario::new(absorbing());
    let client = s.absorbs();
    let mut kept = Kept::insert(&s);
    let set = |s: &mut Scenario, value: &[u8]| {
        s.reads(client);
        assert_eq!(s.call(client, &[b"SET", b"k", value]), b"+OK\r\n");
        s.drains();
    };
    set(&mut s, b"without a file");
    assert_eq!((s.absorbed(), kept.lsn()), (0, 0), "{}", s.counters());
    assert_eq!(s.stat(abi::STAT_ABSORB_SHUT), 1);
    kept.begin();
    set(&mut s, b"answered");
    assert_eq!(s.absorbed(), 1, "{}", s.counters());
    // Nothing is written, so room becomes less.
    for _ in 0..ROUNDS {
        set(&mut s, &LONG);
    }
    let full = s.absorbed();
    assert!(
        full <= ROUNDS && s.stat(abi::STAT_ABSORB_FULL) > 0,
        "{full} {}",
        s.counters()
    );
    kept.write();
    set(&mut s, &LONG);
    assert_eq!(s.absorbed(), full + 1, "there is room again");
    kept.path.io_shut();
    set(&mut s, b"behind the gate");
    assert_eq!(s.absorbed(), full + 1, "{}", s.counters());
    assert_eq!(
        s.call(client, &[b"GETDEL", b"k"]),
        b"$15\r\nbehind the gate\r\n"
    );
    let entries = kept.ends(full + 1);
    assert_eq!(entries[0].value, b"answered");
    s.finish();
}

/// The programs of the other sink take their place and give it back: no SET is in neither journal, and none is answered
/// twice.
pub(crate) fn changed() {
    let mut s = Scenario::new(absorbing());
    let client = s.absorbs();
    let mut kept = Kept::insert(&s);
    kept.begin();
    let mut by_module = 0;
    for value in [b"1", b"2", b"3"] {
        s.reads(client);
        assert_eq!(s.call(client, &[b"SET", b"k", value]), b"+OK\r\n");
        by_module += 1;
    }
    s.drains();
    kept.write();
    let last = kept.lsn();
    assert_eq!(last, by_module);
    kept.path.io_shut();
    kept.path.set_keeps(false);
    s.reads(client);
    assert_eq!(s.call(client, &[b"SET", b"k", b"4"]), b"+OK\r\n");
    assert_eq!(s.absorbed(), by_module + 1, "the module is not asked");
    s.drains();
    // The next file begins behind what others keep.
    kept.path.set_keeps(true);
    kept.begin();
    s.reads(client);
    assert_eq!(s.call(client, &[b"SET", b"k", b"5"]), b"+OK\r\n");
    s.drains();
    let entries = kept.ends(1);
    assert_eq!(
        (entries[0].lsn, &entries[0].value[..]),
        (last + 2, &b"5"[..])
    );
    s.finish();
}
