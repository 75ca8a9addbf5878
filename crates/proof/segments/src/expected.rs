// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stored logs, and how a world is held against them.

use std::path::PathBuf;

use crate::exchange::Exchange;
use crate::play::play;
use crate::wire::Wire;

/// Set to 1, logs are written instead of compared.
const RECORD: &str = "ERB_RECORD_EXCHANGES";
/// How often an exchange is played until no lease lapsed meanwhile.
const ATTEMPTS: u32 = 6;
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
/// What went wrong, or where the logs differ.
///
/// # Panics
/// If logs are to be recorded and cannot be written.
pub fn agree(wire: &mut dyn Wire, exchange: &Exchange) -> Result<(), String> {
    let mut result = Ok(());
    for _ in 0..ATTEMPTS {
        let before = wire.counters(&DISTURBED);
        result = once(wire, exchange);
        if result.is_ok() || before == wire.counters(&DISTURBED) {
            break;
        }
    }
    result
}

fn once(wire: &mut dyn Wire, exchange: &Exchange) -> Result<(), String> {
    let outcome = play(wire, exchange);
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
