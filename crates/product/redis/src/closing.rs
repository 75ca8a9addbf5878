// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cache is closed, and opened again, by an operator's word, or by what he allowed (`hours.rs`): level 3 of stepping
//! aside. A load that no cache helps then pays for next to nothing: nobody reads its requests, and Redis reports
//! nothing to anybody.
//!
//! Invariants:
//! 1. First nothing is answered and nobody taken in ([`abi::STOPPING_CLOSING`]), and the lease ends. Requests pass
//!    unread ([`abi::STOPPING_UNREAD`]) only when whatever was being answered at that moment is done, all that was
//!    answered in Redis's place is in Redis, and the cache is empty.
//! 2. Connections that need translation go on as in a detach: they are read, counted and translated. Entries of all
//!    others go (`bpf/splice/closed.h`, L6). When there is none any more no packet is looked at
//!    ([`abi::STOPPING_ALL_UNREAD`]).
//! 3. Requests are read again only behind a whole sweep that has found no entry but of connections that are
//!    translated, and that began when they passed unread.
//! 4. Until what passed unread is in TCP, for [`UNREAD_NS`] behind that, new connections count as older than
//!    ERB, and there is no feed. The next one empties the cache and reads Redis's state before its first lease.
//! 5. The word stands in the control block: who takes over goes on with it.

use erb_abi::{self as abi, SweepReport};

use crate::clock::MS;
use crate::lease;
use crate::outside::{DataPath, Result};

/// What was being answered is done by then; the data path is asked for it besides.
const SETTLE_NS: u64 = 20 * MS;

/// What passed unread is in TCP by then.
const UNREAD_NS: u64 = abi::UNSEEN_NS as u64;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// At work.
    Open,
    /// Nothing is answered any more, since then; requests are still read.
    Closing { since_ns: u64 },
    /// They are not, since then.
    Closed { since_ns: u64, is_swept: bool },
    /// They are again; there is a feed from then on.
    Opening { from_ns: u64 },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Closing {
    stage: Stage,
    is_wanted: bool,
    by_itself: bool,
}

impl Closing {
    /// Goes on with what a former daemon was told.
    pub(crate) fn take_over(path: &impl DataPath, now: u64) -> Self {
        let stage = match path.stopping() {
            abi::STOPPING_CLOSING => Stage::Closing { since_ns: now },
            abi::STOPPING_UNREAD | abi::STOPPING_ALL_UNREAD => Stage::Closed {
                since_ns: now,
                is_swept: false,
            },
            _ => {
                path.set_stopping(abi::STOPPING_NOT);
                Stage::Open
            }
        };
        Self {
            stage,
            is_wanted: stage != Stage::Open,
            by_itself: path.closed_by_itself() == 1,
        }
    }

    /// The operator's word, or what he allowed.
    pub(crate) fn want(&mut self, path: &impl DataPath, is_closed: bool, by_itself: bool) {
        path.set_closed_by_itself(u32::from(by_itself));
        (self.is_wanted, self.by_itself) = (is_closed, by_itself);
    }

    /// Whether it is to be closed.
    pub(crate) const fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Whether nobody has said so but what the operator allowed.
    pub(crate) const fn is_by_itself(&self) -> bool {
        self.by_itself
    }

    /// Whether anything may be answered.
    pub(crate) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Whether there is to be a connection to Redis. While it closes: what was answered in Redis's place has to get
    /// there.
    pub(crate) const fn wants_feed(&self) -> bool {
        matches!(self.stage, Stage::Open | Stage::Closing { .. })
    }

    /// Whether sweeps are in haste.
    pub(crate) const fn is_in_haste(&self) -> bool {
        matches!(
            self.stage,
            Stage::Closing { .. }
                | Stage::Closed {
                    is_swept: false,
                    ..
                }
        )
    }

    /// Whether nothing is left to do, until another word.
    pub(crate) const fn may_rest(&self) -> bool {
        self.is_wanted && matches!(self.stage, Stage::Closed { is_swept: true, .. })
    }

    /// Why nothing is answered.
    pub(crate) const fn reason(&self) -> Option<&'static str> {
        Some(match (self.stage, self.is_wanted) {
            (Stage::Open, _) => return None,
            (_, true) if self.by_itself => {
                "the cache is closed, as nothing has paid for as long as --close-after says; `erb aside auto` opens it"
            }
            (_, false) if self.by_itself => "the cache is being opened, to look whether it pays",
            (Stage::Closing { .. }, true) => {
                "the cache is being closed by hand, as soon as all that was answered is in Redis"
            }
            (Stage::Closed { .. }, true) => {
                "the cache is closed by hand, and requests are not read; `erb aside auto` opens it"
            }
            _ => "the cache was closed by hand, and is being opened",
        })
    }

    /// Each tick; `owes`: something that was answered is not in Redis. True: the feed is to be given up.
    pub(crate) fn tick(&mut self, path: &impl DataPath, owes: bool, now: u64) -> Result<bool> {
        let before = self.stage;
        self.stage = match (before, self.is_wanted) {
            (Stage::Open | Stage::Opening { .. }, true) => {
                path.set_stopping(abi::STOPPING_CLOSING);
                path.set_admit(0);
                lease::end(path);
                tracing::info!("the cache is being closed");
                Stage::Closing { since_ns: now }
            }
            (Stage::Closing { since_ns }, true) if now > since_ns + SETTLE_NS && !owes => {
                close(path, now)?.unwrap_or(before)
            }
            (Stage::Closing { .. }, false) | (Stage::Closed { is_swept: true, .. }, false) => {
                path.set_stopping(abi::STOPPING_NOT);
                tracing::info!("requests are read again");
                Stage::Opening {
                    from_ns: now + UNREAD_NS,
                }
            }
            (Stage::Opening { from_ns }, false) if now >= from_ns => {
                tracing::info!("the cache is open");
                Stage::Open
            }
            _ => before,
        };
        Ok(self.stage != before && !self.wants_feed())
    }

    /// A whole sweep that began then found this.
    pub(crate) fn swept(&mut self, path: &impl DataPath, began_ns: u64, found: &SweepReport) {
        let Stage::Closed { since_ns, is_swept } = &mut self.stage else {
            return;
        };
        if began_ns <= *since_ns || found.conns != found.translated {
            return;
        }
        *is_swept = true;
        if found.conns == 0 {
            path.set_stopping(abi::STOPPING_ALL_UNREAD);
        }
    }
}

