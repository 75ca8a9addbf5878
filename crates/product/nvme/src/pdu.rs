// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PDUs of NVMe/TCP: headers, digests, and what is wrong with those that come. Checked against Linux,
//! `include/linux/nvme-tcp.h`.
//!
//! ```text
//! common header   type u8, flags u8, hlen u8, pdo u8, plen u32
//! ICReq, ICResp   pfv u16 8, pda u8 10, digests u8 11, maxr2t or maxh2cdata u32 12; 128 bytes
//! TermReq         fes u16 8, fei u32 10; 24 bytes, and up to 128 of the header that was wrong
//! CapsuleCmd      SQE 8; 72 bytes
//! CapsuleResp     CQE 8; 24 bytes
//! data            cid u16 8, ttag u16 10, offset u32 12, length u32 16; 24 bytes
//! R2T             the same
//! ```

use crate::bytes::{put_u16, put_u32, u16_at, u32_at};

/// Bytes of the part that all headers begin with.
pub const COMMON_BYTES: usize = 8;
/// Bytes of a digest.
pub const DIGEST_BYTES: usize = 4;
/// Bytes of ICReq and ICResp.
pub const IC_BYTES: usize = 128;
/// Bytes of the header of a command capsule.
pub const COMMAND_BYTES: usize = 72;
/// Bytes of the header of all other PDUs.
pub const SHORT_BYTES: usize = 24;
/// Bytes of a wrong header that a TermReq brings back at most.
pub const TERM_DATA_BYTES_MAX: usize = 128;

/// What a PDU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "they are the standard's names")]
pub enum Kind {
    IcReq = 0,
    IcResp = 1,
    H2cTerm = 2,
    C2hTerm = 3,
    Command = 4,
    Response = 5,
    H2cData = 6,
    C2hData = 7,
    R2t = 9,
}

impl Kind {
    /// By its number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::IcReq,
            1 => Self::IcResp,
            2 => Self::H2cTerm,
            3 => Self::C2hTerm,
            4 => Self::Command,
            5 => Self::Response,
            6 => Self::H2cData,
            7 => Self::C2hData,
            9 => Self::R2t,
            _ => return None,
        })
    }

    /// Bytes of its header.
    #[must_use]
    pub fn header_bytes(self) -> usize {
        match self {
            Self::IcReq | Self::IcResp => IC_BYTES,
            Self::Command => COMMAND_BYTES,
            _ => SHORT_BYTES,
        }
    }

    /// Whether data may follow its header.
    #[must_use]
    pub fn has_data(self) -> bool {
        matches!(self, Self::Command | Self::H2cData | Self::C2hData)
    }

    /// Whether digests never follow it.
    #[must_use]
    pub fn is_bare(self) -> bool {
        matches!(
            self,
            Self::IcReq | Self::IcResp | Self::H2cTerm | Self::C2hTerm
        )
    }
}

/// Flags of the common header.
pub mod flag {
    /// A digest follows the header.
    pub const HEADER_DIGEST: u8 = 1;
    /// A digest follows the data.
    pub const DATA_DIGEST: u8 = 2;
    /// The last data PDU of a transfer.
    pub const LAST: u8 = 4;
    /// No response capsule follows: all went well, and the result is 0.
    pub const SUCCESS: u8 = 8;
}

/// Which digests both ends agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Behind headers.
    pub header: bool,
    /// Behind data.
    pub data: bool,
}

impl Digests {
    /// As in ICReq and ICResp.
    #[must_use]
    pub fn of(bits: u8) -> Self {
        Self {
            header: bits & 1 != 0,
            data: bits & 2 != 0,
        }
    }

    /// As in ICReq and ICResp.
    #[must_use]
    pub fn bits(self) -> u8 {
        u8::from(self.header) | (u8::from(self.data) << 1)
    }

    fn header_bytes(self) -> usize {
        if self.header { DIGEST_BYTES } else { 0 }
    }

    fn data_bytes(self) -> usize {
        if self.data { DIGEST_BYTES } else { 0 }
    }
}

/// Why a connection cannot go on. The number is what a TermReq says (Linux: `NVME_TCP_FES_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fatal {
    /// A field of a header is wrong; its offset.
    #[error("the PDU header is wrong at byte {0}: the peer speaks another NVMe/TCP")]
    Header(u32),
    /// The PDU does not belong here.
    #[error("a PDU came out of order: the peer has lost count of the connection's state")]
    Sequence,
    /// The header's digest is wrong.
    #[error("a PDU header's digest is wrong: bytes were damaged on their way")]
    HeaderDigest,
    /// Data lies outside of what was asked for.
    #[error("data came that was not asked for, or twice: the peer has lost count of a transfer")]
    OutOfRange,
    /// More data, or more commands, than were agreed on.
    #[error("more came than was agreed on: the peer ignores this end's limits")]
    TooMuch,
    /// A parameter that is not offered; its offset.
    #[error("the parameter at byte {0} is not supported: use another setting at the peer")]
    Unsupported(u32),
}

