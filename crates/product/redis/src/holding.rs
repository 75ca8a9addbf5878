// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets that wait for a drain (`bpf/splice/hold.h`): their copies come again when what they wait for is drained, and
//! who waits too long is ended. Where no writes are answered nothing waits.
//!
//! # Invariants
//! 1. Copies of a connection come again in the order in which they came, and none before all is drained that any of
//!    them waits for: it would be held once more. Of connections that may come, those that came first do: one that is
//!    delayed once more is behind all others.
//! 2. Nothing hangs on a copy. What is not kept, or not taken, its client sends again. So all of it is bounded, and who
//!    may wait for minutes has a part of it alone.
//! 3. What waits for more than the drain (`order.h`, Y8) comes when that is so: somebody else finds out, by an asking that
//!    begins when it is here and drained ([`Holding::asking`]).
//! 4. A write that is delayed (`absorb.h`, I11) comes again as soon as it may be answered, and is asked of anew then.
//!    It was never taken in, so it may come again at any time: it is kept for half of what the data path delays it.
//! 5. Who waits is known with or without a copy. Who has waited for longer than [`Settings::hold_max_ns`] is ended,
//!    which nobody can take for an answer: what waits was never executed. Who waits for more than the drain is ended
//!    when he himself would not wait longer, where his copy tells (`patience.rs`).
//!
//! [`Settings::hold_max_ns`]: crate::Settings::hold_max_ns

use std::collections::{BTreeMap, VecDeque};

use erb_abi::{ABSORB_AGE_NS, COOKIE_UNKNOWN, DELAY_NS, Delay, HeldPacket, Injected};

use crate::client_list::addresses;
use crate::clock::MS;
use crate::outside::{DataPath, Machine, Result, TcpPair};
use crate::patience;

/// While something waits, `drained` is looked at each so often: a drain aims at batches of this.
const LOOK_NS: u64 = MS / 2;

/// What waits for Redis is young enough for more of it: half of what makes it late, or one write more would be late again.
const YOUNG_NS: u64 = ABSORB_AGE_NS as u64 / 2;

/// A delayed write is kept for so long at most: half of what the data path delays it.
const DELAYED_NS: u64 = DELAY_NS as u64 / 2;

/// The kernel may have no room for a copy at a moment. For longer it is the copy's device: that is down, or gone.
const REFUSED_NS: u64 = 5 * MS;

/// Copies that come again in one turn at most: they pass the CPU's backlog, which has room for 1,000
/// (`net.core.netdev_max_backlog`).
const PER_TURN: usize = 256;

/// Cookie of an entry whose socket nobody has named yet.
const UNNAMED: u64 = COOKIE_UNKNOWN as u64;

/// What is kept at most: of one connection, of all.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// A client with a usual window sends no more small packets than this without being heard.
    of_one: usize,
    packets: usize,
    bytes: usize,
    connections: usize,
}

const BOUNDS: Bounds = Bounds {
    of_one: 64,
    packets: 16_384,
    bytes: 16 << 20,
    connections: 65_536,
};

/// Who waits for more than the drain has one part of so many of each at most: a drain takes milliseconds, and a replica
/// that stands still a minute, in which all others would find no room.
const SYNCS_ONE_OF: usize = 4;

impl Bounds {
    const fn of_who_syncs(&self) -> Self {
        Self {
            of_one: self.of_one,
            packets: self.packets / SYNCS_ONE_OF,
            bytes: self.bytes / SYNCS_ONE_OF,
            connections: self.connections / SYNCS_ONE_OF,
        }
    }
}

/// What is kept.
#[derive(Clone, Copy)]
struct Load {
    connections: usize,
    packets: usize,
    bytes: usize,
}

impl Load {
    const NOTHING: Self = Self {
        connections: 0,
        packets: 0,
        bytes: 0,
    };
    const CONNECTION: Self = Self {
        connections: 1,
        ..Self::NOTHING
    };

    fn of(held: &HeldPacket) -> Self {
        Self {
            connections: 0,
            packets: 1,
            bytes: held.frame.len(),
        }
    }

    const fn and(self, other: Self) -> Self {
        Self {
            connections: self.connections + other.connections,
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
        }
    }

