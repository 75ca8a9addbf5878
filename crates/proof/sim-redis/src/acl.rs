// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Users and what they may do (Redis src/acl.c): ACL, and the checks before each command. Passwords
//! are shown by a hash of the model's own; categories other than `@all` and selectors are unknown.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::client::Argv;
use crate::dispatch::{glob, lower};
use crate::server::Redis;
use crate::table::Command;
use crate::types::ClientId;

/// The user as whom connections begin.
pub(crate) const DEFAULT: &str = "default";

const KEYS_FORBIDDEN: &str =
    "NOPERM this user has no permissions to access one of the keys used as arguments";

/// A user.
#[derive(Clone, Debug, Default)]
pub(crate) struct User {
    on: bool,
    pub(crate) no_password: bool,
    passwords: Vec<String>,
    patterns: Vec<String>,
    channels: bool,
    all: bool,
    /// `+name` and `-name` since `@all`, each name once.
    commands: BTreeMap<String, bool>,
}

impl User {
    fn open() -> Self {
        Self {
            on: true,
            no_password: true,
            patterns: vec!["*".to_owned()],
            channels: true,
            all: true,
            ..Self::default()
        }
    }

    /// Whether it may be used without a password.
    pub(crate) const fn is_free(&self) -> bool {
        self.on && self.no_password
    }

    fn all_keys(&self) -> bool {
        self.patterns.iter().any(|pattern| pattern == "*")
    }

    /// Whether nothing is forbidden to it.
    fn is_full(&self) -> bool {
        self.all && self.all_keys() && self.commands.values().all(|allowed| *allowed)
    }

    fn describe(&self, name: &str) -> String {
        let mut words = vec!["user".to_owned(), name.to_owned()];
        words.push(if self.on { "on" } else { "off" }.to_owned());
        words.extend(self.no_password.then(|| "nopass".to_owned()));
        words.extend(self.passwords.iter().map(|password| {
            let mut hasher = DefaultHasher::new();
            password.hash(&mut hasher);
            format!("#{:016x}", hasher.finish())
        }));
        words.extend(self.patterns.iter().map(|pattern| format!("~{pattern}")));
        let channels = if self.channels { "&*" } else { "resetchannels" };
        words.push(channels.to_owned());
        words.push(if self.all { "+@all" } else { "-@all" }.to_owned());
        words.extend(self.commands.iter().map(|(command, allowed)| {
            let sign = if *allowed { '+' } else { '-' };
            format!("{sign}{command}")
        }));
        words.join(" ")
    }

    /// One rule of ACL SETUSER; false: it is not known.
    fn apply(&mut self, rule: &str) -> bool {
        match rule.to_ascii_lowercase().as_str() {
            "on" => self.on = true,
            "off" => self.on = false,
            "nopass" => {
                self.no_password = true;
                self.passwords.clear();
            }
            "resetpass" => {
                self.no_password = false;
                self.passwords.clear();
            }
            "allkeys" | "~*" => self.patterns = vec!["*".to_owned()],
            "resetkeys" => self.patterns.clear(),
            "allchannels" | "&*" => self.channels = true,
            "resetchannels" => self.channels = false,
            "allcommands" | "+@all" => (self.all, self.commands) = (true, BTreeMap::new()),
            "nocommands" | "-@all" => (self.all, self.commands) = (false, BTreeMap::new()),
            "reset" => *self = Self::default(),
            lower => match (lower.split_at_checked(1), rule.split_at_checked(1)) {
                (Some((sign @ ("+" | "-"), name)), _) if !name.starts_with('@') => {
                    let allowed = sign == "+";
                    if allowed == self.all {
                        self.commands.remove(name);
                    } else {
                        self.commands.insert(name.to_owned(), allowed);
                    }
                }
                (_, Some((">", password))) => {
                    self.no_password = false;
                    self.passwords.push(password.to_owned());
                }
                (_, Some(("~", pattern))) if !self.all_keys() => {
                    self.patterns.push(pattern.to_owned());
                }
                _ => return false,
            },
        }
        true
    }

    fn may_run(&self, name: &str) -> bool {
        let parent = name.split('|').next().unwrap_or(name);
        let rule = self
            .commands
            .get(name)
            .or_else(|| self.commands.get(parent));
        rule.copied().unwrap_or(self.all)
    }
}

/// The users of a server that has just started.
pub(crate) fn first_users(requirepass: &str) -> BTreeMap<String, User> {
    let mut default = User::open();
    if !requirepass.is_empty() {
        default.apply(&format!(">{requirepass}"));
    }
    BTreeMap::from([(DEFAULT.to_owned(), default)])
}

impl Redis {
    /// The default user.
    pub(crate) fn default_user(&mut self) -> &mut User {
        self.users.entry(DEFAULT.to_owned()).or_default()
    }

