// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a connection sends zero-copy or copies. Pure: decided by what the kernel says of this
//! connection's own sends, never by names of devices.
//!
//! Invariants:
//! 1. Until the kernel has sent one send without a copy, at most [`TRIAL_SENDS`] are in flight zero-copy.
//! 2. [`TRIAL_SENDS`] copied sends in a row end zero-copy for [`ASK_AGAIN_BYTES`].

/// So many sends in a row that the kernel has copied say that it will copy the next.
pub const TRIAL_SENDS: u32 = 8;
/// The way is tried again after so many bytes: devices, packet sockets and routes come and go.
pub const ASK_AGAIN_BYTES: u64 = 64 << 20;

/// Why bytes were copied by us: sent from the mapping without `MSG_ZEROCOPY`, which is one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Reason {
    /// They were no range of a file, or fewer than a zero-copy send is worth.
    Small,
    /// The kernel copies what this connection sends: local peer, packet socket, device.
    KernelCopies,
    /// Too little memory may be pinned (`RLIMIT_MEMLOCK`), or `SO_ZEROCOPY` was refused.
    Refused,
    /// `ENOBUFS`: pinned memory or completions were exhausted at this moment.
    NoBuffers,
    /// The bound on pinned bytes, of the connection or of all, is reached.
    OverBound,
    /// The peer acknowledges slowly; what is pinned for it must be free within the deadline.
    SlowPeer,
    /// The first sends of the connection have not told yet whether the kernel copies.
    Trial,
    /// The guard does not hold the file or the socket: it has failed, or it has no descriptors left.
    Unguarded,
    /// The file can be read, and neither mapped nor sent from.
    Unmapped,
}

impl Reason {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Small,
        Self::KernelCopies,
        Self::Refused,
        Self::NoBuffers,
        Self::OverBound,
        Self::SlowPeer,
        Self::Trial,
        Self::Unguarded,
        Self::Unmapped,
    ];

    /// Its name in JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::KernelCopies => "kernel_copies",
            Self::Refused => "refused",
            Self::NoBuffers => "no_buffers",
            Self::OverBound => "over_bound",
            Self::SlowPeer => "slow_peer",
            Self::Trial => "trial",
            Self::Unguarded => "unguarded",
            Self::Unmapped => "unmapped",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing is known.
    Trial,
    /// The kernel has sent without a copy.
    Good,
    /// It copies, or refuses; so many bytes until the next trial.
    Copying { why: Reason, left_bytes: u64 },
}

/// What is known of one connection.
#[derive(Debug)]
pub struct Choice {
    state: State,
    copied_in_a_row: u32,
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            state: State::Trial,
            copied_in_a_row: 0,
        }
    }
}

impl Choice {
    /// Why the next send should copy, with so many sends in flight; none: send zero-copy.
    #[must_use]
    pub const fn copies(&self, in_flight: usize) -> Option<Reason> {
        match self.state {
            State::Trial if in_flight >= TRIAL_SENDS as usize => Some(Reason::Trial),
            State::Trial | State::Good => None,
            State::Copying { why, .. } => Some(why),
        }
    }

    /// A zero-copy send is done.
    pub const fn completed(&mut self, copied: bool) {
        if !copied {
            self.copied_in_a_row = 0;
            self.state = State::Good;
            return;
        }
        self.copied_in_a_row += 1;
        if self.copied_in_a_row >= TRIAL_SENDS {
            self.stop(Reason::KernelCopies);
        }
    }

    /// Zero-copy is no way for now.
    pub const fn stop(&mut self, why: Reason) {
        self.copied_in_a_row = 0;
        self.state = State::Copying {
            why,
            left_bytes: ASK_AGAIN_BYTES,
        };
    }

    /// So many bytes were copied for the reason that [`Choice::copies`] gave.
    pub const fn copied(&mut self, bytes: u64) {
        if let State::Copying { left_bytes, .. } = &mut self.state {
            *left_bytes = left_bytes.saturating_sub(bytes);
            if *left_bytes == 0 {
                self.state = State::Trial;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_copied_sends_end_it_and_64_mb_later_it_is_tried_again() {
        let mut choice = Choice::default();
        assert_eq!(choice.copies(0), None);
        assert_eq!(choice.copies(8), Some(Reason::Trial));
        (0..7).for_each(|_| choice.completed(true));
        assert_eq!(choice.copies(0), None);
        choice.completed(true);
        assert_eq!(choice.copies(0), Some(Reason::KernelCopies));
        choice.copied(ASK_AGAIN_BYTES - 1);
        assert_eq!(choice.copies(0), Some(Reason::KernelCopies));
        choice.copied(1);
        assert_eq!(choice.copies(0), None);
    }

    #[test]
    fn a_send_without_a_copy_is_believed_until_eight_in_a_row_were_copied() {
        let mut choice = Choice::default();
        choice.completed(false);
        assert_eq!(choice.copies(1000), None);
        for _ in 0..100 {
            (0..7).for_each(|_| choice.completed(true));
            choice.completed(false);
        }
        assert_eq!(choice.copies(1000), None);
        (0..8).for_each(|_| choice.completed(true));
        assert_eq!(choice.copies(0), Some(Reason::KernelCopies));
    }

    #[test]
    fn late_completions_do_not_prolong_the_copying() {
        let mut choice = Choice::default();
        choice.stop(Reason::Refused);
        assert_eq!(choice.copies(0), Some(Reason::Refused));
        choice.copied(ASK_AGAIN_BYTES);
        assert_eq!(choice.copies(0), None);
    }

    #[test]
    fn reasons_are_in_the_order_of_their_numbers() {
        for (index, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index, "{}", reason.name());
        }
    }
}
