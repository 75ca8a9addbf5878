// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of `erb bench`.

use clap::{Args, Subcommand, ValueEnum};

use crate::mirror::{BENCH_BATCH_MAX, BENCH_CONNS_MAX, BENCH_KEYS_MAX, BENCH_VALUE_BYTES_MAX};
use crate::work::FIELDS_MAX;

pub use crate::drain::DrainArgs;
pub use crate::journal::JournalArgs;
pub use crate::kv::KvArgs;
pub use crate::send::SendArgs;
pub use crate::serve::ServeArgs;
pub use crate::workload::WorkloadArgs;

/// Smallest value: the key that replies are checked by must fit in.
pub const VALUE_BYTES_MIN: u32 = 16;

/// Measure what a request costs.
#[derive(Args, Debug, Clone)]
pub struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// The measurements.
#[derive(Subcommand, Debug, Clone)]
pub enum BenchCommand {
    /// Requests per second and server processor time per request, closed loop, generator in XDP.
    Capacity(CapacityArgs),
    /// The same of both sides with an ordinary client on this machine: TCP sockets, closed loop.
    ///
    /// For clients on the server's own machine (`lo`), where no generator in XDP can be. All keys
    /// are cached and fills are off. Every byte of every reply is compared.
    Clients(ClientsArgs),
    /// What sending a file costs, by way and record size: read + send, sendfile, mmap + send, zero-copy.
    ///
    /// On stand-ins for persistent memory and card, which the result names. Needs root, not Redis.
    Send(SendArgs),
    /// What a request for a static file costs the server: `erb serve` beside nginx with `sendfile on`.
    ///
    /// In namespaces of its own, a processor for each side. Needs root, and an nginx: none is installed,
    /// `--nginx debian` unpacks one beside this program.
    Serve(ServeArgs),
    /// What traffic like your own gains: reads and writes of skewed keys, or a trace, by ordinary
    /// clients, in a closed loop or at a fixed rate.
    ///
    /// ERB's cache begins empty and fills as in production. Every reply is checked: a read must give
    /// a value that was written to its key and was not yet replaced when it was asked for.
    Workload(Box<WorkloadArgs>),
    /// What it would cost to bring writes to Redis that were answered in its place: the drain alone.
    ///
    /// Nobody answers writes for this. Records are made up, put into log rings in memory, and drained into
    /// a real redis-server; beside it the same SETs by ordinary clients. Afterwards every key must hold
    /// what was written to it last.
    Drain(DrainArgs),
    /// What it costs to keep each SET that is answered in Redis's place on a disk: no journal, the daemon's, the kernel
    /// module's.
    ///
    /// As `capacity --op set --server erb-write-back`, until all is in Redis and synced. A kernel module that cannot be had
    /// is left out with the reason. A machine that is emulated is told counts and no times.
    Journal(JournalArgs),
    /// The storage node beside the same disk without it and beside RocksDB; with --paper the VNetKV paper's
    /// experiments too.
    ///
    /// Everything is made in a folder of its own within FOLDER, 1 to 4 GB of it, and is gone afterwards. Needs no root.
    /// Each row says which bar of the design it belongs to, and whether it is reached.
    Kv(KvArgs),
}

