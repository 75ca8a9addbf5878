// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Admission: which connections CLIENT LIST makes fast, and which users may do everything.
//!
//! The sweep says who could be admitted, then CLIENT LIST is sent, and what it shows is judged here;
//! `erb_admit` refuses who has moved on meanwhile (`bpf/redis/admit.h`, invariants A1 to A6).
//!
//! Invariants:
//! 1. A list is judged only for connections of a sweep that was made before the list was sent.
//! 2. A user has full rights if ACL LIST shows it enabled, with all keys, all channels and all
//!    commands, and nothing taken away. Any difference in ACL LIST moves the rights' epoch: no
//!    admission from before holds. The epoch moves before the gate is acknowledged.
//! 3. While the default user needs a password, CLIENT LIST's `user=default` may be somebody who has
//!    none: such a connection is admitted only if AUTH or HELLO was answered on it.
//! 4. What a list shows for good (a restricted user, tracking) is noted, with the reason, so that nobody
//!    asks again before something changes.

use std::collections::HashMap;

use erb_abi::{self as abi, SweepReport};

use crate::client_list::{ClientLine, addresses, canonical};
use crate::clock::MS;
use crate::outside::{DataPath, Result, TcpPair};
use crate::rights::DEFAULT_USER;
use crate::users::Users;

/// After attaching, packets that passed before it are in the kernel after this time.
const BEGIN_AFTER_NS: u64 = 200 * MS;

/// Between sweeps for connections that are not quiet or not answered yet, at first and at most.
const PATIENCE_MIN_NS: u64 = 20 * MS;
const PATIENCE_MAX_NS: u64 = 1000 * MS;

/// What a list means for one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fast {
        db: u16,
        resp: u8,
    },
    /// Behind so many replies that it waits for.
    Trial {
        owed: u16,
    },
    /// It only listens.
    Listen,
    /// Not now.
    Later,
    /// Not before something of the connection or the rights changes: why.
    Never(abi::slow_why),
}

/// Flags that say nothing: none, and CLIENT NO-EVICT.
fn flags_are_plain(flags: &str) -> bool {
    flags == "N" || flags == "e"
}

/// States that end without a command of the connection: blocked, unblocked a moment ago, closing.
fn flags_pass(flags: &str) -> bool {
    flags.is_empty() || flags.contains(['b', 'u', 'c', 'A'])
}

/// Whether it is a replica, or a subscriber who may not send other commands, and is between two
/// commands as far as the list shows.
fn listens(line: &ClientLine) -> bool {
    let replica = line.flags.contains('S') && !line.flags.contains(['O', 'x']);
    let subscriber = line.flags.contains('P') && line.resp == 2 && line.subscriptions > 0;
    (replica || subscriber) && line.qbuf == 0 && line.argument_bytes == 0
}

/// Whether it does nothing but wait in a command that does no harm to answers, whenever it goes on: a move only while
/// absences are not answered ([`Movers`](crate::movers::Movers)).
fn only_waits(line: &ClientLine) -> bool {
    let flags = line.flags.trim_matches('e') == "b";
    let is_known = line.blocks_harmlessly() || line.blocks_in_a_move();
    let is_free = line.multi.is_none() && line.subscriptions == 0 && !line.has_capabilities;
    flags && is_known && is_free && line.qbuf == 0 && line.output == 0
}

/// What of its state, which only a command can end, keeps a line's connection out (flags: Redis src/networking.c,
/// `catClientInfoString`).
fn state_against(line: &ClientLine) -> Option<abi::slow_why> {
    let has = |flags: &[char]| line.flags.contains(flags);
    let of_flags = match () {
        () if flags_are_plain(&line.flags) => None,
        () if has(&['O']) => Some(abi::CMD_MONITOR),
        () if has(&['S', 'M']) => Some(abi::CMD_SILENT),
        () if has(&['t', 'R', 'B']) => Some(abi::CMD_BARRED),
        () if has(&['P']) => Some(abi::CMD_UNCOUNTABLE),
        () if has(&['x']) => Some(abi::CMD_MULTI),
        () if has(&['d']) => Some(abi::CMD_WATCH),
        () => Some(abi::SLOW_FLAGS),
    };
    let of_counts = [
        (line.multi.is_some(), abi::CMD_MULTI),
        (line.watch > 0, abi::CMD_WATCH),
        (line.subscriptions > 0, abi::CMD_UNCOUNTABLE),
        (line.has_capabilities, abi::CMD_BARRED),
    ];
    let counted = of_counts.iter().find(|(is_so, _)| *is_so);
    of_flags.or(counted.map(|(_, why)| *why))
}

