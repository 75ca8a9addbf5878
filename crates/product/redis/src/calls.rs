// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How often commands were called that change what no invalidation reports, and what else a lease asks INFO.

use crate::resp::{Frame, text};

/// What INFO counts that tells of changes which no invalidation reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Calls so far of what changes keys and is reported by no invalidation: SWAPDB, and PFDEBUG,
    /// which scripts may call.
    pub unreported: u64,
    /// Calls of CONFIG RESETSTAT so far: it hides SWAPDB.
    pub resetstat: u64,
    /// Calls of MODULE LOAD, LOADEX and UNLOAD so far: the command table may be another one.
    pub modules: u64,
    /// Calls of ACL SETUSER, DELUSER and LOAD so far: what the daemon is told of may be less.
    pub rights: u64,
    /// Microseconds of processor time that ACL LIST took so far.
    pub acl_list_us: u64,
    /// `total_commands_processed`: falls when CONFIG RESETSTAT came in between, whatever the calls say.
    pub processed: u64,
    /// Keys of which Redis remembers who has read them (`reports.rs`).
    pub tracked: u64,
}

impl Calls {
    /// Takes the reply to `INFO stats commandstats`, the sections that tell; `None`: it is no text.
    pub(crate) fn of(reply: &Frame) -> Option<Self> {
        let mut found = Self::default();
        for (name, value) in fields(&String::from_utf8_lossy(text(reply)?)) {
            found.take(name, value);
        }
        Some(found)
    }

    pub(crate) fn take(&mut self, name: &str, value: &str) {
        match name {
            "total_commands_processed" => self.processed = value.parse().unwrap_or(0),
            "tracking_total_keys" => self.tracked = value.parse().unwrap_or(0),
            "cmdstat_swapdb" | "cmdstat_pfdebug" => self.unreported += calls(value),
            "cmdstat_config|resetstat" => self.resetstat = calls(value),
            "cmdstat_acl|list" => self.acl_list_us = part(value, "usec="),
            "cmdstat_acl|setuser" | "cmdstat_acl|deluser" | "cmdstat_acl|load" => {
                self.rights += calls(value);
            }
            "cmdstat_module|load" | "cmdstat_module|loadex" | "cmdstat_module|unload" => {
                self.modules += calls(value);
            }
            _ => {}
        }
    }

    /// Whether databases may have been swapped since `before` was read. RESETSTAT and SWAPDB within
    /// one read may leave the calls as they were; the commands processed in all then fall.
    pub(crate) const fn may_hide_a_swap(&self, before: &Self) -> bool {
        self.unreported != before.unreported
            || self.resetstat != before.resetstat
            || self.processed < before.processed
    }

    /// Whether modules may have been loaded or unloaded since `before` was read.
    pub(crate) const fn may_hide_a_module(&self, before: &Self) -> bool {
        self.modules != before.modules
            || self.resetstat != before.resetstat
            || self.processed < before.processed
    }

    /// Whether rights of users may have changed since `before` was read.
    pub(crate) const fn may_hide_rights(&self, before: &Self) -> bool {
        self.rights != before.rights
            || self.resetstat != before.resetstat
            || self.processed < before.processed
    }
}

/// Lines `name:value` of INFO.
pub fn fields(info: &str) -> impl Iterator<Item = (&str, &str)> {
    info.lines()
        .filter_map(|line| line.trim_end().split_once(':'))
}

/// The text behind this name in a line of INFO.
#[must_use]
pub fn word<'a>(value: &'a str, name: &str) -> Option<&'a str> {
    value.split(',').find_map(|field| field.strip_prefix(name))
}

/// The `calls=` of a commandstats line.
pub(crate) fn calls(value: &str) -> u64 {
    part(value, "calls=")
}

/// The number behind this name in a line of commandstats.
pub(crate) fn part(value: &str, name: &str) -> u64 {
    word(value, name)
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}
