// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a run is to be: a seed, a profile, and what shrinking may cut.

use std::collections::BTreeMap;

use crate::fault::Faults;
use crate::mutate::DaemonMistake;
use crate::profile::Profile;
use crate::story::Keep;
use crate::time::Ns;
use crate::violation::Violation;

/// A run to be made. Everything random in it follows from the seed; connections and operations have
/// generators of their own, so that fewer of them leave the rest alike.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Rates and shape.
    pub profile: &'static Profile,
    /// Connections that clients open in all.
    pub connections: u32,
    /// Operations per connection at most.
    pub operations: u32,
    /// Kinds of faults that may happen.
    pub faults: Faults,
    /// Virtual time after which clients begin nothing new and faults end.
    pub duration: Ns,
}

impl Plan {
    /// The plan that `profile` and `seed` describe.
    #[must_use]
    pub fn new(profile: &'static Profile, seed: u64) -> Self {
        Self {
            seed,
            profile,
            connections: profile.connections,
            operations: profile.operations,
            faults: Faults::ALL,
            duration: profile.duration,
        }
    }
}

/// How a plan is run.
#[derive(Clone, Default)]
pub struct Options {
    /// The data path to run; the built-in one if `None`.
    pub library: Option<erb_sim_kernel::Library>,
    /// How much of the story is kept.
    pub keep: Keep,
    /// What the daemon gets wrong.
    pub mistake: Option<DaemonMistake>,
}

/// What a run was.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The rule that was broken, if one was.
    pub violation: Option<Violation>,
    /// Steps of the world.
    pub events: u64,
    /// Frames that reached a machine.
    pub packets: u64,
    /// Virtual time that passed.
    pub virtual_ns: Ns,
    /// Counters of all data paths of the run, by `enum erb_stat`.
    pub stats: Vec<u64>,
    /// Counted things by kind (`verdict`, `reason`, `state`, `fault`, `command`, `daemon`) and name.
    pub coverage: BTreeMap<(&'static str, String), u64>,
    /// The story, as far as it was kept.
    pub story: String,
}
