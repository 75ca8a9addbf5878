// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tiers while ERB is at work: once the other end of a boosted veth pair runs no XDP program any more, what
//! XDP answers arrives late, so XDP leaves and the TC tier goes on alone.
//!
//! Invariant: XDP never comes back by itself. A device that polls in a thread receives nothing any more
//! when XDP leaves it and comes again (seen on Linux 6.18).

use erb_datapath::{AttachMode, Attached, OtherEnd, WantedTiers, other_end};
use erb_redis::Stage;

use crate::daemon::Daemon;

/// Between looks at the other ends.
const LOOK_NS: u64 = 1_000_000_000;

/// When to look next; never, where XDP was asked for by name.
pub(crate) struct TierWatch(Option<u64>);

impl TierWatch {
    pub(crate) fn new(wanted: WantedTiers) -> Self {
        Self((wanted == WantedTiers::Best).then_some(0))
    }

    fn is_due(&mut self, now: u64) -> bool {
        match &mut self.0 {
            Some(at) if *at <= now => {
                *at = now + LOOK_NS;
                true
            }
            _ => false,
        }
    }
}

/// Why XDP is to leave a device. One that may not be asked says nothing new.
fn why_leave(attached: &Attached, end: Option<OtherEnd>) -> Option<&'static str> {
    let end = end.filter(|end| *end == OtherEnd::Sleeps)?;
    let native = attached.mode == AttachMode::Native;
    end.why_not_xdp().filter(|_| native)
}

impl Daemon {
    /// Looks at the other ends, once a second at most. What fails is tried again.
    pub(crate) fn keep_tiers(&mut self, now: u64) {
        if self.core.stage() != Stage::Running || !self.tiers.is_due(now) {
            return;
        }
        let mut changed = false;
        for attached in &mut self.boosted.notes.attached {
            let Some(why) = why_leave(attached, other_end(&attached.device)) else {
                continue;
            };
            if let Err(error) = self.core.machine().links.leave_xdp(&attached.device) {
                tracing::error!("{error}");
                continue;
            }
            tracing::warn!(
                "XDP leaves {}, the TC tier goes on alone: {why}",
                attached.device.name
            );
            attached.mode = AttachMode::Tc;
            why.clone_into(&mut attached.why_not_native);
            changed = true;
        }
        if changed {
            let written = self.boosted.run_dir.write_notes(&self.boosted.notes);
            written.unwrap_or_else(|error| tracing::error!("{error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use erb_datapath::Device;

    use super::*;

    #[test]
    fn xdp_leaves_only_where_it_is_and_the_other_end_sleeps() {
        let attached = |mode| Attached {
            device: Device {
                name: "s0".to_owned(),
                ifindex: 2,
            },
            mode,
            why_not_native: String::new(),
        };
        let (native, tc) = (attached(AttachMode::Native), attached(AttachMode::Tc));
        assert!(why_leave(&native, Some(OtherEnd::Sleeps)).is_some());
        for end in [None, Some(OtherEnd::Polls), Some(OtherEnd::Unknown)] {
            assert!(why_leave(&native, end).is_none(), "{end:?}");
        }
        assert!(why_leave(&tc, Some(OtherEnd::Sleeps)).is_none());
    }

    #[test]
    fn it_is_looked_at_once_a_second_unless_xdp_was_asked_for() {
        let mut best = TierWatch::new(WantedTiers::Best);
        let looks = [0, 1, LOOK_NS - 1, LOOK_NS, LOOK_NS + 1].map(|now| best.is_due(now));
        assert_eq!(looks, [true, false, false, true, false]);
        for wanted in [WantedTiers::Xdp, WantedTiers::Tc] {
            assert!(!TierWatch::new(wanted).is_due(LOOK_NS));
        }
    }
}
