// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Linux, as the core sees it: the data path in the kernel, the sockets of this network namespace,
//! the boosted devices and the connection to Redis.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use erb_abi::{
    self as abi, Buffers, Control, ControlBlock, ControlPlane, HeldPacket, Logs, Program, Table,
    Wanted,
};
use erb_datapath::{
    Datapath, Device, HeldRing, LOOPBACK, Links, MissRing, Nagle, all_devices, is_up,
};
use erb_redis::rights::Credentials;
use erb_redis::{
    DataPath, Error as CoreError, Listener, Machine, MachineView, Result, TcpPair, Traffic,
};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::utsname::uname;
use socket2::SockRef;

use crate::addr::RedisAddr;
use crate::credentials::CredentialSource;
use crate::{Error, clock, sockets};

/// Redis is on this machine: a connection is made at once or not at all.
const CONNECT_MAX: Duration = Duration::from_millis(500);

/// A connection to Redis that never blocks.
pub(crate) enum Connection {
    Tcp {
        stream: TcpStream,
        /// Redis's end waits with what it has until it knows that we have read.
        gathers: Cell<bool>,
    },
    Unix(UnixStream),
}

impl Connection {
    /// `marked`: its packets pass a boosted device, which must leave them alone.
    pub(crate) fn new(address: &RedisAddr, marked: bool) -> io::Result<Self> {
        Ok(match address {
            RedisAddr::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, CONNECT_MAX)?;
                if marked {
                    // Before the first byte: the handshake makes no entry.
                    setsockopt(&stream, sockopt::Mark, &abi::SKB_MARK_FEED)?;
                }
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Self::Tcp {
                    stream,
                    gathers: Cell::new(false),
                }
            }
            RedisAddr::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Self::Unix(stream)
            }
        })
    }
}

impl Connection {
    /// One that no program at work looks at, if this process may say so: a boost whose daemon has died may keep back
    /// what others say until there is another one.
    pub(crate) fn unasked(address: &RedisAddr) -> io::Result<Self> {
        match Self::new(address, true) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Self::new(address, false)
            }
            made => made,
        }
    }

    /// Its addresses, unless it is no TCP.
    pub(crate) fn pair(&self) -> Option<TcpPair> {
        let Self::Tcp { stream, .. } = self else {
            return None;
        };
        let plain =
            |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        Some(TcpPair {
            client: plain(stream.local_addr().ok()?),
            server: plain(stream.peer_addr().ok()?),
        })
    }
}

impl Read for Connection {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp { stream, gathers } => {
                let read = stream.read(bytes)?;
                if gathers.get() {
                    // Acknowledged at once (tcp(7)); the kernel forgets it, so each time.
                    SockRef::from(&*stream).set_tcp_quickack(true)?;
                }
                Ok(read)
            }
            Self::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp { stream, .. } => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp { stream, .. } => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

/// The machine that the daemon runs on.
pub(crate) struct Linux {
    pub(crate) redis: RedisAddr,
    pub(crate) credentials: CredentialSource,
    pub(crate) port: u16,
    pub(crate) links: Links,
    /// The boosted devices.
    pub(crate) devices: Vec<Device>,
    /// The daemon's own connection, if it is one over TCP.
    pub(crate) feed: Option<TcpPair>,
    /// What gathers Redis's reports, if the kernel has it.
    pub(crate) nagle: Option<Nagle>,
}

impl Linux {
    /// Whether clients on this machine pass a boosted device.
    pub(crate) fn on_loopback(&self) -> bool {
        self.devices.iter().any(|device| device.name == LOOPBACK)
    }
}

impl Machine for Linux {
    type Stream = Connection;

