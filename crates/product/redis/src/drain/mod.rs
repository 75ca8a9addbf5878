// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The drain: it brings to Redis what was answered in its place, in the order in which that was done.
//! Like the feed, on whose connection it speaks, it has no socket and no clock: bytes in, bytes out.
//!
//! ```text
//! let mut drain = Drain::new(log, settings);
//! drain.set_databases(databases); // of this connection's Redis
//! loop {
//!     // wait until drain.next_ns(), or until something was read into `input`
//!     drain.begin(now_ns, &mut output)?;          // commands, to be written
//!     let (taken, next) = drain.take(input, now_ns)?; // replies; a push is the owner's
//! }
//! ```
//!
//! Invariants:
//! 1. A batch is a cut: all that was answered up to an LSN, and nothing behind it (`cut.rs`). It is executed
//!    whole or not at all (`speak.rs`), so what Redis holds is always what a prefix of the log makes. One
//!    exception: an MSET within it that fails by itself leaves its keys as they were until they are asked for
//!    singly, with the next batch, which begins at once.
//! 2. One batch is under way. One that succeeded behind one that was refused would put older values over
//!    newer ones.
//! 3. `drained` moves when each element of the reply was looked at, and every one of them was executed, or is
//!    on the list of those that Redis will never take. Only then is room in the rings freed.
//! 4. After a lost connection, or with a new daemon, the log goes on behind `drained`: records are drained
//!    twice rather than not at all. That is harmless as long as nobody else writes their keys between, which
//!    is what who owns the drain has to see to: the connection before must be dead in Redis.
//! 5. What Redis refuses is tried again for ever; the text is kept for people. Nothing is given up but a
//!    write that fails by itself (`refusal.rs`).
//! 6. A record that cannot be one ends all draining (`ring.rs`).
//! 7. Nothing is said on a connection before it is known how many databases that Redis has: another process may
//!    have fewer than the one that was there when a write was answered. A batch with a record of a
//!    database that Redis does not have, and all after it, wait until a Redis has it (`cut.rs`, 5).
//!
//! It must speak on the feed's connection: Redis's report of a later change of a key comes behind the reply
//! to the batch that wrote it, only if both take the same way.

mod answer;
mod cut;
mod follow;
mod pace;
mod refusal;
mod ring;
mod speak;

use std::collections::VecDeque;
use std::io;

use bytes::BytesMut;
use erb_abi as abi;

use crate::clock::{MS, SECOND_NS};
use answer::{Answer, End};
use cut::{Cut, Made};
use pace::Pacing;
use speak::{Batch, Form};

pub use follow::Follower;
pub use refusal::Refusal;
pub use ring::{Log, LogError};

/// Between two tries of what Redis refuses.
const RETRY_NS: u64 = 10 * MS;

/// Between two looks for an LSN that was given and is not in its ring: its CPU needs some us.
const GAP_NS: u64 = MS / 20;

/// For so long after Redis had no memory batches are scripts.
const SCRIPTS_NS: u64 = SECOND_NS;

/// How long a batch should take Redis, which does nothing else meanwhile.
pub const BATCH_NS: u64 = MS / 2;

/// Looks at the log of which the time is remembered until they are drained; a batch each.
const LOOKS_MAX: usize = 64;

/// What a drain begins with.
#[derive(Clone, Debug)]
pub struct DrainSettings {
    /// How long a batch may keep Redis: [`BATCH_NS`].
    pub batch_ns: u64,
    /// What keys are hashed with, so that nobody can choose keys that collide.
    pub secret: abi::hash_secret,
}

/// Whose the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The drain's; there is more to come.
    More,
    /// The owner's: a push stands between two replies.
    Push,
    /// The owner's: the batch's answer is whole.
    Done,
}

/// A write that was answered, and that Redis will never take: its entry in the cache has to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedWrite {
    /// Number of its record.
    pub lsn: u64,
    /// Database.
    pub db: u16,
    /// Key.
    pub key: Vec<u8>,
    /// What Redis said.
    pub why: String,
}

/// What waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Records that are not drained.
    pub records: u64,
    /// Bytes that are taken in the ring that has the least room.
    pub ring_bytes: u64,
    /// For how long at most something waits; 0: nothing does.
    pub age_ns: u64,
    /// The LSN that is waited for while later ones are there.
    pub missing: Option<u64>,
}

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Batches that were executed.
    pub batches: u64,
    /// Records that they were made of.
    pub records: u64,
    /// Writes that Redis was told: of each key the last of the batch.
    pub keys: u64,
    /// Batches that Redis refused.
    pub refused: u64,
    /// Writes that failed by themselves.
    pub refused_writes: u64,
}

/// A batch whose answer has not come whole.
#[derive(Debug)]
struct UnderWay {
    answer: Answer,
}

