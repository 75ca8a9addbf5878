// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls under way.

use std::sync::Arc;

use super::{CallId, Reply};
use crate::opcode::Way;
use crate::pdu::{Fatal, Transfer, flag};
use crate::status::Status;

/// Whose call it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The driver's.
    User(CallId),
    /// A step of the way up.
    Step,
    /// A keep alive.
    KeepAlive,
}

/// A call under way.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) owner: Owner,
    pub(super) way: Way,
    /// To the node, if it did not go with the capsule.
    pub(super) data: Arc<Vec<u8>>,
    /// Bytes of it that were asked for.
    pub(super) asked: usize,
    pub(super) room: usize,
    pub(super) received: Vec<u8>,
    pub(super) is_spoiled: bool,
    pub(super) until_us: u64,
}

impl Pending {
    /// An R2T: which bytes to send.
    pub(super) fn ask(&mut self, transfer: Transfer) -> Result<std::ops::Range<usize>, Fatal> {
        let (from, length) = (transfer.offset as usize, transfer.length as usize);
        if from != self.asked || length == 0 || length > self.data.len() - from.min(self.data.len())
        {
            return Err(Fatal::OutOfRange);
        }
        self.asked += length;
        Ok(from..from + length)
    }

    /// Data is about to come. Whether it is the last, without a response behind it.
    pub(super) fn expect(
        &self,
        transfer: Transfer,
        bytes: usize,
        flags: u8,
    ) -> Result<bool, Fatal> {
        let is_next = transfer.offset as usize == self.received.len();
        if self.way != Way::FromNode || !is_next || self.received.len() + bytes > self.room {
            return Err(Fatal::OutOfRange);
        }
        if transfer.length as usize != bytes {
            return Err(Fatal::Header(16));
        }
        match flags & (flag::LAST | flag::SUCCESS) {
            flag::SUCCESS => Err(Fatal::Header(1)),
            both => Ok(both == flag::LAST | flag::SUCCESS),
        }
    }

    /// It is answered.
    pub(super) fn reply(self, status: Status, result: u64) -> (Owner, Reply) {
        let status = if self.is_spoiled && status.is_ok() {
            Status::TRANSPORT
        } else {
            status
        };
        let data = if status.is_ok() {
            self.received
        } else {
            Vec::new()
        };
        let reply = Reply {
            status,
            result,
            data,
        };
        (self.owner, reply)
    }
}
