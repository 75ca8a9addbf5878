// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection: a real, accepted socket on the server's side, a client made of segments.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use erb_abi::{self as abi, ControlPlane as _};
use erb_wire::Options;
use libbpf_rs::{MapCore as _, MapFlags};

use crate::fixture::{Bench, conn_key, key_bytes};
use crate::frame::{ACK, Family, PSH, RST, SYN, Segment};
use crate::run::{Outcome, SkbContext, run_skb, run_xdp};

/// include/uapi/linux/bpf.h `enum xdp_action` and the TCX verdicts.
pub const XDP_DROP: u32 = 1;
/// See [`XDP_DROP`].
pub const XDP_PASS: u32 = 2;
/// See [`XDP_DROP`].
pub const XDP_TX: u32 = 3;
/// TCX_NEXT, -1 as a program returns it.
pub const TCX_NEXT: u32 = u32::MAX;
/// See [`TCX_NEXT`].
pub const TCX_DROP: u32 = 2;

/// bpf/net/tier_xdp.h `META_TRANSLATED`.
pub const META_TRANSLATED: u32 = 0x4552_4254;
/// bpf/net/tier_xdp.h `META_TO_TC`.
pub const META_TO_TC: u32 = 0x4552_4243;

/// Time in which the kernel on the same machine surely has reacted.
const PATIENCE: Duration = Duration::from_secs(10);
/// The client's window scale; with it its window is 8 MB.
const CLIENT_WSCALE: u8 = 7;
/// The client's first sequence number: it wraps soon, so that every row crosses or nears the wrap.
const CLIENT_ISN: u32 = u32::MAX - 40;

/// The replay buffer is a ring, and a replay ends at the ring's end: a row's few kilobytes must not
/// reach it by chance (`answers::replies_across_the_rings_end` does on purpose).
const ISN_IN_RING_MAX: u32 = abi::REPLAY_BYTES / 4;

/// What kind of connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Version of the Internet protocol.
    pub family: Family,
    /// Timestamps.
    pub ts: bool,
    /// Window scaling and selective acknowledgements.
    pub scale: bool,
    /// The MSS that the client announces.
    pub mss: u16,
    /// Tag of the frames given to the programs (the handshake has none: there is no VLAN device).
    pub vlan: Option<u16>,
}

/// IPv4 with timestamps, as most connections are.
pub const V4: Shape = Shape {
    family: Family::V4,
    ts: true,
    scale: true,
    mss: 1460,
    vlan: None,
};
/// IPv6 with timestamps.
pub const V6: Shape = Shape {
    family: Family::V6,
    ..V4
};
/// IPv4 without timestamps.
pub const V4_NO_TS: Shape = Shape { ts: false, ..V4 };
/// IPv6 without timestamps.
pub const V6_NO_TS: Shape = Shape { ts: false, ..V6 };
/// IPv4 without any option but the MSS, as the smallest stacks have it.
pub const V4_BARE: Shape = Shape {
    scale: false,
    ..V4_NO_TS
};
/// IPv4 in a VLAN.
pub const V4_VLAN: Shape = Shape {
    vlan: Some(77),
    ..V4
};
/// IPv6 in a VLAN, without timestamps.
pub const V6_VLAN: Shape = Shape {
    vlan: Some(77),
    ..V6_NO_TS
};

/// A connection under test.
pub struct Scene<'bench> {
    /// The bench it runs on.
    pub bench: &'bench mut Bench,
    /// What kind of connection it is.
    pub shape: Shape,
    /// The accepted socket.
    pub server: Option<TcpStream>,
    /// The client's port.
    pub port: u16,
    /// The client's next sequence number.
    pub snd: u32,
    /// The client's next expected sequence number (client space).
    pub rcv: u32,
    /// The server's initial sequence number.
    pub server_isn: u32,
    /// The client's clock for timestamps.
    pub clock: u32,
    /// The newest TSval of the server.
    pub echo: u32,
}

