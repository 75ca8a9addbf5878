// SPDX-License-Identifier: Apache-2.0 OR MIT
//! lib

pub mod auth;
pub mod backend;
mod bytes;
pub mod client;
pub mod command;
pub mod layout;
pub mod limits;
pub mod opcode;
mod outbox;
pub mod pdu;
pub mod random;
mod reader;
pub mod status;
pub mod target;
