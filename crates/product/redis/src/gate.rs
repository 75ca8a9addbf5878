// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gate: whether writes may be answered in Redis's place, and everything that speaks against it, by name.
//!
//! Invariants:
//! 1. It opens in a turn in which nothing spoke against it. What it depends on is looked at each tick, Redis's
//!    state each second. What comes over the wire shuts it at once: `bpf/splice/absorb.h`, I6.
//! 2. Before it opens for the first time the words of those who answer are watched (I10), for good; and Redis
//!    tells of all changes (`reports.rs`, 7), and was not asked for anything else: what is answered behind the
//!    answer to that would stay in the cache for ever.
//! 3. A batch that is discarded is tried before Redis is asked for its state ([`TRIAL`]): Redis looks at rights,
//!    memory, disk, role and replicas when a command is queued, and keeps one back while clients are paused
//!    (`processCommand`, Redis src/server.c). So where the trial has not come back, or was refused, no batch would
//!    be executed. And what came over the wire is acknowledged behind a trial that was made behind it, when the
//!    state that it made has been judged.
//! 4. It stays shut for a while after a second in which it was not worth it, longer each time. What it is opened for
//!    then is a try: [`TRY_NS`] of the same load shut it again.

use erb_abi as abi;

use crate::clock::{MS, SECOND_NS};
use crate::outside::{DataPath, MachineView, Result};
use crate::redis_state::RedisState;
use crate::rights::{TRIAL_KEY, WRITE_RIGHTS, lacks_right};
use crate::write_state::WriteState;

/// What is queued and discarded: each command that a batch may have.
pub const TRIAL: [&[&[u8]]; 5] = [
    &[b"MULTI"],
    &[b"MSET", TRIAL_KEY, b""],
    &[b"SET", TRIAL_KEY, b"", b"PX", b"1"],
    &[b"EVAL", b"#!lua flags=allow-oom\nreturn 1", b"1", TRIAL_KEY],
    &[b"DISCARD"],
];

/// How old what waits may be: as long as a lease. Redis is stalled, or has too much to do.
const AGE_MAX_NS: u64 = abi::LEASE_MS as u64 * MS;

/// Not worth it: more than one packet of so many that were answered had to wait for a drain.
const HELD_ONE_OF: u64 = 8;
/// The same of those of which no copy could be made, so that the client's timer passes.
const UNCOPIED_ONE_OF: u64 = 1_000;
/// Fewer held packets in a second say nothing.
const TELLING: u64 = 64;
/// Nor is it worth it where of the writes not one of so many is answered: then Redis's telling of all changes
/// (`reports.rs`) is paid for nothing. Fewer writes in a second say nothing.
const ANSWERED_ONE_OF: u64 = 8;
const WRITES_MIN: u64 = 1_000;
/// For so long it stays shut behind bytes that a client has brought past the programs.
const UNSEEN_REST_NS: u64 = 60 * SECOND_NS;
/// For so long it stays shut then: at first, at most.
const REST_NS: (u64, u64) = (SECOND_NS, 60 * SECOND_NS);
/// Behind a rest so much tells whether it is worth it now. A whole second of commands that wait costs their clients
/// more than SETs gain in it.
const TRY_NS: u64 = 100 * MS;

macro_rules! conditions {
    ($($name:ident $word:literal $means:literal;)*) => {
        /// What the gate depends on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Condition {
            $(#[doc = $means] $name,)*
        }

        impl Condition {
            /// All, in the order in which they are told.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its name: for metrics and programs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $word),* }
            }

            /// What holds where it does not speak against answering writes.
            #[must_use]
            pub const fn means(self) -> &'static str {
                match self { $(Self::$name => $means),* }
            }
        }
    };
}

