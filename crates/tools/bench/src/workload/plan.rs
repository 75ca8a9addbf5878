// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of the command line made into one checked description of what clients do.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::args::{Distribution, Mix, RecordKind, WorkloadArgs};
use super::draw::Draw;
use super::ledger::LOADED;
use super::trace::{Line, Trace};
use super::value::{self, VALUE_BYTES_MIN};
use crate::mirror::BENCH_KEY_BYTES;
use crate::ordinary::WARM_UP;
use crate::pace::Pace;
use crate::work::{CACHED_BYTES_MAX, HASH_HEAD_BYTES, key};

/// Keys where none are given.
const KEYS: u32 = 100_000;
/// The same of hashes: fewer of them fit into a cache.
const HASH_KEYS: u32 = 10_000;
/// Bytes of a string or field where none are given; YCSB's.
const VALUE_BYTES: u32 = 100;
/// Fields of a hash where none are given; YCSB's.
const FIELDS: u32 = 10;
/// Longest wait for connections to be asked before a run.
const SETTLED_MAX: Duration = Duration::from_secs(30);
/// Length of a run where none is given.
const RUN: Duration = Duration::from_secs(5);
/// A trace may take so long.
const TRACE_RUN: Duration = Duration::from_secs(24 * 3600);

/// What a key holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// A string of so many bytes.
    String(u32),
    /// A hash.
    Hash {
        /// Its fields.
        fields: u32,
        /// Bytes of each one's value.
        bytes: u32,
        /// Fields of which a read asks; none: all.
        read: Option<u32>,
    },
}

/// Shares of operations; the rest are updates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shares {
    /// Reads.
    pub reads: f64,
    /// Inserts of new keys.
    pub inserts: f64,
    /// Reads that are followed by an update of the same key.
    pub modifies: f64,
    /// Updates take turns with INCRs of a key of the connection's own.
    pub counts: bool,
}

/// Where operations come from.
#[derive(Debug)]
pub enum Operations {
    /// They are drawn.
    Drawn(Shares, Draw),
    /// They are lines of a file.
    Traced(Trace),
}

/// What clients do.
#[derive(Debug)]
pub struct Plan {
    /// Operations.
    pub operations: Operations,
    /// Keys before the first one.
    pub keys: u32,
    /// What a key holds.
    pub record: Record,
    /// The same in words.
    pub label: String,
    /// What a reader of the figures must know.
    pub notes: Vec<String>,
    /// Updates of one request.
    pub pipeline: u32,
    /// Operations per second, if they are offered at a rate.
    pub rate: Option<f64>,
    /// Length of a run at most.
    pub time: Duration,
    /// Whether each run begins with new servers and an empty cache.
    pub cold: bool,
}

impl Plan {
    /// What the options say; an error if they do not go together.
    pub fn of(args: &WorkloadArgs) -> Result<Self> {
        let record = record(args)?;
        let is_hash = args.record == RecordKind::Hash;
        ensure!(
            !is_hash || args.pipeline == 1 && args.mix != Some(Mix::Incr),
            "pipelines, and mix incr, are of strings; leave --record out"
        );
        let given = args.seconds.map(Duration::from_secs_f64);
        let mut notes = Vec::new();
        notes.extend(not_cached(record));
        let (operations, keys, label, time) = match &args.trace {
            Some(path) => {
                ensure!(
                    args.record == RecordKind::String,
                    "a trace's keys hold strings; leave --record out"
                );
                let trace = Trace::read(path)?;
                notes.extend(short_writes(&trace));
                let label = format!("trace {}", path.display());
                let keys = trace.names.len() as u32;
                let time = given.unwrap_or(TRACE_RUN);
                (Operations::Traced(trace), keys, label, time)
            }
            None => {
                let keys = args.keys.unwrap_or(match args.record {
                    RecordKind::String => KEYS,
                    RecordKind::Hash => HASH_KEYS,
                });
                let (mix, shares) = shares(args);
                let distribution = args.distribution.unwrap_or(match args.mix {
                    Some(Mix::D) => Distribution::Latest,
                    _ => Distribution::Zipf,
                });
                let draw = Draw::of(distribution, args, keys)?;
                let mut mix = mix;
                if args.pipeline > 1 {
                    mix += &format!(", pipelines of {} updates,", args.pipeline);
                }
                if let Some(beside) = args.beside {
                    mix += &format!(" beside {}", beside.name());
                }
                let label = format!(
                    "{mix} of {keys} {}, {}",
                    record.label(),
                    named(distribution, args)
                );
                let time = given.unwrap_or(RUN);
                (Operations::Drawn(shares, draw), keys, label, time)
            }
        };
        Ok(Self {
            cold: args.series || args.trace.is_some(),
            pipeline: args.pipeline,
            rate: args.rate,
            operations,
            keys,
            record,
            label,
            notes,
            time,
        })
    }

