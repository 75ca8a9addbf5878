// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the verified programs by packets in and packets out.
//!
//! A [`row::Row`] names a connection, a packet, what must come out and which counters move. The
//! connection is real: a socket accepted by a listening socket in a namespace of its own, so that
//! the programs' socket look-ups see what they see in service. The client is made of segments: it
//! has no TCP that would correct a mistake. Programs run through BPF_PROG_TEST_RUN; what they pass
//! goes to the real kernel.

pub mod budget;
pub mod fixture;
pub mod frame;
pub mod reference;
pub mod row;
pub mod run;
pub mod scene;