impl<'bench> Scene<'bench> {
    /// Opens a connection by a three-way handshake past the attached egress program.
    ///
    /// # Panics
    /// If the server does not answer.
    pub fn connect(bench: &'bench mut Bench, shape: Shape) -> Self {
        let mut scene = Self::half_open(bench, shape);
        scene.finish_handshake();
        scene
    }

    /// As [`Self::connect`], but the handshake's last ACK is still to come.
    ///
    /// # Panics
    /// If the server does not answer.
    pub fn half_open(bench: &'bench mut Bench, shape: Shape) -> Self {
        let mut scene = Self::closed(bench, shape);
        loop {
            scene.shake_hands();
            if scene.server_isn % abi::REPLAY_BYTES < ISN_IN_RING_MAX {
                return scene;
            }
            // Not this one: the handshake is called off, and the next has another port.
            let mut reset = scene.segment(b"");
            reset.flags = RST;
            scene.to_kernel(&reset.bytes());
            scene.port = scene.bench.port();
            scene.snd = CLIENT_ISN;
        }
    }

    fn closed(bench: &'bench mut Bench, shape: Shape) -> Self {
        let port = bench.port();
        Self {
            bench,
            shape,
            server: None,
            port,
            snd: CLIENT_ISN,
            rcv: 0,
            server_isn: 0,
            clock: 1_000_000,
            echo: 0,
        }
    }

    /// Resets the connection and opens another with the same address pair.
    ///
    /// # Panics
    /// If the server does not answer.
    pub fn reconnect(&mut self) {
        self.reset();
        self.snd = self.snd.wrapping_add(1_000_000);
        self.shake_hands();
        self.finish_handshake();
    }

    fn shake_hands(&mut self) {
        let mut syn = self.segment(b"");
        syn.flags = SYN;
        syn.ack = 0;
        if let Some(ts) = &mut syn.ts {
            ts.1 = 0;
        }
        let [high, low] = self.shape.mss.to_be_bytes();
        syn.options.extend([2, 4, high, low]);
        if self.shape.scale {
            syn.options.extend([1, 3, 3, CLIENT_WSCALE, 1, 1, 4, 2]);
        }
        self.to_kernel(&syn.bytes());
        let answer = self.expect_from_kernel(|segment| segment.flags & SYN != 0);
        self.server_isn = answer.seq;
        // Not in the usual place: the kernel wants exactly this value back.
        if let Some((value, _)) = Options::parse(&answer.options).ts {
            self.echo = value;
        }
        self.snd = self.snd.wrapping_add(1);
        self.rcv = answer.seq.wrapping_add(1);
    }

    fn finish_handshake(&mut self) {
        let ack = self.segment(b"");
        self.to_kernel(&ack.bytes());
        self.accept();
    }

    /// Takes the connection from the listening socket.
    ///
    /// # Panics
    /// If it is not there.
    pub fn accept(&mut self) {
        let listener = self.bench.listener(self.shape.family);
        listener.set_nonblocking(true).expect("listener");
        let (stream, peer) = patient("accept", || listener.accept().ok());
        assert_eq!(
            peer.port(),
            self.port,
            "an older connection was in the queue"
        );
        stream.set_nonblocking(false).expect("stream");
        stream.set_read_timeout(Some(PATIENCE)).expect("stream");
        stream.set_nodelay(true).expect("stream");
        self.server = Some(stream);
    }

    /// The client's next segment, with this payload.
    pub fn segment(&mut self, payload: &[u8]) -> Segment {
        self.clock += 1;
        let mut segment = Segment::new(self.shape.family, self.port);
        segment.vlan = self.shape.vlan.into_iter().collect();
        segment.seq = self.snd;
        segment.ack = self.rcv;
        segment.ts = self.shape.ts.then_some((self.clock, self.echo));
        segment.payload = payload.to_vec();
        if !payload.is_empty() {
            segment.flags = PSH | ACK;
        }
        segment
    }