conditions! {
    Serving "serving" "reads may be answered";
    Kernel "kernel" "packets do not interrupt each other on one processor";
    Clients "clients" "all devices are boosted, and Redis listens to nothing else";
    Table "table" "the table of connections has room for all clients";
    Role "role" "Redis is a master, and no failover is under way";
    Replicas "replicas" "Redis asks for no number of replicas before it writes";
    Log "log" "Redis does not sync its log before each answer, and can write it";
    Snapshot "snapshot" "Redis does not refuse writes because a snapshot failed";
    Memory "memory" "Redis has no limit of memory, or evicts any key at it";
    Events "events" "Redis publishes no events of keys";
    Modules "modules" "no module is loaded that may write by itself";
    Commands "commands" "what the drain sends has Redis's own names";
    Reports "reports" "Redis tells the feed of all changes";
    Trial "trial" "a batch that is discarded is answered at once, and not refused";
    Drain "drain" "what was answered is drained, and not refused";
    Age "age" "what was answered is drained in time";
    Journal "journal" "what waits for Redis for long has a place on a disk, if it is to be kept there";
    Worth "worth" "few packets wait for what is drained, and SETs are answered";
}

/// What speaks against answering writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Against {
    /// The condition.
    pub condition: Condition,
    /// A sentence: what is so, and what to do.
    pub text: String,
}

/// What the operator takes upon himself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Clients that pass no boosted device: what they write may be overwritten by what was answered before it.
    pub unseen: bool,
    /// Modules: the same of what they write by themselves.
    pub modules: bool,
}

/// What the core knows in this tick.
pub(crate) struct Seen<'a> {
    pub(crate) is_serving: bool,
    pub(crate) state: Option<&'a RedisState>,
    /// Why there is no feed, if there is none: nothing is known of Redis.
    pub(crate) no_feed: Option<String>,
    /// Why what the drain sends may not be what it is called.
    pub(crate) names: Option<String>,
    /// Redis tells the feed of all changes, and was not asked for anything else.
    pub(crate) tells_all: bool,
    /// Connections of which nothing is known.
    pub(crate) unseen: u32,
    /// Redis's port.
    pub(crate) port: u16,
    /// Why nothing is drained.
    pub(crate) refusal: Option<String>,
    /// Why what waits for long could not be kept on a disk, if it is to be.
    pub(crate) journal: Option<String>,
    /// For how long what waits has waited.
    pub(crate) age_ns: u64,
}

/// What was counted so far.
#[derive(Clone, Copy, Default)]
struct Counts {
    absorbed: u64,
    held: u64,
    uncopied: u64,
    /// Writes that went up, by their marks.
    up: u64,
    /// Connections with bytes that no program has seen.
    unseen: u64,
}

impl Counts {
    fn read(path: &impl DataPath) -> Result<Self> {
        Ok(Self {
            absorbed: path.stat(abi::STAT_ABSORBED)?,
            held: path.stat(abi::STAT_HELD)?,
            uncopied: path.stat(abi::STAT_HELD_UNCOPIED)?,
            up: path.stat(abi::STAT_MARK_TAKEN)?,
            unseen: path.stat(abi::STAT_BYTES_UNSEEN)?,
        })
    }

    const fn since(&self, before: &Self) -> Self {
        Self {
            absorbed: self.absorbed.saturating_sub(before.absorbed),
            held: self.held.saturating_sub(before.held),
            uncopied: self.uncopied.saturating_sub(before.uncopied),
            up: self.up.saturating_sub(before.up),
            unseen: self.unseen.saturating_sub(before.unseen),
        }
    }

    /// Why it was not worth it to be open for all of this time.
    fn vain(&self, time_ns: u64) -> Option<&'static str> {
        let writes_min = WRITES_MIN * time_ns / SECOND_NS;
        (self.up >= writes_min && self.absorbed * ANSWERED_ONE_OF < self.up).then_some(
            "hardly any of the writes is a SET that can be answered, alone in its packet",
        )
    }

    /// The same, if it was open for any part of it.
    fn waits(&self) -> Option<&'static str> {
        let is_bad =
            |number: u64, one_of: u64| number >= TELLING && number * one_of > self.absorbed;
        let waits = is_bad(self.held, HELD_ONE_OF) || is_bad(self.uncopied, UNCOPIED_ONE_OF);
        waits.then_some("too many other commands had to wait for what was answered")
    }
}

