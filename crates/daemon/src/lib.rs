// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon of ERB: it loads the data path, keeps the cache honest through one feed connection,
//! and takes everything away again.
//!
//! Reading order: [`Daemon`] (the loop), `feed` (the one connection to Redis and its invariants),
//! `watch` (whether ERB may answer), `proof` (sweeps), `stop` (detach), `boost` (setup).

mod addr;
mod boost;
mod client;
mod client_list;
mod clock;
mod daemon;
mod error;
mod feed;
mod fill;
mod preflight;
mod privilege;
mod proof;
mod redis_state;
mod report;
mod resp;
mod rest;
mod rundir;
mod server;
mod sockets;
mod status;
mod stop;
mod watch;

pub use addr::RedisAddr;
pub use boost::BoostConfig;
pub use client::request;
pub use daemon::Daemon;
pub use error::{Error, Result};
pub use privilege::drop_privileges;
pub use report::{
    CacheReport, ConnectionsReport, Counter, DeviceReport, MemoryReport, RedisReport, Status,
};
pub use rundir::{Notes, RUN_ROOT, RunDir, enter_base_mount_namespace};
pub use server::Request;
pub use status::{ConnLine, status_without_daemon};
pub use stop::{Detached, detach_without_daemon};
