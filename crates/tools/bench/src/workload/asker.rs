// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one client of a workload asks, and whether replies are right.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use erb_check::resp::{self, Reply};
use erb_wire::resp::{push_bulk, push_head};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::ledger::Ledger;
use super::plan::{Operations, Plan, Record, as_stored, field};
use super::value;
use crate::load::{Heard, Traffic};

/// Kinds of operations, by their numbers.
pub const OPERATIONS: [&str; 5] = ["read", "update", "insert", "read-modify-write", "count"];
/// Their numbers.
pub const READ: usize = 0;
/// See [`READ`].
pub const MODIFY: usize = 3;
const UPDATE: usize = 1;
const INSERT: usize = 2;
const COUNT: usize = 4;

/// Bytes of a wrong reply that are shown.
const SHOWN_BYTES: usize = 120;

/// One client.
pub struct Asker {
    plan: Arc<Plan>,
    ledger: Arc<Ledger>,
    random: StdRng,
    /// The next line of a trace, and how many clients take them in turn.
    line: usize,
    clients: usize,
    repeated: u64,
    client: u32,
    /// Counters that connections have, and what each was at last.
    counters: Vec<Option<i64>>,
}

/// One operation.
#[derive(Debug, Default)]
pub struct Asked {
    operation: usize,
    /// Its request now is a write.
    writes: bool,
    key: u32,
    /// Bytes of a string that is written.
    bytes: u32,
    /// The oldest version that a read may show.
    floor: u32,
    /// The first field of which a read asks.
    first: u32,
    /// Of a pipeline: the keys behind the first.
    more: Vec<u32>,
    /// The connection's counter, from its first use on.
    counter: Option<usize>,
}

impl Asker {
    /// Client number `client` of `clients`.
    pub fn new(plan: Arc<Plan>, ledger: Arc<Ledger>, seed: u64, client: u32, clients: u32) -> Self {
        Self {
            plan,
            ledger,
            random: StdRng::seed_from_u64(seed.wrapping_add(u64::from(client) << 32)),
            line: client as usize,
            clients: clients as usize,
            repeated: 0,
            client,
            counters: Vec::new(),
        }
    }

    /// Reads so far of keys that were read since they were written.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Decides the next operation; none if a trace is at its end.
    fn choose(&mut self, before: &mut Asked) -> Result<Option<Asked>> {
        let mut asked = Asked {
            more: std::mem::take(&mut before.more),
            counter: before.counter,
            ..Asked::default()
        };
        asked.more.clear();
        match &self.plan.operations {
            Operations::Traced(trace) => {
                let Some(line) = trace.lines.get(self.line) else {
                    return Ok(None);
                };
                self.line += self.clients;
                asked.key = line.key;
                asked.writes = line.written.is_some();
                asked.operation = if asked.writes { UPDATE } else { READ };
                asked.bytes = as_stored(line.written.unwrap_or_default());
            }
            Operations::Drawn(shares, draw) => {
                if let Record::String(bytes) = self.plan.record {
                    asked.bytes = bytes;
                }
                let ends = [shares.reads, shares.inserts, shares.modifies];
                let mut drawn = self.random.random::<f64>();
                let mut below = |share: f64| {
                    drawn -= share;
                    drawn < 0.0
                };
                asked.operation = match ends.map(&mut below) {
                    [true, ..] => READ,
                    [_, true, _] => INSERT,
                    [.., true] => MODIFY,
                    _ if shares.counts && before.operation == UPDATE => COUNT,
                    _ => UPDATE,
                };
                if asked.operation == COUNT {
                    return Ok(Some(asked));
                }
                asked.writes = matches!(asked.operation, UPDATE | INSERT);
                asked.key = if asked.operation == INSERT {
                    self.ledger.insert()?
                } else {
                    let now = self.ledger.keys();
                    draw.key(&mut self.random, self.plan.keys, now)
                };
                if asked.operation == UPDATE {
                    let now = self.ledger.keys();
                    let more = (1..self.plan.pipeline)
                        .map(|_| draw.key(&mut self.random, self.plan.keys, now));
                    asked.more.extend(more);
                }
            }
        }
        Ok(Some(asked))
    }

