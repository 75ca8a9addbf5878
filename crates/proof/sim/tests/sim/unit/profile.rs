// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The list of profiles.

use erb_sim::profile::{PROFILES, find};

#[test]
fn names_are_unique() {
    for (index, profile) in PROFILES.iter().enumerate() {
        assert!(
            PROFILES[..index]
                .iter()
                .all(|other| other.name != profile.name)
        );
        assert_eq!(find(profile.name), Some(profile));
    }
}
