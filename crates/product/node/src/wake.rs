// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Wakes the loop out of epoll, from other threads.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Result, system};

/// Wakes the loop.
#[derive(Clone)]
pub(crate) struct Wake(Arc<EventFd>);

impl Wake {
    pub(crate) fn new() -> Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let event = event.map_err(|error| system("no eventfd is to be had")(error.into()))?;
        Ok(Self(Arc::new(event)))
    }

    pub(crate) fn wake(&self) {
        // It fails only if it has been woken 2^64 times without looking.
        let _ = self.0.write(1);
    }

    /// The loop has been woken.
    pub(crate) fn woken(&self) {
        // Nothing to read: another event has woken it.
        let _ = self.0.read();
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
