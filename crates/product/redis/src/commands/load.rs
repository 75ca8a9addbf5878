// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A new command table takes the place of an old one while packets run: first every row gets what
//! covers both tables, then what it means from now on. So at no moment does a command have a weaker
//! class than either table gives it.
//!
//! A program that has just found a row may see another one's bytes in it, as the kernel uses elements
//! again at once. So rows change only while nothing is served, and the cache is emptied behind it.

use std::collections::{BTreeMap, BTreeSet};

use erb_abi::{self as abi, CommandKey, Keys, Meaning, erb_cmd_class};

use super::table::Table;
use crate::outside::{DataPath, Result};

// What a class makes of a command.
const MARKS: u32 = 1;
const FENCES: u32 = 2;
const LEAVES_FAST: u32 = 4;
const ENDS_COUNT: u32 = 8;
const SHUTS_GATE: u32 = 16;
const HIDES: u32 = 32;

/// What a class makes of a command at most, and at least.
const fn effects(class: erb_cmd_class) -> (u32, u32) {
    let one = match class {
        abi::CMD_GET | abi::CMD_PING | abi::CMD_HARMLESS => 0,
        abi::CMD_MARK => MARKS,
        abi::CMD_SETTLE => MARKS | FENCES,
        abi::CMD_FENCE => MARKS | FENCES | HIDES,
        abi::CMD_STATEFUL => LEAVES_FAST,
        abi::CMD_UNCOUNTABLE => LEAVES_FAST | ENDS_COUNT,
        abi::CMD_CONFIG => MARKS | FENCES | SHUTS_GATE,
        abi::CMD_GATE => MARKS | FENCES | HIDES | SHUTS_GATE,
        abi::CMD_MONITOR => u32::MAX,
        // Each means something else to the connection: only what may be any command covers it.
        _ => return (u32::MAX, 0),
    };
    (one, one)
}

/// A meaning that is as strong as both.
fn both(a: Meaning, b: Meaning) -> Meaning {
    if covers(a, b) {
        return a;
    }
    if covers(b, a) {
        return b;
    }
    let wanted = effects(a.class).0 | effects(b.class).0;
    let enough = [
        abi::CMD_SETTLE,
        abi::CMD_FENCE,
        abi::CMD_CONFIG,
        abi::CMD_GATE,
        abi::CMD_MONITOR,
    ];
    let class = enough
        .into_iter()
        .find(|class| effects(*class).1 & wanted == wanted);
    Meaning {
        order: (a.order | b.order) & STRONG,
        ..plain(class.unwrap_or(abi::CMD_MONITOR))
    }
}

const fn plain(class: erb_cmd_class) -> Meaning {
    Meaning {
        class,
        argc: 0,
        keys: Keys::NONE,
        order: 0,
    }
}

/// Of the orders those with which a command is treated with more care than without.
const STRONG: u16 = (abi::ORDER_SYNCED | abi::ORDER_REPEATS) as u16;

/// Whether what has the first order waits wherever what has the second one does.
const fn orders(strong: u16, weak: u16) -> bool {
    const PASSES: u16 = (abi::ORDER_NEVER_HELD | abi::ORDER_CURES) as u16;
    strong & PASSES & !weak == 0 && weak & STRONG & !strong == 0
}

fn covers(strong: Meaning, weak: Meaning) -> bool {
    let (most, _) = effects(weak.class);
    let (_, least) = effects(strong.class);
    // Marks of one row say nothing about the keys of another.
    strong == weak
        || orders(strong.order, weak.order)
            && strong.argc == 0
            && least & most == most
            && (most & MARKS == 0 || least & FENCES != 0)
}

/// Whether the row is of a sub-command, to which only a container leads.
pub(super) fn is_sub(key: &CommandKey) -> bool {
    key[std::mem::offset_of!(abi::command_key, sub)] != 0
}

