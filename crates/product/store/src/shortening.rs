// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Retention that is made shorter, and the lock that forbids it. Who has taken an administrator's credentials shall
//! not have the history at once.
//!
//! Invariants:
//! 1. What grows is in force at once. What shrinks is in force when the retention clock has run for the min-age of the
//!    moment when it was asked for. So whoever would have noticed in time still does.
//! 2. One shortening waits at most. Whatever is chosen after it takes its place, so to choose what is in force
//!    cancels it.
//! 3. While the store is locked nothing shrinks and no snapshot is released or ends. A shortening that was asked for before
//!    waits for the lock's end.
//! 4. A lock never becomes shorter.

use crate::control::{Control, Request};
use crate::entry::Entry;
use crate::mistake::{Mistake, Rules};
use crate::retention::Settings;
use crate::version::Version;
use crate::view::Refused;

/// What will be kept, and from when on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortening {
    /// From then on.
    pub to: Settings,
    /// Microseconds that the retention clock has run by then.
    pub at_us: u64,
}

impl<R: Rules + Copy> Control<R> {
    /// Whether the lock holds.
    pub(crate) fn is_locked(&self) -> bool {
        self.retention_clock.run_us() < self.state().locked_until_us
            && !self.rules.makes(Mistake::LockIgnored)
    }

    /// Chooses what is kept.
    pub(crate) fn choose(&mut self, ticket: Option<u64>, chosen: Settings) {
        let now = self.state().settings();
        let to = chosen.within(now.counted);
        let at_once = to.longest(now);
        let is_shorter = to != at_once;
        if is_shorter && self.is_locked() {
            self.answer(ticket, Version::ZERO, Err(Refused::Locked));
            return;
        }
        let run_us = self.retention_clock.run_us();
        let shortening = Entry::Shortening(Shortening {
            to,
            at_us: run_us.saturating_add(now.min_age_us),
        });
        let is_hasty = self.rules.makes(Mistake::ShortenedAtOnce);
        let waits = is_shorter && !is_hasty;
        let settings = if waits { at_once } else { to };
        self.keep(
            (ticket, Some(Request::Settings(chosen))),
            settings,
            waits.then_some(shortening),
        );
    }

    /// Begins what has waited for long enough; true: it does.
    pub(crate) fn shorten(&mut self) -> bool {
        let run_us = self.retention_clock.run_us();
        let due = self.state().shortening;
        let Some(due) = due.filter(|due| due.at_us <= run_us && !self.is_locked()) else {
            return false;
        };
        let to = due.to.within(self.state().settings().counted);
        self.keep((None, None), to, None);
        true
    }

    fn keep(
        &mut self,
        (ticket, request): (Option<u64>, Option<Request>),
        settings: Settings,
        also: Option<Entry>,
    ) {
        self.retention_clock.set_ages(settings);
        let watermark = self.shared.watermark();
        let entry = Entry::Settings(settings);
        self.begin_writing((ticket, request), entry, also, watermark);
    }

    /// Locks for so long from now on, as the retention clock runs.
    pub(crate) fn lock(&mut self, ticket: Option<u64>, for_us: u64) {
        let until_us = self.retention_clock.run_us().saturating_add(for_us);
        let watermark = self.shared.watermark();
        let request = Some(Request::Lock { for_us });
        self.begin_writing((ticket, request), Entry::Locked(until_us), None, watermark);
    }
}
