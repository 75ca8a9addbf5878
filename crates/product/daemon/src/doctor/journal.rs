// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What boosts have left on a disk that are no more.

use std::fs;
use std::path::Path;

use erb_journal::{Segment, segments};

use super::Findings;
use crate::journal::{STATE_ROOT, boot_id, tell_left};

const SUBJECT: &str = "journal";

pub(super) fn examine(findings: &mut Findings) {
    let root = Path::new(STATE_ROOT).join("journal");
    let Ok(folders) = fs::read_dir(root) else {
        return; // there is none, or it is not for whoever asks
    };
    let boot = boot_id().ok();
    for folder in folders.flatten().map(|entry| entry.path()) {
        let mut found = segments(&folder).unwrap_or_default();
        // What was kept since the machine was started, a boost brings to Redis by itself.
        let is_left = |one: &Segment| {
            let is_new = one.identity().is_some_and(|of| Some(of.boot) == boot);
            !one.is_empty() && !one.is_at_work && !is_new
        };
        found.retain(is_left);
        if let Some(text) = tell_left(&folder, &found) {
            findings.warn(SUBJECT, text);
        }
    }
}
