// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a lab consists of, and the file that remembers it.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::process::Process;

/// Run directories of all labs.
pub const RUN_ROOT: &str = "/run/erb/lab";
/// Name of the lab unless one is given.
pub const NAME_DEFAULT: &str = "erb";
/// Longest name: it is part of file and namespace names that people type.
pub const NAME_BYTES_MAX: usize = 24;

/// Name of a lab: small letters, digits and dashes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LabName(String);

impl LabName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Prefix of its namespaces: "erb" for the lab of that name, "erb-NAME" for any other.
    pub fn prefix(&self) -> String {
        if self.0 == NAME_DEFAULT {
            self.0.clone()
        } else {
            format!("erb-{}", self.0)
        }
    }

    /// Full name of one of its namespaces.
    pub fn namespace(&self, end: End) -> String {
        format!("{}-{}", self.prefix(), end.as_str())
    }

    /// Where the lab keeps its state, logs and sockets.
    pub fn run_dir(&self) -> PathBuf {
        Path::new(RUN_ROOT).join(&self.0)
    }

    /// Where its Redis keeps its log: not under /run, which is memory on most machines, so that
    /// appendfsync costs what it costs elsewhere.
    pub fn redis_dir(&self) -> PathBuf {
        Path::new("/var/tmp").join(format!("erb-lab-{}", self.0))
    }
}

impl Default for LabName {
    fn default() -> Self {
        Self(NAME_DEFAULT.to_owned())
    }
}

impl FromStr for LabName {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let ok = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let starts = name
            .bytes()
            .next()
            .is_some_and(|byte| ok(byte) && byte != b'-');
        if !starts || name.len() > NAME_BYTES_MAX || !name.bytes().all(ok) {
            bail!(
                "bad lab name `{name}`: 1 to {NAME_BYTES_MAX} small letters, digits and dashes, \
                 not starting with a dash"
            );
        }
        Ok(Self(name.to_owned()))
    }
}

impl TryFrom<String> for LabName {
    type Error = anyhow::Error;

    fn try_from(name: String) -> Result<Self> {
        name.parse()
    }
}

impl From<LabName> for String {
    fn from(name: LabName) -> Self {
        name.0
    }
}

/// One of the namespaces of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum End {
    /// Where clients run.
    Client,
    /// Where redis-server runs.
    Server,
    /// The box between them.
    Middle,
}

impl End {
    /// Its name on the command line and in namespace names.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
            Self::Middle => "middle",
        }
    }
}

/// Modes of a boost, for what always has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answers {
    /// Reads; every write goes to Redis.
    Read,
    /// SETs too, on the server's loopback as well.
    WriteBack,
}

impl Answers {
    /// The mode of such a lab.
    #[must_use]
    pub const fn of_lab(self) -> Mode {
        match self {
            Self::Read => Mode::Read,
            Self::WriteBack => Mode::WriteBack,
        }
    }
}

/// Whether the lab's Redis is boosted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Redis alone.
    #[default]
    Off,
    /// ERB answers reads, every write goes up.
    Read,
    /// ERB answers SETs too, on the server's device and its loopback.
    WriteBack,
}

impl Mode {
    /// Whether there is an ERB.
    #[must_use]
    pub fn is_boosted(self) -> bool {
        self != Self::Off
    }
}

/// What the server's end has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// redis-server, or one like it.
    #[default]
    Redis,
    /// A storage node, `erb node`.
    Node,
}

/// How far `up` got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Being made, or left half-made by an `up` that crashed.
    Starting,
    /// Complete.
    Up,
}

/// One end of the line: the client's or the server's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndState {
    /// Network namespace, as in `ip netns exec NAMESPACE`.
    pub namespace: String,
    /// Its veth device.
    pub device: String,
    /// The device's hardware address.
    pub mac: String,
    /// Its IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Its IPv6 address.
    pub ipv6: Ipv6Addr,
}

/// The middle box.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MiddleState {
    /// Its network namespace.
    pub namespace: String,
    /// Its device towards the client.
    pub client_device: String,
    /// Its device towards the server.
    pub server_device: String,
    /// Unix socket on which its forwarder takes commands.
    pub control_socket: PathBuf,
}

/// Everything a lab consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabState {
    /// The lab's name.
    pub name: LabName,
    /// How far it got.
    pub phase: Phase,
    /// Whether Redis is boosted.
    pub mode: Mode,
    /// The client's end.
    pub client: EndState,
    /// The server's end.
    pub server: EndState,
    /// The middle box; none with `--direct`.
    pub middle: Option<MiddleState>,
    /// What the server is.
    #[serde(default)]
    pub kind: Kind,
    /// Port of the server.
    pub redis_port: u16,
    /// What starts the server.
    pub redis_program: PathBuf,
    /// Processes that the lab started, in the order of their start.
    pub processes: Vec<Process>,
    /// State, logs, sockets.
    pub run_dir: PathBuf,
    /// Redis's working directory, or where the node's store lies.
    pub redis_dir: PathBuf,
    /// A bpffs of the lab's own, for pins (`ip netns exec` hides /sys/fs/bpf).
    pub bpf_dir: PathBuf,
}

/// Name of the file in the run directory.
const STATE_FILE: &str = "state.json";

impl LabState {
    /// The namespace of `end`; an error if the lab has none (`middle` with --direct).
    pub fn namespace(&self, end: End) -> Result<&str> {
        match (end, &self.middle) {
            (End::Client, _) => Ok(&self.client.namespace),
            (End::Server, _) => Ok(&self.server.namespace),
            (End::Middle, Some(middle)) => Ok(&middle.namespace),
            (End::Middle, None) => bail!(
                "lab {} has no middle box: it was made with --direct",
                self.name.as_str()
            ),
        }
    }

    /// The process with that role, if the lab has one.
    pub fn process(&self, role: &str) -> Option<&Process> {
        self.processes.iter().find(|process| process.role == role)
    }

    /// Reads the state of lab `name`; None if there is no such lab.
    pub fn load(name: &LabName) -> Result<Option<Self>> {
        let path = name.run_dir().join(STATE_FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let state = serde_json::from_str(&text).with_context(|| {
            format!(
                "{} is damaged; `erb lab down` removes the lab all the same",
                path.display()
            )
        })?;
        Ok(Some(state))
    }

    /// Writes the state so that a reader sees the old or the new one, never a part.
    pub fn save(&self) -> Result<()> {
        let path = self.run_dir.join(STATE_FILE);
        let new = self.run_dir.join("state.json.new");
        fs::write(&new, serde_json::to_vec_pretty(self)?)
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["erb", "a", "t-1", "0", "a23456789012345678901234"] {
            assert!(good.parse::<LabName>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "-a",
            "A",
            "a b",
            "a/b",
            "..",
            "a.b",
            "a234567890123456789012345",
            "ä",
        ] {
            assert!(bad.parse::<LabName>().is_err(), "{bad} was accepted");
        }
        assert!(serde_json::from_str::<LabName>("\"../x\"").is_err());
    }

    #[test]
    fn names_of_two_labs_never_meet() {
        let namespaces = |name: &str| {
            let name: LabName = name.parse().unwrap();
            [End::Client, End::Server, End::Middle].map(|end| name.namespace(end))
        };
        assert_eq!(
            namespaces("erb"),
            ["erb-client", "erb-server", "erb-middle"]
        );
        let mut all: Vec<String> = ["erb", "client", "erb-client", "x"]
            .iter()
            .flat_map(|name| namespaces(name))
            .collect();
        all.sort();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
