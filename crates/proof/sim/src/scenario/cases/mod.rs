// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scenarios themselves, by theme; their list is [`super::ALL`].

pub(crate) mod absorb;
pub(crate) mod acks;
pub(crate) mod admit;
pub(crate) mod ahead;
pub(crate) mod counting;
pub(crate) mod delayed;
pub(crate) mod devices;
pub(crate) mod edge;
pub(crate) mod fence;
pub(crate) mod fills;
pub(crate) mod foreseen;
pub(crate) mod forged;
pub(crate) mod held;
pub(crate) mod injected;
pub(crate) mod kept;
pub(crate) mod keys;
pub(crate) mod large;
pub(crate) mod lease;
pub(crate) mod lives;
pub(crate) mod loopback;
pub(crate) mod names;
pub(crate) mod order;
pub(crate) mod port;
pub(crate) mod replay;
pub(crate) mod replica;
pub(crate) mod rights;
pub(crate) mod room;
pub(crate) mod settle;
pub(crate) mod upkeep;
pub(crate) mod urgent;
pub(crate) mod wire;
