// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers of commands. Bits 1:0 say where data goes: 01 to the node, 10 from it, 00 nowhere. Checked against
//! Linux, `include/linux/nvme.h`; those from C1h on are ours, in the vendor's range.

/// Fabrics commands, told apart by their type.
pub const FABRICS: u8 = 0x7f;

/// Types of fabrics commands.
pub mod fabrics {
    /// Sets a property.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Makes a queue of a connection.
    pub const CONNECT: u8 = 0x01;
    /// Reads a property.
    pub const PROPERTY_GET: u8 = 0x04;
    /// A message of authentication to the node.
    pub const AUTH_SEND: u8 = 0x05;
    /// A message of authentication from the node.
    pub const AUTH_RECEIVE: u8 = 0x06;
}

/// Commands of the admin queue.
pub mod admin {
    /// A log page.
    pub const GET_LOG: u8 = 0x02;
    /// What controller and namespaces are.
    pub const IDENTIFY: u8 = 0x06;
    /// Ends another command, if it can.
    pub const ABORT: u8 = 0x08;
    /// Changes a setting.
    pub const SET_FEATURES: u8 = 0x09;
    /// Reads a setting.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Waits for an event.
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// The host lives.
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// Commands of an I/O queue, of the KV command set 1.3.
pub mod kv {
    /// Nothing is left to flush.
    pub const FLUSH: u8 = 0x00;
    /// Puts a value.
    pub const STORE: u8 = 0x01;
    /// Gets a value.
    pub const RETRIEVE: u8 = 0x02;
    /// Lists keys.
    pub const LIST: u8 = 0x06;
    /// Puts a delete marker.
    pub const DELETE: u8 = 0x10;
    /// Whether a key is there.
    pub const EXIST: u8 = 0x14;
}

/// Commands of an I/O queue with versions, ours.
pub mod versioned {
    /// Puts a value, and says its version.
    pub const PUT: u8 = 0xc1;
    /// Gets a value at a version.
    pub const GET: u8 = 0xc2;
    /// All or none of many changes.
    pub const BATCH: u8 = 0xc5;
    /// Lists a key's versions.
    pub const VERSIONS: u8 = 0xc6;
    /// Puts a delete marker, and says its version.
    pub const DELETE: u8 = 0xc8;
    /// Rolls a scope back.
    pub const ROLL_BACK: u8 = 0xc9;
    /// Lists keys.
    pub const KEYS: u8 = 0xca;
    /// Makes a version's content the head again.
    pub const RESTORE: u8 = 0xcc;
    /// Takes or releases a snapshot.
    pub const SNAPSHOT: u8 = 0xd0;
    /// Ends the other controllers of this host.
    pub const FENCE: u8 = 0xd4;
    /// Opens a listing of a moment.
    pub const OPEN_LISTING: u8 = 0xd5;
}

/// Where a command's data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// There is none.
    None,
    /// To the node.
    ToNode,
    /// From the node.
    FromNode,
}

impl Way {
    /// By the low bits of an opcode or a fabrics type. Both bits, which nothing has that we know: none.
    #[must_use]
    pub fn of(number: u8) -> Self {
        match number & 3 {
            1 => Self::ToNode,
            2 => Self::FromNode,
            _ => Self::None,
        }
    }
}
