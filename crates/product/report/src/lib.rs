// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the command `erb` says to programs: its JSON as types, and its exit codes.
//!
//! The daemon and `erb` write these types; tools, tests and dashboards read them. Whoever reads takes
//! fields that it does not know for later versions' and leaves them alone. A test compares the JSON
//! with the files in `tests/`, so that none of it changes unseen.
//!
//! - [`Status`]: `erb status --json`. [`ConnLine`]: a line of `erb status --conns --json`.
//! - [`HotKeys`]: keys by heat, as `erb top` asks for them.
//! - [`Doctor`]: `erb doctor --json`. [`Packet`]: a line of `erb trace --json`.
//! - [`Serve`]: a line of `erb serve --json`. [`NodeStatus`]: what a storage node's metrics are made of.
//! - [`Filled`], [`Consumed`]: answers of hidden commands, which checks and measurements use.
//! - [`exit`]: the codes. [`shell`]: commands in messages, to be pasted.

mod commands;
mod doctor;
pub mod exit;
mod heat;
mod latency;
mod node;
mod serve;
pub mod shell;
mod status;
mod trace;
mod writes;

pub use commands::{CommandLine, CommandsReport};
pub use doctor::{Doctor, Finding, Level};
pub use heat::{HotKey, HotKeys, shown_key};
pub use latency::{LatencyBucket, LatencyReport, ProcessorReport};
pub use node::{NodeCache, NodeHistory, NodeSpace, NodeStatus};
pub use serve::{SentBytes, Serve};
pub use status::{
    AsideReport, AttachMode, CacheReport, ConnLine, ConnectionsReport, Consumed, Counter, Device,
    DeviceReport, Filled, HeldLine, HeldReport, ListenReport, MemoryReport, ProgramsReport,
    RedisReport, Status, Unread, VlanOffload, WaitingReport,
};
pub use trace::{Because, Packet, Stage, Verdict};
pub use writes::{ConditionReport, JournalReport, WritesReport};
