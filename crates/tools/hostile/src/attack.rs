// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the hostile and the silly do, each on a thread of its own until it is told to end.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::ValueEnum;
use erb_check::net::{self, Conn};
use erb_check::resp;
use erb_lab::netns;
use nix::sys::resource::{Resource, getrlimit};
use serde::Serialize;

use crate::forge::Forger;
use crate::honest::{KEYS, key};
use crate::stage::{PASSWORD, STALL, Stage};

/// Connections of the crowd.
const CROWD: usize = 20_000;
/// File descriptors beside them, here and in Redis.
const OTHER_FILES: u64 = 1_000;
/// The crowd's address: another client than the honest ones.
const CROWD_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);
/// Ten a second.
const SCRIPT_PAUSE: Duration = Duration::from_millis(100);
/// Forged segments come a hundred a second.
const FORGE_PAUSE: Duration = Duration::from_millis(10);
/// Pause of who has nothing to do but to hold on.
const HOLD_PAUSE: Duration = Duration::from_millis(20);
/// How long an attack may take to be in place, with as many connections as a crowd has.
const READY_WAIT: Duration = Duration::from_secs(60);

/// The attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attack {
    /// One connection without a password sends half an EVAL and nothing more.
    HalfEval,
    /// One connection without a password sends a command that ERB cannot read, half of another, and nothing more.
    HalfUnread,
    /// One connection without a password sends ten EVAL a second.
    UnauthenticatedEval,
    /// One connection without a password sends ten commands a second that nobody knows.
    UnauthenticatedUnknown,
    /// One connection without a password begins a SET of each of 32 keys' sets and ends none.
    HalfSets,
    /// Somebody off the path sends a hundred forged segments a second.
    OffPath,
    /// One client does not read the 20 MB that its script returns.
    SlowReader,
    /// One client has 20,000 connections.
    Crowd,
    /// One client runs ten scripts a second.
    Scripts,
}

impl Attack {
    /// Those that were chosen, or all.
    pub fn chosen(only: &[Self]) -> Vec<Self> {
        if only.is_empty() {
            Self::value_variants().to_vec()
        } else {
            only.to_vec()
        }
    }

    /// Its word on the command line.
    pub fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// What is done.
    pub fn sentence(self) -> String {
        self.to_possible_value()
            .and_then(|value| value.get_help().map(ToString::to_string))
            .unwrap_or_default()
    }
}

/// Where attacks happen.
#[derive(Clone)]
pub struct Ground {
    namespace: String,
    device: String,
    server: SocketAddr,
    victims: Vec<SocketAddrV4>,
    seed: u64,
}

/// An attack under way.
pub struct Running {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64>>,
}

impl Running {
    /// Ends it; what it has sent or opened.
    pub fn end(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_| anyhow!("the attacker panicked"))?
    }
}

/// What an attacker looks at: whether to go on, and to say that it is in place.
struct Signals {
    stop: Arc<AtomicBool>,
    ready: Arc<AtomicBool>,
}

impl Signals {
    fn goes_on(&self) -> bool {
        self.ready.store(true, Ordering::Relaxed);
        !self.stop.load(Ordering::Relaxed)
    }
}

impl Ground {
    /// The stage's client end, whose honest clients have these addresses.
    pub fn new(stage: &Stage<'_>, clients: Vec<SocketAddr>, seed: u64) -> Result<Self> {
        let state = stage.state()?;
        let victims = clients.into_iter().filter_map(|client| match client {
            SocketAddr::V4(client) => Some(client),
            SocketAddr::V6(_) => None,
        });
        Ok(Self {
            namespace: state.client.namespace.clone(),
            device: state.client.device.clone(),
            server: stage.address()?,
            victims: victims.collect(),
            seed,
        })
    }

    /// Starts an attack; it is in place when this returns.
    pub fn begin(&self, attack: Attack) -> Result<Running> {
        let stop = Arc::new(AtomicBool::new(false));
        let ready = Arc::new(AtomicBool::new(false));
        let signals = Signals {
            stop: Arc::clone(&stop),
            ready: Arc::clone(&ready),
        };
        let ground = self.clone();
        let thread = thread::spawn(move || {
            let namespace = ground.namespace.clone();
            netns::run_in(&namespace, || ground.attack(attack, &signals))
        });
        let running = Running { stop, thread };
        let steps = READY_WAIT.as_millis() / HOLD_PAUSE.as_millis();
        for _ in 0..steps {
            if ready.load(Ordering::Relaxed) {
                return Ok(running);
            }
            if running.thread.is_finished() {
                break;
            }
            thread::sleep(HOLD_PAUSE);
        }
        running.end()?;
        bail!("it was not in place within {READY_WAIT:?}")
    }

