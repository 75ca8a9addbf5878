// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An unmodified redis-server in a namespace of the bench.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use erb_lab::RedisArg;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::cputime;
use crate::interrupt::Interrupt;
use crate::netns::SERVER_IP;
use crate::work::Work;

/// Redis's own port.
pub const PORT: u16 = 6379;
/// Redis starts in well under a second, on a busy machine too.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Tens of thousands are let go of in a second.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Commands per pipeline when keys are loaded: big enough to hide the round trip.
const LOAD_BATCH: u32 = 1000;

/// Files that are open beside connections: programs, maps, devices, the log.
const FILES: u64 = 500;
/// Clients that Redis takes if it is not told.
const MAXCLIENTS: u32 = 10_000;
/// Clients of Redis that are none of the measurement's: the daemon, and the bench itself.
pub const OTHER_CLIENTS: u32 = 100;
/// Connections that wait for Redis to accept them: all may come at once.
const BACKLOG: u32 = 4096;

/// What a server is started as.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// Settings beyond the bench's own.
    pub settings: Vec<RedisArg>,
}

impl Launch {
    /// With room for so many clients, all of which may come at once.
    pub fn for_clients(program: PathBuf, conns: u32) -> Result<Self> {
        let clients = MAXCLIENTS.max(conns + OTHER_CLIENTS);
        let settings = [
            format!("maxclients={clients}"),
            format!("tcp-backlog={BACKLOG}"),
        ];
        let settings = settings.iter().map(|setting| setting.parse());
        Ok(Self {
            program,
            settings: settings.collect::<Result<_, _>>()?,
        })
    }
}

/// Lets this process have so many connections, and each server that it starts.
pub fn make_room(conns: u32) -> Result<()> {
    erb_check::net::raise_file_limit(u64::from(conns) + FILES)
        .with_context(|| format!("--conns {conns} is too many here"))
}

/// A running redis-server and its folder; both gone when dropped.
#[derive(Debug)]
pub struct RedisServer {
    child: Child,
    dir: TempDir,
}

impl RedisServer {
    /// Starts it on this processor, with so many keys of the work in it and room for so many connections.
    pub fn loaded(
        netns: &str,
        core: usize,
        work: &Work,
        [keys, conns]: [u32; 2],
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let launch = Launch::for_clients("redis-server".into(), conns)?;
        let redis = Self::start(netns, &[core], &launch, interrupt)?;
        redis.load(keys, |index| work.store(index), interrupt)?;
        Ok(redis)
    }

