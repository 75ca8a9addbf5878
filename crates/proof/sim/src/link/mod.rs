// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One direction of a link between a client's machine and the server. What a frame meets there is
//! decided when it is sent; what is under way is kept here, so that later frames can be joined to
//! it.

pub mod mangle;

use std::collections::BTreeMap;

use erb_sim_tcp::Segment;
use fastrand::Rng;

use crate::coverage::Coverage;
use crate::fault::{Fault, Faults};
use crate::profile::LinkRates;
use crate::time::{MS, Ns, SECOND, US};
use erb_wire::layout::{self, Layout};

/// The longest frame of a link, without tag: an Ethernet MTU and its header.
const FRAME_BYTES_MAX: usize = 1514;
/// The smallest path MTU that a router reports: IPv6 allows no less.
const PATH_MTU_MIN: usize = 1280;

/// A frame under way or arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// From the Ethernet header on, with the VLAN tag if there is one.
    pub bytes: Vec<u8>,
    /// The checksum field is the bare pseudo-header sum and nobody has broken it.
    pub bare: bool,
    /// `skb->mark` that the sender's socket gave it; only a loopback keeps it.
    pub mark: u32,
}

impl Frame {
    /// A frame with complete checksums.
    #[must_use]
    pub const fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            bare: false,
            mark: 0,
        }
    }
}

/// What a filter decides about a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// As the rates of the link will have it.
    Chance,
    /// Arrives after the link's delay.
    Deliver,
    /// Is lost.
    Drop,
    /// Arrives this much later than it would.
    Late(Ns),
    /// Arrives, and this many more copies, each so much later than the one before.
    Copies(u32, Ns),
    /// Waits until the scenario lets it go.
    Hold,
    /// Is replaced.
    Replace(Vec<Vec<u8>>),
}

/// Sees every frame that enters a link and decides.
pub type Filter = Box<dyn FnMut(Ns, &Frame) -> Fate>;

/// One direction.
pub struct Link {
    rates: LinkRates,
    faults: Faults,
    random: Rng,
    flight: BTreeMap<(Ns, u64), Frame>,
    held: Vec<Frame>,
    numbered: u64,
    last_arrival: Ns,
    dark_until: Ns,
    path_mtu: usize,
    filter: Option<Filter>,
    forge: bool,
}

/// What became of a frame that was sent.
#[derive(Debug, Default)]
pub struct Sent {
    /// Keys of what is under way now, to be taken by [`Link::arrive`] at their times.
    pub arrivals: Vec<(Ns, u64)>,
    /// An ICMP message to the sender.
    pub icmp: Option<Vec<u8>>,
}

impl Link {
    /// A link. `forge`: strangers send segments into this direction (towards the server).
    #[must_use]
    pub fn new(rates: LinkRates, faults: Faults, seed: u64, forge: bool) -> Self {
        Self {
            rates,
            faults,
            random: Rng::with_seed(seed),
            flight: BTreeMap::new(),
            held: Vec::new(),
            numbered: 0,
            last_arrival: 0,
            dark_until: 0,
            path_mtu: FRAME_BYTES_MAX - layout::ETHERNET_BYTES,
            filter: None,
            forge,
        }
    }

    /// From now on nothing goes wrong; what is under way arrives.
    pub fn end_faults(&mut self) {
        self.faults = Faults::NONE;
        self.dark_until = 0;
    }

    /// From now on `filter` decides.
    pub fn set_filter(&mut self, filter: Option<Filter>) {
        self.filter = filter;
    }

    /// Nothing passes until then.
    pub fn go_dark(&mut self, until: Ns) {
        self.dark_until = until;
    }

    /// Changes the rates.
    pub fn set_rates(&mut self, rates: LinkRates, faults: Faults) {
        self.rates = rates;
        self.faults = faults;
    }

    /// Sets the path MTU (IP bytes); what is longer is dropped and reported.
    pub fn set_path_mtu(&mut self, bytes: usize) {
        self.path_mtu = bytes;
    }

    /// Frames that a filter holds, oldest first.
    pub fn held(&mut self) -> &mut Vec<Frame> {
        &mut self.held
    }

    /// Puts a frame on its way, past rates and filter.
    pub fn inject(&mut self, now: Ns, after: Ns, frame: Frame) -> (Ns, u64) {
        self.numbered += 1;
        let key = (now + after, self.numbered);
        self.flight.insert(key, frame);
        key
    }

