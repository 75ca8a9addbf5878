// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb bench send`: processor time of the sender, by way and record size.
//!
//! Stand-ins, and called so in the result: tmpfs for the persistent memory; `sendfile` from tmpfs with
//! `O_DIRECT` for `sendfile` from DAX, since both copy in `copy_splice_read`; for the card a veth whose far end drops
//! payload untouched. What they leave out: page table entries and page references of DAX, reading from the
//! medium, and the card's own driver. `--over lo` measures the other case: a peer to which the kernel copies anyway.

mod bare;
mod local;
mod sink;
mod ways;

use std::collections::BTreeMap;
use std::net::TcpStream;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use comfy_table::{Table, presets};
use serde::Serialize;

use crate::cputime;
use crate::send::local::Local;
use crate::send::sink::Sink;
use crate::send::ways::{Source, Spent, Way};
use crate::stats::Spread;

/// Sent before each first run, so that no run pays for cold tables.
const WARM_BYTES: usize = 8 << 20;
/// What the figures stand for.
const STAND_INS: &str = "stand-ins: tmpfs for persistent memory; sendfile from tmpfs with O_DIRECT for sendfile from DAX; \
a veth whose far end drops payload untouched for the card. Left out: DAX page tables and page references, reads of the \
medium, the card's driver. Processor time is the sending thread's, with what the kernel did in its context; acknowledgements are taken in by the peer's processor";

/// The same over loopback.
const LOCAL: &str = "over lo, where the kernel copies what is sent zero-copy: dax-send sees that and sends from its \
mapping. Stand-in: tmpfs for persistent memory. Processor time is the sending thread's, with the part of the receiver's \
work that the kernel does there";

/// What the bytes go to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Over {
    /// A peer that costs no copy, as behind a card.
    #[default]
    Sink,
    /// A receiver on this machine, to which the kernel copies.
    Lo,
}

/// `erb bench send`.
#[derive(Args, Debug, Clone)]
pub struct SendArgs {
    /// Sizes of records in bytes (separate with commas).
    #[arg(long, value_delimiter = ',', default_values_t = [4096, 16_384, 65_536, 262_144],
          value_parser = clap::value_parser!(u32).range(64..=16_777_216))]
    pub record: Vec<u32>,
    /// Only these ways (separate with commas); all if not given.
    #[arg(long, value_delimiter = ',')]
    pub way: Vec<Way>,
    /// Size of the file in MiB, on /dev/shm.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(17..=65_536))]
    pub file: u32,
    /// What a run sends, in MiB.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub total: u32,
    /// Runs of each way and size, interleaved.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Processor for the sender.
    #[arg(long, default_value_t = 0)]
    pub core: usize,
    /// Processor for the peer, which acknowledges.
    #[arg(long, default_value_t = 1)]
    pub peer_core: usize,
    /// What the bytes go to.
    #[arg(long, value_enum, default_value_t)]
    pub over: Over,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// One way at one size.
#[derive(Clone, Debug, Serialize)]
pub struct SendRow {
    /// Size of a record.
    pub record_bytes: u32,
    /// How it was sent.
    pub way: Way,
    /// Processor nanoseconds of the sender for each KiB.
    pub ns_per_kib: Spread,
    /// How many times less than the stand-in for the stock DAX path, by the medians.
    pub gain_over_dax_path: Option<f64>,
    /// How many times less than sendfile from a warm page cache, by the medians.
    pub gain_over_warm: Option<f64>,
    /// How many times less than send from a mapping, by the medians.
    pub gain_over_mmap: Option<f64>,
    /// How many times less than zero-copy by hand, by the medians: what the machine allows.
    pub gain_over_bare: Option<f64>,
    /// Bytes that the kernel has confirmed as not copied.
    pub zero_copy_bytes: u64,
    /// Bytes that it has copied after all.
    pub kernel_copied_bytes: u64,
}

