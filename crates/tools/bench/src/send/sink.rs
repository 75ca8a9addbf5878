// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A peer that costs the sender no copy: the other end of a veth drops payload in TC, and a thread here says
//! what a receiver would say: that it has come.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, ensure};
use erb_lab::netns::{run_in, sysctl};
use erb_lab::offload::{self, Offload};
use etherparse::PacketBuilder;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, TC_INGRESS, TcHookBuilder};
use socket2::{Domain, Protocol, Socket, Type};

use crate::cputime;
use crate::generator::load;
use crate::netns::{CLIENT_IP, Pair, SERVER_IP, ifindex};

/// What the peer offers; both ends have agreed on a factor that makes megabytes of it.
const WINDOW: u16 = u16::MAX;
const TIME_TO_LIVE: u8 = 64;

#[repr(align(8))]
struct Aligned<T>(T);
static OBJECT: &Aligned<[u8; include_bytes!(concat!(env!("OUT_DIR"), "/sink.bpf.o")).len()]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/sink.bpf.o")));

/// The pair with its sink; undone when dropped.
pub struct Sink {
    listener: TcpListener,
    stop: Arc<AtomicBool>,
    acknowledger: Option<JoinHandle<Result<()>>>,
    object: Object,
    pair: Pair,
}

impl Sink {
    /// Makes it; acknowledgements are sent from this processor.
    pub fn build(core: usize) -> Result<Self> {
        let pair = Pair::make()?;
        for netns in [&pair.client, &pair.server] {
            sysctl(netns, "ipv4/tcp_timestamps", "0")?;
            // Every kernel has it, and it does not pace: timers would be measured beside the sends.
            sysctl(netns, "ipv4/tcp_congestion_control", "reno")?;
        }
        // The ends take packets as they come: gathering them is a receiver's work.
        offload::set(&pair.client, &pair.client_dev, Offload::Gro, false)?;
        offload::set(&pair.server, &pair.server_dev, Offload::Gro, false)?;
        let object = load(&OBJECT.0, "sink", 1)?;
        let index = i32::try_from(ifindex(&pair.client, &pair.client_dev)?)?;
        let mut programs = object.progs_mut();
        let program = programs
            .find(|it| it.name() == "sink")
            .context("no BPF program sink")?;
        let file = program.as_fd();
        run_in(&pair.client, || attach(file, index))?;
        drop(programs);
        let (listener, socket) = run_in(&pair.client, || {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))
                .context("no listener behind the sink")?;
            // 255, IPPROTO_RAW: packets have their own IP header.
            let socket = Socket::new(
                Domain::IPV4,
                Type::RAW,
                Some(Protocol::from(libc::IPPROTO_RAW)),
            );
            Ok((listener, socket.context("no raw socket")?))
        })?;
        let port = listener.local_addr()?.port();
        handle(&object, "port")?.update(
            &0_u32.to_ne_bytes(),
            &u64::from(port).to_ne_bytes(),
            MapFlags::ANY,
        )?;
        let stop = Arc::new(AtomicBool::new(false));
        let maps = Told {
            dropped: handle(&object, "dropped")?,
            expected: handle(&object, "expected")?,
            acknowledged: handle(&object, "acknowledged")?,
        };
        let told = Arc::clone(&stop);
        let acknowledger = thread::Builder::new()
            .name("acknowledger".to_owned())
            .spawn(move || {
                cputime::pin_this(core)?;
                acknowledge(&socket, port, &maps, &told)
            })?;
        Ok(Self {
            listener,
            stop,
            acknowledger: Some(acknowledger),
            object,
            pair,
        })
    }

    /// A connection whose payload goes nowhere, and its other end, to be kept until the sender has ended.
    pub fn connect(&self) -> Result<(TcpStream, TcpStream)> {
        let address = SocketAddr::from((CLIENT_IP, self.listener.local_addr()?.port()));
        let stream = run_in(&self.pair.server, || {
            TcpStream::connect(address).context("cannot connect to the sink")
        })?;
        let (peer, _) = self.listener.accept()?;
        Ok((stream, peer))
    }

    /// Payload that was taken so far.
    pub fn dropped_bytes(&self) -> Result<u64> {
        number(&handle(&self.object, "dropped")?)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.acknowledger.take() {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => eprintln!("acknowledgements have failed: {error:#}"),
                Err(_) => eprintln!("the thread that acknowledges has panicked"),
            }
        }
    }
}

