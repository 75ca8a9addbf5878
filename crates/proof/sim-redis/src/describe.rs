// SPDX-License-Identifier: Apache-2.0 OR MIT
//! COMMAND and its sub-commands: what the commands are. Only those of the model are listed, without
//! ACL categories, tips and sub-commands; key specifications are Redis's.

use crate::client::{Argv, Client};
use crate::dispatch::{command_of, lower};
use crate::server::Redis;
use crate::table::{self, Command};
use crate::types::ClientId;

/// Number of commands that Redis 7.0.15 has.
const COMMAND_COUNT: i64 = 241;

/// A key specification: whether the keys are written, first key, last one from there (negative: from
/// the end of all), step.
type Range = (bool, i64, i64, i64);

/// QUIT ends in `processCommand`, but it is listed.
static QUIT: Command = Command {
    name: "quit",
    arity: -1,
    flags: "slFn",
    keys: (0, 0, 0),
    run: crate::connection::ping,
};

fn listed() -> impl Iterator<Item = &'static Command> {
    let own = table::all().filter(|command| !command.name.contains('|'));
    own.chain([&QUIT])
}

/// COMMAND.
pub(crate) fn command(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    let renamed = redis.config.renamed;
    let client = redis.client(id);
    let all: Vec<_> = listed().filter(|one| is_reached(renamed, one)).collect();
    client.add_array(all.len());
    for one in all {
        add_info(client, one);
    }
}

/// Whether any name leads to the command.
fn is_reached(renamed: &[(&str, &str)], command: &Command) -> bool {
    !renamed.contains(&(command.name, ""))
}

/// COMMAND COUNT.
pub(crate) fn count(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    redis.client(id).add_int(COMMAND_COUNT);
}

/// COMMAND DOCS: nothing is documented.
pub(crate) fn docs(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    redis.client(id).add_map(0);
}

/// COMMAND LIST: the names with which commands were declared.
pub(crate) fn list(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    let renamed = redis.config.renamed;
    let all: Vec<_> = listed().filter(|one| is_reached(renamed, one)).collect();
    let client = redis.client(id);
    client.add_set(all.len());
    for one in all {
        client.add_bulk(one.name.as_bytes());
    }
}

/// COMMAND INFO: of the commands that the names in use lead to.
pub(crate) fn info(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let renamed = redis.config.renamed;
    let client = redis.client(id);
    client.add_array(argv.len() - 2);
    for word in &argv[2..] {
        let name = lower(word);
        let name = command_of(renamed, &name).unwrap_or(name);
        let found = table::find(&name).or_else(|| (name == QUIT.name).then_some(&QUIT));
        match found {
            Some(found) => add_info(client, found),
            None => client.add_null_array(),
        }
    }
}

fn add_info(client: &mut Client, command: &Command) {
    let (first, last, step) = command.keys;
    client.add_array(10);
    client.add_bulk(command.name.as_bytes());
    client.add_int(command.arity.into());
    let flags: Vec<&str> = command.flags.chars().filter_map(flag).collect();
    client.add_set(flags.len());
    for flag in flags {
        client.add_status(flag);
    }
    for number in [first, last, step] {
        client.add_int(number.into());
    }
    client.add_set(0);
    client.add_set(0);
    add_specs(client, command);
    client.add_set(0);
}

const fn flag(letter: char) -> Option<&'static str> {
    Some(match letter {
        'w' => "write",
        'm' => "denyoom",
        'r' => "readonly",
        's' => "noscript",
        'l' => "loading",
        'n' => "no_auth",
        'a' => "admin",
        'M' => "no_multi",
        'p' => "pubsub",
        'F' => "fast",
        'x' => "skip_monitor",
        _ => return None,
    })
}

fn add_specs(client: &mut Client, command: &Command) {
    if command.name == "eval" {
        client.add_set(1);
        add_begin(client, true, 2);
        client.add_bulk(b"keynum");
        client.add_bulk(b"spec");
        client.add_map(3);
        return add_numbers(client, [("keynumidx", 0), ("firstkey", 1), ("keystep", 1)]);
    }
    let ranges = ranges(command);
    client.add_set(ranges.len());
    for (written, first, last, step) in ranges {
        add_begin(client, written, first);
        client.add_bulk(b"range");
        client.add_bulk(b"spec");
        client.add_map(3);
        add_numbers(client, [("lastkey", last), ("keystep", step), ("limit", 0)]);
    }
}

fn ranges(command: &Command) -> Vec<Range> {
    let (first, last, step) = command.keys;
    let (first, last, step) = (i64::from(first), i64::from(last), i64::from(step));
    match command.name {
        _ if first == 0 => Vec::new(),
        "copy" => vec![(false, 1, 0, 1), (true, 2, 0, 1)],
        "rename" | "renamenx" => vec![(true, 1, 0, 1), (true, 2, 0, 1)],
        _ => {
            let last = if last < 0 { last } else { last - first };
            vec![(command.has('w'), first, last, step)]
        }
    }
}

/// A specification up to the type of its search for keys.
fn add_begin(client: &mut Client, written: bool, index: i64) {
    client.add_map(3);
    client.add_bulk(b"flags");
    client.add_set(1);
    client.add_status(if written { "RW" } else { "RO" });
    client.add_bulk(b"begin_search");
    client.add_map(2);
    client.add_bulk(b"type");
    client.add_bulk(b"index");
    client.add_bulk(b"spec");
    client.add_map(1);
    add_numbers(client, [("index", index)]);
    client.add_bulk(b"find_keys");
    client.add_map(2);
    client.add_bulk(b"type");
}

fn add_numbers<const N: usize>(client: &mut Client, numbers: [(&str, i64); N]) {
    for (name, number) in numbers {
        client.add_bulk(name.as_bytes());
        client.add_int(number);
    }
}
