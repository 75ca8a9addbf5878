// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The deliberate mistakes of the table, each in runs of its profile or in its scenario.

use erb_sim::campaign::mutations::{EVENTS_MAX, try_one};
use erb_sim::mutate::source::edited;
use erb_sim::mutate::{self, Change, judged};

use crate::judged::Deliberate;

/// Told at once, and not by the slow test.
#[test]
fn every_mutation_has_its_place() {
    for mutation in mutate::all() {
        if let Change::Source(edits) = mutation.change {
            edited(edits).unwrap_or_else(|error| panic!("{}: {error:#}", mutation.name));
        }
    }
}

/// The files that a change touches.
pub fn files(change: Change) -> Vec<&'static str> {
    match change {
        Change::Source(edits) => edits.iter().map(|edit| edit.file).collect(),
        Change::Daemon(_) => vec![judged::DAEMON],
    }
}

pub fn mistakes() -> impl Iterator<Item = Deliberate> {
    mutate::all().map(|mutation| Deliberate {
        name: format!("mutation {}", mutation.name),
        files: files(mutation.change),
        judge: Box::new(|| {
            let fate = try_one(mutation, 1, EVENTS_MAX).map_err(|error| format!("{error:#}"))?;
            let seen = fate
                .caught
                .map(|check| format!("{check} ({}, {} events)", fate.way, fate.events));
            seen.ok_or_else(|| {
                format!("not caught in {} seeds, {} events", fate.seeds, fate.events)
            })
        }),
    })
}
