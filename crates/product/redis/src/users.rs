// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What ACL LIST says: which users may do everything, and what keeps the others from it.
//!
//! A rule that is not known is taken for a restriction: of what it takes away nothing is known.

use std::collections::BTreeMap;

use erb_abi as abi;

use crate::rights::{DEFAULT_USER, grant};

/// Users that a sentence names at most.
const SHOWN_MAX: usize = 3;

/// What ACL LIST says of one user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) on: bool,
    pub(crate) no_password: bool,
    /// Every key may be read and written, by every command that it may send.
    all_keys: bool,
    /// The first that takes something away; none: it may do everything.
    against: Option<String>,
}

impl Rights {
    /// Whether nothing is forbidden to it.
    pub(crate) const fn is_full(&self) -> bool {
        self.against.is_none()
    }
}

/// What ACL LIST says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Users(BTreeMap<String, Rights>);

impl Users {
    /// Reads the lines of ACL LIST.
    pub(crate) fn of(lines: &[String]) -> Self {
        let users = lines.iter().filter_map(|line| {
            let mut words = line.split_whitespace();
            let name = words
                .next()
                .filter(|word| *word == "user")
                .and(words.next());
            Some((name?.to_owned(), rights_of(words)))
        });
        Self(users.collect())
    }

    /// Of one user; none: there is no such.
    pub(crate) fn get(&self, user: &str) -> Option<&Rights> {
        self.0.get(user)
    }

    /// Which user it is, and the first rule that is against it, or that there is no such.
    pub(crate) fn limit_of(&self, user: &str) -> String {
        let rule = match self.0.get(user).map(|rights| rights.against.as_deref()) {
            Some(Some(rule)) => rule,
            Some(None) => "read again at the next CLIENT LIST",
            None => "not in ACL LIST",
        };
        format!("{user} ({rule})")
    }

    /// Users of these that may not do everything, each with how many of them are its, by [`Self::limit_of`].
    pub(crate) fn limited<'a>(&self, of: impl Iterator<Item = &'a str>) -> BTreeMap<String, usize> {
        let is_full = |user: &str| self.0.get(user).is_some_and(Rights::is_full);
        let mut found = BTreeMap::new();
        for user in of.filter(|user| !is_full(user)) {
            *found.entry(self.limit_of(user)).or_default() += 1;
        }
        found
    }

    /// What a new connection may do without a password.
    pub(crate) fn door(&self) -> abi::door {
        match self.0.get(DEFAULT_USER) {
            Some(default) if default.is_full() && default.no_password => abi::DOOR_OPEN,
            // Redis src/server.c, authRequired().
            Some(default) if !default.no_password || !default.on => abi::DOOR_SHUT,
            _ => abi::DOOR_UNKNOWN,
        }
    }

    /// What is to be said where no user may do everything, so that no connection is answered: of each the first word
    /// that is against it. None: one may, or nothing is known of users.
    pub(crate) fn none_is_full(&self) -> Option<String> {
        let found = self.0.iter().map(|(name, rights)| {
            let word = rights.against.as_ref()?;
            Some(format!("{word} (user {name})"))
        });
        let words: Vec<String> = found.collect::<Option<_>>()?;
        let (shown, more) = words.split_at(words.len().min(SHOWN_MAX));
        let more = match more.len() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        (!shown.is_empty()).then(|| {
            format!(
                "no user may do everything, because of {}{more}: no connection is answered; see ACL LIST",
                shown.join(", ")
            )
        })
    }
}

/// Why Redis may keep changes of some keys from this user, to which it reports them; none: it tells of all. Redis 8.10
/// and newer leave out of a push what its reader may not read.
pub(crate) fn hides_keys_from(lines: &[String], user: &str) -> Option<String> {
    let line = lines.iter().find_map(|line| {
        let rules = line.strip_prefix("user ")?.strip_prefix(user)?;
        rules.strip_prefix(' ')
    });
    let rights = line.map(|rules| rights_of(rules.split_whitespace()));
    (!rights.is_some_and(|rights| rights.all_keys)).then(|| {
        format!(
            "the daemon's user {user:?} may not read all keys (no ~*), so Redis may not tell it of their changes: {}",
            grant(user)
        )
    })
}

