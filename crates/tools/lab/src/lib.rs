// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A laboratory in network namespaces: a client, a server with Debian's redis-server, and a
//! middle box between them that loses, duplicates, reorders, corrupts and delays packets.
//!
//! A lab is boosted by the command `erb` ([`Erb`], [`Boost`]), as every tool boosts.
//!
//! The command line is [`LabCommand`], [`LabArgs`] and [`run`]; tests and benchmarks use [`Lab`], [`LabConfig`]
//! and [`netns`]. What a lab is made of is in [`LabState`], and on disk in
//! `/run/erb/lab/NAME/state.json`.

pub mod apt;
mod cli;
pub mod control;
mod erb;
pub mod fault;
mod forward;
mod lab;
mod lock;
pub mod netns;
pub mod nginx;
mod node;
pub mod offload;
pub mod packet;
pub mod process;
mod redis;
pub mod servers;
pub mod settings;
mod state;
mod stop;
mod teardown;
pub mod topology;
pub mod veth;
pub mod xdp_pass;

pub use cli::{LabArgs, LabCommand, run};
pub use control::LinkReport;
pub use erb::{Boost, Erb, beside};
pub use lab::{Lab, LabConfig, LabStatus};
pub use lock::only_one;
pub use process::Process;
pub use redis::RedisArg;
pub use servers::{ServerProgram, Serves};
pub use settings::{LinkChange, LinkSettings};
pub use state::{
    Answers, End, EndState, Kind, LabName, LabState, MiddleState, Mode, NAME_DEFAULT, Phase,
    RUN_ROOT,
};
pub use stop::Stop;
pub use teardown::{DownReport, down};
