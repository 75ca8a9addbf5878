// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The simulator: clients, links, kernels, Redis and the daemon around the data path, from one seed.
//!
//! [`run`] makes one run of a [`Plan`]; [`World`] is what it drives, step by step, in virtual time.

pub mod campaign;
pub mod check;
pub mod client;
pub mod coverage;
pub mod echo;
pub mod fault;
pub mod inner;
pub mod link;
pub mod look;
pub mod mutate;
pub mod plan;
pub mod profile;
pub mod scenario;
pub mod server;
pub mod story;
pub mod time;
pub mod violation;
pub mod world;

pub use fault::{Fault, Faults};
pub use plan::{Options, Outcome, Plan};
pub use profile::{PROFILES, Profile};
pub use violation::Violation;
pub use world::{Step, World, run};

/// Number of a connection: one per connection that a client ever opened in a run, never used again.
pub type ConnId = u32;
