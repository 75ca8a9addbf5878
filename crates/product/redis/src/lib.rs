// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the daemon of ERB decides, without kernel, threads or sleep: it runs over a [`DataPath`]
//! and a [`Machine`], which the daemon takes from Linux and the simulator from its world.
//!
//! Whoever drives it calls [`Core::turn`] when there is something to read from Redis or room to
//! write, and at [`Core::next_wake_ns`] at the latest:
//!
//! ```text
//! let mut core = Core::new(path, machine, settings);
//! while !core.is_leaving() {
//!     // wait until core.next_wake_ns(now), or until core.stream() is readable (only if
//!     // core.may_read(now)) or writable (only if core.wants_write())
//!     core.turn(readable_or_writable)?;
//! }
//! ```
//!
//! Dropping it without [`Core::stop`] is what a killed daemon looks like.
//!
//! Reading order: [`Core`] (the turn), `feed` (the one connection to Redis and its invariants),
//! `reports` (of which changes Redis tells it), `lease` (when there is one), `watch` (whether ERB may answer), `sweep` and `proof` (who holds
//! something), `users` (what ACL LIST says), `usage` (what Redis executes and is spared), `admit` (who becomes fast), `listeners` (whose a connection is), `touch` (use of
//! keys), `holding` (packets that wait), `stop` (detach), `closing` (the cache closed), `hours` (for long, by itself), `writes`, `gate` and [`drain`] (writes that are answered in Redis's place). Each part owns what it knows, and no file uses one that uses it.

mod admission;
mod admit;
mod aside;
mod cached_hash;
pub mod calls;
mod client_list;
mod clock;
mod closing;
mod commands;
mod connections;
#[cfg(test)]
mod doubles;
pub mod drain;
mod ends;
mod expect;
mod feed;
mod fill;
mod filling;
mod gate;
mod holding;
mod hours;
mod later;
mod lease;
mod line_ends;
mod link;
mod listeners;
mod movers;
mod never;
mod output_limit;
mod outside;
mod pace;
mod patience;
mod proof;
mod questions;
mod reading;
mod redis_state;
mod reports;
pub mod resp;
pub mod rights;
mod settle;
mod size;
mod stop;
mod sweep;
mod timer;
mod touch;
mod turn;
mod unseen;
mod usage;
mod users;
mod walk;
mod watch;
mod write_state;
mod writes;

pub use aside::AsideState;
pub use client_list::{ClientLine, addresses, canonical, parse as parse_clients};
pub use commands::CommandsReport;
pub use gate::{Against, Allowed, Condition, TRIAL};
pub use holding::{Asking, HoldingState};
pub use listeners::{Whose, is_listed, reached_at, taker};
pub use outside::{
    Cause, DataPath, Error, Listener, Machine, MachineView, Result, TcpPair, Traffic,
};
pub use redis_state::RedisState;
pub use reports::Reports;
pub use stop::{Stage, reset_translated};
pub use turn::{Core, Settings};
pub use unseen::{UnseenClient, UnseenConnections};
pub use usage::{CommandCount, Usage, UsageState};
pub use walk::Pieces;
pub use write_state::WriteState;
pub use writes::WritesState;
