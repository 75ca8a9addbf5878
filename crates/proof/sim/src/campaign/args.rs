// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line: parse, validate, run.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Parser, Subcommand};
use erb_sim_kernel::compile::Flavour;

use super::mutations::{EVENTS_MAX, Fate, markdown, try_all};
use super::{Campaign, Report, all_profiles, exit, shrink};
use crate::fault::{Fault, Faults};
use crate::mutate::{self, Mutation, Way};
use crate::plan::{Options, Outcome, Plan};
use crate::profile::Profile;
use crate::run;
use crate::story::Keep;
use crate::time::MS;

/// Stands for all profiles and, besides, every scenario once.
const ALL_PROFILES: &str = "all-profiles";

/// Failures after which a campaign ends.
const FAILURES_MAX: usize = 5;

/// Runs and replays simulations of ERB.
#[derive(Parser)]
#[command(name = "erb-sim", version, after_help = exit::HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Many runs from successive seeds
    Run(RunArgs),
    /// One run again, with its story packet by packet
    Replay(ReplayArgs),
    /// Deliberate mistakes, each run until a check sees it
    Mutations(MutationArgs),
    /// Known traps, each with a scenario
    Scenarios(super::scenarios::ScenarioArgs),
    /// Profiles and kinds of faults
    Profiles,
}

