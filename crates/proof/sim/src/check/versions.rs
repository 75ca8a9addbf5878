// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which value each key had when, and whether a read may return a value.
//!
//! The Redis model gives the true order of all changes, so a read is right iff it has a *point*:
//! a place in that order, not before `from` and not after now, at which the key had the value.
//!
//! Why the points of one session may be chosen greedily, each the earliest that fits: reads change
//! nothing, so the points of one session bind nobody but the later requests of the same session,
//! and these only from below. If any choice explains all replies, so does the earliest one.
//!
//! Why real time needs no rule of its own: a point lies within [request sent .. reply received].
//! If one operation has ended before another begins, its point is therefore the earlier one, for
//! all keys at once: that is strict serializability. Only a value that an unseen change has
//! replaced may be older, by at most the allowance; its point then counts as `from`.

use std::collections::BTreeMap;
use std::sync::Arc;

use erb_sim_redis::{Bytes, Cause, Change, Stored};

use crate::time::{MS, Ns};

use super::Config;
use super::wire::show;

/// A place in the order of all records, with its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// Number of the record.
    pub stamp: u64,
    /// When it was.
    pub at: Ns,
}

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Where it may stand.
    pub point: Point,
    /// The value had been replaced by unseen changes before `from`.
    pub stale: bool,
}

/// What a key held.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// Its value.
    pub value: Value<'a>,
    /// When it expires, wall clock.
    pub expire_at_ms: Option<u64>,
}

/// A value of one of the types that are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A string.
    String(&'a [u8]),
    /// A hash, in the order of HGETALL.
    Hash(&'a [(Bytes, Bytes)]),
}

impl<'a> Held<'a> {
    /// The value, if it is a string.
    #[must_use]
    pub const fn string(self) -> Option<&'a [u8]> {
        match self.value {
            Value::String(value) => Some(value),
            Value::Hash(_) => None,
        }
    }

    /// The fields and values, if it is a hash.
    #[must_use]
    pub const fn hash(self) -> Option<&'a [(Bytes, Bytes)]> {
        match self.value {
            Value::Hash(pairs) => Some(pairs),
            Value::String(_) => None,
        }
    }
}