    fn monotonic_ns(&self) -> u64 {
        clock::monotonic_ns()
    }
    fn wall_minus_monotonic_ns(&self) -> i64 {
        clock::wall_minus_monotonic_ns()
    }
    fn connect(&mut self) -> io::Result<Connection> {
        let connection = Connection::new(&self.redis, self.on_loopback())?;
        self.feed = connection.pair();
        Ok(connection)
    }
    fn gather(&self, connection: &Connection) {
        let (Some(nagle), Some(pair), Connection::Tcp { gathers, .. }) =
            (&self.nagle, connection.pair(), connection)
        else {
            return;
        };
        match nagle.turn_on(pair.server, pair.client) {
            Ok(done) => gathers.set(done),
            Err(error) => tracing::info!("Redis sends each report by itself: {error}"),
        }
    }
    fn credentials(&mut self) -> io::Result<Option<Credentials>> {
        self.credentials.read().map_err(io::Error::other)
    }
    fn passing_connections(&self) -> Result<HashMap<TcpPair, Traffic>> {
        let mut found = told(sockets::connections(self.port))?;
        let feed = self.feed.as_ref();
        let unseen = self.unseen_clients()?;
        found.retain(|pair, _| Some(pair) != feed && !unseen.contains(&pair.client.ip()));
        Ok(found)
    }
    fn listeners(&self) -> Result<Vec<Listener>> {
        told(sockets::listeners(self.port))
    }
    fn local_addresses(&self) -> Result<Vec<IpAddr>> {
        let found = told(sockets::local_addresses())?;
        Ok(found.into_iter().collect())
    }
    fn probe(&mut self, to: IpAddr) -> io::Result<(Connection, TcpPair)> {
        let to = RedisAddr::Tcp(SocketAddr::new(to, self.port));
        let connection = Connection::new(&to, self.on_loopback())?;
        let pair = connection.pair().ok_or(io::ErrorKind::NotConnected)?;
        Ok((connection, pair))
    }
    fn unseen_clients(&self) -> Result<HashSet<IpAddr>> {
        if self.on_loopback() {
            return Ok(HashSet::new());
        }
        told(sockets::local_addresses())
    }
    fn destroy(&self, pair: &TcpPair, cookie: u64) -> Result<bool> {
        sockets::destroy(pair, cookie).map_err(to_core)
    }
    fn cover_egress(&self) -> Result<Vec<String>> {
        told(self.links.cover())
    }
    fn present_device(&self) -> Result<Option<u32>> {
        let present = told(all_devices())?;
        let found = self.devices.iter().find(|device| present.contains(device));
        Ok(found.map(|device| device.ifindex))
    }
    fn view(&self) -> Result<MachineView> {
        let mut others = told(all_devices())?;
        // What is gone by now is not up either.
        others.retain(|device| !self.devices.contains(device) && is_up(device).unwrap_or(false));
        Ok(MachineView {
            unseen_devices: others.into_iter().map(|device| device.name).collect(),
            kernel: is_preempt_rt().then(|| {
                "packets may interrupt each other on one processor (PREEMPT_RT): take another kernel"
                    .to_owned()
            }),
        })
    }
}

/// Whether softirqs may be interrupted by others on their CPU, so that what is kept per CPU is not one packet's.
fn is_preempt_rt() -> bool {
    uname().is_ok_and(|name| name.version().to_string_lossy().contains("PREEMPT_RT"))
}

/// The data path in the kernel, and its rings of misses and of packets that wait.
pub(crate) struct Kernel {
    pub(crate) loaded: Datapath,
    pub(crate) ring: MissRing,
    pub(crate) held: HeldRing,
    /// Until the core has it.
    pub(crate) logs: Option<Logs>,
}

impl ControlBlock for Kernel {
    fn control(&self) -> &Control {
        self.loaded.control()
    }
}

impl ControlPlane for Kernel {
    type Error = CoreError;

    fn buffers(&self) -> &Buffers {
        self.loaded.buffers()
    }
    fn run(&self, program: Program) -> Result<u32> {
        below(self.loaded.run(program))
    }
    fn run_on_frame(&self, program: Program, frame: &[u8]) -> Result<u32> {
        below(self.loaded.run_on_frame(program, frame))
    }
    fn keys(&self, table: Table) -> Vec<Vec<u8>> {
        self.loaded.keys(table)
    }
    fn look_up(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        below(self.loaded.look_up(table, key))
    }
    fn put(&self, table: Table, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        below(self.loaded.put(table, key, value))
    }
}

impl DataPath for Kernel {
    fn drain_misses(&mut self) -> Vec<Wanted> {
        self.ring.drain()
    }
    fn drain_held(&mut self) -> Vec<HeldPacket> {
        self.held.drain()
    }
    fn take_logs(&mut self) -> Option<Logs> {
        self.logs.take()
    }
    fn wait_for_programs(&self) -> Result<()> {
        below(erb_datapath::wait_for_programs())
    }
    fn run_on(&mut self, ifindex: u32) {
        self.loaded.run_on(ifindex);
    }
}

fn below<T>(result: erb_datapath::Result<T>) -> Result<T> {
    result.map_err(|error| to_core(error.into()))
}

/// What the machine has, or that it does not say so at this moment.
fn told<T, E: Into<Error>>(result: std::result::Result<T, E>) -> Result<T> {
    result.map_err(|error| CoreError::Untold(error.into().into()))
}

fn to_core(error: Error) -> CoreError {
    match error {
        Error::Datapath(erb_datapath::Error::Run { ref reason, .. })
            if reason.raw_os_error() == Some(libc::ENODEV) =>
        {
            CoreError::DeviceGone(error.into())
        }
        _ => CoreError::Failed(error.into()),
    }
}

impl From<CoreError> for Error {
    /// What [`to_core`] has packed comes out again, so that its kind keeps its exit code.
    fn from(error: CoreError) -> Self {
        let (CoreError::DeviceGone(cause) | CoreError::Untold(cause) | CoreError::Failed(cause)) =
            error;
        match cause.downcast::<Self>() {
            Ok(own) => *own,
            Err(other) => Self::io("the daemon cannot go on")(io::Error::other(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_kind_on_the_way_through_the_core() {
        let run = |code| {
            Error::Datapath(erb_datapath::Error::Run {
                program: "erb_tick",
                reason: io::Error::from_raw_os_error(code),
            })
        };
        let text = run(libc::EPERM).to_string();
        assert!(matches!(
            to_core(run(libc::ENODEV)),
            CoreError::DeviceGone(_)
        ));
        let failed = to_core(run(libc::EPERM));
        assert!(matches!(failed, CoreError::Failed(_)));
        assert_eq!(failed.to_string(), text);
        let back = Error::from(failed);
        assert!(matches!(back, Error::Datapath(_)) && back.to_string() == text);
        // What the machine does not say is another matter than what the data path refuses.
        let untold = told::<(), _>(Err(run(libc::EBUSY))).unwrap_err();
        assert!(matches!(untold, CoreError::Untold(_)));
        assert!(matches!(Error::from(untold), Error::Datapath(_)));
    }
}
