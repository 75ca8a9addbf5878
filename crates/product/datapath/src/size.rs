// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sizes of what is allocated at the boost: the cache, from what the user typed to its number of
//! sets, and the table of connections.

use erb_abi::{
    CLIENT_SHARE, CONNS_DEFAULT, CONNS_MAX, CONNS_MIN, PLACE_LINE, PLACE_LISTS, cache_digest,
    cache_large, cache_set, conn, conn_key, place,
};

use crate::{Error, Result};

/// Fewer sets than this make a cache in which every write blocks hits of a large part of all keys.
const SETS_MIN: u64 = 64;

/// Bytes of one cache set: its header, 16 ways in four size classes and digest, over three maps.
pub const SET_BYTES: u64 =
    (size_of::<cache_set>() + size_of::<cache_large>() + size_of::<cache_digest>()) as u64;

/// A validated cache size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSize {
    sets: u32,
}

impl CacheSize {
    /// Number of sets: the largest power of two that fits into `bytes`.
    ///
    /// # Errors
    /// [`Error::Size`] if fewer than 64 sets fit or more than half of `ram_bytes` would be taken.
    pub fn from_bytes(bytes: u64, ram_bytes: u64) -> Result<Self> {
        if bytes / SET_BYTES < SETS_MIN {
            return Err(Error::Size(format!(
                "a cache of {bytes} bytes is too small: at least {SETS_MIN} sets of {SET_BYTES} \
                 bytes are needed ({} KiB); give a larger --cache-size",
                (SETS_MIN * SET_BYTES).div_ceil(1024)
            )));
        }
        if bytes > ram_bytes / 2 {
            return Err(Error::Size(format!(
                "a cache of {bytes} bytes is more than half of this machine's memory \
                 ({ram_bytes} bytes); give a smaller --cache-size"
            )));
        }
        let fitting = bytes / SET_BYTES;
        let sets = 1u64 << fitting.ilog2();
        // The verifier and the kernel's array maps index with 32 bits.
        let sets = u32::try_from(sets)
            .map_err(|_| Error::Size(format!("a cache of {bytes} bytes has too many sets")))?;
        Ok(Self { sets })
    }

    /// Number of cache sets, a power of two.
    #[must_use]
    pub const fn sets(self) -> u32 {
        self.sets
    }

    /// Bytes of all sets.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.sets as u64 * SET_BYTES
    }
}

/// Bytes of a place in the table of connections, without what the kernel's hash adds.
pub const CONN_BYTES: u64 =
    (size_of::<conn>() + size_of::<conn_key>() + size_of::<place>()) as u64 + PLACE_LISTS as u64;

/// What may be asked for.
pub const CONNECTIONS: std::ops::RangeInclusive<i64> = CONNS_MIN as i64..=CONNS_MAX as i64;

/// Entries outlive their connections by some seconds, and half of the table is for one address.
const PER_CLIENT_OF_REDIS: u64 = 2;
/// Beside Redis's clients: connections that ended a moment ago, the daemon's probes.
const SPARE_CONNS: u64 = 1024;
/// A table that nobody asked for takes this part of the machine's memory at most.
const PART_OF_RAM: u64 = 64;

/// Places in the table of connections, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSize {
    connections: u32,
}

impl TableSize {
    /// As many as the user wants.
    ///
    /// # Errors
    /// [`Error::Size`] if these are too few or too many, or more than half of `ram_bytes` would be
    /// taken.
    pub fn of(connections: u32, ram_bytes: u64) -> Result<Self> {
        if !(CONNS_MIN..=CONNS_MAX).contains(&connections) {
            return Err(Error::Size(format!(
                "--connections {connections}: must be from {CONNS_MIN} to {CONNS_MAX}"
            )));
        }
        let size = Self { connections };
        if size.bytes() > ram_bytes / 2 {
            return Err(Error::Size(format!(
                "a table of {connections} connections takes {} MiB, more than half of this \
                 machine's memory; give fewer --connections",
                size.bytes() >> 20
            )));
        }
        Ok(size)
    }

    /// For a Redis that has this many clients at most (`maxclients`, if it is known).
    #[must_use]
    pub fn for_redis(maxclients: Option<u64>, ram_bytes: u64) -> Self {
        let clients = maxclients.unwrap_or(0).saturating_add(SPARE_CONNS);
        let wanted = clients.saturating_mul(PER_CLIENT_OF_REDIS);
        let most = (ram_bytes / PART_OF_RAM / CONN_BYTES).min(CONNS_MAX.into());
        let connections = wanted.min(most).max(CONNS_DEFAULT.into());
        Self {
            connections: u32::try_from(connections).unwrap_or(CONNS_MAX),
        }
    }

    /// Places.
    #[must_use]
    pub const fn connections(self) -> u32 {
        self.connections
    }

