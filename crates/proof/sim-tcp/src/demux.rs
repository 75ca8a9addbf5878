// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which socket a segment is for: tcp_v4_rcv().

use crate::Ns;
use crate::host::{Entry, Host, Kind};
use crate::request::{Request, RequestSays};
use crate::timewait::TimeWaitSays;
use erb_wire::{Segment, flags};

impl Host {
    pub(crate) fn deliver(&mut self, now: Ns, seg: &Segment) {
        self.core.now = now;
        let pair = (seg.dst, seg.src);
        match self.table.get_mut(&pair).map(|entry| &mut entry.kind) {
            Some(Kind::Full(at)) => {
                let at = *at;
                self.input_full(at, seg);
            }
            Some(Kind::TimeWait(tw)) => {
                let says = tw.input(&mut self.core, seg);
                if let TimeWaitSays::Ack = says {
                    tw.send_ack(&mut self.core, seg);
                }
                self.time_wait_said(seg, says);
            }
            Some(Kind::Request(request)) => {
                let says = request.input(&mut self.core, seg);
                self.request_said(seg, says);
            }
            None => match self.place_for(seg.dst) {
                Some(_) => self.listen_input(seg, None),
                None => self.core.reset_for(seg),
            },
        }
    }

    fn time_wait_said(&mut self, seg: &Segment, says: TimeWaitSays) {
        let pair = (seg.dst, seg.src);
        match says {
            TimeWaitSays::Taken | TimeWaitSays::Ack => self.arm(pair),
            TimeWaitSays::Reset => {
                self.core.reset_for(seg);
                self.remove_entry(pair);
            }
            TimeWaitSays::Gone => self.remove_entry(pair),
            TimeWaitSays::Syn(isn) => {
                if self.place_for(seg.dst).is_some() {
                    self.core.counters.time_wait_reused += 1;
                    self.remove_entry(pair);
                    self.listen_input(seg, Some(isn));
                } else if let Some(Entry {
                    kind: Kind::TimeWait(tw),
                    ..
                }) = self.table.get(&pair)
                {
                    tw.send_ack(&mut self.core, seg);
                }
            }
        }
    }

    fn request_said(&mut self, seg: &Segment, says: RequestSays) {
        let pair = (seg.dst, seg.src);
        match says {
            RequestSays::Taken => self.arm(pair),
            RequestSays::Reset => self.core.reset_for(seg),
            RequestSays::Drop(reset) => {
                if reset {
                    self.core.reset_for(seg);
                }
                self.remove_entry(pair);
            }
            RequestSays::Complete => {
                let full = self.listener_for(pair.0).is_none_or(|l| l.accept_full());
                if full {
                    self.core.counters.listen_drops += 1;
                    return; // the client's repetition may find room
                }
                let Some(Entry {
                    kind: Kind::Request(request),
                    ..
                }) = self.take_request(pair)
                else {
                    return;
                };
                self.adopt(&request, seg);
            }
        }
    }

    fn take_request(&mut self, pair: crate::host::Pair) -> Option<Entry> {
        let kind = std::mem::replace(&mut self.table.get_mut(&pair)?.kind, Kind::Full(usize::MAX));
        self.remove_entry(pair);
        if let Some(listener) = self.listener_for(pair.0) {
            listener.requests -= 1;
        }
        Some(Entry { kind, armed: None })
    }

    /// A segment for a listener: tcp_conn_request(), or the end of a handshake by cookie.
    fn listen_input(&mut self, seg: &Segment, isn: Option<u32>) {
        if seg.has(flags::RST) {
            return;
        }
        if !seg.has(flags::SYN) {
            return self.listen_ack(seg);
        }
        if seg.has(flags::ACK) {
            return self.core.reset_for(seg);
        }
        if seg.has(flags::FIN) {
            return;
        }
        let pair = (seg.dst, seg.src);
        let cookie = self.next_cookie();
        let drawn = self.core.draw_isn();
        let place = self.place_for(pair.0);
        let Some(listener) = place.and_then(|place| self.listeners.get_mut(&place)) else {
            return;
        };
        let cookies = self.core.config.syncookies;
        let wants = isn.is_none() && (cookies == 2 || listener.requests_full());
        if listener.accept_full() || (wants && cookies == 0) {
            self.core.counters.listen_drops += 1;
            return;
        }
        if wants {
            return listener.send_cookie(&mut self.core, &self.secret, seg);
        }
        listener.requests += 1;
        let tsoffset = self.secret.tsoffset(pair.0.ip(), pair.1.ip());
        let request = Request::new(&self.core, seg, cookie, isn.unwrap_or(drawn), tsoffset);
        request.send_syn_ack(&mut self.core, pair);
        self.table.insert(
            pair,
            Entry {
                kind: Kind::Request(Box::new(request)),
                armed: None,
            },
        );
        self.arm(pair);
    }

    fn listen_ack(&mut self, seg: &Segment) {
        if !seg.has(flags::ACK) {
            return;
        }
        let cookie = self.next_cookie();
        let Some(place) = self.place_for(seg.dst) else {
            return;
        };
        let listener = &self.listeners[&place];
        let full = listener.accept_full();
        let taken = match self.core.config.syncookies {
            0 => None,
            _ => listener.take_cookie(&mut self.core, &self.secret, seg, cookie),
        };
        match taken {
            Some(_) if full => self.core.counters.listen_drops += 1,
            Some(request) => self.adopt(&request, seg),
            None => self.core.reset_for(seg),
        }
    }
}
