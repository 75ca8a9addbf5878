// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The steps of a judged history.

use erb_store::{Condition, Key, Refused, RollBack, Selector, Target, Version};

use crate::judge::{Judge, Judgement, key_of, name_of, same};

/// Prefixes: none, some that are keys too, one of no key.
const PREFIXES: [&[u8]; 7] = [b"", b"", b"k", b"k0", b"k00", b"k0001", b"x"];
const NAMESPACES: [u16; 3] = [1, 1, 2];
/// How far back a moment is asked for.
const MOMENTS_BACK: u64 = 50;
/// Most versions that a floor stays behind.
const FLOOR_BACK: u64 = 40;

/// One step.
pub(crate) fn step(judge: &mut Judge) -> Judgement {
    match judge.random.u32(..100) {
        0..30 => write(judge),
        30..38 => restore(judge),
        38..50 => roll_back(judge),
        50..54 => snapshot(judge),
        54..58 => retention(judge),
        58..68 => trim(judge),
        68..72 => sweep(judge),
        72..74 => {
            judge.checkpoint();
            Ok(())
        }
        74..77 => judge.crash(),
        77..81 => keys(judge),
        81..85 => {
            let name = name(judge);
            judge.move_one(&name)
        }
        _ => read(judge),
    }
}

/// A key's name: few prefixes, some long ones, the empty one.
fn name(judge: &mut Judge) -> Vec<u8> {
    let namespace = NAMESPACES[judge.random.usize(..NAMESPACES.len())];
    let number = judge.random.u32(..judge.keys);
    let bytes = match number {
        0 => String::new(),
        _ if number % 5 == 4 => format!("k{number:04}, which is longer than its entry"),
        _ => format!("k{number:04}"),
    };
    name_of(Key {
        namespace,
        bytes: bytes.as_bytes(),
    })
}

fn write(judge: &mut Judge) -> Judgement {
    let name = name(judge);
    let head = judge.oracle.past(&name).last();
    let head = Version::new(head.map_or(0, |head| head.version));
    let condition = match judge.random.u8(..8) {
        0 => Condition::Head(head),
        1 => Condition::Head(head.before()),
        2 => Condition::Absent,
        3 => Condition::Present,
        _ => Condition::Any,
    };
    let is_met = judge.is_met(&name, condition);
    match judge.engine.prepare(key_of(&name), condition) {
        Ok(found) => {
            let found = found.map_or(Version::ZERO, |held| held.version);
            same("the head that is written over", &found, &head)?;
            same("a condition that is met", &true, &is_met)?;
            let is_delete = judge.random.u8(..4) == 0;
            judge.write(&name, is_delete)
        }
        Err(Refused::Mismatch) => same("a condition that is not met", &false, &is_met),
        Err(refused) => Err(format!("a write is refused: {refused:?}")),
    }
}

/// A cut that nothing was trimmed above.
fn cut(judge: &mut Judge) -> Version {
    if judge.random.bool() {
        return Version::MAX;
    }
    let lowest = judge.lowest_cut.min(judge.newest);
    Version::new(judge.random.u64(lowest..=judge.newest))
}

fn moment(judge: &mut Judge) -> Version {
    let snapshots: Vec<Version> = judge.engine.retention().snapshots().collect();
    if let (Some(held), 0..3) = (judge.random.choice(snapshots), judge.random.u8(..10)) {
        return held;
    }
    let oldest = judge.newest.saturating_sub(MOMENTS_BACK);
    Version::new(judge.random.u64(oldest..=judge.newest))
}

fn selector(judge: &mut Judge, name: &[u8]) -> Selector {
    match judge.random.u8(..4) {
        0 => Selector::Head,
        1 => {
            let past = judge.oracle.past(name);
            let chosen = judge.random.choice(past).map(|one| one.version);
            Selector::Version(Version::new(chosen.unwrap_or(7)))
        }
        2 => Selector::Back(judge.random.u32(..7)),
        _ => Selector::AsOf(moment(judge)),
    }
}

fn read(judge: &mut Judge) -> Judgement {
    let (name, cut) = (name(judge), cut(judge));
    let selector = selector(judge, &name);
    let found = judge.engine.read(key_of(&name), selector, cut);
    let found = found.map(|held| held.map(|held| judge.past_of(held)));
    let wanted = judge.read_by_oracle(&name, selector, cut);
    same(
        &format!("{selector:?} of {name:?} at {cut}"),
        &found,
        &wanted,
    )
}

fn restore(judge: &mut Judge) -> Judgement {
    let name = name(judge);
    let selector = selector(judge, &name);
    let wanted = judge.read_by_oracle(&name, selector, Version::MAX);
    let wanted = wanted.and_then(|found| found.ok_or(Refused::NoSuch));
    match judge.engine.restorable(key_of(&name), selector) {
        Ok((place, from)) => {
            let wanted = wanted.map(|past| past.version);
            same("what is restored", &Ok(from.number()), &wanted)?;
            judge.restore(&name, place, from)
        }
        Err(refused) => same(
            "a restore that is refused",
            &Err(refused),
            &wanted.map(|_| ()),
        ),
    }
}

