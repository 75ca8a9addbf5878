// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lease: until when ERB may answer, and its rest. While nobody asks for anything that could be
//! answered, it is left to end, so that neither Redis nor the daemon wake up twenty times a second
//! for it.
//!
//! Who asks during a rest is answered by Redis (the lease is over: refused, correct) and counted;
//! the next tick (100 ms, they are fewer in a rest) sees the count and asks for the lease again. So a
//! rest costs its first requests the fast path, for a tick and a round trip, and nothing else.

use erb_abi as abi;

use crate::clock::MS;
use crate::outside::{DataPath, Result};

/// The lease is kept up for this long after somebody asked for something, after the start and after
/// each look at the status: longer than the pauses of a client that is at work.
const AWAKE_NS: u64 = 5000 * MS;

/// Counts that move when the lease is of use: something was answered, was not answered because
/// there was no lease, or may be answered soon.
const ASKED: [abi::erb_stat; 4] = [
    abi::STAT_FAST_PACKET,
    abi::STAT_FAST_PACKET_TC,
    abi::STAT_REFUSE_LEASE,
    abi::STAT_CONN_CREATED,
];

/// Whether it is kept up.
#[derive(Debug)]
pub(crate) struct Lease {
    /// The counts, as read last.
    asked: [u64; ASKED.len()],
    awake_until_ns: u64,
}

impl Lease {
    /// Kept up for a while, for whoever comes.
    pub(crate) const fn new(now: u64) -> Self {
        Self {
            asked: [0; ASKED.len()],
            awake_until_ns: now + AWAKE_NS,
        }
    }

    /// Reads the counts; what moved keeps the lease up.
    pub(crate) fn look_who_asks(&mut self, path: &impl DataPath, now: u64) -> Result<()> {
        let mut asked = [0; ASKED.len()];
        for (place, stat) in asked.iter_mut().zip(ASKED) {
            *place = path.stat(stat)?;
        }
        if asked != self.asked {
            self.asked = asked;
            self.stay_awake(now);
        }
        Ok(())
    }

    pub(crate) const fn stay_awake(&mut self, now: u64) {
        self.awake_until_ns = now + AWAKE_NS;
    }

    /// Whether nobody has asked for long.
    pub(crate) const fn may_rest(&self, now: u64) -> bool {
        now >= self.awake_until_ns
    }

    /// Packets answered.
    pub(crate) const fn answered(&self) -> u64 {
        self.asked[0] + self.asked[1]
    }
}

/// A PING written then was answered.
pub(crate) fn renew(path: &impl DataPath, sent_ns: u64) {
    let until = sent_ns + u64::from(abi::LEASE_MS) * MS;
    if until > path.lease_until_ns() {
        path.set_lease_until_ns(until);
    }
}

/// Nothing is answered any more, at once.
pub(crate) fn end(path: &impl DataPath) {
    path.set_serving(0);
    path.set_lease_until_ns(0);
}

#[cfg(test)]
mod tests {
    use erb_abi::ControlBlock as _;

    use super::*;
    use crate::doubles::Recorder;

    #[test]
    fn it_is_kept_up_while_a_count_moves_and_for_five_seconds_more() {
        let (mut lease, path) = (Lease::new(0), Recorder::default());
        lease.look_who_asks(&path, 4999 * MS).unwrap();
        assert!(!lease.may_rest(4999 * MS) && lease.may_rest(5000 * MS));
        for (number, stat) in ASKED.into_iter().enumerate() {
            let now = (number as u64 + 1) * 10_000 * MS;
            path.stats.borrow_mut().insert(stat, 1);
            lease.look_who_asks(&path, now).unwrap();
            lease.look_who_asks(&path, now + 4999 * MS).unwrap();
            assert!(!lease.may_rest(now + 4999 * MS) && lease.may_rest(now + 5000 * MS));
        }
        assert_eq!(lease.answered(), 2);
    }

    #[test]
    fn it_is_never_shortened_but_ended() {
        let path = Recorder::default();
        path.set_serving(1);
        renew(&path, 50 * MS);
        renew(&path, 20 * MS);
        assert_eq!(path.lease_until_ns(), 150 * MS);
        end(&path);
        assert_eq!((path.lease_until_ns(), path.serving()), (0, 0));
    }
}