    /// Gives a frame to the server's kernel; the wire has no VLAN device, so the tag goes.
    ///
    /// # Panics
    /// If the device refuses it.
    pub fn to_kernel(&self, frame: &[u8]) {
        let mut bytes = frame.to_vec();
        while bytes.get(12..14) == Some(&[0x81, 0x00]) {
            bytes.drain(12..16);
        }
        let refused = self.bench.wire.send(&[&bytes], 100, std::thread::yield_now);
        assert_eq!(refused, 0, "the wire refused a frame");
    }

    /// Segments of this connection that have come out of the server's device since the last call.
    ///
    /// # Panics
    /// If the wire cannot be read or a frame is damaged.
    pub fn from_kernel(&mut self) -> Vec<Segment> {
        let mut found = Vec::new();
        loop {
            let bench = &mut *self.bench;
            if bench.wire.receive(&mut bench.batch).expect("wire") == 0 {
                break;
            }
            for frame in bench.batch.frames() {
                let Ok(segment) = Segment::parse(frame) else {
                    continue; // IPv6 housekeeping of the server
                };
                if segment.client_port == self.port && !segment.up {
                    found.push(segment);
                }
            }
        }
        for segment in &found {
            if let Some((value, _)) = segment.ts {
                self.echo = value;
            }
        }
        found
    }

    /// Waits for a segment from the server.
    ///
    /// # Panics
    /// If none comes.
    pub fn expect_from_kernel(&mut self, wanted: impl Fn(&Segment) -> bool) -> Segment {
        patient("a segment of the server", || {
            self.from_kernel()
                .into_iter()
                .find(|segment| wanted(segment))
        })
    }

    /// Runs `erb_xdp` on a frame of this connection.
    ///
    /// # Panics
    /// If the kernel does not run it.
    pub fn xdp(&self, frame: &[u8]) -> Outcome {
        run_xdp(&self.bench.programs.xdp, frame, self.bench.ifindex).expect("erb_xdp")
    }

    /// Runs `erb_tc_ingress` on a frame, as a packet that has just arrived.
    ///
    /// # Panics
    /// If the kernel does not run it.
    pub fn ingress(&self, frame: &[u8], gso_segs: u32) -> Outcome {
        let context = SkbContext {
            ifindex: self.bench.ifindex,
            ingress_ifindex: self.bench.ifindex,
            gso_segs,
            mark: 0,
        };
        self.ingress_in(frame, context)
    }

    /// The same with a context of one's own.
    ///
    /// # Panics
    /// If the kernel does not run it.
    pub fn ingress_in(&self, frame: &[u8], context: SkbContext) -> Outcome {
        run_skb(&self.bench.programs.ingress, frame, context)
            .unwrap_or_else(|why| panic!("erb_tc_ingress: {why:#}; frame {frame:02x?}"))
    }

    /// Runs `erb_tc_egress` on a frame, as a packet of this machine. The test's packets belong to a
    /// socket of the test run, so the entry takes any owner meanwhile.
    ///
    /// # Panics
    /// If the kernel does not run it.
    pub fn egress(&self, frame: &[u8]) -> Outcome {
        let cookie = self.entry().map(|entry| entry.cookie);
        self.edit_if_there(|entry| entry.cookie = abi::COOKIE_UNKNOWN as u64);
        let context = SkbContext {
            ifindex: self.bench.ifindex,
            ..Default::default()
        };
        let outcome = run_skb(&self.bench.programs.egress, frame, context).expect("erb_tc_egress");
        if let Some(cookie) = cookie {
            self.edit(|entry| entry.cookie = cookie);
        }
        outcome
    }

    /// A segment of the server with this payload, kernel space, as egress gets it. `seq` is where
    /// the kernel would go on.
    #[must_use]
    pub fn reply_segment(&self, seq: u32, payload: &[u8]) -> Segment {
        let mut segment = Segment::new(self.shape.family, self.port);
        segment.up = false;
        segment.vlan = self.shape.vlan.into_iter().collect();
        segment.flags = PSH | ACK;
        segment.seq = seq;
        segment.ack = self.snd;
        segment.ts = self.shape.ts.then_some((self.echo, self.clock));
        segment.payload = payload.to_vec();
        segment
    }

