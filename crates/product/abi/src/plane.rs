// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control plane: what the daemon does to the data path, written once for whoever has it in
//! reach (the kernel, the simulator, a test).
//!
//! An implementation brings the control block, the mapped buffers, a way to run a program and to
//! reach the maps that are not mapped. What a program takes and gives is put together here.

use std::ptr::addr_of;

use crate::block::ControlBlock;
use crate::buffers::Buffers;
use crate::program::{Program, Table};
use crate::{
    Again, CommandKey, ConnView, FILL_BATCH, FILL_SELDOM, FILL_WANTED, FILL_WRITTEN, FillEntry,
    FillToken, HeldPacket, INTEREST_CREDIT, INTEREST_DOUBT, INTEREST_MISSES, INTERESTS, Injected,
    KEY_BYTES_MAX, LISTENERS_MAX, Meaning, PLACE_LISTS, SweepReport, Touched, admit_io, conn,
    conn_key, erb_listener, erb_stat, latency, place_line, place_list, places_on, release_request,
    sweep_row,
};

/// Credit fades in every so many rounds: a key that is written each few seconds keeps some.
const CREDIT_ROUNDS: u32 = 16;

/// What is known of a key's use, a round later: misses are half of what they were; and in its turn credit.
/// Of a key in doubt, which is to be missed a few times since its last write, however long that takes, they
/// fade only when there are too many to count: its report came to nothing, or they would count anew.
const fn faded(word: u32, credit_too: bool) -> u32 {
    let told_in_vain = word & INTEREST_MISSES == INTEREST_MISSES;
    let misses = if word & INTEREST_DOUBT == 0 || told_in_vain {
        INTEREST_MISSES
    } else {
        0
    };
    let credit = if credit_too { INTEREST_CREDIT } else { 0 };
    let halved = misses >> 1 | credit >> 1 & credit;
    word >> 1 & halved | word & !(misses | credit)
}

/// What the daemon does to the data path.
pub trait ControlPlane: ControlBlock {
    /// What can go wrong.
    type Error;

