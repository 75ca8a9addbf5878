// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why ERB is slower in a row: one line, from what was counted in the same runs.

use erb_bench::Spread;

use crate::report::figure;
use crate::row::{Facts, Figure, Row};

/// What is not this much worse is as good: it is shown as 1.00.
const AS_GOOD: f64 = 0.995;
/// A share from which on something explains a row.
const COUNTS: f64 = 0.01;
/// The same of what others took: clock ticks are this inexact over a short run.
const FOREIGN_COUNTS: f64 = 0.05;
/// From here on a latency says how long a processor was waited for.
const FOREIGN_DECIDES: f64 = 0.2;

/// The reason, if the row is worse.
pub fn why(row: &Row, facts: &Facts) -> Option<String> {
    let times = row.times_better;
    if times.median >= AS_GOOD {
        return None;
    }
    let [redis, erb] = [row.redis, row.erb];
    let within = |one: f64, of: Spread| (of.min..=of.max).contains(&one);
    let apart = !within(redis.median, erb) || !within(erb.median, redis);
    if times.high >= AS_GOOD || !apart {
        let of = |number| figure(row.figure, number, redis.max.max(erb.max));
        return Some(format!(
            "runs differ by more: {} to {}, and {} to {}",
            of(redis.min),
            of(redis.max),
            of(erb.min),
            of(erb.max)
        ));
    }
    let latency = row.figure.is_time() && row.figure != Figure::ServerTime;
    if latency && facts.foreign >= FOREIGN_DECIDES {
        return Some(by_others(facts));
    }
    Some(by_design(row, facts).unwrap_or_else(|| by_others(facts)))
}

/// What ERB is bound to cost there.
fn by_design(row: &Row, facts: &Facts) -> Option<String> {
    let missed = 1.0 - facts.hits;
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let writes = facts.writes >= COUNTS;
    let more = if facts.times_requests > 1.05 {
        format!(", at {:.1} times the requests", facts.times_requests)
    } else {
        String::new()
    };
    match row.figure {
        Figure::SetP99 => Some(format!(
            "a SET is always Redis's, which reports it to ERB besides{more}"
        )),
        Figure::PerCore if facts.hits < 0.5 && facts.own_reads >= COUNTS => Some(format!(
            "ERB answers {}, and reads {:.0} keys of its own for each 100 requests",
            percent(facts.hits),
            facts.own_reads * 100.0
        )),
        Figure::PerCore if facts.hits < 0.5 => Some(format!(
            "ERB looks for the key, then counts and translates both ways: {}",
            added(row)
        )),
        Figure::PerSecond | Figure::ServerTime if facts.hits < COUNTS && writes => Some(
            "ERB has stepped aside: writes cost more than answers would save; it still reads and counts all on \
             their way"
                .to_owned(),
        ),
        _ if facts.hits < COUNTS => {
            Some("these GETs are all Redis's; ERB reads and counts them on their way".to_owned())
        }
        Figure::GetP99 if writes && missed >= COUNTS => Some(format!(
            "the slowest {} of the GETs are Redis's: their keys are being written{more}",
            percent(missed)
        )),
        Figure::PerSecond | Figure::ServerTime if writes => Some(format!(
            "Redis reports each write to ERB, which answers {} of the reads: that saves less",
            percent(facts.hits)
        )),
        _ => None,
    }
}

/// What a request costs more, of a figure per processor.
fn added(row: &Row) -> String {
    let us = 1e6 / row.erb.median - 1e6 / row.redis.median;
    format!("{us:.1} us a request")
}

