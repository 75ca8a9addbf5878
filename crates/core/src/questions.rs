// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the feed asks Redis for once it is ready.

use std::io::{Read, Write};

use crate::feed::{Asked, Expect, Feed, Question, needs_select, reads_of};
use crate::redis_state::RedisState;

/// Keys per TOUCH: bounds one step of Redis to about 0.1 ms.
const TOUCH_KEYS: usize = 256;

impl<S: Read + Write> Feed<S> {
    /// Queues the questions about Redis's state. `gate` is `gate_seen` as read before.
    pub(crate) fn ask_state(&mut self, gate: u64) {
        let [info, config, acl, _] = RedisState::QUESTIONS;
        self.ask(info, Expect::Info);
        self.ask(config, Expect::Config);
        self.ask(acl, Expect::Acl { gate });
    }

    /// Queues CLIENT LIST.
    pub(crate) fn ask_clients(&mut self, question: Question) {
        self.ask(&[b"CLIENT", b"LIST"], Expect::Clients(question));
    }

    /// Queues one fill transaction for keys whose tokens are noted.
    pub(crate) fn ask_fill(&mut self, mut asked: Vec<Asked>) {
        asked.sort_by_key(|one| one.wanted.db);
        self.ask(&[b"MULTI"], Expect::FillStep);
        for (index, one) in asked.iter().enumerate() {
            if needs_select(&asked, index) {
                let db = one.wanted.db.to_string();
                self.ask(&[b"SELECT", db.as_bytes()], Expect::FillStep);
            }
            for read in reads_of(one.wanted.kind) {
                let words: Vec<&[u8]> = read.iter().copied().chain([&*one.wanted.key]).collect();
                self.ask(&words, Expect::FillStep);
            }
            self.ask(&[b"PEXPIRETIME", &one.wanted.key], Expect::FillStep);
        }
        self.ask(&[b"EXEC"], Expect::Exec(asked));
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
}