fn judge(row: &abi::admit_row, line: &ClientLine, users: &Users) -> Verdict {
    if u32::from(row.act) == abi::ADMIT_TRIAL && only_waits(line) {
        return Verdict::Trial { owed: 1 };
    }
    if flags_pass(&line.flags) {
        return Verdict::Later;
    }
    let older = [abi::ADMIT_TRIAL, abi::ADMIT_LISTEN];
    if older.contains(&u32::from(row.act)) && listens(line) {
        return Verdict::Listen;
    }
    if u32::from(row.act) == abi::ADMIT_LISTEN {
        return Verdict::Later;
    }
    if let Some(why) = state_against(line) {
        return Verdict::Never(why);
    }
    if line.qbuf > 0 || line.output > 0 {
        return Verdict::Later;
    }
    if u32::from(row.act) == abi::ADMIT_TRIAL {
        let at_a_boundary = line.argument_bytes == 0;
        return if at_a_boundary {
            Verdict::Trial { owed: 0 }
        } else {
            Verdict::Later
        };
    }
    let Some(rights) = users.get(&line.user).filter(|rights| rights.is_full()) else {
        return Verdict::Never(abi::SLOW_USER);
    };
    if line.user == DEFAULT_USER && !rights.no_password && row.authed == 0 {
        return Verdict::Never(abi::SLOW_PASSWORD);
    }
    match (u16::try_from(line.db), line.resp) {
        (Ok(db), resp @ (2 | 3)) if db < u16::MAX => Verdict::Fast { db, resp },
        _ => Verdict::Never(abi::SLOW_FLAGS),
    }
}

/// When to look for connections to be admitted, and what is known of rights.
#[derive(Debug)]
pub(crate) struct Admissions {
    /// When new connections are taken in; none: they are.
    begin_ns: Option<u64>,
    acl: Option<Vec<String>>,
    users: Users,
    /// As which user a connection has come that stays out for its user's sake. No more than the last list had lines.
    limited: HashMap<TcpPair, String>,
    skip: u32,
    changes: u64,
    waiting: bool,
    patience_ns: u64,
    next_ns: u64,
}

impl Admissions {
    /// Just attached: nothing is known of rights.
    pub(crate) fn new(now: u64) -> Self {
        Self {
            begin_ns: Some(now + BEGIN_AFTER_NS),
            acl: None,
            users: Users::default(),
            limited: HashMap::new(),
            skip: 0,
            changes: 0,
            waiting: false,
            patience_ns: 0,
            next_ns: 0,
        }
    }

    /// Whether new connections are taken in.
    pub(crate) const fn is_begun(&self) -> bool {
        self.begin_ns.is_none()
    }

    /// Whether it is time to.
    pub(crate) fn may_begin(&self, now: u64) -> bool {
        self.begin_ns.is_some_and(|at| now >= at)
    }

    /// They are not any more, until that is asked again.
    pub(crate) const fn begin_again(&mut self, now: u64) {
        self.begin_ns = Some(now);
    }

    /// New connections are taken in from now on.
    pub(crate) fn begin(&mut self, path: &impl DataPath) {
        self.begin_ns = None;
        path.set_admit(1);
    }

    /// ACL LIST was read: a difference ends all admissions. Called before the gate is acknowledged.
    pub(crate) fn take_rights(&mut self, path: &impl DataPath, acl: &[String]) {
        if self.acl.as_deref() == Some(acl) {
            return;
        }
        if self.acl.is_some() {
            tracing::info!("access rules changed: connections are admitted anew");
        }
        self.users = Users::of(acl);
        if let Some(reason) = self.users.none_is_full() {
            tracing::warn!("{reason}");
        }
        self.acl = Some(acl.to_vec());
        // In this order: who reads the new epoch reads whether it is open, too.
        path.set_open(self.users.door());
        path.set_rights(path.rights().wrapping_add(1));
        self.hurry();
    }

    /// The feed is gone: what it said of rights may be old when it is back.
    pub(crate) fn forget_rights(&mut self, path: &impl DataPath) {
        path.set_open(abi::DOOR_UNKNOWN);
        self.acl = None;
    }

    /// Looks again with the next tick.
    pub(crate) const fn hurry(&mut self) {
        self.patience_ns = PATIENCE_MIN_NS;
        self.next_ns = 0;
        self.waiting = true;
    }

    /// Reads the counts of connections that are answered no more; true if they have moved: somebody
    /// may want to be admitted.
    pub(crate) fn look(&mut self, path: &impl DataPath) -> Result<bool> {
        let changes = path.stat(abi::STAT_STATEFUL)?
            + path.stat(abi::STAT_CONN_BYPASS)?
            + path.stat(abi::STAT_CONN_OLD)?;
        let moved = std::mem::replace(&mut self.changes, changes) != changes;
        if moved {
            self.hurry();
        }
        Ok(moved)
    }

