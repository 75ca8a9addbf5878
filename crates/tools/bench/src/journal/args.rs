// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of `erb bench journal`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::args::{CapacityArgs, Drawn, Op, Server, VALUE_BYTES_MIN, WorkArgs, parse_seconds};
use crate::mirror::{BENCH_CONNS_MAX, BENCH_KEYS_MAX, BENCH_VALUE_BYTES_MAX};

/// `erb bench journal`.
#[derive(Args, Debug, Clone)]
pub struct JournalArgs {
    /// Who writes the journal, interleaved run by run (repeat or separate with commas). One that cannot be had here is left
    /// out, and the result says why.
    #[arg(long, value_enum, value_delimiter = ',',
          default_values_t = [Sink::None, Sink::Daemon, Sink::Kmod])]
    pub sink: Vec<Sink>,
    /// Folder for the journals, on the disk that is meant; they are gone afterwards [default: that for temporary files].
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Which keys are written.
    #[arg(long, value_enum, default_value_t = Drawn::Uniform)]
    pub distribution: Drawn,
    /// Keys [default: 100,000; of unique 100,000,000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_KEYS_MAX)))]
    pub keys: Option<u32>,
    /// Bytes per value [default: 100].
    #[arg(long, value_parser = clap::value_parser!(u32)
              .range(i64::from(VALUE_BYTES_MIN)..=i64::from(BENCH_VALUE_BYTES_MAX)))]
    pub value_size: Option<u32>,
    /// Connections. Each has a request in flight, but of more than 240 no more than these at a time:
    /// then they take turns.
    #[arg(long, default_value_t = 200,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_CONNS_MAX)))]
    pub conns: u32,
    /// Runs per sink. Behind them comes one more, in which it is watched when SETs are synced; it counts for nothing else.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Length of a run in seconds, after a warm-up of 0.3 s; it goes on until all is in Redis and synced.
    #[arg(long, default_value_t = 3.0, value_parser = parse_seconds)]
    pub seconds: f64,
    /// Cache given to ERB.
    #[arg(long, default_value = "256M")]
    pub cache_size: String,
    /// Processor for everything that counts as server, the journal's threads among it.
    #[arg(long, default_value_t = 0)]
    pub server_core: usize,
    /// Processor for the load generator.
    #[arg(long, default_value_t = 1)]
    pub generator_core: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Who writes the journal.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sink {
    /// Nobody: there is none (--journal none). What the others are compared with.
    None,
    /// A thread of the daemon's, by write and fdatasync (--journal all --journal-sink daemon).
    Daemon,
    /// The kernel module erb_io (--journal all --journal-sink kmod).
    Kmod,
}

impl Sink {
    /// The name used on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Sink::None => "none",
            Sink::Daemon => "daemon",
            Sink::Kmod => "kmod",
        }
    }

    /// What a boost is told of it.
    pub fn options(self, folder: &str) -> Vec<String> {
        let words: &[&str] = match self {
            Sink::None => &["--journal", "none"],
            Sink::Daemon | Sink::Kmod => &[
                "--journal",
                "all",
                "--journal-dir",
                folder,
                "--journal-sink",
                self.name(),
            ],
        };
        words.iter().map(|&word| word.to_owned()).collect()
    }
}

impl JournalArgs {
    /// The same as `erb bench capacity` would be told.
    pub fn as_capacity(&self) -> CapacityArgs {
        CapacityArgs {
            work: WorkArgs {
                op: Op::Set,
                keys: self.keys,
                value_size: self.value_size,
                batch: None,
                fields: None,
            },
            server: vec![Server::ErbWriteBack],
            distribution: self.distribution,
            hit_ratio: 0.0,
            conns: self.conns,
            runs: self.runs,
            seconds: self.seconds,
            cache_size: self.cache_size.clone(),
            server_core: self.server_core,
            generator_core: self.generator_core,
            json: self.json,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{BenchArgs, BenchCommand};
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn parse(line: &[&str]) -> Result<JournalArgs, clap::Error> {
        let words = ["bench", "journal"].iter().chain(line);
        Cli::try_parse_from(words).map(|cli| match cli.bench.command {
            BenchCommand::Journal(journal) => journal,
            _ => panic!("another command"),
        })
    }

    #[test]
    fn all_sinks_are_compared_if_nothing_is_said() {
        let args = parse(&[]).unwrap();
        assert_eq!(args.sink, [Sink::None, Sink::Daemon, Sink::Kmod]);
        let capacity = args.as_capacity();
        assert_eq!(capacity.server, [Server::ErbWriteBack]);
        assert_eq!(capacity.work.op, Op::Set);
        assert_eq!((capacity.conns, capacity.runs), (200, 7));
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for bad in [
            ["--sink", "uring"],
            ["--op", "get"],
            ["--runs", "0"],
            ["--seconds", "0"],
            ["--value-size", "1401"],
            ["--conns", "60001"],
        ] {
            assert!(parse(&bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn a_boost_is_told_who_writes() {
        let words = |sink: Sink| sink.options("/disk/j").join(" ");
        assert_eq!(words(Sink::None), "--journal none");
        assert_eq!(
            words(Sink::Kmod),
            "--journal all --journal-dir /disk/j --journal-sink kmod"
        );
        assert!(words(Sink::Daemon).ends_with("--journal-sink daemon"));
    }
}
