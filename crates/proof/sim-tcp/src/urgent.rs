// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Urgent data, as a socket without SO_OOBINLINE has it: tcp_check_urg() of the kernel, and the reading of
//! tcp_recvmsg_locked(), which leaves the urgent byte out.

use crate::seq;
use crate::sock::Sock;
use erb_wire::{Segment, flags};

impl Sock {
    /// Takes the urgent pointer of an acceptable segment, with bytes or without.
    pub(crate) fn urgent_check(&mut self, seg: &Segment) {
        if !seg.has(flags::URG) {
            return;
        }
        // Without sysctl_tcp_stdurg the pointer is one behind the byte.
        let byte = seg
            .seq
            .wrapping_add(u32::from(seg.urgent.saturating_sub(1)));
        if seq::after(self.copied_seq, byte) || seq::before(byte, self.rcv_nxt) {
            return;
        }
        if self.urgent.is_some_and(|old| !seq::after(byte, old)) {
            return;
        }
        if self.urgent == Some(self.copied_seq) && self.readable.pop_front().is_some() {
            self.copied_seq = self.copied_seq.wrapping_add(1);
        }
        self.urgent = Some(byte);
    }

    /// Moves at most `max` bytes of what is readable; K4.
    pub(crate) fn copy(&mut self, max: usize, into: &mut Vec<u8>) -> usize {
        let mut copied = 0;
        while copied < max && !self.readable.is_empty() {
            let ahead = self.urgent.map(|byte| byte.wrapping_sub(self.copied_seq));
            if ahead == Some(0) {
                if copied > 0 {
                    break;
                }
                self.readable.pop_front();
                self.copied_seq = self.copied_seq.wrapping_add(1);
                self.urgent = None;
                continue;
            }
            let before = ahead.map_or(usize::MAX, |ahead| ahead as usize);
            let n = self.readable.len().min(max - copied).min(before);
            into.extend(self.readable.drain(..n));
            self.copied_seq = self.copied_seq.wrapping_add(n as u32);
            copied += n;
        }
        copied
    }
}
