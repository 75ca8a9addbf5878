// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a store is: `nvme://HOST:PORT/NQN#NAMESPACE`.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// The subsystem that is meant if none is named.
const NQN: &str = "nqn.2026-11.org.erb:node";
const PORT: u16 = 4420;
const SCHEME: &str = "nvme://";

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Name or address.
    pub host: String,
    /// Of TCP.
    pub port: u16,
    /// The subsystem.
    pub nqn: String,
    /// The namespace.
    pub namespace: u32,
}

impl FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Url(text.to_owned());
        let rest = text.strip_prefix(SCHEME).ok_or_else(wrong)?;
        let (rest, namespace) = match rest.split_once('#') {
            Some((rest, number)) => (rest, number.parse().ok().filter(|it| *it > 0)),
            None => (rest, Some(1)),
        };
        let (authority, nqn) = match rest.split_once('/') {
            Some((authority, nqn)) if !nqn.is_empty() => (authority, nqn),
            Some((authority, _)) => (authority, NQN),
            None => (rest, NQN),
        };
        // An IPv6 address stands in brackets.
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()),
            _ => (authority, Some(PORT)),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(wrong());
        }
        Ok(Self {
            host: host.to_owned(),
            port: port.ok_or_else(wrong)?,
            nqn: nqn.to_owned(),
            namespace: namespace.ok_or_else(wrong)?,
        })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (left, right) = if self.host.contains(':') {
            ("[", "]")
        } else {
            ("", "")
        };
        write!(
            formatter,
            "{SCHEME}{left}{}{right}:{}/{}#{}",
            self.host, self.port, self.nqn, self.namespace
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_what_was_typed_and_the_rest_is_as_usual() {
        let usual = |text: &str| text.parse::<Url>().unwrap().to_string();
        let whole = "nvme://127.0.0.1:4420/nqn.2026-11.org.erb:node#1";
        for text in [
            whole,
            "nvme://127.0.0.1",
            "nvme://127.0.0.1:4420",
            "nvme://127.0.0.1/",
        ] {
            assert_eq!(usual(text), whole);
        }
        assert_eq!(usual("nvme://[::1]:7/a:b#3"), "nvme://[::1]:7/a:b#3");
        assert_eq!(
            usual("nvme://[::1]"),
            "nvme://[::1]:4420/nqn.2026-11.org.erb:node#1"
        );
        for text in [
            "127.0.0.1",
            "redis://a",
            "nvme://",
            "nvme://a:b",
            "nvme://a#0",
            "nvme://a#x",
        ] {
            assert!(text.parse::<Url>().is_err(), "{text}");
        }
    }
}
