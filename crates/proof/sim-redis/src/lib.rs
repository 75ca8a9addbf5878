// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Redis 7.0 and its disk as a model: commands, expiry, tracking, append-only log. Replies are byte
//! for byte those of redis-server 7.0.15 for the commands in [`command_names`].
//!
//! # Use
//! [`Redis::start`] with a [`Disk`]; [`Redis::accept`] a connection; then, per turn of its event
//! loop: either hand over bytes with [`Redis::input`], or say [`Redis::readable`] and give the bytes
//! when [`Redis::next_read`] asks for them (so that what Redis has not read yet is still in the
//! kernel). While [`Redis::has_work`], call [`Redis::step`]: each executes at most one command and
//! returns it with all changes of keys. Replies, pushes and the log leave at the end of a turn
//! (`None`), in Redis's order: invalidations, log, then output. [`Redis::output`] takes what may be
//! sent, [`Redis::pop_closed`] tells which connections Redis closes after that output. Call
//! [`Redis::cron`] at [`Redis::next_wake_ns`]. All times are wall clock, ns since 1970.
//!
//! # Not in the model
//! RDB files, replication traffic, cluster, modules, Lua (three scripts are known by their text).

mod acl;
mod admin;
mod aof;
mod blocking;
mod cast;
mod client;
mod client_commands;
mod collections;
mod connection;
mod db;
mod describe;
mod disk;
mod dispatch;
mod expire;
mod field_expiry;
mod info;
mod keys;
mod ldouble;
mod multi;
mod pubsub;
mod resp;
mod script;
mod server;
mod strings;
mod table;
mod tracking;
mod types;

pub use disk::{CrashMode, Disk, DiskError, Faults};
pub use server::Redis;
pub use table::command_names;
pub use types::{
    AppendFsync, Bytes, Cause, Change, ClientId, Config, Executed, Peer, StartError, Stored,
};