/// The table.
#[derive(Clone, Debug, Serialize)]
pub struct SendReport {
    /// What the figures stand for.
    pub stand_ins: &'static str,
    /// Runs behind each figure.
    pub runs: u32,
    /// By size, then way.
    pub rows: Vec<SendRow>,
}

/// What takes the bytes.
enum Peer {
    Sink(Sink),
    Local(Local),
}

impl Peer {
    fn build(over: Over, core: usize) -> Result<Self> {
        Ok(match over {
            Over::Sink => Self::Sink(Sink::build(core)?),
            Over::Lo => Self::Local(Local::build(core)?),
        })
    }

    /// A connection to it, and what is to be kept until the sender has ended.
    fn connect(&self) -> Result<(TcpStream, Option<TcpStream>)> {
        match self {
            Self::Sink(sink) => sink.connect().map(|(stream, peer)| (stream, Some(peer))),
            Self::Local(local) => Ok((local.connect()?, None)),
        }
    }

    fn taken_bytes(&self) -> Result<u64> {
        match self {
            Self::Sink(sink) => sink.dropped_bytes(),
            Self::Local(local) => Ok(local.taken_bytes()),
        }
    }
}

/// Measures; needs root for the namespaces, but for loopback.
///
/// # Errors
/// If namespaces, BPF or tmpfs cannot be had, or a connection fails.
pub fn measure(args: &SendArgs) -> Result<SendReport> {
    let source = Source::make((args.file as usize) << 20)?;
    let peer = Peer::build(args.over, args.peer_core)?;
    cputime::pin_this(args.core)?;
    let total = (args.total as usize) << 20;
    let mut runs: BTreeMap<(u32, Way), Vec<Spent>> = BTreeMap::new();
    let asked = |way: &Way| args.way.is_empty() || args.way.contains(way);
    let ways = Way::ALL
        .into_iter()
        .filter(|way| asked(way) && source.has(*way));
    let ways: Vec<Way> = ways.collect();
    ensure!(!ways.is_empty(), "this machine cannot send in this way");
    for run in 0..=args.runs {
        for &record in &args.record {
            for &way in &ways {
                let bytes = if run == 0 {
                    WARM_BYTES.min(total)
                } else {
                    total
                };
                let bytes = bytes.max(record as usize * ways::BATCH);
                let before = peer.taken_bytes()?;
                let (stream, _kept) = peer.connect()?;
                let spent = source.send(way, stream, record as usize, bytes)?;
                let taken = peer.taken_bytes()? - before;
                ensure!(
                    taken > 0,
                    "the peer has seen nothing: {way:?} measured something else"
                );
                if run > 0 {
                    runs.entry((record, way)).or_default().push(spent);
                }
            }
        }
    }
    Ok(SendReport {
        stand_ins: match args.over {
            Over::Sink => STAND_INS,
            Over::Lo => LOCAL,
        },
        runs: args.runs,
        rows: rows(&runs, total),
    })
}

fn rows(runs: &BTreeMap<(u32, Way), Vec<Spent>>, total: usize) -> Vec<SendRow> {
    let spread = |key: &(u32, Way)| {
        let bytes = (total / key.0 as usize).max(1) * key.0 as usize;
        let bytes = bytes.max(key.0 as usize * ways::BATCH) as f64;
        let per_kib = |spent: &Spent| spent.cpu_ns as f64 * 1024.0 / bytes;
        Spread::of(runs.get(key)?.iter().map(per_kib))
    };
    let row = |(key, spent): (&(u32, Way), &Vec<Spent>)| {
        let own = spread(key)?;
        let gain = |other: Way| Some(spread(&(key.0, other))?.median / own.median);
        Some(SendRow {
            record_bytes: key.0,
            way: key.1,
            ns_per_kib: own,
            gain_over_dax_path: gain(Way::SendfileDaxPath),
            gain_over_warm: gain(Way::SendfileWarm),
            gain_over_mmap: gain(Way::MmapSend),
            gain_over_bare: gain(Way::Bare),
            zero_copy_bytes: spent.iter().map(|one| one.zero_copy_bytes).sum(),
            kernel_copied_bytes: spent.iter().map(|one| one.kernel_copied_bytes).sum(),
        })
    };
    runs.iter().filter_map(row).collect()
}