    /// The mapped buffers.
    fn buffers(&self) -> &Buffers;
    /// Runs a program on what the buffers hold; returns its value.
    ///
    /// # Errors
    /// It cannot be run.
    fn run(&self, program: Program) -> Result<u32, Self::Error>;
    /// Runs one that is run on a device on this frame; returns its value.
    ///
    /// # Errors
    /// It cannot be run.
    fn run_on_frame(&self, program: Program, frame: &[u8]) -> Result<u32, Self::Error>;
    /// The keys of a table; none if it cannot be read.
    fn keys(&self, table: Table) -> Vec<Vec<u8>>;
    /// The value of a key, if there is one; of a table with one per CPU, all of them.
    ///
    /// # Errors
    /// It cannot be read.
    fn look_up(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Self::Error>;
    /// Changes a row of a table, at once and as a whole; none: from now on there is no such row.
    ///
    /// # Errors
    /// It cannot be changed.
    fn put(&self, table: Table, key: &[u8], value: Option<&[u8]>) -> Result<(), Self::Error>;

    /// Places of the connection table that are on a list, from this one on, so many at most;
    /// fewer: these are the last.
    fn places(&self, list: place_list, from: u32, most: usize) -> Vec<u32> {
        assert!(list < PLACE_LISTS, "a list has a number");
        let lines = &self.buffers().place_lines;
        places_on(lines.count(), from, most, |index| {
            let line = lines.at::<place_line>(index);
            // SAFETY: the line is live and the list within its array; what programs change
            // meanwhile is seen at the next call.
            unsafe { addr_of!((*line).on[list as usize]).read_volatile() }
        })
    }

    /// Runs the retransmission timer for these places, at most `WALK_PLACES`; returns how many have
    /// unacknowledged fast bytes.
    ///
    /// # Errors
    /// The program cannot be run.
    fn tick(&self, places: &[u32]) -> Result<u32, Self::Error> {
        self.buffers().put_places(places);
        self.run(Program::Tick)
    }

    /// Sweeps these places of the connection table, at most `WALK_PLACES`.
    ///
    /// # Errors
    /// The program cannot be run.
    fn sweep(&self, places: &[u32]) -> Result<SweepReport, Self::Error> {
        self.buffers().put_places(places);
        self.run(Program::Sweep)?;
        Ok(self.buffers().sweep(|io| SweepReport::of(io)))
    }

    /// Releases the marks and the fence share of a connection for which there is proof; with
    /// `remove` its entry goes too. True if the program did so.
    ///
    /// # Errors
    /// The program cannot be run.
    fn release(&self, row: &sweep_row, remove: bool) -> Result<bool, Self::Error> {
        self.buffers()
            .release(|io| *io = release_request(row, remove));
        self.run(Program::Release)?;
        Ok(self.buffers().release(|io| io.done) == 1)
    }

    /// Takes a connection in, or notes what a list said of it; true if it was still what the sweep
    /// saw.
    ///
    /// # Errors
    /// The program cannot be run.
    fn admit_conn(&self, request: &admit_io) -> Result<bool, Self::Error> {
        self.buffers().admit(|io| *io = *request);
        self.run(Program::Admit)?;
        Ok(self.buffers().admit(|io| io.done) == 1)
    }

    /// Lets a packet that has waited come again, if its connection waits for nothing more.
    ///
    /// # Errors
    /// The program cannot be run.
    fn inject(&self, held: &HeldPacket) -> Result<Injected, Self::Error> {
        self.buffers().inject(|io| {
            io.key = held.key;
            io.cookie = held.cookie;
            io.ifindex = held.ifindex;
        });
        let said = self.run_on_frame(Program::Inject, &held.frame)?;
        Ok(Injected::of(said, self.buffers().inject(|io| io.waits_for)))
    }

    /// Notes versions of at most `FILL_BATCH` keys before Redis is asked for them; one token each.
    ///
    /// # Errors
    /// The program cannot be run.
    fn fill_begin(&self, keys: &[&[u8]]) -> Result<Vec<FillToken>, Self::Error> {
        self.buffers().put_keys(keys.iter().copied());
        self.run(Program::FillBegin)?;
        Ok(self.buffers().tokens())
    }

    /// Inserts at most `FILL_BATCH` values; a `fill_status` for each.
    ///
    /// # Errors
    /// The program cannot be run.
    fn fill_insert(&self, entries: &[FillEntry<'_>]) -> Result<Vec<u32>, Self::Error> {
        self.buffers().put_values(entries);
        self.run(Program::FillInsert)?;
        let tokens = self.buffers().tokens();
        Ok(tokens.iter().map(|token| token.status).collect())
    }

    /// Removes any number of keys from the cache and moves their sets' versions. Those longer than
    /// `KEY_BYTES_MAX` are never cached and are left out. Returns those worth reading again.
    ///
    /// # Errors
    /// The program cannot be run.
    fn invalidate(&self, keys: &[&[u8]]) -> Result<Again, Self::Error> {
        let (mut cacheable, mut again) = (keys.to_vec(), Again::default());
        cacheable.retain(|key| key.len() <= KEY_BYTES_MAX as usize);
        for batch in cacheable.chunks(FILL_BATCH as usize) {
            self.buffers().put_keys(batch.iter().copied());
            self.run(Program::Invalidate)?;
            again.now.extend(self.buffers().of_status(FILL_WANTED));
            again.later.extend(self.buffers().of_status(FILL_WRITTEN));
            again.if_read.extend(self.buffers().of_status(FILL_SELDOM));
        }
        Ok(again)
    }

    /// Empties the cache and voids all fills under way.
    ///
    /// # Errors
    /// The program cannot be run.
    fn clear(&self) -> Result<(), Self::Error> {
        self.run(Program::Clear).map(drop)
    }

    /// Gives back the shares of the fence up to an earlier `fence_answered`: all that Redis has
    /// reported until then is handled.
    ///
    /// # Errors
    /// The program cannot be run.
    fn settle(&self, answered: u64) -> Result<(), Self::Error> {
        self.set_settle_to(answered);
        self.run(Program::Settle).map(drop)
    }

    /// Number of cache sets.
    fn sets(&self) -> u32 {
        // The loader bounds it far below.
        u32::try_from(self.set_mask() + 1).unwrap_or(u32::MAX)
    }

    /// Collects keys that were answered since the last look, from this set on.
    ///
    /// # Errors
    /// The program cannot be run.
    fn touched(&self, from_set: u32) -> Result<Touched, Self::Error> {
        self.buffers().fill(|io| io.set = from_set);
        self.run(Program::Touched)?;
        Ok(self.buffers().fill(|io| Touched::of(io)))
    }

    /// Halves the misses of keys, and of some in turn the credit, so that what was long ago is forgotten.
    fn fade_interests(&self, round: u32) {
        let words = self.buffers().interests.at::<[u32; INTERESTS as usize]>(0);
        for index in 0..INTERESTS {
            let credit_too = index % CREDIT_ROUNDS == round % CREDIT_ROUNDS;
            // SAFETY: the index is below the number of words. Updates lost to a program that runs
            // at the same time are harmless: a word is always of one key, and the rest a guess.
            unsafe {
                let word = words.cast::<u32>().add(index as usize);
                let value = word.read_volatile();
                let later = faded(value, credit_too);
                if later != value {
                    word.write_volatile(later);
                }
            }
        }
    }

    /// One counter, summed over the CPUs.
    ///
    /// # Errors
    /// It cannot be read.
    fn stat(&self, stat: erb_stat) -> Result<u64, Self::Error> {
        Ok(self.stat_by_cpu(stat)?.into_iter().sum())
    }

    /// One counter, by the CPU that counted.
    ///
    /// # Errors
    /// It cannot be read.
    fn stat_by_cpu(&self, stat: erb_stat) -> Result<Vec<u64>, Self::Error> {
        let values = self.look_up(Table::Stats, &stat.to_ne_bytes())?;
        let values = values.unwrap_or_default();
        let words = values.chunks(size_of::<u64>()).map(<[u8]>::first_chunk);
        let words = words.flatten().map(|bytes| u64::from_ne_bytes(*bytes));
        Ok(words.collect())
    }

    /// How long sampled packets took, over all CPUs.
    ///
    /// # Errors
    /// It cannot be read.
    fn latency(&self) -> Result<latency, Self::Error> {
        let values = self.look_up(Table::Latency, &0u32.to_ne_bytes())?;
        Ok(latency::of_cpus(&values.unwrap_or_default()))
    }

    /// Whether payload of a connection has passed for which the table had no room.
    ///
    /// # Errors
    /// It cannot be read.
    fn was_unseen(&self, key: &conn_key) -> Result<bool, Self::Error> {
        let place = self.control().hash_secret().unseen_place(key);
        let time = self.look_up(Table::Unseen, &place.to_ne_bytes())?;
        Ok(time.is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0)))
    }

