// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Somebody answers writes in Redis's place, and drains them: LSNs are given and drained, and nothing else of
//! it is there. And what TCP may have of clients' bytes meanwhile (`bpf/splice/order.h`), judged at the moment
//! when it takes them.
//!
//! | rule | what it says |
//! | --- | --- |
//! | Y1 | all that was given before a command's first byte arrived is drained; of each set that it writes, all that was given at all |
//! | Y6 | but for what tells of the server, or cures it |
//! | Y7 | and but for reads: of each set that they read, all that was given before they arrived |

use std::collections::BTreeMap;
use std::rc::Rc;

use erb_abi::{Control, ControlBlock, KEY_BYTES_MAX, KEYS_MARKED_MAX};
use erb_sim_kernel::{Context, Datapath, point};
use erb_sim_tcp::View;
use erb_wire::layout::Layout;

use crate::check::Held;
use crate::fault::Faults;
use crate::scenario::key_of;
use crate::server::{Pair, Server};
use crate::violation::Violation;

/// Writes that are answered at once, at most.
const AT_ONCE_MAX: u8 = 4;

/// Payload as it arrived, client space.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    from: u32,
    end: u32,
    /// The last LSN given by then.
    lsn: u64,
}

/// When what arrived first, of each connection.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    of: BTreeMap<Pair, Vec<Arrival>>,
    /// The sets of LSN 1 and those behind it.
    given: Vec<usize>,
}