/// See the module.
pub struct Drain<L> {
    log: L,
    /// What the present connection's Redis has (`databases`; 1 in a cluster); none: not known yet.
    databases: Option<u32>,
    cut: Cut,
    batch: Batch,
    pacing: Pacing,
    under_way: Option<UnderWay>,
    /// LSNs that were the last one at a time, until they are drained.
    looks: VecDeque<(u64, u64)>,
    hurry: bool,
    refusal: Option<Refusal>,
    retry_ns: u64,
    scripts_until_ns: u64,
    /// An MSET failed by itself: next time each key is asked for alone.
    singly: bool,
    refused_writes: Vec<RefusedWrite>,
    done: Drained,
    broken: Option<LogError>,
}

impl<L: Log> Drain<L> {
    /// Goes on behind what is drained.
    pub fn new(log: L, settings: &DrainSettings) -> Self {
        let cut = Cut::new(&log, settings.secret);
        Self {
            log,
            databases: None,
            cut,
            batch: Batch::default(),
            pacing: Pacing::new(settings.batch_ns),
            under_way: None,
            looks: VecDeque::new(),
            hurry: false,
            refusal: None,
            retry_ns: 0,
            scripts_until_ns: 0,
            singly: false,
            refused_writes: Vec::new(),
            done: Drained::default(),
            broken: None,
        }
    }

    /// How many databases the Redis of this connection has, until the connection is [lost](Self::lost): no process
    /// changes that.
    pub const fn set_databases(&mut self, databases: u32) {
        self.databases = Some(databases);
    }

    /// When [`Self::begin`] is worth calling; none: nothing waits, or an answer is awaited.
    pub fn next_ns(&self) -> Option<u64> {
        let waiting = self.log.lsn().saturating_sub(self.log.drained());
        let cannot = self.under_way.is_some() || self.broken.is_some() || self.databases.is_none();
        if cannot || waiting == 0 {
            return None;
        }
        if self.hurry {
            return Some(self.retry_ns);
        }
        Some(self.pacing.due_ns(waiting).max(self.retry_ns))
    }

    /// Somebody waits until all is drained: the next batch begins at once.
    pub const fn hurry(&mut self) {
        self.hurry = true;
    }