    const fn without(self, other: Self) -> Self {
        Self {
            connections: self.connections - other.connections,
            packets: self.packets - other.packets,
            bytes: self.bytes - other.bytes,
        }
    }

    const fn is_within(self, bounds: &Bounds) -> bool {
        self.connections <= bounds.connections
            && self.packets <= bounds.packets
            && self.bytes <= bounds.bytes
    }
}

/// How many wait, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldingState {
    /// Connections of which a packet waits.
    pub connections: usize,
    /// Copies that are kept.
    pub packets: usize,
    /// Bytes of these.
    pub bytes: usize,
    /// Since when the one that has waited longest does, `CLOCK_MONOTONIC`, ns.
    pub since_ns: Option<u64>,
    /// Connections that were ended since they had waited too long.
    pub ended: u64,
    /// Copies for which there was no room.
    pub left_out: u64,
}

/// A question where all is that was drained when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asking {
    /// Its number.
    pub number: u32,
    /// What was drained.
    pub lsn: u64,
}

/// Addresses, port and cookie of a connection.
type Name = ([u8; 16], [u8; 16], u16, u64);

fn name(held: &HeldPacket) -> Name {
    let key = &held.key;
    let addresses = (key.client_addr, key.server_addr);
    (addresses.0, addresses.1, key.client_port_be, held.cookie)
}

/// A connection that waits.
struct Waiting {
    key: erb_abi::conn_key,
    waits_for: u64,
    /// It has to be synced, by this asking or a later one.
    syncs: Option<u32>,
    /// It is a write that is delayed.
    delay: Option<Delay>,
    /// For how long its client would wait for that.
    patience_ns: Option<u64>,
    since_ns: u64,
    packets: VecDeque<HeldPacket>,
}

impl Waiting {
    fn load(&self) -> Load {
        let copies = self.packets.iter().map(Load::of);
        copies.fold(Load::CONNECTION, Load::and)
    }
}

/// Up to which LSNs all is drained, and synced. Read once: what they say of one connection holds for all.
#[derive(Clone, Copy)]
struct Reached {
    drained: u64,
    synced: u64,
    done: u32,
}

/// What a turn knows. Read once, too.
#[derive(Clone, Copy)]
struct Moment {
    reached: Reached,
    /// Writes may be answered again: what waits for Redis is young. Or none is any more, and they are to go up.
    has_room: bool,
    now: u64,
}

/// Of two numbers of askings, which wrap.
const fn is_before(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) < 0
}

impl Reached {
    fn of(path: &impl DataPath) -> Self {
        let control = path.control();
        Self {
            done: control.sync_done(),
            synced: control.synced(),
            drained: control.drained(),
        }
    }

    /// All is there that was before it.
    const fn is_behind(self, one: &Waiting) -> bool {
        match one.syncs {
            Some(number) => !is_before(self.done, number) && one.waits_for <= self.synced,
            None => one.waits_for <= self.drained,
        }
    }
}

impl Moment {
    fn of(path: &impl DataPath, now: u64) -> Self {
        let (control, reached) = (path.control(), Reached::of(path));
        let is_young = now.saturating_sub(control.fresh_ns()) < YOUNG_NS;
        Self {
            reached,
            has_room: is_young || control.lsn() == reached.drained || !control.absorb(),
            now,
        }
    }

    const fn waited_ns(self, one: &Waiting) -> u64 {
        self.now.saturating_sub(one.since_ns)
    }

    const fn lets(self, one: &Waiting) -> bool {
        let waited_ns = self.waited_ns(one);
        self.reached.is_behind(one)
            && match one.delay {
                None => true,
                Some(Delay::Late) => self.has_room || waited_ns >= DELAYED_NS,
                Some(Delay::Marked) => waited_ns >= LOOK_NS,
            }
    }
}

/// All that waits.
pub(crate) struct Holding {
    waiting: BTreeMap<Name, Waiting>,
    load: Load,
    /// Of those who wait for more than the drain.
    syncing: Load,
    bounds: Bounds,
    hold_max_ns: u64,
    next_ns: u64,
    ended: u64,
    left_out: u64,
    /// The device whose copies the kernel does not take, and since when.
    refused: Option<(u32, u64)>,
    /// The last one that was begun here.
    asking: Option<Asking>,
}

