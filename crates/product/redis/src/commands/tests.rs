// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables made from what a Redis says, and loaded.

use erb_abi::{ControlBlock as _, ControlPlane as _};

use super::*;
use crate::commands::apply;
use crate::commands::load::is_sub;
use crate::doubles::Recorder;

/// A command as COMMAND INFO tells of it: name, arity, flags and categories, key specifications.
fn info(name: &str, arity: i64, words: &str, specs: &[&str]) -> String {
    let flags: Vec<&str> = words.split_whitespace().collect();
    let (flags, categories): (Vec<&str>, Vec<&str>) =
        flags.into_iter().partition(|word| !word.starts_with('@'));
    let set = |words: &[&str]| {
        let all: String = words.iter().map(|word| format!("+{word}\r\n")).collect();
        format!("~{}\r\n{all}", words.len())
    };
    format!(
        "*10\r\n${}\r\n{name}\r\n:{arity}\r\n{}:1\r\n:1\r\n:1\r\n{}*0\r\n~{}\r\n{}*0\r\n",
        name.len(),
        set(&flags),
        set(&categories),
        specs.len(),
        specs.concat()
    )
}

fn spec(flags: &str, begin: &str, find: &str) -> String {
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let all: String = flags.iter().map(|flag| format!("+{flag}\r\n")).collect();
    format!(
        "%3\r\n$5\r\nflags\r\n~{}\r\n{all}$12\r\nbegin_search\r\n{begin}$9\r\nfind_keys\r\n{find}",
        flags.len()
    )
}

fn at(flags: &str, index: i64, last: i64, step: i64) -> String {
    let begin = format!("%2\r\n+type\r\n+index\r\n+spec\r\n%1\r\n+index\r\n:{index}\r\n");
    let find = format!(
        "%2\r\n+type\r\n+range\r\n+spec\r\n%3\r\n+lastkey\r\n:{last}\r\n+keystep\r\n:{step}\r\n+limit\r\n:0\r\n"
    );
    spec(flags, &begin, &find)
}

fn counted(index: i64, keynum: i64, first: i64) -> String {
    let begin = format!("%2\r\n+type\r\n+index\r\n+spec\r\n%1\r\n+index\r\n:{index}\r\n");
    let find = format!(
        "%2\r\n+type\r\n+keynum\r\n+spec\r\n%3\r\n+keynumidx\r\n:{keynum}\r\n+firstkey\r\n:{first}\r\n+keystep\r\n:1\r\n"
    );
    spec("RW", &begin, &find)
}

fn nowhere() -> String {
    let unknown = "%2\r\n+type\r\n+unknown\r\n+spec\r\n%0\r\n";
    spec("OW update", unknown, unknown)
}

fn get() -> String {
    info(
        "get",
        2,
        "readonly fast @read",
        &[&at("RO access", 1, 0, 1)],
    )
}

fn ping() -> String {
    info("ping", -1, "fast @connection", &[])
}

/// A Redis whose names in use lead to these commands.
fn made(names: &[(&str, String)]) -> Table {
    let rows: BTreeMap<&str, &String> = names.iter().map(|(name, row)| (*name, row)).collect();
    // COMMAND LIST gives the names under which commands were declared.
    let listed: Vec<String> = names
        .iter()
        .map(|(_, row)| row.split("\r\n").nth(2).unwrap().to_owned())
        .collect();
    let asked = asked(&listed);
    let answers: String = asked
        .iter()
        .map(|name| rows.get(name.as_str()).map_or("_\r\n", |row| row.as_str()))
        .collect();
    let bytes = format!("*{}\r\n{answers}", asked.len());
    for cut in 0..bytes.len() {
        assert_eq!(Tree::parse(&bytes.as_bytes()[..cut]).unwrap(), None);
    }
    let (tree, length) = Tree::parse(bytes.as_bytes()).unwrap().unwrap();
    assert_eq!(length, bytes.len());
    table(&listed, &asked, &tree).unwrap()
}

fn class(table: &Table, name: &str) -> u32 {
    let row = table.rows.get(&abi::command_key_bytes(name).unwrap());
    row.map_or(table.unknown_class, |row| row.class)
}

fn keys(table: &Table, name: &str) -> Keys {
    assert_eq!(class(table, name), abi::CMD_MARK, "{name}");
    table.rows[&abi::command_key_bytes(name).unwrap()].keys
}

fn row(first: u16, last: i32, step: u16, keynum: u16) -> Keys {
    Keys {
        first,
        last,
        step,
        keynum,
    }
}

