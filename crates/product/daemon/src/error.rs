// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can go wrong when boosting, by kind; the command line gives each kind an exit code.

use std::path::PathBuf;

/// Shorthand of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the daemon or of a command that talks to it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments cannot be used together.
    #[error("{0}")]
    Usage(String),
    /// Capabilities are missing.
    #[error("too little privilege: {0}")]
    Privilege(String),
    /// The kernel is too old or lacks something.
    #[error("{0}")]
    Kernel(String),
    /// Redis cannot be reached or does not answer as Redis does.
    #[error("Redis at {address}: {reason}")]
    Redis {
        /// Address as given.
        address: String,
        /// What happened.
        reason: String,
    },
    /// The password file cannot be used.
    #[error("password file {path}: {reason}")]
    Credentials {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file with the token for metrics cannot be used.
    #[error("token file {path}: {reason}")]
    Token {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Metrics cannot be served there.
    #[error("--metrics: {0}")]
    Metrics(erb_watch::Error),
    /// Redis is older than 7.0.
    #[error(
        "Redis at {address} is version {version}; ERB needs 7.0 or newer: install such a Redis"
    )]
    RedisOld {
        /// Address as given.
        address: String,
        /// Version as reported.
        version: String,
    },
    /// Nothing listens on the port in this namespace.
    #[error(
        "no socket listens on port {0} in this network namespace; boost in the namespace where \
         redis-server runs (`ip netns exec NAME erb boost ...`), or give its --port"
    )]
    NoListener(u16),
    /// Another daemon holds the run directory.
    #[error("already boosted: a daemon is at work in {0}; `erb detach` it first")]
    AlreadyBoosted(PathBuf),
    /// A boost begins in that run directory, or is taken back.
    #[error("{0}")]
    UnderWay(String),
    /// Another boost of the same Redis is at work, or was left at work.
    #[error("{0}")]
    OtherBoost(String),
    /// A signal came while a boost began.
    #[error("interrupted by signal {0} ({name}): what this boost had changed was taken back", name = signal_name(.0))]
    Interrupted(u8),
    /// A daemon was killed, and does not end.
    #[error(
        "the daemon of {run_dir} was killed and cannot end: process {pid} is in uninterruptible sleep, and holds \
         {run_dir}/lock until it wakes: {advice}. What is at work goes on without a daemon; then do the same again"
    )]
    Stuck {
        /// Run directory.
        run_dir: PathBuf,
        /// Its process.
        pid: u32,
        /// What it waits for, and what ends that.
        advice: String,
    },
    /// A daemon is at work, and cannot be spoken to.
    #[error(
        "process {pid} is the daemon of {run_dir} and at work, but its socket there is gone, so it cannot be asked: \
         `kill {pid}` detaches, and it leaves with the last connection that needs it; the same again resets those and \
         leaves at once"
    )]
    CutOff {
        /// Run directory.
        run_dir: PathBuf,
        /// Its process.
        pid: u32,
    },
    /// Nothing would be answered, however long one waits.
    #[error("{0}; `erb boost --anyway` boosts all the same")]
    AnswersNothing(String),
    /// A daemon detaches, and connections still need it.
    #[error(
        "a detach is under way in {run_dir}: {translated} connections still need translation, and the \
         daemon leaves with the last one; wait for that, or reset them with `erb detach --force`"
    )]
    Detaching {
        /// Run directory.
        run_dir: PathBuf,
        /// Connections that still need translation.
        translated: u32,
    },
    /// Somebody else traces.
    #[error(
        "packets are being traced already in {0}: end that `erb trace` first (there is room for one: \
         it puts traced programs in the place of ERB's own)"
    )]
    AlreadyTraced(PathBuf),
    /// What is at work cannot be traced by this build.
    #[error(
        "the programs at work in {run_dir} are of another build ({found}) than this erb's ({own}), \
         and only those of its own can be traced: use the erb that boosted, or `erb boost` with the \
         same arguments to replace them"
    )]
    OtherBuild {
        /// Run directory.
        run_dir: PathBuf,
        /// Build of what is at work.
        found: String,
        /// Build of this program.
        own: String,
    },
    /// There is nothing to talk to or to detach.
    #[error(
        "nothing is boosted in {0}: `erb boost` begins; --run-dir names a boost that is elsewhere"
    )]
    NotBoosted(PathBuf),
    /// Nothing is at work, but not everything is gone.
    #[error(
        "nothing is boosted in {0}, but a boost that was interrupted left something there: `erb detach` \
         takes it away, `erb boost` begins anew"
    )]
    LeftBehind(PathBuf),
    /// The daemon did not answer.
    #[error(
        "the daemon in {run_dir} {reason}; its log may say why. If that stays so, kill it: what is at \
         work goes on without it, and `erb boost` or `erb detach` take over"
    )]
    NoAnswer {
        /// Run directory.
        run_dir: PathBuf,
        /// What happened.
        reason: String,
    },
    /// The data path.
    #[error(transparent)]
    Datapath(#[from] erb_datapath::Error),
    /// A file or socket operation.
    #[error("{what}: {reason}")]
    Io {
        /// What was being done.
        what: String,
        /// The error.
        reason: std::io::Error,
    },
}

impl Error {
    /// For `map_err`: says what was being done when an I/O error came.
    pub fn io<E: Into<std::io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |reason| Self::Io {
            what,
            reason: reason.into(),
        }
    }
}

fn signal_name(number: &u8) -> &'static str {
    nix::sys::signal::Signal::try_from(i32::from(*number))
        .map_or("not known", |signal| signal.as_str())
}
