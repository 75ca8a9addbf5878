// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two labs side by side: a boosted server, and the same server alone.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use erb_check::net::Conn;
use erb_lab::{Answers, End, Erb, Lab, LabConfig, LabName, Mode, ServerProgram, Serves, netns};

use crate::ground::{Ground, Side};
use crate::table::PRIMARY;

/// Names of the labs.
const LABS: [&str; 2] = ["reports", "reports-alone"];
/// Settings of both: some reports are about DEBUG, and a log on a disk would only slow both.
const SETTINGS: [&str; 2] = ["enable-debug-command=yes", "appendonly=no"];
/// Threads of a server that has some.
const THREADS: u8 = 4;
/// Longest wait until a further server answers.
const START_WAIT: Duration = Duration::from_secs(20);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Both labs, removed when dropped.
pub struct Stage<'a> {
    labs: Vec<Lab>,
    primaries: Vec<Primary>,
    erb: &'a Erb,
}

/// A further server on the server's end, to be a replica of; ended when dropped.
struct Primary(Child);

impl Drop for Primary {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl<'a> Stage<'a> {
    /// Makes both; the boosted one serves when this returns.
    pub fn up(
        erb: &'a Erb,
        server: ServerProgram,
        mode: Answers,
        threads: bool,
        primary: bool,
    ) -> Result<Self> {
        let mut settings = SETTINGS
            .iter()
            .map(|setting| setting.parse())
            .collect::<Result<Vec<_>>>()?;
        if threads {
            settings.extend(server.thread_settings(THREADS)?);
        }
        let mut stage = Self {
            labs: Vec::new(),
            primaries: Vec::new(),
            erb,
        };
        for (name, mode) in LABS.into_iter().zip([mode.of_lab(), Mode::Off]) {
            let name: LabName = name.parse()?;
            // The lock is ours: a lab of this name was left by a run that was killed.
            erb_lab::down(&name, erb).context("cannot remove an earlier run's lab")?;
            let config = LabConfig {
                name,
                direct: true,
                mode,
                redis_port: 6379,
                redis_args: settings.clone(),
                server: Serves::Redis(server),
            };
            let lab = Lab::up(&config, erb).context("cannot make the lab")?;
            stage.labs.push(lab);
            if primary {
                let lab = &stage.labs[stage.labs.len() - 1];
                let started = start_primary(lab).context("a further server")?;
                stage.primaries.push(started);
            }
        }
        let boost = erb.boost_of(stage.labs[0].state());
        boost.wait_until_serving()?;
        // Whether answers are right is asked, not whether they pay.
        boost.run(&["aside", "0"])?;
        if mode == Answers::WriteBack {
            boost.wait_until_open()?;
        }
        Ok(stage)
    }

    /// Where sequences are played.
    pub fn ground(&self) -> Ground {
        let side = |lab: &Lab| {
            let state = lab.state();
            Side {
                namespace: Some(state.client.namespace.clone()),
                address: (state.server.ipv4, state.redis_port).into(),
            }
        };
        Ground {
            target: side(&self.labs[0]),
            twin: side(&self.labs[1]),
            in_front: true,
            primary: !self.primaries.is_empty(),
        }
    }

    /// Broken invariants that the data path has counted: none, or ERB is wrong.
    pub fn broken_invariants(&self) -> Result<u64> {
        self.erb.boost_of(self.labs[0].state()).counter("INVARIANT")
    }

    /// Removes both.
    pub fn down(mut self) -> Result<()> {
        self.primaries.clear();
        while let Some(lab) = self.labs.pop() {
            lab.down(self.erb)?;
        }
        Ok(())
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.primaries.clear();
        while let Some(lab) = self.labs.pop() {
            let name = lab.state().name.as_str().to_owned();
            if let Err(error) = lab.down(self.erb) {
                eprintln!(
                    "cannot remove a lab: {error:#}; `erb lab down --name {name}` tries again"
                );
            }
        }
    }
}

/// The same program, at the address that the table names.
fn start_primary(lab: &Lab) -> Result<Primary> {
    let state = lab.state();
    let mut command = lab.exec(End::Server, &state.redis_program)?;
    command
        .args(["--port", &PRIMARY.port().to_string()])
        .args(["--bind", &PRIMARY.ip().to_string()])
        .args(["--save", "", "--repl-diskless-sync-delay", "0", "--dir"])
        .arg(&state.run_dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let primary = Primary(command.spawn().context("cannot start it")?);
    let end = Instant::now() + START_WAIT;
    loop {
        let answers = netns::run_in(&state.server.namespace, || {
            Ok(Conn::connect(PRIMARY.into(), START_WAIT)?.call(&["PING"])?)
        });
        if answers.is_ok_and(|reply| reply == b"+PONG\r\n") {
            return Ok(primary);
        }
        ensure!(Instant::now() < end, "it does not answer at {PRIMARY}");
        std::thread::sleep(LOOK);
    }
}