#[test]
fn writes_mark_what_their_specifications_name() {
    let write = |name: &'static str, specs: &[&str]| (name, info(name, -2, "write @write", specs));
    let table = made(&[
        ("get", get()),
        ("ping", ping()),
        write("mset", &[&at("OW update", 1, -1, 2)]),
        write(
            "rename",
            &[&at("RW delete", 1, 0, 1), &at("OW update", 2, 0, 1)],
        ),
        write(
            "bitop",
            &[&at("OW update", 2, 0, 1), &at("RO access", 3, -1, 1)],
        ),
        write("msetex", &[&counted(1, 0, 1)]),
        write(
            "newwrite",
            &[&at("RW", 1, 0, 1), &at("RW", 4, 0, 1), &at("OW", 7, 0, 1)],
        ),
        write("sort", &[&at("RO access", 1, 0, 1), &nowhere()]),
        write("keyless", &[]),
        write(
            "uneven",
            &[&at("RW", 1, 0, 1), &at("RW", 2, 0, 1), &at("OW", 4, 0, 1)],
        ),
        write("partly", &[&at("RW incomplete", 1, 0, 1)]),
        write("lpush", &[&at("RW insert", 1, 0, 1)]),
        write("lpushx", &[&at("RW insert", 1, 0, 1)]),
        write(
            "lmove",
            &[&at("RW access delete", 1, 0, 1), &at("RW insert", 2, 0, 1)],
        ),
        (
            "pfcount",
            info(
                "pfcount",
                -2,
                "readonly @read",
                &[&at("RW access", 1, -1, 1)],
            ),
        ),
    ]);
    assert_eq!(table.unknown_class, abi::CMD_FENCE);
    assert_eq!(
        (table.fast_off & 6, class(&table, "get")),
        (0, abi::CMD_GET)
    );
    assert_eq!(keys(&table, "mset"), row(1, -1, 2, 0));
    assert_eq!(keys(&table, "rename"), row(1, 2, 1, 0));
    assert_eq!(keys(&table, "bitop"), row(2, 2, 1, 0));
    assert_eq!(keys(&table, "msetex"), row(2, 0, 1, 1));
    assert_eq!(keys(&table, "newwrite"), row(1, 7, 3, 0));
    assert_eq!(keys(&table, "pfcount"), row(1, -1, 1, 0));
    for name in ["keyless", "uneven", "partly", "nosuch"] {
        assert_eq!(class(&table, name), abi::CMD_FENCE, "{name}");
    }
    assert_eq!(class(&table, "sort"), abi::CMD_SETTLE, "Redis reports it");
    assert_eq!(keys(&table, "lpush"), row(1, 1, 1, 0));
    assert_eq!(keys(&table, "lmove"), row(1, 2, 1, 0));
    assert_eq!(class(&table, "lpushx"), abi::CMD_HARMLESS, "makes no key");
    assert_eq!(class(&table, "set"), abi::CMD_FENCE, "this Redis has none");
}

#[test]
fn what_is_not_known_is_harmless_only_if_it_says_so() {
    let read = at("RO access", 1, 0, 1);
    let table = made(&[
        ("get", get()),
        ("ping", ping()),
        ("newread", info("newread", 2, "readonly @read", &[&read])),
        (
            "moving",
            info("moving", 2, "readonly movablekeys @read", &[&read]),
        ),
        ("neither", info("neither", 2, "fast @slow", &[])),
        (
            "json.get",
            info("json.get", 2, "readonly module @read", &[&read]),
        ),
        ("newselect", info("newselect", 2, "fast @connection", &[])),
        ("newconfig", info("newconfig", 2, "admin @admin", &[])),
    ]);
    assert_eq!(class(&table, "newread"), abi::CMD_HARMLESS);
    for name in ["moving", "neither", "json.get"] {
        assert_eq!(class(&table, name), abi::CMD_FENCE, "{name}");
    }
    assert_eq!(class(&table, "newselect"), abi::CMD_MONITOR);
    assert_eq!(class(&table, "newconfig"), abi::CMD_GATE);
}

#[test]
fn a_renamed_command_is_nobody() {
    let mset = info("mset", -3, "write @write", &[&at("OW update", 1, -1, 2)]);
    let flushall = info("flushall", -1, "write @write", &[]);
    // GET is gget, MSET is get, FLUSHALL is fa.
    let table = made(&[
        ("gget", get()),
        ("get", mset.clone()),
        ("fa", flushall),
        ("ping", ping()),
    ]);
    assert_eq!(table.fast_off & 6, 2, "GET alone");
    assert_eq!(table.report.off[0], "GET (the name belongs to MSET here)");
    assert_eq!(table.report.renamed, ["get", "mset", "flushall"]);
    for name in ["get", "gget", "mset", "fa", "flushall"] {
        assert_eq!(class(&table, name), abi::CMD_FENCE, "{name}");
    }
    assert_eq!(class(&table, "ping"), abi::CMD_PING);
}

