// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages of DH-HMAC-CHAP. Checked against Linux, `include/linux/nvme.h` (`struct nvmf_auth_dhchap_*`).
//!
//! ```text
//! all        type u8 0 (0 common, 1 DH-HMAC-CHAP), id u8 1, transaction u16 4
//! negotiate  0/00: concatenation u8 6, protocols u8 7; each 64 bytes: 01, 0, hashes u8 2, groups u8 3, hash ids 4,
//!            group ids 34
//! challenge  1/01: hl u8 6, hash u8 8, group u8 9, dhvlen u16 10, sequence u32 12, challenge 16, value
//! reply      1/02: hl u8 6, cvalid u8 8, dhvlen u16 10, sequence u32 12, response 16, challenge, value
//! success 1  1/03: hl u8 6, rvalid u8 8, response 16
//! success 2  1/04: 16 bytes
//! failure 1  0/F1, failure 2 0/F0: reason u8 6, explanation u8 7
//! ```

use super::group::Group;
use super::hash::Hash;
use crate::bytes::{put_u16, put_u32, take, u16_at, u32_at};

/// Bytes of a message at most, with room for the largest group of others.
pub const MESSAGE_BYTES_MAX: usize = 4096;

const HEAD_BYTES: usize = 16;
const PROTOCOL_BYTES: usize = 64;
const GROUPS_AT: usize = 30;

/// Why authentication failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum Failure {
    /// The peer does not know the secret.
    #[error("the peer does not know the secret: compare the secrets of both ends")]
    Failed = 1,
    /// No protocol in common.
    #[error("the peer does not speak DH-HMAC-CHAP")]
    Protocol = 2,
    /// A secure channel is wanted, which is not offered.
    #[error("the peer wants a secure channel concatenated, which is not offered")]
    Concatenation = 3,
    /// No hash in common.
    #[error("no hash in common: allow another one")]
    Hash = 4,
    /// No group in common.
    #[error("no Diffie-Hellman group in common: allow another one")]
    Group = 5,
    /// A value or length makes no sense.
    #[error("an authentication message makes no sense")]
    Payload = 6,
    /// It is another message's turn.
    #[error("an authentication message came out of order")]
    Message = 7,
}

impl Failure {
    fn of(number: u8) -> Self {
        match number {
            2 => Self::Protocol,
            3 => Self::Concatenation,
            4 => Self::Hash,
            5 => Self::Group,
            6 => Self::Payload,
            7 => Self::Message,
            _ => Self::Failed,
        }
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// What the host can.
    Negotiate {
        /// Hashes that are known here.
        hashes: Vec<Hash>,
        /// Groups that are known here.
        groups: Vec<Group>,
        /// Whether it wants a secure channel.
        is_concatenated: bool,
    },
    /// What the controller asks.
    Challenge {
        /// The hash of all that follows.
        hash: Hash,
        /// The group.
        group: Group,
        /// A number that is never 0.
        sequence: u32,
        /// As long as the hash.
        challenge: Vec<u8>,
        /// The controller's value.
        value: Vec<u8>,
    },
    /// The host's answer.
    Reply {
        /// To the challenge.
        response: Vec<u8>,
        /// What the host asks, if it does.
        challenge: Option<(u32, Vec<u8>)>,
        /// The host's value.
        value: Vec<u8>,
    },
    /// The host is known.
    Success1 {
        /// Bytes of the hash.
        length: usize,
        /// The controller's answer, if it was asked.
        response: Option<Vec<u8>>,
    },
    /// The controller is known.
    Success2,
    /// The controller gives up.
    Failure1(Failure),
    /// The host gives up.
    Failure2(Failure),
}

impl Message {
    fn numbers(&self) -> (u8, u8) {
        match self {
            Self::Negotiate { .. } => (0, 0x00),
            Self::Challenge { .. } => (1, 0x01),
            Self::Reply { .. } => (1, 0x02),
            Self::Success1 { .. } => (1, 0x03),
            Self::Success2 => (1, 0x04),
            Self::Failure1(_) => (0, 0xf1),
            Self::Failure2(_) => (0, 0xf0),
        }
    }

