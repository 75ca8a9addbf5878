// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cache is closed and opened, and the data path left, for whoever drives the core.

use super::Core;
use crate::aside::CLOSED_LEVEL;
use crate::hours::Word;
use crate::lease;
use crate::outside::{DataPath, Machine, Result};
use crate::stop::reset_translated;

impl<P: DataPath, M: Machine> Core<P, M> {
    /// Keeps a level of leaving out, 0 to 3; none: decides it again, up to 2. At 3 the cache is closed: that takes a
    /// while, and so does the way back.
    pub fn pin_aside(&mut self, level: Option<u8>) {
        let now = self.machine.monotonic_ns();
        self.hours.forget();
        self.closing
            .want(&self.path, level == Some(CLOSED_LEVEL), false);
        self.filling.aside_mut().pin(&self.path, level, now);
        self.next_tick_ns = now;
    }

    /// Once a second: closes the cache for hours, where that is allowed, or opens it again.
    pub(super) fn look_at_hours(&mut self, now: u64) {
        if !self.detach.is_running() {
            return;
        }
        let aside = self.filling.aside_mut();
        if let Some(word) = self.hours.second(aside.shown(), now) {
            aside.obey(&self.path, word, now);
            self.closing.want(&self.path, word == Word::Close, true);
        }
    }

    /// Why nothing is answered, if that is because the cache is closed.
    #[must_use]
    pub const fn closed(&self) -> Option<&'static str> {
        self.closing.reason()
    }

    /// Whether answers may be given as far as the operator is concerned.
    pub(super) fn may_answer(&self) -> bool {
        self.detach.is_running() && self.closing.is_open()
    }

    /// Whether a connection to Redis is made, and kept.
    pub(super) fn may_connect(&self) -> bool {
        self.detach.is_running() && self.closing.wants_feed()
    }

    /// Goes on with closing or opening the cache. A detach is the end of both: it finds entries and words as they are.
    pub(super) fn close_or_open(&mut self, now: u64) -> Result<()> {
        if !self.detach.is_running() {
            return Ok(());
        }
        let (was_open, owes) = (self.closing.is_open(), self.owes());
        let hangs_up = self.closing.tick(&self.path, owes, now)?;
        if was_open && !self.closing.is_open() {
            self.writes.gate().shut(&self.path);
            self.connections.take_nobody_in(now);
        }
        if hangs_up && let Some(reason) = self.closing.reason() {
            self.hang_up(reason);
        }
        Ok(())
    }

    /// The last act before another daemon takes over: nothing is answered in between. What is
    /// attached stays.
    pub fn hand_over(&mut self) {
        self.writes.gate().shut(&self.path);
        lease::end(&self.path);
    }

    /// Stops answering; with `force` resets what still needs translation and leaves at once.
    ///
    /// # Errors
    /// As [`Self::turn`].
    pub fn stop(&mut self, force: bool) -> Result<()> {
        self.writes.gate().shut(&self.path);
        self.detach.begin(&self.path, self.machine.monotonic_ns());
        if force {
            reset_translated(&self.path.conn_views(), |pair, cookie| {
                self.machine.destroy(pair, cookie)
            })?;
            self.detach.insist();
            self.leave_if_insisted(self.machine.monotonic_ns());
            return Ok(());
        }
        self.connections.begin_anew();
        let done = self.sweep();
        self.outlive(done)
    }

    /// Leaves when fills are done and a whole sweep, which began at that time, found nothing to
    /// translate.
    pub(super) fn leave_if_unneeded(&mut self, over: Option<u64>) {
        let Some(swept_ns) = over.filter(|_| !self.detach.is_running()) else {
            return;
        };
        let now = self.machine.monotonic_ns();
        if !self.has_paid(now) {
            return;
        }
        if self.detach.may_hang_up(now, self.fills_in_flight()) && self.link.give_up(now) {
            self.watch.no_feed("detaching");
        }
        if self.link.feed().is_none() {
            let translated = self.connections.report().translated;
            self.detach.leave_if_unneeded(swept_ns, translated);
        }
    }
}
