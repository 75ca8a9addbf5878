// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the drain says on the feed. Its answers stand in the feed's order with all others (invariant 1); it reads
//! them itself, for they are many and short.

use std::io::{self, Read, Write};

use erb_abi::Logs;

use super::Feed;
use crate::drain::{Drain, LogError, Next};
use crate::expect::{Event, Expect};
use crate::gate::TRIAL;
use crate::outside::DataPath;
use crate::resp::{Frame, error};

impl<S: Read + Write> Feed<S> {
    /// Whether tracking is on, and commands are what they are called.
    pub(crate) const fn trusts_names(&self) -> bool {
        self.ready && self.trusts_names
    }

    /// Begins the drain's next batch, if it is due.
    pub(crate) fn begin_batch(
        &mut self,
        drain: &mut Drain<Logs>,
        now: u64,
    ) -> Result<(), LogError> {
        if drain.begin(now, self.stream.output())? {
            self.expected.push_back(Expect::Batch);
            drain.said(|name, count| self.own.add(name, count));
        }
        Ok(())
    }

    /// Queues each command that a batch may have, and discards them: `gate.rs`, 3.
    pub(crate) fn try_batch(&mut self) {
        for (step, words) in TRIAL.iter().enumerate() {
            let last = step + 1 == TRIAL.len();
            let frame = step == 0 || last;
            let executed = self.own().clone();
            self.ask(words, Expect::WriteTrial { frame, last });
            if !frame {
                self.own = executed; // it is queued, and discarded
            }
        }
    }

    pub(super) fn take_trial(&mut self, frame: &Frame, last: bool, events: &mut Vec<Event>) {
        if let Some(reason) = error(frame) {
            self.trial_error.get_or_insert(reason);
        }
        if last {
            let came = self.trial_error.take().map_or(Ok(()), Err);
            events.push(Event::WriteTrial(came));
        }
    }

    /// Lets the drain read what is its own; none: a push is next.
    pub(super) fn take_batch(
        &mut self,
        drain: &mut Drain<Logs>,
        cache: &impl DataPath,
        now: u64,
        events: &mut Vec<Event>,
    ) -> io::Result<Option<bool>> {
        if !self.stream.is_between() {
            return Ok(None); // of a push that is not whole
        }
        self.flush_invalid(cache, events)?;
        let (taken, next) = drain.take(self.stream.input(), now)?;
        self.stream.take_input(taken);
        match next {
            Next::Push => Ok(None),
            Next::More => Ok(Some(false)),
            Next::Done => {
                self.expected.pop_front();
                events.push(Event::Drained);
                Ok(Some(true))
            }
        }
    }
}
