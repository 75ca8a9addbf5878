// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cuts a stream of bytes into PDUs.
//!
//! Invariants:
//! 1. It keeps the header of one PDU and never data: its memory is constant, whatever comes.
//! 2. A header is shown only after its digest was right.
//! 3. Every PDU that is shown ends with [`Input::End`], also without data; between two PDUs it holds no byte.

use crate::pdu::{
    COMMON_BYTES, Common, DIGEST_BYTES, Digests, End, Fatal, IC_BYTES, Kind, Rules, Shape,
};

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input<'a> {
    /// A header is there: [`Reader::header`].
    Header(Kind),
    /// A piece of the data behind it.
    Data(&'a [u8]),
    /// It is over. Whether the data's digest was right, if there was one.
    End(bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Common,
    Header(Shape),
    Pad(Shape),
    Data(Shape),
    Digest,
    Over,
}

/// Reads one connection's PDUs.
#[derive(Debug)]
pub(crate) struct Reader {
    rules: Rules,
    stage: Stage,
    buffer: [u8; IC_BYTES + DIGEST_BYTES],
    /// Bytes in `buffer`.
    have: usize,
    /// Bytes of padding, data or digest still to come.
    left: usize,
    data_bytes: usize,
    digest: u32,
    expected: [u8; DIGEST_BYTES],
    is_intact: bool,
}

impl Reader {
    pub(crate) fn new(end: End, data_bytes_max: usize, in_capsule_bytes_max: usize) -> Self {
        Self {
            rules: Rules {
                end,
                is_open: false,
                digests: Digests::default(),
                data_bytes_max,
                in_capsule_bytes_max,
            },
            stage: Stage::Common,
            buffer: [0; IC_BYTES + DIGEST_BYTES],
            have: 0,
            left: 0,
            data_bytes: 0,
            digest: 0,
            expected: [0; DIGEST_BYTES],
            is_intact: true,
        }
    }

    /// Both ends have agreed.
    pub(crate) fn open(&mut self, digests: Digests) {
        self.rules.is_open = true;
        self.rules.digests = digests;
    }

    /// Whether no PDU has begun.
    pub(crate) fn is_between(&self) -> bool {
        self.stage == Stage::Common && self.have == 0
    }

    /// What has come of the header, without its digest.
    pub(crate) fn header(&self) -> &[u8] {
        let bytes = match self.stage {
            Stage::Common => self.have,
            _ => Kind::of(self.buffer[0]).map_or(self.have, Kind::header_bytes),
        };
        &self.buffer[..bytes.min(self.have)]
    }

    /// What the last PDU with a whole header is or was.
    pub(crate) fn last_kind(&self) -> Option<Kind> {
        Kind::of(self.buffer[0])
    }

    /// Bytes of data that follow the present header.
    pub(crate) fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    /// The next thing in `bytes`, which it takes off; nothing if all are taken.
    pub(crate) fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Input<'a>>, Fatal> {
        loop {
            match self.stage {
                Stage::Common => {
                    if !self.gather(bytes, COMMON_BYTES) {
                        return Ok(None);
                    }
                    let shape = self.rules.judge(Common::of(&self.buffer))?;
                    self.data_bytes = shape.data_bytes;
                    self.stage = Stage::Header(shape);
                }
                Stage::Header(shape) => {
                    if !self.gather(bytes, shape.header_bytes) {
                        return Ok(None);
                    }
                    self.check_header(shape)?;
                    self.left = shape.pad_bytes;
                    self.digest = 0;
                    self.is_intact = true;
                    self.stage = Stage::Pad(shape);
                    return Ok(Some(Input::Header(shape.kind)));
                }
                Stage::Pad(shape) => {
                    let skipped = self.left.min(bytes.len());
                    *bytes = &bytes[skipped..];
                    self.left -= skipped;
                    if self.left > 0 {
                        return Ok(None);
                    }
                    self.left = shape.data_bytes;
                    self.stage = Stage::Data(shape);
                }
                Stage::Data(shape) => {
                    if let Some(data) = self.data(bytes, shape.has_digest) {
                        return Ok(Some(Input::Data(data)));
                    }
                    if self.left > 0 {
                        return Ok(None);
                    }
                    self.left = if shape.has_digest { DIGEST_BYTES } else { 0 };
                    self.stage = Stage::Digest;
                }
                Stage::Digest => {
                    if !self.gather_digest(bytes) {
                        return Ok(None);
                    }
                    self.stage = Stage::Over;
                }
                Stage::Over => {
                    self.stage = Stage::Common;
                    self.have = 0;
                    return Ok(Some(Input::End(self.is_intact)));
                }
            }
        }
    }

    /// Whether the buffer has so many bytes now.
    fn gather(&mut self, bytes: &mut &[u8], wanted: usize) -> bool {
        let taken = wanted.saturating_sub(self.have).min(bytes.len());
        self.buffer[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
        self.have += taken;
        *bytes = &bytes[taken..];
        self.have >= wanted
    }

    fn check_header(&self, shape: Shape) -> Result<(), Fatal> {
        let plain = shape.kind.header_bytes();
        if shape.header_bytes == plain {
            return Ok(());
        }
        let digest = crc32c::crc32c(&self.buffer[..plain]).to_le_bytes();
        if digest == self.buffer[plain..plain + DIGEST_BYTES] {
            Ok(())
        } else {
            Err(Fatal::HeaderDigest)
        }
    }

    fn data<'a>(&mut self, bytes: &mut &'a [u8], has_digest: bool) -> Option<&'a [u8]> {
        let taken = self.left.min(bytes.len());
        if taken == 0 {
            return None;
        }
        let (data, rest) = bytes.split_at(taken);
        *bytes = rest;
        self.left -= taken;
        if has_digest {
            self.digest = crc32c::crc32c_append(self.digest, data);
        }
        Some(data)
    }

    fn gather_digest(&mut self, bytes: &mut &[u8]) -> bool {
        if self.left == 0 {
            return true;
        }
        let taken = self.left.min(bytes.len());
        let at = DIGEST_BYTES - self.left;
        self.expected[at..at + taken].copy_from_slice(&bytes[..taken]);
        *bytes = &bytes[taken..];
        self.left -= taken;
        if self.left == 0 {
            self.is_intact = self.digest.to_le_bytes() == self.expected;
        }
        self.left == 0
    }
}