/// The rules after a user's name (Redis src/acl.c, `ACLDescribeUser`; Valkey's, which names databases too). A rule
/// that is not known, a selector's bracket among them, is taken for a restriction.
fn rights_of<'a>(rules: impl Iterator<Item = &'a str>) -> Rights {
    let mut found = Rights::default();
    let (mut channels, mut commands) = (false, false);
    for rule in rules {
        match rule {
            "on" => found.on = true,
            "nopass" => found.no_password = true,
            "~*" | "allkeys" => found.all_keys = true,
            "&*" | "allchannels" => channels = true,
            "+@all" | "allcommands" => commands = true,
            "sanitize-payload" | "skip-sanitize-payload" => {}
            // Valkey 9.1 and newer: of every user, unless it is kept to some databases (`db=...`, `resetdbs`).
            "alldbs" => {}
            password if password.starts_with('#') => {}
            other => found.against = found.against.or_else(|| Some(other.to_owned())),
        }
    }
    let needed = [
        (found.on, "off"),
        (found.all_keys, "no ~*"),
        (channels, "no &*"),
        (commands, "no +@all"),
    ];
    let missing = needed.iter().find(|(is_there, _)| !is_there);
    let missing = missing.map(|(_, word)| (*word).to_owned());
    found.against = found.against.or(missing);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(lines: &[&str]) -> Users {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        Users::of(&lines)
    }

    fn against(rules: &str) -> Option<String> {
        users(&[&format!("user default {rules}")]).none_is_full()
    }

    #[test]
    fn a_valkey_that_names_databases_restricts_only_users_that_it_keeps_to_some() {
        let open = "on nopass sanitize-payload ~* &* alldbs +@all";
        assert_eq!(against(open), None, "every user of Valkey 9.1");
        for word in ["db=0", "db=0,1", "resetdbs", "alldbs-of-tomorrow"] {
            let said = against(&open.replace("alldbs", word)).expect("a restriction");
            let named = format!("because of {word} (user default)");
            assert!(said.contains(&named), "{said}");
        }
    }

    #[test]
    fn the_first_word_that_takes_something_away_is_named() {
        for (rules, word) in [
            ("on nopass ~* &* +@all rule-of-tomorrow", "rule-of-tomorrow"),
            ("on nopass ~* &* +@all -get", "-get"),
            ("off nopass ~* &* +@all", "off"),
            ("on nopass &* +@all", "no ~*"),
            ("on nopass ~* +@all", "no &*"),
            ("on nopass ~* &*", "no +@all"),
        ] {
            let said = against(rules).expect("a restriction");
            assert!(said.contains(&format!("because of {word} (")), "{said}");
        }
    }

    #[test]
    fn one_user_that_may_do_everything_is_enough_and_without_a_list_nothing_is_said() {
        let few = "user default on nopass ~* &* +@read";
        assert_eq!(
            users(&[few, "user bob on #1 ~* &* +@all"]).none_is_full(),
            None
        );
        assert_eq!(users(&[]).none_is_full(), None);
        let many: Vec<String> = (0..5).map(|user| format!("user u{user} on ~a")).collect();
        let said = Users::of(&many).none_is_full().expect("a restriction");
        assert!(said.contains("(user u2) and 2 more:"), "{said}");
    }

    #[test]
    fn users_of_clients_that_may_not_do_everything_are_counted_with_the_rule() {
        let found = users(&[
            "user default on nopass ~* &* +@all",
            "user app on #1 ~app:* &* +@all",
        ]);
        let clients = ["default", "app", "gone", "app"];
        let limited = found.limited(clients.into_iter()).into_iter();
        let limited: Vec<(String, usize)> = limited.collect();
        let told = |text: &str, count| (text.to_owned(), count);
        let wanted = [told("app (~app:*)", 2), told("gone (not in ACL LIST)", 1)];
        assert_eq!(limited, wanted);
    }

    #[test]
    fn a_feed_is_told_of_all_changes_only_with_all_keys() {
        for (rules, told) in [
            ("on nopass ~* &* +@all", true),
            ("on #1 ~* resetchannels -@all +ping", true),
            ("on nopass ~app:* &* +@all", false),
            ("on nopass %R~* &* +@all", false),
            ("on nopass &* +@all (~* +@all)", false),
        ] {
            // Another user's name begins as its own does.
            let lines = [
                "user erbium on ~* &* +@all".to_owned(),
                format!("user erb {rules}"),
            ];
            assert_eq!(hides_keys_from(&lines, "erb").is_none(), told, "{rules}");
        }
        let gone = hides_keys_from(&["user default on ~* &* +@all".to_owned()], "erb");
        assert!(gone.expect("a reason").contains("ACL SETUSER erb ~*"));
    }
}