impl SendReport {
    /// For people.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header([
            "record",
            "way",
            "ns/KiB",
            "min..max",
            "over DAX path",
            "over warm",
            "over mmap",
            "over bare loop",
            "copied by the kernel",
        ]);
        let times = |gain: Option<f64>| gain.map_or("-".to_owned(), |gain| format!("{gain:.2}x"));
        for row in &self.rows {
            let spread = &row.ns_per_kib;
            let all = row.zero_copy_bytes + row.kernel_copied_bytes;
            let copied = if all == 0 {
                "-".to_owned()
            } else {
                format!("{} of {all}", row.kernel_copied_bytes)
            };
            table.add_row([
                row.record_bytes.to_string(),
                row.way.title().to_owned(),
                format!("{:.0}", spread.median),
                format!("{:.0}..{:.0}", spread.min, spread.max),
                times(row.gain_over_dax_path),
                times(row.gain_over_warm),
                times(row.gain_over_mmap),
                times(row.gain_over_bare),
                copied,
            ]);
        }
        format!(
            "{table}\nmedians of {} interleaved runs; {}\n",
            self.runs, self.stand_ins
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use erb_steady::{skipped, wait_until};

    use super::*;

    #[test]
    fn over_loopback_our_copies_take_over_and_everything_is_read() {
        let source = Source::make(17 << 20).expect("a file");
        let local = Local::build(1).expect("loopback");
        for (way, record) in [(Way::MmapSend, 65_536), (Way::ZeroCopy, 262_144)] {
            let before = local.taken_bytes();
            let stream = local.connect().expect("connected");
            let spent = source.send(way, stream, record, 32 << 20).expect("sent");
            let copied = spent.zero_copy_bytes + spent.kernel_copied_bytes;
            assert!(copied < 16 << 20, "{way:?}: {spent:?}");
            wait_until(Duration::from_secs(30), "all is read", || {
                local.taken_bytes() - before >= 32 << 20
            });
        }
    }

    /// The sink is what makes the figures true: were it to pass payload on, the receiver would copy.
    #[test]
    fn over_the_sink_nothing_is_copied() {
        let source = Source::make(17 << 20).expect("a file");
        let sink = Sink::build(1).expect("namespaces and BPF (root)");
        for (way, record) in [
            (Way::Bare, 65_536),
            (Way::ZeroCopyRing, 65_536),
            (Way::ZeroCopy, 65_536),
            (Way::ZeroCopyBatched, 4096),
            (Way::ZeroCopy, 262_144),
        ] {
            if !source.has(way) {
                skipped(format_args!("{way:?} cannot be had here"));
                continue;
            }
            let before = sink.dropped_bytes().expect("read");
            let (stream, _peer) = sink.connect().expect("connected");
            let spent = source.send(way, stream, record, 16 << 20).expect("sent");
            assert_eq!(spent.kernel_copied_bytes, 0, "{way:?} {record}");
            // On a busy machine the far end is slow, and what it leaves no room for is copied by us.
            assert!(
                spent.zero_copy_bytes > 1 << 20,
                "{way:?} {record}: {spent:?}"
            );
            // On a busy machine acknowledgements come late, and a segment is sent and counted twice.
            assert!(sink.dropped_bytes().expect("read") - before >= 16 << 20);
        }
        for way in [
            Way::ReadSend,
            Way::MmapSend,
            Way::SendfileWarm,
            Way::SendfileDaxPath,
        ] {
            if !source.has(way) {
                skipped("tmpfs has no O_DIRECT here");
                continue;
            }
            let (stream, _peer) = sink.connect().expect("connected");
            let spent = source.send(way, stream, 65_536, 4 << 20).expect("sent");
            assert!(spent.cpu_ns > 0, "{way:?}");
        }
    }
}