impl Holding {
    pub(crate) const fn new(hold_max_ns: u64) -> Self {
        Self {
            waiting: BTreeMap::new(),
            load: Load::NOTHING,
            syncing: Load::NOTHING,
            bounds: BOUNDS,
            hold_max_ns,
            next_ns: 0,
            ended: 0,
            left_out: 0,
            refused: None,
            asking: None,
        }
    }

    /// When it is to be looked at again, even if nothing comes; none: nothing waits.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(self.next_ns)
    }

    /// Something was drained: what waits is looked at in this turn.
    pub(crate) const fn look(&mut self) {
        self.next_ns = 0;
    }

    /// The asking that somebody waits for, what of whom is drained; none: nobody does. A new one begins with it, where
    /// no other one will do.
    pub(crate) fn asking(&mut self, path: &impl DataPath) -> Option<Asking> {
        let reached = Reached::of(path);
        let mut waits = self
            .waiting
            .values()
            .filter(|one| one.waits_for <= reached.drained && !reached.is_behind(one))
            .filter_map(|one| Some((one.syncs?, one.waits_for)))
            .peekable();
        waits.peek()?;
        let will_do = self.asking.filter(|asking| {
            waits.all(|(number, lsn)| !is_before(asking.number, number) && lsn <= asking.lsn)
        });
        let asking = will_do.unwrap_or_else(|| Asking {
            lsn: reached.drained,
            number: path.control().begin_sync(),
        });
        self.asking = Some(asking);
        Some(asking)
    }

    /// How many wait.
    pub(crate) fn state(&self) -> HoldingState {
        HoldingState {
            connections: self.load.connections,
            packets: self.load.packets,
            bytes: self.load.bytes,
            since_ns: self.waiting.values().map(|one| one.since_ns).min(),
            ended: self.ended,
            left_out: self.left_out,
        }
    }

    /// Takes new copies, lets those come again that may, ends who has waited too long.
    pub(crate) fn turn(
        &mut self,
        path: &mut impl DataPath,
        machine: &impl Machine,
        now: u64,
    ) -> Result<()> {
        let new = path.drain_held();
        if new.is_empty() && (self.waiting.is_empty() || now < self.next_ns) {
            return Ok(());
        }
        let begun = path.control().sync_begun();
        for held in new {
            self.take(held, begun, now);
        }
        let moment = Moment::of(path, now);
        let all = self.bring_up(path, moment)?;
        self.next_ns = if all { now + LOOK_NS } else { now };
        self.end_late(machine, moment);
        Ok(())
    }

    /// `begun`: number of the last asking.
    fn take(&mut self, held: HeldPacket, begun: u32, now: u64) {
        let name = name(&held);
        let is_new = !self.waiting.contains_key(&name);
        if is_new && !self.fits(Load::CONNECTION, held.syncs) {
            self.left_out += 1;
            return;
        }
        if is_new {
            self.load = self.load.and(Load::CONNECTION);
        }
        let one = self.waiting.entry(name).or_insert_with(|| Waiting {
            key: held.key,
            waits_for: 0,
            syncs: None,
            delay: None,
            patience_ns: None,
            since_ns: now,
            packets: VecDeque::new(),
        });
        one.waits_for = one.waits_for.max(held.waits_for);
        // What waits with a write that is delayed does not change for what that waits.
        one.delay = held.delay.map(|delay| one.delay.unwrap_or(delay));
        if held.syncs && one.syncs.is_none() {
            self.syncing = self.syncing.and(one.load());
        }
        if held.syncs {
            // One that began before may not know of it.
            one.syncs = one.syncs.or(Some(begun.wrapping_add(1)));
            one.patience_ns = patience::of_packet(held.payload()).or(one.patience_ns);
        }
        if held.frame.is_empty() || one.packets.iter().any(|other| held.lies_in(other)) {
            return;
        }
        let (copies, syncs) = (one.packets.len(), one.syncs.is_some());
        let more = Load::of(&held);
        if copies >= self.bounds.of_one || !self.fits(more, syncs) {
            self.left_out += 1;
            return;
        }
        self.load = self.load.and(more);
        if syncs {
            self.syncing = self.syncing.and(more);
        }
        if let Some(one) = self.waiting.get_mut(&name) {
            one.packets.push_back(held);
        }
    }

    /// Whether there is room for that, too, of somebody who waits for more than the drain or does not.
    fn fits(&self, more: Load, syncs: bool) -> bool {
        self.load.and(more).is_within(&self.bounds)
            && (!syncs
                || self
                    .syncing
                    .and(more)
                    .is_within(&self.bounds.of_who_syncs()))
    }

    /// Who may come again, of whom as many as a turn takes: those who came first, of one turn by
    /// their names, in the order of these: which processor's copy came first hangs on chance. And whether that is all.
    fn first_come(&self, moment: Moment) -> (Vec<(u64, Name)>, bool) {
        let may = self.waiting.iter().filter(|(_, one)| moment.lets(one));
        let mut found: Vec<(u64, Name)> = may.map(|(name, one)| (one.since_ns, *name)).collect();
        let is_all = found.len() <= PER_TURN;
        if !is_all {
            found.select_nth_unstable(PER_TURN);
            found.truncate(PER_TURN);
        }
        found.sort_unstable_by_key(|(_, name)| *name);
        (found, is_all)
    }

    /// Returns whether all that may come again does.
    fn bring_up(&mut self, path: &impl DataPath, moment: Moment) -> Result<bool> {
        let (found, is_all) = self.first_come(moment);
        let mut left = PER_TURN;
        let before = self.refused.take();
        for (_, name) in found {
            let Some(one) = self.waiting.get_mut(&name) else {
                continue;
            };
            while let Some(held) = one.packets.front().filter(|_| moment.lets(one)) {
                if left == 0 {
                    return Ok(false);
                }
                left -= 1;
                match path.inject(held)? {
                    Injected::Done => {
                        let less = Load::of(held);
                        self.load = self.load.without(less);
                        if one.syncs.is_some() {
                            self.syncing = self.syncing.without(less);
                        }
                        one.packets.pop_front();
                    }
                    Injected::Waits(lsn) => one.waits_for = lsn,
                    Injected::Gone => break,
                    Injected::Full => {
                        let same = before.filter(|(ifindex, _)| *ifindex == held.ifindex);
                        let since_ns = same.map_or(moment.now, |(_, since_ns)| since_ns);
                        self.refused = Some((held.ifindex, since_ns));
                        if moment.now.saturating_sub(since_ns) < REFUSED_NS {
                            return Ok(false);
                        }
                        break; // 2; its client's next one comes by another device, or none does
                    }
                }
            }
            if moment.lets(one) {
                self.forget(&name);
            }
        }
        Ok(is_all)
    }

    fn forget(&mut self, name: &Name) {
        if let Some(one) = self.waiting.remove(name) {
            let less = one.load();
            self.load = self.load.without(less);
            if one.syncs.is_some() {
                self.syncing = self.syncing.without(less);
            }
        }
    }

    fn end_late(&mut self, machine: &impl Machine, moment: Moment) {
        let limit_ns = |one: &Waiting| match one.patience_ns {
            Some(patience_ns) if one.waits_for <= moment.reached.drained => patience_ns,
            _ => self.hold_max_ns,
        };
        let is_late = |(_, one): &(&Name, &Waiting)| {
            !moment.lets(one) && moment.waited_ns(one) > limit_ns(one)
        };
        let late: Vec<Name> = self
            .waiting
            .iter()
            .filter(is_late)
            .map(|(name, _)| *name)
            .collect();
        let mut ended = 0;
        for name in late {
            let Some(one) = self.waiting.get(&name) else {
                continue;
            };
            let (client, server) = addresses(&one.key);
            // Without a cookie the kernel would end a listener, if the connection has gone.
            let is_known = name.3 != UNNAMED;
            match is_known.then(|| machine.destroy(&TcpPair { client, server }, name.3)) {
                None | Some(Ok(false)) => {}
                Some(Ok(true)) => ended += 1,
                Some(Err(error)) => {
                    tracing::warn!("the connection of {client} cannot be ended: {error}")
                }
            }
            self.forget(&name);
        }
        self.ended += ended;
        if ended > 0 {
            tracing::warn!(
                "{ended} connections were reset: what they said has waited for {} ms until what was answered before it is in Redis, \
                 or, behind WAIT, as long as that says until all replicas have it",
                self.hold_max_ns / MS
            );
        }
    }
}

#[cfg(test)]
#[path = "holding_tests.rs"]
mod tests;
