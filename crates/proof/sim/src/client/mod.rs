// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients: machines with a TCP stack each, and the connections of their applications.

pub mod machine;
pub mod mixed;
pub mod resp;
pub mod session;
pub mod settings;
pub mod ticks;
pub mod workload;
