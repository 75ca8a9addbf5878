// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks over keys that take several turns: listings, and counting what a roll back would change. The invariants stand
//! in `backend.rs`.
//!
//! Invariants:
//! 1. Shards are walked one after the other, each by rising hash. A cursor is a hash, which names its shard too. So it
//!    stays good when tables split and keys go.
//! 2. All of a walk is true at its cut.

use erb_nvme::backend::{Operation, Refused, Request, Ticket};
use erb_nvme::layout::{list_row_bytes, page_row_bytes};
use erb_nvme::limits::SHORT_KEY_BYTES_MAX;
use erb_store::{Held, Key, RollBack, Version};

use crate::backend::{Store, namespace};
use crate::reads::{Rows, Whole};
use crate::words;

/// Keys of a page: each is a read.
const PAGE_MAX: usize = 256;

/// A walk under way.
#[derive(Debug)]
pub(crate) struct Scan {
    ticket: Ticket,
    namespace: u16,
    cursor: u64,
    pub(crate) cut: Version,
    what: What,
}

#[derive(Debug)]
enum What {
    /// Short keys, and room for more.
    List { keys: Vec<Vec<u8>>, room: usize },
    /// A page: its rows stand in `Store::rows`.
    Page {
        prefix: Vec<u8>,
        since: Version,
        has_deleted: bool,
        room: usize,
    },
    /// A dry run.
    Count { row: RollBack, keys: u64 },
}

/// Where a walk is behind a step.
enum Stepped {
    /// It goes on.
    On,
    /// It has all that it may have. The next walk begins there; 0: there is none.
    Over(u64),
}

impl Store {
    /// Begins what takes several turns.
    pub(crate) fn begin_scan(&mut self, ticket: Ticket, request: Request) {
        let begun = match &request.operation {
            Operation::Versions { .. } => self.begin_versions(ticket, &request),
            _ => self.begin_walk(ticket, request),
        };
        if let Err(refused) = begun {
            self.answer(ticket, Err(refused));
        }
    }

    fn begin_walk(&mut self, ticket: Ticket, request: Request) -> Result<(), Refused> {
        let (namespace, watermark) = (namespace(&request), self.watermark());
        let (cursor, cut, what) = match request.operation {
            Operation::List { from, bytes } => {
                let key = Key {
                    namespace,
                    bytes: &from,
                };
                let versions = self.engine.store.shards[0].versions();
                let cursor = if from.is_empty() {
                    0
                } else {
                    versions.hash_of(key)
                };
                let keys = Vec::new();
                (cursor, watermark, What::List { keys, room: bytes })
            }
            Operation::Keys {
                prefix,
                cursor,
                moment,
                changed_since,
                has_deleted,
                bytes,
            } => {
                let cut = moment.map_or(watermark, |moment| self.moment(moment));
                if cut > watermark {
                    return Err(Refused::Future);
                }
                let what = What::Page {
                    prefix,
                    since: Version::new(changed_since),
                    has_deleted,
                    room: bytes,
                };
                self.rows.insert(ticket, Rows::new());
                (cursor, cut, what)
            }
            Operation::RollBack(wanted) => {
                let mut row = self.row(namespace, &wanted)?;
                row.id = Version::new(self.engine.store.shared.clock().last().number() + 1);
                for shard in &self.engine.store.shards {
                    let possible = shard.versions().check_roll_back(&row);
                    possible.map_err(words::refused)?;
                }
                (0, watermark, What::Count { row, keys: 0 })
            }
            _ => return Err(Refused::Invalid),
        };
        self.scans.push_back(Scan {
            ticket,
            namespace,
            cursor,
            cut,
            what,
        });
        Ok(())
    }

    /// Each walk goes a step on.
    pub(crate) fn scan(&mut self) {
        for _ in 0..self.scans.len() {
            let Some(mut scan) = self.scans.pop_front() else {
                return;
            };
            match self.step(&mut scan) {
                Ok(Stepped::On) => self.scans.push_back(scan),
                Ok(Stepped::Over(cursor)) => self.finish_scan(scan, cursor),
                Err(refused) => {
                    // Heads that are still read find no row.
                    self.rows.remove(&scan.ticket);
                    self.answer(scan.ticket, Err(refused));
                }
            }
        }
    }

