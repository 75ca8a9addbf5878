// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Target and client against each other, and each against peers that do wrong.

mod admin;
mod bounds;
mod capture;
mod connecting;
mod dice;
mod fake;
mod fences;
mod fuzz;
mod hostile;
mod hostile_target;
mod keys;
mod layouts;
mod raw;
mod room;
mod sockets;
mod versions;
mod world;