    /// When operations of client number `client` of `clients` are due.
    pub fn pace(&self, client: u32, clients: u32) -> Pace {
        match (&self.operations, self.rate) {
            (_, Some(rate)) => Pace::even(rate, client, clients),
            (
                Operations::Traced(Trace {
                    times: Some(times), ..
                }),
                None,
            ) => Pace::Times {
                all: times.clone(),
                first: client as usize,
                clients: clients as usize,
            },
            _ => Pace::Closed,
        }
    }

    /// Whether operations are due at some time, whatever the server does.
    pub fn timed(&self) -> bool {
        !matches!(self.pace(0, 1), Pace::Closed)
    }

    /// How long so many new connections are asked before a run: until caches have settled and each was
    /// asked twice, as the first command of a connection is always Redis's. Nobody waits for minutes.
    pub fn settled(&self, conns: u32) -> Duration {
        let twice = self.rate.map_or(0.0, |rate| 2.0 * f64::from(conns) / rate);
        Duration::from_secs_f64(twice).clamp(WARM_UP, SETTLED_MAX)
    }

    /// The command by which records are read.
    pub fn read_command(&self) -> &'static str {
        match self.record {
            Record::String(_) => "GET",
            Record::Hash { read: None, .. } => "HGETALL",
            Record::Hash { .. } => "HMGET",
        }
    }

    /// The command by which records are written.
    pub fn write_command(&self) -> &'static str {
        match self.record {
            Record::String(_) => "SET",
            Record::Hash { .. } => "HSET",
        }
    }

    /// Appends a key's name.
    pub fn push_name(&self, to: &mut Vec<u8>, index: u32) {
        match &self.operations {
            Operations::Traced(trace) => to.extend_from_slice(&trace.names[index as usize]),
            Operations::Drawn(..) => to.extend_from_slice(key(index).as_bytes()),
        }
    }

    /// Bytes of a key's name.
    pub fn name_bytes(&self, index: u32) -> usize {
        match &self.operations {
            Operations::Traced(trace) => trace.names[index as usize].len(),
            Operations::Drawn(..) => BENCH_KEY_BYTES as usize,
        }
    }

    /// The command that stores what a key holds before the first operation.
    pub fn store(&self, index: u32) -> redis::Cmd {
        let mut name = Vec::new();
        self.push_name(&mut name, index);
        let value = |field, bytes| {
            let mut value = Vec::new();
            value::push(&mut value, self.record.owner(index, field), LOADED, bytes);
            value
        };
        match self.record {
            Record::String(bytes) => {
                let written = match &self.operations {
                    Operations::Traced(trace) => trace.sizes[index as usize],
                    Operations::Drawn(..) => None,
                };
                redis::Cmd::set(name, value(0, as_stored(written.unwrap_or(bytes))))
            }
            Record::Hash { fields, bytes, .. } => {
                let pairs: Vec<_> = (0..fields)
                    .map(|number| (field(number), value(number, bytes)))
                    .collect();
                redis::Cmd::hset_multiple(name, &pairs)
            }
        }
    }
}

impl Record {
    fn label(self) -> String {
        match self {
            Self::String(bytes) => format!("strings of {bytes} bytes"),
            Self::Hash { fields, bytes, .. } => {
                format!("hashes of {fields} fields of {bytes} bytes")
            }
        }
    }

    /// Whose a value is: a number for each key and field.
    pub fn owner(self, key: u32, field: u32) -> u64 {
        match self {
            Self::String(_) => key.into(),
            Self::Hash { fields, .. } => u64::from(key) * u64::from(fields) + u64::from(field),
        }
    }
}

