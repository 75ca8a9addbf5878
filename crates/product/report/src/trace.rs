// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb trace --json`: one packet a line.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The program that met the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// XDP, in the driver.
    #[serde(rename = "XDP")]
    Xdp,
    /// TC ingress: what XDP left to it, or all of a device without native XDP.
    #[serde(rename = "TC ingress")]
    Ingress,
    /// TC egress: what the server's kernel sends.
    #[serde(rename = "TC egress")]
    Egress,
    /// TC egress, but what the retransmission timer sends, which the daemon runs.
    #[serde(rename = "timer")]
    Timer,
}

impl Stage {
    /// Its name.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Xdp => "XDP",
            Self::Ingress => "TC ingress",
            Self::Egress => "TC egress",
            Self::Timer => "timer",
        }
    }
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// ERB sent something in its place.
    #[serde(rename = "answered")]
    Answered,
    /// Up to Redis as it came.
    #[serde(rename = "up")]
    Up,
    /// Up to Redis, its numbers translated.
    #[serde(rename = "up translated")]
    UpTranslated,
    /// Left by XDP to TC ingress, where it is met again.
    #[serde(rename = "to TC")]
    ToTc,
    /// To the client as the kernel sent it.
    #[serde(rename = "out")]
    Out,
    /// To the client, its numbers translated.
    #[serde(rename = "out translated")]
    OutTranslated,
    /// Not delivered.
    #[serde(rename = "dropped")]
    Dropped,
    /// Sent again by the timer.
    #[serde(rename = "sent again")]
    SentAgain,
}

impl Verdict {
    /// Its name.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Up => "up",
            Self::UpTranslated => "up translated",
            Self::ToTc => "to TC",
            Self::Out => "out",
            Self::OutTranslated => "out translated",
            Self::Dropped => "dropped",
            Self::SentAgain => "sent again",
        }
    }
}

/// A counter that moved for the packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Because {
    /// Its name.
    pub name: Cow<'static, str>,
    /// By how much it moved.
    pub count: u16,
    /// What it means for the packet.
    pub kind: Cow<'static, str>,
    /// Its sentence.
    pub text: Cow<'static, str>,
}

/// One packet that met one program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// When, microseconds since 1970.
    pub time_us: u64,
    /// Processor.
    pub cpu: u32,
    /// Where.
    pub stage: Stage,
    /// `in` to Redis or `out` to the client.
    pub direction: Cow<'static, str>,
    /// Index of the device.
    pub ifindex: u32,
    /// The client's address.
    pub client: String,
    /// Redis's address as the client uses it.
    pub server: String,
    /// TCP's flags, as tcpdump writes them.
    pub flags: String,
    /// Sequence number, as it came.
    pub seq: u32,
    /// Acknowledgement, as it came.
    pub ack: u32,
    /// Bytes of payload.
    pub payload: u32,
    /// First command of the payload, if it begins with one.
    pub command: Option<String>,
    /// First key of that command, as redis-cli writes it.
    pub key: Option<String>,
    /// What became of it.
    pub verdict: Verdict,
    /// Sequence number and acknowledgement with which it went on, if they are others.
    pub went_on: Option<(u32, u32)>,
    /// Payload of what XDP sent in its place.
    pub reply: Option<u32>,
    /// Every counter that moved for it.
    pub reasons: Vec<Because>,
    /// Counters that moved and are not listed.
    pub reasons_more: u32,
}