    fn push_read(&mut self, asked: &mut Asked, request: &mut Vec<u8>) {
        let (floor, read_before) = self.ledger.read(asked.key);
        asked.floor = floor;
        self.repeated += u64::from(read_before);
        let wanted = match self.plan.record {
            Record::Hash {
                fields,
                read: Some(read),
                ..
            } => {
                asked.first = self.random.random_range(0..fields);
                read
            }
            _ => 0,
        };
        push_head(request, b'*', 2 + wanted as usize);
        push_bulk(request, self.plan.read_command().as_bytes());
        self.push_key(asked.key, request);
        for number in 0..wanted {
            push_bulk(request, self.field_of(asked, number).1.as_bytes());
        }
    }

    /// An INCR of a counter that no other connection has.
    fn push_count(&mut self, asked: &mut Asked, request: &mut Vec<u8>) {
        let counter = *asked.counter.get_or_insert_with(|| {
            self.counters.push(None);
            self.counters.len() - 1
        });
        push_head(request, b'*', 2);
        push_bulk(request, b"INCR");
        push_bulk(request, format!("n{}:{counter}", self.client).as_bytes());
    }

    /// It is one more than before; what it was before the first one is not known.
    fn check_count(&mut self, asked: &Asked, reply: &[u8]) -> Result<()> {
        let Reply::Int(now) = Reply::parse(reply) else {
            bail!("it is no number");
        };
        let counter = asked.counter.context("nothing was counted")?;
        let before = self.counters[counter].replace(now);
        ensure!(
            before.is_none_or(|before| before + 1 == now),
            "it counts {now} behind {before:?}"
        );
        Ok(())
    }

    fn push_writes(&mut self, asked: &mut Asked, request: &mut Vec<u8>) -> Result<()> {
        self.push_write(asked, asked.key, request)?;
        for number in 0..asked.more.len() {
            self.push_write(asked, asked.more[number], request)?;
        }
        Ok(())
    }

    fn push_write(&mut self, asked: &Asked, key: u32, request: &mut Vec<u8>) -> Result<()> {
        let version = self.ledger.write(key)?;
        let (first, count, bytes) = match self.plan.record {
            Record::String(_) => (0, 1, asked.bytes),
            Record::Hash { fields, bytes, .. } if asked.operation == INSERT => (0, fields, bytes),
            Record::Hash { fields, bytes, .. } => (self.random.random_range(0..fields), 1, bytes),
        };
        let hash = matches!(self.plan.record, Record::Hash { .. });
        push_head(request, b'*', 2 + count as usize * if hash { 2 } else { 1 });
        push_bulk(request, self.plan.write_command().as_bytes());
        self.push_key(key, request);
        for number in first..first + count {
            if hash {
                push_bulk(request, field(number).as_bytes());
            }
            push_head(request, b'$', bytes as usize);
            let owner = self.plan.record.owner(key, number);
            value::push(request, owner, version, bytes);
            request.extend_from_slice(b"\r\n");
        }
        Ok(())
    }

    fn push_key(&self, key: u32, request: &mut Vec<u8>) {
        push_head(request, b'$', self.plan.name_bytes(key));
        self.plan.push_name(request, key);
        request.extend_from_slice(b"\r\n");
    }

    /// The field of this place in a read of several, and its name.
    fn field_of(&self, asked: &Asked, place: u32) -> (u32, String) {
        let Record::Hash { fields, .. } = self.plan.record else {
            return (0, String::new());
        };
        let number = (asked.first + place) % fields;
        (number, field(number))
    }

    fn check_write(&self, asked: &Asked, reply: &[u8]) -> Result<()> {
        let new = match self.plan.record {
            Record::String(_) => {
                ensure!(reply == b"+OK\r\n", "it was not stored");
                return Ok(());
            }
            Record::Hash { fields, .. } if asked.operation == INSERT => fields,
            Record::Hash { .. } => 0,
        };
        let wanted = Reply::Int(new.into());
        ensure!(Reply::parse(reply) == wanted, "it must add {new} fields");
        Ok(())
    }

    fn check_read(&self, asked: &Asked, reply: &[u8]) -> Result<()> {
        let newest = match self.plan.record {
            Record::String(_) => match Reply::parse(reply) {
                Reply::Bulk(value) => self.version(asked, 0, value)?,
                Reply::Nil => 0,
                _ => bail!("it is no string"),
            },
            Record::Hash { fields, read, .. } => {
                let parts = resp::elements(reply).context("it is no array")?;
                match read {
                    None => self.check_whole(asked, fields, &parts)?,
                    Some(read) => {
                        let places = (0..read).zip(&parts);
                        ensure!(
                            parts.len() == read as usize,
                            "not so many fields were asked for"
                        );
                        for (place, part) in places {
                            let number = self.field_of(asked, place).0;
                            self.version(asked, number, bulk(part)?)?;
                        }
                        // Others may be newer.
                        return Ok(());
                    }
                }
            }
        };
        let floor = asked.floor;
        ensure!(
            newest >= floor,
            "it shows version {newest}, but a write of version {floor} or newer had been answered \
             before it was asked for"
        );
        Ok(())
    }