/// A distribution with what it depends on.
fn named(distribution: Distribution, args: &WorkloadArgs) -> String {
    let name = distribution.name();
    match distribution {
        Distribution::Uniform => name.to_owned(),
        Distribution::Hotspot => format!("{name} {} {}", args.hot_keys, args.hot_requests),
        _ => format!("{name} {}", args.theta),
    }
}

/// Bytes of a written value: it must be able to say what it is.
pub fn as_stored(bytes: u32) -> u32 {
    bytes.max(VALUE_BYTES_MIN)
}

/// Name of a hash's field.
pub fn field(number: u32) -> String {
    format!("field{number}")
}

fn record(args: &WorkloadArgs) -> Result<Record> {
    if args.record == RecordKind::Hash {
        ensure!(
            args.value_bytes.is_none(),
            "--value-bytes is of strings; use --field-bytes"
        );
        let fields = args.fields.unwrap_or(FIELDS);
        let read = args.read_fields.filter(|&read| read < fields);
        ensure!(
            args.read_fields.is_none_or(|read| read <= fields),
            "--read-fields is more than the {fields} fields of a hash"
        );
        let bytes = args.field_bytes.unwrap_or(VALUE_BYTES);
        return Ok(Record::Hash {
            fields,
            bytes,
            read,
        });
    }
    ensure!(
        args.fields.is_none() && args.field_bytes.is_none() && args.read_fields.is_none(),
        "--fields, --field-bytes and --read-fields are of hashes; use --record hash"
    );
    Ok(Record::String(args.value_bytes.unwrap_or(VALUE_BYTES)))
}

/// The mix in words, and its shares.
fn shares(args: &WorkloadArgs) -> (String, Shares) {
    let of = |reads, inserts, modifies| Shares {
        reads,
        inserts,
        modifies,
        counts: args.mix == Some(Mix::Incr),
    };
    if let Some(reads) = args.reads {
        return (format!("{reads} reads"), of(reads, 0.0, 0.0));
    }
    let (name, shares) = match args.mix.unwrap_or(Mix::B) {
        Mix::A => ("a", of(0.5, 0.0, 0.0)),
        Mix::B => ("b", of(0.95, 0.0, 0.0)),
        Mix::C => ("c", of(1.0, 0.0, 0.0)),
        Mix::D => ("d", of(0.95, 0.05, 0.0)),
        Mix::F => ("f", of(0.5, 0.0, 0.5)),
        Mix::Incr => ("incr", of(0.0, 0.0, 0.0)),
    };
    (format!("mix {name}"), shares)
}

/// Why ERB will answer no read of such records, if it will not.
fn not_cached(record: Record) -> Option<String> {
    let (fields, bytes) = match record {
        Record::String(bytes) => {
            let fits = bytes as usize <= CACHED_BYTES_MAX;
            let told = format!("strings of {bytes} bytes: ERB caches {CACHED_BYTES_MAX} at most");
            return (!fits).then_some(told);
        }
        Record::Hash { fields, bytes, .. } => (fields, bytes),
    };
    let element = |bytes: usize| format!("${bytes}\r\n\r\n").len() + bytes;
    let pair = |number| HASH_HEAD_BYTES + element(field(number).len()) + element(bytes as usize);
    let whole = HASH_HEAD_BYTES + (0..fields).map(pair).sum::<usize>();
    (whole > CACHED_BYTES_MAX).then(|| {
        format!(
            "a hash of {fields} fields takes {whole} bytes in ERB's cache, which holds those of \
             {CACHED_BYTES_MAX} at most"
        )
    })
}

/// That a trace's shortest values became longer.
fn short_writes(trace: &Trace) -> Option<String> {
    let short = |line: &&Line| line.written.is_some_and(|bytes| bytes < VALUE_BYTES_MIN);
    let count = trace.lines.iter().filter(short).count();
    (count > 0).then(|| {
        format!(
            "{count} writes of less than {VALUE_BYTES_MIN} bytes wrote that many: a value must be \
             able to say what it is"
        )
    })
}

#[cfg(test)]
#[path = "plan_tests.rs"]
pub mod tests;
