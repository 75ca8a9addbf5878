// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where random bytes come from: whoever drives a connection brings them.

/// A source of bytes that nobody can guess.
pub trait Random {
    /// Fills all of it.
    fn fill(&mut self, bytes: &mut [u8]);
}
