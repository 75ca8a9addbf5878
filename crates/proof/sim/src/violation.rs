// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What went wrong, and how to see it again.

use std::fmt;

use crate::time::{Ns, show};

/// A broken rule. A run ends with its first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Short stable name of the check: equal for equal mistakes, which is what shrinking compares.
    pub check: &'static str,
    /// What was seen and what should have been.
    pub text: String,
    /// When.
    pub at: Ns,
}

impl Violation {
    /// A violation of `check` at `at`.
    #[must_use]
    pub fn new(check: &'static str, at: Ns, text: impl Into<String>) -> Self {
        Self {
            check,
            text: text.into(),
            at,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} at {}: {}", self.check, show(self.at), self.text)
    }
}

impl std::error::Error for Violation {}
