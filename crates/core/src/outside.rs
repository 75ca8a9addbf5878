// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the core needs of the world: the data path, and the machine with its clocks, its sockets,
//! its devices and the way to Redis. The daemon puts the kernel here, the simulator its world,
//! tests a recorder.
//!
//! Nothing here may sleep. What a call changes is changed when it returns.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use erb_abi::{
    CommandKey, ConnView, FillEntry, FillToken, Meaning, SweepReport, Touched, Wanted, admit_io,
    conn_key, erb_listener, erb_stat, place_list, sweep_row,
};

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

/// The data path: its control block (`struct control` of `bpf/abi.h`, each access one atomic load
/// or store) and its control programs (`bpf/control.bpf.c`).
pub trait DataPath {
    /// 1: fast answers allowed.
    fn serving(&self) -> u32;
    /// Sets `serving`.
    fn set_serving(&self, value: u32);
    /// Sets `stopping`; 1: detach under way.
    fn set_stopping(&self, value: u32);
    /// Sets `admit`; 1: new connections may be tracked from their first byte.
    fn set_admit(&self, value: u32);
    /// 1: misses are reported and fills inserted.
    fn fills(&self) -> u32;
    /// End of the lease, `CLOCK_MONOTONIC`, ns.
    fn lease_until_ns(&self) -> u64;
    /// Sets `lease_until_ns`.
    fn set_lease_until_ns(&self, value: u64);
    /// Sets `wall_minus_mono_ns`.
    fn set_wall_minus_mono_ns(&self, value: i64);
    /// Sets `heartbeat_up_ns`: each connection sends a command up this often; 0 = never.
    fn set_heartbeat_up_ns(&self, value: u64);
    /// Commands with unknown keys on their way.
    fn fence(&self) -> u64;
    /// Shares of the fence, ever, that wait or waited for [`Self::settle`].
    fn fence_answered(&self) -> u64;
    /// Of these: given back.
    fn fence_settled(&self) -> u64;
    /// Commands seen that may change Redis's configuration.
    fn gate_seen(&self) -> u64;
    /// `gate_seen` up to which Redis's state was read again.
    fn gate_ack(&self) -> u64;
    /// Sets `gate_ack`.
    fn set_gate_ack(&self, value: u64);
    /// Moves when access rules change.
    fn rights(&self) -> u32;
    /// Sets `rights`: what was admitted under others is answered no longer.
    fn set_rights(&self, value: u32);
    /// Sets `open`: what a new connection may do without a password (`enum door`).
    fn set_open(&self, value: u32);
    /// Fast commands that Redis alone answers, a bit per `FAST_KIND_*`.
    fn fast_off(&self) -> u32;
    /// Sets `fast_off`.
    fn set_fast_off(&self, value: u32);
    /// Class of names that the command table lacks.
    fn unknown_class(&self) -> u32;
    /// Sets `unknown_class`.
    fn set_unknown_class(&self, value: u32);

    /// All rows of the command table.
    ///
    /// # Errors
    /// [`Error`] if it cannot be read.
    fn command_rows(&self) -> Result<Vec<(CommandKey, Meaning)>>;
    /// Changes a row of the command table, at once and as a whole; `None` removes it.
    ///
    /// # Errors
    /// [`Error`] if it cannot be changed.
    fn set_command(&self, key: &CommandKey, meaning: Option<&Meaning>) -> Result<()>;

    /// What is said of listening sockets: cookie and `enum erb_listener`.
    ///
    /// # Errors
    /// [`Error`] if it cannot be read.
    fn listeners(&self) -> Result<Vec<(u64, erb_listener)>>;
    /// Says whose a listening socket is; `None`: that is not known. False: there is no room.
    ///
    /// # Errors
    /// [`Error`] if it cannot be said.
    fn set_listener(&self, cookie: u64, whose: Option<erb_listener>) -> Result<bool>;

    /// Places of the connection table that are on a list, from this one on, so many at most;
    /// fewer: these are the last.
    fn places(&self, list: place_list, from: u32, most: usize) -> Vec<u32>;
    /// Runs the retransmission timer for these places, at most `WALK_PLACES`; returns how many have
    /// unacknowledged fast bytes.
    ///
    /// # Errors
    /// [`Error`] if the program cannot be run.
    fn tick(&self, places: &[u32]) -> Result<u32>;
    /// Sweeps these places of the connection table, at most `WALK_PLACES`.
    ///
    /// # Errors
    /// [`Error`] if the program cannot be run.
    fn sweep(&self, places: &[u32]) -> Result<SweepReport>;
    /// Releases the marks and the fence share of a connection for which there is proof; with
    /// `remove` its entry goes too. True if the program did so.
    ///
    /// # Errors
    /// [`Error`] if the program cannot be run.
    fn release(&self, row: &sweep_row, remove: bool) -> Result<bool>;
    /// Takes a connection in, or notes what a list said of it; true if it was still what the sweep
    /// saw.
    ///
    /// # Errors
    /// [`Error`] if the program cannot be run.
    fn admit(&self, request: &admit_io) -> Result<bool>;
    /// Notes versions of at most `FILL_BATCH` keys before Redis is asked for them; one token each.
    ///
    /// # Errors
    /// [`Error`] if the program cannot be run.
    fn fill_begin(&self, keys: &[&[u8]]) -> Result<Vec<FillToken>>;
    /// Inserts at most `FILL_BATCH` values; a `fill_status` for each.
    ///
    /// # Errors
    /// [`Error`] if the program cannot be run.
    fn fill_insert(&self, entries: &[FillEntry<'_>]) -> Result<Vec<u32>>;
    /// Removes any number of keys from the cache and moves their sets' versions.
    ///
    /// # Errors
    /// [`Error`] if the program cannot be run.
    fn invalidate(&self, keys: &[&[u8]]) -> Result<()>;
    /// Gives back the shares of the fence up to an earlier `fence_answered`: all that Redis has
    /// reported until then is handled.
    ///
    /// # Errors
    /// [`Error`] if the program cannot be run.
    fn settle(&self, answered: u64) -> Result<()>;
    /// Empties the cache and voids all fills under way.
    ///
    /// # Errors
    /// [`Error`] if the program cannot be run.
    fn clear(&self) -> Result<()>;
    /// Number of cache sets.
    fn sets(&self) -> u32;
    /// Collects keys that were answered since the last look, from this set on.
    ///
    /// # Errors
    /// [`Error`] if the program cannot be run.
    fn touched(&self, from_set: u32) -> Result<Touched>;
    /// Halves all miss counts, so that old misses are forgotten.
    fn halve_miss_counts(&self);
    /// One counter, summed over the CPUs.
    ///
    /// # Errors
    /// [`Error`] if it cannot be read.
    fn stat(&self, stat: erb_stat) -> Result<u64>;
    /// Whether payload of a connection has passed for which the table had no room.
    ///
    /// # Errors
    /// [`Error`] if it cannot be read.
    fn was_unseen(&self, key: &conn_key) -> Result<bool>;
    /// Address pairs of all tracked connections.
    fn conn_keys(&self) -> Vec<conn_key>;
    /// All tracked connections: asked for once, when a detach resets.
    fn conn_views(&self) -> Vec<ConnView>;
    /// Takes keys out of the ring of misses, oldest first, at most a few thousand.
    fn drain_misses(&mut self) -> Vec<Wanted>;
    /// Runs timer and sweep on this device from now on.
    fn run_on(&mut self, ifindex: u32);
}

/// The machine on which Redis runs, in Redis's network namespace.
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
}