    /// Takes the frame that arrives now; `None` if it was joined to another.
    pub fn arrive(&mut self, key: (Ns, u64)) -> Option<Frame> {
        self.flight.remove(&key)
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.flight.is_empty()
    }

    fn happens(&mut self, fault: Fault, rate: u32, coverage: &mut Coverage) -> bool {
        let happens = rate > 0 && self.faults.has(fault) && self.random.u32(0..1_000_000) < rate;
        if happens {
            coverage.fault(fault);
        }
        happens
    }

    /// A frame is sent.
    pub fn send(&mut self, now: Ns, frame: Frame, coverage: &mut Coverage) -> Sent {
        let mut sent = Sent::default();
        let fate = match &mut self.filter {
            Some(filter) => filter(now, &frame),
            None => Fate::Chance,
        };
        let delay = self.rates.delay;
        match fate {
            Fate::Chance => self.send_by_chance(now, frame, coverage, &mut sent),
            Fate::Drop => {}
            Fate::Hold => self.held.push(frame),
            Fate::Deliver => sent.arrivals.push(self.inject(now, delay, frame)),
            Fate::Late(by) => sent.arrivals.push(self.inject(now, delay + by, frame)),
            Fate::Copies(copies, apart) => {
                for copy in 0..=u64::from(copies) {
                    let key = self.inject(now, delay + copy * apart, frame.clone());
                    sent.arrivals.push(key);
                }
            }
            Fate::Replace(frames) => {
                for bytes in frames {
                    let key = self.inject(now, delay, Frame::new(bytes));
                    sent.arrivals.push(key);
                }
            }
        }
        sent
    }

    fn send_by_chance(&mut self, now: Ns, frame: Frame, coverage: &mut Coverage, sent: &mut Sent) {
        if now < self.dark_until {
            coverage.fault(Fault::Blackout);
            return;
        }
        if self.happens(Fault::Loss, self.rates.loss, coverage) {
            return;
        }
        let Some(at) = Layout::of(&frame.bytes) else {
            self.depart(now, frame, coverage, sent);
            return;
        };
        if self.is_too_big(&frame, &at, coverage) {
            sent.icmp = mangle::too_big(&frame.bytes, &at, self.path_mtu);
            return;
        }
        if self.forge && self.happens(Fault::Forged, self.rates.forged, coverage) {
            let forged = mangle::forge(&frame.bytes, &at, &mut self.random);
            let after = self.random.u64(0..4 * self.rates.delay.max(US));
            sent.arrivals
                .push(self.inject(now, after, Frame::new(forged)));
        }
        if self.forge {
            self.strangers(now, &frame, &at, coverage, sent);
        }
        if at.payload_len() > 1 && self.happens(Fault::Split, self.rates.split, coverage) {
            let cut = self.random.usize(1..at.payload_len());
            for bytes in mangle::split(&frame.bytes, &at, cut) {
                self.depart(now, Frame::new(bytes), coverage, sent);
            }
            return;
        }
        if at.payload_len() > 0
            && self.happens(Fault::Join, self.rates.join, coverage)
            && self.join(&frame, &at)
        {
            return;
        }
        if at.payload_len() > 16 && self.happens(Fault::Fragment, self.rates.fragment, coverage) {
            let id = self.random.u16(1..);
            for bytes in mangle::fragments(&frame.bytes, &at, id) {
                self.depart(now, Frame::new(bytes), coverage, sent);
            }
            return;
        }
        let frame = self.mangle(frame, &at, coverage);
        self.depart(now, frame, coverage, sent);
    }

    /// What others send besides.
    fn strangers(
        &mut self,
        now: Ns,
        frame: &Frame,
        at: &Layout,
        coverage: &mut Coverage,
        sent: &mut Sent,
    ) {
        if self.happens(Fault::Stranger, self.rates.stranger, coverage) {
            let bytes = mangle::stranger(&frame.bytes, at, &mut self.random);
            sent.arrivals
                .push(self.inject(now, self.rates.delay, Frame::new(bytes)));
        }
        if self.happens(Fault::Foreign, self.rates.foreign, coverage) {
            let bytes = mangle::foreign(&frame.bytes, at, &mut self.random);
            sent.arrivals
                .push(self.inject(now, self.rates.delay, Frame::new(bytes)));
        }
        if self.happens(Fault::ForgedPiece, self.rates.forged_piece, coverage) {
            for bytes in mangle::forged_piece(&frame.bytes, at, &mut self.random) {
                sent.arrivals
                    .push(self.inject(now, self.rates.delay, Frame::new(bytes)));
            }
        }
        if self.happens(Fault::Tiny, self.rates.tiny, coverage) {
            let bytes = mangle::tiny(&frame.bytes, at, &mut self.random);
            sent.arrivals
                .push(self.inject(now, self.rates.delay, Frame::new(bytes)));
        }
    }

