// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The signals of a daemon. While it begins they wait until a step is done, as loading cannot be stopped half-way; then what
//! was changed is taken back. At work they ask it to detach.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::{Error, Result};

/// By it the `erb boost` that started a daemon in the background says that it was interrupted. At work it says nothing: what
/// was at work before stays so.
pub const WITHDRAW: Signal = Signal::SIGUSR1;

/// From here on they are taken one by one.
pub(crate) struct Signals {
    ends: SignalFd,
    withdraw: SignalFd,
}

impl Signals {
    /// For the calling thread, and those that it makes.
    pub(crate) fn take_over() -> Result<Self> {
        Ok(Self {
            ends: taken(&[Signal::SIGTERM, Signal::SIGINT])?,
            withdraw: taken(&[WITHDRAW])?,
        })
    }

    /// Whether one has come that ends a daemon.
    pub(crate) fn asks(&self) -> bool {
        came(&self.ends).is_some()
    }

    /// To wait for one that ends a daemon.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.ends.as_fd()
    }

    /// Between the steps of a beginning: refuses to go on.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if one has come.
    pub(crate) fn check(&self) -> Result<()> {
        match came(&self.ends).or_else(|| came(&self.withdraw)) {
            Some(number) => Err(Error::Interrupted(number)),
            None => Ok(()),
        }
    }
}

fn taken(signals: &[Signal]) -> Result<SignalFd> {
    let set: SigSet = signals.iter().copied().collect();
    set.thread_block()
        .and_then(|()| SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC))
        .map_err(|error| Error::io("could not take over signals")(io::Error::from(error)))
}

fn came(signals: &SignalFd) -> Option<u8> {
    let found = signals.read_signal().ok().flatten()?;
    u8::try_from(found.ssi_signo).ok()
}

#[cfg(test)]
mod tests {
    // It sends to the calling thread (raise(3)).
    use nix::sys::signal::raise;

    use super::*;

    #[test]
    fn a_signal_during_a_beginning_waits_until_the_step_is_done_and_is_told_once() {
        let signals = Signals::take_over().expect("signals");
        assert!(signals.check().is_ok() && !signals.asks());
        for signal in [Signal::SIGINT, Signal::SIGTERM, WITHDRAW] {
            raise(signal).expect("a signal");
            match signals.check() {
                Err(Error::Interrupted(number)) => assert_eq!(i32::from(number), signal as i32),
                other => panic!("{other:?}"),
            }
            assert!(signals.check().is_ok(), "{signal} was told");
        }
        raise(WITHDRAW).expect("a signal");
        assert!(!signals.asks(), "it does not end a daemon at work");
        raise(Signal::SIGTERM).expect("a signal");
        assert!(signals.asks());
    }
}