/// How far it is tried.
#[derive(Default)]
enum Try {
    #[default]
    Shut,
    /// Since then, with these counts.
    Begun(u64, Counts),
    Done,
}

/// Whether it pays: invariant 4.
#[derive(Default)]
struct Worth {
    tried: Try,
    before: Option<Counts>,
    rest_ns: u64,
    until_ns: u64,
    /// Why it rests.
    why: &'static str,
    /// Until when it does since bytes of a client were not seen.
    unseen_until_ns: u64,
}

impl Worth {
    /// is_open: it was for all of this second.
    fn second(&mut self, path: &impl DataPath, is_open: bool, now: u64) -> Result<()> {
        let counts = Counts::read(path)?;
        let Some(before) = self.before.replace(counts) else {
            return Ok(());
        };
        let second = counts.since(&before);
        if second.unseen > 0 {
            self.unseen_until_ns = now + UNSEEN_REST_NS;
        }
        let vain = second.vain(SECOND_NS).filter(|_| is_open);
        if now < self.until_ns || second.absorbed == 0 && second.held < TELLING && vain.is_none() {
            return Ok(());
        }
        match second.waits().or(vain) {
            Some(why) => self.rest(why, now),
            // Half as long the next time: a load that turned good is believed by and by.
            None if is_open => self.rest_ns /= 2,
            None => {}
        }
        Ok(())
    }