    fn is_too_big(&mut self, frame: &Frame, at: &Layout, coverage: &mut Coverage) -> bool {
        let bytes = at.end - at.l3;
        if bytes > PATH_MTU_MIN
            && !self.forge
            && self.happens(Fault::TooBig, self.rates.too_big, coverage)
        {
            self.path_mtu = self
                .random
                .usize(PATH_MTU_MIN..bytes.min(self.path_mtu).max(PATH_MTU_MIN + 1));
        }
        frame.bytes.len() <= FRAME_BYTES_MAX + 4 && bytes > self.path_mtu
    }

    /// Changes of bytes: at most one kind per frame.
    fn mangle(&mut self, mut frame: Frame, at: &Layout, coverage: &mut Coverage) -> Frame {
        let rates = self.rates;
        if self.happens(Fault::Corrupt, rates.corrupt, coverage) {
            mangle::corrupt(&mut frame.bytes, at, &mut self.random);
            frame.bare = false;
        } else if self.happens(Fault::Ecn, rates.ecn, coverage) {
            mangle::congestion_mark(&mut frame.bytes, at);
            frame.bare = false;
        } else if !at.v6 && self.happens(Fault::IpOptions, rates.ip_options, coverage) {
            frame = Frame::new(mangle::ip_options(&frame.bytes, at));
        } else if self.forge
            && at.payload_len() == 0
            && self.happens(Fault::Urgent, rates.urgent, coverage)
        {
            mangle::urgent(&mut self.random, &mut frame.bytes, at);
            frame.bare = false;
        } else if self.happens(Fault::TcpOption, rates.tcp_option, coverage) {
            if let Some(bytes) = mangle::tcp_option(&frame.bytes, at) {
                frame = Frame::new(bytes);
            }
        }
        frame
    }

    /// Appends the payload to the last segment of the flow under way, if it is its continuation.
    fn join(&mut self, frame: &Frame, at: &Layout) -> bool {
        let last = self.flight.values_mut().rev().find(|other| {
            Layout::of(&other.bytes)
                .is_some_and(|there| there.flow(&other.bytes) == at.flow(&frame.bytes))
        });
        let Some(last) = last else { return false };
        // Who joins segments has verified them.
        if !last.bare && Segment::parse(&last.bytes).is_err() {
            return false;
        }
        match mangle::join(&last.bytes, &frame.bytes, at) {
            Some(bytes) if bytes.len() <= FRAME_BYTES_MAX => {
                *last = Frame::new(bytes);
                true
            }
            _ => false,
        }
    }

    /// Delays and copies.
    fn depart(&mut self, now: Ns, frame: Frame, coverage: &mut Coverage, sent: &mut Sent) {
        let rates = self.rates;
        let spread = rates.jitter_max.max(US);
        let mut at = (now + rates.delay).max(self.last_arrival);
        if self.happens(Fault::Reorder, rates.reorder, coverage) {
            at += self.random.u64(0..spread * 4);
        } else if self.happens(Fault::Jitter, rates.jitter, coverage) {
            at += self.random.u64(0..spread);
            self.last_arrival = at;
        } else {
            self.last_arrival = at;
        }
        if self.happens(Fault::Duplicate, rates.duplicate, coverage) {
            let after = at - now + self.random.u64(0..spread * 2);
            sent.arrivals.push(self.inject(now, after, frame.clone()));
        }
        if self.happens(Fault::OldDuplicate, rates.old_duplicate, coverage) {
            let after = self.random.u64(10 * MS..4 * SECOND);
            sent.arrivals.push(self.inject(now, after, frame.clone()));
        }
        sent.arrivals.push(self.inject(now, at - now, frame));
    }
}