    /// Starts it on these processors, with appendonly yes, everysec, and waits until it answers.
    pub fn start(
        netns: &str,
        cores: &[usize],
        launch: &Launch,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("erb-bench-")
            .tempdir()
            .context("no folder")?;
        let log = fs::File::create(dir.path().join("redis.log"))?;
        let mut command = erb_lab::netns::command(netns, &launch.program)?;
        command.args([
            "--port",
            &PORT.to_string(),
            "--bind",
            "127.0.0.1",
            &SERVER_IP.to_string(),
        ]);
        command.args([
            "--protected-mode",
            "no",
            "--save",
            "",
            "--unixsocket",
            "redis.sock",
        ]);
        command.args(["--appendonly", "yes", "--appendfsync", "everysec"]);
        // No rewrite in the middle of a run; no probes towards a client that is only a program.
        command.args(["--auto-aof-rewrite-percentage", "0", "--tcp-keepalive", "0"]);
        command.arg("--dir").arg(dir.path());
        command.args(launch.settings.iter().flat_map(RedisArg::words));
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        command.current_dir(dir.path());
        // SAFETY: prctl is async-signal-safe and allocates nothing.
        unsafe {
            command.pre_exec(|| {
                // A new group: Ctrl-C reaches the bench first, which then ends Redis.
                nix::unistd::setpgid(nix::unistd::Pid::from_raw(0), nix::unistd::Pid::from_raw(0))?;
                prctl::set_pdeathsig(Signal::SIGKILL).map_err(Into::into)
            });
        }
        let child = command.spawn().context("could not run redis-server")?;
        let mut server = Self { child, dir };
        server.wait_until_ready(interrupt)?;
        cputime::pin_to(server.pid(), cores)?;
        Ok(server)
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where clients reach it over the veth.
    pub fn address() -> SocketAddr {
        SocketAddr::from((SERVER_IP, PORT))
    }

    /// Its unix socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    /// A connection over its unix socket, past the measured path.
    pub fn connect(&self) -> Result<redis::Connection> {
        let socket = self.socket();
        let url = format!("unix://{}", socket.display());
        let client = redis::Client::open(url).context("bad socket path")?;
        client
            .get_connection()
            .with_context(|| format!("could not connect to {}", socket.display()))
    }

    /// Stores what the first `keys` keys hold.
    pub fn load(
        &self,
        keys: u32,
        store: impl Fn(u32) -> redis::Cmd,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let mut connection = self.connect()?;
        for first in (0..keys).step_by(LOAD_BATCH as usize) {
            interrupt.check()?;
            let mut pipe = redis::pipe();
            for index in first..keys.min(first.saturating_add(LOAD_BATCH)) {
                pipe.add_command(store(index)).ignore();
            }
            pipe.query::<()>(&mut connection)
                .with_context(|| format!("could not load keys from number {first} on"))?;
        }
        Ok(())
    }

    /// Waits until no more clients than these are left: Redis lets go of those who left one by one.
    pub fn wait_for_leaving(&self, left: u64, interrupt: &Interrupt) -> Result<()> {
        let end = Instant::now() + LEAVE_TIMEOUT;
        let mut connection = self.connect()?;
        loop {
            let info: String = redis::cmd("INFO")
                .arg("clients")
                .query(&mut connection)
                .context("INFO clients failed")?;
            let clients = parse_clients(&info).context("INFO clients has no connected_clients")?;
            if clients <= left {
                return Ok(());
            }
            ensure!(
                Instant::now() < end,
                "Redis still has {clients} clients, {} s after they left",
                LEAVE_TIMEOUT.as_secs()
            );
            interrupt.sleep(Duration::from_millis(20))?;
        }
    }

    /// Commands of this name that Redis itself has answered since its start.
    pub fn calls(&self, command: &str) -> Result<u64> {
        let mut connection = self.connect()?;
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query(&mut connection)
            .context("INFO commandstats failed")?;
        Ok(parse_calls(&info, command))
    }

    fn wait_until_ready(&mut self, interrupt: &Interrupt) -> Result<()> {
        let end = Instant::now() + START_TIMEOUT;
        loop {
            let pong = self.connect().and_then(|mut connection| {
                redis::cmd("PING")
                    .query::<String>(&mut connection)
                    .context("PING failed")
            });
            let Err(error) = pong else { return Ok(()) };
            let ended = self.child.try_wait()?;
            if ended.is_some() || Instant::now() > end {
                let log = fs::read_to_string(self.dir.path().join("redis.log")).unwrap_or_default();
                bail!("redis-server did not start ({ended:?}, {error:#}); it said:\n{log}");
            }
            interrupt.sleep(Duration::from_millis(20))?;
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // Its data are worthless; a clean shutdown would only write them out.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Clients in `INFO clients`.
fn parse_clients(info: &str) -> Option<u64> {
    let mut lines = info.lines();
    lines.find_map(|line| line.strip_prefix("connected_clients:")?.parse().ok())
}

/// Calls of one command in `INFO commandstats`; 0 if it was never called.
fn parse_calls(info: &str, command: &str) -> u64 {
    let prefix = format!("cmdstat_{command}:calls=");
    info.lines()
        .find_map(|line| line.strip_prefix(&prefix)?.split(',').next()?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{parse_calls, parse_clients};

    #[test]
    fn clients_are_read_from_info() {
        let info = "# Clients\r\nconnected_clients:12\r\ncluster_connections:0\r\n";
        assert_eq!(parse_clients(info), Some(12));
        assert_eq!(parse_clients("# Clients\r\n"), None);
    }

    #[test]
    fn calls_are_read_from_commandstats() {
        let info = "# Commandstats\r\ncmdstat_getex:calls=5,usec=1\r\n\
                    cmdstat_get:calls=1234,usec=99,usec_per_call=0.1\r\n";
        assert_eq!(parse_calls(info, "get"), 1234);
        assert_eq!(parse_calls(info, "set"), 0);
    }
}
