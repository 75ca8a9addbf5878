// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb doctor`: everything that `erb boost` checks, all of it instead of up to the first failure,
//! and what makes a boost slower than it need be. Nothing is changed.

mod devices;
mod firewall;
mod kernel;
mod redis;

use serde::Serialize;

use crate::addr::RedisAddr;
use crate::credentials::CredentialSource;
use crate::{Error, Result};

/// What a finding means for a boost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Fine,
    /// A boost works, but slower or for fewer clients than it could.
    Warning,
    /// A boost would be refused, or answer nothing.
    Error,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// What it means.
    pub level: Level,
    /// Of what: `kernel`, `privilege`, a device's name, `redis`, `firewall`.
    pub subject: String,
    /// What was found, and what to do about it.
    pub text: String,
    /// The error with which `erb boost` would end.
    #[serde(skip)]
    pub cause: Option<Error>,
}

/// What is looked at.
#[derive(Clone, Debug)]
pub struct Patient {
    /// Devices; none: all but `lo`.
    pub devices: Vec<String>,
    /// Address of Redis, as for a boost.
    pub redis: RedisAddr,
    /// As whom to speak to it.
    pub credentials: CredentialSource,
    /// Redis's port, if the address does not say it.
    pub port: Option<u16>,
}

/// The findings, in the order in which they are to be read.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, level: Level, subject: &str, text: impl Into<String>) {
        self.0.push(Finding {
            level,
            subject: subject.to_owned(),
            text: text.into(),
            cause: None,
        });
    }

    pub(crate) fn fine(&mut self, subject: &str, text: impl Into<String>) {
        self.add(Level::Fine, subject, text);
    }

    pub(crate) fn warn(&mut self, subject: &str, text: impl Into<String>) {
        self.add(Level::Warning, subject, text);
    }

    pub(crate) fn bad(&mut self, subject: &str, text: impl Into<String>) {
        self.add(Level::Error, subject, text);
    }

    /// What a check of the preflight says; its value if it is content.
    pub(crate) fn checked<T>(&mut self, subject: &str, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.0.push(Finding {
                    level: Level::Error,
                    subject: subject.to_owned(),
                    text: error.to_string(),
                    cause: Some(error),
                });
                None
            }
        }
    }
}

/// Looks at everything.
#[must_use]
pub fn examine(patient: &Patient) -> Vec<Finding> {
    let mut findings = Findings::default();
    kernel::examine(&mut findings);
    devices::examine(&mut findings, patient);
    redis::examine(&mut findings, patient);
    findings.0
}
