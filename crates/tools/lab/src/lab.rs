// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bringing a lab up and using it.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::mount::{MsFlags, mount};
use serde::{Deserialize, Serialize};

use crate::control::{self, LinkReport, Request};
use crate::erb::{Erb, beside};
use crate::netns;
use crate::node;
use crate::process::{self, Process};
use crate::redis::{self, RedisArg};
use crate::servers::Serves;
use crate::settings::LinkChange;
use crate::state::{End, EndState, Kind, LabName, LabState, MiddleState, Mode, Phase, RUN_ROOT};
use crate::teardown::{self, DownReport};
use crate::topology;

/// Longest wait for the forwarder to listen.
const FORWARDER_WAIT: Duration = Duration::from_secs(10);
/// Pause between two tries.
const FORWARDER_PAUSE: Duration = Duration::from_millis(5);
/// Role of the forwarder in the state.
const FORWARDER_ROLE: &str = "forwarder";
/// What leads to it on the command line of `erb-lab`.
const FORWARDER_WORDS: [&str; 2] = ["lab", "__forward"];
/// Cache of a lab: small enough to be filled in a test.
const CACHE_SIZE: &str = "64M";
/// Connections of a lab, whatever its Redis is set to.
const CONNECTIONS: &str = "16384";
/// Tries to make the run directory while another lab's `down` removes the empty parent.
const RUN_DIR_TRIES: u32 = 5;

/// What a lab shall be.
#[derive(Clone, Debug)]
pub struct LabConfig {
    /// Its name.
    pub name: LabName,
    /// No middle box: one veth pair, for measuring.
    pub direct: bool,
    /// Whether Redis is boosted.
    pub mode: Mode,
    /// Port of redis-server. A node has its own.
    pub redis_port: u16,
    /// More settings for redis-server.
    pub redis_args: Vec<RedisArg>,
    /// What it serves.
    pub server: Serves,
}

/// A lab that is up.
#[derive(Debug)]
pub struct Lab {
    state: LabState,
}

/// How a lab is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabStatus {
    /// What it consists of.
    pub lab: LabState,
    /// Roles of processes that should run and do not.
    pub dead: Vec<String>,
    /// Whether the server answers in its own namespace.
    pub redis_answers: bool,
    /// Settings and counters of the middle box, if there is one and it answers.
    pub link: Option<LinkReport>,
}

impl Lab {
    /// Makes a lab and waits until the client reaches Redis; on failure nothing is left of it.
    pub fn up(config: &LabConfig, erb: &Erb) -> Result<Self> {
        require_root()?;
        if config.redis_port == 0 {
            bail!("redis port 0: give a port from 1 to 65535");
        }
        if config.mode.is_boosted() {
            erb.found()?;
        }
        if config.server == Serves::Node {
            node::refuse_what_is_redis(config)?;
        }
        let mut state = plan(config, erb)?;
        refuse_foreign(&state)?;
        claim_run_dir(&state)?;
        match make(&mut state, config, erb) {
            Ok(()) => Ok(Self { state }),
            Err(error) => match teardown::down(&config.name, erb) {
                Ok(_) => Err(error),
                Err(second) => Err(error.context(format!(
                    "`erb lab down --name {}` is needed, cleaning up failed as well: {second:#}",
                    config.name.as_str()
                ))),
            },
        }
    }

    /// The lab `name`, if it is up.
    pub fn open(name: &LabName) -> Result<Self> {
        let state = LabState::load(name)?.ok_or_else(|| {
            anyhow!(
                "there is no lab `{}`: make one with `erb lab up`",
                name.as_str()
            )
        })?;
        if state.phase != Phase::Up {
            bail!(
                "lab `{}` is half-made: wait for its `up`, or remove it with `erb lab down`",
                name.as_str()
            );
        }
        Ok(Self { state })
    }

    /// What it consists of.
    pub fn state(&self) -> &LabState {
        &self.state
    }

    /// A command that will run in the namespace `end`; see [`netns::command`].
    pub fn exec(&self, end: End, program: impl AsRef<OsStr>) -> Result<Command> {
        netns::command(self.state.namespace(end)?, program)
    }

    /// Changes what the middle box does; frames that come later meet the new settings.
    pub fn link(&self, change: impl Into<LinkChange>) -> Result<LinkReport> {
        control::ask(self.control_socket()?, Request::Set(change.into()))
    }