#[test]
fn names_that_nobody_knows_may_lead_to_a_renamed_select() {
    let select = info("select", 2, "fast @connection", &[]);
    let module = info("json.set", -3, "write module @write", &[]);
    let table = made(&[("get", get()), ("sel", select), ("json.set", module)]);
    assert_eq!(table.report.renamed, ["select"]);
    assert_eq!(class(&table, "sel"), abi::CMD_MONITOR);
    assert_eq!(
        class(&table, "json.set"),
        abi::CMD_FENCE,
        "a name that is known"
    );
}

#[test]
fn a_module_does_not_take_over_a_fast_command() {
    let own = info("get", 2, "readonly module @read", &[]);
    let table = made(&[("gget", get()), ("get", own)]);
    assert_eq!(table.fast_off & 2, 2);
    assert_eq!(table.report.off[0], "GET (a module's)");
    assert_eq!(class(&table, "get"), abi::CMD_FENCE);
    assert_eq!(table.report.renamed, ["get"], "listed twice");
}

#[test]
fn a_command_that_takes_other_arguments_is_another_one() {
    let wide = info("get", -2, "readonly @read", &[&at("RO access", 1, 0, 1)]);
    let table = made(&[("get", wide)]);
    assert_eq!(table.fast_off & 2, 0, "two arguments are right here too");
    let other = info("get", 3, "readonly @read", &[&at("RO access", 1, 0, 1)]);
    let table = made(&[("get", other)]);
    assert_eq!(table.fast_off & 2, 2);
    assert_eq!(class(&table, "get"), abi::CMD_HARMLESS);
}

#[test]
fn containers_keep_what_is_known_of_their_sub_commands() {
    let config = info("config", -2, "@slow", &[]);
    let xgroup = info("xgroup", -2, "@slow", &[]);
    let table = made(&[("config", config.clone()), ("xgroup", xgroup)]);
    assert_eq!(class(&table, "config"), abi::CMD_CONTAINER);
    assert_eq!(class(&table, "config|get"), abi::CMD_HARMLESS);
    assert_eq!(class(&table, "config|*"), abi::CMD_CONFIG);
    assert_eq!(keys(&table, "xgroup|create"), row(2, 2, 1, 0));
    assert_eq!(class(&table, "xgroup|*"), abi::CMD_HARMLESS);
}

#[test]
fn what_is_never_held_is_so_in_redis_own_table_too() {
    let admin = |name, arity| info(name, arity, "admin noscript @admin", &[]);
    let table = made(&[
        ("shutdown", admin("shutdown", -1)),
        ("replicaof", admin("replicaof", 3)),
        ("info", info("info", -1, "@slow", &[])),
    ]);
    let never_held = |name: &str| {
        let key = abi::command_key_bytes(name).unwrap();
        table.rows[&key].order == abi::ORDER_NEVER_HELD as u16
    };
    for (name, expected) in [
        ("info", true),
        ("shutdown", false),
        ("shutdown|nosave", true),
        ("shutdown|*", false),
        ("replicaof|no", true),
        ("replicaof|*", false),
    ] {
        assert_eq!(never_held(name), expected, "{name}");
    }
    assert_eq!(class(&table, "replicaof|*"), abi::CMD_GATE);
}

#[test]
fn a_renamed_container_of_commands_on_keys_makes_no_name_worse() {
    for (name, expected) in [("shutdown", abi::CMD_FENCE), ("config", abi::CMD_MONITOR)] {
        let table = made(&[("other", info(name, -1, "admin @admin", &[]))]);
        assert_eq!(table.report.renamed, [name]);
        assert_eq!(table.unknown_class, expected, "{name}");
    }
}

#[test]
fn a_table_is_loaded_whole_and_what_it_lacks_goes() {
    let path = Recorder::default();
    for command in &abi::COMMANDS {
        path.set_command(&command.key(), Some(&command.meaning()))
            .unwrap();
    }
    let select = info("select", 2, "fast @connection", &[]);
    let table = made(&[("get", get()), ("sel", select)]);
    assert!(apply(&path, &table).unwrap());
    assert!(!apply(&path, &table).unwrap(), "it is there");
    let tops: BTreeMap<CommandKey, Meaning> = path
        .command_rows()
        .unwrap()
        .into_iter()
        .filter(|(key, _)| !is_sub(key))
        .collect();
    assert_eq!(tops, table.rows);
    assert_eq!(path.unknown_class(), abi::CMD_MONITOR);
    assert_eq!(path.fast_off(), table.fast_off);
}