impl Fatal {
    /// Fatal error status and information.
    #[must_use]
    pub fn numbers(self) -> (u16, u32) {
        match self {
            Self::Header(at) => (1, at),
            Self::Sequence => (2, 0),
            Self::HeaderDigest => (3, 0),
            Self::OutOfRange => (4, 0),
            Self::TooMuch => (5, 0),
            Self::Unsupported(at) => (6, at),
        }
    }
}

/// The part that all headers begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Common {
    /// Type, as it came.
    pub kind: u8,
    /// Flags.
    pub flags: u8,
    /// Bytes of the header.
    pub header_bytes: u8,
    /// Where data begins.
    pub data_at: u8,
    /// Bytes of all of it.
    pub bytes: u32,
}

impl Common {
    /// As it came.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            kind: bytes[0],
            flags: bytes[1],
            header_bytes: bytes[2],
            data_at: bytes[3],
            bytes: u32_at(bytes, 4),
        }
    }
}

/// Header of a data PDU or an R2T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The command's id.
    pub command: u16,
    /// The target's tag of the transfer.
    pub tag: u16,
    /// From here in the command's data.
    pub offset: u32,
    /// So many bytes.
    pub length: u32,
}

impl Transfer {
    /// As it came.
    #[must_use]
    pub fn of(header: &[u8]) -> Self {
        Self {
            command: u16_at(header, 8),
            tag: u16_at(header, 10),
            offset: u32_at(header, 12),
            length: u32_at(header, 16),
        }
    }
}

/// A header with room for what comes behind byte 8. `data_bytes` of data will follow, aligned to
/// `align` from the PDU's begin; the header's digest is put behind it by [`seal`].
fn head(kind: Kind, flags: u8, digests: Digests, data_bytes: usize, align: usize) -> Vec<u8> {
    let header_bytes = kind.header_bytes();
    let mut header = vec![0; header_bytes];
    let (mut flags, mut end, mut data_at) = (flags, header_bytes, 0);
    if !kind.is_bare() && digests.header {
        flags |= flag::HEADER_DIGEST;
        end += DIGEST_BYTES;
    }
    if data_bytes > 0 {
        data_at = end.next_multiple_of(align);
        end = data_at + data_bytes;
        if !kind.is_bare() && digests.data {
            flags |= flag::DATA_DIGEST;
            end += DIGEST_BYTES;
        }
    }
    header[0] = kind as u8;
    header[1] = flags;
    header[2] = small(header_bytes);
    header[3] = small(data_at);
    put_u32(&mut header, 4, count(end));
    header
}

/// Puts the digest and the padding before data behind a header.
fn seal(mut header: Vec<u8>) -> Vec<u8> {
    if header[1] & flag::HEADER_DIGEST != 0 {
        let digest = crc32c::crc32c(&header);
        header.extend_from_slice(&digest.to_le_bytes());
    }
    let data_at = usize::from(header[3]);
    if data_at > header.len() {
        header.resize(data_at, 0);
    }
    header
}

fn small(value: usize) -> u8 {
    u8::try_from(value).expect("headers and their padding are below 256 bytes")
}

fn count(value: usize) -> u32 {
    u32::try_from(value).expect("a PDU is below 4 GiB")
}

/// ICReq or ICResp. `last`: of ICReq the R2Ts of a command, counted from 0; of ICResp the bytes of an
/// H2CData PDU.
#[must_use]
pub fn ic(kind: Kind, alignment: u8, digests: Digests, last: u32) -> Vec<u8> {
    let mut header = head(kind, 0, Digests::default(), 0, 4);
    header[10] = alignment;
    header[11] = digests.bits();
    put_u32(&mut header, 12, last);
    header
}

/// A TermReq with the header that was wrong.
#[must_use]
pub fn term(kind: Kind, fatal: Fatal, wrong: &[u8]) -> Vec<u8> {
    let wrong = &wrong[..wrong.len().min(TERM_DATA_BYTES_MAX)];
    let mut header = head(kind, 0, Digests::default(), 0, 4);
    let (status, information) = fatal.numbers();
    put_u32(&mut header, 4, count(SHORT_BYTES + wrong.len()));
    put_u16(&mut header, 8, status);
    put_u32(&mut header, 10, information);
    header.extend_from_slice(wrong);
    header
}

/// The header of a command capsule that `data_bytes` of data follow.
#[must_use]
pub fn command(sqe: &[u8; 64], digests: Digests, data_bytes: usize, align: usize) -> Vec<u8> {
    let mut header = head(Kind::Command, 0, digests, data_bytes, align);
    header[COMMON_BYTES..].copy_from_slice(sqe);
    seal(header)
}

