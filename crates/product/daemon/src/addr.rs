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
        let found = text.to_socket_addrs().map(|mut all| all.next());
        match found {
            Ok(Some(address)) => Ok(Self::Tcp(address)),
            Ok(None) => Err(Error::Usage(format!(
                "{text:?} resolves to no address; write HOST:PORT or unix:PATH"
            ))),
            Err(error) => Err(Error::Usage(format!(
                "{text:?} is no address of a Redis ({error}); write HOST:PORT or unix:PATH"
            ))),
        }
    }
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
        assert!("127.0.0.1".parse::<RedisAddr>().is_err());
        assert!("127.0.0.1:port".parse::<RedisAddr>().is_err());
    }
}