    /// Whether a sweep should look for connections to be admitted.
    pub(crate) const fn want_sweep(&self, now: u64) -> bool {
        self.waiting && now >= self.next_ns
    }

    /// How many candidates the next sweep leaves out: each has its turn.
    pub(crate) const fn skip(&self) -> u32 {
        self.skip
    }

    /// A sweep was made; whether CLIENT LIST may be asked for those that it found.
    pub(crate) fn plan(&mut self, found: &SweepReport, now: u64) -> bool {
        let candidates = found.admit.len() as u32;
        self.skip = if found.admit_more > 0 {
            self.skip + candidates
        } else {
            0
        };
        self.waiting = candidates > 0 || found.waiting > 0 || self.skip > 0;
        self.next_ns = now + self.patience_ns;
        self.patience_ns = (2 * self.patience_ns).clamp(PATIENCE_MIN_NS, PATIENCE_MAX_NS);
        self.acl.is_some()
    }

    /// CLIENT LIST came back for these candidates.
    pub(crate) fn admit(
        &mut self,
        path: &impl DataPath,
        list: &[ClientLine],
        rows: &[abi::admit_row],
        (rights, parses_ahead): (u32, bool),
    ) -> Result<()> {
        if rows.is_empty() || self.acl.is_none() || rights != path.rights() {
            return Ok(());
        }
        let lines = by_addresses(list);
        self.limited.retain(|pair, user| {
            let line = lines.get(pair).copied().flatten();
            line.is_some_and(|line| line.user == *user)
        });
        let mut admitted = 0;
        for row in rows {
            let (client, server) = addresses(&row.key);
            let pair = TcpPair { client, server };
            let line = lines.get(&pair).copied().flatten();
            let verdict = line.map_or(Verdict::Later, |line| judge(row, line, &self.users));
            let Some(request) = request_of(row, rights, verdict, parses_ahead) else {
                continue;
            };
            let is_done = path.admit_conn(&request)?;
            admitted += u32::from(is_done && matches!(verdict, Verdict::Fast { .. }));
            match line.filter(|_| verdict == Verdict::Never(abi::SLOW_USER)) {
                Some(line) => drop(self.limited.insert(pair, line.user.clone())),
                None => drop(self.limited.remove(&pair)),
            }
        }
        if admitted > 0 {
            tracing::debug!("{admitted} connections admitted");
        }
        Ok(())
    }

    /// Of a connection that stays out because its user may not do everything: which user it is, and the first rule
    /// that is against it; none: a list has not said that of it.
    pub(crate) fn limit_of(&self, pair: &TcpPair) -> Option<String> {
        let user = self.limited.get(pair)?;
        Some(self.users.limit_of(user))
    }
}

/// The lines by their addresses; none: two lines have these.
fn by_addresses(list: &[ClientLine]) -> HashMap<TcpPair, Option<&ClientLine>> {
    let mut lines: HashMap<TcpPair, Option<&ClientLine>> = HashMap::new();
    for line in list {
        let (Some(client), Some(server)) = (line.addr, line.laddr) else {
            continue;
        };
        let pair = TcpPair {
            client: canonical(client),
            server: canonical(server),
        };
        let place = lines.entry(pair).or_insert(Some(line));
        if place.is_some_and(|other| other.id != line.id) {
            *place = None;
        }
    }
    lines
}

/// What the data path is asked to do; none: nothing, now.
fn request_of(
    row: &abi::admit_row,
    rights: u32,
    verdict: Verdict,
    parses_ahead: bool,
) -> Option<abi::admit_io> {
    let mut request = abi::admit_io {
        row: *row,
        rights,
        ..Default::default()
    };
    let act = match verdict {
        Verdict::Fast { db, resp } => {
            (request.db, request.resp) = (db, resp);
            abi::ADMIT_FAST
        }
        // Threads may have parsed what comes behind the command that waits.
        Verdict::Trial { owed: 1.. } if parses_ahead => return None,
        Verdict::Trial { owed } => {
            request.owed = owed;
            abi::ADMIT_TRIAL
        }
        Verdict::Listen => abi::ADMIT_LISTEN,
        Verdict::Never(why) => {
            request.slow = why as u16;
            abi::ADMIT_JUDGED
        }
        Verdict::Later => return None,
    };
    request.act = act as u8;
    Some(request)
}

#[cfg(test)]
#[path = "admit_tests.rs"]
mod tests;
