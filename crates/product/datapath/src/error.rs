// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can go wrong below the daemon, by kind, so that each kind has an exit code of its own.

use std::path::PathBuf;

/// Shorthand of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the loader or the data path. Texts say what happened, to what, and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device does not exist in the namespace of the caller.
    #[error("no network device named {0:?} in this network namespace; `ip link` lists them")]
    NoDevice(String),
    /// The device cannot be boosted, or not together with another.
    #[error("{0}")]
    Layers(String),
    /// Somebody else's XDP program is on the device.
    #[error("{0}")]
    ForeignXdp(String),
    /// The size cannot be used.
    #[error("{0}")]
    Size(String),
    /// Kernel refused a program or map.
    #[error(
        "the kernel refused to load {what}: {reason}\n{log}\nwhere memory is short (ENOMEM), give a \
         smaller --cache-size; where a program is refused, try a newer kernel"
    )]
    Load {
        /// Object or program.
        what: String,
        /// The error.
        reason: String,
        /// Last lines of libbpf and the verifier.
        log: String,
    },
    /// A program could not be attached.
    #[error(
        "could not attach {program} to {device}: {reason}; `bpftool net` shows what is there already, \
         --tier tc does without XDP"
    )]
    Attach {
        /// Name of the program.
        program: &'static str,
        /// Name of the device.
        device: String,
        /// The error.
        reason: std::io::Error,
    },
    /// What is pinned was made by another version of ERB.
    #[error(
        "what is pinned in {path} is of another version of ERB ({what}); detach it with that \
         version's `erb detach`, then boost again"
    )]
    OtherVersion {
        /// Pin root.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// What is pinned was loaded by a build whose programs share memory in another way.
    #[error(
        "what is at work in {path} shares its memory in another way than this build of ERB \
         (layout {found}, not {own}), so it can neither be taken over nor replaced: `erb detach` \
         first, then boost again"
    )]
    OtherLayout {
        /// Pin root.
        path: PathBuf,
        /// Layout of what is pinned.
        found: String,
        /// Layout of this program.
        own: String,
    },
    /// A pinned object could not be opened.
    #[error("could not open the pinned {what}: {reason}; `erb detach`, then boost again")]
    Pin {
        /// Path of the pin.
        what: String,
        /// The error.
        reason: String,
    },
    /// A program could not be run.
    #[error(
        "could not run {program}: {reason}; if that stays so, `erb detach --force`, then boost again"
    )]
    Run {
        /// Name of the program.
        program: &'static str,
        /// The error.
        reason: std::io::Error,
    },
    /// A map operation failed.
    #[error("map {map}: {reason}; if that stays so, `erb detach`, then boost again")]
    Map {
        /// Name of the map.
        map: &'static str,
        /// The error.
        reason: String,
    },
    /// A system call failed.
    #[error("{what}: {reason}")]
    System {
        /// What was being done.
        what: String,
        /// The error.
        reason: std::io::Error,
    },
}

impl Error {
    pub(crate) fn map(map: &'static str, reason: impl std::fmt::Display) -> Self {
        Self::Map {
            map,
            reason: reason.to_string(),
        }
    }
}