/// `erb bench capacity`.
#[derive(Args, Debug, Clone)]
pub struct CapacityArgs {
    /// What is asked for.
    #[command(flatten)]
    pub work: WorkArgs,
    /// Servers to measure, interleaved run by run (repeat or separate with commas).
    #[arg(long, value_enum, value_delimiter = ',', required = true)]
    pub server: Vec<Server>,
    /// Which keys are asked for.
    #[arg(long, value_enum, default_value_t = Drawn::Uniform)]
    pub distribution: Drawn,
    /// Share of the keys (0 to 1) that ERB holds; fills are off while runs last. Only for erb and
    /// erb-tc; erb-closed holds none. ERB answers an MGET only if it holds all its keys. Of writes nothing is held, and all is
    /// as in production.
    #[arg(long, default_value_t = 1.0, value_parser = parse_ratio)]
    pub hit_ratio: f64,
    /// Connections. Each has a request in flight, but of more than 240 no more than these at a time:
    /// then they take turns.
    #[arg(long, default_value_t = 200,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_CONNS_MAX)))]
    pub conns: u32,
    /// Runs per server.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Length of a run in seconds, after a warm-up of 0.3 s.
    #[arg(long, default_value_t = 3.0, value_parser = parse_seconds)]
    pub seconds: f64,
    /// Cache given to ERB.
    #[arg(long, default_value = "256M")]
    pub cache_size: String,
    /// Processor for everything that counts as server.
    #[arg(long, default_value_t = 0)]
    pub server_core: usize,
    /// Processor for the load generator.
    #[arg(long, default_value_t = 1)]
    pub generator_core: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `erb bench clients`.
#[derive(Args, Debug, Clone)]
pub struct ClientsArgs {
    /// What is asked for.
    #[command(flatten)]
    pub work: WorkArgs,
    /// Device between clients and server.
    #[arg(long, value_enum, default_value_t = Over::Lo)]
    pub over: Over,
    /// Servers to measure, interleaved run by run (repeat or separate with commas); on a veth also
    /// erb-tc.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Server::Redis, Server::Erb])]
    pub server: Vec<Server>,
    /// Connections, one request in flight on each.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub conns: u32,
    /// Runs per server.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Length of a run in seconds, after a warm-up of 0.5 s.
    #[arg(long, default_value_t = 2.0, value_parser = parse_seconds)]
    pub seconds: f64,
    /// Cache given to ERB.
    #[arg(long, default_value = "256M")]
    pub cache_size: String,
    /// Processor for Redis, the daemon and the server's receive thread.
    #[arg(long, default_value_t = 0)]
    pub server_core: usize,
    /// Processors for clients, one of which runs on each; connections are shared out (separate
    /// with commas).
    #[arg(long, value_delimiter = ',', default_values_t = [1])]
    pub client_core: Vec<usize>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Devices between ordinary clients and the server.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// The loopback: clients on the server's own machine.
    Lo,
    /// A pair of veth devices between two namespaces.
    Veth,
}

impl Over {
    /// The name used on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Over::Lo => "lo",
            Over::Veth => "veth",
        }
    }
}

/// What requests ask for.
#[derive(Args, Debug, Clone)]
pub struct WorkArgs {
    /// Command that is sent.
    #[arg(long, value_enum, default_value_t = Op::Get)]
    pub op: Op,
    /// Keys, drawn uniformly [default: 100,000; hgetall and hset: 10,000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_KEYS_MAX)))]
    pub keys: Option<u32>,
    /// Bytes per value, of a hash's field too [default: 100; hgetall and hset: 16].
    #[arg(long, value_parser = clap::value_parser!(u32)
              .range(i64::from(VALUE_BYTES_MIN)..=i64::from(BENCH_VALUE_BYTES_MAX)))]
    pub value_size: Option<u32>,
    /// Keys of one MGET [default: 10].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_BATCH_MAX)))]
    pub batch: Option<u32>,
    /// Fields of a hash, for hgetall and hset [default: 10].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(FIELDS_MAX)))]
    pub fields: Option<u32>,
}

/// Commands that can be sent.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// GET of a 16-byte key.
    Get,
    /// MGET of several such keys.
    Mget,
    /// HGETALL of a hash.
    Hgetall,
    /// SET of such a key, which is there. But with erb-write-back nobody answers it but Redis; ERB marks the key, and
    /// Redis reports it.
    Set,
    /// HSET of one field of a hash; the same.
    Hset,
}

/// Which keys requests of `capacity` are for.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drawn {
    /// All alike.
    Uniform,
    /// Zipfian with exponent 0.99, each rank a key of its own: of 262,144 keys drawn so beforehand all alike.
    Zipf,
    /// Each request is for a key that is not there yet, until --keys were asked for [default: 100,000,000]. Of set alone.
    Unique,
}

/// Servers that can be measured.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// redis-server alone (appendonly yes, everysec).
    Redis,
    /// The same redis-server boosted by ERB.
    Erb,
    /// The same with ERB's TC tier alone, as on a device without native XDP.
    ErbTc,
    /// As erb, and watched: metrics read each second, the dashboard open, `erb top` on. Of `capacity` alone.
    ErbWatched,
    /// As erb, and no request is timed. Of `capacity` alone.
    ErbUntimed,
    /// As erb, and SETs are answered too (--mode write-back): measured until the last one is in Redis. Of `capacity`
    /// alone.
    ErbWriteBack,
    /// As erb, and the cache is closed by hand (`erb aside 3`) before anybody is connected: no packet is looked at.
    ErbClosed,
    /// A bare XDP responder with one fixed reply: the machine's limit.
    Echo,
}

