// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a packet costs: the BPF instructions that it executes, counted by an interpreter of the objects
//! that are loaded into kernels.
//!
//! [`mod@play`] plays a conversation through the simulator's kernel twice: with the objects interpreted
//! ([`machine`]), and with the same C compiled for this machine. Both must come to the same verdicts,
//! bytes and maps, so what is counted is what really happens. [`table`] keeps the counts, [`report`]
//! says where they go: `cargo run -p erb-executed -- xdp/hit`.
//!
//! What helpers do is not counted, nor what verifier and JIT make of an instruction: they inline
//! look-ups in arrays, and check addresses before loads from sockets.

mod btf;
mod cases;
pub mod machine;
pub mod play;
pub mod program;
pub mod report;
pub mod table;
