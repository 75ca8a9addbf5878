// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stored logs, and how a world is held against them.

use std::path::PathBuf;
use std::time::Duration;

use erb_steady::Cause;

use crate::exchange::Exchange;
use crate::play::{Outcome, play};
use crate::wire::Wire;

/// Set to 1, logs are written instead of compared.
const RECORD: &str = "ERB_RECORD_EXCHANGES";
/// How often an exchange is played until no lease lapsed meanwhile, and nothing came late.
const ATTEMPTS: u32 = 6;
/// What comes so late is another's doing: no timer of TCP's is as short.
const LATE_MAX: Duration = Duration::from_millis(20);
/// What refuses answers for a reason that is none of the exchange's: a daemon without a processor.
const DISTURBED: [&str; 2] = ["REFUSE_LEASE", "REFUSE_NOT_SERVING"];

/// Where the log of an exchange is kept.
#[must_use]
pub fn path(exchange: &Exchange) -> PathBuf {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/expected"));
    folder.join(format!("{}.txt", exchange.name))
}

/// Plays the exchange, and its log must be the stored one.
///
/// # Errors
/// What went wrong, or where the logs differ; marked as out of patience if each attempt was disturbed.
///
/// # Panics
/// If logs are to be recorded and cannot be written.
pub fn agree(wire: &mut dyn Wire, exchange: &Exchange) -> Result<(), String> {
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        let before = wire.counters(&DISTURBED);
        let outcome = play(wire, exchange);
        let is_late = outcome.late > LATE_MAX;
        last = match judge(wire, exchange, outcome) {
            Ok(()) => return Ok(()),
            Err(why) => why,
        };
        if !is_late && before == wire.counters(&DISTURBED) {
            return Err(last);
        }
    }
    Err(format!("{} {last}", Cause::Patience.mark()))
}

fn judge(wire: &mut dyn Wire, exchange: &Exchange, outcome: Outcome) -> Result<(), String> {
    if let Some(failure) = outcome.failure {
        return Err(failure);
    }
    wire.settle();
    let path = path(exchange);
    if std::env::var_os(RECORD).is_some_and(|value| value == "1") {
        std::fs::write(&path, &outcome.log).expect("a file in expected/");
        return Ok(());
    }
    let stored = std::fs::read_to_string(&path)
        .map_err(|e| format!("{}: {e}; {RECORD}=1 records it", path.display()))?;
    if stored == outcome.log {
        return Ok(());
    }
    let (mut want, mut got) = (stored.lines(), outcome.log.lines());
    let differs = (1..).find_map(|line| {
        let (want, got) = (want.next(), got.next());
        (want != got).then_some((line, want, got))
    });
    Err(format!(
        "{}: line, stored, seen: {differs:?}",
        path.display()
    ))
}
