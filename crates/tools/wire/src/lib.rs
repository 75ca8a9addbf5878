// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What goes over a wire, as tests and tools build and read it: one builder and one parser of frames,
//! one writer of commands.
//!
//! | module | is |
//! | --- | --- |
//! | `segment`, `frame` | a TCP segment as a value, and as an Ethernet frame |
//! | `icmp` | ICMP errors that quote a segment |
//! | `layout` | where the parts of a frame are; edits that keep its sums right |
//! | `sum` | the Internet checksum |
//! | `resp` | commands and values as RESP writes them |
//!
//! Parsers that judge others stand elsewhere, on purpose: `check/wire.rs` of the simulator and
//! `reference.rs` of the packet rows.

mod frame;
mod icmp;
pub mod layout;
pub mod resp;
mod segment;
mod sum;

pub use frame::{Checksum, ParseError};
pub use icmp::{IcmpError, IcmpKind};
pub use segment::{Macs, Options, SackBlocks, Segment, flags};