    /// Places that one client address may have.
    #[must_use]
    pub const fn per_address(self) -> u32 {
        self.connections / CLIENT_SHARE
    }

    /// Bytes of all places.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.connections as u64 * CONN_BYTES
    }
}

/// Sizes of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Of the cache.
    pub cache: CacheSize,
    /// Of the table of connections.
    pub table: TableSize,
    /// Log rings for writes that are answered in the server's place, one for each possible CPU; 0: none is
    /// answered, and neither the rings are made nor the programs loaded that fill them.
    pub log_rings: u32,
}

impl Sizes {
    /// How many elements this map has; `None`: as many as its source says.
    pub(crate) fn entries_of(self, map: &str) -> Option<u32> {
        match map {
            "erb_sets" | "erb_digests" | "erb_large" => Some(self.cache.sets()),
            "erb_conns" | "erb_places" => Some(self.table.connections()),
            "erb_place_lines" => Some(self.table.connections().div_ceil(PLACE_LINE)),
            "erb_log" => Some(self.log_rings).filter(|rings| *rings > 0),
            _ => None,
        }
    }
}

/// Parses a size as users type it: a number with an optional suffix K, M, G (powers of 1024; `KiB`
/// and `KB` are accepted and mean the same).
///
/// # Errors
/// [`Error::Size`] if it is not such a number or too large for 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let refuse = |why: &str| {
        Error::Size(format!(
            "{text:?} is not a size: {why}; write for example 256M or 2G"
        ))
    };
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return Err(refuse("it does not begin with a digit"));
    }
    let number: u64 = text[..digits]
        .parse()
        .map_err(|_| refuse("the number is too large"))?;
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(refuse("the unit is none of K, M, G, T")),
    };
    number
        .checked_mul(1u64 << shift)
        .ok_or_else(|| refuse("the number is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn sizes_as_typed() {
        assert_eq!(parse_bytes("256M").unwrap(), 256 << 20);
        assert_eq!(parse_bytes("1g").unwrap(), GIB);
        assert_eq!(parse_bytes("4096").unwrap(), 4096);
        assert_eq!(parse_bytes("64 KiB").unwrap(), 65536);
    }

    #[test]
    fn sizes_that_are_none() {
        for text in [
            "",
            "M",
            "-1",
            "1.5G",
            "12X",
            "99999999999999999999",
            "99999999T",
        ] {
            assert!(matches!(parse_bytes(text), Err(Error::Size(_))), "{text:?}");
        }
    }

    #[test]
    fn sets_are_the_power_of_two_below() {
        let size = CacheSize::from_bytes(256 << 20, 16 * GIB).unwrap();
        assert_eq!(size.sets(), 32768);
        assert!(size.bytes() <= 256 << 20);
        assert!(size.bytes() * 2 > 256 << 20);
        let smallest = CacheSize::from_bytes(SETS_MIN * SET_BYTES, GIB).unwrap();
        assert_eq!(u64::from(smallest.sets()), SETS_MIN);
    }

    #[test]
    fn a_table_follows_redis_and_the_memory() {
        let of = |maxclients, ram| TableSize::for_redis(maxclients, ram).connections();
        assert_eq!(of(None, 16 * GIB), CONNS_DEFAULT);
        assert_eq!(of(Some(100), 16 * GIB), CONNS_DEFAULT);
        assert_eq!(of(Some(10_000), 16 * GIB), 22_048);
        assert_eq!(of(Some(10_000), GIB), CONNS_DEFAULT, "the memory is little");
        assert_eq!(of(Some(u64::MAX), 4096 * GIB), CONNS_MAX);
        let most = of(Some(1_000_000), 16 * GIB);
        assert!(u64::from(most) * CONN_BYTES <= 16 * GIB / PART_OF_RAM);
    }

    #[test]
    fn absurd_tables_are_refused() {
        for (connections, ram) in [(CONNS_MIN - 1, GIB), (CONNS_MAX + 1, 64 * GIB)] {
            let refused = TableSize::of(connections, ram);
            assert!(
                matches!(refused, Err(Error::Size(ref text)) if text.contains("--connections")),
                "{connections}: {refused:?}"
            );
        }
        assert!(TableSize::of(CONNS_MAX, 4 * GIB).is_err(), "5 GiB of 4");
        let table = TableSize::of(CONNS_MAX, 16 * GIB).unwrap();
        assert_eq!(table.per_address(), CONNS_MAX / 2);
    }

    #[test]
    fn absurd_sizes_are_refused() {
        for bytes in [0, 1, SETS_MIN * SET_BYTES - 1, 9 * GIB, u64::MAX] {
            assert!(CacheSize::from_bytes(bytes, 16 * GIB).is_err(), "{bytes}");
        }
    }
}
