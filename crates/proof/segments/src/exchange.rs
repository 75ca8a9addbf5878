// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an exchange consists of.
//!
//! All numbers are relative: the client's first byte behind its SYN has sequence number 0, and so
//! has the server's. Where time is needed it is long against what a busy machine delays.

/// FIN in [`Segment::flags`].
pub const FIN: u8 = 0x01;
/// SYN.
pub const SYN: u8 = 0x02;
/// RST.
pub const RST: u8 = 0x04;
/// PSH.
pub const PSH: u8 = 0x08;
/// ACK.
pub const ACK: u8 = 0x10;
/// ECE.
pub const ECE: u8 = 0x40;
/// CWR.
pub const CWR: u8 = 0x80;

/// A conversation and what must come of it.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Name, also of the file with its log.
    pub name: &'static str,
    /// The rule that it is about, in one line.
    pub rule: &'static str,
    /// What is done, in order.
    pub steps: Vec<Step>,
}

/// What the client's SYN offers.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Timestamps.
    pub timestamps: bool,
    /// Selective acknowledgement.
    pub sack: bool,
    /// Maximum segment size.
    pub mss: u16,
    /// Initial sequence number.
    pub isn: u32,
}

impl Offer {
    /// What common stacks offer; the numbers wrap soon.
    pub const USUAL: Self = Self {
        timestamps: true,
        sack: true,
        mss: 1460,
        isn: 0xffff_ff00,
    };
}

/// A segment's timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// Newer than all before.
    Now,
    /// This much older than that, in units of the clock.
    Older(u32),
    /// None, whatever was agreed.
    Absent,
}

/// What is wrong with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The TCP checksum.
    TcpChecksum,
    /// The IPv4 header checksum.
    IpChecksum,
    /// The IPv4 header says fewer bytes than its TCP header has.
    IpLength,
    /// The TCP header says that it is longer than the packet.
    TcpLength,
}

/// A segment to be sent.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Sequence number.
    pub seq: i64,
    /// Acknowledgement; no ACK flag if `None`.
    pub ack: Option<i64>,
    /// Flags besides ACK, and PSH on payload.
    pub flags: u8,
    /// Window field; the usual one if `None`.
    pub window: Option<u16>,
    /// Timestamp.
    pub stamp: Stamp,
    /// SACK blocks.
    pub sack: Vec<(i64, i64)>,
    /// ECN bits of the IP header.
    pub ecn: u8,
    /// What is wrong with it.
    pub fault: Fault,
    /// Bytes.
    pub payload: Vec<u8>,
    /// Whether the server may acknowledge it.
    pub counts: bool,
}

/// What a silence forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// Stream bytes that no step has asked for, FIN and RST.
    NewBytes,
    /// Any segment.
    Everything,
}

/// One thing to do or to see. "Since" is since the last [`Step::Send`].
#[derive(Clone, Debug)]
pub enum Step {
    /// A command on the ordinary connection, and its reply.
    Ask(String, String),
    /// The key becomes one that ERB answers.
    Heat(String),
    /// The handshake.
    Connect(Offer),
    /// A SYN that must not be answered within so many ms.
    ConnectInVain(Offer, u64),
    /// Segments, at once.
    Send(Vec<Segment>),
    /// The server's stream has these bytes at this number, whenever they came.
    Reply(i64, Vec<u8>),
    /// These bytes were sent since, as segments of the exchange call for them again.
    Again(i64, Vec<u8>),
    /// Since, a segment with nothing but an ACK had these numbers (sequence number, ACK).
    Bare(i64, i64),
    /// All bytes up to here have been acknowledged.
    Acked(i64),
    /// A FIN with this number came (since, if the flag is set).
    Fin(i64, bool),
    /// Since, a RST with this number came.
    Rst(i64),
    /// For so many ms nothing of the kind comes.
    Silence(u64, Silence),
    /// Within so many ms since, at most so many segments carry the byte with this number.
    Copies(i64, u64, usize),
    /// The last segment received echoes the timestamp of the last one sent that counts.
    Echo,
    /// Time passes, in ms.
    Pause(u64),
    /// A counter has moved since the last step about it: at least and at most so far.
    Count(&'static str, u64, u64),
}
