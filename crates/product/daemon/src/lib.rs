// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon of ERB: it loads the data path, lets [`erb_redis::Core`] keep the cache honest, and
//! takes everything away again.
//!
//! Reading order: [`Daemon`] (the thread), `machine` (Linux as the core sees it), `boost` (setup),
//! `status` (what the control socket answers), `stop` (the end). `doctor` and `trace` need no daemon.

mod addr;
mod apply;
mod asked;
mod begun;
mod boost;
mod client;
mod clock;
mod conns;
mod credentials;
mod daemon;
pub mod doctor;
mod error;
mod facts;
pub mod guard;
mod heat;
mod holder;
mod journal;
mod journal_all;
mod journal_disk;
mod keeper;
mod kmod;
mod kmod_keeper;
pub mod log;
mod machine;
pub mod mounts;
mod others;
mod owned;
mod preflight;
mod privilege;
pub mod proc;
mod replicas;
mod report;
mod rundir;
mod secret;
mod server;
mod service;
mod settled;
mod signals;
mod sockets;
mod status;
mod stop;
mod takeover;
mod teller;
mod tiers;
pub mod trace;
pub mod trusted;
mod undrained;
mod ways;

pub use addr::RedisAddr;
pub use apply::{Applied, Applies, LastWrites, apply};
pub use begun::Begun;
pub use boost::{BoostConfig, MetricsConfig, Taken};
pub use client::request;
pub use conns::conns_without_daemon;
pub use credentials::{CredentialSource, PASSWORD_VARIABLE};
pub use daemon::Daemon;
pub use erb_redis::Allowed;
pub use error::{Error, Result};
pub use journal::{JournalPlace, STATE_ROOT, boot_id, tell_left};
pub use privilege::drop_privileges;
pub use rundir::{Notes, RUN_ROOT, RunDir, enter_base_mount_namespace};
pub use server::Request;
pub use signals::WITHDRAW;
pub use status::status_without_daemon;
pub use stop::{Detached, Losses, detach_without_daemon};
pub use undrained::save_undrained;
