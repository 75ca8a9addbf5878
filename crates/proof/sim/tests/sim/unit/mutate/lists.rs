// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lists of mistakes: names, texts in the sources, profiles and scenarios that there are.

use erb_sim::mutate::source::{self, Edit};
use erb_sim::mutate::{Change, Way, all, profiles};
use erb_sim::scenario;

#[test]
fn there_are_enough_and_names_are_unique() {
    let mut names: Vec<&str> = all().map(|mutation| mutation.name).collect();
    assert!(names.len() >= 40);
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "two mutations have the same name");
}

#[test]
fn every_text_is_in_the_sources_exactly_once() {
    let mut complaints = Vec::new();
    for mutation in all() {
        if let Change::Source(edits) = mutation.change
            && let Err(error) = source::edited(edits)
        {
            complaints.push(format!("{}: {error}", mutation.name));
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn every_way_exists() {
    for mutation in all() {
        let exists = match mutation.way {
            Way::Profile(name) => profiles::find(name).is_some(),
            Way::Scenario(name) => scenario::find(name).is_some(),
        };
        assert!(exists, "{}: no {}", mutation.name, mutation.way);
    }
}

#[test]
fn a_text_that_is_there_twice_is_refused() {
    let twice = Edit {
        file: "splice/splice.h",
        find: "conn->edge",
        replace: "",
    };
    assert!(source::edited(&[twice]).is_err());
}
