// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb bench journal`: what it costs to keep every SET that is answered in Redis's place on a disk, by who writes it.
//!
//! Each sink has a Redis, a boost and connections of its own, as `erb bench capacity --op set --server erb-write-back` has,
//! and they run in turn. A run goes on until the last SET is in Redis, and synced: so all that is owed is paid in it.
//!
//! # Layout
//! - `args`: command line; `emulated`: whether times say anything here; `delays`: from reply to sync; `report`: results.

mod args;
mod delays;
mod emulated;
mod report;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use erb_lab::{Boost, Erb};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use self::delays::{Delays, delays, watch};
use self::emulated::emulator;
use self::report::{LeftOut, SinkReport, SinkRun, Work as Did};
use crate::boosted::kept;
use crate::capacity::{check_machine, plans, work_of};
use crate::instance::Instance;
use crate::interrupt::Interrupt;
use crate::redis_server::make_room;
use crate::report::Machine;

pub use self::args::{JournalArgs, Sink};
pub use self::report::SinksReport;

/// What `erb boost` and its daemon say if the kernel module cannot be had; the rest of the line is the reason.
const CANNOT_BE_HAD: [&str; 2] = [
    "or leave out --journal-sink kmod",
    "another daemon has the kernel module",
];

/// A sink that is measured.
struct Measured {
    sink: Sink,
    instance: Instance,
    runs: Vec<SinkRun>,
    delays: Option<Delays>,
}

/// Builds, runs, takes everything down.
pub fn measure(args: &JournalArgs, erb: &Erb) -> Result<SinksReport> {
    check_machine(&[
        ("--server-core", args.server_core),
        ("--generator-core", args.generator_core),
    ])?;
    make_room(args.conns)?;
    let emulator = emulator()?;
    let interrupt = Interrupt::watch()?;
    let above = args.folder.clone().unwrap_or_else(std::env::temp_dir);
    // Before the boosts, so that it goes behind them.
    let folder = tempfile::Builder::new()
        .prefix("erb-bench-journal-")
        .tempdir_in(&above)
        .with_context(|| format!("no folder in {}; name another by --folder", above.display()))?;
    let is_tmpfs = statfs(folder.path()).is_ok_and(|fs| fs.filesystem_type() == TMPFS_MAGIC);
    let (mut measured, mut left_out) = (Vec::new(), Vec::new());
    for (number, &sink) in args.sink.iter().enumerate() {
        let place = folder.path().join(number.to_string());
        match build(args, sink, &place, erb, &interrupt) {
            Ok(instance) => measured.push(Measured {
                sink,
                instance,
                runs: Vec::new(),
                delays: None,
            }),
            Err(error) => left_out.push(LeftOut {
                sink: sink.name(),
                why: reason(&format!("{error:#}")).ok_or(error)?,
            }),
        }
    }
    ensure!(
        !measured.is_empty(),
        "nothing can be measured: {}",
        left_out.first().map_or("no --sink", |first| &first.why)
    );
    run_all(args, &mut measured, emulator.is_none(), &interrupt)?;
    let sinks = measured.into_iter().map(|one| {
        SinkReport::new(one.sink, one.runs, one.delays).context("there is no run to report")
    });
    Ok(SinksReport {
        machine: Machine::this()?,
        emulator,
        disk: above.display().to_string(),
        is_tmpfs,
        sinks: sinks.collect::<Result<_>>()?,
        left_out,
    })
}

fn build(
    args: &JournalArgs,
    sink: Sink,
    folder: &Path,
    erb: &Erb,
    interrupt: &Interrupt,
) -> Result<Instance> {
    let capacity = args.as_capacity();
    let folder = folder.to_str().context("--folder has a name of no text")?;
    let mut plan = plans(&capacity, work_of(&capacity)?)
        .pop()
        .context("nothing to measure")?;
    plan.options.extend(sink.options(folder));
    plan.journal = Some(sink);
    Instance::build(plan, &capacity, erb, interrupt)
        .with_context(|| format!("could not set up sink {}", sink.name()))
}

