// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From arguments to execution: look-up, refusals in Redis's order, MULTI's queue, the call itself.

use crate::client::{Argv, Blocked};
use crate::server::Redis;
use crate::table::{self, Command};
use crate::types::{Bytes, ClientId};

/// Counters of one command in `INFO commandstats`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommandStat {
    pub(crate) calls: u64,
    pub(crate) rejected: u64,
    pub(crate) failed: u64,
}

/// How much of unknown arguments an error shows.
const SHOWN_BYTES: usize = 128;

pub(crate) fn bytes(text: &str) -> Bytes {
    Bytes::from(text.as_bytes())
}

pub(crate) fn lower(text: &[u8]) -> String {
    String::from_utf8_lossy(text).to_ascii_lowercase()
}

/// A C string's bytes: up to a zero, at most so many.
fn c_text(text: &[u8], max: usize) -> Vec<u8> {
    text.iter()
        .copied()
        .take_while(|byte| *byte != 0)
        .take(max)
        .collect()
}

/// `stringmatchlen`: `*`, `?`, `[...]` and backslash.
pub(crate) fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len()).any(|at| glob(rest, &text[at..])),
        [b'?', rest @ ..] => !text.is_empty() && glob(rest, &text[1..]),
        [b'[', rest @ ..] => {
            let Some((&byte, text)) = text.split_first() else {
                return false;
            };
            let (negated, rest) = match rest {
                [b'^', rest @ ..] => (true, rest),
                _ => (false, rest),
            };
            let end = rest
                .iter()
                .position(|byte| *byte == b']')
                .unwrap_or(rest.len());
            let class = &rest[..end];
            let mut found = class.contains(&byte);
            for range in class.windows(3).filter(|range| range[1] == b'-') {
                found |= (range[0]..=range[2]).contains(&byte);
            }
            found != negated && glob(rest.get(end + 1..).unwrap_or_default(), text)
        }
        [b'\\', byte, rest @ ..] | [byte, rest @ ..] => {
            text.first() == Some(byte) && glob(rest, &text[1..])
        }
    }
}

impl Redis {
    /// `processCommand`: true if the command ended (and did not block or wait for later).
    pub(crate) fn process(&mut self, id: ClientId, argv: &Argv) -> bool {
        if lower(&argv[0]) == "quit" {
            self.client(id).add_ok();
            self.client(id).close_after_reply = true;
            return true;
        }
        let declared = self.declared(argv);
        let argv = declared.as_ref().unwrap_or(argv);
        let name = lower(&argv[0]);
        let Some(command) = self.command_or_reject(id, &name, argv) else {
            return true;
        };
        self.running = command.name;
        command.name.clone_into(&mut self.client(id).last_command);
        if let Some(text) = self.refusal(id, command, argv) {
            self.reject(id, Some(command), text.as_bytes());
            return true;
        }
        if self.must_wait(id, command) {
            self.client(id).blocked = Some(Blocked::Postponed(argv.clone()));
            return false;
        }
        let queues = !matches!(
            command.name,
            "exec" | "discard" | "multi" | "watch" | "reset"
        );
        if let Some(queue) = self.client(id).multi.as_mut().filter(|_| queues) {
            queue.push(argv.clone());
            self.client(id).add_status("QUEUED");
        } else {
            self.call(id, command, argv);
            self.end_of_unit();
            self.serve_blocked();
        }
        true
    }

    /// The command under the name with which it was declared, if `rename-command` touches this one.
    /// A name that leads to no command any more gets one that never did.
    fn declared(&self, argv: &Argv) -> Option<Argv> {
        let name = command_of(self.config.renamed, &lower(&argv[0]))?;
        let mut argv = argv.clone();
        argv[0] = bytes(&name);
        Some(argv)
    }

