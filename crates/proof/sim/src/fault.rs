// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything that can go wrong, by name: what a profile gives a rate, a plan can switch off and
//! the coverage counts.

use std::fmt;

macro_rules! faults {
    ($($name:ident $text:literal,)*) => {
        /// A kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Fault {
            $(#[doc = $text] $name,)*
        }

        impl Fault {
            /// All kinds, in the order of their numbers.
            pub const ALL: [Self; [$(Self::$name),*].len()] = [$(Self::$name),*];

            /// What it is.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

faults! {
    Loss "a frame is lost",
    Duplicate "a frame arrives twice",
    Reorder "a frame is overtaken by later ones",
    Jitter "a frame's delay varies",
    Corrupt "a byte of a frame is changed",
    Split "a segment is cut in two at any byte",
    Join "two segments of a flow become one",
    Merge "the server's receive offload merges segments",
    Fragment "a packet arrives in IP fragments",
    TooBig "a router reports a smaller path MTU",
    OldDuplicate "a copy of a frame arrives seconds later",
    Blackout "a link carries nothing for a while",
    Ecn "a frame carries a congestion mark",
    IpOptions "an IPv4 packet carries options",
    Urgent "a segment claims urgent data",
    TcpOption "a segment carries an unknown TCP option",
    Forged "somebody else sends a segment with the connection's addresses",
    ForgedPiece "somebody else sends fragments with the connection's addresses",
    Stranger "somebody without a connection sends payload, with any flags and numbers",
    Foreign "a frame for an address that is not the server's has Redis's port",
    Neighbour "another server on the port, on another address, has clients",
    Tiny "a first fragment holds a part of the TCP header only",
    BareSum "a frame carries the bare pseudo-header sum",
    CpuChange "a flow moves to another CPU",
    Route "packets of a connection come or leave by another device",
    Elsewhere "a connection's first bytes come by a device that is not boosted",
    Steered "the kernel takes a flow's packets on another CPU than XDP, later",
    Backlog "the kernel drops a packet behind XDP",
    Prune "TCP throws away what it holds beyond a hole, or a packet that TC let pass",
    NoRoom "the driver has no room for a longer frame",
    NoMeta "the driver has no metadata",
    Offload "the kernel sends merged segments through the egress program",
    SlowReader "Redis does not read for a while",
    Vanish "a client disappears without a word",
    Reset "a client resets its connection",
    HalfClose "a client closes its sending direction only",
    Ticks "a client's timestamp clock steps, forward or slightly back",
    Reuse "a client takes the same port again",
    Garbage "a client sends bytes that are no command",
    Beyond "a client writes a value of a length around a bound, or beyond all",
    Torn "a client sends a request in pieces",
    TinyWindow "a client's receive window is tiny or closed for a while",
    RedisCrash "Redis's process ends",
    RedisStall "Redis computes for long",
    RedisKill "Redis closes a client's connection",
    DaemonCrash "the daemon's process ends",
    DaemonStall "the daemon is not scheduled for long",
    FeedCut "the daemon's connection to Redis breaks",
    MachineCrash "the server loses power",
    ClockStep "the wall clock is set",
    Unseen "a client that ERB does not see changes keys",
    Detach "the operator detaches and attaches again",
    Aside "the daemon steps aside: other sets are looked into and filled",
    Reports "Redis tells the daemon of changes of what it has read, or of all again",
    Disk "the disk under Redis's log fails, is full or slow for a while",
    Settings "a client changes Redis's configuration or access rules",
    Master "Redis becomes a replica; its master loads it anew, goes, comes back; it is one no more",
    Absorb "writes are answered in Redis's place, or what was answered is drained",
    Close "the operator closes the cache, or opens it again",
    Still "a processor stands still for a while in the midst of what it receives, as its hypervisor runs others",
    Replace "another build's programs take the place of those at work, and another daemon",
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, out)
    }
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults(u64);

impl Faults {
    /// Every kind.
    pub const ALL: Self = Self((1 << Fault::ALL.len()) - 1);
    /// No kind.
    pub const NONE: Self = Self(0);

    /// Whether `fault` is in the set.
    #[must_use]
    pub const fn has(self, fault: Fault) -> bool {
        self.0 & 1 << fault as u64 != 0
    }

    /// The set with `fault`.
    #[must_use]
    pub const fn with(self, fault: Fault) -> Self {
        Self(self.0 | 1 << fault as u64)
    }

    /// The set without `fault`.
    #[must_use]
    pub const fn without(self, fault: Fault) -> Self {
        Self(self.0 & !(1 << fault as u64))
    }

    /// The kinds in the set.
    pub fn iter(self) -> impl Iterator<Item = Fault> {
        Fault::ALL.into_iter().filter(move |fault| self.has(*fault))
    }
}
