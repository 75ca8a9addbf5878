// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Is the history of one key linearizable? Sound and complete for what the workload sends.
//!
//! # Method
//! Events (invocations and responses) are walked in order of time with the set of all
//! *configurations* that are still possible: the key's value plus which of the pending operations
//! have taken effect. At a response, configurations in which the operation has not yet taken
//! effect let pending operations take effect, that one last (just-in-time linearization; an
//! operation that nobody waits for may wait itself). No configuration left: not linearizable.
//! This is exact, so nil needs no uniqueness, and the work is exponential only in how many
//! operations on *one key* overlap.
//!
//! # What keeps the sets small
//! 1. A reply is known when its operation begins, so an operation without effect (GET, DEL -> 0)
//!    takes effect as soon as the value fits: that never hurts.
//! 2. Operations of one connection take effect in the order they were sent, as in Redis.
//! 3. Unknown DELs, SETs and INCRs (no reply) may take effect at any time after their invocation
//!    or never; they are tried only on the way to a response, like all others.
//!
//! 4. A few configurations mostly reach the end: first only [`BEAMS`] are kept, those with the
//!    fewest operations taken early. What survives is a real order, so that accepts; only if none
//!    survives and some were left out, the history is walked again with more.
//!
//! [`CONFIGS_MAX`] bounds the work; beyond it the verdict is "undecided", which is no pass.

use std::collections::{HashSet, VecDeque};
use std::fmt;

/// Configurations per key beyond which the checker gives up (some ten seconds, about 30 MB).
pub const CONFIGS_MAX: usize = 200_000;

/// Configurations kept in the first walks.
const BEAMS: [usize; 2] = [64, 2_048];

/// Value of a key: absent, a version or a counter.
pub type Value = Option<u64>;

/// What an operation did, with its reply where it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// GET that returned this.
    Get(Value),
    /// SET to this; its reply says nothing.
    Set(u64),
    /// DEL: `Some(true)` removed the key, `Some(false)` found none, `None` is unknown.
    Del(Option<bool>),
    /// INCR that returned this; `None` is unknown.
    Incr(Option<u64>),
    /// EXISTS and the like that found the key, or none.
    Exists(bool),
    /// STRLEN and the like that found so many bytes; none are of no key.
    Length(Measure, u64),
}

/// How long the value of a version is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// The number itself.
    Digits,
    /// What [`super::drive::value_bytes`] makes, with a name of so many bytes.
    Value {
        /// Bytes of the name.
        name: usize,
    },
    /// What [`super::drive::field_bytes`] makes of a name of one byte.
    Field,
}

impl Measure {
    fn of(self, value: Value) -> u64 {
        value.map_or(0, |version| match self {
            Self::Digits => version.to_string().len() as u64,
            Self::Value { name } => super::drive::value_len(name, version) as u64,
            Self::Field => super::drive::field_len(1, version) as u64,
        })
    }
}

/// One operation on the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// Connection: its operations take effect in the order of the slice.
    pub conn: u32,
    /// When the first byte may have left, ns.
    pub invoked: u64,
    /// When the reply had arrived, ns; `None`: never.
    pub answered: Option<u64>,
    /// What it did.
    pub action: Action,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| ns as f64 / 1e6;
        write!(f, "conn {} at {:.3} ms..", self.conn, ms(self.invoked))?;
        match self.answered {
            Some(t) => write!(f, "{:.3} ms: {:?}", ms(t), self.action),
            None => write!(f, "never: {:?}", self.action),
        }
    }
}

/// What the checker found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Some order explains every reply.
    Linearizable,
    /// No order explains the reply of the operation with this index, given all before it.
    Violation(usize),
    /// More than [`CONFIGS_MAX`] configurations at the operation with this index.
    Undecided(usize),
}

/// A possible state: the value and the pending operations that have taken effect (sorted).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Config {
    value: Value,
    done: Vec<u32>,
}

impl Config {
    fn has(&self, op: u32) -> bool {
        self.done.binary_search(&op).is_ok()
    }

    fn mark(&mut self, op: u32) {
        if let Err(at) = self.done.binary_search(&op) {
            self.done.insert(at, op);
        }
    }

    fn unmark(&mut self, op: u32) {
        if let Ok(at) = self.done.binary_search(&op) {
            self.done.remove(at);
        }
    }
}

/// Value after the action, or `None` if the action cannot have had its reply at this value.
fn apply(action: Action, value: Value) -> Option<Value> {
    match action {
        Action::Get(seen) => (seen == value).then_some(value),
        Action::Exists(seen) => (seen == value.is_some()).then_some(value),
        Action::Length(of, seen) => (seen == of.of(value)).then_some(value),
        Action::Set(new) => Some(Some(new)),
        Action::Del(None) => Some(None),
        Action::Del(Some(removed)) => (removed == value.is_some()).then_some(None),
        Action::Incr(reply) => {
            let next = value.unwrap_or(0) + 1;
            reply.is_none_or(|r| r == next).then_some(Some(next))
        }
    }
}

