// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A target that lies is caught, and the report says where.

mod common;

use clap::Parser;
use common::{Lie, Redis, lying_proxy};
use erb_check::{Check, churn, conversation, history, mixed, shadow};

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    check: Check,
}

fn parse(line: &str) -> Check {
    let words = std::iter::once("erb-check").chain(line.split_whitespace());
    Cli::try_parse_from(words)
        .unwrap_or_else(|e| panic!("{line}: {e}"))
        .check
}

/// Seconds of silence that a check takes for an end: soon where there is one, and never on a slow machine.
const fn silence_s(lie: Lie) -> u32 {
    if matches!(lie, Lie::Silence(_)) {
        1
    } else {
        120
    }
}

fn run_shadow(lie: Lie) -> shadow::Report {
    let (target, other) = (Redis::start(), Redis::start());
    let proxy = lying_proxy(&target, lie);
    let line = format!(
        "shadow --target {proxy} --shadow {} --conns 3 --seconds 600 --commands 1500 \
         --stall-timeout {} --seed 5",
        other.addr(),
        silence_s(lie)
    );
    match parse(&line) {
        Check::Shadow(args) => shadow::execute(&args).unwrap(),
        other => panic!("parsed as {other:?}"),
    }
}

fn run_history(lie: Lie) -> history::Report {
    let redis = Redis::start();
    let proxy = lying_proxy(&redis, lie);
    match parse(&format!(
        "history --target {proxy} --ops 20000 --conns 8 --timeout {}",
        silence_s(lie)
    )) {
        Check::History(args) => history::execute(&args).unwrap(),
        other => panic!("parsed as {other:?}"),
    }
}

#[test]
fn the_proxy_that_does_not_lie_passes() {
    let report = run_shadow(Lie::None);
    assert!(report.passed, "{report:?}");
    let report = run_history(Lie::None);
    assert!(report.passed, "{report:?}");
}

#[test]
fn history_decides_although_single_operations_take_long() {
    let report = run_history(Lie::Slow(400));
    assert!(report.passed, "{report:?}");
    // Were it not bounded, it would take for ever.
    if report.check_seconds > 300.0 {
        erb_steady::out_of_patience(format_args!("{report:?}"));
    }
}

#[test]
fn shadow_catches_a_stale_get() {
    let report = run_shadow(Lie::StaleGet(20));
    assert!(!report.passed);
    let mismatch = report.mismatches.first().expect("a mismatch");
    assert!(
        mismatch.command.to_ascii_uppercase().contains("GET"),
        "{mismatch:?}"
    );
    assert_eq!(mismatch.last_commands.last(), Some(&mismatch.command));
    assert_ne!(mismatch.target, mismatch.shadow);
}

#[test]
fn shadow_ends_at_once_if_asked_to() {
    let (target, other) = (Redis::start(), Redis::start());
    let proxy = lying_proxy(&target, Lie::FlippedByte(50));
    let line = format!(
        "shadow --target {proxy} --shadow {} --conns 2 --seconds 300 --fail-fast",
        other.addr()
    );
    let Check::Shadow(args) = parse(&line) else {
        panic!("not shadow")
    };
    let report = shadow::execute(&args).unwrap();
    assert!(!report.passed && report.seconds < 300.0, "{report:?}");
}

#[test]
fn shadow_catches_one_wrong_bit_and_one_reply_too_many() {
    assert!(!run_shadow(Lie::FlippedByte(200)).mismatches.is_empty());
    assert!(!run_shadow(Lie::Twice(300)).mismatches.is_empty());
}

#[test]
fn shadow_tells_silence_from_an_end() {
    let silent = run_shadow(Lie::Silence(200));
    assert_eq!(
        (silent.stalls.len(), silent.resets.len()),
        (3, 0),
        "{silent:?}"
    );
    let closed = run_shadow(Lie::Close(200));
    assert_eq!(
        (closed.stalls.len(), closed.resets.len()),
        (0, 3),
        "{closed:?}"
    );
    assert!(!silent.passed && !closed.passed);
}

#[test]
fn history_catches_a_stale_get() {
    let report = run_history(Lie::StaleGet(50));
    assert!(!report.passed);
    assert!(report.violation_count > 0, "{report:?}");
    assert!(
        report
            .violations
            .iter()
            .any(|v| v.what.contains("not linearizable")),
        "{report:?}"
    );
    assert!(
        report.violations.iter().any(|v| !v.context.is_empty()),
        "{report:?}"
    );
}

#[test]
fn history_catches_a_stale_hash() {
    let report = run_history(Lie::StaleHash(50));
    let wrong = |v: &history::Violation| v.what.contains("not linearizable");
    assert!(report.violations.iter().any(wrong), "{report:?}");
}

#[test]
fn history_takes_no_silence_for_a_pass() {
    let report = run_history(Lie::Silence(300));
    assert!(!report.passed);
    assert!(
        report.unknown > 0 && !report.broken.is_empty(),
        "{report:?}"
    );
    assert_eq!(
        report.violation_count, 0,
        "unknown is not wrong: {report:?}"
    );
}

fn stale_conversation() -> conversation::Report {
    let (target, other) = (Redis::start(), Redis::start());
    let proxy = lying_proxy(&target, Lie::StaleGet(7));
    let line = format!(
        "conversation --target {proxy} --shadow {} --only string-writes",
        other.addr()
    );
    let Check::Conversation(args) = parse(&line) else {
        panic!("not conversation")
    };
    conversation::execute(&args).unwrap()
}

#[test]
fn conversation_catches_a_stale_get() {
    let report = stale_conversation();
    assert_eq!(
        (report.passed, report.differences.len()),
        (false, 1),
        "{report:?}"
    );
}

#[test]
fn churn_and_mixed_catch_a_wrong_value() {
    let redis = Redis::start();
    let proxy = lying_proxy(&redis, Lie::FlippedByte(100));
    let line = format!("churn --target {proxy} --connections 500 --parallel 4");
    let Check::Churn(args) = parse(&line) else {
        panic!("not churn")
    };
    let report = churn::execute(&args).unwrap();
    assert!(!report.passed && report.wrong_count > 0, "{report:?}");
    let line = format!("mixed --target {proxy} --requests 500 --warm-up-pause-ms 1");
    let Check::Mixed(args) = parse(&line) else {
        panic!("not mixed")
    };
    let report = mixed::execute(&args).unwrap();
    assert!(!report.passed && report.wrong_count > 0, "{report:?}");
}

/// The kernel lane's canary: a stale answer, of a proxy in place of ERB.
mod canary {
    #[test]
    fn a_stale_answer_is_red() {
        let report = super::stale_conversation();
        assert_eq!(report.passed, erb_steady::is_canary(), "{report:?}");
    }
}
