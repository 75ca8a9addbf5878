// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Timers of a connection: retransmission, window probes, delayed acknowledgement, keepalive.

use crate::api::{EventKind, State};
use crate::config::{ATO_MIN, MS, RTO_INIT, RTO_MAX, RTO_MIN};
use crate::core::Core;
use crate::sock::{Sock, Xmit};
use crate::{Keepalive, Ns};

/// TCP_RESOURCE_PROBE_INTERVAL: when a probe could carry data after all.
const RESOURCE_PROBE: Ns = 500 * MS;

/// tcp_model_timeout(): time that `boundary` doublings of `base` take.
fn model_timeout(boundary: u32, base: Ns) -> Ns {
    let doublings = (RTO_MAX / base).ilog2();
    if boundary <= doublings {
        ((2 << boundary) - 1) * base
    } else {
        ((2 << doublings) - 1) * base + u64::from(boundary - doublings) * RTO_MAX
    }
}

impl Sock {
    /// The retransmission timeout with its back-off.
    pub(crate) fn rto_now(&self) -> Ns {
        (self.rto << self.timing.backoff.min(16)).min(RTO_MAX)
    }

    /// tcp_probe0_when().
    pub(crate) fn probe_interval(&self) -> Ns {
        (self.rto.max(RTO_MIN) << self.timing.backoff.min(16)).min(RTO_MAX)
    }

    /// Runs whatever is due.
    pub(crate) fn on_timer(&mut self, core: &mut Core) {
        if self.delack_at.is_some_and(|at| at <= core.now) {
            self.delack_at = None;
            self.delayed_ack(core);
        }
        if let Some((at, kind)) = self.xmit.filter(|x| x.0 <= core.now) {
            debug_assert!(at <= core.now);
            match kind {
                Xmit::Retransmit => self.retransmit_timeout(core),
                Xmit::TailProbe => self.tail_probe(core),
                Xmit::WindowProbe => self.window_probe(core),
            }
        }
        if self.keepalive_at.is_some_and(|at| at <= core.now) {
            self.keepalive_at = None;
            self.keepalive(core);
        }
    }

    /// tcp_delack_timer_handler().
    fn delayed_ack(&mut self, core: &mut Core) {
        if !self.owed.ack_scheduled || self.fate.is_some() {
            return;
        }
        if self.owed.pingpong {
            self.owed.pingpong = false; // the answer that was to carry it did not come
            self.owed.ato = ATO_MIN;
        } else {
            self.owed.ato = (self.owed.ato * 2).min(self.rto);
        }
        self.send_ack(core);
    }

    /// tcp_retransmit_timer().
    fn retransmit_timeout(&mut self, core: &mut Core) {
        if self.sent.is_empty() {
            self.xmit = None;
            return;
        }
        if self.gives_up(core) {
            return self.write_error(core);
        }
        core.counters.timeouts += 1;
        self.enter_loss();
        self.timing.retransmits += 1;
        self.send_again(core, 0);
        self.timing.retrans_stamp.get_or_insert(core.now);
        self.timing.backoff += 1;
        self.xmit = Some((core.now + self.rto_now(), Xmit::Retransmit));
    }

    /// tcp_write_timeout(): how long the peer may be silent, counted from the first repetition.
    fn gives_up(&self, core: &Core) -> bool {
        let (boundary, base) = match self.state {
            State::SynSent => (core.config.syn_retries, RTO_INIT),
            _ if self.dead => (core.config.orphan_retries, RTO_MIN),
            _ => (core.config.retries2, RTO_MIN),
        };
        if self.state == State::SynSent {
            return self.timing.retransmits >= boundary;
        }
        let since = self
            .timing
            .retrans_stamp
            .filter(|_| self.timing.retransmits > 0);
        since.is_some_and(|at| core.now - at >= model_timeout(boundary, base))
    }

    /// tcp_write_err().
    fn write_error(&mut self, core: &mut Core) {
        if !self.dead {
            core.event(self.id, EventKind::TimedOut);
        }
        self.done();
    }

    /// tcp_probe_timer(): the peer's window is closed; it is asked for ever as long as it answers.
    fn window_probe(&mut self, core: &mut Core) {
        if !self.sent.is_empty() || self.write_seq == self.snd_nxt {
            self.timing.probes_out = 0;
            self.xmit = None;
            return;
        }
        let most = if self.dead {
            core.config.orphan_retries
        } else {
            core.config.retries2
        };
        if self.timing.probes_out >= most {
            return self.write_error(core);
        }
        core.counters.window_probes += 1;
        let sent = self.wake_peer(core);
        if sent {
            return self.rearm(core);
        }
        self.timing.probes_out += 1;
        if self.timing.backoff < core.config.retries2 {
            self.timing.backoff += 1;
        }
        self.xmit = Some((core.now + self.probe_interval(), Xmit::WindowProbe));
    }

    /// Sets the keepalive timer of a new connection.
    pub(crate) fn start_keepalive(&mut self, core: &Core) {
        self.keepalive_at = core.config.keepalive.map(|k| core.now + k.time);
    }

    /// tcp_keepalive_timer(), which also ends FIN_WAIT2 of closed sockets.
    fn keepalive(&mut self, core: &mut Core) {
        if self.dead && self.state == State::FinWait2 {
            self.time_wait(State::FinWait2, 0);
            return;
        }
        let Some(knobs) = core.config.keepalive else {
            return;
        };
        if matches!(self.state, State::Close | State::SynSent) {
            return;
        }
        let next = self.keepalive_step(core, knobs);
        self.keepalive_at = next.map(|after| core.now + after);
    }

    fn keepalive_step(&mut self, core: &mut Core, knobs: Keepalive) -> Option<Ns> {
        if !self.sent.is_empty() || self.write_seq != self.snd_nxt {
            return Some(knobs.time); // the other timers look after it
        }
        let idle = (core.now - self.lrcvtime).min(core.now - self.rcv_tstamp);
        if idle < knobs.time {
            return Some(knobs.time - idle);
        }
        if self.timing.probes_out >= knobs.probes {
            self.send_reset(core);
            self.write_error(core);
            return None;
        }
        core.counters.keepalive_probes += 1;
        if self.wake_peer(core) {
            return Some(RESOURCE_PROBE);
        }
        self.timing.probes_out += 1;
        Some(knobs.interval)
    }
}
