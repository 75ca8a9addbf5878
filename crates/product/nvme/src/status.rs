// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a command ended. Checked against Linux, `include/linux/nvme.h` (`NVME_SC_*`); the KV command set's
//! own codes against the KV command set specification.

/// How a command ended: status code type in bits 10:8, status code in bits 7:0, and whether a repeat is
/// useless in bit 14.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Status(u16);

const DO_NOT_RETRY: u16 = 1 << 14;
const CODE: u16 = 0x7ff;

const fn last(code: u16) -> Status {
    Status(code | DO_NOT_RETRY)
}

impl Status {
    /// All went well.
    pub const OK: Self = Self(0);
    /// There is no such command.
    pub const INVALID_OPCODE: Self = last(0x001);
    /// A field is wrong.
    pub const INVALID_FIELD: Self = last(0x002);
    /// Another command has this id.
    pub const ID_CONFLICT: Self = last(0x003);
    /// The node's fault; a repeat may help.
    pub const INTERNAL: Self = Self(0x006);
    /// The namespace is not there.
    pub const INVALID_NAMESPACE: Self = last(0x00b);
    /// Not at this time.
    pub const SEQUENCE: Self = last(0x00c);
    /// The length of data is not that of the fields.
    pub const DATA_LENGTH: Self = last(0x00f);
    /// The kind of data pointer is wrong.
    pub const SGL_TYPE: Self = last(0x011);
    /// The host's role does not allow it.
    pub const DENIED: Self = last(0x015);
    /// An offset of data is wrong.
    pub const SGL_OFFSET: Self = last(0x016);
    /// Data was damaged on its way; a repeat helps.
    pub const TRANSPORT: Self = Self(0x022);
    /// The command set is not enabled.
    pub const INVALID_COMMAND_SET: Self = last(0x02c);
    /// There is no room.
    pub const CAPACITY: Self = last(0x081);
    /// Value too large.
    pub const VALUE_SIZE: Self = last(0x085);
    /// Key too short.
    pub const KEY_SIZE: Self = last(0x086);
    /// There is no such key.
    pub const ABSENT: Self = last(0x087);
    /// The value is damaged.
    pub const DAMAGED: Self = last(0x088);
    /// The key is there.
    pub const PRESENT: Self = last(0x089);
    /// There is no such log page.
    pub const INVALID_LOG: Self = last(0x109);
    /// Enough event requests wait.
    pub const EVENT_LIMIT: Self = last(0x105);
    /// The feature cannot be changed.
    pub const NOT_CHANGEABLE: Self = last(0x10e);
    /// Record format of Connect.
    pub const CONNECT_FORMAT: Self = last(0x180);
    /// Too many controllers; later there may be room.
    pub const CONNECT_BUSY: Self = Self(0x181);
    /// A parameter of Connect.
    pub const CONNECT_PARAMETER: Self = last(0x182);
    /// This host may not connect.
    pub const CONNECT_HOST: Self = last(0x184);
    /// Authentication has to come first.
    pub const AUTHENTICATION: Self = last(0x191);
    /// The head is another version.
    pub const MISMATCH: Self = last(0x701);
    /// That part of the history is not kept any more.
    pub const TRIMMED: Self = last(0x702);
    /// There is no such version.
    pub const NO_SUCH_VERSION: Self = last(0x703);
    /// Retention is locked.
    pub const LOCKED: Self = last(0x704);
    /// That moment is in the future.
    pub const FUTURE: Self = last(0x705);
    /// Not now; a repeat helps.
    pub const BUSY: Self = Self(0x706);

    /// From a completion's field, with its phase bit.
    #[must_use]
    pub fn of_wire(field: u16) -> Self {
        Self(field >> 1)
    }

    /// A completion's field, phase 0.
    #[must_use]
    pub fn wire(self) -> u16 {
        self.0 << 1
    }

    /// Status code type and code.
    #[must_use]
    pub fn code(self) -> u16 {
        self.0 & CODE
    }

    /// Whether all went well.
    #[must_use]
    pub fn is_ok(self) -> bool {
        self.code() == 0
    }

    /// Whether a repeat may help.
    #[must_use]
    pub fn may_repeat(self) -> bool {
        self.0 & DO_NOT_RETRY == 0
    }
}

impl std::fmt::Debug for Status {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, code) = (self.code() >> 8, self.code() & 0xff);
        let again = if self.may_repeat() { "" } else { ", final" };
        write!(formatter, "{kind}/{code:02x}h{again}")
    }
}

/// What has no room for another version, and what takes it: the result of a command that ends with
/// [`CAPACITY`](Status::CAPACITY).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filled {
    /// The node does not say it.
    #[default]
    Unknown = 0,
    /// The store, most of it by keys' present values.
    Live = 1,
    /// The store, most of it by older versions.
    Retained = 2,
    /// Index memory.
    Memory = 3,
    /// The versions of one key.
    Versions = 4,
}

impl Filled {
    /// What the wire says of it.
    #[must_use]
    pub const fn result(self) -> u64 {
        self as u64
    }

    /// What that result says.
    #[must_use]
    pub fn of_result(result: u64) -> Self {
        let all = [Self::Live, Self::Retained, Self::Memory, Self::Versions];
        let found = all.into_iter().find(|it| it.result() == result);
        found.unwrap_or_default()
    }

    /// What has happened, and what to do.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Unknown => {
                "the store, or the node's memory, is full: make the store larger, or wait until old versions are trimmed"
            }
            Self::Live => {
                "the store is full of live values: make it larger, or delete keys and wait until retention lets go of them"
            }
            Self::Retained => {
                "the store is full of old versions that retention holds: wait until that ends, release snapshots, or make \
                 the store larger"
            }
            Self::Memory => {
                "the node's memory for its index is full of keys and versions: give it more, or wait until old versions \
                 are trimmed"
            }
            Self::Versions => {
                "the key has as many versions as writes may make: wait until old ones are trimmed"
            }
        }
    }
}