    /// As it goes.
    #[must_use]
    pub fn bytes(&self, transaction: u16) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES];
        (bytes[0], bytes[1]) = self.numbers();
        put_u16(&mut bytes, 4, transaction);
        match self {
            Self::Negotiate { hashes, groups, .. } => {
                bytes.truncate(8);
                bytes[7] = 1;
                let mut protocol = [0; PROTOCOL_BYTES];
                (protocol[0], protocol[2], protocol[3]) =
                    (1, small(hashes.len()), small(groups.len()));
                for (at, hash) in hashes.iter().enumerate() {
                    protocol[4 + at] = *hash as u8;
                }
                for (at, group) in groups.iter().enumerate() {
                    protocol[4 + GROUPS_AT + at] = *group as u8;
                }
                bytes.extend_from_slice(&protocol);
            }
            Self::Challenge {
                hash,
                group,
                sequence,
                challenge,
                value,
            } => {
                (bytes[6], bytes[8], bytes[9]) =
                    (small(challenge.len()), *hash as u8, *group as u8);
                put_lengths(&mut bytes, value, *sequence);
                bytes.extend_from_slice(challenge);
                bytes.extend_from_slice(value);
            }
            Self::Reply {
                response,
                challenge,
                value,
            } => {
                (bytes[6], bytes[8]) = (small(response.len()), u8::from(challenge.is_some()));
                let none = (0, vec![0; response.len()]);
                let (sequence, challenge) = challenge.as_ref().unwrap_or(&none);
                put_lengths(&mut bytes, value, *sequence);
                bytes.extend_from_slice(response);
                bytes.extend_from_slice(challenge);
                bytes.extend_from_slice(value);
            }
            Self::Success1 { length, response } => {
                // Linux wants the hash's length also where no response follows.
                (bytes[6], bytes[8]) = (small(*length), u8::from(response.is_some()));
                bytes.extend_from_slice(response.as_deref().unwrap_or_default());
            }
            Self::Success2 => {}
            Self::Failure1(failure) | Self::Failure2(failure) => {
                bytes.truncate(8);
                (bytes[6], bytes[7]) = (1, *failure as u8);
            }
        }
        bytes
    }

    /// A message and its transaction. Bytes behind it are ignored: a buffer may be longer.
    ///
    /// # Errors
    /// What a failure message shall say of it.
    pub fn of(bytes: &[u8]) -> Result<(Self, u16), Failure> {
        if bytes.len() < 8 {
            return Err(Failure::Payload);
        }
        let transaction = u16_at(bytes, 4);
        let message = match (bytes[0], bytes[1]) {
            (0, 0x00) => negotiate_of(bytes)?,
            (0, 0xf1) => Self::Failure1(Failure::of(bytes[7])),
            (0, 0xf0) => Self::Failure2(Failure::of(bytes[7])),
            (1, id @ 1..=4) => {
                let mut rest = bytes;
                let head = take(&mut rest, HEAD_BYTES).ok_or(Failure::Payload)?;
                match id {
                    1 => challenge_of(head, rest)?,
                    2 => reply_of(head, rest).ok_or(Failure::Payload)?,
                    3 => {
                        let length = usize::from(head[6]);
                        let wanted = if head[8] == 0 { 0 } else { length };
                        let response = take(&mut rest, wanted).ok_or(Failure::Payload)?;
                        let response = (head[8] != 0).then(|| response.to_vec());
                        Self::Success1 { length, response }
                    }
                    _ => Self::Success2,
                }
            }
            _ => return Err(Failure::Message),
        };
        Ok((message, transaction))
    }
}

fn small(length: usize) -> u8 {
    u8::try_from(length).expect("hashes and lists are short")
}

fn put_lengths(bytes: &mut [u8], value: &[u8], sequence: u32) {
    let length = u16::try_from(value.len()).expect("a value has at most 512 bytes");
    put_u16(bytes, 10, length);
    put_u32(bytes, 12, sequence);
}

fn negotiate_of(bytes: &[u8]) -> Result<Message, Failure> {
    let (is_concatenated, protocols) = (bytes[6] != 0, usize::from(bytes[7]));
    let mut offered = bytes[8..].chunks_exact(PROTOCOL_BYTES).take(protocols);
    let protocol = offered.find(|protocol| protocol[0] == 1);
    let protocol = protocol.ok_or(Failure::Protocol)?;
    let (hashes, groups) = (usize::from(protocol[2]), usize::from(protocol[3]));
    if hashes > GROUPS_AT || groups > GROUPS_AT {
        return Err(Failure::Payload);
    }
    let ids = &protocol[4..];
    let hashes = ids[..hashes].iter();
    let groups = ids[GROUPS_AT..GROUPS_AT + groups].iter();
    Ok(Message::Negotiate {
        hashes: hashes.filter_map(|id| Hash::of(*id)).collect(),
        groups: groups.filter_map(|id| Group::of(*id)).collect(),
        is_concatenated,
    })
}

fn challenge_of(head: &[u8], mut rest: &[u8]) -> Result<Message, Failure> {
    let hash = Hash::of(head[8]).ok_or(Failure::Hash)?;
    let group = Group::of(head[9]).ok_or(Failure::Group)?;
    if usize::from(head[6]) != hash.bytes() {
        return Err(Failure::Hash);
    }
    let challenge = take(&mut rest, hash.bytes()).ok_or(Failure::Payload)?;
    let value = take(&mut rest, usize::from(u16_at(head, 10))).ok_or(Failure::Payload)?;
    Ok(Message::Challenge {
        hash,
        group,
        sequence: u32_at(head, 12),
        challenge: challenge.to_vec(),
        value: value.to_vec(),
    })
}

fn reply_of(head: &[u8], mut rest: &[u8]) -> Option<Message> {
    let length = usize::from(head[6]);
    let response = take(&mut rest, length)?.to_vec();
    let challenge = take(&mut rest, length)?.to_vec();
    let value = take(&mut rest, usize::from(u16_at(head, 10)))?.to_vec();
    Some(Message::Reply {
        response,
        challenge: (head[8] & 1 != 0).then(|| (u32_at(head, 12), challenge)),
        value,
    })
}
