// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One file of the suite in a lab of its own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use erb_lab::{Answers, Boost, End, Erb, Lab, LabConfig, LabName, Mode, Serves, Stop};
use erb_report::Status;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::SuiteArgs;
use crate::bystander::Bystander;
use crate::compare::Server;
use crate::parse::{self, Outcomes};
use crate::repeat::{ReadTable, Repeater};
use crate::source::Suite;
use crate::witness::{Asked, Witness};

/// Name of the lab.
const LAB: &str = "suite";
/// Settings with which Redis's own runs against external servers start it (the suite's
/// `.github/workflows/external.yml`); `save` is the lab's. Other than there the client is another
/// host, and the lab's own append-only file would slow what the suite times.
const REDIS_SETTINGS: [&str; 4] = [
    "enable-protected-configs=yes",
    "enable-debug-command=yes",
    "enable-module-command=yes",
    "appendonly=no",
];
/// Silence after which the suite calls a test hung; its own 20 minutes are for slower machines.
const SILENCE_SECONDS: &str = "300";
/// Time after which a file is ended: several times what the longest takes.
const UNIT_LIMIT: Duration = Duration::from_secs(1800);
/// Counter of SETs that were answered in Redis's place.
const SETS: &str = "ABSORBED";
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// What ERB did during a run.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// Commands answered without Redis, by counter.
    pub answered: BTreeMap<String, u64>,
    /// Packets that went up to Redis, by reason.
    pub refused: BTreeMap<String, u64>,
    /// What must never be: broken invariants, a daemon that is gone.
    pub broken: Vec<String>,
    /// What became of the reads that were repeated.
    pub reads: ReadTable,
}

/// One file of the suite, once, on one server.
pub struct UnitRun {
    /// How each test ended.
    pub outcomes: Outcomes,
    /// How long it took.
    pub seconds: f64,
    /// What ERB did, if there was one.
    pub work: Option<Work>,
}

/// A lab, removed when dropped.
pub struct Stage<'a> {
    lab: Option<Lab>,
    erb: &'a Erb,
    server: Server,
    bystander: Option<Bystander>,
    repeater: Option<Repeater>,
}

impl<'a> Stage<'a> {
    /// Makes the lab of a round; boosted, it serves when this returns.
    pub fn up(erb: &'a Erb, server: Server, args: &SuiteArgs, round: u32) -> Result<Self> {
        let name: LabName = LAB.parse()?;
        // The lock is ours: a lab of this name was left by a run that was killed.
        erb_lab::down(&name, erb).context("cannot remove an earlier run's lab")?;
        let settings = REDIS_SETTINGS.iter().map(|setting| setting.parse());
        let mut settings: Vec<_> = settings.collect::<Result<_>>()?;
        if let Some(threads) = args.io_threads {
            settings.extend(args.server.thread_settings(threads)?);
        }
        let config = LabConfig {
            name,
            direct: true,
            mode: match server {
                Server::Alone | Server::Watched => Mode::Off,
                Server::Boosted => args.mode.of_lab(),
            },
            redis_port: 6379,
            redis_args: settings,
            server: Serves::Redis(args.server),
        };
        let lab = Lab::up(&config, erb).context("cannot make the lab")?;
        let mut stage = Self {
            lab: Some(lab),
            erb,
            server,
            bystander: None,
            repeater: None,
        };
        if server == Server::Watched {
            stage.bystander = Some(Bystander::join(stage.lab()?.state(), round % 4 != 2)?);
        }
        if server == Server::Boosted {
            let boost = stage.boost()?;
            boost.wait_until_serving()?;
            if args.mode == Answers::WriteBack {
                boost.wait_until_open()?;
            }
        }
        if server == Server::Boosted && args.repeat_reads {
            // Whether answers are right is asked, not whether they pay: a suite writes as much as it reads.
            stage.boost()?.run(&["aside", "0"])?;
        }
        if args.repeat_reads {
            let lab = stage.lab()?.state();
            let witness: Option<Arc<dyn Witness>> = match server {
                Server::Boosted => Some(Arc::new(Asked::of(&stage.boost()?)?)),
                Server::Alone | Server::Watched => None,
            };
            stage.repeater = Some(Repeater::start(lab, witness)?);
        }
        Ok(stage)
    }