/// A response capsule.
#[must_use]
pub fn response(cqe: &[u8; 16], digests: Digests) -> Vec<u8> {
    let mut header = head(Kind::Response, 0, digests, 0, 4);
    header[COMMON_BYTES..].copy_from_slice(cqe);
    seal(header)
}

/// The header of a data PDU, or an R2T.
#[must_use]
pub fn transfer(
    kind: Kind,
    flags: u8,
    digests: Digests,
    transfer: Transfer,
    align: usize,
) -> Vec<u8> {
    let data = if kind == Kind::R2t {
        0
    } else {
        transfer.length as usize
    };
    let mut header = head(kind, flags, digests, data, align);
    put_u16(&mut header, 8, transfer.command);
    put_u16(&mut header, 10, transfer.tag);
    put_u32(&mut header, 12, transfer.offset);
    put_u32(&mut header, 16, transfer.length);
    seal(header)
}

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The storage node's.
    Target,
    /// The client's.
    Host,
}

/// What follows a common header that is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    /// Of the header, its digest included.
    pub(crate) header_bytes: usize,
    /// Between these and data.
    pub(crate) pad_bytes: usize,
    pub(crate) data_bytes: usize,
    pub(crate) has_digest: bool,
}

/// What may come at a point of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Who reads.
    pub(crate) end: End,
    /// ICReq or ICResp has come.
    pub(crate) is_open: bool,
    pub(crate) digests: Digests,
    /// Bytes of a data PDU at most.
    pub(crate) data_bytes_max: usize,
    /// Bytes of data in a command capsule at most.
    pub(crate) in_capsule_bytes_max: usize,
}

impl Rules {
    /// Judges the first eight bytes. Nothing has been allocated for the rest.
    pub(crate) fn judge(&self, common: Common) -> Result<Shape, Fatal> {
        let kind = Kind::of(common.kind).ok_or(Fatal::Header(0))?;
        let (first, term, mine) = match self.end {
            End::Target => (
                Kind::IcReq,
                Kind::H2cTerm,
                [Kind::Command, Kind::H2cData, Kind::H2cData],
            ),
            End::Host => (
                Kind::IcResp,
                Kind::C2hTerm,
                [Kind::Response, Kind::C2hData, Kind::R2t],
            ),
        };
        if kind != first && kind != term && !mine.contains(&kind) {
            return Err(Fatal::Header(0));
        }
        if kind != term && (kind == first) == self.is_open {
            return Err(Fatal::Sequence);
        }
        if usize::from(common.header_bytes) != kind.header_bytes() {
            return Err(Fatal::Header(2));
        }
        if kind.is_bare() {
            self.judge_bare(kind, common)
        } else {
            self.judge_rest(kind, common)
        }
    }

    fn judge_bare(&self, kind: Kind, common: Common) -> Result<Shape, Fatal> {
        let header_bytes = kind.header_bytes();
        let data_bytes = (common.bytes as usize)
            .checked_sub(header_bytes)
            .ok_or(Fatal::Header(4))?;
        let is_term = matches!(kind, Kind::H2cTerm | Kind::C2hTerm);
        let most = if is_term { TERM_DATA_BYTES_MAX } else { 0 };
        if data_bytes > most {
            return Err(Fatal::Header(4));
        }
        Ok(Shape {
            kind,
            header_bytes,
            pad_bytes: 0,
            data_bytes,
            has_digest: false,
        })
    }

    fn judge_rest(&self, kind: Kind, common: Common) -> Result<Shape, Fatal> {
        let header_bytes = kind.header_bytes() + self.digests.header_bytes();
        if (common.flags & flag::HEADER_DIGEST != 0) != self.digests.header {
            return Err(Fatal::Header(1));
        }
        let bytes = common.bytes as usize;
        if bytes == header_bytes && !matches!(kind, Kind::H2cData | Kind::C2hData) {
            return Ok(Shape {
                kind,
                header_bytes,
                pad_bytes: 0,
                data_bytes: 0,
                has_digest: false,
            });
        }
        if !kind.has_data() {
            return Err(Fatal::Header(4));
        }
        let data_at = usize::from(common.data_at);
        let pad_bytes = data_at
            .checked_sub(header_bytes)
            .filter(|_| data_at % 4 == 0)
            .ok_or(Fatal::Header(3))?;
        let data_bytes = bytes
            .checked_sub(data_at + self.digests.data_bytes())
            .filter(|data_bytes| *data_bytes > 0)
            .ok_or(Fatal::Header(4))?;
        if (common.flags & flag::DATA_DIGEST != 0) != self.digests.data {
            return Err(Fatal::Header(1));
        }
        let most = if kind == Kind::Command {
            self.in_capsule_bytes_max
        } else {
            self.data_bytes_max
        };
        if data_bytes > most {
            return Err(Fatal::TooMuch);
        }
        Ok(Shape {
            kind,
            header_bytes,
            pad_bytes,
            data_bytes,
            has_digest: self.digests.data,
        })
    }
}
