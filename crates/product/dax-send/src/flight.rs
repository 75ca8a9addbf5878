// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A socket with the sends that the kernel still reads from.
//!
//! Invariant: a file that an open send reads from stays mapped, also when this is dropped with sends open.

use std::mem;
use std::time::Instant;

use crate::error::Error;
use crate::ledger::Ledger;
use crate::queue::Files;
use crate::sender::Counters;
use crate::socket::Wire;

/// What an open send needs until its completion.
#[derive(Debug)]
pub struct Hold {
    pub bytes: u64,
    pub pinned_bytes: u64,
    pub at: Instant,
    /// All files whose memory the send reads.
    pub _files: Files,
}

/// A socket with its open sends.
#[derive(Debug)]
pub struct Flight<W: Wire> {
    pub wire: W,
    pub ledger: Ledger<Hold>,
}

impl<W: Wire> Flight<W> {
    pub fn is_empty(&self) -> bool {
        self.ledger.is_empty()
    }

    /// Takes all completions that wait.
    pub fn reap(
        &mut self,
        counters: &Counters,
        mut each: impl FnMut(bool, u64),
    ) -> Result<(), Error> {
        while !self.ledger.is_empty() {
            let Some(done) = self.wire.completion().map_err(Error::Socket)? else {
                break;
            };
            self.ledger.complete(done, |hold| {
                counters.completed(hold.bytes, hold.pinned_bytes, done.copied);
                each(done.copied, hold.pinned_bytes);
            })?;
        }
        Ok(())
    }
}

impl<W: Wire> Drop for Flight<W> {
    fn drop(&mut self) {
        if self.ledger.is_empty() {
            return;
        }
        self.wire.stays_guarded();
        // The kernel may still read: the mappings stay for the rest of the process (L1, L4).
        mem::forget(mem::replace(&mut self.ledger, Ledger::new(0)));
    }
}
