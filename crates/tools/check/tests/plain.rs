// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every check passes on a plain Redis, so what it reports elsewhere is not its own doing.

mod common;

use clap::Parser;
use common::{Lie, Redis, lying_proxy};
use erb_check::{Check, churn, clients, conversation, history, mixed, shadow};
use erb_steady::scaled;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    check: Check,
}

/// Parses arguments as the command line does.
fn parse(line: &str) -> Check {
    let words = std::iter::once("erb-check").chain(line.split_whitespace());
    Cli::try_parse_from(words)
        .unwrap_or_else(|e| panic!("{line}: {e}"))
        .check
}

macro_rules! execute {
    ($module:ident, $variant:ident, $($arg:tt)*) => {
        match parse(&format!($($arg)*)) {
            Check::$variant(args) => $module::execute(&args).unwrap(),
            other => panic!("parsed as {other:?}"),
        }
    };
}

#[test]
fn shadow_passes_over_ipv4_and_ipv6() {
    let (target, other) = (Redis::start(), Redis::start());
    for addr in [target.addr(), target.addr6()] {
        let report = execute!(
            shadow,
            Shadow,
            "shadow --target {addr} --shadow {} --conns 8 --seconds 600 --commands 1500",
            other.addr()
        );
        assert!(report.passed, "{report:?}");
        assert!(report.commands >= 8 * 1500, "{report:?}");
        assert_eq!(report.by_command.values().sum::<u64>(), report.commands);
    }
}

#[test]
fn shadow_repeats_its_commands_with_its_seed() {
    let (target, other) = (Redis::start(), Redis::start());
    let line = format!(
        "shadow --target {} --shadow {} --conns 2 --seconds 600 --commands 500 --seed 42",
        target.addr(),
        other.addr()
    );
    let first = execute!(shadow, Shadow, "{line}");
    let second = execute!(shadow, Shadow, "{line}");
    assert!(first.passed && second.passed);
    assert_eq!(first.by_command, second.by_command);
    assert_eq!(first.bytes_sent, second.bytes_sent);
}

#[test]
fn history_passes_with_and_without_a_bypassing_writer() {
    let redis = Redis::start();
    let report = execute!(
        history,
        History,
        "history --target {} --direct {} --ops 60000",
        redis.addr(),
        redis.addr6()
    );
    assert!(report.passed, "{report:?}");
    assert!(
        report.answered >= 60_000 && report.direct_reads > 0,
        "{report:?}"
    );
    assert_eq!(report.keys_checked, 64);
    let odd = execute!(
        history,
        History,
        "history --target {} --ops 20000 --keys 15 --conns 5 --pipeline 16 --read-share 0.3",
        redis.addr()
    );
    assert!(odd.passed, "{odd:?}");
}

#[test]
fn churn_passes() {
    let redis = Redis::start();
    let report = execute!(
        churn,
        Churn,
        "churn --target {} --connections 3000 --parallel 16 --source-addrs 127.0.0.1,127.0.0.2",
        redis.addr()
    );
    assert!(report.passed, "{report:?}");
    assert_eq!(report.endings.values().sum::<u64>(), 3000);
    assert!(report.endings.len() >= 8, "{report:?}");
}

#[test]
fn mixed_passes_with_set_and_incr() {
    let redis = Redis::start();
    for extra in ["", "--incr"] {
        let report = execute!(
            mixed,
            Mixed,
            "mixed --target {} --requests 3000 --warm-up-pause-ms 1 {extra}",
            redis.addr()
        );
        assert!(report.passed, "{report:?}");
        assert_eq!(report.get.count + report.write.count, 3000);
        assert!(
            report.get.p50_us > 1.0 && report.get.p99_us >= report.get.p50_us,
            "{report:?}"
        );
    }
}

#[test]
fn conversation_passes_with_every_case_step_by_step_and_cut() {
    let (target, other) = (Redis::start(), Redis::start());
    let play = |more: &str| {
        execute!(
            conversation,
            Conversation,
            "conversation --target {} --shadow {} --allow-flush --rounds 1 --warm-pause-ms 0 {more}",
            target.addr(),
            other.addr()
        )
    };
    // All are played step by step; cut are all, or those with this in their names.
    let (of_all, of_some) = scaled(("none", Some("--only re")), ("some", None));
    let all = play(&format!("--cuts {of_all}"));
    assert!(all.skipped.is_empty() && all.cases.len() > 90, "{all:?}");
    let some = of_some.map(play);
    for report in [Some(&all), some.as_ref()].into_iter().flatten() {
        assert!(report.passed, "{report:?}");
        assert_eq!(
            report.answered_in_front(),
            0,
            "nothing is in front of Redis"
        );
    }
    let cuts = all.cuts() + some.map_or(0, |some| some.cuts());
    assert!(cuts > scaled(400, 4_000), "{cuts} cuts");
}

#[test]
fn clients_that_need_no_download_pass() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let results = execute!(
        clients,
        Clients,
        "clients --target {} --only redis-cli,redis-rs --repeats 20 --hold 0 --workdir {}",
        redis.addr(),
        dir.path().display()
    );
    assert_eq!(results.len(), 4);
    for (client, protocol, status) in results {
        assert_eq!(status, clients::Status::Passed, "{client:?} RESP{protocol}");
    }
}

#[test]
fn a_wrong_reply_fails_the_clients() {
    let redis = Redis::start();
    let proxy = lying_proxy(&redis, Lie::FlippedByte(1));
    let dir = tempfile::tempdir().unwrap();
    let results = execute!(
        clients,
        Clients,
        "clients --target {proxy} --only redis-cli,redis-rs --hold 0 --workdir {}",
        dir.path().display()
    );
    for (client, protocol, status) in results {
        assert!(
            matches!(status, clients::Status::Failed(_)),
            "{client:?} {protocol}: {status:?}"
        );
    }
}
