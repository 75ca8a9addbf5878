// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the feed asks for Redis's command table, and takes the answers.

use std::io::{self, Read, Write};

use super::{CommandsReport, apply, asked, names, table};
use crate::feed::{Event, Expect, Feed, Setup, broken};
use crate::outside::DataPath;
use crate::resp::{Frame, Tree};

impl<S: Read + Write> Feed<S> {
    /// Queues the questions about Redis's command table.
    pub(crate) fn ask_commands(&mut self) {
        self.ask(&[b"COMMAND", b"LIST"], Expect::Names);
    }

    pub(crate) fn is_asking_commands(&self) -> bool {
        self.expected
            .iter()
            .any(|expect| matches!(expect, Expect::Names | Expect::Commands { .. }))
    }

    /// COMMAND LIST was answered.
    pub(crate) fn take_names(&mut self, frame: &Frame) -> io::Result<()> {
        let listed = names(frame).map_err(io::Error::other)?;
        let asked = asked(&listed);
        let names = asked.iter().map(String::as_bytes);
        let words: Vec<&[u8]> = [&b"COMMAND"[..], b"INFO"]
            .into_iter()
            .chain(names)
            .collect();
        self.stream.push(&words);
        self.expected.push_back(Expect::Commands { listed, asked });
        Ok(())
    }

    /// COMMAND INFO was answered.
    pub(crate) fn take_commands(
        &mut self,
        answer: &Tree,
        cache: &impl DataPath,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        let Some(Expect::Commands { listed, asked }) = self.expected.pop_front() else {
            return Err(broken("COMMAND INFO was not asked for"));
        };
        let table = table(&listed, &asked, answer).map_err(io::Error::other)?;
        if apply(cache, &table).map_err(io::Error::other)? && self.ready {
            cache.clear().map_err(io::Error::other)?;
        }
        let end = match table.report.refusal() {
            Some(reason) => Err(reason),
            None => Ok(table.report),
        };
        self.commands_end(end, events);
        Ok(())
    }

    /// The table is loaded; a new feed goes on with its tracking.
    fn commands_end(&mut self, end: Result<CommandsReport, String>, events: &mut Vec<Event>) {
        let again = self.ready;
        self.trusts_names = end.is_ok();
        events.push(Event::Commands { end, again });
        if !self.ready {
            self.ask(
                &[b"CLIENT", b"TRACKING", b"ON", b"BCAST", b"NOLOOP"],
                Expect::Setup(Setup::Tracking),
            );
        }
    }
}
