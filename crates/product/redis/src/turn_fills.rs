// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is looked up and filled, for whoever drives the core.

use super::Core;
use crate::aside::AsideState;
use crate::feed::Feed;
use crate::outside::{DataPath, Machine};
use crate::reports::Reports;

impl<P: DataPath, M: Machine> Core<P, M> {
    /// Fill transactions under way.
    #[must_use]
    pub fn fills_in_flight(&self) -> usize {
        self.link.feed().map_or(0, Feed::fills_in_flight)
    }

    /// Keys waiting to be filled.
    #[must_use]
    pub fn fills_waiting(&self) -> usize {
        self.filling.fills().waiting()
    }

    /// Keys given to [`Self::fill`] that are not done yet.
    #[must_use]
    pub fn named_left(&self) -> usize {
        self.filling.fills().named_left()
    }

    /// Keys filled so far, and keys given to [`Self::fill`] that could not be filled.
    #[must_use]
    pub const fn fill_counts(&self) -> (u64, u64) {
        self.filling.fills().counts()
    }

    /// Whether what does not pay is left out.
    #[must_use]
    pub const fn aside(&self) -> &AsideState {
        self.filling.aside().state()
    }

    /// Of which changes Redis tells the feed.
    #[must_use]
    pub fn reports(&self) -> Reports {
        self.link.feed().map_or(Reports::All, Feed::reports)
    }

    /// Keeps it so; none: decides it again.
    pub const fn pin_reports(&mut self, to: Option<Reports>) {
        self.filling.reports_mut().pin(to);
    }

    pub(super) fn choose_reports(&mut self) {
        let all = self.path.outstanding() || self.writes.wants_all_reports();
        self.filling.reports_mut().see(all);
        if let Some(feed) = self.link.ready() {
            feed.ask_reports(self.filling.reports());
        }
    }
}
