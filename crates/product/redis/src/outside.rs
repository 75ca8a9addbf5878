// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the core needs of the world: the data path, and the machine with its clocks, its sockets,
//! its devices and the way to Redis. The daemon puts the kernel here, the simulator its world,
//! tests a recorder.
//!
//! Nothing here may sleep, but [`DataPath::wait_for_programs`]. What a call changes is changed when it returns.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use erb_abi::{ControlPlane, HeldPacket, Logs, Wanted};

use crate::rights::Credentials;

/// Shorthand of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Whatever the outside has to say about a failure; any text will do (`"...".into()`).
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A call of the outside failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device on which timer and sweep are run is gone: the core takes the next one.
    #[error("{0}")]
    DeviceGone(Cause),
    /// The machine does not say at this moment which devices, sockets or addresses it has: it is asked again with the
    /// next tick, for some seconds.
    #[error("{0}")]
    Untold(Cause),
    /// Anything else. On the feed's way it ends the feed, elsewhere the daemon.
    #[error("{0}")]
    Failed(Cause),
}

/// A server-side TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TcpPair {
    /// The client's address, IPv4 as such.
    pub client: SocketAddr,
    /// The server's address, IPv4 as such.
    pub server: SocketAddr,
}

/// What TCP has had of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// The handshake is not over.
    Opening,
    /// No segment with payload yet.
    Silent,
    /// Payload.
    Heard,
}

/// What the machine has against answering writes.
#[derive(Debug, Default)]
pub struct MachineView {
    /// Devices of this namespace that are not boosted, and by which clients may come.
    pub unseen_devices: Vec<String>,
    /// Why a processor's words are not its own (a kernel with PREEMPT_RT).
    pub kernel: Option<String>,
}

/// A listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its cookie, by which programs know it.
    pub cookie: u64,
    /// Where it listens, IPv4 as such; the unspecified address: on all.
    pub address: IpAddr,
    /// Device that it is bound to, or that its address belongs to; 0: none.
    pub interface: u32,
}

/// The data path: its control plane (block, programs, tables), and what of it changes.
pub trait DataPath: ControlPlane<Error = Error> {
    /// Takes keys out of the ring of misses, oldest first, at most a few thousand.
    fn drain_misses(&mut self) -> Vec<Wanted>;
    /// Takes copies of packets that wait out of their ring, oldest first, at most a few hundred.
    fn drain_held(&mut self) -> Vec<HeldPacket>;
    /// The log of writes that are answered in Redis's place, for the one who drains it; none: none are.
    fn take_logs(&mut self) -> Option<Logs> {
        None
    }
    /// Returns when all programs have ended that were under way: some milliseconds. What was written before is what
    /// those see that begin.
    ///
    /// # Errors
    /// [`Error`] if the kernel cannot be asked for it.
    fn wait_for_programs(&self) -> Result<()> {
        Ok(())
    }
    /// Runs timer and sweep on this device from now on.
    fn run_on(&mut self, ifindex: u32);
}

/// The machine on which Redis runs, in Redis's network namespace. Devices and addresses may come and go between any two
/// calls; where a list cannot be had at that moment, the error is [`Error::Untold`].
pub trait Machine {
    /// A connection to Redis. Reads and writes never block: [`io::ErrorKind::WouldBlock`] instead.
    /// A read of nothing is the end of the stream.
    type Stream: io::Read + io::Write;

    /// `CLOCK_MONOTONIC`, ns: what the programs read.
    fn monotonic_ns(&self) -> u64;
    /// `CLOCK_REALTIME - CLOCK_MONOTONIC`, ms, rounded down so that entries rather end early.
    fn wall_minus_monotonic_ns(&self) -> i64;
    /// Connects to Redis: done or refused when it returns.
    ///
    /// # Errors
    /// Why Redis cannot be reached.
    fn connect(&mut self) -> io::Result<Self::Stream>;
    /// Redis may gather what it sends on this connection while earlier bytes are not read. Nothing
    /// depends on whether it does.
    fn gather(&self, _stream: &Self::Stream) {}
    /// As whom to speak on the next connection, read anew for each so that a password may be
    /// changed; none: as whom Redis takes who does not say.
    ///
    /// # Errors
    /// Why the password cannot be had.
    fn credentials(&mut self) -> io::Result<Option<Credentials>> {
        Ok(None)
    }
    /// Connections to Redis's port whose packets pass a boosted device, and that Redis may still read
    /// from or the kernel has not finished, whosever they are; without the feed. Asking gives each of
    /// their sockets its cookie.
    ///
    /// # Errors
    /// [`Error`] if the sockets cannot be listed.
    fn passing_connections(&self) -> Result<HashMap<TcpPair, Traffic>>;
    /// Listening sockets on Redis's port. Asking gives each its cookie.
    ///
    /// # Errors
    /// [`Error`] if they cannot be listed.
    fn listeners(&self) -> Result<Vec<Listener>>;
    /// This machine's addresses.
    ///
    /// # Errors
    /// [`Error`] if they cannot be listed.
    fn local_addresses(&self) -> Result<Vec<IpAddr>>;
    /// Connects to whoever listens on this address of Redis's port: done or refused when it returns.
    /// The addresses are those that the kernel gives the connection.
    ///
    /// # Errors
    /// Why there is no connection.
    fn probe(&mut self, to: IpAddr) -> io::Result<(Self::Stream, TcpPair)>;
    /// Addresses of clients that pass no boosted device: this machine's, unless `lo` is boosted.
    ///
    /// # Errors
    /// [`Error`] if they cannot be listed.
    fn unseen_clients(&self) -> Result<HashSet<IpAddr>>;
    /// Ends a connection with a reset; false if it was gone already.
    ///
    /// # Errors
    /// [`Error`] if it cannot be ended.
    fn destroy(&self, pair: &TcpPair, cookie: u64) -> Result<bool>;
    /// Puts the egress program on devices that have none yet; the names of these.
    ///
    /// # Errors
    /// [`Error`] if the devices cannot be listed.
    fn cover_egress(&self) -> Result<Vec<String>>;
    /// A boosted device that is there; none if all are gone.
    ///
    /// # Errors
    /// [`Error`] if the devices cannot be listed.
    fn present_device(&self) -> Result<Option<u32>>;
    /// What the machine has against answering writes.
    ///
    /// # Errors
    /// [`Error`] if the devices cannot be listed.
    fn view(&self) -> Result<MachineView> {
        Ok(MachineView::default())
    }
}