/// Operations that read and do nothing else.
#[must_use]
pub fn only_reads(action: Action) -> bool {
    matches!(
        action,
        Action::Get(_) | Action::Exists(_) | Action::Length(..)
    )
}

/// Operations that leave the value alone whenever they fit.
fn is_read(action: Action) -> bool {
    only_reads(action) || action == Action::Del(Some(false))
}

/// An invocation (`answered` false) or a response of the operation `op`.
struct Event {
    answered: bool,
    op: u32,
}

struct Checker<'a> {
    ops: &'a [Op],
    /// Invoked, not answered.
    pending: Vec<u32>,
    configs: HashSet<Config>,
    /// Configurations that are kept.
    limit: usize,
    /// Some were left out: that none is left proves nothing.
    truncated: bool,
}

/// Checks the operations of one key. The order of `ops` matters only within a connection.
#[must_use]
pub fn check(ops: &[Op], initial: Value) -> Verdict {
    let events = events(ops);
    for limit in BEAMS.into_iter().chain([CONFIGS_MAX]) {
        let start = Config {
            value: initial,
            done: Vec::new(),
        };
        let configs = HashSet::from([start]);
        let mut checker = Checker {
            ops,
            pending: Vec::new(),
            configs,
            limit,
            truncated: false,
        };
        match checker.walk(&events) {
            None => return Verdict::Linearizable,
            Some(op) if !checker.truncated => return Verdict::Violation(op),
            Some(op) if limit == CONFIGS_MAX => return Verdict::Undecided(op),
            Some(_) => {}
        }
    }
    unreachable!("the last limit always returns")
}

fn events(ops: &[Op]) -> Vec<Event> {
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * ops.len());
    for (i, op) in ops.iter().enumerate() {
        // An unanswered read says nothing.
        if op.answered.is_none() && only_reads(op.action) {
            continue;
        }
        events.push((op.invoked, false, i));
        if let Some(t) = op.answered {
            events.push((t, true, i));
        }
    }
    // Equal times count as overlapping: invocations first. Index keeps a connection's order.
    events.sort_unstable();
    events
        .into_iter()
        .map(|(_, answered, op)| Event {
            answered,
            op: op as u32,
        })
        .collect()
}