/// Loads the table; false if it is there already.
///
/// # Errors
/// The map cannot be read or changed; what is loaded then is stronger than both tables.
pub(crate) fn apply(path: &impl DataPath, table: &Table) -> Result<bool> {
    let before: BTreeMap<CommandKey, Meaning> = path.command_rows()?.into_iter().collect();
    let (old_unknown, new_unknown) = (plain(path.unknown_class()), plain(table.unknown_class));
    let is_there = |(key, meaning)| before.get(key) == Some(meaning);
    let tops = before.keys().filter(|key| !is_sub(key)).count();
    let same = table.rows.iter().all(is_there)
        && tops == table.rows.keys().filter(|key| !is_sub(key)).count()
        && old_unknown == new_unknown
        && path.fast_off() == table.fast_off;
    if same {
        return Ok(false);
    }
    path.set_serving(0);
    path.set_fast_off(path.fast_off() | table.fast_off);
    path.set_unknown_class(both(old_unknown, new_unknown).class);
    // Those of a container mean the same in every table of this version; without it nobody asks.
    for (key, meaning) in table.rows.iter().filter(|(key, _)| is_sub(key)) {
        if before.get(key) != Some(meaning) {
            path.set_command(key, Some(meaning))?;
        }
    }
    let commands: BTreeSet<&CommandKey> = before.keys().chain(table.rows.keys()).collect();
    let mut left = Vec::new();
    for key in commands.into_iter().filter(|key| !is_sub(key)) {
        let old = before.get(key).copied();
        let new = table.rows.get(key).copied();
        if old == new {
            continue;
        }
        let covering = both(old.unwrap_or(old_unknown), new.unwrap_or(new_unknown));
        if old != Some(covering) {
            path.set_command(key, Some(&covering))?;
        }
        if new != Some(covering) {
            left.push((key, new));
        }
    }
    for (key, new) in left {
        path.set_command(key, new.as_ref())?;
    }
    path.set_unknown_class(table.unknown_class);
    path.set_fast_off(table.fast_off);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(first: u16) -> Meaning {
        let keys = Keys {
            first,
            last: i32::from(first),
            step: 1,
            keynum: 0,
        };
        Meaning {
            class: abi::CMD_MARK,
            argc: 0,
            keys,
            order: 0,
        }
    }

    #[test]
    fn what_covers_two_meanings_is_as_strong_as_both() {
        let never_held = Meaning {
            order: abi::ORDER_NEVER_HELD as u16,
            ..plain(abi::CMD_GATE)
        };
        let cases = [
            (never_held, plain(abi::CMD_FENCE), plain(abi::CMD_GATE)),
            (mark(1), plain(abi::CMD_HARMLESS), mark(1)),
            (mark(1), mark(2), plain(abi::CMD_SETTLE)),
            (
                plain(abi::CMD_CONFIG),
                plain(abi::CMD_FENCE),
                plain(abi::CMD_GATE),
            ),
            (mark(1), plain(abi::CMD_FENCE), plain(abi::CMD_FENCE)),
            (plain(abi::CMD_STATEFUL), mark(1), plain(abi::CMD_MONITOR)),
            (
                plain(abi::CMD_GATE),
                plain(abi::CMD_STATEFUL),
                plain(abi::CMD_MONITOR),
            ),
            (
                plain(abi::CMD_CONTAINER),
                plain(abi::CMD_FENCE),
                plain(abi::CMD_MONITOR),
            ),
            (
                plain(abi::CMD_SELECT),
                plain(abi::CMD_FENCE),
                plain(abi::CMD_MONITOR),
            ),
            (
                plain(abi::CMD_MULTI),
                plain(abi::CMD_WATCH),
                plain(abi::CMD_MONITOR),
            ),
        ];
        for (a, b, expected) in cases {
            assert_eq!(both(a, b), expected, "{a:?} and {b:?}");
            assert_eq!(both(b, a), expected, "{b:?} and {a:?}");
            assert!(covers(expected, a) && covers(expected, b));
        }
    }
}
