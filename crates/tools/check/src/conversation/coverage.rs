// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every class of commands, every fast command and every command that is more than harmless is in a
//! conversation: who adds one adds a case.

use std::collections::BTreeSet;

use super::all_cases;
use super::case::{Split, Step};
use super::front::ANSWERED;

/// Not in Redis 7.0, which the tests have.
const LATER: [&str; 13] = [
    "hgetdel",
    "hgetex",
    "hsetex",
    "hexpire",
    "hpexpire",
    "hexpireat",
    "hpexpireat",
    "hpersist",
    "httl",
    "hpttl",
    "waitaof",
    "client|capa",
    "client|import-source",
];
/// Also later: harmless.
const LATER_TOO: [&str; 2] = ["hexpiretime", "hpexpiretime"];
/// Answered by a stream without an end.
const STREAMS: [&str; 2] = ["psync", "sync"];
/// Answered differently by two servers that are equal.
const DIFFERENT: [&str; 10] = [
    "scan",
    "time",
    "info",
    "lastsave",
    "randomkey",
    "lolwut",
    "client|list",
    "client|info",
    "acl|list",
    "acl|users",
];
/// They end the server, or what it does for another client.
const ENDS: [&str; 1] = ["shutdown|nosave"];
/// What they do to a disk is no client's business.
const DISK: [&str; 3] = ["bgsave", "bgrewriteaof", "save"];

/// Names of the commands in bytes to send, `container|sub` where there is a second word.
fn names(mut bytes: &[u8]) -> Vec<(String, usize)> {
    let mut names = Vec::new();
    while !bytes.is_empty() {
        let Some(end) = bytes.iter().position(|&b| b == b'\n') else {
            break;
        };
        let line = String::from_utf8_lossy(&bytes[..end]).trim().to_lowercase();
        bytes = &bytes[end + 1..];
        let Some(count) = line.strip_prefix('*') else {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            names.extend(named(&words));
            continue;
        };
        let mut words = Vec::new();
        for _ in 0..count.parse().unwrap_or(0_i64) {
            let Some(end) = bytes.iter().position(|&b| b == b'\n') else {
                return names;
            };
            let head = String::from_utf8_lossy(&bytes[..end]).trim().to_owned();
            bytes = &bytes[end + 1..];
            let len = head.strip_prefix('$').and_then(|n| n.parse().ok());
            let Some(len) = len.filter(|&len: &usize| len + 2 <= bytes.len()) else {
                return names;
            };
            words.push(String::from_utf8_lossy(&bytes[..len]).to_lowercase());
            bytes = &bytes[len + 2..];
        }
        names.extend(named(&words));
    }
    names
}

fn named(words: &[String]) -> Vec<(String, usize)> {
    let Some(name) = words.first() else {
        return Vec::new();
    };
    let mut names = vec![(name.clone(), words.len())];
    if let Some(sub) = words.get(1) {
        names.push((format!("{name}|{sub}"), words.len()));
    }
    names
}

/// All commands of all cases with their numbers of arguments.
fn sent() -> BTreeSet<(String, usize)> {
    let mut sent = BTreeSet::new();
    for case in all_cases() {
        for bytes in case.given.iter().chain(&case.hot).chain(&case.finally) {
            sent.extend(names(bytes));
        }
        for step in &case.steps {
            match step {
                Step::Send(pieces, _) if pieces[0] == Split::EVERY => {
                    sent.extend(names(&pieces[1]))
                }
                Step::Send(pieces, _) => sent.extend(names(&pieces.concat())),
                Step::Masked(bytes, _) | Step::Other(bytes) => sent.extend(names(bytes)),
                _ => {}
            }
        }
    }
    sent
}

#[test]
fn every_class_has_a_conversation() {
    let sent = sent();
    for class in 0..erb_abi::CMD_CLASS_MAX {
        let of_class = |row: &&erb_abi::Command| row.class == class;
        let in_a_case = |row: &erb_abi::Command| {
            let is_named = |name: &str| match row.name.strip_suffix('*') {
                Some(container) => name.starts_with(container),
                None => name == row.name,
            };
            sent.iter()
                .any(|(name, words)| is_named(name) && [0, *words as u32].contains(&row.argc))
        };
        assert!(
            erb_abi::COMMANDS.iter().filter(of_class).any(in_a_case),
            "no conversation has a command of class {class} of enum erb_cmd_class (bpf/base/abi.h): add a case"
        );
    }
}

#[test]
fn every_command_that_erb_knows_is_in_a_conversation() {
    let sent: BTreeSet<String> = sent().into_iter().map(|(name, _)| name).collect();
    let excused = [&LATER[..], &LATER_TOO, &STREAMS, &DIFFERENT, &ENDS, &DISK].concat();
    let missing: Vec<&str> = erb_abi::COMMANDS
        .iter()
        .map(|row| row.name)
        .filter(|name| !name.ends_with("|*") && !excused.contains(name) && !sent.contains(*name))
        .collect();
    assert!(missing.is_empty(), "in no conversation: {missing:?}");
    let present: Vec<_> = excused
        .iter()
        .filter(|name| sent.contains(**name))
        .collect();
    assert!(
        present.is_empty(),
        "excused, but in a conversation: {present:?}"
    );
}

#[test]
fn every_fast_command_is_in_a_conversation_and_is_counted() {
    let sent = sent();
    for fast in &erb_abi::FAST_COMMANDS {
        let whole = |(name, words): &(String, usize)| {
            name == fast.name && (fast.least..=fast.most).contains(&(*words as u32 - 1))
        };
        assert!(
            sent.iter().any(whole),
            "{} is in no conversation",
            fast.name
        );
        // The daemon sends these itself, for the lease and for fills.
        let uncounted = ["ping", "strlen", "getrange", "hlen"];
        let counted = !uncounted.contains(&fast.name);
        assert_eq!(ANSWERED.contains(&fast.name), counted, "{}", fast.name);
    }
}

#[test]
fn names_of_cases_are_unique() {
    let names: BTreeSet<_> = all_cases().iter().map(|case| case.name).collect();
    assert_eq!(names.len(), all_cases().len());
}