    /// What the middle box does and did.
    pub fn link_report(&self) -> Result<LinkReport> {
        control::ask(self.control_socket()?, Request::Get)
    }

    /// Takes all faults away and sets the counters to zero.
    pub fn link_reset(&self) -> Result<LinkReport> {
        control::ask(self.control_socket()?, Request::Reset)
    }

    fn control_socket(&self) -> Result<&Path> {
        // The same words as for `exec middle`.
        self.state.namespace(End::Middle)?;
        let middle = self.state.middle.as_ref().context("no middle box")?;
        Ok(&middle.control_socket)
    }

    /// How it is doing.
    pub fn status(&self) -> LabStatus {
        let state = &self.state;
        let dead = state.processes.iter().filter(|process| !process.is_alive());
        LabStatus {
            lab: state.clone(),
            dead: dead.map(|process| process.role.clone()).collect(),
            redis_answers: answers(state, &state.server.namespace, state.server.ipv4.into())
                .is_ok(),
            link: self.link_report().ok(),
        }
    }

    /// Removes it: processes, namespaces, mounts, files.
    pub fn down(self, erb: &Erb) -> Result<DownReport> {
        teardown::down(&self.state.name, erb)
    }
}

/// An error unless the server answers whoever asks it from namespace `from`.
fn answers(state: &LabState, from: &str, address: IpAddr) -> Result<()> {
    match state.kind {
        Kind::Redis => redis::ping(from, address, state.redis_port),
        Kind::Node => node::ask(from, &state.redis_program, address, state.redis_port),
    }
}

pub(crate) fn require_root() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("the lab makes network namespaces: run it as root (sudo)");
    }
    Ok(())
}

/// Names and addresses of everything, before anything is made.
fn plan(config: &LabConfig, erb: &Erb) -> Result<LabState> {
    let name = &config.name;
    let (kind, program, port) = match config.server {
        Serves::Redis(server) => (Kind::Redis, server.program()?, config.redis_port),
        Serves::Node => (Kind::Node, erb.found()?.to_owned(), node::PORT),
    };
    let run_dir = name.run_dir();
    Ok(LabState {
        name: name.clone(),
        phase: Phase::Starting,
        mode: config.mode,
        client: EndState {
            namespace: name.namespace(End::Client),
            device: topology::CLIENT_DEVICE.to_owned(),
            mac: topology::format_mac(topology::CLIENT_MAC),
            ipv4: topology::CLIENT_IPV4,
            ipv6: topology::CLIENT_IPV6,
        },
        server: EndState {
            namespace: name.namespace(End::Server),
            device: topology::SERVER_DEVICE.to_owned(),
            mac: topology::format_mac(topology::SERVER_MAC),
            ipv4: topology::SERVER_IPV4,
            ipv6: topology::SERVER_IPV6,
        },
        middle: (!config.direct).then(|| MiddleState {
            namespace: name.namespace(End::Middle),
            client_device: topology::MIDDLE_CLIENT_DEVICE.to_owned(),
            server_device: topology::MIDDLE_SERVER_DEVICE.to_owned(),
            control_socket: run_dir.join("link.sock"),
        }),
        kind,
        redis_port: port,
        processes: Vec::new(),
        redis_program: program,
        redis_dir: name.redis_dir(),
        bpf_dir: run_dir.join("bpf"),
        run_dir,
    })
}

/// Refuses names that are taken by something that is no lab, before anything is made: what fails
/// later is cleaned up by name.
fn refuse_foreign(state: &LabState) -> Result<()> {
    if state.run_dir.exists() {
        // A lab, up or half-made: claim_run_dir says so.
        return Ok(());
    }
    let middle = state.middle.as_ref().map(|middle| &middle.namespace);
    let namespaces = [&state.client.namespace, &state.server.namespace]
        .into_iter()
        .chain(middle);
    let paths = namespaces
        .map(|namespace| netns::path(namespace))
        .chain([state.redis_dir.clone()]);
    for path in paths {
        if path.exists() {
            bail!(
                "{} is there already, though no lab `{}` is up: choose another --name, or remove \
                 it with `erb lab down` if it is a lab's",
                path.display(),
                state.name.as_str()
            );
        }
    }
    Ok(())
}

