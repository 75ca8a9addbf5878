// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every verdict, reason and kind of fault is reached by runs or scenarios, or stands in the table
//! with why it cannot be. All is bounded by seeds: on a slow machine it is the same, and takes longer.

use erb_sim::campaign::{Report, all_profiles};
use erb_sim::mutate::profiles;
use erb_sim::profile::Profile;
use erb_sim::story::Keep;
use erb_sim::time::MS;
use erb_sim::{Fault, Options, Outcome, Plan, run};

/// Scenarios played at once.
const JOBS: usize = 2;
/// Of each profile.
const SEED: u64 = 1;
/// A sharpened run has its fault so often at least: far from never. What is drawn once in a run is certain there.
const SHARP_MIN: u64 = 3;
const DRAWN_ONCE: [Fault; 2] = [Fault::NoMeta, Fault::NoRoom];
/// Every run moves so many packets at least.
const PACKETS_MIN: u64 = 100;

/// A change of a profile.
type Sharpened = fn(&mut Profile);

/// Faults that a seed of each profile may miss, each with a profile and what makes it frequent there.
#[rustfmt::skip]
const SHARPENED: &[(Fault, &str, Sharpened)] = &[
    (Fault::Blackout, "lossy", |it| it.link.blackout_every = 300 * MS),
    (Fault::ClockStep, "unseen", |it| it.events.clock_step = 200 * MS),
    (Fault::DaemonStall, "crash", |it| it.events.daemon_stall = 500 * MS),
    (Fault::Detach, "oldconns", |it| it.events.detach = 400 * MS),
    (Fault::Elsewhere, "uplinks", |it| it.server.elsewhere = 1_000_000),
    (Fault::FeedCut, "crash", |it| it.events.feed_cut = 300 * MS),
    (Fault::Fragment, "segments", |it| it.link.fragment = 50_000),
    (Fault::Garbage, "churn", |it| it.client.garbage = 100_000),
    (Fault::IpOptions, "corrupt", |it| it.link.ip_options = 100_000),
    (Fault::MachineCrash, "crash", |it| { it.events.machine_crash = 400 * MS; it.events.redis_crash = 0; }),
    (Fault::Master, "admin", |it| it.events.master = 300 * MS),
    (Fault::NoMeta, "seldom", |it| it.server.no_meta = 1_000_000),
    (Fault::NoRoom, "calm", |it| it.server.no_room = 1_000_000),
    (Fault::RedisCrash, "crash", |it| it.events.redis_crash = 400 * MS),
    (Fault::Route, "uplinks", |it| it.server.route = 50_000),
    (Fault::Tiny, "forged", |it| it.link.tiny = 50_000),
    (Fault::TooBig, "segments", |it| it.link.too_big = 20_000),
    (Fault::Urgent, "corrupt", |it| it.link.urgent = 100_000),
];

/// Plays a plan, and notes what it reached or broke.
fn play(plan: &Plan, all: &mut Report) -> Outcome {
    let options = Options {
        keep: Keep::Nothing,
        ..Options::default()
    };
    let outcome = run(plan, &options);
    let (name, seed) = (plan.profile.name, plan.seed);
    if let Some(violation) = &outcome.violation {
        panic!("{name} seed {seed}: {violation}");
    }
    assert!(
        outcome.packets > PACKETS_MIN,
        "{name} seed {seed} did nothing"
    );
    all.reached.add(&outcome);
    outcome
}

#[test]
fn scenarios_and_a_run_of_each_profile_reach_everything() {
    let mut all = Report::default();
    all.play_scenarios(JOBS);
    for profile in all_profiles() {
        play(&Plan::new(profile, SEED), &mut all);
    }
    assert!(all.reached.times("reason", "FAST_GET") > 1_000);
    assert!(all.reached.times("reason", "REPLAY_REQUEST") > 0);
    assert!(all.reached.times("reason", "FENCE_TAKEN") > 0);
    let mut dull = Vec::new();
    for (fault, name, change) in SHARPENED {
        let mut profile = *profiles::find(name).unwrap_or_else(|| panic!("no profile {name}"));
        change(&mut profile);
        let outcome = play(&Plan::new(Box::leak(Box::new(profile)), SEED), &mut all);
        let key = ("fault", fault.to_string());
        let times = outcome.coverage.get(&key).copied().unwrap_or(0);
        println!("{fault} in {name}: {times}");
        let least = if DRAWN_ONCE.contains(fault) {
            1
        } else {
            SHARP_MIN
        };
        if times < least {
            dull.push(format!("{fault} happens {times} times in {name}"));
        }
    }
    assert!(dull.is_empty(), "sharpen more: {dull:?}");
    println!("{}", all.reached.text());
    assert!(all.failures.is_empty(), "{}", all.text());
    assert!(all.reached.missing().is_empty(), "{}", all.text());
    assert!(all.reached.impossible().is_empty(), "{}", all.text());
}