/// All sinks in turn; behind that, where times say anything, once more to see when what is synced.
fn run_all(
    args: &JournalArgs,
    measured: &mut [Measured],
    is_timed: bool,
    interrupt: &Interrupt,
) -> Result<()> {
    let time = Duration::from_secs_f64(args.seconds);
    for number in 1..=args.runs {
        for one in &mut *measured {
            let run = run_once(one, time, is_timed, interrupt);
            let what = || format!("run {number} of sink {} failed", one.sink.name());
            let run = run.with_context(what)?;
            one.runs.push(run);
        }
    }
    let writes = |one: &&mut Measured| is_timed && one.sink != Sink::None;
    for one in measured.iter_mut().filter(writes) {
        one.delays = watch_syncs(&mut one.instance, time, interrupt)
            .with_context(|| format!("watching sink {} failed", one.sink.name()))?;
    }
    Ok(())
}

fn run_once(
    one: &mut Measured,
    time: Duration,
    is_timed: bool,
    interrupt: &Interrupt,
) -> Result<SinkRun> {
    let boost = boost_of(&one.instance)?;
    let before = did(&boost)?;
    let run = one.instance.run(time, interrupt)?;
    let did = did(&boost)?.since(&before);
    ensure!(
        one.sink == Sink::None || did.records >= did.answered,
        "{} of {} SETs are in the journal",
        did.records,
        did.answered
    );
    SinkRun::new(&run, did, is_timed)
}

/// What was done since the boost.
fn did(boost: &Boost) -> Result<Did> {
    let (answered, journal) = kept(boost)?;
    Ok(Did {
        answered,
        records: journal.written,
        batches: journal.batches,
        syncs: journal.syncs,
        wakes: journal.wakes,
        failures: journal.failures,
    })
}

fn boost_of(instance: &Instance) -> Result<Boost> {
    instance.boost().cloned().context("nothing is boosted")
}

/// One run beside somebody who looks all the time: for nothing but the delays.
fn watch_syncs(
    instance: &mut Instance,
    time: Duration,
    interrupt: &Interrupt,
) -> Result<Option<Delays>> {
    let (boost, stop) = (boost_of(instance)?, AtomicBool::new(false));
    thread::scope(|scope| {
        let looking = scope.spawn(|| watch(&boost, &stop));
        let run = instance.run(time, interrupt);
        stop.store(true, Ordering::Relaxed);
        let looks = looking
            .join()
            .map_err(|_| anyhow!("who looked has failed"))?;
        run?;
        Ok(delays(&looks?))
    })
}

/// Why the kernel module cannot be had, out of what a boost said; none: it failed otherwise.
fn reason(said: &str) -> Option<String> {
    let is_it = |line: &&str| CANNOT_BE_HAD.iter().any(|words| line.contains(words));
    let line = said.lines().find(is_it)?;
    let line = line.split(CANNOT_BE_HAD[0]).next()?;
    let from = ["the module erb_io", CANNOT_BE_HAD[1]];
    let begin = from.iter().find_map(|words| line.find(words)).unwrap_or(0);
    Some(line[begin..].trim_end_matches(['"', ';', ' ']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn a_boost_without_the_module_tells_the_reason() {
        let said = "could not set up sink kmod: ERB could not be started: erb boost failed (exit status: 12):\n\
                    error: the module erb_io is built and not loaded: `modprobe erb_io`; or leave out --journal-sink \
                    kmod: the daemon writes the journal by itself\n";
        assert_eq!(
            reason(said).as_deref(),
            Some("the module erb_io is built and not loaded: `modprobe erb_io`")
        );
    }

    #[test]
    fn a_module_that_another_boost_has_is_a_reason() {
        let said = "SETs are not answered: WritesReport { why: \"another daemon has the kernel module: one can\" }";
        let why = reason(said).expect("a reason");
        assert!(why.starts_with("another daemon has the kernel module: one can"));
    }

    #[test]
    fn any_other_failure_is_none() {
        assert_eq!(reason("could not run redis-server"), None);
    }
}