    fn step(&mut self, scan: &mut Scan) -> Result<Stepped, Refused> {
        let number = self.engine.store.layout().shard_of(scan.cursor);
        let shard = &mut self.engine.store.shards[usize::from(number)];
        let versions = shard.versions_mut();
        let next = if let What::Count { row, keys } = &mut scan.what {
            let (count, next) = versions.would_change(row, scan.cursor, scan.cut);
            *keys += count;
            next
        } else {
            let (prefix, deleted): (&[u8], _) = match &scan.what {
                What::Page {
                    prefix,
                    since,
                    has_deleted,
                    ..
                } => (prefix, has_deleted.then_some(*since)),
                _ => (&[], None),
            };
            let scope = Key {
                namespace: scan.namespace,
                bytes: prefix,
            };
            let page = versions.keys(scope, scan.cursor, scan.cut, deleted, scan.cut, PAGE_MAX);
            let page = page.map_err(words::refused)?;
            for (key, held) in page.keys {
                if !self.take(scan, number, &key, held)? {
                    let bytes = &key;
                    let namespace = scan.namespace;
                    let versions = self.engine.store.shards[usize::from(number)].versions();
                    return Ok(Stepped::Over(versions.hash_of(Key { namespace, bytes })));
                }
            }
            page.next
        };
        let layout = self.engine.store.layout();
        match next {
            Some(hash) => scan.cursor = layout.cursor(number, hash),
            None if number + 1 < layout.shards => scan.cursor = layout.cursor(number + 1, 0),
            None => return Ok(Stepped::Over(0)),
        }
        Ok(Stepped::On)
    }

    /// Takes a key. False: there is no room for it.
    fn take(
        &mut self,
        scan: &mut Scan,
        shard: u16,
        key: &[u8],
        held: Held,
    ) -> Result<bool, Refused> {
        match &mut scan.what {
            What::List { keys, room } => {
                if key.len() > SHORT_KEY_BYTES_MAX {
                    return Ok(true);
                }
                let Some(rest) = room.checked_sub(list_row_bytes(key)) else {
                    return if keys.is_empty() {
                        Err(Refused::Invalid)
                    } else {
                        Ok(false)
                    };
                };
                *room = rest;
                keys.push(key.to_vec());
                Ok(true)
            }
            What::Page { since, room, .. } => {
                if held.version <= *since {
                    return Ok(true);
                }
                let rest = room.checked_sub(page_row_bytes(key));
                let Some(rows) = self.rows.get_mut(&scan.ticket) else {
                    return Err(Refused::Failed);
                };
                match rest {
                    None if rows.keys.is_empty() => Err(Refused::Invalid),
                    Some(rest) if rows.keys.len() < PAGE_MAX => {
                        *room = rest;
                        rows.keys.push(key.to_vec());
                        self.add_row(scan.ticket, shard, scan.namespace, key, held);
                        Ok(true)
                    }
                    _ => Ok(false),
                }
            }
            What::Count { .. } => Ok(true),
        }
    }

    fn finish_scan(&mut self, scan: Scan, cursor: u64) {
        match scan.what {
            What::List { keys, .. } => {
                self.answer(scan.ticket, Ok(erb_nvme::backend::Answer::Keys(keys)));
            }
            What::Page { .. } => {
                if let Some(rows) = self.rows.get_mut(&scan.ticket) {
                    let cut = scan.cut.number();
                    rows.whole = Some(Whole::Page { cursor, cut });
                }
                self.finish_rows(scan.ticket);
            }
            What::Count { row, keys } => {
                let namespace = u32::from(scan.namespace);
                self.has_counted(scan.ticket, namespace, row.target, keys);
            }
        }
    }
}
