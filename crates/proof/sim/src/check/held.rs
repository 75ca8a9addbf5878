// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which commands wait for what was answered in Redis's place before them, as `commands.def` should have it (`order.h`, Y6).

use erb_sim_redis::Bytes;

use super::wire::is;

/// Whether a command waits for what was answered before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Until all of it is drained.
    Always,
    /// Not behind a drain that Redis has refused for long.
    UnlessRefused,
    /// It does not wait.
    Never,
}

impl Held {
    /// Of this command.
    pub(super) fn of(argv: &[Bytes]) -> Self {
        const CURES: [&str; 7] = [
            "bgsave",
            "save",
            "bgrewriteaof",
            "failover",
            "shutdown",
            "replicaof",
            "slaveof",
        ];
        const ALL: [&str; 17] = [
            "ping", "echo", "time", "info", "command", "latency", "slowlog", "monitor", "config",
            "acl", "auth", "hello", "select", "discard", "replconf", "psync", "sync",
        ];
        const BY_FIRST: [(&str, &str); 5] = [
            ("script", "kill"),
            ("function", "kill"),
            ("shutdown", "nosave"),
            ("replicaof", "no"),
            ("slaveof", "no"),
        ];
        let first = |word: &str| {
            argv.get(1)
                .is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
        };
        let one_of = |names: &[&str]| names.iter().any(|name| is(argv, name));
        let by_first = |(name, word): &(&str, &str)| is(argv, name) && first(word);
        if one_of(&ALL) || is(argv, "client") && !first("pause") || BY_FIRST.iter().any(by_first) {
            Self::Never
        } else if one_of(&CURES) {
            Self::UnlessRefused
        } else {
            Self::Always
        }
    }
}
