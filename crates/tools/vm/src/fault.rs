// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why nothing could be tried: what the machine lacks, which is no fault of what would be tried; or who asked,
//! or for what.

use thiserror::Error;

/// Something without which there is no emulated machine.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Missing {
    /// Programs of this machine.
    #[error("missing: {0}; `apt-get install {0}` installs what an emulated machine needs")]
    Packages(String),
    /// Keys.
    #[error("Debian's keys are not there: install debian-archive-keyring")]
    Keys,
    /// Servers.
    #[error(
        "this machine's apt knows no server of Debian's packages: `apt-get update` with one in \
         /etc/apt/sources.list.d, or give its address by ERB_DEBIAN=URL (and ERB_DEBIAN_SECURITY=URL)"
    )]
    Server,
    /// Kernels.
    #[error("no kernel of {0} can be had: {1}")]
    Kernel(String, String),
    /// The kernel that is built here.
    #[error(
        "there is no kernel that looks for mistakes: `sudo scripts/vm/debug-kernel.sh --build` builds it"
    )]
    Debug,
    /// Headers, or what builds with them.
    #[error("{0}, or what builds with it, cannot be had: {1}")]
    Headers(String, String),
    /// The sources.
    #[error(
        "the check `{0}` needs ERB's sources, and {1} is not below the current folder, nor above this program"
    )]
    Sources(String, String),
}

/// An option that none of the checks takes that are wanted.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{option} is for {takers} alone, and wanted is {wanted}")]
pub struct Unfit {
    /// The option.
    pub option: &'static str,
    /// Checks that take it.
    pub takers: String,
    /// What was asked for.
    pub wanted: String,
}

/// What only root may do.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0}, which needs root: run it with sudo")]
pub struct Unprivileged(pub String);

impl Unprivileged {
    /// # Errors
    /// This one, if somebody else than root is at work.
    pub fn unless_root(is_root: bool, what: impl FnOnce() -> String) -> Result<(), Self> {
        if is_root { Ok(()) } else { Err(Self(what())) }
    }
}