    /// Sends a segment up as the attached programs would: XDP, TC where XDP leaves it to that, then
    /// the kernel. Moves the client's sequence number on. Returns XDP's outcome.
    pub fn up(&mut self, segment: &Segment) -> Outcome {
        let outcome = self.xdp(&segment.bytes());
        self.snd = segment.seq.wrapping_add(segment.payload.len() as u32);
        if outcome.verdict == XDP_PASS {
            if outcome.meta == Some(META_TRANSLATED) {
                self.to_kernel(&outcome.frame);
            } else {
                let after = self.ingress(&outcome.frame, 0);
                if after.verdict == TCX_NEXT {
                    self.to_kernel(&after.frame);
                }
            }
        }
        outcome
    }

    /// Sends a request up and lets the server's process read it.
    ///
    /// # Panics
    /// If it does not arrive byte for byte.
    pub fn request(&mut self, payload: &[u8]) {
        let segment = self.segment(payload);
        self.up(&segment);
        self.read_request(payload);
    }

    /// The server's process reads exactly this.
    ///
    /// # Panics
    /// If it reads something else, or nothing.
    pub fn read_request(&self, payload: &[u8]) {
        let mut read = vec![0; payload.len()];
        let mut server = self.server.as_ref().expect("open");
        server
            .read_exact(&mut read)
            .expect("the request reaches the server");
        assert_eq!(read, payload, "the server reads what the client sent");
    }

    /// The server's process answers; the client takes the reply (translated by the attached egress
    /// program) into account. Returns its segment.
    ///
    /// # Panics
    /// If it does not arrive in one segment at the client's next expected number.
    pub fn reply(&mut self, payload: &[u8]) -> Segment {
        let mut server = self.server.as_ref().expect("open");
        server.write_all(payload).expect("write");
        let segment = self.expect_from_kernel(|segment| !segment.payload.is_empty());
        assert_eq!(segment.payload, payload, "the reply is whole");
        assert_eq!(
            segment.seq, self.rcv,
            "the reply follows what the client has"
        );
        self.rcv = self.rcv.wrapping_add(payload.len() as u32);
        segment
    }

    /// The client's acknowledgement goes up and the kernel has taken it.
    pub fn acknowledge(&mut self) {
        let ack = self.segment(b"");
        self.up(&ack);
        patient("the kernel takes the ACK", || {
            (self.unacked() == 0).then_some(())
        });
    }

    /// One request answered by the server and acknowledged: the connection is FAST and quiescent.
    ///
    /// # Panics
    /// If it is not FAST then.
    pub fn make_fast(&mut self) {
        self.make_answered();
        self.acknowledge();
        assert_eq!(
            u32::from(self.entry().expect("tracked").state),
            abi::CONN_FAST
        );
    }

    /// As [`Self::make_fast`], but the kernel has not got the acknowledgement yet.
    pub fn make_answered(&mut self) {
        self.request(b"*2\r\n$6\r\nEXISTS\r\n$1\r\nx\r\n");
        self.reply(b":0\r\n");
    }

    /// FAST, and a PING was answered by XDP: both deltas are 14 and 7, the reply is acknowledged
    /// only with the next packet.
    ///
    /// # Panics
    /// If it is not answered.
    pub fn make_spliced(&mut self) {
        self.make_fast();
        let ping = self.segment(b"*1\r\n$4\r\nPING\r\n");
        let outcome = self.up(&ping);
        assert_eq!(outcome.verdict, XDP_TX, "PING is answered");
        assert_eq!(self.take_answer(&outcome), b"+PONG\r\n");
    }

    /// The client takes an answer of XDP into account: acknowledged with its next packet. Returns
    /// the payload.
    ///
    /// # Panics
    /// If it is no segment.
    pub fn take_answer(&mut self, outcome: &Outcome) -> Vec<u8> {
        let answer = Segment::parse(&outcome.frame).expect("answer");
        self.echo = answer.ts.map_or(0, |ts| ts.0);
        self.rcv = self.rcv.wrapping_add(answer.payload.len() as u32);
        answer.payload
    }

