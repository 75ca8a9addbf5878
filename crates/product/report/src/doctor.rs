// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb doctor --json`.

use serde::{Deserialize, Serialize};

/// What a finding means for a boost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Fine,
    /// It could not be looked at: nothing is known of it.
    Unknown,
    /// A boost works, but slower or for fewer clients than it could.
    Warning,
    /// A boost would be refused, or answer nothing.
    Error,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What it means.
    pub level: Level,
    /// Of what: `kernel`, `privilege`, a device's name, `redis`, `firewall`.
    pub subject: String,
    /// What was found, and what to do about it.
    pub text: String,
}

/// All findings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doctor {
    /// How many hinder a boost.
    pub errors: usize,
    /// The findings, in the order in which they are to be read.
    pub findings: Vec<Finding>,
    /// How many could not be looked at.
    #[serde(default)]
    pub unknown: usize,
    /// How many make it slower or later.
    pub warnings: usize,
}
