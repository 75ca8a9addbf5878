// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps a log from being filled by what says each second why it does not work, or works every other second.

use std::time::{Duration, Instant};

/// Bad news is said at once, and from then on so often, whatever it is by then.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// What has worked for so long works again.
const CALM: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Default)]
pub(crate) struct Teller {
    /// When it last did not work.
    bad: Option<Instant>,
    /// Whether bad news was said, and when it last was; none: nothing was said.
    said: Option<(bool, Instant)>,
}

impl Teller {
    /// Whether it is to be said now.
    pub(crate) fn may_say(&mut self, is_bad: bool, now: Instant) -> bool {
        let since = |at: Instant| now.duration_since(at);
        if is_bad {
            self.bad = Some(now);
        } else if self.bad.is_some_and(|bad| since(bad) < CALM) {
            return false;
        }
        let is_due = match self.said {
            Some((true, at)) if is_bad => since(at) >= SAY_AGAIN,
            Some((was_bad, _)) => was_bad != is_bad,
            None => true,
        };
        if is_due {
            self.said = Some((is_bad, now));
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_news_is_said_at_once_and_then_each_minute_and_good_news_when_it_lasts() {
        let begun = Instant::now();
        let mut teller = Teller::default();
        let mut said = Vec::new();
        // It fails from 10 s on, and works in between every other second; from 140 s on it works.
        for second in 0..200 {
            let is_bad = (10..140).contains(&second) && second % 2 == 0;
            if teller.may_say(is_bad, begun + Duration::from_secs(second)) {
                said.push((second, is_bad));
            }
        }
        let wanted = [
            (0, false),
            (10, true),
            (70, true),
            (130, true),
            (143, false),
        ];
        assert_eq!(said, wanted);
    }
}
