// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of `erb bench workload`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use erb_lab::{RedisArg, ServerProgram};

use crate::args::{Over, Server, parse_ratio, parse_seconds, parse_within};
use crate::mirror::BENCH_KEYS_MAX;
use crate::work::FIELDS_MAX;

use super::value::{VALUE_BYTES_MAX, VALUE_BYTES_MIN};

/// One address has 28,232 ports (net.ipv4.ip_local_port_range), and clients are one address.
const CONNS_MAX: i64 = 28_000;

/// `erb bench workload`.
#[derive(Args, Debug, Clone)]
pub struct WorkloadArgs {
    /// Reads and writes as in a workload of YCSB [default: b].
    #[arg(long, value_enum, conflicts_with_all = ["reads", "trace"])]
    pub mix: Option<Mix>,
    /// Share of reads (0 to 1); the rest are updates: 0 are SETs alone.
    #[arg(long, value_parser = parse_ratio, conflicts_with = "trace")]
    pub reads: Option<f64>,
    /// Updates of so many keys in one request, and one operation: a pipeline.
    #[arg(long, default_value_t = 1, value_name = "N", conflicts_with = "trace",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub pipeline: u32,
    /// What Redis does beside, again and again while a run lasts.
    #[arg(long, value_enum)]
    pub beside: Option<Beside>,
    /// Replay this file instead: a line for each operation, `r KEY` or `w KEY BYTES`, and behind it,
    /// in all lines or none, when it is due in microseconds.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Which keys are asked for [default: zipf; mix d: latest].
    #[arg(long, value_enum, conflicts_with = "trace")]
    pub distribution: Option<Distribution>,
    /// Exponent of zipf, zipf-keys and latest.
    #[arg(long, default_value_t = 0.99, value_parser = |text: &str| parse_within(text, 0.01, 10.0))]
    pub theta: f64,
    /// Share of the keys that are hot, for hotspot.
    #[arg(long, default_value_t = 0.2, value_parser = parse_ratio)]
    pub hot_keys: f64,
    /// Share of the requests that go to hot keys, for hotspot.
    #[arg(long, default_value_t = 0.8, value_parser = parse_ratio)]
    pub hot_requests: f64,
    /// What a key holds.
    #[arg(long, value_enum, default_value_t = RecordKind::String)]
    pub record: RecordKind,
    /// Keys before the first operation [default: 100,000; hash: 10,000].
    #[arg(long, conflicts_with = "trace",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_KEYS_MAX)))]
    pub keys: Option<u32>,
    /// Bytes of a string, and with a trace of keys that it only reads [default: 100].
    #[arg(long, value_parser = clap::value_parser!(u32)
              .range(i64::from(VALUE_BYTES_MIN)..=i64::from(VALUE_BYTES_MAX)))]
    pub value_bytes: Option<u32>,
    /// Fields of a hash [default: 10]. An update writes one of them.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(FIELDS_MAX)))]
    pub fields: Option<u32>,
    /// Bytes of a field's value [default: 100].
    #[arg(long, value_parser = clap::value_parser!(u32)
              .range(i64::from(VALUE_BYTES_MIN)..=i64::from(VALUE_BYTES_MAX)))]
    pub field_bytes: Option<u32>,
    /// Fields that a read asks for, by HMGET [default: all, by HGETALL].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(FIELDS_MAX)))]
    pub read_fields: Option<u32>,
    /// Operations per second of all clients together, at even times; latencies then begin when an
    /// operation was due. Without it each connection asks again when it was answered.
    #[arg(long, value_name = "R", value_parser = |text: &str| parse_within(text, 0.1, 1e8))]
    pub rate: Option<f64>,
    /// Connections, one request in flight on each.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=CONNS_MAX))]
    pub conns: u32,
    /// Threads of the clients, which share connections out [default: one for each --client-core].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,
    /// Servers to measure, interleaved run by run (repeat or separate with commas).
    #[arg(long, value_enum, value_delimiter = ',',
          default_values_t = [WorkloadServer::Redis, WorkloadServer::Erb])]
    pub server: Vec<WorkloadServer>,
    /// Threads by which redis-io reads and writes [default: one for each --server-core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=128))]
    pub io_threads: Option<u8>,
    /// Which Redis it is: the installed redis-server, or one of Debian 13, fetched once.
    #[arg(long, value_enum, default_value_t = ServerProgram::Redis7)]
    pub program: ServerProgram,
    /// One more redis.conf setting, like hash-max-listpack-value=100; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub redis_arg: Vec<RedisArg>,
    /// Device between clients and server.
    #[arg(long, value_enum, default_value_t = Over::Veth)]
    pub over: Over,
    /// Runs per server.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Length of a run in seconds [default: 5; with a trace to its end].
    #[arg(long, value_parser = parse_seconds)]
    pub seconds: Option<f64>,
    /// Seconds of the same traffic before a server's first run, in which ERB's cache fills.
    #[arg(long, default_value_t = 5.0, value_parser = |text: &str| parse_within(text, 0.0, 3600.0),
          conflicts_with_all = ["series", "trace"])]
    pub warm_up: f64,
    /// Show each second of a cold start. Every run then begins with new servers and an empty cache;
    /// so does every run of a trace.
    #[arg(long)]
    pub series: bool,
    /// Cache given to ERB.
    #[arg(long, default_value = "256M")]
    pub cache_size: String,
    /// Processors for Redis, the daemon and the server's receive thread (separate with commas).
    #[arg(long, value_delimiter = ',', default_values_t = [0])]
    pub server_core: Vec<usize>,
    /// Processors for clients (separate with commas).
    #[arg(long, value_delimiter = ',', default_values_t = [1])]
    pub client_core: Vec<usize>,
    /// What random choices begin with.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Mixes of YCSB. E scans, which Redis has no single command for.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads.
    C,
    /// 95 % reads of what is new, 5 % inserts.
    D,
    /// Half reads, half reads that are followed by an update of the same key.
    F,
    /// None of YCSB's: on each connection an update and an INCR in turn.
    Incr,
}

