// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The address at which the daemon reaches Redis.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use crate::Error;

/// `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisAddr {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl RedisAddr {
    /// The TCP port, if the address has one.
    #[must_use]
    pub const fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(address) => Some(address.port()),
            Self::Unix(_) => None,
        }
    }
}

impl FromStr for RedisAddr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        if !is_written_right(text) {
            return Err(Error::Usage(format!(
                "{text:?} is no address of a Redis; write HOST:PORT, [IPV6]:PORT or unix:PATH"
            )));
        }
        // What is written right may be known a moment later: a name server that does not answer is no mistake.
        let unknown = |reason: String| Error::Redis {
            address: text.to_owned(),
            reason: format!(
                "the name cannot be resolved: {reason}; see to the name server or /etc/hosts, or correct --redis"
            ),
        };
        let mut found = text
            .to_socket_addrs()
            .map_err(|error| unknown(error.to_string()))?;
        let first = found.next().map(Self::Tcp);
        first.ok_or_else(|| unknown("it has no address".to_owned()))
    }
}

/// Whether it is a numeric address with a port, or a name with one.
fn is_written_right(text: &str) -> bool {
    let is_name = |host: &str| {
        !host.is_empty()
            && !host.contains(|letter: char| letter.is_whitespace() || ":[]/".contains(letter))
    };
    let named = || {
        let (host, port) = text.rsplit_once(':')?;
        Some(is_name(host) && port.parse::<u16>().is_ok())
    };
    text.parse::<SocketAddr>().is_ok() || named().unwrap_or(false)
}

impl fmt::Display for RedisAddr {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(out, "{address}"),
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let tcp: RedisAddr = "127.0.0.1:6379".parse().unwrap();
        assert_eq!(tcp.port(), Some(6379));
        assert_eq!(tcp.to_string(), "127.0.0.1:6379");
        let v6: RedisAddr = "[::1]:7000".parse().unwrap();
        assert_eq!(v6.to_string(), "[::1]:7000");
        let unix: RedisAddr = "unix:/run/redis.sock".parse().unwrap();
        assert_eq!(unix, RedisAddr::Unix("/run/redis.sock".into()));
        assert_eq!(unix.port(), None);
    }

    #[test]
    fn what_is_written_wrongly_is_told_from_a_name_that_is_not_known_now() {
        for wrong in [
            "127.0.0.1",
            "127.0.0.1:port",
            "redis:70000",
            ":6379",
            "::1:6379",
            "two words:6379",
            "http://redis:6379",
        ] {
            let found = wrong.parse::<RedisAddr>();
            assert!(matches!(found, Err(Error::Usage(_))), "{wrong}: {found:?}");
        }
        // RFC 6761: no name server knows it.
        let name = "redis.invalid:6379";
        match name.parse::<RedisAddr>() {
            Err(Error::Redis { address, reason }) => {
                assert_eq!(address, name);
                assert!(reason.contains("cannot be resolved"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
}
