// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a connection's owner does: connect, send, shut down, close, abort.

use crate::api::State;
use crate::core::Core;
use crate::sock::{Sock, Xmit};
use erb_wire::flags;

impl Sock {
    /// tcp_connect(): the SYN leaves.
    pub(crate) fn connect(&mut self, core: &mut Core) {
        let isn = self.snd_una;
        self.write_seq = isn.wrapping_add(1);
        self.data_first = self.write_seq;
        self.rcv_wnd = core.config.rcv_buf.min(65535);
        self.transmit(core, isn, 0, flags::SYN, 0);
        self.record_sent(core, self.write_seq, 1);
        self.xmit = Some((core.now + self.rto_now(), Xmit::Retransmit));
    }

    /// tcp_sendmsg(): as much as the send buffer takes.
    pub(crate) fn send(&mut self, core: &mut Core, data: &[u8]) -> usize {
        let opening = self.state == State::SynSent && !self.fin_queued;
        if !self.may_write() && !opening {
            return 0;
        }
        let take = data.len().min(self.send_room(core));
        self.blocked |= take < data.len();
        if take > 0 {
            self.unacked.extend(&data[..take]);
            self.write_seq = self.write_seq.wrapping_add(take as u32);
            self.push(core);
        }
        take
    }

    /// tcp_shutdown(): FIN behind what is queued.
    pub(crate) fn shutdown_write(&mut self, core: &mut Core) {
        match self.state {
            State::SynSent => return self.done(),
            _ if !self.may_write() => return,
            State::CloseWait => self.state = State::LastAck,
            _ => self.state = State::FinWait1,
        }
        self.fin_queued = true;
        self.write_seq = self.write_seq.wrapping_add(1);
        self.push(core);
    }

    /// tcp_close().
    pub(crate) fn close(&mut self, core: &mut Core) {
        if self.dead {
            return;
        }
        self.dead = true;
        if self.state == State::Close {
            return;
        }
        if !self.readable.is_empty() {
            self.send_reset(core);
            return self.done();
        }
        self.shutdown_write(core);
        if self.state == State::FinWait2 && self.fate.is_none() {
            self.time_wait(State::FinWait2, core.config.fin_timeout_ns);
        }
    }

    /// tcp_disconnect().
    pub(crate) fn abort(&mut self, core: &mut Core) {
        self.dead = true;
        let quiet = matches!(self.state, State::Close | State::SynSent);
        if quiet {
            return self.done();
        }
        self.send_reset(core);
        self.done();
    }
}
