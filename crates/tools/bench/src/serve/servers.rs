// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The servers that are measured, as processes of their own.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use erb_lab::nginx::{Nginx, OpenFiles};
use erb_lab::{Erb, netns};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::cputime;
use crate::netns::{Pair, SERVER_IP};
use crate::serve::Kind;

/// A server listens after a fraction of this.
const START_TIME: Duration = Duration::from_secs(10);

/// A server at work; ended when dropped.
pub struct Running {
    pub address: SocketAddr,
    process: Process,
    _dir: TempDir,
}

enum Process {
    Erb(Child),
    Nginx(Nginx),
}

impl Running {
    /// Starts it in the server's namespace, on one processor, and waits until it listens.
    pub fn start(
        kind: Kind,
        (erb, nginx): (&Erb, Option<&Path>),
        pair: &Pair,
        root: &Path,
        port: u16,
        core: usize,
    ) -> Result<Self> {
        let address = SocketAddr::from((SERVER_IP, port));
        let dir = tempfile::Builder::new().prefix("erb-bench-").tempdir()?;
        let process = match (kind, nginx) {
            (Kind::Erb, _) => Process::Erb(serve(erb, pair, root, address)?),
            (_, None) => bail!("no nginx was looked for"),
            (kind, Some(program)) => {
                let files = match kind {
                    Kind::NginxKept => OpenFiles::Kept,
                    _ => OpenFiles::Each,
                };
                let command = netns::command(&pair.server, program)?;
                Process::Nginx(Nginx::start(command, dir.path(), root, address, files)?)
            }
        };
        let mut running = Self {
            address,
            process,
            _dir: dir,
        };
        running.wait_until_it_listens(pair)?;
        for pid in running.pids()? {
            cputime::pin(pid, core)?;
        }
        Ok(running)
    }

    /// Its processes.
    pub fn pids(&self) -> Result<Vec<u32>> {
        match &self.process {
            Process::Erb(child) => Ok(vec![child.id()]),
            Process::Nginx(nginx) => nginx.pids(),
        }
    }

    fn wait_until_it_listens(&mut self, pair: &Pair) -> Result<()> {
        let end = Instant::now() + START_TIME;
        let address = self.address;
        while netns::run_in(&pair.client, || Ok(TcpStream::connect(address)?)).is_err() {
            let ended = match &mut self.process {
                Process::Erb(child) => child.try_wait()?,
                Process::Nginx(_) => None,
            };
            if ended.is_some() || Instant::now() > end {
                bail!("it does not listen on {address} ({ended:?}); what it said is above");
            }
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Process::Erb(child) = &mut self.process {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// `erb serve`, with one thread as nginx has one worker.
fn serve(erb: &Erb, pair: &Pair, root: &Path, address: SocketAddr) -> Result<Child> {
    let mut command = netns::command(&pair.server, erb.found()?)?;
    command.arg("serve").arg(root);
    command.args(["--listen", &address.to_string(), "--threads", "1"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // SAFETY: both are system calls that take no lock and allocate nothing.
    unsafe {
        command.pre_exec(|| {
            // A new group: Ctrl-C reaches the bench first.
            nix::unistd::setpgid(nix::unistd::Pid::from_raw(0), nix::unistd::Pid::from_raw(0))?;
            prctl::set_pdeathsig(Signal::SIGKILL).map_err(Into::into)
        });
    }
    command.spawn().context("cannot run erb")
}

/// What nginx says of itself.
pub fn version(program: &Path) -> Result<String> {
    let output = Command::new(program)
        .arg("-v")
        .output()
        .context("cannot run nginx")?;
    let said = String::from_utf8_lossy(&output.stderr);
    Ok(said.trim().trim_start_matches("nginx version: ").to_owned())
}