/// What others did meanwhile.
fn by_others(facts: &Facts) -> String {
    if facts.foreign >= FOREIGN_COUNTS {
        return format!(
            "other programs took {:.0} % of the processors: repeat it when they are quiet",
            facts.foreign * 100.0
        );
    }
    if facts.late >= COUNTS {
        return format!(
            "the clients themselves began {:.0} % of the requests late",
            facts.late * 100.0
        );
    }
    "what was counted does not explain it: repeat it with --seconds 10".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(figure: Figure, medians: [f64; 2], facts: Facts) -> Option<String> {
        let [redis, erb] = medians.map(|median| [0.99, 1.0, 1.01].map(|it| it * median));
        let row = Row::new("row", figure, [&redis, &erb], &facts);
        row.unwrap().why
    }

    #[test]
    fn only_what_is_worse_has_a_reason() {
        for both in [[100.0, 200.0], [100.0, 99.6]] {
            assert_eq!(reason(Figure::PerSecond, both, Facts::default()), None);
        }
        assert_eq!(reason(Figure::GetP99, [2.0, 1.0], Facts::default()), None);
        assert!(reason(Figure::GetP99, [1.0, 2.0], Facts::default()).is_some());
    }

    const HITS: Facts = Facts {
        hits: 1.0,
        own_reads: 0.0,
        writes: 0.0,
        times_requests: 1.0,
        foreign: 0.0,
        late: 0.0,
    };
    const FEW_WRITES: Facts = Facts {
        hits: 0.96,
        writes: 0.05,
        times_requests: 1.6,
        ..HITS
    };
    const HALF_WRITES: Facts = Facts {
        hits: 0.56,
        writes: 0.5,
        ..HITS
    };
    const MISSES: Facts = Facts { hits: 0.0, ..HITS };
    const FASTER: [f64; 2] = [1000.0, 500.0];
    const SLOWER: [f64; 2] = [1.0, 2.0];

    #[test]
    fn writes_explain_what_they_cost() {
        for (figure, both, facts, said) in [
            (Figure::SetP99, SLOWER, FEW_WRITES, "besides, at 1.6 times"),
            (
                Figure::SetP99,
                SLOWER,
                HALF_WRITES,
                "reports it to ERB besides",
            ),
            (
                Figure::GetP99,
                SLOWER,
                FEW_WRITES,
                "the slowest 4 % of the GETs",
            ),
            (
                Figure::PerSecond,
                FASTER,
                HALF_WRITES,
                "answers 56 % of the reads",
            ),
            (
                Figure::ServerTime,
                SLOWER,
                HALF_WRITES,
                "reports each write",
            ),
            (
                Figure::ServerTime,
                SLOWER,
                Facts {
                    hits: 0.0,
                    ..HALF_WRITES
                },
                "has stepped aside",
            ),
        ] {
            let reason = reason(figure, both, facts).expect(said);
            assert!(reason.contains(said), "{figure:?}: {reason}");
        }
    }

    #[test]
    fn so_do_misses_long_values_and_others_who_work() {
        let fills = Facts {
            hits: 0.01,
            own_reads: 0.2,
            ..HITS
        };
        let foreign = |facts| Facts {
            foreign: 0.4,
            ..facts
        };
        let late = Facts { late: 0.1, ..HITS };
        let per_core = [100_000.0, 90_000.0];
        for (figure, both, facts, said) in [
            (Figure::PerSecond, FASTER, MISSES, "all Redis's"),
            (
                Figure::PerCore,
                per_core,
                MISSES,
                "both ways: 1.1 us a request",
            ),
            (
                Figure::PerCore,
                FASTER,
                fills,
                "answers 1 %, and reads 20 keys",
            ),
            (
                Figure::PerSecond,
                FASTER,
                foreign(HITS),
                "other programs took 40 %",
            ),
            (
                Figure::PerSecond,
                FASTER,
                foreign(HALF_WRITES),
                "reports each write",
            ),
            (
                Figure::SetP99,
                SLOWER,
                foreign(FEW_WRITES),
                "other programs took 40 %",
            ),
            (
                Figure::GetP99,
                SLOWER,
                late,
                "began 10 % of the requests late",
            ),
            (Figure::GetP99, SLOWER, HITS, "does not explain it"),
        ] {
            let reason = reason(figure, both, facts).expect(said);
            assert!(reason.contains(said), "{figure:?}: {reason}");
        }
    }

    #[test]
    fn runs_that_differ_by_more_than_servers_do_are_told() {
        let told = reason(Figure::SetP99, [1000.0, 1010.0], HITS).unwrap();
        assert_eq!(
            told,
            "runs differ by more: 0.99 ms to 1.01 ms, and 1.00 ms to 1.02 ms"
        );
        let apart = reason(Figure::SetP99, [1000.0, 1015.0], HITS).unwrap();
        assert!(apart.starts_with("a SET is always Redis's"), "{apart}");
        // Worse in most runs, but better in more than a quarter.
        let runs = [&[100.0; 5], &[50.0, 50.0, 50.0, 120.0, 120.0]];
        let row = Row::new("row", Figure::PerCore, runs.map(|it| &it[..]), &HITS).unwrap();
        assert!(row.why.unwrap().starts_with("runs differ by more"));
    }
}
