// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads of values, and of what is known of versions. The invariants stand in `backend.rs`.

use erb_nvme::backend::{Answer, Head, Listed, Operation, Refused, Request, Ticket};
use erb_store::{Came, CameHead, Held, Key, Reading, Version};

use crate::backend::{Outcome, Store, namespace};
use crate::buffer::Aligned;
use crate::disk::IoId;
use crate::words;

/// Versions of a key that are given at once: each is a read.
const VERSIONS_MAX: usize = 256;

/// A read of a record under way.
#[derive(Debug)]
pub(crate) struct ValueRead {
    ticket: Ticket,
    shard: u16,
    namespace: u16,
    key: Vec<u8>,
    held: Held,
    reading: Reading,
    wants: Wants,
}

/// What of the record is wanted.
#[derive(Clone, Copy, Debug)]
enum Wants {
    /// Its value, or so many bytes of it.
    Value(usize),
    /// Its head, for this row.
    Head(usize),
}

/// Rows whose heads are being read.
#[derive(Debug)]
pub(crate) struct Rows {
    /// Of a page: the keys.
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) heads: Vec<Head>,
    /// Heads that are still read.
    left: usize,
    /// No row is to come, and this is what they are.
    pub(crate) whole: Option<Whole>,
}

/// What rows are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whole {
    Versions { has_more: bool, floor: u64 },
    Page { cursor: u64, cut: u64 },
}

impl Rows {
    pub(crate) fn new() -> Self {
        Self {
            keys: Vec::new(),
            heads: Vec::new(),
            left: 0,
            whole: None,
        }
    }

    fn answer(self) -> Outcome {
        match self.whole {
            Some(Whole::Versions { has_more, floor }) => Ok(Answer::Versions {
                rows: self.heads,
                has_more,
                floor,
            }),
            Some(Whole::Page { cursor, cut }) => {
                let rows = self.keys.into_iter().zip(self.heads);
                let rows = rows.map(|(key, head)| Listed {
                    key,
                    version: head.version,
                    bytes: head.bytes,
                    flags: head.flags as u16,
                });
                Ok(Answer::Page {
                    rows: rows.collect(),
                    cursor,
                    cut,
                })
            }
            None => Err(Refused::Failed),
        }
    }
}

impl Store {
    /// Get and Exist.
    pub(crate) fn begin_get(&mut self, ticket: Ticket, request: &Request) {
        let found = self.look_up(ticket, request);
        if let Err(refused) = found {
            self.answer(ticket, Err(refused));
        }
    }

    fn look_up(&mut self, ticket: Ticket, request: &Request) -> Result<(), Refused> {
        let namespace = namespace(request);
        let (asked, at, bytes) = match &request.operation {
            Operation::Get { key, at, bytes } => (key, *at, Some(*bytes)),
            Operation::Exist(key) => (key, erb_nvme::backend::Selector::Head, None),
            _ => return Err(Refused::Invalid),
        };
        let cut = self.watermark();
        let (shard, key) = self.key(namespace, asked);
        let key = key.ok_or(Refused::Absent)?;
        let selector = self.selector(at);
        let of = &mut self.engine.store.shards[usize::from(shard)];
        let name = Key {
            namespace,
            bytes: &key,
        };
        let held = of.read(name, selector, cut).map_err(words::refused)?;
        let held = held.filter(|held| !held.place.is_deleted());
        let held = held.ok_or(Refused::Absent)?;
        let Some(bytes) = bytes else {
            self.answer(ticket, Ok(Answer::Done));
            return Ok(());
        };
        if let Some(cached) = of.cached(&held) {
            let head = words::cached_head(&held, &cached);
            let bytes = cached.value[..cached.value.len().min(bytes)].to_vec();
            self.answer(ticket, Ok(Answer::Value { head, bytes }));
            return Ok(());
        }
        let reading = of.begin_read(&held).ok_or(Refused::Absent)?;
        self.read(ValueRead {
            ticket,
            shard,
            namespace,
            key,
            held,
            reading,
            wants: Wants::Value(bytes),
        });
        Ok(())
    }

    fn read(&mut self, read: ValueRead) {
        let id = self.engine.read(&read.reading);
        self.reads.insert(id, read);
    }