    /// The newest version of a whole hash's fields; 0 if there is none.
    fn check_whole(&self, asked: &Asked, fields: u32, parts: &[&[u8]]) -> Result<u32> {
        if parts.is_empty() {
            return Ok(0);
        }
        // Of at most 64 fields.
        let mut seen = 0u64;
        let mut newest = 0;
        for pair in parts.chunks(2) {
            let [name, value] = *pair else {
                bail!("a field has no value");
            };
            let name = bulk(name)?;
            let number = name
                .strip_prefix(b"field")
                .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok())
                .filter(|&number: &u32| number < fields);
            let number = number.with_context(|| format!("field {}", resp::show(name, 20)))?;
            seen |= 1 << number;
            newest = newest.max(self.version(asked, number, bulk(value)?)?);
        }
        let all = seen.count_ones() == fields && parts.len() == 2 * fields as usize;
        ensure!(all, "it has not each field once");
        Ok(newest)
    }

    /// The version of a value, which must be of this key and field, and sent already.
    fn version(&self, asked: &Asked, field: u32, value: &[u8]) -> Result<u32> {
        let owner = self.plan.record.owner(asked.key, field);
        let version = value::version_of(value, owner)?;
        let latest = self.ledger.latest(asked.key);
        ensure!(
            (1..=latest).contains(&version),
            "it shows version {version}, and {latest} is the last that was sent"
        );
        Ok(version)
    }
}

impl Traffic for Asker {
    type Asked = Asked;
    const OPERATIONS: usize = OPERATIONS.len();

    fn ask(&mut self, asked: &mut Asked, request: &mut Vec<u8>) -> Result<bool> {
        let Some(chosen) = self.choose(asked)? else {
            return Ok(false);
        };
        *asked = chosen;
        request.clear();
        if asked.operation == COUNT {
            self.push_count(asked, request);
        } else if asked.writes {
            self.push_writes(asked, request)?;
        } else {
            self.push_read(asked, request);
        }
        Ok(true)
    }

    fn hear(&mut self, asked: &mut Asked, reply: &[u8], request: &mut Vec<u8>) -> Result<Heard> {
        let told = || {
            let (to, came) = (
                resp::show(request, SHOWN_BYTES),
                resp::show(reply, SHOWN_BYTES),
            );
            format!("to {to} came {came}")
        };
        let Some(length) = resp::frame_len(reply).with_context(told)? else {
            return Ok(Heard::Part);
        };
        let length = length * (1 + asked.more.len());
        if reply.len() < length {
            return Ok(Heard::Part);
        }
        let right = match reply {
            _ if length < reply.len() => Err(anyhow!("there is more behind it")),
            [b'-', ..] => Err(anyhow!("it is an error")),
            _ if asked.operation == COUNT => self.check_count(asked, reply),
            _ if !asked.more.is_empty() => {
                let stored = reply.chunks(5).all(|one| one == b"+OK\r\n");
                stored.then_some(()).context("not all were stored")
            }
            _ if asked.writes => self.check_write(asked, reply),
            _ => self.check_read(asked, reply),
        };
        right.with_context(told)?;
        if asked.writes {
            self.ledger.written(asked.key);
            asked.more.iter().for_each(|&key| self.ledger.written(key));
        } else if asked.operation == MODIFY {
            asked.writes = true;
            request.clear();
            self.push_write(asked, asked.key, request)?;
            return Ok(Heard::Next);
        }
        Ok(Heard::Done(asked.operation))
    }
}

fn bulk(frame: &[u8]) -> Result<&[u8]> {
    match Reply::parse(frame) {
        Reply::Bulk(bytes) => Ok(bytes),
        _ => bail!(
            "a part of it is no string: {}",
            resp::show(frame, SHOWN_BYTES)
        ),
    }
}

#[cfg(test)]
#[path = "asker_tests.rs"]
mod tests;