#[derive(Args)]
struct RunArgs {
    /// Seeds per profile
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// First seed; one by the clock if not given, and printed
    #[arg(long)]
    first_seed: Option<u64>,
    /// Go on for this long instead of counting seeds
    #[arg(long)]
    minutes: Option<f64>,
    /// Profile; or all, and every scenario once
    #[arg(long, default_value = ALL_PROFILES)]
    profile: String,
    /// Runs at the same time
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ReplayArgs {
    /// The seed
    seed: u64,
    /// The profile
    #[arg(long)]
    profile: String,
    /// Make the run smaller first, as long as the same check fails
    #[arg(long)]
    shrink: bool,
    /// Connections instead of the profile's
    #[arg(long)]
    connections: Option<u32>,
    /// Operations per connection instead of the profile's
    #[arg(long)]
    operations: Option<u32>,
    /// Milliseconds until faults end instead of the profile's
    #[arg(long)]
    milliseconds: Option<u64>,
    /// Kinds of faults that happen, separated by commas; all if not given
    #[arg(long, value_delimiter = ',')]
    faults: Option<Vec<String>>,
    /// Run with this mutation
    #[arg(long)]
    mutation: Option<String>,
    /// Print JSON, without the story
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct MutationArgs {
    /// Only these, separated by commas
    #[arg(long, value_delimiter = ',')]
    only: Option<Vec<String>>,
    /// In runs of this profile, wherever else they are said to be caught
    #[arg(long)]
    profile: Option<String>,
    /// Print a table in Markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// First seed
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// Events per mutation at most
    #[arg(long, default_value_t = EVENTS_MAX)]
    events: u64,
    /// Mutations at the same time
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Cli {
    /// Does what was asked for.
    ///
    /// # Errors
    /// What cannot be done; the caller prints it.
    pub fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Run(args) => args.run(),
            Command::Replay(args) => args.run(),
            Command::Mutations(args) => args.run(),
            Command::Scenarios(args) => args.run(),
            Command::Profiles => {
                print_profiles();
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

fn print_profiles() {
    for profile in all_profiles() {
        println!("{:<12} {}", profile.name, profile.about);
    }
    println!();
    for fault in Fault::ALL {
        println!("{fault:<12} {}", fault.about());
    }
}

fn profile(name: &str) -> Result<&'static Profile> {
    mutate::profiles::find(name).with_context(|| {
        let names: Vec<&str> = all_profiles().iter().map(|profile| profile.name).collect();
        format!(
            "there is no profile {name:?}; there are {}",
            names.join(", ")
        )
    })
}

/// A seed that nobody has tried.
#[must_use]
pub fn fresh_seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |since| since.as_secs() * 1_000)
}

impl RunArgs {
    fn run(&self) -> Result<ExitCode> {
        ensure!(self.jobs > 0, "--jobs must be at least 1");
        ensure!(
            self.minutes.is_none_or(|minutes| minutes > 0.0),
            "--minutes must be more than 0"
        );
        let all = self.profile == ALL_PROFILES;
        let profiles = match self.profile.as_str() {
            ALL_PROFILES => all_profiles(),
            name => vec![profile(name)?],
        };
        let first_seed = self.first_seed.unwrap_or_else(fresh_seed);
        if !self.json {
            println!("first seed {first_seed}");
        }
        let campaign = Campaign {
            profiles,
            first_seed,
            seeds: if self.minutes.is_some() {
                u64::from(u32::MAX)
            } else {
                self.seeds
            },
            time_max: self
                .minutes
                .map(|minutes| Duration::from_secs_f64(minutes * 60.0)),
            jobs: self.jobs,
            progress: !self.json,
        };
        let mut report = campaign.run(FAILURES_MAX);
        if all {
            report.play_scenarios(self.jobs);
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print!("{}", report.text());
        }
        Ok(code(&report))
    }
}

fn code(report: &Report) -> ExitCode {
    if !report.failures.is_empty() {
        ExitCode::from(exit::VIOLATION)
    } else if !report.reached.impossible().is_empty() {
        ExitCode::from(exit::TABLE)
    } else {
        ExitCode::SUCCESS
    }
}

impl ReplayArgs {
    fn plan(&self) -> Result<Plan> {
        let mut plan = Plan::new(profile(&self.profile)?, self.seed);
        plan.connections = self.connections.unwrap_or(plan.connections);
        plan.operations = self.operations.unwrap_or(plan.operations);
        plan.duration = self.milliseconds.map_or(plan.duration, |ms| ms * MS);
        if let Some(names) = &self.faults {
            plan.faults = faults(names)?;
        }
        Ok(plan)
    }

    fn options(&self) -> Result<Options> {
        let mut options = Options::default();
        let Some(name) = &self.mutation else {
            return Ok(options);
        };
        let mutation = mutate::all().find(|mutation| mutation.name == *name);
        match mutation
            .with_context(|| format!("there is no mutation {name:?}"))?
            .change
        {
            mutate::Change::Source(edits) => {
                options.library = Some(mutate::source::build(name, edits, Flavour::Plain)?);
            }
            mutate::Change::Daemon(mistake) => options.mistake = Some(mistake),
        }
        Ok(options)
    }

    fn run(&self) -> Result<ExitCode> {
        let mut plan = self.plan()?;
        let mut options = self.options()?;
        options.keep = Keep::Nothing;
        if self.shrink {
            let Some(violation) = run(&plan, &options).violation else {
                bail!("this run breaks no rule: there is nothing to shrink");
            };
            let (smaller, tries) = shrink::shrink(&plan, |plan| {
                let found = run(plan, &options).violation;
                found.is_some_and(|found| found.check == violation.check)
            });
            plan = smaller;
            if !self.json {
                println!("after {tries} runs: {}", self.command(&plan));
            }
        }
        options.keep = if self.json { Keep::Nothing } else { Keep::All };
        let outcome = run(&plan, &options);
        self.print(&plan, &outcome)?;
        Ok(match outcome.violation {
            Some(_) => ExitCode::from(exit::VIOLATION),
            None => ExitCode::SUCCESS,
        })
    }

    /// The command that makes exactly this run.
    fn command(&self, plan: &Plan) -> String {
        let mut line = format!(
            "erb-sim replay {} --profile {} --connections {} --operations {} --milliseconds {}",
            plan.seed,
            plan.profile.name,
            plan.connections,
            plan.operations,
            plan.duration / MS
        );
        if plan.faults != Faults::ALL {
            let names: Vec<String> = plan.faults.iter().map(|fault| fault.to_string()).collect();
            line.push_str(&format!(" --faults {}", names.join(",")));
        }
        if let Some(name) = &self.mutation {
            line.push_str(&format!(" --mutation {name}"));
        }
        line
    }

    fn print(&self, plan: &Plan, outcome: &Outcome) -> Result<()> {
        if self.json {
            let violation = outcome.violation.as_ref();
            let json = serde_json::json!({
                "command": self.command(plan),
                "check": violation.map(|violation| violation.check),
                "text": violation.map(|violation| violation.text.clone()),
                "events": outcome.events,
                "packets": outcome.packets,
                "virtual_ns": outcome.virtual_ns,
            });
            println!("{}", serde_json::to_string_pretty(&json)?);
            return Ok(());
        }
        print!("{}", outcome.story);
        println!("{} events, {} packets", outcome.events, outcome.packets);
        match &outcome.violation {
            Some(violation) => println!("VIOLATION {violation}\n  {}", self.command(plan)),
            None => println!("no rule was broken"),
        }
        Ok(())
    }
}

/// A set from names; an empty name stands for none.
fn faults(names: &[String]) -> Result<Faults> {
    let mut set = Faults::NONE;
    for name in names.iter().filter(|name| !name.is_empty()) {
        let fault = Fault::ALL
            .into_iter()
            .find(|fault| fault.to_string().eq_ignore_ascii_case(name));
        set = set.with(fault.with_context(|| format!("there is no kind of fault {name:?}"))?);
    }
    Ok(set)
}

impl MutationArgs {
    fn run(&self) -> Result<ExitCode> {
        let wanted: Vec<_> = mutate::all()
            .filter(|mutation| {
                let only = self.only.as_deref();
                only.is_none_or(|only| only.iter().any(|name| name == mutation.name))
            })
            .collect();
        let elsewhere: Vec<Mutation> = match &self.profile {
            Some(name) => {
                let way = Way::Profile(profile(name)?.name);
                wanted.iter().map(|one| Mutation { way, ..**one }).collect()
            }
            None => Vec::new(),
        };
        let wanted: Vec<&Mutation> = match &self.profile {
            Some(_) => elsewhere.iter().collect(),
            None => wanted,
        };
        ensure!(!wanted.is_empty(), "there is no mutation {:?}", self.only);
        let quiet = self.json || self.markdown;
        let fates = try_all(&wanted, self.jobs, self.first_seed, self.events, |fate| {
            if !quiet {
                println!("{}", line(fate));
            }
        })?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&fates)?);
        } else if self.markdown {
            print!("{}", markdown(&fates));
        }
        let missed = fates.iter().filter(|fate| fate.caught.is_none()).count();
        if !quiet {
            println!("{} of {} caught", fates.len() - missed, fates.len());
        }
        Ok(if missed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(exit::NOT_CAUGHT)
        })
    }
}

fn line(fate: &Fate) -> String {
    let Fate {
        name,
        way,
        seeds,
        events,
        ..
    } = fate;
    match &fate.caught {
        Some(check) => {
            format!("{name}: caught by {check} ({way}, {seeds} seeds, {events} events)")
        }
        None => format!("{name}: NOT CAUGHT ({way}, {seeds} seeds, {events} events)"),
    }
}