/// Whether what a key held explains a reply.
pub type Fits<'a> = &'a dyn Fn(Option<Held<'_>>) -> bool;

#[derive(Clone, Debug)]
struct Version {
    from: Point,
    value: Stored,
    expire_at_ms: Option<u64>,
    /// Made by a command that came through the data path.
    seen: bool,
    /// By one that was answered in Redis's place.
    absorbed: bool,
}

/// The values of all keys.
pub struct Versions {
    config: Config,
    wall_minus_mono_ms: i64,
    stepped_at: Option<Ns>,
    keys: BTreeMap<(u32, Bytes), Vec<Version>>,
}

impl Versions {
    /// No key exists.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            wall_minus_mono_ms: config.wall_minus_mono_ms,
            stepped_at: None,
            keys: BTreeMap::new(),
        }
    }

    /// Redis changed a key.
    pub fn change(&mut self, here: Point, change: &Change, seen: bool) {
        self.add(here, change, seen, false);
    }

    /// A write of a key was answered in Redis's place.
    pub fn absorb(&mut self, here: Point, change: &Change) {
        self.add(here, change, true, true);
    }

    fn add(&mut self, here: Point, change: &Change, seen: bool, absorbed: bool) {
        let versions = self
            .keys
            .entry((change.db, Arc::clone(&change.key)))
            .or_default();
        versions.push(Version {
            from: here,
            value: change.value.clone(),
            expire_at_ms: change.expire_at_ms,
            seen,
            absorbed,
        });
    }

    /// When, behind `from`, a SET of this value, with these options, was answered in Redis's place.
    #[must_use]
    pub fn absorbed(&self, db: u32, set: &[Bytes], from: Point) -> Option<Read> {
        let (key, value, options) = (set.first()?, set.get(1)?, set.get(2..)?);
        let versions = self.keys.get(&(db, Arc::clone(key)))?;
        let is_it = |version: &&Version| {
            let said = matches!(&version.value, Stored::String(said) if said == value);
            let behind = version.absorbed && version.from > from;
            said && behind
                && self.is_expiry(version.expire_at_ms, options, (from.at, version.from.at))
        };
        let found = versions.iter().find(is_it)?;
        Some(Read {
            point: found.from,
            stale: false,
        })
    }

    /// Whether a SET with these options, sent and executed within this time, makes its key expire then.
    fn is_expiry(&self, expiry_ms: Option<u64>, options: &[Bytes], (sent, done): (Ns, Ns)) -> bool {
        let [option, number] = options else {
            return options.is_empty() && expiry_ms.is_none();
        };
        let number = std::str::from_utf8(number)
            .ok()
            .and_then(|text| text.parse::<i64>().ok());
        let (Some(number), Some(expiry_ms)) = (number, expiry_ms) else {
            return false;
        };
        let expiry_ms = expiry_ms as i64;
        let within = self.wall_ms(sent)..=self.wall_ms(done);
        match option.to_ascii_lowercase().as_slice() {
            b"ex" => within.contains(&(expiry_ms - number * 1_000)),
            b"px" => within.contains(&(expiry_ms - number)),
            b"exat" => expiry_ms == number * 1_000,
            b"pxat" => expiry_ms == number,
            _ => false,
        }
    }

    /// Says of which key what Redis holds is not what it should hold; those that are left out may be anything.
    ///
    /// # Errors
    /// What the two say.
    pub fn agree(
        &self,
        content: &[Change],
        now: Ns,
        is_left_out: impl Fn(&(u32, Bytes)) -> bool,
    ) -> Result<(), String> {
        let holds = |db: u32, key: &Bytes| {
            let found = content
                .iter()
                .find(|held| held.db == db && held.key == *key);
            found.map_or((Stored::Gone, None), |held| {
                (held.value.clone(), held.expire_at_ms)
            })
        };
        let wanted = self.keys.iter().filter(|(key, _)| !is_left_out(key));
        for ((db, key), versions) in wanted {
            let Some(last) = versions.last() else {
                continue;
            };
            let is_over = last
                .expire_at_ms
                .is_some_and(|at| self.wall_ms(now) >= at as i64);
            let expected = if is_over {
                (Stored::Gone, None)
            } else {
                (last.value.clone(), last.expire_at_ms)
            };
            let found = holds(*db, key);
            let expires = is_over || found.1.is_some_and(|at| self.wall_ms(now) >= at as i64);
            if found != expected && !expires {
                return Err(format!(
                    "{} of database {db}: Redis holds {found:?}, told was {}",
                    show(key),
                    self.describe_in(*db, key)
                ));
            }
        }
        Ok(())
    }

    /// Redis is back with this content and nothing else; returns the keys that there were. Those that are left out hold
    /// what they held.
    pub fn restart(
        &mut self,
        here: Point,
        content: &[Change],
        is_left_out: impl Fn(&(u32, Bytes)) -> bool,
    ) -> Vec<(u32, Bytes)> {
        let mut keys: Vec<_> = self.keys.keys().cloned().collect();
        keys.retain(|key| !is_left_out(key));
        for (db, key) in &keys {
            let gone = Change {
                db: *db,
                key: Arc::clone(key),
                value: Stored::Gone,
                expire_at_ms: None,
                cause: Cause::Loaded,
            };
            self.change(here, &gone, false);
        }
        for change in content {
            if !is_left_out(&(change.db, Arc::clone(&change.key))) {
                self.change(here, change, false);
            }
        }
        keys
    }

    /// The wall clock was set. What expires when is then uncertain until the daemon has noticed.
    pub fn step_clock(&mut self, here: Point, wall_minus_mono_ms: i64) {
        self.wall_minus_mono_ms = wall_minus_mono_ms;
        self.stepped_at = Some(here.at);
    }

    /// Whether a GET whose point is not before `from` may have returned `value`; `None` is nil.
    #[must_use]
    pub fn read(&self, db: u32, key: &[u8], value: Option<&[u8]>, from: Point) -> Option<Read> {
        let (wanted, span) = (value.map(Value::String), (from, from.at));
        self.find(db, key, span, &|held| held.map(|held| held.value) == wanted)
    }

    /// The earliest point, not before `from` and not behind `now`, at which what the key held fits; `None`
    /// is no key.
    #[must_use]
    pub fn find(
        &self,
        db: u32,
        key: &[u8],
        (from, now): (Point, Ns),
        fits: Fits<'_>,
    ) -> Option<Read> {
        let fresh = Read {
            point: from,
            stale: false,
        };
        let Some(versions) = self.keys.get(&(db, Arc::from(key))) else {
            return fits(None).then_some(fresh);
        };
        // The version in force at `from`; nothing yet counts as absent.
        let first = versions.partition_point(|version| version.from <= from);
        if first == 0 && fits(None) {
            return Some(fresh);
        }
        let fresh_at = |point| {
            Some(Read {
                point,
                stale: false,
            })
        };
        for (at, version) in versions.iter().enumerate().skip(first.saturating_sub(1)) {
            let point = version.from.max(from);
            if self.holds(version, fits, point.at) {
                return fresh_at(point);
            }
            // A replica deletes nothing that expires: no record says when it was gone.
            let end = versions.get(at + 1).map_or(now, |next| next.from.at);
            if let Some(gone_at) = self.expires_at(version)
                && (point.at..=end.min(now)).contains(&gone_at)
                && self.holds(version, fits, gone_at)
            {
                return fresh_at(Point {
                    at: gone_at,
                    ..point
                });
            }
        }
        self.find_stale(&versions[..first], fits, from)
    }

    /// An older value, if only unseen changes lie between and they are recent. Its point is `from`.
    fn find_stale(&self, versions: &[Version], fits: Fits<'_>, from: Point) -> Option<Read> {
        let stale = Read {
            point: from,
            stale: true,
        };
        for at in (0..versions.len()).rev() {
            let change = &versions[at];
            if change.seen || change.from.at + self.config.unseen_ns < from.at {
                return None;
            }
            match at.checked_sub(1) {
                Some(before) if self.holds(&versions[before], fits, from.at) => {
                    return Some(stale);
                }
                None if fits(None) => return Some(stale),
                _ => {}
            }
        }
        None
    }

    /// Whether the clock was set so lately that nobody can tell what has expired.
    #[must_use]
    pub fn is_unsure(&self, at: Ns) -> bool {
        self.stepped_at
            .is_some_and(|step| at < step + 2 * self.config.unseen_ns)
    }

    /// The wall clock in Redis's milliseconds.
    #[must_use]
    pub const fn wall_ms(&self, at: Ns) -> i64 {
        (at / MS) as i64 + self.wall_minus_mono_ms
    }

    /// When a version is certainly not there any more by its expiry.
    fn expires_at(&self, version: &Version) -> Option<Ns> {
        let expiry_ms = i64::try_from(version.expire_at_ms?).ok()?;
        let at_ms = expiry_ms - self.wall_minus_mono_ms + (self.config.expiry_ns / MS) as i64;
        Some(Ns::try_from(at_ms).ok()? * MS)
    }

    fn holds(&self, version: &Version, fits: Fits<'_>, at: Ns) -> bool {
        let unsure = self.is_unsure(at);
        let expired = version.expire_at_ms.is_some_and(|expiry| {
            let allowed = expiry as i64 + (self.config.expiry_ns / MS) as i64;
            self.wall_ms(at) >= allowed
        });
        let gone = expired || (unsure && version.expire_at_ms.is_some());
        let value = match &version.value {
            Stored::String(value) => Value::String(value),
            Stored::Hash(pairs) => Value::Hash(pairs),
            Stored::Gone => return fits(None),
            Stored::Other(_) => return gone && fits(None),
        };
        let held = Held {
            value,
            expire_at_ms: version.expire_at_ms,
        };
        ((!expired || unsure) && fits(Some(held))) || (gone && fits(None))
    }

    /// The last versions of a key, for a message.
    #[must_use]
    pub fn describe(&self, key: &[u8]) -> String {
        self.describe_in(0, key)
    }

    /// The same in this database.
    fn describe_in(&self, db: u32, key: &[u8]) -> String {
        let Some(versions) = self.keys.get(&(db, Arc::from(key))) else {
            return "the key never existed".to_owned();
        };
        let last = versions.len().saturating_sub(4);
        let mut text = format!("{} changes, the last:", versions.len());
        for version in &versions[last..] {
            let value = match &version.value {
                Stored::Gone => "absent".to_owned(),
                Stored::String(value) => show(value),
                Stored::Hash(pairs) => format!("a hash of {} fields", pairs.len()),
                Stored::Other(name) => format!("a {name}"),
            };
            let seen = if version.seen { "seen" } else { "unseen" };
            text.push_str(&format!(
                " [{} {seen} {value}{}]",
                crate::time::show(version.from.at),
                version
                    .expire_at_ms
                    .map_or(String::new(), |at| format!(" until {at}"))
            ));
        }
        text
    }
}