    /// Address pairs of all tracked connections.
    fn conn_keys(&self) -> Vec<conn_key> {
        let keys = self.keys(Table::Conns);
        keys.iter().filter_map(|key| conn_key::read(key)).collect()
    }

    /// All tracked connections. Copies every entry: for people and for the end, not for the loop.
    fn conn_views(&self) -> Vec<ConnView> {
        let keys = self.keys(Table::Conns).into_iter();
        let entries = keys.filter_map(|key| self.look_up(Table::Conns, &key).ok().flatten());
        let entries = entries.filter_map(|bytes| conn::read(&bytes));
        entries.map(|entry| ConnView::from(&entry)).collect()
    }

    /// All rows of the command table.
    ///
    /// # Errors
    /// It cannot be read.
    fn command_rows(&self) -> Result<Vec<(CommandKey, Meaning)>, Self::Error> {
        let mut rows = Vec::new();
        for key in self.keys(Table::Commands) {
            let row = self.look_up(Table::Commands, &key)?;
            let meaning = row.as_deref().and_then(Meaning::read);
            rows.extend(CommandKey::try_from(key).ok().zip(meaning));
        }
        Ok(rows)
    }

    /// Changes a row of the command table; none removes it.
    ///
    /// # Errors
    /// It cannot be changed.
    fn set_command(&self, key: &CommandKey, meaning: Option<&Meaning>) -> Result<(), Self::Error> {
        let row = meaning.map(Meaning::bytes);
        self.put(Table::Commands, key, row.as_ref().map(<[u8; _]>::as_slice))
    }

    /// What is said of listening sockets: cookie and `enum erb_listener`.
    ///
    /// # Errors
    /// It cannot be read.
    fn listeners(&self) -> Result<Vec<(u64, erb_listener)>, Self::Error> {
        let mut rows = Vec::new();
        for key in self.keys(Table::Listeners) {
            let value = self.look_up(Table::Listeners, &key)?;
            let cookie = key.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
            let whose = value.as_deref().and_then(<[u8]>::first_chunk);
            rows.extend(cookie.zip(whose.map(|bytes| u32::from_ne_bytes(*bytes))));
        }
        Ok(rows)
    }