/// What Redis can do beside a load.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// Rewrites its append-only file, one time after the other.
    Rewrite,
    /// Saves a snapshot, one time after the other.
    Save,
    /// Runs a script of 5 ms each second.
    Script,
    /// Somebody writes a key each 20 ms and looks, past ERB, when Redis has it; then counts another: the lag
    /// from reply to Redis, and what waits for it.
    Lag,
}

impl Beside {
    /// The name used on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rewrite => "rewrite",
            Self::Save => "save",
            Self::Script => "script",
            Self::Lag => "lag",
        }
    }
}

/// Which keys are asked for.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    /// All keys alike.
    Uniform,
    /// YCSB's scrambled zipfian: a zipfian rank of 10^10, hashed to a key.
    Zipf,
    /// A zipfian rank of as many as there are keys, each key's own: steeper.
    ZipfKeys,
    /// The same rank, counted from the newest key.
    Latest,
    /// Some keys get most of the requests, and within either part all alike.
    Hotspot,
}

/// What a key holds.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// A string: GET, SET.
    String,
    /// A hash: HGETALL or HMGET, HSET of one field.
    Hash,
}

/// Servers that can be measured.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadServer {
    /// Redis alone (appendonly yes, everysec).
    Redis,
    /// The same boosted by ERB.
    Erb,
    /// The same with ERB's TC tier alone, as on a device without native XDP.
    ErbTc,
    /// As erb, and SETs are answered too (--mode write-back). Over a veth alone; a run ends when all is in Redis.
    ErbWriteBack,
    /// As erb, and the cache is closed by hand (`erb aside 3`) before anybody is connected: no packet is looked at.
    ErbClosed,
    /// Redis alone with io-threads.
    RedisIo,
}

impl WorkloadServer {
    /// The name used on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::RedisIo => "redis-io",
            _ => self.server().name(),
        }
    }

    /// What stands in front of Redis.
    pub fn server(self) -> Server {
        match self {
            Self::Redis | Self::RedisIo => Server::Redis,
            Self::Erb => Server::Erb,
            Self::ErbTc => Server::ErbTc,
            Self::ErbWriteBack => Server::ErbWriteBack,
            Self::ErbClosed => Server::ErbClosed,
        }
    }
}

impl Distribution {
    /// The name used on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
            Self::ZipfKeys => "zipf-keys",
            Self::Latest => "latest",
            Self::Hotspot => "hotspot",
        }
    }
}
