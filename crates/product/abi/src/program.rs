// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of the data path is reached by name: control programs, and maps that are looked into.

/// A control program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Retransmission timer over the places in `walk_io`; its value: how many have unacknowledged
    /// bytes.
    Tick,
    /// Walk over the places in `walk_io`, into `sweep_io`.
    Sweep,
    /// One connection of `release_io`.
    Release,
    /// One connection of `admit_io`.
    Admit,
    /// The packet that it is run on comes again, by the device of `inject_io`.
    Inject,
    /// Versions of the keys in `fill_io`.
    FillBegin,
    /// Inserts the values in `fill_io`.
    FillInsert,
    /// Removes the keys in `fill_io`.
    Invalidate,
    /// Empties the cache.
    Clear,
    /// Gives back shares of the fence, up to `control.settle_to`.
    Settle,
    /// Keys that were answered, from `fill_io.set` on, into `fill_io`.
    Touched,
}

impl Program {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Tick,
        Self::Sweep,
        Self::Release,
        Self::Admit,
        Self::Inject,
        Self::FillBegin,
        Self::FillInsert,
        Self::Invalidate,
        Self::Clear,
        Self::Settle,
        Self::Touched,
    ];

    /// So many, the first ones, are run on a packet of a device (`tc.bpf.c`); the others are of
    /// `control.bpf.c`.
    pub const ON_DEVICE: usize = 5;

    /// Whether it is run on a device.
    #[must_use]
    pub const fn is_on_device(self) -> bool {
        (self as usize) < Self::ON_DEVICE
    }

    /// Its name, and that of its pin.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tick => "erb_tick",
            Self::Sweep => "erb_sweep",
            Self::Release => "erb_release",
            Self::Admit => "erb_admit",
            Self::Inject => "erb_inject",
            Self::FillBegin => "erb_fill_begin",
            Self::FillInsert => "erb_fill_insert",
            Self::Invalidate => "erb_invalidate",
            Self::Clear => "erb_clear",
            Self::Settle => "erb_settle",
            Self::Touched => "erb_touched",
        }
    }
}

/// A map that is looked into, not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// Tracked connections.
    Conns,
    /// When payload has passed unseen, by place.
    Unseen,
    /// What commands mean.
    Commands,
    /// Whose listening sockets are.
    Listeners,
    /// Counters, one per CPU.
    Stats,
    /// Histograms of latencies, one per CPU.
    Latency,
}

impl Table {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Conns,
        Self::Unseen,
        Self::Commands,
        Self::Listeners,
        Self::Stats,
        Self::Latency,
    ];

    /// The map's name.
    #[must_use]
    pub const fn map(self) -> &'static str {
        match self {
            Self::Conns => "erb_conns",
            Self::Unseen => "erb_unseen",
            Self::Commands => "erb_commands",
            Self::Listeners => "erb_listeners",
            Self::Stats => "erb_stats",
            Self::Latency => "erb_latency",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_in_order() {
        for (number, program) in Program::ALL.into_iter().enumerate() {
            assert_eq!(program as usize, number);
        }
        assert!(Program::Inject.is_on_device() && !Program::FillBegin.is_on_device());
    }
}
