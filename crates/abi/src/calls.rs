// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the control programs take and give, as Rust sees it. [`crate::fill_io`], [`crate::sweep_io`]
//! and the like are the same in the programs' own layout.

use crate::{CONN_STATE_MAX, conn, conn_key, sweep_row};

/// What one sweep over the connection table found.
#[derive(Clone, Debug, Default)]
pub struct SweepReport {
    /// Connections that the daemon must act on.
    pub rows: Vec<sweep_row>,
    /// Such connections that did not fit into one sweep.
    pub more: u32,
    /// Entries in the table.
    pub conns: u32,
    /// Entries by `enum erb_conn_state`.
    pub by_state: [u32; CONN_STATE_MAX as usize],
    /// Entries on which FIN or RST was seen.
    pub closing: u32,
    /// Entries that still need translation.
    pub translated: u32,
    /// Entries with unacknowledged fast-path bytes.
    pub unacked: u32,
}

/// What `erb_fill_begin` noted about a key before Redis was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FillToken {
    /// `enum fill_status`; only `FILL_OK` may be asked for.
    pub status: u32,
    /// Index of the key's set.
    pub set: u32,
    /// Cache epoch.
    pub cache_epoch: u32,
    /// Version of the set.
    pub version: u64,
    /// Global version.
    pub global_version: u64,
}

/// A value to be inserted.
#[derive(Clone, Copy, Debug)]
pub struct FillEntry<'a> {
    /// The key, at most `KEY_BYTES_MAX` bytes.
    pub key: &'a [u8],
    /// The value, at most `CLASS3_BYTES` bytes.
    pub value: &'a [u8],
    /// Expiry by the wall clock, ms; 0 = none.
    pub expiry_ms: u64,
    /// The token noted before the value was asked for.
    pub token: FillToken,
}

/// One tracked connection, without its replay buffer.
#[derive(Clone, Copy)]
pub struct ConnView {
    /// Address pair.
    pub key: conn_key,
    /// Cookie of the socket.
    pub cookie: u64,
    /// `enum erb_conn_state`.
    pub state: u8,
    /// `CONN_F_*`.
    pub flags: u8,
    /// Request bytes consumed.
    pub in_delta: u32,
    /// Reply bytes inserted.
    pub out_delta: u32,
    /// Requests that went up.
    pub requests: u32,
    /// Replies that came back.
    pub replies: u32,
}

impl From<&conn> for ConnView {
    fn from(entry: &conn) -> Self {
        Self {
            key: entry.key,
            cookie: entry.cookie,
            state: entry.state,
            flags: entry.flags,
            in_delta: entry.in_delta,
            out_delta: entry.out_delta,
            requests: entry.requests,
            replies: entry.replies,
        }
    }
}
