// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The way to Redis: it is made, read and given up here; what is said on it is the feed's.

use std::io;

use erb_abi::Logs;

use crate::clock::MS;
use crate::drain::Drain;
use crate::expect::Event;
use crate::feed::Feed;
use crate::outside::{DataPath, Machine};
use crate::reports::Reports;

/// Between handling invalidations while they flow: marks and lease cover what is in between, and
/// one wake-up then handles many.
const PUSH_PAUSE_NS: u64 = MS;

/// The same where Redis tells of what was read alone, which is little: nobody waits for it.
const OF_READ_PAUSE_NS: u64 = 5 * MS;

/// The same while answers to fills are awaited, whose burst rests as long as it took.
const ANSWER_PAUSE_NS: u64 = MS / 4;

/// Between attempts to reach Redis again.
const RETRY_NS: u64 = 200 * MS;

/// The same where Redis refused the user, or closed what it owed too long an answer: each attempt is a
/// line in its ACL LOG or log.
const REFUSED_RETRY_NS: u64 = 1000 * MS;

/// A feed that leaves PING unanswered, and says nothing else either, for this long is made anew.
const SILENCE_MAX_NS: u64 = 5000 * MS;

/// The feed, while there is one.
pub(crate) struct Link<M: Machine> {
    feed: Option<Feed<M::Stream>>,
    /// Feeds that were ready.
    made: u64,
    retry_ns: u64,
    /// When the feed last said anything.
    heard_ns: u64,
    /// When invalidations were handled last.
    pushed_ns: u64,
}

impl<M: Machine> Default for Link<M> {
    fn default() -> Self {
        Self {
            feed: None,
            made: 0,
            retry_ns: 0,
            heard_ns: 0,
            pushed_ns: 0,
        }
    }
}

impl<M: Machine> Link<M> {
    /// The feed, ready or not.
    pub(crate) const fn feed(&self) -> Option<&Feed<M::Stream>> {
        self.feed.as_ref()
    }

    /// The feed, if tracking is on.
    pub(crate) fn ready(&mut self) -> Option<&mut Feed<M::Stream>> {
        self.feed.as_mut().filter(|feed| feed.is_ready())
    }

    /// Whether tracking is on.
    pub(crate) fn is_up(&self) -> bool {
        self.feed.as_ref().is_some_and(Feed::is_ready)
    }

    /// Whether a PING may be sent.
    pub(crate) fn may_ping(&self) -> bool {
        self.feed.as_ref().is_some_and(Feed::may_ping)
    }

    /// Feeds that were ready so far.
    pub(crate) const fn made(&self) -> u64 {
        self.made
    }

    /// Tracking is on: what it tells may come gathered.
    pub(crate) fn made_ready(&mut self, machine: &M) {
        self.made += 1;
        if let Some(feed) = &self.feed {
            machine.gather(feed.stream());
        }
    }

    /// Connects to Redis, if that is due.
    ///
    /// # Errors
    /// Why it cannot be reached, for people.
    pub(crate) fn connect(&mut self, machine: &mut M, name: &str, now: u64) -> Result<(), String> {
        if self.feed.is_some() || now < self.retry_ns {
            return Ok(());
        }
        self.retry_ns = now + RETRY_NS;
        let credentials = machine.credentials().map_err(|error| error.to_string())?;
        let feed = machine
            .connect()
            .and_then(|stream| Feed::new(stream, name, credentials.as_ref()))
            .map_err(|error| {
                format!("Redis cannot be reached: {error}; the daemon keeps trying")
            })?;
        self.feed = Some(feed);
        Ok(())
    }

    /// Whether Redis leaves PING unanswered. A long answer to another question that is on its way is
    /// no silence.
    pub(crate) fn is_silent(&self, now: u64) -> bool {
        let oldest = self.feed.as_ref().and_then(Feed::oldest_ping_ns);
        oldest.is_some_and(|sent| now > sent.max(self.heard_ns) + SILENCE_MAX_NS)
    }