impl Checker<'_> {
    /// The operation at which no configuration is left, if there is one.
    fn walk(&mut self, events: &[Event]) -> Option<usize> {
        for event in events {
            if event.answered {
                self.answer(event.op);
                if self.configs.is_empty() {
                    return Some(event.op as usize);
                }
            } else {
                self.invoke(event.op);
            }
        }
        None
    }

    fn invoke(&mut self, op: u32) {
        self.pending.push(op);
        if is_read(self.ops[op as usize].action) {
            let configs = std::mem::take(&mut self.configs);
            self.configs = configs.into_iter().map(|c| self.read_eagerly(c)).collect();
        }
    }

    fn answer(&mut self, op: u32) {
        let (ready, todo): (Vec<Config>, Vec<Config>) = std::mem::take(&mut self.configs)
            .into_iter()
            .partition(|c| c.has(op));
        let mut next: HashSet<Config> = ready.into_iter().collect();
        let mut seen: HashSet<Config> = todo.iter().cloned().collect();
        // In order of steps taken: what takes the fewest operations early comes first.
        let mut todo = VecDeque::from(todo);
        while let Some(config) = todo.pop_front() {
            if next.len() >= self.limit || seen.len() >= 8 * self.limit {
                self.truncated = true;
                break;
            }
            for &p in &self.pending {
                let Some(stepped) = self.step(&config, p) else {
                    continue;
                };
                if stepped.has(op) {
                    next.insert(stepped);
                } else if seen.insert(stepped.clone()) {
                    todo.push_back(stepped);
                }
            }
        }
        self.pending.retain(|&p| p != op);
        self.configs = next
            .into_iter()
            .map(|mut c| {
                c.unmark(op);
                c
            })
            .collect();
    }

    /// The configuration after `op` took effect, if it may.
    fn step(&self, config: &Config, op: u32) -> Option<Config> {
        if config.has(op) || !self.is_first_of_its_connection(config, op) {
            return None;
        }
        let value = apply(self.ops[op as usize].action, config.value)?;
        let mut stepped = Config {
            value,
            done: config.done.clone(),
        };
        stepped.mark(op);
        Some(self.read_eagerly(stepped))
    }

    /// Lets every pending read that fits take effect.
    fn read_eagerly(&self, mut config: Config) -> Config {
        loop {
            let fits = self.pending.iter().copied().find(|&p| {
                let action = self.ops[p as usize].action;
                is_read(action)
                    && !config.has(p)
                    && apply(action, config.value).is_some()
                    && self.is_first_of_its_connection(&config, p)
            });
            match fits {
                Some(p) => config.mark(p),
                None => return config,
            }
        }
    }

    /// Whether all earlier pending operations of the same connection have taken effect. An
    /// unknown one may never have, so it holds up nothing.
    fn is_first_of_its_connection(&self, config: &Config, op: u32) -> bool {
        let conn = self.ops[op as usize].conn;
        !self.pending.iter().any(|&p| {
            let other = &self.ops[p as usize];
            p < op && other.conn == conn && other.answered.is_some() && !config.has(p)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `(conn, invoked, answered (0: never), action)` as an operation.
    fn op(conn: u32, invoked: u64, answered: u64, action: Action) -> Op {
        let answered = (answered > 0).then_some(answered);
        Op {
            conn,
            invoked,
            answered,
            action,
        }
    }

    use Action::{Del, Get, Incr, Set};

    fn bad(ops: &[Op]) -> bool {
        matches!(check(ops, None), Verdict::Violation(_))
    }

    fn good(ops: &[Op]) -> bool {
        check(ops, None) == Verdict::Linearizable
    }

    #[test]
    fn what_only_counts_or_measures_is_a_read_all_the_same() {
        use Action::{Exists, Length};
        let number = |n| Length(Measure::Digits, n);
        let written = [op(0, 0, 10, Set(9)), op(0, 20, 30, Set(10))];
        let after = |action| [written[0], written[1], op(1, 31, 40, action)];
        assert!(good(&after(number(2))) && bad(&after(number(1))));
        assert!(good(&after(Exists(true))) && bad(&after(Exists(false))));
        let deleted = [op(0, 0, 10, Set(9)), op(0, 20, 30, Del(Some(true)))];
        let after = |action| [deleted[0], deleted[1], op(1, 31, 40, action)];
        assert!(good(&after(number(0))) && bad(&after(Exists(true))));
    }

    #[test]
    fn stale_read_after_a_completed_write_is_rejected() {
        let set = [op(0, 0, 10, Set(1)), op(0, 20, 30, Set(2))];
        assert!(bad(&[set[0], set[1], op(1, 31, 40, Get(Some(1)))]));
        assert!(good(&[set[0], set[1], op(1, 29, 40, Get(Some(1)))]));
        assert!(good(&[set[0], set[1], op(1, 31, 40, Get(Some(2)))]));
    }

    #[test]
    fn stale_nil_and_value_after_a_delete_are_rejected() {
        assert!(bad(&[op(0, 0, 10, Set(1)), op(1, 11, 20, Get(None))]));
        let gone = [op(0, 0, 10, Set(1)), op(0, 20, 30, Del(Some(true)))];
        assert!(bad(&[gone[0], gone[1], op(1, 31, 40, Get(Some(1)))]));
        assert!(good(&[gone[0], gone[1], op(1, 31, 40, Get(None))]));
        assert!(bad(&[
            op(0, 0, 10, Set(1)),
            op(1, 20, 30, Del(Some(false)))
        ]));
        assert!(bad(&[op(0, 0, 10, Del(Some(true)))]));
    }

    #[test]
    fn one_delete_cannot_explain_two_gaps() {
        // 1 is set, seen nil, seen 1 again: the value came back although nobody set it again.
        let ops = [
            op(0, 0, 10, Set(1)),
            op(1, 5, 100, Del(Some(true))),
            op(2, 20, 30, Get(None)),
            op(2, 40, 50, Get(Some(1))),
        ];
        assert!(bad(&ops));
        assert!(good(&ops[..3]));
    }

    #[test]
    fn reading_back_in_time_while_the_write_runs_is_rejected() {
        let ops = [
            op(0, 0, 10, Set(1)),
            op(0, 20, 100, Set(2)),
            op(1, 30, 40, Get(Some(2))),
            op(2, 50, 60, Get(Some(1))),
        ];
        assert!(bad(&ops));
        assert!(good(&ops[..3]));
    }

    #[test]
    fn reading_a_value_before_it_was_written_or_never_is_rejected() {
        assert!(bad(&[op(1, 0, 10, Get(Some(1))), op(0, 11, 20, Set(1))]));
        assert!(bad(&[op(1, 0, 10, Get(Some(9))), op(0, 0, 20, Set(1))]));
    }

    #[test]
    fn lost_updates_of_a_counter_are_rejected() {
        assert!(bad(&[
            op(0, 0, 10, Incr(Some(1))),
            op(1, 0, 10, Incr(Some(1)))
        ]));
        assert!(good(&[
            op(0, 0, 10, Incr(Some(2))),
            op(1, 0, 10, Incr(Some(1)))
        ]));
        assert!(bad(&[
            op(0, 0, 10, Incr(Some(2))),
            op(1, 11, 20, Incr(Some(1)))
        ]));
        assert!(bad(&[
            op(0, 0, 10, Incr(Some(1))),
            op(1, 11, 20, Get(None))
        ]));
    }

    #[test]
    fn a_counter_counts_by_one_from_what_is_there() {
        assert!(good(&[op(0, 0, 10, Incr(Some(1)))]));
        assert!(bad(&[op(0, 0, 10, Incr(Some(2)))]));
        let set = op(0, 0, 10, Set(5));
        assert!(bad(&[set, op(1, 11, 20, Incr(Some(5)))]));
        assert!(good(&[set, op(1, 11, 20, Incr(Some(6)))]));
        assert!(bad(&[set, op(1, 11, 20, Incr(Some(7)))]));
    }

    #[test]
    fn unknown_writes_may_act_late_or_never_but_not_early() {
        let unknown = op(0, 20, 0, Set(2));
        let first = op(1, 0, 10, Set(1));
        assert!(good(&[first, unknown, op(2, 900, 910, Get(Some(1)))]));
        assert!(good(&[
            first,
            unknown,
            op(2, 900, 910, Get(Some(1))),
            op(2, 920, 930, Get(Some(2)))
        ]));
        assert!(bad(&[first, unknown, op(2, 11, 19, Get(Some(2)))]));
        assert!(bad(&[
            first,
            unknown,
            op(2, 900, 910, Get(Some(2))),
            op(2, 920, 930, Get(Some(1)))
        ]));
    }

    #[test]
    fn a_pipeline_keeps_its_order() {
        let pipeline = [op(0, 0, 10, Set(1)), op(0, 0, 11, Set(2))];
        assert!(good(&[
            pipeline[0],
            pipeline[1],
            op(1, 20, 30, Get(Some(2)))
        ]));
        assert!(bad(&[
            pipeline[0],
            pipeline[1],
            op(1, 20, 30, Get(Some(1)))
        ]));
    }

    /// Tries every order: the definition itself.
    fn brute(ops: &[Op], done: u32, value: Value) -> bool {
        let left = |i: usize| done & (1 << i) == 0;
        if (0..ops.len()).all(|i| !left(i) || ops[i].answered.is_none()) {
            return true;
        }
        (0..ops.len()).filter(|&i| left(i)).any(|i| {
            // Nothing that is left and must act may have been answered before i began, or come
            // earlier on i's connection.
            let barred = (0..ops.len()).any(|j| {
                j != i
                    && left(j)
                    && (ops[j].answered.is_some_and(|t| t < ops[i].invoked)
                        || (ops[j].conn == ops[i].conn && j < i && ops[j].answered.is_some()))
            });
            !barred
                && apply(ops[i].action, value).is_some_and(|next| brute(ops, done | 1 << i, next))
        })
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            3 => prop::option::of(1..4u64).prop_map(Get),
            2 => (1..4u64).prop_map(Set),
            2 => prop::option::weighted(0.9, any::<bool>()).prop_map(Del),
            1 => prop::option::weighted(0.9, 1..4u64).prop_map(Incr),
        ]
    }

    /// Up to seven operations, each connection strictly one after the other in invocation.
    fn history() -> impl Strategy<Value = Vec<Op>> {
        let one = (
            0..3u32,
            0..20u64,
            1..12u64,
            prop::bool::weighted(0.9),
            action(),
        );
        prop::collection::vec(one, 1..8).prop_map(|raw| {
            let mut ops: Vec<Op> = raw
                .into_iter()
                .map(|(conn, at, took, known, action)| {
                    let known = known && !matches!(action, Del(None) | Incr(None));
                    op(conn, at, if known { at + took } else { 0 }, action)
                })
                .collect();
            ops.sort_by_key(|o| o.invoked);
            ops
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 20_000,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        #[test]
        fn agrees_with_trying_every_order(ops in history()) {
            // A GET without reply is dropped by the checker; brute force never needs it.
            let expected = brute(&ops, 0, None);
            prop_assert_eq!(check(&ops, None) == Verdict::Linearizable, expected);
        }
    }

    #[test]
    fn the_comparison_sees_both_kinds() {
        use proptest::strategy::ValueTree;
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let good_count = (0..500)
            .filter(|_| brute(&history().new_tree(&mut runner).unwrap().current(), 0, None))
            .count();
        assert!(
            (50..450).contains(&good_count),
            "{good_count} of 500 are linearizable"
        );
    }
}
