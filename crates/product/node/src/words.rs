// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the protocol and the engine call the same things.

use erb_nvme::backend::{self, Head};
use erb_nvme::status::Filled;
use erb_store::control::Control;
use erb_store::record::RecordHead;
use erb_store::{Cached, Condition, Held, Origin, Place, Refused, Selector, Settings, Version};

pub(crate) fn selector(at: backend::Selector) -> Selector {
    match at {
        backend::Selector::Head => Selector::Head,
        backend::Selector::Version(version) => Selector::Version(Version::new(version)),
        backend::Selector::Back(back) => Selector::Back(back),
        backend::Selector::AsOf(moment) => Selector::AsOf(Version::new(moment)),
    }
}

pub(crate) fn condition(of: backend::Condition) -> Condition {
    match of {
        backend::Condition::Any => Condition::Any,
        backend::Condition::Head(version) => Condition::Head(Version::new(version)),
        backend::Condition::Present => Condition::Present,
        backend::Condition::Absent => Condition::Absent,
    }
}

/// Why something is refused. Of a mismatch the head has to be said by who knows it.
pub(crate) fn refused(why: Refused) -> backend::Refused {
    match why {
        Refused::Trimmed => backend::Refused::Trimmed,
        Refused::NoSuch => backend::Refused::NoSuchVersion,
        Refused::Uncertain => backend::Refused::Damaged,
        Refused::Mismatch => backend::Refused::Mismatch(0),
        Refused::Locked => backend::Refused::Locked,
        Refused::Future => backend::Refused::Future,
        Refused::Full => backend::Refused::Full(Filled::Memory),
        Refused::ManyVersions => backend::Refused::Full(Filled::Versions),
        Refused::NoSpace => backend::Refused::Full(Filled::Retained),
        Refused::NoSpaceForLive => backend::Refused::Full(Filled::Live),
        Refused::Busy | Refused::Starting => backend::Refused::Busy,
        Refused::Twice | Refused::DigestTaken => backend::Refused::Invalid,
    }
}

fn flags(place: Place) -> u32 {
    let origin = match place.origin() {
        Origin::Written => 0,
        Origin::Restored => Head::RESTORED,
        Origin::RolledBack => Head::ROLLED_BACK,
    };
    let deleted = if place.is_deleted() { Head::DELETED } else { 0 };
    let gap = if place.has_gap() { Head::GAP } else { 0 };
    let unsure = if place.is_uncertain() {
        Head::UNCERTAIN
    } else {
        0
    };
    origin | deleted | gap | unsure
}

/// What is known of a version; none: there is no record, the key was never written by then.
pub(crate) fn head(held: &Held, record: Option<&RecordHead>) -> Head {
    Head {
        version: held.version.number(),
        source: record.map_or(0, |it| it.version.number()),
        bytes: record.map_or(0, |it| it.value_bytes),
        flags: flags(held.place),
        writer: record.map_or(0, |it| it.writer),
        expiry_ms: record.map_or(0, |it| it.expiry_ms),
    }
}

/// The same of a version whose record is damaged.
pub(crate) fn damaged(held: &Held) -> Head {
    let head = head(held, None);
    Head {
        flags: head.flags | Head::DAMAGED,
        ..head
    }
}

/// How long versions are kept, and what is to be known beside that.
pub(crate) fn kept(control: &Control) -> backend::Kept {
    let (state, run_us) = (control.state(), control.run_us());
    let less = state.shortening.map(|less| {
        let at_us = less.at_us.max(state.locked_until_us);
        (retention(less.to), at_us.saturating_sub(run_us))
    });
    backend::Kept {
        retention: retention(state.settings()),
        locked_us: state.locked_until_us.saturating_sub(run_us),
        less,
    }
}

fn retention(settings: Settings) -> backend::Retention {
    backend::Retention {
        min_age_us: settings.min_age_us,
        keep_deleted_us: settings.keep_deleted_us,
        min_count: settings.min_count,
    }
}

pub(crate) fn settings(of: backend::Retention) -> Settings {
    Settings {
        min_age_us: of.min_age_us,
        keep_deleted_us: of.keep_deleted_us.max(of.min_age_us),
        min_count: of.min_count.max(1),
        // The control log keeps what it was.
        counted: 1,
    }
}

/// The same of a version whose value is in memory.
pub(crate) fn cached_head(held: &Held, cached: &Cached<'_>) -> Head {
    Head {
        source: cached.version.number(),
        bytes: u32::try_from(cached.value.len()).expect("values have 1 MiB at most"),
        writer: cached.writer,
        expiry_ms: cached.expiry_ms,
        ..head(held, None)
    }
}