/// The last step; none if what was being answered meanwhile is to get to Redis first.
fn close(path: &impl DataPath, now: u64) -> Result<Option<Stage>> {
    path.wait_for_programs()?;
    if path.outstanding() {
        return Ok(None);
    }
    path.clear()?;
    path.set_stopping(abi::STOPPING_UNREAD);
    tracing::info!("the cache is closed: requests are not read");
    Ok(Some(Stage::Closed {
        since_ns: now,
        is_swept: false,
    }))
}

#[cfg(test)]
mod tests {
    use erb_abi::ControlBlock as _;

    use super::*;
    use crate::doubles::Recorder;

    fn found(conns: u32, translated: u32) -> SweepReport {
        SweepReport {
            conns,
            translated,
            ..SweepReport::default()
        }
    }

    #[test]
    fn requests_pass_unread_when_all_that_was_answered_is_done_and_in_redis() {
        let path = Recorder::default();
        path.set_serving(1);
        path.set_admit(1);
        path.set_lease_until_ns(9);
        let mut closing = Closing::take_over(&path, 0);
        assert!(!closing.tick(&path, false, 1000 * MS).unwrap() && closing.is_open());
        closing.want(&path, true, false);
        assert!(!closing.tick(&path, true, 1000 * MS).unwrap());
        assert_eq!(path.stopping(), abi::STOPPING_CLOSING);
        assert_eq!(
            (
                path.control().admit(),
                path.serving(),
                path.lease_until_ns()
            ),
            (0, 0, 0)
        );
        assert!(closing.wants_feed() && !closing.is_open());
        assert!(!closing.tick(&path, false, 1020 * MS).unwrap(), "too soon");
        assert!(
            !closing.tick(&path, true, 1021 * MS).unwrap(),
            "something is owed"
        );
        assert_eq!(path.stopping(), abi::STOPPING_CLOSING);
        assert!(
            closing.tick(&path, false, 1021 * MS).unwrap(),
            "the feed goes"
        );
        assert_eq!(path.stopping(), abi::STOPPING_UNREAD);
    }

    #[test]
    fn they_are_read_again_behind_a_sweep_that_found_none_but_translated_ones() {
        let path = Recorder::default();
        path.set_stopping(abi::STOPPING_UNREAD);
        let mut closing = Closing::take_over(&path, 1000 * MS);
        assert!(closing.is_wanted() && closing.is_in_haste());
        closing.want(&path, false, false);
        for (began, conns, translated) in [(1000, 0, 0), (1001, 2, 1)] {
            closing.swept(&path, began * MS, &found(conns, translated));
            assert!(!closing.tick(&path, false, 1100 * MS).unwrap());
            assert_eq!(path.stopping(), abi::STOPPING_UNREAD);
        }
        closing.swept(&path, 1001 * MS, &found(1, 1));
        assert_eq!(
            path.stopping(),
            abi::STOPPING_UNREAD,
            "one needs translation"
        );
        assert!(closing.tick(&path, false, 1200 * MS).unwrap());
        assert_eq!(path.stopping(), abi::STOPPING_NOT);
        assert!(!closing.tick(&path, false, 2199 * MS).unwrap());
        assert!(!closing.is_open() && !closing.wants_feed());
        assert!(!closing.tick(&path, false, 2200 * MS).unwrap() && closing.is_open());
    }

    #[test]
    fn no_packet_is_looked_at_when_nobody_needs_translation() {
        let path = Recorder::default();
        path.set_stopping(abi::STOPPING_UNREAD);
        let mut closing = Closing::take_over(&path, 1000 * MS);
        closing.swept(&path, 1001 * MS, &found(0, 0));
        assert_eq!(path.stopping(), abi::STOPPING_ALL_UNREAD);
        closing.want(&path, false, false);
        closing.tick(&path, false, 1100 * MS).unwrap();
        closing.want(&path, true, false);
        closing.tick(&path, false, 1101 * MS).unwrap();
        assert_eq!(path.stopping(), abi::STOPPING_CLOSING, "it begins anew");
    }
}