    /// Appends the commands of the next batch, if one is due; whether there was one.
    ///
    /// # Errors
    /// [`LogError`]: what a ring holds cannot be. It stays so.
    pub fn begin(&mut self, now_ns: u64, output: &mut BytesMut) -> Result<bool, LogError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let is_due = self.next_ns().is_some_and(|due| now_ns >= due);
        self.look(now_ns);
        let Some(databases) = self.databases.filter(|_| is_due) else {
            return Ok(false);
        };
        self.pacing.began(now_ns);
        let drained = self.log.drained();
        let cost = self.pacing.most(self.log.lsn().saturating_sub(drained));
        let made = self.cut.make(&self.log, drained, cost, databases);
        match made.inspect_err(|error| self.broken = Some(*error))? {
            Made::Batch => {}
            Made::Nothing => {
                self.retry_ns = now_ns + GAP_NS;
                return Ok(false);
            }
            Made::NoDatabase(db) => {
                self.wait_for_database(db, databases, now_ns);
                return Ok(false);
            }
        }
        self.hurry = false;
        let form = match (now_ns < self.scripts_until_ns, self.singly) {
            (true, _) => Form::Script,
            (false, true) => Form::Singly,
            (false, false) => Form::Together,
        };
        self.batch.say(&self.cut, form, output);
        let elements = self.batch.elements.len();
        let answer = match form {
            Form::Script => Answer::to_script(elements),
            _ => Answer::to_transaction(elements),
        };
        self.under_way = Some(UnderWay { answer });
        Ok(true)
    }

    /// A record of the next batch is of a database that this Redis does not have.
    fn wait_for_database(&mut self, db: u16, databases: u32, now_ns: u64) {
        let needed = u32::from(db) + 1;
        let text = format!(
            "a SET of database {db} was answered, and Redis was started again with fewer: `databases {databases}`. \
             It and all after it wait: start Redis with `databases {needed}` or more, or \
             `erb detach --undrained-to FILE`"
        );
        self.retry_ns = now_ns + RETRY_NS;
        self.refusal = Some(Refusal::again(self.refusal.take(), text, now_ns));
    }

    /// Commands of the batch that was begun, as Redis counts them.
    pub(crate) fn said(&self, count: impl FnMut(&'static str, u64)) {
        self.batch.commands(count);
    }

    /// Notes which LSN is the last one now; the clock was read before.
    fn look(&mut self, now_ns: u64) {
        let lsn = self.log.lsn();
        let drained = self.log.drained();
        if lsn == drained {
            self.looks.clear();
            self.log.set_drained(drained, now_ns);
        } else if self.looks.len() < LOOKS_MAX {
            // A later look at the same LSN tells more.
            match self.looks.back_mut() {
                Some(last) if last.0 == lsn => last.1 = now_ns,
                _ => self.looks.push_back((lsn, now_ns)),
            }
        }
    }

    /// Takes of what was read what belongs to the batch; how many bytes that was, and whose the next are.
    ///
    /// # Errors
    /// What Redis said is no answer to a batch: the connection must end.
    pub fn take(&mut self, input: &[u8], now_ns: u64) -> io::Result<(usize, Next)> {
        let Some(under_way) = &mut self.under_way else {
            return Ok((0, Next::Done));
        };
        let (taken, next) = under_way.answer.take(input)?;
        let end = match next {
            answer::Next::More => return Ok((taken, Next::More)),
            answer::Next::Push => return Ok((taken, Next::Push)),
            answer::Next::End(end) => end,
        };
        self.under_way = None;
        match end {
            End::Executed(errors) => self.executed(errors, now_ns),
            End::Refused(text) => self.refused(text, now_ns),
        }
        Ok((taken, Next::Done))
    }

    /// The batch ran, but for these elements of it.
    fn executed(&mut self, errors: Vec<(usize, String)>, now_ns: u64) {
        // What is not about a write's own key is about all of them.
        let of_all = |(element, error): &&(usize, String)| {
            self.batch.keys_of(*element).is_empty() || !refusal::is_of_the_write(error)
        };
        let all = errors.iter().find(of_all);
        if let Some((_, error)) = all {
            return self.refused(error.clone(), now_ns);
        }
        // Who of an MSET is at fault shows when each is asked for alone. What the others did is done again.
        let of_many = |(element, _): &(usize, String)| self.batch.keys_of(*element).len() != 1;
        if self.batch.form == Form::Together && errors.iter().any(of_many) {
            self.singly = true;
            self.cut.give_up();
            self.hurry = true;
            return;
        }
        self.singly = false;
        for (element, why) in errors {
            for index in self.batch.keys_of(element) {
                self.refused_writes.push(RefusedWrite {
                    lsn: self.cut.record(*index).lsn,
                    db: self.cut.record(*index).db,
                    key: self.cut.key(*index).to_vec(),
                    why: why.clone(),
                });
                self.done.refused_writes += 1;
            }
        }
        self.drained(now_ns);
    }

    fn drained(&mut self, now_ns: u64) {
        let end = self.cut.end();
        let mut fresh_ns = 0;
        while let Some((_, at_ns)) = self.looks.front().filter(|(lsn, _)| *lsn <= end) {
            fresh_ns = *at_ns;
            self.looks.pop_front();
        }
        let (records, keys) = (self.cut.records(), self.cut.keys());
        self.pacing.done(records, self.cut.cost(), now_ns);
        self.done.batches += 1;
        self.done.records += records as u64;
        self.done.keys += keys as u64;
        self.refusal = None;
        self.log.set_drained(end, fresh_ns);
        self.cut.done(&self.log);
    }

    fn refused(&mut self, text: String, now_ns: u64) {
        self.done.refused += 1;
        self.cut.give_up();
        let by_script = self.batch.form == Form::Script;
        if refusal::is_out_of_memory(&text) && !by_script {
            self.scripts_until_ns = now_ns + SCRIPTS_NS;
            self.hurry = true;
        } else {
            self.retry_ns = now_ns + RETRY_NS;
            // A Redis whose scripts are not allowed more is asked in the usual way again.
            self.scripts_until_ns = 0;
        }
        self.refusal = Some(Refusal::again(self.refusal.take(), text, now_ns));
    }

    /// The connection is gone, and dead in Redis; the next one is ready. What was under way is drained
    /// again.
    pub fn lost(&mut self) {
        self.databases = None;
        self.under_way = None;
        self.cut.give_up();
    }

    /// Whether an answer is awaited.
    pub const fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Why nothing is drained, if Redis refuses it.
    pub const fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    /// Writes that failed by themselves since the last call.
    pub fn take_refused_writes(&mut self) -> Vec<RefusedWrite> {
        std::mem::take(&mut self.refused_writes)
    }

    /// What waits.
    pub fn backlog(&self, now_ns: u64) -> Backlog {
        let records = self.log.lsn().saturating_sub(self.log.drained());
        let taken = |ring| self.log.head(ring).wrapping_sub(self.log.tail(ring));
        Backlog {
            records,
            ring_bytes: (0..self.log.count()).map(taken).max().unwrap_or(0),
            age_ns: match records {
                0 => 0,
                _ => now_ns.saturating_sub(self.log.fresh_ns()),
            },
            missing: self.cut.missing(),
        }
    }

    /// Frees the room of what is drained, if the journal has kept it by now.
    pub fn free_owed(&mut self) {
        self.cut.free_owed(&self.log);
    }

    /// Whether the journal had not kept it when it was last to be freed. It wakes nobody.
    pub const fn owes_room(&self) -> bool {
        self.cut.owes_room()
    }

    /// What was done so far.
    pub const fn done(&self) -> Drained {
        self.done
    }

    /// What the present connection's Redis has; none: it has not told.
    pub const fn databases(&self) -> Option<u32> {
        self.databases
    }

    /// The log.
    pub const fn log(&self) -> &L {
        &self.log
    }
}

#[cfg(test)]
mod answer_tests;
#[cfg(test)]
mod follow_tests;
#[cfg(test)]
mod oracle_tests;
#[cfg(test)]
mod redis_tests;
#[cfg(test)]
mod ring_tests;
