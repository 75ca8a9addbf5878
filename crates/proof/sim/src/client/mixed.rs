// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations that change whose a connection is and what its commands mean (user, database, RESP
//! version, transaction), who may do what, and where keys are: names and databases.

use fastrand::Rng;

use crate::client::resp::request;
use crate::client::workload::{Command, Maker, Operation, command};

/// Databases in use.
const DATABASES: u8 = 3;

/// A user of all rights, and one of some; others may change that.
const FULL: &[u8] = b"full";
const FEW: &[u8] = b"few";

/// Rules that are set, by how they are drawn: rights are had for longer than they are lacked.
const RULES: [&[&[u8]]; 9] = [
    &[FULL, b"on", b"nopass", b"~*", b"+@all"],
    &[FULL, b"on", b"nopass", b"~*", b"+@all"],
    &[FULL, b"~*", b"+@all"],
    &[FULL, b"resetkeys", b"~key:0"],
    &[FULL, b"-get"],
    &[FEW, b"reset", b"on", b"nopass", b"~key:0", b"&*", b"+@all"],
    &[FEW, b"~*"],
    &[FEW, b"off"],
    &[b"default", b"~*"],
];

/// What makes the users and, in the other databases, keys, before any client comes.
#[must_use]
pub fn first(keys: u32) -> Vec<Vec<u8>> {
    let mut requests = vec![setuser(RULES[0]), setuser(RULES[5])];
    for database in (0..DATABASES).rev() {
        let database = [b'0' + database];
        requests.push(request(&[b"SELECT", &database]));
        for number in 0..keys {
            let key = format!("key:{number}");
            requests.push(request(&[b"SETNX", key.as_bytes(), &database]));
        }
    }
    requests
}

/// Somebody changes access rules.
#[must_use]
pub fn rights(random: &mut Rng) -> Vec<u8> {
    match random.u8(0..12) {
        0 => request(&[b"ACL", b"DELUSER", FEW]),
        1 => setuser(&[b"somebody", b"on", b"nopass"]),
        2 if random.u8(0..3) == 0 => setuser(&[b"default", b"resetkeys", b"~key:*"]),
        _ => setuser(RULES[random.usize(..RULES.len())]),
    }
}

fn setuser(rules: &[&[u8]]) -> Vec<u8> {
    let words: [&[u8]; 2] = [b"ACL", b"SETUSER"];
    request(&[&words, rules].concat())
}

impl Maker<'_> {
    fn database(&mut self) -> Vec<u8> {
        vec![b'0' + self.random.u8(0..DATABASES)]
    }

    fn select(&mut self) -> Command {
        let number = self.database();
        command("select", &[b"SELECT", &number])
    }

    fn user(&mut self) -> &'static [u8] {
        match self.random.u8(0..8) {
            0 | 1 => FEW,
            2 | 3 => b"default",
            _ => FULL,
        }
    }

    fn auth(&mut self) -> Command {
        let user = self.user();
        command("auth", &[b"AUTH", user, b"x"])
    }

    fn hello(&mut self) -> Command {
        let version: &[u8] = if self.random.bool() { b"2" } else { b"3" };
        let user = self.user();
        match self.random.u8(0..6) {
            0 => command("hello", &[b"HELLO", version, b"AUTH", user, b"x"]),
            1 => {
                let words: [&[u8]; 6] = [b"HELLO", version, b"AUTH", user, b"x", b"ODD"];
                command("hello", &words)
            }
            2 => command("hello", &[b"HELLO", version, b"SETNAME", b"me"]),
            _ => command("hello", &[b"HELLO", version]),
        }
    }

    fn rules(&mut self) -> Command {
        Command {
            name: "acl",
            bytes: rights(&mut self.random),
            replies: 1,
        }
    }

    /// Keys change their names or databases.
    fn moves(&mut self) -> Command {
        let (one, two) = (self.key(), self.key());
        let (from, to) = (self.database(), self.database());
        match self.random.u8(0..30) {
            0 => command("flushdb", &[b"FLUSHDB"]),
            1..=5 => command("rename", &[b"RENAME", &one, &two]),
            6 | 7 => command("renamenx", &[b"RENAMENX", &one, &two]),
            8 | 9 => command("move", &[b"MOVE", &one, &to]),
            10..=21 => command("copy", &[b"COPY", &one, &two, b"DB", &to, b"REPLACE"]),
            _ => command("swapdb", &[b"SWAPDB", &from, &to]),
        }
    }

    /// A command that changes something of the connection, or of all.
    fn change(&mut self) -> Command {
        match self.random.u8(0..16) {
            0..=3 => self.select(),
            4..=6 => self.auth(),
            7 | 8 => self.hello(),
            9 => self.rules(),
            10 | 11 => command("reset", &[b"RESET"]),
            _ => self.moves(),
        }
    }

    /// Changes inside a transaction take effect with EXEC, or never.
    fn changes_in_multi(&mut self) -> Vec<Command> {
        let mut commands = vec![command("multi", &[b"MULTI"])];
        for _ in 0..self.random.u8(1..4) {
            commands.push(if self.random.bool() {
                self.change()
            } else {
                self.one()
            });
        }
        commands.push(match self.random.u8(0..5) {
            0 => command("discard", &[b"DISCARD"]),
            _ => command("exec", &[b"EXEC"]),
        });
        commands
    }

    /// An operation of these: the change alone, or with reads and writes right behind it.
    pub(super) fn mixed(&mut self) -> Operation {
        let mut commands = match self.random.u8(0..8) {
            0 | 1 => self.changes_in_multi(),
            _ => vec![self.change()],
        };
        for _ in 0..self.random.u8(0..3) {
            commands.push(self.one());
        }
        Operation {
            commands,
            ..Operation::default()
        }
    }

    /// What a client that ERB does not see does of it.
    pub(super) fn mixed_inside(&mut self) -> Command {
        match self.random.u8(0..3) {
            0 => self.select(),
            _ => self.moves(),
        }
    }
}
