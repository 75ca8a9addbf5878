// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Redis that is to be boosted, asked over a connection of its own: whose the listeners on a port are, which sockets are
//! its own, and which feeds it has.

use std::net::SocketAddr;
use std::path::Path;

use erb_redis::resp::{Frame, RespStream, pairs, text};
use erb_redis::rights::Credentials;
use erb_redis::{ClientLine, Listener, TcpPair, Whose, is_listed, parse_clients, reached_at};

use crate::addr::RedisAddr;
use crate::credentials::CredentialSource;
use crate::machine::Connection;
use crate::preflight::{ask, silent};
use crate::privilege::as_at_work;
use crate::sockets::{listeners, local_addresses};
use crate::{Error, Result};

/// Turns of Redis's loop in which it accepts a connection that waits.
const ACCEPT_TURNS: u32 = 3;

/// See the module.
pub(crate) struct Asked<'a> {
    address: &'a RedisAddr,
    credentials: Option<Credentials>,
    stream: RespStream<Connection>,
}

impl<'a> Asked<'a> {
    /// Connects and authenticates.
    ///
    /// # Errors
    /// [`Error::Redis`] if it cannot be reached, [`Error::Credentials`] for a password file that cannot be used.
    pub(crate) fn connect(address: &'a RedisAddr, source: &CredentialSource) -> Result<Self> {
        let credentials = as_at_work(|| source.read())?;
        let mut asked = Self {
            address,
            credentials,
            stream: open(address)?,
        };
        asked.begin()?;
        Ok(asked)
    }

    fn begin(&mut self) -> Result<()> {
        let credentials = self.credentials.clone();
        let hello = Credentials::hello(credentials.as_ref());
        self.ask(&hello).map(drop)
    }

    fn ask(&mut self, words: &[&[u8]]) -> Result<Frame> {
        let replies = ask(&mut self.stream, &[words]);
        let mut replies = replies.map_err(|error| failed(self.address, &error))?;
        Ok(replies.remove(0))
    }

    /// Its connections; none where it does not list them.
    pub(crate) fn clients(&mut self) -> Result<Vec<ClientLine>> {
        let answer = self.ask(&[b"CLIENT", b"LIST"])?;
        let words = text(&answer).map(|words| String::from_utf8_lossy(words).into_owned());
        Ok(parse_clients(&words.unwrap_or_default()))
    }

    /// The same over a connection of now: what was made before it at the same socket is accepted before it.
    fn clients_by_now(&mut self) -> Result<Vec<ClientLine>> {
        self.stream = open(self.address)?;
        self.begin()?;
        for _ in 1..ACCEPT_TURNS {
            self.clients()?;
        }
        self.clients()
    }

    /// Whether it is Redis that accepts connections to this address; none: nobody does, or it cannot be told.
    pub(crate) fn accepts(&mut self, at: SocketAddr) -> Result<Option<bool>> {
        let made = Connection::unasked(&RedisAddr::Tcp(at)).ok();
        let Some((pair, _open)) = made.and_then(|made| Some((made.pair()?, made))) else {
            return Ok(None);
        };
        let list = self.clients_by_now()?;
        Ok((!list.is_empty()).then(|| is_listed(&list, &pair)))
    }

    /// Whether this is its unix socket; none: it cannot be told.
    pub(crate) fn has_socket(&mut self, path: &Path) -> Result<Option<bool>> {
        let answer = self.ask(&[b"CONFIG", b"GET", b"unixsocket", b"dir"])?;
        let found = pairs(&answer);
        let of = |name: &str| {
            let mut found = found.iter();
            found.find(|(own, _)| own == name).map(|(_, value)| value)
        };
        let folder = of("dir").map_or(Path::new(""), Path::new);
        Ok(of("unixsocket").and_then(|own| is_same_socket(folder, Path::new(own), path)))
    }