    /// Runs one file of the suite from the lab's client.
    pub fn play(
        &self,
        suite: &Suite,
        unit: &str,
        words: &[&str],
        log: &Path,
        stop: &Stop,
    ) -> Result<UnitRun> {
        let lab = self.lab()?;
        let state = lab.state();
        let file = File::create(log).with_context(|| format!("cannot make {}", log.display()))?;
        let direct = SocketAddr::from((state.server.ipv4, state.redis_port));
        let target = self.repeater.as_ref().map_or(direct, Repeater::address);
        let mut command = lab.exec(End::Client, "./runtest")?;
        command
            .args(["--host", &target.ip().to_string()])
            .args(["--port", &target.port().to_string()])
            .args(["--single", unit, "--durable", "--timeout", SILENCE_SECONDS])
            .args(words)
            .current_dir(&suite.dir)
            .env("TERM", "dumb")
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            // Its test client is a process of its own: they end together.
            .process_group(0);
        let start = Instant::now();
        let child = command.spawn().context("cannot start ./runtest")?;
        let in_time = wait_for_end(child, stop)?;
        let seconds = start.elapsed().as_secs_f64();
        let printed = fs::read(log).with_context(|| format!("cannot read {}", log.display()))?;
        let printed = String::from_utf8_lossy(&printed);
        let work = (self.server == Server::Boosted).then(|| self.work());
        Ok(UnitRun {
            outcomes: parse::parse(&printed, unit, !in_time),
            seconds,
            work,
        })
    }

    fn lab(&self) -> Result<&Lab> {
        self.lab.as_ref().context("the lab is down")
    }

    fn boost(&self) -> Result<Boost> {
        Ok(self.erb.boost_of(self.lab()?.state()))
    }

    fn work(&self) -> Work {
        let mut work = match self.boost().and_then(|boost| boost.status()) {
            Ok(status) => Work::of(status),
            Err(error) => Work {
                broken: vec![format!("{error:#}")],
                ..Work::default()
            },
        };
        if let Some(repeater) = &self.repeater {
            work.take_reads(repeater.reads());
        }
        work
    }

    /// Removes it.
    pub fn down(mut self) -> Result<()> {
        self.bystander = None;
        self.repeater = None;
        match self.lab.take() {
            Some(lab) => lab.down(self.erb).map(drop),
            None => Ok(()),
        }
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.repeater = None;
        let Some(lab) = self.lab.take() else { return };
        if let Err(error) = lab.down(self.erb) {
            eprintln!("cannot remove the lab: {error:#}; `erb lab down --name {LAB}` tries again");
        }
    }
}

impl Work {
    fn of(status: Status) -> Self {
        let mut work = Self::default();
        if status.daemon != "running" {
            work.broken
                .push(format!("ERB's daemon is {}", status.daemon));
        }
        for counter in status.counters.into_iter().filter(|c| c.count > 0) {
            let read = counter.name.starts_with("FAST_") && !counter.name.contains("PACKET");
            let command = read || counter.name == SETS;
            match counter.kind.as_str() {
                "answered" if command => {
                    work.answered.insert(counter.name, counter.count);
                }
                "refused" => {
                    work.refused.insert(counter.name, counter.count);
                }
                _ if counter.name == "INVARIANT" => {
                    let text = format!("{} invariants of ERB were broken", counter.count);
                    work.broken.push(text);
                }
                _ => {}
            }
        }
        work
    }

    /// Takes over what became of the reads; ERB itself must have counted at least what was seen of it.
    fn take_reads(&mut self, reads: ReadTable) {
        for (name, read) in &reads {
            let counter = format!("FAST_{}", name.to_uppercase());
            let counted = self.answered.get(&counter).copied().unwrap_or(0);
            if read.fast > counted {
                self.broken.push(format!(
                    "{} answers to {name} were taken for ERB's, which counted {counted}",
                    read.fast
                ));
            }
        }
        self.reads = reads;
    }

    /// Adds another run's, all but its reads.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.answered, &other.answered),
            (&mut self.refused, &other.refused),
        ] {
            for (name, count) in more {
                *sum.entry(name.clone()).or_default() += count;
            }
        }
        self.broken.extend(other.broken.iter().cloned());
    }
}

/// Whether it ended by itself in time; what is left of its group is ended in any case.
fn wait_for_end(mut child: Child, stop: &Stop) -> Result<bool> {
    let group = Pid::from_raw(i32::try_from(child.id())?);
    let end = Instant::now() + UNIT_LIMIT;
    let outcome = loop {
        // Not reaped here: until the group is ended its number must stay taken.
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(group), flags) {
            Ok(WaitStatus::StillAlive) => {}
            Ok(_) => break Ok(true),
            Err(error) => break Err(error).context("cannot wait for ./runtest"),
        }
        if let Err(error) = stop.check() {
            break Err(error);
        }
        if Instant::now() > end {
            break Ok(false);
        }
        thread::sleep(PAUSE);
    };
    // Fails only if nothing is left of it.
    let _ = killpg(group, Signal::SIGKILL);
    child.wait().context("cannot wait for ./runtest")?;
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repeat::Read;

    #[test]
    fn answers_that_erb_did_not_count_are_found() {
        let mut work = Work::default();
        work.answered.insert("FAST_GET".to_owned(), 3);
        let reads = |fast| {
            let read = Read {
                sent: 9,
                fast,
                ..Read::default()
            };
            ReadTable::from([("get".to_owned(), read)])
        };
        work.take_reads(reads(3));
        assert_eq!(work.broken, [""; 0]);
        work.take_reads(reads(4));
        assert_eq!(work.broken.len(), 1);
    }
}