    /// Says whose a listening socket is; none: that is not known. False if there is no room.
    ///
    /// # Errors
    /// It cannot be said.
    fn set_listener(&self, cookie: u64, whose: Option<erb_listener>) -> Result<bool, Self::Error> {
        let row = whose.map(u32::to_ne_bytes);
        let row = row.as_ref().map(<[u8; _]>::as_slice);
        match self.put(Table::Listeners, &cookie.to_ne_bytes(), row) {
            Ok(()) => Ok(true),
            Err(_) if self.keys(Table::Listeners).len() >= LISTENERS_MAX as usize => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::block::Control;
    use crate::values::Values;
    use crate::{
        FILL_BIG, FILL_BUSY, FILL_OK, INTEREST_WHOSE_AT, MAPS, ValueKind, WALK_PLACES, admit_row,
    };

    /// Control block and buffers, and what was run on them.
    struct Stand {
        control: Control,
        buffers: Buffers,
        ran: RefCell<Vec<Program>>,
    }

    impl Stand {
        fn new() -> Self {
            let zeros = |name: &str| {
                let shape = MAPS.iter().find(|shape| shape.name == name);
                Ok::<_, ()>(Values::zeros(shape.ok_or(())?.value_bytes, 2))
            };
            Self {
                control: Control::new(zeros("erb_control").unwrap()),
                buffers: Buffers::new(zeros).unwrap(),
                ran: RefCell::default(),
            }
        }
    }

    impl ControlBlock for Stand {
        fn control(&self) -> &Control {
            &self.control
        }
    }

    impl ControlPlane for Stand {
        type Error = ();

        fn buffers(&self) -> &Buffers {
            &self.buffers
        }
        fn run(&self, program: Program) -> Result<u32, ()> {
            self.ran.borrow_mut().push(program);
            match program {
                Program::Tick => return Ok(self.buffers.walk(|io| io.count)),
                Program::FillBegin => self.buffers.fill(|io| {
                    for slot in &mut io.slots[..io.count as usize] {
                        let fits = u32::from(slot.key_len) <= KEY_BYTES_MAX;
                        slot.status = if fits { FILL_OK } else { FILL_BIG };
                        slot.version = slot.key[0].into();
                    }
                }),
                Program::Release => self
                    .buffers
                    .release(|io| io.done = u32::from(io.cookie == 7)),
                Program::Admit => self.buffers.admit(|io| io.done = io.db.into()),
                _ => {}
            }
            Ok(0)
        }
        fn run_on_frame(&self, program: Program, frame: &[u8]) -> Result<u32, ()> {
            self.ran.borrow_mut().push(program);
            self.buffers.inject(|io| io.waits_for = io.cookie);
            Ok(frame.len() as u32)
        }
        fn keys(&self, table: Table) -> Vec<Vec<u8>> {
            let rows = if table == Table::Listeners {
                LISTENERS_MAX
            } else {
                0
            };
            (0..u64::from(rows))
                .map(|key| key.to_ne_bytes().to_vec())
                .collect()
        }
        fn look_up(&self, table: Table, _: &[u8]) -> Result<Option<Vec<u8>>, ()> {
            let two = [3u64.to_ne_bytes(), 4u64.to_ne_bytes()].concat();
            Ok(Some(two).filter(|_| table == Table::Stats))
        }
        fn put(&self, _: Table, _: &[u8], value: Option<&[u8]>) -> Result<(), ()> {
            value.map_or(Ok(()), |_| Err(()))
        }
    }

    #[test]
    fn fields_are_written_and_read_where_programs_see_them() {
        let stand = Stand::new();
        stand.set_lease_until_ns(u64::MAX - 1);
        stand.set_wall_minus_mono_ns(-5);
        stand.set_rights(9);
        assert_eq!(stand.control().lease_until_ns(), u64::MAX - 1);
        assert_eq!((stand.wall_minus_mono_ns(), stand.rights()), (-5, 9));
        stand.settle(12).unwrap();
        assert_eq!(stand.settle_to(), 12);
        assert_eq!(*stand.ran.borrow(), [Program::Settle]);
    }

    #[test]
    fn a_key_that_is_too_long_is_not_taken_for_its_beginning() {
        let stand = Stand::new();
        let long = vec![b'k'; KEY_BYTES_MAX as usize + 1];
        let tokens = stand.fill_begin(&[b"a", &long, &long[1..]]).unwrap();
        let found = tokens.iter().map(|token| token.status);
        assert_eq!(found.collect::<Vec<_>>(), [FILL_OK, FILL_BIG, FILL_OK]);
        assert_eq!(tokens[0].version, u64::from(b'a'));
        stand.ran.take();
        stand.invalidate(&[&long]).unwrap();
        assert!(stand.ran.borrow().is_empty(), "it was never cached");
    }

    #[test]
    fn values_lie_behind_their_keys_with_their_tokens() {
        let stand = Stand::new();
        let token = FillToken {
            set: 3,
            version: 4,
            ..FillToken::default()
        };
        let entry = FillEntry {
            key: b"key",
            db: 2,
            kind: ValueKind::Hash,
            value: Some(b"value"),
            expiry_ms: 6,
            token,
        };
        assert_eq!(stand.fill_insert(&[entry]).unwrap(), [FILL_BUSY]);
        stand.buffers.fill(|io| {
            let slot = &io.slots[0];
            assert_eq!((io.count, slot.set, slot.version), (1, 3, 4));
            assert_eq!((slot.db, slot.expiry_ms), (2, 6));
            assert_eq!(ValueKind::of(slot.type_.into()), Some(ValueKind::Hash));
            assert_eq!(slot.value[..usize::from(slot.value_len)], *b"value");
            assert_eq!(slot.key[..usize::from(slot.key_len)], *b"key");
            assert_eq!(slot.absent, 0);
        });
        let (value, expiry_ms) = (None, 0);
        let gone = FillEntry {
            value,
            expiry_ms,
            ..entry
        };
        stand.fill_insert(&[gone]).unwrap();
        stand.buffers.fill(|io| {
            let slot = &io.slots[0];
            assert_eq!((slot.absent, slot.value_len, slot.expiry_ms), (1, 0, 0));
        });
    }

    #[test]
    fn batches_are_as_large_as_the_programs_take_them() {
        let stand = Stand::new();
        let keys = vec![b"k".as_slice(); 2 * FILL_BATCH as usize + 1];
        stand.invalidate(&keys).unwrap();
        assert_eq!(*stand.ran.borrow(), [Program::Invalidate; 3]);
        assert_eq!(stand.buffers.fill(|io| io.count), 1);
        let all: Vec<u32> = (1..=WALK_PLACES).collect();
        assert_eq!(stand.tick(&all), Ok(WALK_PLACES));
        assert_eq!(stand.buffers.walk(|io| io.places[1]), 2);
    }

    #[test]
    fn what_a_program_did_is_its_answer() {
        let stand = Stand::new();
        let row = |cookie| sweep_row {
            cookie,
            ..sweep_row::default()
        };
        assert_eq!(stand.release(&row(7), true), Ok(true));
        assert_eq!(
            stand.release(&row(8), true),
            Ok(false),
            "not of the time before"
        );
        let request = |db| admit_io {
            row: admit_row::default(),
            db,
            ..admit_io::default()
        };
        assert_eq!(stand.admit_conn(&request(1)), Ok(true));
        assert_eq!(stand.admit_conn(&request(0)), Ok(false));
        stand.buffers.sweep(|io| (io.conns, io.count) = (5, 1));
        let report = stand.sweep(&[1]).unwrap();
        assert_eq!((report.conns, report.rows.len()), (5, 1));
        assert_eq!(stand.stat(0), Ok(7), "of both CPUs");
        assert_eq!(stand.set_listener(1, Some(1)), Ok(false), "no room");
        assert_eq!(stand.set_listener(1, None), Ok(true));
    }

    #[test]
    fn fading_keeps_parts_and_neighbours_apart() {
        let stand = Stand::new();
        let words = stand.buffers.interests.at::<[u32; 5]>(0);
        let word = |whose: u32, doubt: u32, credit: u32, kind: u32, misses: u32| {
            whose << INTEREST_WHOSE_AT | doubt << 8 | credit << 5 | kind << 3 | misses
        };
        let before = [
            word(0x7f_ffff, 0, 7, 3, 7),
            word(1, 0, 1, 0, 1),
            word(0, 0, 4, 2, 2),
            word(5, 1, 2, 1, 6),
            word(5, 1, 2, 1, 7),
        ];
        let after = [
            word(0x7f_ffff, 0, 3, 3, 3),
            word(1, 0, 1, 0, 0),
            word(0, 0, 4, 2, 1),
            word(5, 1, 2, 1, 6),
            word(5, 1, 2, 1, 3), // one miss less than is reported
        ];
        // SAFETY: the words are the test's own.
        unsafe { words.write(before) };
        stand.fade_interests(CREDIT_ROUNDS);
        // SAFETY: as above.
        assert_eq!(unsafe { words.read() }, after);
    }
}
