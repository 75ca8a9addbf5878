// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table, made from what Redis says.

use std::collections::{BTreeMap, BTreeSet};

use erb_abi::{self as abi, CommandKey, Keys, Meaning, erb_cmd_class};

use super::reply::{self, Listed};
use crate::resp::Tree;
use crate::rights::{RIGHTS, Right, missing};

/// ACL categories of commands that change what later ones of a connection mean, or that end the
/// count of replies.
const STATE_CATEGORIES: [&str; 3] = ["@connection", "@transaction", "@pubsub"];

/// The table, as it is to be loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) rows: BTreeMap<CommandKey, Meaning>,
    pub(crate) unknown_class: erb_cmd_class,
    pub(crate) fast_off: u32,
    pub(crate) report: CommandsReport,
}

/// What came of Redis's command table, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandsReport {
    /// Commands that bear their own names.
    pub commands: usize,
    /// Fast commands that Redis alone answers, with the reason.
    pub off: Vec<String>,
    /// Commands that only a new name reaches (`rename-command`).
    pub renamed: Vec<String>,
    /// Commands of the daemon that are not there under their own names.
    pub missing: Vec<String>,
}

impl CommandsReport {
    /// Why the daemon cannot work with this Redis; nothing: it can.
    pub(crate) fn refusal(&self) -> Option<String> {
        (!self.missing.is_empty()).then(|| missing(&self.missing.join(", ")))
    }
}

/// Names of the commands that the daemon sends.
pub(crate) fn needed() -> BTreeSet<&'static str> {
    let top = |right: &Right| right.rule.split('|').next().unwrap_or(right.rule);
    RIGHTS.iter().map(top).collect()
}

/// Names to ask for: those listed, and those of fast commands and of the daemon's own, which others
/// may bear.
pub(crate) fn asked(listed: &[String]) -> Vec<String> {
    let ours = abi::FAST_COMMANDS.iter().map(|fast| fast.name);
    let ours = ours.chain(needed()).map(str::to_owned);
    let all: BTreeSet<String> = listed.iter().cloned().chain(ours).collect();
    all.into_iter().collect()
}

/// Makes the table from the names listed, those asked for, and the answer.
pub(crate) fn table(listed: &[String], asked: &[String], answer: &Tree) -> Result<Table, String> {
    let found = reply::infos(answer)?;
    if found.len() != asked.len() {
        let counts = format!("{} names, {} answers", asked.len(), found.len());
        return Err(format!("COMMAND INFO answered another number: {counts}"));
    }
    let bears: BTreeMap<&str, &Listed> = asked
        .iter()
        .zip(&found)
        .filter_map(|(name, info)| Some((name.as_str(), info.as_ref()?)))
        .collect();
    let own = |name: &str| bears.get(name).copied().filter(|info| info.name == name);
    let mut seen = BTreeSet::new();
    let renamed: Vec<String> = listed
        .iter()
        .filter(|name| !seen.insert(name.as_str()) || own(name).is_none())
        .cloned()
        .collect();
    let mut made = Table {
        unknown_class: unknown_class(&renamed),
        ..Table::default()
    };
    for name in seen {
        if let Some(info) = own(name) {
            made.report.commands += 1;
            made.add(info);
        }
    }
    for fast in &abi::FAST_COMMANDS {
        if let Some(why) = why_off(fast, &bears) {
            made.fast_off |= 1 << fast.kind;
            let name = fast.name.to_ascii_uppercase();
            made.report.off.push(format!("{name} ({why})"));
        }
    }
    let usual = abi::USUAL_WRITES.iter().filter(|it| !made.writes_first(it));
    let off = usual.fold(0, |bits, write| bits | 1 << write.kind);
    made.fast_off |= off;
    let missing = needed().into_iter().filter(|name| own(name).is_none());
    made.report.missing = missing.map(str::to_owned).collect();
    made.report.renamed = renamed;
    if made.rows.len() > abi::COMMANDS_MAX as usize {
        return Err(format!(
            "{} commands, the table holds {}",
            made.rows.len(),
            abi::COMMANDS_MAX
        ));
    }
    Ok(made)
}

impl Table {
    /// Whether a command of this name bears it by itself.
    pub(crate) fn has(&self, name: &str) -> bool {
        abi::command_key_bytes(name).is_some_and(|key| self.rows.contains_key(&key))
    }

