// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The data path's own C, compiled for user space: helpers, maps, locks, packets, interleaved CPUs.
//!
//! The sources of `bpf/` are compiled unchanged: `shim/` stands in for libbpf's headers, and every
//! helper is a call into this crate. A [`Library`] is one build (the tree's own, or a mutant's), a
//! [`Datapath`] the maps of one machine, a [`Kernel`] what the world answers to programs, [`Cpus`] the
//! tasks that interleave.
//!
//! # Rules for worlds
//!
//! - One world per thread at a time; everything is single-threaded and decided by seeds.
//! - Programs run inside tasks of [`Cpus`] (then they interleave) or outside (then they do not).
//!   Network programs keep their CPU while they run; the daemon's syscall programs may be interrupted
//!   by softirqs of their CPU.
//! - At each [`point`] another task may run, so an implementation of [`Kernel`], and any world code
//!   that calls programs, must not hold a `RefCell` borrow across it. Sockets that a program holds
//!   are shown anew after each switch.
//! - A broken rule panics with a message that begins with "violation: ": a helper under a lock, two
//!   locks, a lock, socket or ring record kept at the end, deadlock, an unknown verdict. Catch it
//!   around [`Cpus::run`]; the [`Datapath`] is unusable afterwards.
//! - A clone that a program sends passes the egress program before [`Kernel::transmit`]. What the XDP
//!   program sends back ([`Xdp::Tx`]) does not.
//!
//! # Cost
//!
//! A hit takes about 1.4 us with its frame built and looked at (release build, a core shared with
//! compilers; the test `a_hit_leaves_time_for_the_rest` prints it); a mutant compiles in 1 to 3 s.

pub mod compile;
mod control;
mod cpus;
#[cfg(test)]
mod cpus_tests;
mod csum;
mod datapath;
mod errno;
mod exec;
pub mod frames;
pub mod fuzz;
mod fuzz_meant;
mod helpers;
mod helpers_packet;
mod helpers_sock;
#[cfg(test)]
mod helpers_tests;
mod homes;
mod interpret;
mod io;
mod kernel;
mod library;
mod lowmem;
mod map;
mod packet;
mod reads;
pub mod scene;
mod under_way;

pub use cpus::{Context, Cpus, give_way};
pub use datapath::{AHEAD_BUFFERS, Datapath, DatapathConfig, Tc, Xdp};
pub use erb_abi::Program as Prog;
pub use exec::{Pinned, current_cpu, pin, point};
pub use interpret::{Area, Call, Element, Interpreter};
pub use kernel::{Kernel, Sock, tcp_state};
pub use library::{Hook, Library, LoadError};
pub use packet::{Card, Csum, Packet};

/// Whether the C is built with sanitizers.
pub const SANITIZED: bool = option_env!("ERB_SIM_SANITIZE").is_some();