    /// `requirepass` is set, or emptied.
    pub(crate) fn set_password(&mut self, password: &str) {
        let user = self.default_user();
        user.apply("resetpass");
        if password.is_empty() {
            user.apply("nopass")
        } else {
            user.apply(&format!(">{password}"))
        };
    }

    /// Whether this user has this password.
    pub(crate) fn credentials_are_right(&self, user: &[u8], password: &[u8]) -> bool {
        let found = std::str::from_utf8(user)
            .ok()
            .and_then(|name| self.users.get(name));
        found.is_some_and(|user| {
            let known = |known: &String| known.as_bytes() == password;
            user.on && (user.no_password || user.passwords.iter().any(known))
        })
    }

    /// Whether the client must authenticate before it may say anything else.
    pub(crate) fn must_authenticate(&mut self, id: ClientId) -> bool {
        !self.client(id).authenticated && !self.default_user().is_free()
    }

    /// Why its user may not run this command.
    pub(crate) fn forbidden(
        &mut self,
        id: ClientId,
        command: &Command,
        argv: &Argv,
    ) -> Option<String> {
        let user = self.users.get(&self.clients.get(&id)?.user)?;
        if !command.has('n') && !user.may_run(command.name) {
            return Some(format!(
                "NOPERM this user has no permissions to run the '{}' command",
                command.name
            ));
        }
        let allowed = |key: &[u8]| {
            let mut patterns = user.patterns.iter();
            patterns.any(|pattern| glob(pattern.as_bytes(), key))
        };
        let mut places = command.key_places(argv.len()).into_iter();
        places
            .any(|place| argv.get(place).is_some_and(|key| !allowed(key)))
            .then(|| KEYS_FORBIDDEN.to_owned())
    }

    /// Database, RESP version and user of this client.
    #[must_use]
    pub fn selected(&self, id: ClientId) -> Option<(u32, u8, &str)> {
        let client = self.clients.get(&id)?;
        Some((client.db, client.resp, &client.user))
    }

    /// Whether subscribers are told of keys that were looked for and not there.
    #[must_use]
    pub fn tells_misses(&self) -> bool {
        let notify = &self.config.notify;
        notify.contains('m') && notify.contains(['K', 'E'])
    }

    /// The users, and whether nothing is forbidden to them.
    pub fn users(&self) -> impl Iterator<Item = (&str, bool)> {
        let users = self.users.iter();
        users.map(|(name, user)| (name.as_str(), user.is_full()))
    }

    /// Whether nothing is forbidden to the user of this client, and it has authenticated if it must.
    #[must_use]
    pub fn has_full_rights(&self, id: ClientId) -> bool {
        let Some(client) = self.clients.get(&id) else {
            return false;
        };
        let free = self.users.get(DEFAULT).is_some_and(User::is_free);
        (client.authenticated || free) && self.users.get(&client.user).is_some_and(User::is_full)
    }
}

/// ACL LIST.
pub(crate) fn list(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    let lines: Vec<String> = redis
        .users
        .iter()
        .map(|(name, user)| user.describe(name))
        .collect();
    redis.client(id).add_array(lines.len());
    for line in lines {
        redis.client(id).add_bulk(line.as_bytes());
    }
}

/// ACL WHOAMI.
pub(crate) fn whoami(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    let user = redis.client(id).user.clone();
    redis.client(id).add_bulk(user.as_bytes());
}

/// ACL SETUSER: all rules or none.
pub(crate) fn setuser(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let name = String::from_utf8_lossy(&argv[2]).into_owned();
    let mut user = redis.users.get(&name).cloned().unwrap_or(User {
        channels: true,
        ..User::default()
    });
    for rule in &argv[3..] {
        let rule = String::from_utf8_lossy(rule).into_owned();
        if !user.apply(&rule) {
            let text = format!("ERR Error in ACL SETUSER modifier '{rule}': Syntax error");
            return redis.client(id).add_error(&text);
        }
    }
    redis.users.insert(name, user);
    redis.client(id).add_ok();
}

/// ACL DELUSER: who is such a user is disconnected.
pub(crate) fn deluser(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let mut gone = 0;
    for name in &argv[2..] {
        let name = lower(name);
        if name == DEFAULT {
            return redis
                .client(id)
                .add_error("ERR The 'default' user cannot be removed");
        }
        if redis.users.remove(&name).is_none() {
            continue;
        }
        gone += 1;
        let mut closing = Vec::new();
        for client in redis
            .clients
            .values_mut()
            .filter(|client| client.user == name)
        {
            DEFAULT.clone_into(&mut client.user);
            client.authenticated = false;
            closing.push(client.id);
        }
        for target in closing {
            if target == id {
                redis.client(id).close_after_reply_at_end = true;
            } else {
                redis.close_at_once(target);
            }
        }
    }
    redis.client(id).add_int(gone);
}
