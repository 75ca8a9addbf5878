// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of `erb bench drain`.

use clap::{Args, ValueEnum};

use crate::args::{Over, parse_seconds, parse_within};

/// Digits of a key and of what a value begins with.
pub const DIGITS: u32 = 16;

/// `erb bench drain`.
#[derive(Args, Debug, Clone)]
pub struct DrainArgs {
    /// What to measure, interleaved run by run (repeat or separate with commas).
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [
        Case::Set, Case::Set16, Case::Drain, Case::DrainZipf, Case::SetEx, Case::DrainEx])]
    pub case: Vec<Case>,
    /// Keys of 16 bytes, all of which are there from the start.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub keys: u32,
    /// Bytes per value.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(i64::from(DIGITS)..=1400))]
    pub value_size: u32,
    /// Exponent of the skew of the zipf cases.
    #[arg(long, default_value_t = 0.99, value_parser = parse_theta)]
    pub theta: f64,
    /// Writes per second; 0: as many as the rings have room for, and clients in a closed loop.
    #[arg(long, default_value_t = 0)]
    pub rate: u32,
    /// How long a batch may keep Redis, in microseconds.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub batch_us: u64,
    /// Log rings, which are written in turn.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub rings: u16,
    /// Redis's own log.
    #[arg(long, value_enum, default_value_t = Aof::Everysec)]
    pub aof: Aof,
    /// How the drain reaches Redis.
    #[arg(long, value_enum, default_value_t = Way::Tcp)]
    pub way: Way,
    /// Device between ordinary clients and Redis. On lo each side's system calls do part of the other's
    /// work, and no receive thread is counted.
    #[arg(long, value_enum, default_value_t = Over::Lo)]
    pub over: Over,
    /// Connections of the cases without a drain, one request in flight on each.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub conns: u32,
    /// Runs per case.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Length of a run in seconds; a drain goes on until all is in Redis.
    #[arg(long, default_value_t = 2.0, value_parser = parse_seconds)]
    pub seconds: f64,
    /// Processor for Redis, and for the receive thread of the cases without a drain.
    #[arg(long, default_value_t = 0)]
    pub server_core: usize,
    /// Processor for the drain.
    #[arg(long, default_value_t = 0)]
    pub drain_core: usize,
    /// Processor for who writes the rings, or the clients.
    #[arg(long, default_value_t = 1)]
    pub client_core: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// What is measured.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// SET by ordinary clients, one in a packet.
    Set,
    /// The same, four in a packet.
    #[value(name = "set-4")]
    Set4,
    /// The same, 16 in a packet.
    #[value(name = "set-16")]
    Set16,
    /// The same, 100 in a packet or two.
    #[value(name = "set-100")]
    Set100,
    /// SET with EX, one in a packet.
    #[value(name = "set-ex")]
    SetEx,
    /// SET of keys by their popularity, one in a packet.
    #[value(name = "set-zipf")]
    SetZipf,
    /// HSET of one field of hashes of ten, one in a packet.
    Hset,
    /// The same, 100 in some packets: the least that Redis would take for each, were they drained.
    #[value(name = "hset-100")]
    Hset100,
    /// Records of keys drawn uniformly, drained on a connection like the feed's.
    Drain,
    /// The same of keys by their popularity.
    #[value(name = "drain-zipf")]
    DrainZipf,
    /// Uniform, and each with an expiry.
    #[value(name = "drain-ex")]
    DrainEx,
    /// By popularity, and each with an expiry.
    #[value(name = "drain-zipf-ex")]
    DrainZipfEx,
    /// Uniform, while nobody has Redis report changes: what reporting costs.
    #[value(name = "drain-untracked")]
    DrainUntracked,
}

/// How a case differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// SETs of a packet of ordinary clients; none: a drain.
    pub batch: Option<u32>,
    /// Keys by popularity.
    pub zipf: bool,
    /// Each with an expiry.
    pub expires: bool,
    /// Redis reports changes on the drain's connection.
    pub tracked: bool,
    /// HSET of a field in place of SET.
    pub hashes: bool,
}

impl Case {
    /// What it is made of.
    pub const fn plan(self) -> Plan {
        let batch = match self {
            Self::Set | Self::SetEx | Self::SetZipf | Self::Hset => Some(1),
            Self::Set4 => Some(4),
            Self::Set16 => Some(16),
            Self::Set100 | Self::Hset100 => Some(100),
            _ => None,
        };
        Plan {
            batch,
            zipf: matches!(self, Self::SetZipf | Self::DrainZipf | Self::DrainZipfEx),
            expires: matches!(self, Self::SetEx | Self::DrainEx | Self::DrainZipfEx),
            tracked: !matches!(self, Self::DrainUntracked),
            hashes: matches!(self, Self::Hset | Self::Hset100),
        }
    }

    /// The name used on the command line and in reports.
    pub fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Redis's own log.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aof {
    /// appendonly yes, synced every second.
    Everysec,
    /// appendonly yes, synced when the kernel likes.
    No,
    /// appendonly no.
    Off,
}

/// How the drain reaches Redis.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Loopback.
    Tcp,
    /// Unix socket.
    Unix,
}

fn parse_theta(text: &str) -> Result<f64, String> {
    parse_within(text, 0.1, 3.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        drain: DrainArgs,
    }

    #[test]
    fn cases_may_be_listed_and_have_their_plans() {
        let line = [
            "drain",
            "--case",
            "set-16,drain-zipf-ex,hset-100",
            "--case",
            "drain-untracked",
        ];
        let args = Cli::try_parse_from(line).unwrap().drain;
        let names: Vec<String> = args.case.iter().map(|case| case.name()).collect();
        let want = ["set-16", "drain-zipf-ex", "hset-100", "drain-untracked"];
        assert_eq!(names, want);
        let hashes = args.case[2].plan();
        assert!(hashes.hashes && hashes.batch == Some(100));
        assert_eq!(args.case[0].plan().batch, Some(16));
        let plan = args.case[1].plan();
        assert!(plan.batch.is_none() && plan.zipf && plan.expires && plan.tracked);
        assert!(!args.case[3].plan().tracked);
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for bad in [
            ["--keys", "0"],
            ["--value-size", "15"],
            ["--value-size", "1401"],
            ["--theta", "0"],
            ["--rings", "0"],
            ["--case", "get"],
        ] {
            assert!(
                Cli::try_parse_from(["drain", bad[0], bad[1]]).is_err(),
                "{bad:?}"
            );
        }
    }
}
