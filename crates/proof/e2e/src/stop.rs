// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ends what runs beside a test, also when an assertion fails: a scope waits for its threads.

use std::sync::atomic::{AtomicBool, Ordering};

/// Tells them to stop when it goes.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
