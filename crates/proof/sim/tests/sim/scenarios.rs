// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scenarios: every trap of the design has one, and each sees the mistake that it names.

use std::collections::BTreeSet;

use erb_sim::mutate;
use erb_sim::scenario::{ALL, mistakes};

use crate::judged::Deliberate;
use crate::mutations::files;

#[test]
fn names_are_unique_and_every_trap_is_there() {
    let names: BTreeSet<&str> = ALL.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), ALL.len());
    for trap in 1..=31 {
        let prefix = format!("tcp-{trap:02}-");
        assert!(
            names.iter().any(|name| name.starts_with(&prefix)),
            "nothing about TCP trap {trap}"
        );
    }
}

/// Each scenario with the mistake that it is said to see.
pub fn all_mistakes() -> impl Iterator<Item = Deliberate> {
    mistakes().map(|case| {
        let mutation = mutate::all().find(|mutation| mutation.name == case.mistake);
        let mutation =
            mutation.unwrap_or_else(|| panic!("{}: no mistake {:?}", case.name, case.mistake));
        Deliberate {
            name: format!("scenario {} with {}", case.name, case.mistake),
            files: files(mutation.change),
            judge: Box::new(|| {
                let done = case.play_wrong().map_err(|error| format!("{error:#}"))?;
                let seen = done.err().map(|violation| violation.text);
                let seen = seen.ok_or("NOT SEEN")?;
                Ok(seen.lines().last().unwrap_or_default().to_owned())
            }),
        }
    })
}
