// SPDX-License-Identifier: Apache-2.0 OR MIT
//! As whom the daemon speaks to Redis, and what that user must be allowed to do.

use std::fmt;
use std::io;

/// The user whom Redis takes connections for that do not authenticate.
pub const DEFAULT_USER: &str = "default";

/// User and password of the daemon's own connections. The password is in no `Debug` output.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Name of the user.
    pub user: String,
    /// The password, as Redis compares it.
    pub password: Vec<u8>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// HELLO for RESP3, with user and password if there are any. Unlike AUTH it also succeeds where
    /// the default user has no password (yet).
    #[must_use]
    pub fn hello(credentials: Option<&Self>) -> Vec<&[u8]> {
        let mut words: Vec<&[u8]> = vec![b"HELLO", b"3"];
        if let Some(Self { user, password }) = credentials {
            words.extend([&b"AUTH"[..], user.as_bytes(), password]);
        }
        words
    }
}

/// A command of the daemon.
#[derive(Clone, Copy, Debug)]
pub struct Right {
    /// Its ACL rule without the plus sign.
    pub rule: &'static str,
    /// A use of it that changes nothing but the connection on which it is tried.
    pub trial: &'static [&'static [u8]],
}

/// A key that is not there and that no pattern but one for all keys matches.
/// Redis repeats it in some errors, which must be text.
pub const TRIAL_KEY: &[u8] = b"\x7f\0erb";

macro_rules! rights {
    ($($rule:literal $trial:expr;)*) => {
        /// Every command that the daemon sends but HELLO, which needs no right; the user needs
        /// all keys (`~*`) besides.
        pub const RIGHTS: &[Right] = &[$(Right { rule: $rule, trial: &$trial }),*];
    };
}

rights! {
    "ping" [b"PING"];
    "info" [b"INFO", b"server"];
    "config|get" [b"CONFIG", b"GET", b"timeout"];
    "acl|list" [b"ACL", b"LIST"];
    "client|setname" [b"CLIENT", b"SETNAME", b"erb-trial"];
    "client|no-evict" [b"CLIENT", b"NO-EVICT", b"OFF"];
    // No client ever has this number.
    "client|list" [b"CLIENT", b"LIST", b"ID", b"9223372036854775807"];
    "client|kill" [b"CLIENT", b"KILL", b"ID", b"9223372036854775807"];
    "client|tracking" [b"CLIENT", b"TRACKING", b"OFF"];
    "command|list" [b"COMMAND", b"LIST", b"FILTERBY", b"MODULE", b"erb-trial"];
    "command|info" [b"COMMAND", b"INFO", b"erb-trial"];
    "select" [b"SELECT", b"0"];
    "strlen" [b"STRLEN", TRIAL_KEY];
    "getrange" [b"GETRANGE", TRIAL_KEY, b"0", b"0"];
    "hlen" [b"HLEN", TRIAL_KEY];
    "hmget" [b"HMGET", TRIAL_KEY, b"f"];
    "hrandfield" [b"HRANDFIELD", TRIAL_KEY, b"1"];
    "memory|usage" [b"MEMORY", b"USAGE", TRIAL_KEY];
    "object|encoding" [b"OBJECT", b"ENCODING", TRIAL_KEY];
    "pexpiretime" [b"PEXPIRETIME", TRIAL_KEY];
    "touch" [b"TOUCH", TRIAL_KEY];
    "multi" [b"MULTI"];
    "exec" [b"EXEC"];
}

/// Commands that the daemon sends besides where it answers writes in Redis's place (`drain`).
pub const WRITE_RIGHTS: &[&str] = &["mset", "set", "eval", "discard"];

/// The command that gives a user what the daemon needs.
#[must_use]
pub fn grant(user: &str) -> String {
    let rules: Vec<String> = RIGHTS
        .iter()
        .map(|right| format!("+{}", right.rule))
        .collect();
    format!("ACL SETUSER {user} ~* {}", rules.join(" "))
}

/// Whether this error reply says that a right is missing.
#[must_use]
pub fn lacks_right(error: &str) -> bool {
    error.starts_with("NOPERM")
}

/// Whether this error reply says that there is no such command.
#[must_use]
pub fn is_unknown(error: &str) -> bool {
    error.starts_with("ERR unknown command") || error.starts_with("ERR unknown subcommand")
}

/// What to do about commands that are not there under these names.
#[must_use]
pub fn missing(names: &str) -> String {
    format!(
        "Redis knows no {} under this name, which ERB needs: see rename-command in redis.conf",
        names.to_ascii_uppercase()
    )
}

/// What an error reply about password or rights means for the operator; none: it is about neither.
#[must_use]
pub fn advice(user: Option<&str>, error: &str) -> Option<String> {
    let who = user.unwrap_or(DEFAULT_USER);
    let text = match error.split(' ').next().unwrap_or_default() {
        "NOAUTH" => "Redis wants a password (NOAUTH): give --redis-password-file FILE, or the \
                     environment variable ERB_REDIS_PASSWORD, and --redis-user NAME for a user of \
                     one's own"
            .to_owned(),
        "WRONGPASS" => format!(
            "Redis refuses user {who:?} with this password, or the user is off (WRONGPASS): correct \
             --redis-user or the password; a password file is read again at each attempt"
        ),
        "NOPERM" => format!(
            "Redis's user {who:?} lacks rights that the daemon needs ({error}): {}",
            grant(who)
        ),
        _ => return None,
    };
    Some(text)
}

/// The same as the end of a connection; attempts are then made less often.
pub(crate) fn refused(user: Option<&str>, error: &str) -> Option<io::Error> {
    advice(user, error).map(|text| io::Error::new(io::ErrorKind::PermissionDenied, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_never_shown() {
        let credentials = Credentials {
            user: "erb".to_owned(),
            password: b"secret".to_vec(),
        };
        let shown = format!("{credentials:?} {credentials:#?}");
        assert!(
            shown.contains("erb") && !shown.contains("secret"),
            "{shown}"
        );
    }

    #[test]
    fn the_documents_name_the_same_rights() {
        let boost = include_str!("../../../../docs/operating/boost.md");
        let grant = grant("erb");
        let rules = grant.trim_start_matches("ACL SETUSER erb ");
        assert!(
            boost.contains(rules),
            "docs/operating/boost.md lacks: {rules}"
        );
    }

    #[test]
    fn hello_authenticates_only_with_credentials() {
        let credentials = Credentials {
            user: "erb".to_owned(),
            password: b"p w".to_vec(),
        };
        assert_eq!(Credentials::hello(None), [&b"HELLO"[..], b"3"]);
        assert_eq!(
            Credentials::hello(Some(&credentials)),
            [&b"HELLO"[..], b"3", b"AUTH", b"erb", b"p w"]
        );
    }

    #[test]
    fn each_refusal_says_what_to_do() {
        for (error, word) in [
            ("NOAUTH Authentication required.", "--redis-password-file"),
            ("WRONGPASS invalid username-password pair", "correct"),
            (
                "NOPERM this user has no permissions",
                "ACL SETUSER erb ~* +ping",
            ),
        ] {
            let text = advice(Some("erb"), error).unwrap();
            assert!(text.contains(word), "{text}");
        }
        assert_eq!(advice(None, "LOADING Redis is loading"), None);
    }
}