    fn command_or_reject(
        &mut self,
        id: ClientId,
        name: &str,
        argv: &Argv,
    ) -> Option<&'static Command> {
        let found = table::find(name);
        let is_container = found.is_some_and(|command| {
            std::ptr::fn_addr_eq(command.run, crate::admin::container as table::Handler)
        }) || name == "command";
        let command = if is_container && argv.len() > 1 {
            let sub = table::find(&format!("{name}|{}", lower(&argv[1])));
            if sub.is_none() {
                let mut text = b"ERR unknown subcommand '".to_vec();
                text.extend(c_text(&argv[1], SHOWN_BYTES));
                text.extend(format!("'. Try {} HELP.", name.to_ascii_uppercase()).bytes());
                self.reject(id, None, &text);
                return None;
            }
            sub
        } else {
            found
        };
        let Some(command) = command else {
            let mut shown = Vec::new();
            for word in &argv[1..] {
                if shown.len() >= SHOWN_BYTES {
                    break;
                }
                let part = c_text(word, SHOWN_BYTES - shown.len());
                shown.push(b'\'');
                shown.extend(part);
                shown.extend_from_slice(b"' ");
            }
            let mut text = b"ERR unknown command '".to_vec();
            text.extend(c_text(&argv[0], SHOWN_BYTES));
            text.extend_from_slice(b"', with args beginning with: ");
            text.extend(shown);
            self.reject(id, None, &text);
            return None;
        };
        if !command.takes(argv.len()) {
            let text = format!(
                "ERR wrong number of arguments for '{}' command",
                command.name
            );
            self.reject(id, Some(command), text.as_bytes());
            return None;
        }
        Some(command)
    }

    /// Why a known command is refused, in Redis's order of looking.
    fn refusal(&mut self, id: ClientId, command: &'static Command, argv: &Argv) -> Option<String> {
        if command.name == "debug" && !self.config.debug_command {
            return Some("ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a local connection, otherwise you need to set this option in the configuration file, and then restart the server.".to_owned());
        }
        if !command.has('n') && self.must_authenticate(id) {
            return Some("NOAUTH Authentication required.".to_owned());
        }
        if command.has('M') && self.client(id).multi.is_some() {
            return Some("ERR Command not allowed inside a transaction".to_owned());
        }
        let obeyed = self.obeys(id);
        if let Some(text) = self.forbidden(id, command, argv).filter(|_| !obeyed) {
            return Some(text);
        }
        let in_exec = |redis: &mut Self, flag| command.name == "exec" && redis.queued_has(id, flag);
        let writes = command.has('w') || in_exec(self, 'w');
        let has_room = self.make_room();
        self.end_of_unit();
        if !has_room && (command.has('m') || in_exec(self, 'm')) {
            return Some("OOM command not allowed when used memory > 'maxmemory'.".to_owned());
        }
        if (writes || command.name == "ping") && !self.replica {
            if let Some(error) = self.aof.error() {
                return Some(format!("MISCONF Errors writing to the AOF file: {error}"));
            }
        }
        if self.replica && writes && !obeyed {
            return Some("READONLY You can't write against a read only replica.".to_owned());
        }
        let allowed = [
            "ping",
            "subscribe",
            "unsubscribe",
            "psubscribe",
            "punsubscribe",
            "reset",
        ];
        let client = self.client(id);
        if client.in_pubsub() && client.resp == 2 && !allowed.contains(&command.name) {
            return Some(format!(
                "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / \
                 RESET are allowed in this context",
                lower(&argv[0])
            ));
        }
        // Of those that run while Redis loads, all run with stale data too; EVAL, which begins there
        // and fails at its first command, is taken for one that does not.
        if self.replica && !self.link_up && !self.config.serve_stale && !obeyed && !command.has('l')
        {
            return Some(
                "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."
                    .to_owned(),
            );
        }
        if self.loading
            && (!command.has('l') || (command.name == "exec" && self.queued_denies_loading(id)))
        {
            return Some("LOADING Redis is loading the dataset in memory".to_owned());
        }
        None
    }

    fn queued(&mut self, id: ClientId) -> Vec<&'static Command> {
        let queue = self.client(id).multi.clone().unwrap_or_default();
        queue.iter().filter_map(find_command).collect()
    }

    fn queued_has(&mut self, id: ClientId, flag: char) -> bool {
        self.queued(id).iter().any(|command| command.has(flag))
    }

    fn queued_denies_loading(&mut self, id: ClientId) -> bool {
        self.queued(id).iter().any(|command| !command.has('l'))
    }

    /// CLIENT PAUSE holds this command back.
    fn must_wait(&mut self, id: ClientId, command: &Command) -> bool {
        if !self.is_paused() {
            return false;
        }
        let replicates = |command: &Command| command.has('w') || command.has('P');
        self.pause_all
            || replicates(command)
            || (command.name == "exec" && self.queued(id).into_iter().any(replicates))
    }

    /// `rejectCommand`: a refused command spoils the transaction that it was to be part of.
    fn reject(&mut self, id: ClientId, command: Option<&'static Command>, text: &[u8]) {
        if let Some(command) = command {
            self.command_stats.entry(command.name).or_default().rejected += 1;
        }
        let client = self.client(id);
        if client.multi.is_some() {
            client.dirty_exec = true;
        }
        if command.is_some_and(|command| command.name == "exec") {
            crate::multi::discard_transaction(self, id);
            let text = text.strip_prefix(b"ERR ").unwrap_or(text);
            let text = [b"EXECABORT Transaction discarded because of: ", text].concat();
            return self.client(id).add_error_bytes(&text);
        }
        client.add_error_bytes(text);
    }

    pub(crate) fn add_arity_error(&mut self, id: ClientId) {
        let text = format!(
            "ERR wrong number of arguments for '{}' command",
            self.running
        );
        self.client(id).add_error(&text);
    }

    /// `call`: runs the handler, counts, logs, tells monitors.
    pub(crate) fn call(&mut self, id: ClientId, command: &'static Command, argv: &Argv) {
        let (dirty, outer) = (self.dirty, self.running);
        let errors = self.client(id).errors;
        let db = self.client(id).db;
        self.running = command.name;
        self.log_override = None;
        (command.run)(self, id, argv);
        if let Some(client) = self.clients.get(&id) {
            let failed = client.errors > errors;
            let stat = self.command_stats.entry(command.name).or_default();
            stat.calls += 1;
            stat.failed += u64::from(failed);
        }
        self.stats.commands += 1;
        let logged = self.log_override.take();
        // Which of their changes is logged they say themselves.
        let by_itself = ["exec", "eval", "blpop", "rpoplpush", "brpoplpush"];
        if self.dirty > dirty && !by_itself.contains(&command.name) {
            self.log_other(db, logged.unwrap_or_else(|| argv.clone()));
        }
        if !command.has('x') && !command.has('a') {
            self.feed_monitors(id, db, argv);
        }
        if command.has('r') {
            self.remember_reads(id, command, argv);
        }
        self.running = outer;
    }

    /// Replaces what the log gets for the command that runs.
    pub(crate) fn log_as(&mut self, argv: Argv) {
        self.log_override = Some(argv);
    }
}

/// What a name stands for, if that is not the command that was declared with it.
pub(crate) fn command_of(renamed: &[(&str, &str)], name: &str) -> Option<String> {
    let to = renamed.iter().find(|(_, to)| *to == name);
    let from = renamed.iter().any(|(from, _)| *from == name);
    match to {
        Some((from, _)) => Some((*from).to_owned()),
        None => from.then(|| format!("(renamed) {name}")),
    }
}

/// The command that these arguments name.
pub(crate) fn find_command(argv: &Argv) -> Option<&'static Command> {
    let name = lower(argv.first()?);
    let sub = argv
        .get(1)
        .and_then(|sub| table::find(&format!("{name}|{}", lower(sub))));
    sub.or_else(|| table::find(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, found) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[^a]x", "ax", false),
            ("\\*", "*", true),
        ] {
            assert_eq!(
                glob(pattern.as_bytes(), text.as_bytes()),
                found,
                "{pattern} {text}"
            );
        }
    }
}
