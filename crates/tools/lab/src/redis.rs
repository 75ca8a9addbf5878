// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lab's redis-server: arguments, start, first PONG.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::Child;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::netns;
use crate::process::{self, Process};
use crate::state::LabState;

/// Role of the process in the state.
pub const ROLE: &str = "redis-server";
/// Longest wait for the first PONG: Redis starts in some 10 ms, a loaded machine takes longer.
const START_WAIT: Duration = Duration::from_secs(20);
/// Pause between two tries.
const START_PAUSE: Duration = Duration::from_millis(10);
/// Longest wait for an answer to one PING.
const PING_WAIT: Duration = Duration::from_secs(2);

/// Settings that the lab itself decides; changing them would cut it off from its Redis.
const RESERVED: [(&str, &str); 8] = [
    ("port", "use --redis-port"),
    ("bind", "it listens on all addresses of its namespace"),
    ("dir", "the lab has a directory of its own"),
    ("daemonize", "the lab starts and ends it"),
    ("protected-mode", "it is off, the client is another host"),
    ("logfile", "the lab keeps its log"),
    ("tls-port", "the lab speaks plain TCP"),
    ("include", "give the settings themselves"),
];

/// One redis.conf setting given with `--redis-arg KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisArg {
    key: String,
    value: String,
}

impl std::str::FromStr for RedisArg {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((key, value)) = text.split_once('=') else {
            bail!("`{text}` is not KEY=VALUE, like maxmemory=100mb");
        };
        let key = key.to_ascii_lowercase();
        let ok = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if key.is_empty() || key.starts_with('-') || !key.bytes().all(ok) {
            bail!("`{key}` is not the name of a redis.conf setting");
        }
        if let Some((_, reason)) = RESERVED.iter().find(|(reserved, _)| *reserved == key) {
            bail!("redis setting `{key}` cannot be changed in the lab: {reason}");
        }
        Ok(Self {
            key,
            value: value.to_owned(),
        })
    }
}

impl RedisArg {
    /// As words of redis-server's command line.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let mut words = vec![format!("--{}", self.key)];
        if self.value.is_empty() {
            words.push(String::new());
        }
        words.extend(self.value.split_whitespace().map(str::to_owned));
        words
    }
}

/// redis-server's command line: a log synced every second, no snapshots, open to the client.
fn arguments(state: &LabState, extra: &[RedisArg]) -> Vec<String> {
    let dir = state.redis_dir.display().to_string();
    let port = state.redis_port.to_string();
    let settings: [(&str, &[&str]); 8] = [
        ("port", &[&port]),
        ("bind", &["*", "-::*"]),
        ("protected-mode", &["no"]),
        ("daemonize", &["no"]),
        ("dir", &[&dir]),
        ("appendonly", &["yes"]),
        ("appendfsync", &["everysec"]),
        ("save", &[""]),
    ];
    let mut arguments = Vec::new();
    for (key, values) in settings {
        arguments.push(format!("--{key}"));
        arguments.extend(values.iter().map(|value| (*value).to_owned()));
    }
    arguments.extend(extra.iter().flat_map(RedisArg::words));
    arguments
}

/// Starts redis-server in the server's namespace, notes it in `state`, waits until it answers.
pub fn start(state: &mut LabState, extra: &[RedisArg]) -> Result<()> {
    let log_path = state.run_dir.join("redis.log");
    let mut command = netns::command(&state.server.namespace, &state.redis_program)?;
    command.args(arguments(state, extra));
    process::log_to(&mut command, &log_path)?;
    let mut child = match process::detach(&mut command).spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("redis-server is not installed: run `apt-get install redis-server`")
        }
        Err(error) => return Err(error).context("cannot start redis-server"),
    };
    let explain = |error| process::with_log(error, ROLE, &log_path);
    state
        .processes
        .push(Process::describe(ROLE, child.id()).map_err(explain)?);
    state.save()?;
    wait_for_pong(state, &mut child).map_err(explain)
}

/// Waits for the first PONG from within the server's own namespace.
fn wait_for_pong(state: &LabState, child: &mut Child) -> Result<()> {
    let late = format!("redis-server did not answer within {START_WAIT:?}");
    process::await_answer(child, (START_WAIT, START_PAUSE), &late, || {
        ping(
            &state.server.namespace,
            Ipv4Addr::LOCALHOST.into(),
            state.redis_port,
        )
    })
}

/// Sends one PING from namespace `from`; an error unless Redis says that it is there (a password
/// set with --redis-arg makes it answer NOAUTH, which counts).
pub fn ping(from: &str, address: IpAddr, port: u16) -> Result<()> {
    let address = SocketAddr::new(address, port);
    let answer = netns::run_in(from, || {
        let mut stream = TcpStream::connect_timeout(&address, PING_WAIT)?;
        stream.set_read_timeout(Some(PING_WAIT))?;
        stream.set_write_timeout(Some(PING_WAIT))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 256];
        let count = stream.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..count]).into_owned())
    })
    .with_context(|| format!("no answer to PING from {address}"))?;
    if answer.starts_with("+PONG") || answer.starts_with("-NOAUTH") {
        return Ok(());
    }
    bail!("{address} answered PING with {:?}", answer.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_parsed() {
        let arg: RedisArg = "maxmemory-policy=allkeys-lru".parse().unwrap();
        assert_eq!(
            (arg.key.as_str(), arg.value.as_str()),
            ("maxmemory-policy", "allkeys-lru")
        );
        let arg: RedisArg = "save=".parse().unwrap();
        assert_eq!((arg.key.as_str(), arg.value.as_str()), ("save", ""));
        assert_eq!("requirepass=a=b".parse::<RedisArg>().unwrap().value, "a=b");
    }

    #[test]
    fn what_would_break_the_lab_is_refused() {
        for bad in [
            "port=1",
            "PORT=1",
            "dir=/",
            "bind=::1",
            "daemonize=yes",
            "include=x",
        ] {
            let error = bad.parse::<RedisArg>().unwrap_err().to_string();
            assert!(
                error.contains("cannot be changed in the lab"),
                "{bad}: {error}"
            );
        }
        for bad in ["", "maxmemory", "=1", "--port=1", "a b=1", "a\n=1"] {
            assert!(bad.parse::<RedisArg>().is_err(), "{bad:?} was accepted");
        }
    }
}