    fn attack(&self, attack: Attack, signals: &Signals) -> Result<u64> {
        match attack {
            Attack::HalfEval => self.half(signals, &[b"*3\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n"]),
            // Redis does not look at the two bytes behind an argument.
            Attack::HalfUnread => self.half(signals, &[b"*1\r\n$4\r\nPINGXY*2\r\n$3\r\nGET\r\n"]),
            Attack::HalfSets => {
                let begins: Vec<Vec<u8>> = (KEYS - 32..KEYS).map(|n| half_set(&key(n))).collect();
                let begins: Vec<&[u8]> = begins.iter().map(Vec::as_slice).collect();
                self.half(signals, &begins)
            }
            Attack::UnauthenticatedEval => self.scripts(signals, false),
            Attack::UnauthenticatedUnknown => self.unknown(signals),
            Attack::Scripts => self.scripts(signals, true),
            Attack::OffPath => self.forge(signals),
            Attack::SlowReader => self.slow_reader(signals),
            Attack::Crowd => self.crowd(signals),
        }
    }

    /// One connection per beginning of a command, which never ends.
    fn half(&self, signals: &Signals, begins: &[&[u8]]) -> Result<u64> {
        let mut held = Vec::new();
        for begin in begins {
            let mut conn = Conn::connect(self.server, STALL)?;
            conn.send(begin)?;
            held.push(conn);
        }
        while signals.goes_on() {
            thread::sleep(HOLD_PAUSE);
        }
        Ok(held.len() as u64)
    }

    fn scripts(&self, signals: &Signals, authenticated: bool) -> Result<u64> {
        let mut conn = Conn::connect(self.server, STALL)?;
        if authenticated {
            conn.call(&["AUTH", PASSWORD])?;
        }
        let mut sent = 0;
        while signals.goes_on() {
            let script = "return redis.call('SET', KEYS[1], ARGV[1])";
            let reply = conn.call(&["EVAL", script, "1", "hostile", &sent.to_string()])?;
            let wanted: &[u8] = if authenticated { b"+OK" } else { b"-NOAUTH" };
            ensure!(
                reply.starts_with(wanted),
                "EVAL was answered {}",
                resp::show(&reply, 80)
            );
            sent += 1;
            thread::sleep(SCRIPT_PAUSE);
        }
        Ok(sent)
    }

    fn unknown(&self, signals: &Signals) -> Result<u64> {
        let mut conn = Conn::connect(self.server, STALL)?;
        let mut sent = 0;
        while signals.goes_on() {
            let reply = conn.call(&["NOSUCHCOMMAND", &sent.to_string()])?;
            ensure!(
                reply.starts_with(b"-"),
                "an unknown command was answered {}",
                resp::show(&reply, 80)
            );
            sent += 1;
            thread::sleep(SCRIPT_PAUSE);
        }
        Ok(sent)
    }

    fn forge(&self, signals: &Signals) -> Result<u64> {
        let SocketAddr::V4(server) = self.server else {
            bail!("the lab's server has no IPv4 address")
        };
        let mut forger = Forger::new(server, self.victims.clone(), self.seed)?;
        let mut sent = 0;
        while signals.goes_on() {
            sent = forger.send_next()?;
            thread::sleep(FORGE_PAUSE);
        }
        Ok(sent)
    }

    fn slow_reader(&self, signals: &Signals) -> Result<u64> {
        let mut conn = Conn::connect(self.server, STALL)?;
        conn.call(&["AUTH", PASSWORD])?;
        let script = "return string.rep('x', 20 * 1024 * 1024)";
        conn.send(&resp::command(&["EVAL", script, "0"]))?;
        while signals.goes_on() {
            thread::sleep(HOLD_PAUSE);
        }
        Ok(1)
    }

    fn crowd(&self, signals: &Signals) -> Result<u64> {
        let crowd = crowd_size()?;
        let added = Command::new("ip")
            .args(["address", "add", &format!("{CROWD_ADDRESS}/24"), "dev"])
            .arg(&self.device)
            .output()
            .context("cannot run `ip`")?;
        ensure!(
            added.status.success(),
            "`ip address add` failed: {}",
            String::from_utf8_lossy(&added.stderr).trim()
        );
        let mut held = Vec::new();
        for _ in 0..crowd {
            let from = Some(IpAddr::V4(CROWD_ADDRESS));
            let mut conn = Conn::connect_from(self.server, from, STALL)?;
            conn.send(&resp::command(&["GET", &key(0)]))?;
            held.push(conn);
            if signals.stop.load(Ordering::Relaxed) {
                break;
            }
        }
        let mut next = 0;
        while signals.goes_on() {
            // Silly rather than silent: each asks again now and then.
            next = (next + 1) % held.len();
            held[next].send(&resp::command(&["GET", &key(0)]))?;
            thread::sleep(HOLD_PAUSE);
        }
        Ok(held.len() as u64)
    }
}

/// As many connections as this process and Redis may have files open: where not even root may raise
/// the limit, fewer.
fn crowd_size() -> Result<usize> {
    let wanted = CROWD as u64 + OTHER_FILES;
    if net::raise_file_limit(wanted).is_ok() {
        return Ok(CROWD);
    }
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).context("limit of open files")?;
    net::raise_file_limit(most)?;
    let crowd = most.saturating_sub(OTHER_FILES);
    eprintln!("hostile: {crowd} connections, as no process may have more than {most} files open");
    Ok(usize::try_from(crowd)?)
}

/// A SET of which the value's last bytes are missing.
fn half_set(key: &str) -> Vec<u8> {
    format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n$100\r\nhalf", key.len()).into_bytes()
}
