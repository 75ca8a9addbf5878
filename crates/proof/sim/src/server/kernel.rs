// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel as programs see it: clocks, look-ups, sockets, the device.

use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};

use erb_sim_kernel::{Kernel, Packet, Sock};
use erb_sim_tcp::{Look, State, View};

use crate::ConnId;
use crate::server::{Looked, Server};
use crate::time::coarse;

/// [`Kernel`] of a server.
pub struct KernelView(Weak<Server>);

impl KernelView {
    /// The kernel of this server.
    #[must_use]
    pub fn new(server: &Rc<Server>) -> Self {
        Self(Rc::downgrade(server))
    }

    fn server(&self) -> Rc<Server> {
        self.0
            .upgrade()
            .expect("programs run only while their server lives")
    }
}

/// A socket's number: never used again, as its cookie is not; request, connection and TIME_WAIT of
/// one cookie are three sockets.
fn number_of(look: &Look) -> u64 {
    let kind = match look.state {
        State::Listen => 0,
        State::NewSynRecv => 1,
        State::TimeWait => 2,
        _ => 3,
    };
    look.cookie << 2 | kind
}

/// What a program sees of a connection.
pub(super) fn sock_of(view: &View, cookie: u64) -> Sock {
    Sock {
        cookie,
        bytes_received: view.bytes_received,
        bytes_acked: view.bytes_acked,
        data_segs_in: view.data_segs_in,
        rcv_nxt: view.rcv_nxt,
        copied_seq: view.copied_seq,
        urg_data: u16::from(view.urg_data),
        rcv_wup: view.rcv_wup,
        rcv_wnd: view.rcv_wnd,
        snd_una: view.snd_una,
        snd_nxt: view.snd_nxt,
        write_seq: view.write_seq,
        snd_wnd: view.snd_wnd,
        max_window: view.max_window,
        tsoffset: view.tsoffset,
        mss_cache: view.mss_cache,
        ts_recent: view.ts_recent,
        ts_recent_s: view.ts_recent_s,
        state: view.state,
        tstamp_ok: view.tstamp_ok.into(),
        snd_wscale: view.snd_wscale,
        rcv_wscale: view.rcv_wscale,
        usec_ts: view.usec_ts.into(),
        out_of_order: view.out_of_order.into(),
        ..Sock::default()
    }
}

impl Server {
    /// The newest timestamps that TCP has of a client's machine, by the client's port.
    pub fn newest_stamps(&self, ip: IpAddr) -> impl Iterator<Item = (u16, u32)> {
        let host = self.host.borrow();
        let pairs = self.pairs.borrow();
        let ours = pairs.iter().filter(|(_, pair)| pair.1.ip() == ip);
        let stamps: Vec<_> = ours
            .filter_map(|(sock, pair)| {
                let view = host.view(*sock).filter(|view| view.tstamp_ok)?;
                Some((pair.1.port(), view.ts_recent))
            })
            .collect();
        stamps.into_iter()
    }

    /// Whose connection the socket with this cookie serves.
    #[must_use]
    pub fn conn_of(&self, cookie: u64) -> Option<ConnId> {
        self.conns.borrow().get(&cookie).copied()
    }
}

impl Kernel for KernelView {
    fn now_ns(&self) -> u64 {
        self.server().inner.now()
    }

    fn now_coarse_ns(&self) -> u64 {
        coarse(self.server().inner.now())
    }

    fn lookup(&self, _ifindex: u32, local: SocketAddr, remote: SocketAddr) -> Option<u64> {
        let server = self.server();
        let mut look = server.host.borrow().lookup(local, remote)?;
        if look.id.is_some() && server.blink.take() {
            // As between a request and its connection: __inet_lookup_established() takes no lock.
            let nobody = SocketAddr::new(remote.ip(), 0);
            look = server.host.borrow().lookup(local, nobody)?;
        }
        let number = number_of(&look);
        server.looked.borrow_mut().insert(
            number,
            Looked {
                look,
                pair: (local, remote),
            },
        );
        Some(number)
    }

    fn is_cookie(&self, local: SocketAddr, remote: SocketAddr, seq: u32, ack: u32) -> bool {
        let server = self.server();
        let now = server.inner.now();
        let host = server.host.borrow();
        host.is_cookie(now, local, remote, (seq, ack))
    }

    fn view(&self, sock: u64) -> Option<Sock> {
        let server = self.server();
        let Looked { look, pair } = *server.looked.borrow().get(&sock)?;
        // The field stays 0 until somebody has asked for the cookie.
        let shown = |cookie: u64| {
            if server.cookies.borrow().contains(&cookie) {
                cookie
            } else {
                0
            }
        };
        if let Some(id) = look.id {
            let Some(view) = server.host.borrow().view(id) else {
                server.looked.borrow_mut().remove(&sock);
                return None;
            };
            return Some(sock_of(&view, shown(view.cookie)));
        }
        if !look.listen {
            let now = server.host.borrow().lookup(pair.0, pair.1);
            if now.is_none_or(|now| number_of(&now) != sock) {
                server.looked.borrow_mut().remove(&sock);
                return None;
            }
        }
        let mut sock = Sock {
            state: look.state as u8,
            cookie: shown(look.cookie),
            ..Sock::default()
        };
        if look.state != State::Listen {
            sock.rcv_isn = look.rcv_isn;
            sock.snt_isn = look.snt_isn;
            sock.ts_recent = look.ts_recent;
        } else {
            sock.fastopen = server.fastopen.get();
        }
        Some(sock)
    }

    fn transmit(&self, _ifindex: u32, packet: Packet) {
        self.server().leave(&packet, 0);
    }

    fn leaves(&self, entry: &erb_abi::conn) {
        self.server().entry_left(entry);
    }

    fn receive(&self, packet: Packet) -> bool {
        self.server().receive(packet)
    }

    fn random(&self) -> u32 {
        self.server().inner.random.borrow_mut().u32(..)
    }
}