/// What the sink tells of the last segment.
struct Told {
    dropped: MapHandle,
    expected: MapHandle,
    acknowledged: MapHandle,
}

/// Says what has come, whenever a segment has: also one that has come before, as its acknowledgement may be lost.
fn acknowledge(socket: &Socket, port: u16, told: &Told, stop: &AtomicBool) -> Result<()> {
    let mut said = 0;
    let to = SocketAddr::from((SERVER_IP, 0)).into();
    while !stop.load(Relaxed) {
        // Counted after the next byte is told, which is this segment's or a later one's.
        let dropped = number(&told.dropped)?;
        if dropped == said {
            std::hint::spin_loop();
            continue;
        }
        said = dropped;
        let word = number(&told.expected)?;
        let peer_port = u16::try_from(word >> 32)?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the lower half is a sequence number"
        )]
        let (next, own) = (word as u32, number(&told.acknowledged)? as u32);
        let builder = PacketBuilder::ipv4(CLIENT_IP.octets(), SERVER_IP.octets(), TIME_TO_LIVE);
        let builder = builder.tcp(port, peer_port, own, WINDOW).ack(next);
        let mut packet = Vec::with_capacity(40);
        builder.write(&mut packet, &[])?;
        socket
            .send_to(&packet, &to)
            .context("cannot send an acknowledgement")?;
    }
    Ok(())
}

fn handle(object: &Object, name: &str) -> Result<MapHandle> {
    let map = object.maps().find(|map| map.name() == name);
    let map = map.with_context(|| format!("no BPF map {name}"))?;
    Ok(MapHandle::try_from(&map)?)
}

fn number(map: &MapHandle) -> Result<u64> {
    let value = map
        .lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)?
        .context("an empty BPF map")?;
    ensure!(value.len() == 8, "a BPF map has elements of another size");
    Ok(u64::from_ne_bytes(value.try_into().unwrap_or_default()))
}

/// The program goes with the device.
fn attach(program: BorrowedFd<'_>, index: i32) -> Result<()> {
    let mut builder = TcHookBuilder::new(program);
    let mut hook = builder
        .ifindex(index)
        .replace(true)
        .handle(1)
        .priority(1)
        .hook(TC_INGRESS);
    hook.create().context("cannot make a clsact qdisc")?;
    hook.attach()
        .context("the kernel refused BPF program sink at a device")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::time::Duration;

    use erb_lab::netns::command;
    use erb_steady::wait_until;

    use super::*;

    /// Bytes that the peer has not acknowledged.
    fn unacknowledged(stream: &TcpStream) -> i32 {
        let mut bytes: libc::c_int = 0;
        // SAFETY: SIOCOUTQ (the number of TIOCOUTQ) writes one int, for which there is room.
        let done = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        bytes
    }

    /// From now on what the peer sends has this hardware address for a destination.
    fn send_to_mac(sink: &Sink, mac: &str) {
        let mut ip = command(&sink.pair.client, "ip").expect("a namespace");
        ip.args(["neigh", "replace", &SERVER_IP.to_string(), "lladdr", mac]);
        ip.args(["nud", "permanent", "dev", &sink.pair.client_dev]);
        assert!(ip.status().expect("ip of iproute2").success());
    }

    #[test]
    fn an_acknowledgement_that_is_lost_is_sent_again_when_the_segment_is() {
        let sink = Sink::build(1).expect("namespaces and BPF (root)");
        let (mut stream, _peer) = sink.connect().expect("connected");
        let long = Duration::from_secs(30);
        let segment = [7; 1000];
        send_to_mac(&sink, "02:e4:be:00:00:99");
        stream.write_all(&segment).expect("there is room");
        let came = |times: u64| sink.dropped_bytes().expect("read") >= 1000 * times;
        wait_until(long, "the segment is sent again", || came(2));
        assert_eq!(unacknowledged(&stream), 1000);
        let mac = crate::netns::SERVER_MAC.map(|byte| format!("{byte:02x}"));
        send_to_mac(&sink, &mac.join(":"));
        wait_until(long, "it is acknowledged", || unacknowledged(&stream) == 0);
    }
}
