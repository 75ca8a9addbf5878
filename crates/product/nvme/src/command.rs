// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Submission and completion queue entries. Checked against Linux, `include/linux/nvme.h`.
//!
//! ```text
//! SQE  opcode 0, flags 1 (SGL in bits 7:6 = 01), id u16 2, namespace or fabrics type 4, CDW2-3 8,
//!      SGL 24: address u64, length u32 32, type 39; CDW10 40 to CDW15 60
//! CQE  result u64 0, SQHD u16 8, SQID u16 10, id u16 12, status u16 14
//! ```

use crate::bytes::{put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use crate::opcode::{FABRICS, Way};
use crate::status::Status;

/// SGL type of data in the capsule, at an offset.
pub const SGL_IN_CAPSULE: u8 = 0x01;
/// SGL type of data that the transport moves.
pub const SGL_TRANSPORT: u8 = 0x5a;
/// Every namespace.
pub const ALL_NAMESPACES: u32 = u32::MAX;

const FLAGS_SGL: u8 = 0x40;

/// A submission queue entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sqe(pub [u8; 64]);

impl std::fmt::Debug for Sqe {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (opcode, id) = (self.opcode(), self.id());
        write!(formatter, "Sqe {opcode:02x}h id {id} {:02x?}", &self.0[4..])
    }
}

impl Sqe {
    /// One without data.
    #[must_use]
    pub fn new(opcode: u8) -> Self {
        let mut bytes = [0; 64];
        bytes[0] = opcode;
        bytes[1] = FLAGS_SGL;
        Self(bytes)
    }

    /// A fabrics command.
    #[must_use]
    pub fn fabrics(kind: u8) -> Self {
        let mut sqe = Self::new(FABRICS);
        sqe.0[4] = kind;
        sqe
    }

    /// Number of the command.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Type of a fabrics command.
    #[must_use]
    pub fn fabrics_kind(&self) -> u8 {
        self.0[4]
    }

    /// Whether it has an SGL and is not fused to another command.
    #[must_use]
    pub fn has_usual_flags(&self) -> bool {
        self.0[1] == FLAGS_SGL
    }

    /// Its id on its queue.
    #[must_use]
    pub fn id(&self) -> u16 {
        u16_at(&self.0, 2)
    }

    /// Gives it an id.
    pub fn set_id(&mut self, id: u16) {
        put_u16(&mut self.0, 2, id);
    }

    /// Its namespace.
    #[must_use]
    pub fn namespace(&self) -> u32 {
        u32_at(&self.0, 4)
    }

    /// For a namespace.
    #[must_use]
    pub fn in_namespace(mut self, namespace: u32) -> Self {
        put_u32(&mut self.0, 4, namespace);
        self
    }

    /// Address of its data; in a capsule an offset.
    #[must_use]
    pub fn data_address(&self) -> u64 {
        u64_at(&self.0, 24)
    }

    /// Bytes of its data.
    #[must_use]
    pub fn data_bytes(&self) -> u32 {
        u32_at(&self.0, 32)
    }

    /// What kind of pointer to its data it has.
    #[must_use]
    pub fn data_kind(&self) -> u8 {
        self.0[39]
    }

    /// Points it to data.
    pub fn set_data(&mut self, kind: u8, bytes: u32) {
        put_u64(&mut self.0, 24, 0);
        put_u32(&mut self.0, 32, bytes);
        self.0[39] = kind;
    }

    /// CDW10 to CDW15.
    #[must_use]
    pub fn word(&self, number: usize) -> u32 {
        u32_at(&self.0, 4 * number)
    }

    /// Sets one of CDW10 to CDW15.
    #[must_use]
    pub fn with_word(mut self, number: usize, value: u32) -> Self {
        put_u32(&mut self.0, 4 * number, value);
        self
    }

    /// CDW12 and 13, or another pair.
    #[must_use]
    pub fn pair(&self, number: usize) -> u64 {
        u64_at(&self.0, 4 * number)
    }

    /// Sets CDW12 and 13, or another pair.
    #[must_use]
    pub fn with_pair(mut self, number: usize, value: u64) -> Self {
        put_u64(&mut self.0, 4 * number, value);
        self
    }

    /// Where its data goes.
    #[must_use]
    pub fn way(&self) -> Way {
        if self.opcode() == FABRICS {
            Way::of(self.fabrics_kind())
        } else {
            Way::of(self.opcode())
        }
    }

    /// Puts a key of at most 16 bytes into its fields: CDW2-3, CDW14-15, and the length in CDW11.
    #[must_use]
    pub fn with_key(mut self, key: &[u8]) -> Self {
        let (low, high) = key.split_at(key.len().min(8));
        self.0[8..8 + low.len()].copy_from_slice(low);
        self.0[56..56 + high.len()].copy_from_slice(high);
        self.0[44] = u8::try_from(key.len()).expect("a short key has at most 16 bytes");
        self
    }

    /// The field of a key, all 16 bytes of it.
    #[must_use]
    pub fn key_field(&self) -> [u8; 16] {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&self.0[8..16]);
        key[8..].copy_from_slice(&self.0[56..64]);
        key
    }
}

/// A completion queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqe {
    /// What the command gives back.
    pub result: u64,
    /// Head of the submission queue.
    pub head: u16,
    /// The queue.
    pub queue: u16,
    /// The command's id.
    pub id: u16,
    /// How it ended.
    pub status: Status,
}

impl Cqe {
    /// As it came.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            result: u64_at(bytes, 0),
            head: u16_at(bytes, 8),
            queue: u16_at(bytes, 10),
            id: u16_at(bytes, 12),
            status: Status::of_wire(u16_at(bytes, 14)),
        }
    }

    /// As it goes.
    #[must_use]
    pub fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        put_u64(&mut bytes, 0, self.result);
        put_u16(&mut bytes, 8, self.head);
        put_u16(&mut bytes, 10, self.queue);
        put_u16(&mut bytes, 12, self.id);
        put_u16(&mut bytes, 14, self.status.wire());
        bytes
    }
}
