// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb bench capacity`: builds all servers, runs them in turn, collects.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use erb_lab::Erb;
use nix::sched::sched_getaffinity;
use nix::unistd::Pid;

use crate::args::{CapacityArgs, Drawn, Op, Server};
use crate::instance::{Instance, Plan};
use crate::interrupt::Interrupt;
use crate::mirror::BENCH_KEYS_MAX;
use crate::redis_server::make_room;
use crate::report::{CapacityReport, Machine, MissWithFills, Run, ServerReport};
use crate::work::Work;

/// Cache of the instance that misses with fills on; small, so that 16 times as many bytes of keys
/// and values are still loaded in a second and are about as many keys as the default.
const SMALL_CACHE: &str = "1M";
/// See [`SMALL_CACHE`].
const SMALL_CACHE_BYTES: u32 = 1 << 20;
/// Keys and values take this many times the cache.
const KEYS_TIMES_CACHE: u32 = 16;

/// Builds, runs, takes everything down.
pub fn measure(args: &CapacityArgs, erb: &Erb) -> Result<CapacityReport> {
    let work = work_of(args)?;
    let hits = args.hit_ratio > 0.0 && !work.op.writes();
    if hits && args.server.iter().any(|server| server.boosted()) {
        work.check_cacheable()?;
    }
    check_machine(&[
        ("--server-core", args.server_core),
        ("--generator-core", args.generator_core),
    ])?;
    make_room(args.conns)?;
    let interrupt = Interrupt::watch()?;
    let mut instances = Vec::new();
    for plan in plans(args, work) {
        let name = plan.server.name();
        let instance = Instance::build(plan, args, erb, &interrupt)
            .with_context(|| format!("could not set up server {name}"))?;
        instances.push(instance);
    }
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); instances.len()];
    let time = Duration::from_secs_f64(args.seconds);
    for number in 1..=args.runs {
        for (instance, runs) in instances.iter_mut().zip(&mut runs) {
            let name = instance.plan().server.name();
            let run = instance.run(time, &interrupt);
            runs.push(run.with_context(|| format!("run {number} of server {name} failed"))?);
        }
    }
    collect(args, &instances, runs)
}

/// What is asked for.
pub fn work_of(args: &CapacityArgs) -> Result<Work> {
    let mut work = Work::of(&args.work)?;
    if args.distribution == Drawn::Unique {
        ensure!(
            work.op == Op::Set,
            "keys that are not there yet cannot be read; use --distribution unique with --op set"
        );
        work.keys = args.work.keys.unwrap_or(BENCH_KEYS_MAX);
    }
    Ok(work)
}

/// What would fail half-way is said before anything is made.
pub fn check_machine(cores: &[(&str, usize)]) -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "namespaces and XDP programs need root; run it with sudo"
    );
    let allowed = sched_getaffinity(Pid::from_raw(0)).context("no list of processors")?;
    for &(option, core) in cores {
        ensure!(
            allowed.is_set(core).unwrap_or(false),
            "there is no processor {core} to run on; choose another with {option}"
        );
    }
    let found = Command::new("redis-server").arg("--version").output();
    ensure!(
        found.is_ok(),
        "redis-server was not found; install it (Debian package redis-server)"
    );
    Ok(())
}

/// One plan per server asked for; for pure misses a second one of ERB with fills.
pub fn plans(args: &CapacityArgs, work: Work) -> Vec<Plan> {
    let mut plans = Vec::new();
    let writes = work.op.writes();
    for &server in &args.server {
        let caches = server.boosted() && server != Server::ErbClosed;
        let filled = if caches && !writes {
            (f64::from(work.keys) * args.hit_ratio).round() as u32
        } else {
            0
        };
        let cache_size = args.cache_size.clone();
        plans.push(Plan {
            server,
            work,
            cache_size,
            // The first request on each connection is for key 0.
            loaded: match args.distribution {
                Drawn::Unique => 1,
                Drawn::Uniform | Drawn::Zipf => work.keys,
            },
            filled,
            fills: writes,
            options: owned(server.options()),
            journal: None,
        });
        if caches && args.hit_ratio == 0.0 && !writes {
            let keys = SMALL_CACHE_BYTES * KEYS_TIMES_CACHE / work.stored_bytes();
            let cache_size = SMALL_CACHE.into();
            plans.push(Plan {
                server,
                work: Work { keys, ..work },
                cache_size,
                loaded: keys,
                filled: 0,
                fills: true,
                options: owned(server.options()),
                journal: None,
            });
        }
    }
    plans
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn collect(
    args: &CapacityArgs,
    instances: &[Instance],
    runs: Vec<Vec<Run>>,
) -> Result<CapacityReport> {
    let mut servers: Vec<ServerReport> = Vec::new();
    for (instance, runs) in instances.iter().zip(runs) {
        let plan = instance.plan();
        let mut report = ServerReport::new(args, plan, runs)?;
        if plan.fills && !plan.work.op.writes() {
            let beside = servers
                .last_mut()
                .context("a run with fills has no server beside it")?;
            beside.miss_with_fills = Some(MissWithFills::from(report, &plan.cache_size));
        } else {
            report.filled_keys = instance.filled();
            report.status = instance.status()?;
            servers.push(report);
        }
    }
    Ok(CapacityReport::new(Machine::this()?, servers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::WorkArgs;

    fn args(server: Vec<Server>, hit_ratio: f64) -> CapacityArgs {
        CapacityArgs {
            work: WorkArgs {
                op: Op::Get,
                keys: Some(1000),
                value_size: None,
                batch: None,
                fields: None,
            },
            server,
            distribution: Drawn::Uniform,
            hit_ratio,
            conns: 1,
            runs: 1,
            seconds: 1.0,
            cache_size: "256M".into(),
            server_core: 0,
            generator_core: 1,
            json: false,
        }
    }

    #[test]
    fn the_share_is_filled_and_fills_are_off() {
        let args = args(vec![Server::Redis, Server::Erb, Server::ErbTc], 0.9);
        let plans = plans(&args, Work::of(&args.work).unwrap());
        let summary: Vec<_> = plans
            .iter()
            .map(|p| (p.server, p.filled, p.fills))
            .collect();
        assert_eq!(
            summary,
            [
                (Server::Redis, 0, false),
                (Server::Erb, 900, false),
                (Server::ErbTc, 900, false)
            ]
        );
    }

    #[test]
    fn of_writes_nothing_is_held_and_all_is_as_in_production() {
        for hit_ratio in [0.0, 1.0] {
            let mut args = args(vec![Server::Redis, Server::Erb], hit_ratio);
            args.work.op = Op::Set;
            let plans = plans(&args, Work::of(&args.work).unwrap());
            let summary: Vec<_> = plans.iter().map(|p| (p.filled, p.fills)).collect();
            assert_eq!(summary, [(0, true), (0, true)]);
        }
    }

    #[test]
    fn of_a_closed_cache_nothing_is_filled() {
        for hit_ratio in [0.0, 1.0] {
            let args = args(vec![Server::ErbClosed], hit_ratio);
            let plans = plans(&args, Work::of(&args.work).unwrap());
            let summary: Vec<_> = plans.iter().map(|p| (p.filled, p.fills)).collect();
            assert_eq!(summary, [(0, false)]);
        }
    }

    #[test]
    fn misses_are_measured_with_fills_too() {
        let args = args(vec![Server::Erb], 0.0);
        let plans = plans(&args, Work::of(&args.work).unwrap());
        assert_eq!(plans.len(), 2);
        assert!(plans[1].fills && plans[1].work.keys * 116 >= 15 << 20);
    }
}