    /// Whose the sockets are that listen on the port: Redis lists the connections that it has accepted.
    /// What cannot be told is not known.
    pub(crate) fn whose_listeners(&mut self, port: u16) -> Result<Vec<(Listener, Whose)>> {
        let found = listeners(port)?;
        let local: Vec<_> = local_addresses()?.into_iter().collect();
        let probe = |listener: &Listener| {
            let tries = reached_at(&found, listener, &local).into_iter();
            let mut made = tries.filter_map(|ip| {
                let made = Connection::unasked(&RedisAddr::Tcp((ip, port).into())).ok()?;
                Some((made.pair()?, made))
            });
            made.next()
        };
        let probes: Vec<Option<(TcpPair, Connection)>> = found.iter().map(probe).collect();
        let list = self.clients_by_now()?;
        let whose = |probe: &Option<_>| match probe {
            Some((pair, _)) if is_listed(&list, pair) => Whose::Redis,
            Some(_) if !list.is_empty() => Whose::Other,
            _ => Whose::Unknown,
        };
        let whose: Vec<Whose> = probes.iter().map(whose).collect();
        Ok(found.into_iter().zip(whose).collect())
    }

    /// Whether one of the sockets that listen on the port is its own.
    pub(crate) fn listens_on(&mut self, port: u16) -> Result<bool> {
        let found = self.whose_listeners(port)?;
        Ok(found.iter().any(|(_, whose)| *whose == Whose::Redis))
    }
}

fn open(address: &RedisAddr) -> Result<RespStream<Connection>> {
    let made = as_at_work(|| Connection::unasked(address)).map(RespStream::new);
    made.map_err(|error| failed(address, &error))
}

fn failed(address: &RedisAddr, error: &std::io::Error) -> Error {
    Error::Redis {
        address: address.to_string(),
        reason: silent(error),
    }
}

/// Whether two paths lead to one socket, the first as Redis's settings have it, for a Redis that works in `folder`. None: it
/// is not seen from here.
fn is_same_socket(folder: &Path, own: &Path, other: &Path) -> Option<bool> {
    if own.as_os_str().is_empty() {
        return Some(false);
    }
    let own = folder.join(own);
    if !own.is_absolute() {
        return None;
    }
    Some(own.canonicalize().ok()? == other.canonicalize().ok()?)
}

/// Whose the sockets are that listen on the port, as [`Asked::whose_listeners`] tells.
///
/// # Errors
/// As [`Asked::connect`].
pub(crate) fn whose_listeners(
    address: &RedisAddr,
    source: &CredentialSource,
    port: u16,
) -> Result<Vec<(Listener, Whose)>> {
    Asked::connect(address, source)?.whose_listeners(port)
}

/// Checks that one of them is Redis's, or may be.
///
/// # Errors
/// [`Error::Redis`] if another server has the port.
pub(crate) fn check_whose(
    address: &RedisAddr,
    listeners: &[(Listener, Whose)],
    port: u16,
) -> Result<()> {
    if listeners.iter().any(|(_, whose)| *whose != Whose::Other) {
        return Ok(());
    }
    Err(Error::Redis {
        address: address.to_string(),
        reason: format!(
            "does not listen on port {port} of this network namespace, where another server does: \
             correct --port, or boost where redis-server runs (`ip netns exec NAME erb boost ...`)"
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn one_socket_by_two_names_is_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let _listeners = ["a", "b"].map(|name| UnixListener::bind(at(name)).expect("a socket"));
        std::os::unix::fs::symlink(at("a"), at("link")).expect("a link");
        let same = |own: &Path, other: &Path| is_same_socket(folder.path(), own, other);
        assert_eq!(same(&at("a"), &at("link")), Some(true));
        assert_eq!(same(Path::new("a"), &at("link")), Some(true));
        assert_eq!(same(&at("a"), &at("b")), Some(false));
        assert_eq!(same(Path::new(""), &at("a")), Some(false), "it has none");
        assert_eq!(same(&at("gone"), &at("a")), None);
        let nowhere = is_same_socket(Path::new(""), Path::new("a"), &at("a"));
        assert_eq!(nowhere, None, "of which folder?");
    }
}
