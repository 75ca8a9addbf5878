// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Redis answers about itself on the feed: its calls, its state, whether its errors are one line.

use std::io::{Read, Write};

use super::{Feed, refusal};
use crate::calls::Calls;
use crate::expect::{Event, Expect, Setup};
use crate::line_ends::{self, LineEnds};
use crate::outside::DataPath;
use crate::redis_state::RedisState;
use crate::resp::{Frame, error};
use crate::usage::ByCommand;

impl<S: Read + Write> Feed<S> {
    pub(super) fn take_calls(&mut self, reply: &Frame, events: &mut Vec<Event>) {
        let calls = Calls::of(reply);
        self.calls_error = calls.is_none().then(|| refusal(reply, "INFO"));
        events.extend(calls.map(Event::Calls));
    }

    /// The first answer about Redis's state.
    pub(super) fn take_config(&mut self, reply: &Frame) {
        self.state = RedisState::asked_as(self.user.clone());
        self.state.take_config(reply);
        self.quiet = self.state.tells_misses == Some(true);
        self.output_limit = error(reply).is_none().then_some(self.state.output_limit);
    }

    /// The last answer about Redis's state, but for CLIENT LIST where that is needed.
    pub(super) fn take_info(
        &mut self,
        reply: &Frame,
        (gate, own): (u64, ByCommand),
        events: &mut Vec<Event>,
    ) {
        self.state.take_info(reply);
        self.state.usage.asked_by(self.id, own);
        self.fields_expire = self.state.fields_may_expire();
        // Here, not with the state: calls of later PINGs come before CLIENT LIST's answer.
        events.extend(Calls::of(reply).map(Event::Calls));
        if self.state.may_be_monitored() {
            self.ask(&[b"CLIENT", b"LIST"], Expect::Monitors { gate });
        } else {
            events.push(self.state_read(gate));
        }
    }

    pub(super) fn state_read(&mut self, gate: u64) -> Event {
        let mut state = Box::new(std::mem::take(&mut self.state));
        state.line_bytes = self.line_bytes;
        Event::State { state, gate }
    }

    /// Queues the question whether errors are one line, unless Redis has told.
    pub(crate) fn ask_line_ends(&mut self) {
        let is_asked = self.expects(|expect| matches!(expect, Expect::Setup(Setup::LineEnds)));
        if self.line_ends.is_none() && !is_asked {
            self.ask(&line_ends::QUESTION, Expect::Setup(Setup::LineEnds));
        }
    }

    pub(super) fn take_line_ends(&mut self, error: &str, cache: &impl DataPath) {
        self.line_ends = line_ends::of(error);
        match self.line_ends {
            Some(LineEnds::Cleaned) => cache.set_one_line(1),
            Some(LineEnds::Repeated) => {
                self.expected.push_front(Expect::Setup(Setup::LineEndsRest))
            }
            Some(LineEnds::Untold) | None => {}
        }
    }
}