/// a - b in sequence order.
const fn ahead(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

impl Arrivals {
    fn note(&mut self, pair: Pair, arrival: Arrival) {
        self.of.entry(pair).or_default().push(arrival);
    }

    /// The last LSN given before this byte arrived for the first time, if it arrived whole.
    fn lsn(&self, pair: Pair, seq: u32) -> u64 {
        let has = |a: &&Arrival| ahead(seq, a.from) >= 0 && ahead(a.end, seq) > 0;
        let arrivals = self.of.get(&pair);
        arrivals.map_or(0, |all| all.iter().find(has).map_or(0, |first| first.lsn))
    }

    /// A write of this set has this LSN. Maps that are made anew begin with 1 again.
    pub(super) fn give(&mut self, lsn: u64, set: usize) {
        self.given.truncate(lsn as usize - 1);
        self.given.push(set);
    }

    /// Whether a write of this set has one of the LSNs behind `drained`, up to `lsn`.
    fn has_given(&self, drained: u64, lsn: u64, set: usize) -> bool {
        let given = self.given.get(drained as usize..lsn as usize);
        given.is_some_and(|given| given.contains(&set))
    }

    fn forget_before(&mut self, pair: Pair, seq: u32) {
        if let Some(all) = self.of.get_mut(&pair) {
            all.retain(|arrival| ahead(arrival.end, seq) > 0);
        }
    }
}

/// What TCP had of a connection: the client's first byte in kernel space, and how many.
#[derive(Clone, Copy)]
pub(super) struct Taken {
    first: u32,
    bytes: u64,
}

impl Taken {
    const fn of(view: &View) -> Self {
        Self {
            first: view.rcv_nxt.wrapping_sub(view.bytes_received as u32),
            bytes: view.bytes_received,
        }
    }
}

/// The control block as the daemon has it.
fn block(path: &Datapath) -> &Control {
    ControlBlock::control(path)
}

/// Whether a write of the set may be answered now, as who does so would look: no mark, no share, no gate.
fn is_free(path: &Datapath, set: usize) -> bool {
    path.set(set).0.marks == 0 && path.fence() == 0 && path.gate_seen() == path.gate_ack()
}

impl Server {
    /// Writes are answered in Redis's place, or what was answered is drained, in part or whole; beside
    /// programs, wherever those wait.
    pub fn absorb_or_drain(self: &Rc<Self>) {
        let (server, cpu) = (self.clone(), self.draw_cpu());
        self.cpus.spawn(cpu, Context::Softirq, move || {
            let rounds = server.inner.random.borrow_mut().u8(1..=AT_ONCE_MAX);
            let absorbs = server.inner.random.borrow_mut().bool();
            for _ in 0..rounds {
                point();
                let Some(path) = server.path.borrow().clone() else {
                    return;
                };
                let (lsn, drained) = (block(&path).lsn(), block(&path).drained());
                let mut random = server.inner.random.borrow_mut();
                if absorbs {
                    let set = random.usize(..path.set_count());
                    drop(random);
                    server.absorb_meanwhile(cpu, set, 1);
                } else if random.bool() {
                    block(&path).set_drained(random.u64(drained..=lsn));
                } else {
                    block(&path).set_drained(lsn);
                }
            }
            // Faults may have ended since it began: then nobody comes after it.
            if server.inner.faults.get() == Faults::NONE {
                server.drain();
            }
        });
    }

    /// A write of a key of this set is answered, if it may be: it has an LSN. Returns whether it was.
    pub fn absorb(&self, set: usize) -> bool {
        let Some(path) = self.path.borrow().clone() else {
            return false;
        };
        let may = is_free(&path, set);
        if may {
            self.give(&path, set);
        }
        may
    }

    fn give(&self, path: &Datapath, set: usize) {
        let lsn = block(path).lsn() + 1;
        block(path).give_lsns(lsn);
        path.note_lsn(set, lsn);
        self.arrivals.borrow_mut().give(lsn, set);
    }

    /// The same by this CPU, while others run: it says so, looks once more whether it may, and gives the LSN
    /// (`bpf/splice/busy.h`), so many points later. Returns whether it was answered.
    pub fn absorb_meanwhile(&self, cpu: usize, set: usize, pause: u32) -> bool {
        let Some(path) = self.path.borrow().clone() else {
            return false;
        };
        block(&path).set_watch(self.inner.plan.profile.server.cpus as u32);
        point();
        if !is_free(&path, set) {
            return false;
        }
        point();
        path.set_busy(cpu, Some(set));
        point();
        let may = is_free(&path, set);
        (0..pause).for_each(|_| point());
        if may {
            self.give(&path, set);
        }
        path.set_busy(cpu, None);
        may
    }

    /// That CPU says so, or that it is over, and does nothing else: one of a virtual machine that is not run.
    pub fn stand_at(&self, cpu: usize, set: Option<usize>) {
        if let Some(path) = self.path.borrow().as_ref() {
            block(path).set_watch(self.inner.plan.profile.server.cpus as u32);
            path.set_busy(cpu, set);
        }
    }

    /// All that was answered is drained.
    pub fn drain(&self) {
        if let Some(path) = self.path.borrow().as_ref() {
            block(path).set_drained(block(path).lsn());
        }
    }

    /// A frame has arrived, and no program has seen it.
    pub(super) fn note_arrival(&self, bytes: &[u8]) {
        let path = self.path.borrow();
        let lsn = path.as_ref().map_or(0, |path| block(path).lsn());
        let profile = &self.inner.plan.profile;
        let is_of_use = lsn > 0 || profile.events.absorb > 0 || profile.server.absorbs;
        let Some(at) = Layout::of(bytes).filter(|_| is_of_use) else {
            return;
        };
        let (client, here) = at.pair(bytes);
        let mut arrivals = self.arrivals.borrow_mut();
        if at.payload_len() > 0 {
            let from = at.seq(bytes);
            let end = from.wrapping_add(at.payload_len() as u32);
            arrivals.note((here, client), Arrival { from, end, lsn });
        }
    }

    /// What TCP has of a connection.
    pub(super) fn taken(&self, pair: Pair) -> Option<Taken> {
        let host = self.host.borrow();
        let view = host.view(host.lookup(pair.0, pair.1)?.id?)?;
        Some(Taken::of(&view))
    }

    /// TCP may have taken more of it than it had: what of it should have waited?
    pub(super) fn check_taken(&self, pair: Pair, had: Option<Taken>) {
        let path = self.attached_path().filter(|path| block(path).lsn() > 0);
        let (Some(path), Some(has)) = (path, self.taken(pair)) else {
            return;
        };
        let had = had.unwrap_or(Taken { bytes: 0, ..has });
        if had.bytes == has.bytes || self.had_unseen_input.get() {
            return;
        }
        if let Err(text) = self.judge(&path, pair, had, has.bytes) {
            let text = format!("{}: {text}", pair.1);
            self.inner
                .fail(Violation::new("Y1", self.inner.now(), text));
        }
    }

    fn judge(&self, path: &Datapath, pair: Pair, had: Taken, has: u64) -> Result<(), String> {
        let host = self.host.borrow();
        let look = host.lookup(pair.0, pair.1);
        let Some(cookie) = look.map(|look| look.cookie) else {
            return Ok(());
        };
        let entry = path
            .conn(&key_of(pair))
            .filter(|entry| entry.cookie == cookie);
        let in_delta = entry.map_or(0, |entry| entry.in_delta);
        let (from, end) = (had.bytes as usize, has as usize);
        let (from, end) = (from + in_delta as usize, end + in_delta as usize);
        let mut arrivals = self.arrivals.borrow_mut();
        let checks = self.inner.checks.borrow();
        let Some(conn) = self.conn_of(cookie) else {
            return Ok(());
        };
        let refused = block(path).refused();
        let is_held = |held| held == Held::Always || held == Held::UnlessRefused && !refused;
        for said in checks.commands(conn) {
            let (begin, behind) = (said.bytes.start, said.bytes.end);
            if (from..end).contains(&begin) && is_held(said.held) {
                let lsn = arrivals.lsn(pair, had.first.wrapping_add(begin as u32));
                let drained = block(path).drained();
                let waits = |key: &erb_sim_redis::Bytes| {
                    let set = set_of(path, key);
                    arrivals.has_given(drained, lsn, set)
                };
                let waits = said.reads.is_none_or(|keys| keys.iter().any(waits));
                if lsn > drained && waits {
                    return Err(format!(
                        "TCP has a command of byte {begin} which arrived at LSN {lsn}; {drained} is drained"
                    ));
                }
            }
            if behind > from && behind <= end && entry.is_some_and(is_counted) {
                drained_sets(path, said.writes)?;
            }
        }
        arrivals.forget_before(pair, had.first.wrapping_add(end as u32));
        Ok(())
    }
}

/// Whether what the entry's commands write is marked.
fn is_counted(entry: &erb_abi::conn) -> bool {
    let lost = erb_abi::CONN_F_UNCOUNTABLE | erb_abi::CONN_F_SCAN_LOST;
    u32::from(entry.flags) & lost == 0 && u32::from(entry.state) != erb_abi::CONN_OLD
}

/// The set of a key.
pub(super) fn set_of(path: &Datapath, key: &[u8]) -> usize {
    // SAFETY: the map has one value, which stays where it is; no program runs.
    let control = unsafe { &*path.control() };
    (control.hash.hash(key) & control.set_mask) as usize
}

/// Whether all that was answered of these keys' sets is drained.
fn drained_sets(path: &Datapath, keys: &[erb_sim_redis::Bytes]) -> Result<(), String> {
    // SAFETY: the map has one value, which stays where it is; no program runs.
    let control = unsafe { *path.control() };
    let short = |key: &&erb_sim_redis::Bytes| key.len() <= KEY_BYTES_MAX as usize;
    if keys.len() > KEYS_MARKED_MAX as usize {
        return Ok(()); // they close the fence instead
    }
    for key in keys.iter().filter(short) {
        let set = set_of(path, key);
        let (drained, given) = (control.order.drained, control.order.lsn);
        let behind = path.set(set).0.lsn.wrapping_sub(drained as u32 + 1);
        if behind < (given - drained) as u32 {
            return Err(format!(
                "TCP has a write of set {set}, of which something that was answered is not drained"
            ));
        }
    }
    Ok(())
}
