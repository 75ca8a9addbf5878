// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loads, pins, attaches and drives the BPF programs of ERB.
//!
//! [`load()`] makes everything once and leaves it pinned; [`Datapath::open`] is the one way to reach
//! it afterwards, whether it was loaded a moment ago or by a daemon that has since died.

mod attach;
mod consumption;
mod datapath;
mod device;
mod error;
mod ethtool;
mod front;
mod grace;
mod layers;
mod load;
mod mapped;
mod nagle;
mod other_end;
mod probe;
mod programs;
mod replace;
mod rings;
mod run;
mod size;
mod trace;

pub use attach::{AttachMode, Attached, LOOPBACK, Links, WantedTiers, verified};
pub use consumption::{Consumed, Consumption};
pub use datapath::Datapath;
pub use device::{Device, ForeignXdp, all_devices, check_layers, foreign_xdp};
pub use erb_abi::{
    ConnView, Control, ControlBlock, ControlPlane, FillEntry, FillToken, SweepReport, ValueKind,
    Wanted,
};
pub use error::{Error, Result};
pub use ethtool::{
    VlanOffload, driver, is_up, sends_in_place, vlan_offload_off, vlan_offload_restore,
};
pub use front::Front;
pub use grace::wait_for_programs;
pub use layers::DeviceWatch;
pub use load::{JournalSink, LoadOptions, load, load_programs, possible_cpus, remove_pins};
pub use mapped::open_logs;
pub use nagle::Nagle;
pub use other_end::{OtherEnd, other_end};
pub use probe::{Abilities, abilities};
pub use programs::{Programs, objects};
pub use replace::{promote, stage, unstage};
pub use rings::{HeldRing, MissRing, WakeRing};
pub use size::{CONN_BYTES, CONNECTIONS, CacheSize, SET_BYTES, Sizes, TableSize, parse_bytes};
pub use trace::{AtWork, TraceFilter, TraceMisses, Traced, Tracer};