    /// Each tick.
    fn tick(&mut self, path: &impl DataPath, is_open: bool, now: u64) -> Result<()> {
        match &self.tried {
            _ if !is_open => self.tried = Try::Shut,
            Try::Shut if self.rest_ns > 0 => self.tried = Try::Begun(now, Counts::read(path)?),
            Try::Begun(since_ns, before) if now >= since_ns + TRY_NS => {
                let tried = Counts::read(path)?.since(before);
                let why = tried.waits().or(tried.vain(now - since_ns));
                self.tried = Try::Done;
                if let Some(why) = why {
                    self.rest(why, now);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn rest(&mut self, why: &'static str, now: u64) {
        self.why = why;
        self.rest_ns = (self.rest_ns * 2).clamp(REST_NS.0, REST_NS.1);
        self.until_ns = now + self.rest_ns;
    }
}

/// See the module.
pub(crate) struct Gate {
    allowed: Allowed,
    is_open: bool,
    /// How often it was opened; so often at the last second, if it was open then.
    opened: u64,
    opened_before: Option<u64>,
    against: Vec<Against>,
    worth: Worth,
    machine: Option<MachineView>,
    /// What came of the last trial over the present feed.
    trial: Option<std::result::Result<(), String>>,
    /// When that which is under way was begun.
    trial_ns: Option<u64>,
}

impl Gate {
    pub(crate) fn new(allowed: Allowed) -> Self {
        Self {
            allowed,
            is_open: false,
            opened: 0,
            opened_before: None,
            against: Vec::new(),
            worth: Worth::default(),
            machine: None,
            trial: None,
            trial_ns: None,
        }
    }

    pub(crate) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// How often it was opened.
    pub(crate) const fn opened(&self) -> u64 {
        self.opened
    }

    /// What speaks against it, as last looked at.
    pub(crate) fn against(&self) -> &[Against] {
        &self.against
    }

    /// Nothing is answered from now on; what is being answered at this moment is.
    pub(crate) fn shut(&mut self, path: &impl DataPath) {
        path.control().set_absorb(false);
        self.is_open = false;
    }

    /// The feed is gone: nothing is known of what the next one may do.
    pub(crate) fn forget(&mut self, path: &impl DataPath) {
        if self.is_open {
            tracing::info!("SETs go to Redis: there is no feed");
        }
        self.shut(path);
        self.against = vec![Against {
            condition: Condition::Serving,
            text: "there is no feed from Redis".to_owned(),
        }];
        self.trial = None;
        self.trial_ns = None;
    }

    /// One at a time: it goes with the question about Redis's state.
    pub(crate) const fn trial_sent(&mut self, now: u64) {
        self.trial_ns = Some(now);
    }

    pub(crate) fn trial_came(&mut self, came: std::result::Result<(), String>) {
        self.trial = Some(came);
        self.trial_ns = None;
    }

    /// Once a second: whether it has paid, and what the machine looks like.
    pub(crate) fn second(
        &mut self,
        path: &impl DataPath,
        machine: MachineView,
        now: u64,
    ) -> Result<()> {
        self.machine = Some(machine);
        let opened = self.is_open.then_some(self.opened);
        let before = std::mem::replace(&mut self.opened_before, opened);
        self.worth
            .second(path, opened.is_some() && opened == before, now)
    }

    /// Each tick: whether a try has paid.
    pub(crate) fn tick(&mut self, path: &impl DataPath, now: u64) -> Result<()> {
        self.worth.tick(path, self.is_open, now)
    }

    /// What the machine looks like is not known any more.
    pub(crate) fn forget_machine(&mut self) {
        self.machine = None;
    }

    /// Opens it, or shuts it because of this.
    pub(crate) fn decide(&mut self, path: &impl DataPath, against: Vec<Against>) {
        self.against = against;
        let opens = self.against.is_empty();
        if opens == self.is_open {
            return;
        }
        if opens {
            tracing::info!("SETs are answered in Redis's place");
            self.opened += 1;
            self.is_open = true;
            path.control().set_absorb(true);
        } else {
            let why: Vec<&str> = self.against.iter().map(|one| &one.text[..]).collect();
            tracing::info!("SETs go to Redis: {}", why.join("; "));
            self.shut(path);
        }
    }

    /// What speaks against it now.
    pub(crate) fn found_against(&self, seen: &Seen<'_>, now: u64) -> Vec<Against> {
        let mut found = Found(Vec::new());
        if let Some(text) = &seen.no_feed {
            // What Redis would have to tell for the other conditions is no news beside that.
            found.note(Condition::Serving, text);
            self.machine_against(&mut found);
            waiting_against(seen, &mut found);
            return found.0;
        }
        if !seen.is_serving {
            found.note(Condition::Serving, "reads are not answered either");
        }
        self.machine_against(&mut found);
        if now < self.worth.unseen_until_ns && !self.allowed.unseen {
            let left = (self.worth.unseen_until_ns - now).div_ceil(SECOND_NS);
            let text = format!(
                "a client's bytes came past the programs, by fragments, in a SYN or by IPsec: tried again in {left} s, or \
                 take it upon you with --allow-unseen"
            );
            found.note(Condition::Clients, text);
        }
        if seen.unseen > 0 {
            let text = format!(
                "{} connections have no place in the table: boost with more --connections",
                seen.unseen
            );
            found.note(Condition::Table, text);
        }
        match seen.state {
            Some(state) => {
                self.state_against(state, seen.port, &mut found);
                writes_against(&state.writes, state, &mut found);
            }
            None => found.note(Condition::Role, "Redis's state is not read yet"),
        }
        if let Some(text) = &seen.names {
            found.note(Condition::Commands, text);
        }
        if !seen.tells_all {
            found.note(
                Condition::Reports,
                "Redis tells of what was read alone: that is being changed",
            );
        }
        self.drain_against(seen, now, &mut found);
        if now < self.worth.until_ns {
            let left = (self.worth.until_ns - now).div_ceil(SECOND_NS);
            let text = format!("{}: tried again in {left} s", self.worth.why);
            found.note(Condition::Worth, text);
        }
        found.0
    }

    fn machine_against(&self, found: &mut Found) {
        let Some(machine) = &self.machine else {
            return found.note(Condition::Clients, "the devices are not looked at yet");
        };
        if let Some(text) = &machine.kernel {
            found.note(Condition::Kernel, text);
        }
        if !self.allowed.unseen && !machine.unseen_devices.is_empty() {
            let text = format!(
                "clients may come by {}: boost these devices too, or take it upon you with --allow-unseen",
                machine.unseen_devices.join(", ")
            );
            found.note(Condition::Clients, text);
        }
    }

    fn state_against(&self, state: &RedisState, port: u16, found: &mut Found) {
        if state.role != "master" {
            found.note(
                Condition::Role,
                "Redis is a replica: its master is to be boosted",
            );
        }
        if state.writes.stays_master != Some(true) {
            found.note(Condition::Role, "a failover is under way");
        }
        if !state.events.is_empty() {
            let text = "Redis publishes events of keys, and would later: set notify-keyspace-events to \"\"";
            found.note(Condition::Events, text);
        }
        if !self.allowed.unseen {
            for other in state.ports.iter().filter(|other| **other != port) {
                let text = format!(
                    "Redis listens on port {other} too, whose clients are not seen: close it, or --allow-unseen"
                );
                found.note(Condition::Clients, text);
            }
            if state.writes.unix_socket.as_deref() != Some("") {
                let text = "Redis listens on a unix socket, whose clients are not seen: \
                            start it without `unixsocket`, or --allow-unseen";
                found.note(Condition::Clients, text);
            }
        }
        if !self.allowed.modules && !state.runs_what_is_sent() {
            let text = format!(
                "modules may write by themselves ({}): take it upon you with --allow-modules",
                state.modules.join(", ")
            );
            found.note(Condition::Modules, text);
        }
    }

    fn drain_against(&self, seen: &Seen<'_>, now: u64, found: &mut Found) {
        let waits = self.trial_ns.is_some_and(|sent| now > sent + AGE_MAX_NS);
        match &self.trial {
            Some(Err(text)) if lacks_right(text) => found.note(
                Condition::Trial,
                format!(
                    "the daemon's user needs more rights, +{}: {text}",
                    WRITE_RIGHTS.join(" +")
                ),
            ),
            Some(Err(text)) => found.note(
                Condition::Trial,
                format!("Redis would refuse what is drained: {text}"),
            ),
            None => found.note(Condition::Trial, "no batch was tried yet"),
            Some(Ok(())) if waits => found.note(
                Condition::Trial,
                "Redis does not answer, as it has too much to do or its clients are paused",
            ),
            Some(Ok(())) => {}
        }
        if let Some(text) = &seen.refusal {
            found.note(
                Condition::Drain,
                format!("what was answered in Redis's place is not in it: {text}"),
            );
        }
        waiting_against(seen, found);
    }
}

/// What waits, whether Redis is there or not.
fn waiting_against(seen: &Seen<'_>, found: &mut Found) {
    if seen.age_ns > AGE_MAX_NS {
        let text = format!("what was answered has waited for {} ms", seen.age_ns / MS);
        found.note(Condition::Age, text);
    }
    if let Some(text) = &seen.journal {
        found.note(Condition::Journal, text);
    }
}

struct Found(Vec<Against>);

impl Found {
    fn note(&mut self, condition: Condition, text: impl Into<String>) {
        let text = text.into();
        self.0.push(Against { condition, text });
    }
}

/// What Redis's writes depend on; whatever it does not tell speaks against them.
fn writes_against(writes: &WriteState, state: &RedisState, found: &mut Found) {
    if writes.min_replicas != Some(0) {
        let text = "Redis writes only while it has replicas: set min-replicas-to-write to 0";
        found.note(Condition::Replicas, text);
    }
    match writes.appendfsync.as_deref() {
        Some("everysec" | "no") => {}
        _ => found.note(
            Condition::Log,
            "Redis syncs its log before each answer (appendfsync always), which nobody can do in its place; or it does not say",
        ),
    }
    if writes.log_is_written != Some(true) {
        found.note(
            Condition::Log,
            "Redis could not write its log: see its own log",
        );
    }
    if writes.is_saved != Some(true) && writes.stops_unsaved != Some(false) {
        let text =
            "Redis could not save, and refuses writes until it can (stop-writes-on-bgsave-error)";
        found.note(Condition::Snapshot, text);
    }
    if state.maxmemory > 0 && !state.maxmemory_policy.starts_with("allkeys-") {
        let text = format!(
            "Redis refuses writes at maxmemory with policy {}: set an allkeys policy, or no maxmemory",
            state.maxmemory_policy
        );
        found.note(Condition::Memory, text);
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