    /// Whether the command of this name writes its first argument as a key, and no other.
    fn writes_first(&self, write: &abi::UsualWrite) -> bool {
        let key = abi::command_key_bytes(write.name);
        key.and_then(|key| self.rows.get(&key)) == Some(&marked(Keys::FIRST))
    }

    fn add(&mut self, info: &Listed) {
        let Some(key) = abi::command_key_bytes(&info.name) else {
            return; // longer than the data path keeps: unknown to it
        };
        let meaning = meaning(info);
        // Rows that say what unknown names mean anyway save room for others.
        if meaning.class != abi::CMD_FENCE || self.unknown_class != abi::CMD_FENCE {
            self.rows.insert(key, meaning);
        }
        if meaning.class == abi::CMD_CONTAINER {
            let subs = subs(&info.name).map(|row| (row.key(), row.meaning()));
            self.rows.extend(subs);
        }
    }
}

fn defined(name: &str) -> Option<&'static abi::Command> {
    abi::COMMANDS.iter().find(|row| row.name == name)
}

/// What is known of a container's sub-commands.
fn subs(container: &str) -> impl Iterator<Item = &'static abi::Command> {
    let is_of = move |row: &&abi::Command| {
        let parts = row.name.split_once('|');
        parts.is_some_and(|(name, _)| name == container)
    };
    abi::COMMANDS.iter().filter(is_of)
}

const fn plain(class: erb_cmd_class) -> Meaning {
    Meaning {
        class,
        argc: 0,
        keys: Keys::NONE,
        order: 0,
    }
}

/// What a command means that bears its own name.
fn meaning(info: &Listed) -> Meaning {
    if info.has("module") {
        return plain(abi::CMD_FENCE);
    }
    match defined(&info.name) {
        Some(row) if row.class == abi::CMD_MARK => match info.written() {
            Some(Some(keys)) => marked(keys),
            _ => plain(abi::CMD_FENCE),
        },
        Some(row) if row.argc != 0 && !info.takes(row.argc.into(), row.argc.into()) => {
            by_flags(info)
        }
        Some(row) => row.meaning(),
        None => by_flags(info),
    }
}

const fn marked(keys: Keys) -> Meaning {
    Meaning {
        class: abi::CMD_MARK,
        argc: 0,
        keys,
        order: 0,
    }
}

/// What is not in `commands.def`.
fn by_flags(info: &Listed) -> Meaning {
    let state = STATE_CATEGORIES.iter().any(|name| info.has(name));
    match info.written() {
        // Might be any other SELECT or SUBSCRIBE.
        _ if state => plain(abi::CMD_MONITOR),
        _ if info.has("admin") => plain(abi::CMD_GATE),
        None => plain(abi::CMD_FENCE),
        Some(Some(keys)) => marked(keys),
        Some(None) if info.has("readonly") && !info.has("movablekeys") => plain(abi::CMD_HARMLESS),
        Some(None) => plain(abi::CMD_FENCE),
    }
}

/// What a name means that the table lacks, as some commands have names that nobody knows.
fn unknown_class(renamed: &[String]) -> erb_cmd_class {
    let keys_only = |row: &abi::Command| {
        matches!(
            row.class,
            abi::CMD_FENCE
                | abi::CMD_SETTLE
                | abi::CMD_GET
                | abi::CMD_PING
                | abi::CMD_HARMLESS
                | abi::CMD_MARK
        )
    };
    let all_keys_only = |name: &String| match defined(name) {
        Some(row) if row.class == abi::CMD_CONTAINER => subs(name).all(keys_only),
        // Who asks for replicas must be known by name.
        Some(row) => keys_only(row) && row.order & abi::ORDER_SYNCED as u16 == 0,
        None => false,
    };
    if renamed.iter().all(all_keys_only) {
        abi::CMD_FENCE
    } else {
        abi::CMD_MONITOR
    }
}

/// Why the fast path must leave this command to Redis.
fn why_off(fast: &abi::FastCommand, bears: &BTreeMap<&str, &Listed>) -> Option<String> {
    match bears.get(fast.name) {
        None => Some("Redis has no command of this name".to_owned()),
        Some(info) if info.name != fast.name => Some(format!(
            "the name belongs to {} here",
            info.name.to_ascii_uppercase()
        )),
        Some(info) if info.has("module") => Some("a module's".to_owned()),
        Some(info) if !info.takes(i64::from(fast.least) + 1, i64::from(fast.most) + 1) => {
            Some(format!("takes {} arguments here", info.arity))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
