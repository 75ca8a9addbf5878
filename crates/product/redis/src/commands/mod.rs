// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each command of this Redis means to the data path: its own table (COMMAND LIST, then COMMAND
//! INFO of every name), beside what only `bpf/redis/commands.def` knows.
//!
//! Invariants:
//! 1. A name is in the table only if COMMAND INFO of it tells of a command that bears it. So a
//!    renamed command is never taken for the one whose name it got, nor answered in its place.
//! 2. What the table lacks has the class of unknown names, which is at least as strong as that of
//!    every command that only a new name reaches.
//! 3. A write whose keys cannot be told from its arguments, and all of modules, raise the fence.

mod load;
mod reply;
mod table;

pub(crate) use load::apply;
pub(crate) use reply::names;
pub use table::CommandsReport;
#[cfg(test)]
pub(crate) use table::needed;
pub(crate) use table::{asked, table};
