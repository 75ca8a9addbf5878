// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Closing the cache for hours: where the operator allows it, a load that no cache helps gets Redis nearly alone.
//! `aside.rs` says what pays, `closing.rs` closes.
//!
//! Invariants:
//! 1. Nothing is closed without [`Settings::close_after_ns`], or against a level that was set by hand.
//! 2. It is closed only after so much time in which looks were left out, all in seconds that had requests, and in
//!    none of which level 0 or answered writes paid.
//! 3. While it is closed nothing is known of the load. So it is opened again, at first after as long as that, in the
//!    end after [`CLOSED_MAX_NS`], and never later, and closed again when a [`LOOK_SHARE`]th of that has shown no gain either.
//! 4. What closed it stands in the control block: who takes over opens it again, and not what an operator has closed.
//!
//! [`Settings::close_after_ns`]: crate::Settings::close_after_ns

use crate::clock::SECOND_NS;

/// No closure by itself lasts longer.
const CLOSED_MAX_NS: u64 = 3600 * SECOND_NS;
/// Of the patience, what a look behind a closure gets. Of all time it takes a tenth at first and a hundredth in the
/// end: with a quarter of Redis's speed lost meanwhile that is less than 3 %, and less than 1 %.
const LOOK_SHARE: u64 = 20;
/// And at least so long: a cold cache of a few keys warms up in that.
const LOOK_MIN_NS: u64 = 5 * SECOND_NS;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Close,
    Open,
}

/// What a second has shown ([`crate::aside`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    /// Looks are left out by the controller's own decision, and there were requests.
    pub(crate) is_lost: bool,
    /// Level 0 pays, or answered writes do.
    pub(crate) pays: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Hours {
    /// None: it is not allowed.
    patience_ns: Option<u64>,
    lost_ns: u64,
    /// Nothing has paid since it was opened.
    in_vain: bool,
    closed: Option<u64>,
    closed_for_ns: u64,
}

impl Hours {
    /// What is closed already, by a former daemon's own decision, is opened in time.
    pub(crate) fn new(patience_ns: Option<u64>, is_closed: bool, now: u64) -> Self {
        Self {
            patience_ns,
            lost_ns: 0,
            in_vain: is_closed,
            closed: is_closed.then_some(now),
            closed_for_ns: patience_ns.unwrap_or(0).min(CLOSED_MAX_NS),
        }
    }

    /// The operator has said something else.
    pub(crate) fn forget(&mut self) {
        *self = Self::new(self.patience_ns, false, 0);
    }

    /// Once a second.
    pub(crate) fn second(&mut self, shown: Shown, now: u64) -> Option<Word> {
        if let Some(since_ns) = self.closed {
            if now < since_ns + self.closed_for_ns {
                return None;
            }
            (self.closed, self.lost_ns, self.in_vain) = (None, 0, true);
            self.closed_for_ns = (2 * self.closed_for_ns).min(CLOSED_MAX_NS);
            return Some(Word::Open);
        }
        let patience_ns = self.patience_ns?;
        if shown.pays {
            self.forget();
        } else if shown.is_lost {
            self.lost_ns += SECOND_NS;
        }
        let bound_ns = match self.in_vain {
            true => (patience_ns / LOOK_SHARE).max(LOOK_MIN_NS),
            false => patience_ns,
        };
        if self.lost_ns < bound_ns {
            return None;
        }
        self.closed = Some(now);
        Some(Word::Close)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: Shown = Shown {
        is_lost: true,
        pays: false,
    };
    const PAYS: Shown = Shown {
        is_lost: false,
        pays: true,
    };
    const NOTHING: Shown = Shown {
        is_lost: false,
        pays: false,
    };

    struct Player {
        hours: Hours,
        second: u64,
    }

    impl Player {
        fn new(patience: u64) -> Self {
            Self {
                hours: Hours::new(Some(patience * SECOND_NS), false, 0),
                second: 0,
            }
        }

        fn second(&mut self, shown: Shown) -> Option<Word> {
            self.second += 1;
            self.hours.second(shown, self.second * SECOND_NS)
        }

        /// In how many such seconds it says this; nothing else before.
        fn says(&mut self, word: Word, shown: Shown) -> u64 {
            for second in 1..100_000 {
                if let Some(said) = self.second(shown) {
                    assert_eq!(said, word);
                    return second;
                }
            }
            panic!("it never says {word:?}");
        }
    }

    #[test]
    fn nothing_is_closed_that_nobody_allowed() {
        let mut hours = Hours::new(None, false, 0);
        for second in 0..10_000 {
            assert_eq!(hours.second(LOST, second * SECOND_NS), None);
        }
    }

    #[test]
    fn it_is_closed_after_the_patience_and_opened_to_look_ever_less_often() {
        let mut player = Player::new(600);
        assert_eq!(player.says(Word::Close, LOST), 600);
        let mut open = 0;
        for closed in [600, 1200, 2400, 3600, 3600] {
            assert_eq!(player.says(Word::Open, NOTHING), closed);
            open = player.says(Word::Close, LOST);
        }
        assert_eq!(open, 30);
    }

    #[test]
    fn seconds_without_requests_say_nothing_and_one_that_paid_begins_it_anew() {
        let mut player = Player::new(100);
        for _ in 0..50 {
            assert_eq!((player.second(LOST), player.second(NOTHING)), (None, None));
        }
        player.second(PAYS);
        assert_eq!(player.says(Word::Close, LOST), 100);
        player.says(Word::Open, NOTHING);
        // What pays behind a closure has the whole patience again, and the first length.
        player.second(PAYS);
        assert_eq!(player.says(Word::Close, LOST), 100);
        assert_eq!(player.says(Word::Open, NOTHING), 100);
    }

    #[test]
    fn much_patience_is_kept() {
        let mut player = Player::new(10_000);
        assert_eq!(player.says(Word::Close, LOST), 10_000);
        assert_eq!(player.says(Word::Open, NOTHING), 3600);
        assert_eq!(player.says(Word::Close, LOST), 500);
        assert_eq!(player.says(Word::Open, NOTHING), 3600);
    }

    #[test]
    fn what_a_former_daemon_closed_is_opened_and_by_who_may_not_close_at_once() {
        let mut hours = Hours::new(Some(60 * SECOND_NS), true, SECOND_NS);
        assert_eq!(hours.second(NOTHING, 60 * SECOND_NS), None);
        assert_eq!(hours.second(NOTHING, 61 * SECOND_NS), Some(Word::Open));
        let mut hours = Hours::new(None, true, SECOND_NS);
        assert_eq!(hours.second(NOTHING, SECOND_NS), Some(Word::Open));
        hours.forget();
        assert_eq!(hours.second(LOST, 2 * SECOND_NS), None);
    }
}