    /// Bytes that the kernel has sent and not seen acknowledged, in segments.
    fn unacked(&self) -> u32 {
        self.info().tcpi_unacked
    }

    /// TCP_INFO of the accepted socket.
    ///
    /// # Panics
    /// If the socket is closed.
    #[must_use]
    pub fn info(&self) -> libc::tcp_info {
        let server = self.server.as_ref().expect("open");
        // SAFETY: plain integers; all zeroes is a valid value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: info is live and of the size given.
        let result = unsafe {
            libc::getsockopt(
                server.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut size,
            )
        };
        assert_eq!(result, 0, "TCP_INFO");
        info
    }

    /// The connection's entry, if there is one.
    ///
    /// # Panics
    /// If the map cannot be read.
    #[must_use]
    pub fn entry(&self) -> Option<Box<abi::conn>> {
        let key = key_bytes(&conn_key(self.shape.family, self.port));
        let bytes = self
            .bench
            .conns
            .lookup(&key, MapFlags::LOCK)
            .expect("erb_conns")?;
        assert_eq!(bytes.len(), size_of::<abi::conn>());
        // SAFETY: the length was checked; conn is plain data for which any bytes are valid, and
        // the read does not ask for alignment.
        Some(Box::new(unsafe {
            bytes.as_ptr().cast::<abi::conn>().read_unaligned()
        }))
    }

    /// Changes the connection's entry.
    ///
    /// # Panics
    /// If there is none.
    pub fn edit(&self, change: impl FnOnce(&mut abi::conn)) {
        assert!(self.edit_if_there(change), "no entry to edit");
    }

    fn edit_if_there(&self, change: impl FnOnce(&mut abi::conn)) -> bool {
        let Some(mut entry) = self.entry() else {
            return false;
        };
        change(&mut entry);
        // SAFETY: conn is plain data without padding that matters; the slice covers it exactly.
        let bytes = unsafe {
            std::slice::from_raw_parts((&raw const *entry).cast::<u8>(), size_of::<abi::conn>())
        };
        let key = key_bytes(&conn_key(self.shape.family, self.port));
        self.bench
            .conns
            .update(&key, bytes, MapFlags::LOCK | MapFlags::EXIST)
            .expect("erb_conns");
        true
    }

    /// Ends the connection with a reset and gives back what its entry holds.
    fn close(&mut self) {
        self.reset();
        self.give_back();
    }

    fn reset(&mut self) {
        if let Some(server) = self.server.take() {
            let socket = nix::sys::socket::sockopt::Linger;
            let now = libc::linger {
                l_onoff: 1,
                l_linger: 0,
            };
            // A socket that is gone already needs no reset.
            let _ = nix::sys::socket::setsockopt(&server, socket, &now);
        }
    }

    fn give_back(&mut self) {
        self.bench.open_for_service();
        self.bench.empty_cache();
        let Some(entry) = self.entry() else { return };
        self.edit(|entry| entry.absent = abi::ABSENT_LONG as u8);
        let row = abi::sweep_row {
            key: conn_key(self.shape.family, self.port),
            cookie: entry.cookie,
            proof_pos: entry.h.proof_pos,
            ..Default::default()
        };
        let released = self.bench.dp.release(&row, true);
        if !std::thread::panicking() {
            assert!(released.expect("erb_release"), "the entry is released");
            self.bench.settle();
            let fence = self.bench.dp.control().fence();
            assert_eq!(fence, 0, "the fence is open again");
        }
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Calls `attempt` until it gives something.
///
/// # Panics
/// If nothing comes in time.
pub fn patient<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let (began, limit) = (Instant::now(), erb_steady::patient(PATIENCE));
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        if began.elapsed() > limit {
            erb_steady::out_of_patience(format_args!("waited in vain for: {what}"));
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}
