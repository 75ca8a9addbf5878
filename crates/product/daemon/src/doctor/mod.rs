// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb doctor`: everything that `erb boost` checks, all of it instead of up to the first failure,
//! and what makes a boost slower than it need be. Nothing is changed.

mod devices;
mod firewall;
mod journal;
mod kernel;
mod redis;

use std::path::PathBuf;

use erb_report::{Finding, Level};

use crate::addr::RedisAddr;
use crate::credentials::CredentialSource;
use crate::{Error, Result};

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
    /// A journal's folder that is looked at besides those of boosts and the default ones.
    pub journal_folder: Option<PathBuf>,
}

/// The findings, in the order in which they are to be read.
#[derive(Debug, Default)]
pub struct Findings {
    /// What was found.
    pub told: Vec<Finding>,
    /// The error with which `erb boost` would end, if the first that hinders it is one.
    pub cause: Option<Error>,
}

impl Findings {
    /// How many are of this level.
    #[must_use]
    pub fn count(&self, level: Level) -> usize {
        self.told.iter().filter(|one| one.level == level).count()
    }

    fn add(&mut self, level: Level, subject: &str, text: impl Into<String>) {
        self.told.push(Finding {
            level,
            subject: subject.to_owned(),
            text: text.into(),
        });
    }

    pub(crate) fn fine(&mut self, subject: &str, text: impl Into<String>) {
        self.add(Level::Fine, subject, text);
    }

    pub(crate) fn unknown(&mut self, subject: &str, text: impl Into<String>) {
        self.add(Level::Unknown, subject, text);
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
                let is_first = self.count(Level::Error) == 0;
                self.bad(subject, error.to_string());
                self.cause = self.cause.take().or(is_first.then_some(error));
                None
            }
        }
    }
}

/// Looks at everything.
#[must_use]
pub fn examine(patient: &Patient) -> Findings {
    let mut findings = Findings::default();
    kernel::examine(&mut findings);
    devices::examine(&mut findings, patient);
    let listeners = redis::examine(&mut findings, patient);
    devices::tell_unseen(&mut findings, patient, listeners.as_deref());
    journal::examine(&mut findings, patient);
    findings
}
