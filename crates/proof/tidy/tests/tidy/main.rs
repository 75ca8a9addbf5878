// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads every file of the repository that git would track and complains with file and line. What
//! a rule is for stands above its test.

mod arrows;
mod docs;
mod documents;
mod files;
mod functions;
mod generated;
mod parts;
mod sources;
mod unsteady;
mod versions;
mod wall;
mod watched;

/// Fails with all complaints, one per line.
fn assert_none(rule: &str, complaints: &[String]) {
    assert!(
        complaints.is_empty(),
        "{rule}; {} to mend:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
}
