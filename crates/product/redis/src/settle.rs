// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settling: the fence that a command with unknown keys has closed opens when all that Redis reports
//! of it is handled, and the cache is kept (`bpf/cache/cache.h`, C10).
//!
//! Invariants:
//! 1. The count of answered shares is read before the PING is queued. Redis queues a command's
//!    reports on the feed no later than it lets the command's reply go (`beforeSleep`, Redis
//!    src/server.c): so they all stand before this PING's answer.
//! 2. Only a `+PONG` settles, for the same reasons as only that renews the lease: before it pushes
//!    and the calls of what pushes nothing (SWAPDB) were taken into account.
//! 3. Where Redis lets replies go before it queues reports, the cache is emptied first.

use std::io::{Read, Write};

use crate::clock::MS;
use crate::feed::Feed;
use crate::outside::{DataPath, Result};

/// Between two PINGs for this: INFO costs Redis 15 us, so under a storm of scripts one and a half
/// per cent of its time.
const PAUSE_NS: u64 = MS;

/// What was asked for.
#[derive(Debug, Default)]
pub(crate) struct Settling {
    next_ns: u64,
    /// Answered shares of the fence that the last PING noted.
    asked: u64,
}

impl Settling {
    /// Whether shares wait for which no PING was sent.
    pub(crate) fn wants(&self, path: &impl DataPath) -> bool {
        let answered = path.fence_answered();
        answered != path.fence_settled() && answered != self.asked
    }

    /// When a PING for them may be sent.
    pub(crate) const fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Whether a PING for waiting shares is under way: its answer is read at once.
    pub(crate) fn is_under_way(&self, path: &impl DataPath) -> bool {
        self.asked > path.fence_settled()
    }

    /// Sends a PING, which settles what is answered by now.
    pub(crate) fn ping<S: Read + Write>(
        &mut self,
        path: &impl DataPath,
        feed: &mut Feed<S>,
        now: u64,
    ) {
        self.asked = path.fence_answered();
        feed.ping(now, self.asked);
    }

    /// Such a PING was sent for these shares alone.
    pub(crate) const fn rest(&mut self, now: u64) {
        self.next_ns = now + PAUSE_NS;
    }

    /// The feed is gone, and all PINGs with it.
    pub(crate) const fn forget(&mut self) {
        self.asked = 0;
    }
}

/// `+PONG` came: all reports of before are handled. False if nothing waited for it.
pub(crate) fn settle(path: &impl DataPath, answered: u64, replies_early: bool) -> Result<bool> {
    if answered <= path.fence_settled() {
        return Ok(false);
    }
    if replies_early {
        path.clear()?;
    }
    path.settle(answered)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doubles::{Pipe, Recorder};

    #[test]
    fn shares_are_asked_for_once_and_given_back_up_to_what_was_noted() {
        let (mut settling, path) = (Settling::default(), Recorder::default());
        let mut feed = Feed::new(Pipe::default(), "test", None).unwrap();
        assert!(!settling.wants(&path));
        path.set(|control| (control.fence, control.fence_answered) = (3, 2));
        assert!(settling.wants(&path) && !settling.is_under_way(&path));
        settling.ping(&path, &mut feed, 0);
        assert!(!settling.wants(&path) && settling.is_under_way(&path));
        path.set(|control| control.fence_answered = 3);
        assert!(settling.wants(&path), "another one");
        assert_eq!(settle(&path, 2, false).ok(), Some(true));
        assert_eq!(path.take_log(), ["settle 2"]);
        assert!(!settling.is_under_way(&path));
        assert_eq!(settle(&path, 2, false).ok(), Some(false), "again");
        assert_eq!(settle(&path, 3, true).ok(), Some(true));
        assert_eq!(path.take_log(), ["clear", "settle 3"]);
    }
}