impl Server {
    /// The name used on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Server::Redis => "redis",
            Server::Erb => "erb",
            Server::ErbTc => "erb-tc",
            Server::ErbWatched => "erb-watched",
            Server::ErbUntimed => "erb-untimed",
            Server::ErbWriteBack => "erb-write-back",
            Server::ErbClosed => "erb-closed",
            Server::Echo => "echo",
        }
    }

    /// Whether ERB is in front of Redis.
    pub fn boosted(self) -> bool {
        !matches!(self, Server::Redis | Server::Echo)
    }

    /// Whether ordinary clients with a frozen cache have it (`erb bench clients`).
    pub fn serves_clients(self) -> bool {
        matches!(self, Server::Redis | Server::Erb | Server::ErbTc)
    }

    /// What a boost is told, beside the rest.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Server::ErbWatched => &crate::watched::OPTIONS,
            Server::ErbUntimed => &["--no-timing"],
            // Who loads Redis, and the daemon, come by the loopback.
            Server::ErbWriteBack => &["--mode", "write-back", "--allow-unseen"],
            _ => &[],
        }
    }
}

impl Op {
    /// The name used on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Op::Get => "get",
            Op::Mget => "mget",
            Op::Hgetall => "hgetall",
            Op::Set => "set",
            Op::Hset => "hset",
        }
    }

    /// Whether it is of hashes.
    pub fn of_hash(self) -> bool {
        matches!(self, Op::Hgetall | Op::Hset)
    }

    /// Whether it writes.
    pub fn writes(self) -> bool {
        matches!(self, Op::Set | Op::Hset)
    }
}

/// A share.
pub fn parse_ratio(text: &str) -> Result<f64, String> {
    parse_within(text, 0.0, 1.0)
}

/// Length of a run.
pub fn parse_seconds(text: &str) -> Result<f64, String> {
    parse_within(text, 0.1, 3600.0)
}

/// A number between two.
pub fn parse_within(text: &str, low: f64, high: f64) -> Result<f64, String> {
    let number: f64 = text
        .parse()
        .map_err(|_| format!("{text} is not a number"))?;
    if (low..=high).contains(&number) {
        Ok(number)
    } else {
        Err(format!("{number} is not between {low} and {high}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn parse(line: &[&str]) -> Result<CapacityArgs, clap::Error> {
        let words = ["bench", "capacity"].iter().chain(line);
        Cli::try_parse_from(words).map(|cli| match cli.bench.command {
            BenchCommand::Capacity(capacity) => capacity,
            _ => panic!("another command"),
        })
    }

    #[test]
    fn defaults_are_those_of_the_comparison() {
        let args = parse(&["--op", "get", "--server", "redis"]).unwrap();
        assert_eq!((args.conns, args.runs), (200, 7));
        assert_eq!(args.work.op, Op::Get);
        assert_eq!(args.server, [Server::Redis]);
        assert!((args.hit_ratio - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn tens_of_thousands_of_connections_may_be_asked_for() {
        let args = parse(&["--server", "redis", "--conns", "60000"]).unwrap();
        assert_eq!(args.conns, 60_000);
    }

    #[test]
    fn servers_may_be_listed_and_repeated() {
        let args = parse(&["--server", "redis,echo", "--server", "erb-tc"]).unwrap();
        assert_eq!(args.server, [Server::Redis, Server::Echo, Server::ErbTc]);
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for bad in [
            ["--conns", "60001"],
            ["--conns", "0"],
            ["--keys", "0"],
            ["--value-size", "15"],
            ["--value-size", "1401"],
            ["--hit-ratio", "1.01"],
            ["--hit-ratio", "NaN"],
            ["--seconds", "0"],
            ["--op", "frobnicate"],
            ["--batch", "0"],
            ["--batch", "63"],
            ["--fields", "65"],
        ] {
            let line = ["--server", "redis", bad[0], bad[1]];
            assert!(parse(&line).is_err(), "{bad:?} was accepted");
        }
        assert!(parse(&[]).is_err(), "no server was accepted");
    }
}