    /// Gives it up; false if there was none. The next attempt waits.
    pub(crate) fn give_up(&mut self, now: u64) -> bool {
        self.retry_ns = now + RETRY_NS;
        self.feed.take().is_some()
    }

    /// The same because of this error, since which so much time has passed.
    pub(crate) fn wait_if_refused(&mut self, error: &io::Error, now: u64) {
        let refused = [
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::QuotaExceeded,
        ];
        if refused.contains(&error.kind()) {
            self.retry_ns = now + REFUSED_RETRY_NS;
        }
    }

    /// Until when reading waits for more; shorter while an answer is awaited.
    pub(crate) fn paused_until_ns(&self, is_awaited: bool) -> u64 {
        let reports = self.feed.as_ref().map(Feed::reports);
        let pause = match reports {
            Some(Reports::OfRead) => OF_READ_PAUSE_NS,
            _ if is_awaited => ANSWER_PAUSE_NS,
            _ => PUSH_PAUSE_NS,
        };
        self.pushed_ns + pause
    }

    /// Invalidations were handled.
    pub(crate) const fn pause(&mut self, now: u64) {
        self.pushed_ns = now;
    }

    /// Reads what Redis sent.
    ///
    /// # Errors
    /// Why the feed has ended.
    pub(crate) fn read(
        &mut self,
        path: &impl DataPath,
        machine: &M,
        drain: Option<&mut Drain<Logs>>,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        let Some(feed) = &mut self.feed else {
            return Ok(());
        };
        let before = feed.received();
        let done = feed.handle_input(path, drain, machine.monotonic_ns(), events);
        if feed.received() != before {
            // Behind it: what the daemon needs to read it is not Redis's silence.
            self.heard_ns = machine.monotonic_ns();
        }
        done
    }

    /// Writes what waits.
    ///
    /// # Errors
    /// Why the feed has ended.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.feed.as_mut().map_or(Ok(()), Feed::flush)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doubles::{Pipe, Recorder, Stand};

    #[test]
    fn it_is_tried_again_after_a_while_and_later_if_refused() {
        let (mut link, mut machine) = (Link::<Stand>::default(), Stand::default());
        let mut attempt = |link: &mut Link<Stand>, now_ms| {
            let end = link.connect(&mut machine, "test", now_ms * MS);
            (end.is_err(), machine.connects.get())
        };
        assert_eq!(attempt(&mut link, 1_000), (true, 1));
        assert_eq!(attempt(&mut link, 1_199), (false, 1));
        assert_eq!(attempt(&mut link, 1_200), (true, 2));
        assert!(!link.give_up(1_200 * MS), "there was none");
        link.wait_if_refused(&io::ErrorKind::ConnectionReset.into(), 1_200 * MS);
        assert_eq!(attempt(&mut link, 1_400), (true, 3));
        link.wait_if_refused(&io::ErrorKind::PermissionDenied.into(), 1_400 * MS);
        assert_eq!(attempt(&mut link, 2_399), (false, 3));
        assert_eq!(attempt(&mut link, 2_400), (true, 4));
    }

    #[test]
    fn silence_is_counted_from_what_was_heard_last() {
        let (mut link, mut machine) = (Link::<Stand>::default(), Stand::default());
        let redis = Pipe::default();
        machine.redis.replace(Some(redis.clone()));
        link.connect(&mut machine, "test", 0).unwrap();
        assert!(!link.is_silent(u64::MAX), "nothing was asked");
        link.feed.as_mut().unwrap().ping(0, 0);
        assert!(!link.is_silent(5_000 * MS) && link.is_silent(5_001 * MS));
        redis.say("$1000\r\n");
        machine.now_ns.set(4_000 * MS);
        let events = &mut Vec::new();
        link.read(&Recorder::default(), &machine, None, events)
            .unwrap();
        assert!(!link.is_silent(9_000 * MS) && link.is_silent(9_001 * MS));
        assert!(link.give_up(0) && !link.is_silent(u64::MAX));
    }
}