/// Makes the run directory, which is what says that the name is taken.
fn claim_run_dir(state: &LabState) -> Result<()> {
    let name = state.name.as_str();
    let mut tries = RUN_DIR_TRIES;
    loop {
        fs::create_dir_all(RUN_ROOT).with_context(|| format!("cannot make {RUN_ROOT}"))?;
        match DirBuilder::new().mode(0o700).create(&state.run_dir) {
            Ok(()) => break,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!(
                "lab `{name}` is up already, or half-made ({} is there): look at it with \
                 `erb lab status`, remove it with `erb lab down`, or choose another --name",
                state.run_dir.display()
            ),
            Err(error) if error.kind() == ErrorKind::NotFound && tries > 0 => tries -= 1,
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("cannot make {}", state.run_dir.display()));
            }
        }
    }
    Ok(())
}

/// The steps of `up`; the caller cleans up if one fails.
fn make(state: &mut LabState, config: &LabConfig, erb: &Erb) -> Result<()> {
    state.save()?;
    mount_bpf(&state.bpf_dir)?;
    // Not create_dir_all: /var/tmp is everybody's, a directory that is there is somebody's else.
    DirBuilder::new()
        .mode(0o700)
        .create(&state.redis_dir)
        .with_context(|| format!("cannot make {}", state.redis_dir.display()))?;
    topology::build(&state.client, &state.server, state.middle.as_ref())?;
    if let Some(middle) = state.middle.clone() {
        start_forwarder(state, &middle)?;
    }
    match state.kind {
        Kind::Redis => redis::start(state, &config.redis_args)?,
        Kind::Node => node::start(state)?,
    }
    for address in [state.server.ipv4.into(), state.server.ipv6.into()] {
        answers(state, &state.client.namespace, address)
            .context("the client does not reach the server through the lab's devices")?;
    }
    if config.mode.is_boosted() {
        let pid = boost(state, erb).context("cannot boost the lab's Redis")?;
        state.processes.push(Process::describe("erb", pid)?);
    }
    state.phase = Phase::Up;
    state.save()
}

/// Boosts the lab's Redis; the daemon's process id.
fn boost(lab: &LabState, erb: &Erb) -> Result<u32> {
    let boost = erb.boost_of(lab);
    let redis = format!("{}:{}", lab.server.ipv4, lab.redis_port);
    let mut words = vec![
        "--dev",
        &lab.server.device,
        "--redis",
        &redis,
        "--cache-size",
        CACHE_SIZE,
        "--connections",
        CONNECTIONS,
    ];
    if lab.mode == Mode::WriteBack {
        // All clients are to be seen.
        words.extend(["--dev", "lo", "--mode", "write-back"]);
    }
    boost.begin(&words)?;
    Ok(boost.status()?.pid)
}

fn mount_bpf(dir: &Path) -> Result<()> {
    fs::create_dir(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    mount(
        Some("bpf"),
        dir,
        Some("bpf"),
        MsFlags::empty(),
        Some("mode=0700"),
    )
    .with_context(|| format!("cannot mount a bpffs at {}", dir.display()))
}

/// Starts the forwarder in the middle namespace and waits until it answers.
fn start_forwarder(state: &mut LabState, middle: &MiddleState) -> Result<()> {
    let log_path = state.run_dir.join("forward.log");
    let program = beside("erb-lab")?;
    let mut command = netns::command(&middle.namespace, &program)?;
    command
        .args(FORWARDER_WORDS)
        .args([&middle.client_device, &middle.server_device])
        .arg(&middle.control_socket);
    process::log_to(&mut command, &log_path)?;
    let mut child = process::detach(&mut command)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let explain = |error| process::with_log(error, "the forwarder", &log_path);
    state
        .processes
        .push(Process::describe(FORWARDER_ROLE, child.id()).map_err(explain)?);
    state.save()?;
    wait_for_forwarder(&mut child, &middle.control_socket).map_err(explain)
}

fn wait_for_forwarder(child: &mut Child, socket: &Path) -> Result<()> {
    let late = "the forwarder did not come up";
    process::await_answer(child, (FORWARDER_WAIT, FORWARDER_PAUSE), late, || {
        control::ask(socket, Request::Get).map(drop)
    })
}