    /// A read has ended.
    pub(crate) fn has_read(&mut self, id: IoId, bytes: Option<&Aligned>) {
        let Some(read) = self.reads.remove(&id) else {
            return;
        };
        let of = &mut self.engine.store.shards[usize::from(read.shard)];
        let name = Key {
            namespace: read.namespace,
            bytes: &read.key,
        };
        let bytes = bytes.map(Aligned::slice);
        let again = match read.wants {
            Wants::Value(most) => match of.end_read(read.reading, name, bytes) {
                Came::Again(reading) => reading,
                Came::Record(record) => {
                    let head = words::head(&read.held, Some(&record.head));
                    let bytes = record.value[..record.value.len().min(most)].to_vec();
                    return self.answer(read.ticket, Ok(Answer::Value { head, bytes }));
                }
                Came::Damaged => return self.answer(read.ticket, Err(Refused::Damaged)),
            },
            Wants::Head(row) => match of.end_read_head(read.reading, name, bytes) {
                CameHead::Again(reading) => reading,
                CameHead::Head(head) => {
                    let head = words::head(&read.held, Some(&head));
                    return self.has_head(read.ticket, row, head);
                }
                CameHead::Damaged => {
                    return self.has_head(read.ticket, row, words::damaged(&read.held));
                }
            },
        };
        self.read(ValueRead {
            reading: again,
            ..read
        });
    }

    fn has_head(&mut self, ticket: Ticket, row: usize, head: Head) {
        if let Some(rows) = self.rows.get_mut(&ticket) {
            rows.heads[row] = head;
            rows.left -= 1;
        }
        self.finish_rows(ticket);
    }

    /// Rows that are whole are answered.
    pub(crate) fn finish_rows(&mut self, ticket: Ticket) {
        let is_whole = |rows: &Rows| rows.left == 0 && rows.whole.is_some();
        if self.rows.get(&ticket).is_some_and(is_whole) {
            if let Some(rows) = self.rows.remove(&ticket) {
                self.answer(ticket, rows.answer());
            }
        }
    }

    /// Adds a row, whose head is read. The version was looked up in this turn.
    pub(crate) fn add_row(
        &mut self,
        ticket: Ticket,
        shard: u16,
        namespace: u16,
        key: &[u8],
        held: Held,
    ) {
        let of = &mut self.engine.store.shards[usize::from(shard)];
        let cached = of.cached_head(&held);
        let cached = cached.map(|cached| words::cached_head(&held, &cached));
        if let (Some(head), Some(rows)) = (cached, self.rows.get_mut(&ticket)) {
            rows.heads.push(head);
            return;
        }
        let reading = of.begin_read_head(&held, key.len());
        let Some(rows) = self.rows.get_mut(&ticket) else {
            return;
        };
        let row = rows.heads.len();
        rows.heads.push(words::head(&held, None));
        let Some(reading) = reading else {
            return;
        };
        rows.left += 1;
        self.read(ValueRead {
            ticket,
            shard,
            namespace,
            key: key.to_vec(),
            held,
            reading,
            wants: Wants::Head(row),
        });
    }

    /// Versions of a key.
    pub(crate) fn begin_versions(
        &mut self,
        ticket: Ticket,
        request: &Request,
    ) -> Result<(), Refused> {
        let namespace = namespace(request);
        let Operation::Versions { key, below, rows } = &request.operation else {
            return Err(Refused::Invalid);
        };
        let cut = self.watermark();
        let (shard, key) = self.key(namespace, key);
        let key = key.ok_or(Refused::Absent)?;
        let name = Key {
            namespace,
            bytes: &key,
        };
        let from = if *below == 0 {
            Version::MAX
        } else {
            Version::new(*below)
        };
        let most = (*rows).min(VERSIONS_MAX);
        let versions = self.engine.store.shards[usize::from(shard)].versions_mut();
        let listed = versions
            .list(name, from, cut, most)
            .map_err(words::refused)?;
        if listed.versions.is_empty() && *below == 0 {
            return Err(Refused::Absent);
        }
        self.rows.insert(ticket, Rows::new());
        for held in listed.versions {
            self.add_row(ticket, shard, namespace, &key, held);
        }
        let floor = self.engine.store.control.state().retention.floor();
        if let Some(rows) = self.rows.get_mut(&ticket) {
            rows.whole = Some(Whole::Versions {
                has_more: listed.has_more,
                floor: floor.number(),
            });
        }
        self.finish_rows(ticket);
        Ok(())
    }
}