fn roll_back(judge: &mut Judge) -> Judgement {
    let (mut target, id) = (Target::Moment(moment(judge)), judge.next());
    if judge.random.u8(..3) == 0 {
        target = Target::Back(judge.random.u32(..5));
    }
    let since = judge.newest.saturating_sub(judge.random.u64(..40));
    let mut row = RollBack {
        id,
        namespace: NAMESPACES[judge.random.usize(..NAMESPACES.len())],
        prefix: PREFIXES[judge.random.usize(..PREFIXES.len())].to_vec(),
        target,
        unless_written_since: (judge.random.u8(..3) == 0).then_some(Version::new(since)),
    };
    let spares = judge.random.bool();
    if let (Some(last), 0..3) = (judge.last_row().cloned(), judge.random.u8(..10)) {
        row = last.undo(id, spares);
    }
    if judge.random.u8(..20) == 0 {
        row.target = Target::Moment(id);
    }
    let retention = judge.engine.retention();
    let known = match row.target {
        Target::Moment(moment) if moment >= id => Err(Refused::Future),
        Target::Moment(moment) => retention
            .knows(moment)
            .then_some(())
            .ok_or(Refused::Trimmed),
        // How far counts are good is judged when one is accepted; below the least ever they must be.
        Target::Back(back) if back < retention.counted() => Ok(()),
        Target::Back(_) => Err(Refused::Trimmed),
    };
    let since = row.unless_written_since.unwrap_or(Version::MAX);
    let is_spared_known = since >= retention.floor();
    let wanted = known.and_then(|()| is_spared_known.then_some(()).ok_or(Refused::Trimmed));
    let found = judge.engine.prepare_roll_back(&row);
    if let (Ok(()), Target::Back(_)) = (found, row.target) {
        return judge.roll_back(row);
    }
    same(&format!("{row:?}"), &found, &wanted)?;
    if found.is_ok() {
        judge.roll_back(row)
    } else {
        Ok(())
    }
}

fn snapshot(judge: &mut Judge) -> Judgement {
    let snapshots: Vec<Version> = judge.engine.retention().snapshots().collect();
    let now = judge.now();
    match judge.random.choice(&snapshots) {
        Some(held) if snapshots.len() > 2 || judge.random.bool() => same(
            "a release",
            &judge.engine.retention_mut().release(*held),
            &true,
        ),
        _ => same("a snapshot", &judge.engine.retention_mut().take(now), &true),
    }
}

fn retention(judge: &mut Judge) -> Judgement {
    let floor = judge.newest.saturating_sub(judge.random.u64(..FLOOR_BACK));
    let deleted_floor = floor.saturating_sub(judge.random.u64(..FLOOR_BACK));
    let min_count = judge.random.u32(1..5);
    let changes_count = judge.random.u8(..8) == 0;
    let retention = judge.engine.retention_mut();
    retention.raise(Version::new(floor), Version::new(deleted_floor));
    if changes_count {
        retention.set_min_count(min_count);
    }
    Ok(())
}

/// The watermark, or a cut in flight: reads are at or above it from now on.
fn below(judge: &mut Judge) -> Version {
    let below = judge.newest.saturating_sub(judge.random.u64(..10));
    let bound = below.min(judge.engine.retention().floor().number());
    judge.lowest_cut = judge.lowest_cut.max(bound);
    Version::new(below)
}

fn trim(judge: &mut Judge) -> Judgement {
    let (name, below) = (name(judge), below(judge));
    match judge.engine.trim(key_of(&name), below) {
        Some(trim) => judge.trimmed(trim, below),
        None => Ok(()),
    }
}

fn sweep(judge: &mut Judge) -> Judgement {
    let below = below(judge);
    let swept = judge.engine.sweep(below);
    for trim in swept.trims {
        judge.trimmed(trim, below)?;
    }
    // All of it is durable here.
    if let Some(counted) = swept.counted {
        judge.engine.retention_mut().set_counted(counted);
    }
    Ok(())
}

/// All keys of a scope, page by page, as of a moment; perhaps also those that were deleted since another.
fn keys(judge: &mut Judge) -> Judgement {
    let scope = Key {
        namespace: NAMESPACES[judge.random.usize(..NAMESPACES.len())],
        bytes: PREFIXES[judge.random.usize(..PREFIXES.len())],
    };
    let (since, most) = (moment(judge), judge.random.usize(1..40));
    let (moment, since) = (moment(judge), judge.random.bool().then_some(since));
    let mut found = Vec::new();
    let mut from = Some(0);
    while let Some(hash) = from {
        let cut = Version::MAX;
        let page = match judge.engine.keys(scope, hash, moment, since, cut, most) {
            Ok(page) => page,
            Err(refused) => {
                let retention = judge.engine.retention();
                let known = retention.knows(moment)
                    && since.is_none_or(|since| since >= retention.deleted_floor());
                return same("a listing", &(refused, known), &(Refused::Trimmed, false));
            }
        };
        found.extend(page.keys.iter().map(|(bytes, held)| {
            let namespace = scope.namespace;
            (name_of(Key { namespace, bytes }), held.version.number())
        }));
        from = page.next;
    }
    found.sort();
    let prefix = name_of(scope);
    let names = judge.oracle.keys().map(|(name, _)| name);
    let names = names.filter(|name| name.starts_with(&prefix));
    let present = names.filter_map(|name| {
        let past = judge.oracle.at(name, moment.number())?;
        let is_since = since.is_some_and(|since| past.version > since.number());
        (!past.deleted || is_since).then(|| (name.to_vec(), past.version))
    });
    let mut present: Vec<(Vec<u8>, u64)> = present.collect();
    // Of a key that was forgotten the oracle has nothing of before.
    for (name, deleted) in judge.forgotten.iter().filter(|_| since.is_some()) {
        let is_in = name.starts_with(&prefix) && *deleted <= moment.number();
        let is_since = since.is_some_and(|since| *deleted > since.number());
        if is_in && is_since && judge.oracle.at(name, moment.number()).is_none() {
            present.push((name.clone(), *deleted));
        }
    }
    present.sort();
    same(&format!("keys of {scope:?} at {moment}"), &found, &present)
}
