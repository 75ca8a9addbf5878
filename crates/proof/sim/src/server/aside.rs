// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is left out moves: sets that are looked into, changes that Redis tells of, and all, by the operator's word.

use erb_abi::ControlBlock as _;
use erb_redis::Reports;

use crate::server::Server;
use crate::server::boost::UNSEEN_LAG_NS;
use crate::story::{Note, Place};

impl Server {
    /// Other sets are looked into and filled, as a daemon may say at any moment; until this one says
    /// what it wants again.
    pub fn step_aside(&self) {
        if let Some(path) = self.path.borrow().as_ref() {
            let mut random = self.inner.random.borrow_mut();
            let mut mask = || (1u32 << random.u8(0..4)) - 1;
            let (look, fill, vain) = (mask(), mask(), mask());
            path.set_look_at(random.u8(..));
            path.set_look_mask(look as u8);
            path.set_fill_mask(fill as u16);
            path.set_vain_mask(vain);
        }
    }

    /// The operator closes the cache or opens it; none: by chance, one or the other.
    pub fn close_or_open(&self, closes: Option<bool>) {
        let closes = closes.unwrap_or_else(|| self.inner.random.borrow_mut().bool());
        let is_told = self.boost.with(|core| {
            let is_news = closes == core.closed().is_none();
            if is_news {
                core.pin_aside(closes.then_some(3));
            }
            is_news
        });
        if is_told == Some(true) {
            let name = if closes {
                "closes the cache"
            } else {
                "opens the cache"
            };
            self.inner.coverage.borrow_mut().count("daemon", name);
            self.inner.tell(Place::Daemon, None, Note::Text(name));
            self.wake_daemon();
        }
    }

    /// Whether requests pass unread, or lately did.
    pub(super) fn was_closed(&self) -> bool {
        let path = self.path.borrow();
        let stopping = path.as_ref().map_or(0, |path| path.stopping());
        stopping >= erb_abi::STOPPING_UNREAD
            || self.inner.now() < self.boost.closed_at.get() + UNSEEN_LAG_NS
    }

    /// Redis is to tell the daemon of other changes than now.
    pub fn turn_reports(&self) {
        let to = self.boost.with(|core| {
            let to = match core.reports() {
                Reports::All => Reports::OfRead,
                Reports::OfRead => Reports::All,
            };
            core.pin_reports(Some(to));
            to
        });
        if let Some(to) = to {
            let name = format!("is told {to:?}");
            self.inner.coverage.borrow_mut().count("daemon", &name);
        }
    }
}
