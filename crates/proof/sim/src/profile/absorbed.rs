// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The profile in which writes are answered in Redis's place all the time, and drained later.

use crate::profile::{Events, Profile, list::ALL};
use crate::time::MS;

pub(super) const ABSORBED: Profile = Profile {
    name: "absorbed",
    about: "LSNs are given and drained all the time, with everything else at once",
    events: Events {
        absorb: 3 * MS,
        ..ALL.events
    },
    ..ALL
};
