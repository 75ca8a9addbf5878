// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the feed asks Redis for once it is ready.

use std::io::{Read, Write};

use erb_abi::Wanted;

use crate::expect::{Expect, Question};
use crate::feed::Feed;
use crate::fill::Sizing;
use crate::reading::{Answered, Asked, TABLES_ASKED, Words, reads_of, sizes_of};
use crate::redis_state::RedisState;
use crate::reports::Reports;

/// Keys per TOUCH: bounds one step of Redis to about 0.1 ms.
const TOUCH_KEYS: usize = 256;

impl<S: Read + Write> Feed<S> {
    /// Queues the questions about Redis's state. `gate` is `gate_seen` as read before.
    pub(crate) fn ask_state(&mut self, gate: u64) {
        let [config, acl, info, _] = RedisState::QUESTIONS;
        self.ask_line_ends();
        self.ask(config, Expect::Config);
        self.ask(acl, Expect::Acl);
        let own = self.own().clone();
        self.ask(info, Expect::Info { gate, own });
    }

    /// Queues CLIENT LIST.
    pub(crate) fn ask_clients(&mut self, question: Question) {
        self.ask(&[b"CLIENT", b"LIST"], Expect::Clients(question));
    }

    /// Queues one transaction that asks for the sizes of values; so many bytes with its answer. If a key
    /// that was written is of another type now, a command of its old one would count as an error in INFO.
    pub(crate) fn ask_sizes(&mut self, mut asked: Vec<Wanted>, bytes: usize, of: Sizing) {
        asked.sort_by_key(|one| one.db);
        let quiet = of == Sizing::Again || self.is_quiet();
        let whole = of != Sizing::Missed;
        self.ask(&[b"MULTI"], Expect::FillStep);
        let keys = asked.iter();
        let answers = self.ask_each(keys.map(|one| (one.db, sizes_of(one, quiet, whole))));
        let expect = Expect::Sizes {
            asked,
            answers,
            whole,
            bytes,
        };
        self.ask(&[b"EXEC"], expect);
    }

    /// Of each key its commands, behind a SELECT where the database is another one. Returns what is to be
    /// answered.
    fn ask_each<'a>(&mut self, keys: impl Iterator<Item = (u16, Vec<Words<'a>>)>) -> Answered {
        let (mut selected, mut answers) = (None, Vec::new());
        for (db, commands) in keys {
            if selected.replace(db) != Some(db) {
                let db = db.to_string();
                self.ask(&[b"SELECT", db.as_bytes()], Expect::FillStep);
            }
            answers.push((db, commands.len()));
            for command in commands {
                let words: Vec<&[u8]> = command.iter().map(AsRef::as_ref).collect();
                self.ask(&words, Expect::FillStep);
            }
        }
        answers
    }

    /// Queues one transaction that reads keys whose tokens are noted; so many bytes with its answer.
    pub(crate) fn ask_fill(&mut self, mut asked: Vec<Asked>, bytes: usize) {
        asked.sort_by_key(|one| one.wanted.db);
        let about_tables = asked.iter().any(|one| one.reading.table_memory > 0);
        let tables = about_tables.then(|| self.fields_expire());
        self.ask(&[b"MULTI"], Expect::FillStep);
        if about_tables {
            self.ask(&TABLES_ASKED, Expect::FillStep);
        }
        let steps = self.steps();
        let keys: Vec<_> = asked
            .iter()
            .map(|one| (one.wanted.db, reads_of(one, steps)))
            .collect();
        let answers = self.ask_each(keys.into_iter());
        let expect = Expect::Exec {
            asked,
            answers,
            tables,
            bytes,
        };
        self.ask(&[b"EXEC"], expect);
    }

    /// Queues TOUCH of these keys.
    pub(crate) fn ask_touch(&mut self, mut keys: Vec<(u16, Vec<u8>)>) {
        keys.sort_unstable();
        self.ask(&[b"MULTI"], Expect::FillStep);
        for of_db in keys.chunk_by(|a, b| a.0 == b.0) {
            self.ask(
                &[b"SELECT", of_db[0].0.to_string().as_bytes()],
                Expect::FillStep,
            );
            for some in of_db.chunks(TOUCH_KEYS) {
                let words = std::iter::once(&b"TOUCH"[..]);
                let words: Vec<&[u8]> = words.chain(some.iter().map(|key| &key.1[..])).collect();
                self.ask(&words, Expect::FillStep);
            }
        }
        self.ask(&[b"EXEC"], Expect::Touched);
    }

    /// Whether Redis tells of all changes, and no answer is to come behind which it does not.
    pub(crate) fn tells_all(&self) -> bool {
        self.reports() == Reports::All && !self.is_asking_reports()
    }

    fn is_asking_reports(&self) -> bool {
        self.expects(|expect| matches!(expect, Expect::Reports(_)))
    }

    /// Asks for these reports, unless they are what comes or is asked for.
    pub(crate) fn ask_reports(&mut self, to: Reports) {
        if self.reports() == to || self.is_asking_reports() {
            return;
        }
        let begin: &[&[u8]] = match to {
            Reports::All => &[b"CLIENT", b"TRACKING", b"ON", b"BCAST", b"NOLOOP"],
            Reports::OfRead => &[b"CLIENT", b"TRACKING", b"ON"],
        };
        self.ask(&[b"MULTI"], Expect::FillStep);
        self.ask(&[b"CLIENT", b"TRACKING", b"OFF"], Expect::FillStep);
        self.ask(begin, Expect::FillStep);
        self.ask(&[b"EXEC"], Expect::Reports(to));
    }
}
