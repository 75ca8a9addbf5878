// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The splice with another handler: streams stay exact, and a mistake on either side of the wall is seen.

use std::fs;
use std::path::PathBuf;

use erb_abi as abi;
use erb_sim::echo;
use erb_sim_kernel::Library;

const SEEDS: u64 = 200;
/// Seeds within which a mistake is seen.
const SEEDS_OF_MISTAKE: u64 = 20;

fn build(name: &str, edit: Option<(&str, &str, &str)>) -> Library {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("echo-{name}"));
    let library = echo::library(&out, |bpf| {
        if let Some((file, find, replace)) = edit {
            let text = fs::read_to_string(bpf.join(file)).unwrap();
            assert_eq!(text.matches(find).count(), 1, "{find} in {file}");
            fs::write(bpf.join(file), text.replace(find, replace)).unwrap();
        }
    });
    library.unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn echo_streams_are_exact() {
    let library = build("exact", None);
    let mut stats = vec![0; abi::STAT_MAX as usize];
    for seed in 1..=SEEDS {
        let outcome = echo::run(seed, &library);
        if let Some(violation) = outcome.violation {
            panic!("seed {seed}: {violation}\n{}", outcome.story);
        }
        let both = stats.iter_mut().zip(&outcome.stats);
        both.for_each(|(all, one)| *all += one);
    }
    for (reason, count) in abi::REASONS.iter().zip(&stats) {
        if *count > 0 {
            println!("{} {count}", reason.name);
        }
    }
    // Answered at both tiers, by the server, and sent again for want of an acknowledgement.
    for stat in [
        abi::STAT_FAST_PACKET,
        abi::STAT_FAST_PACKET_TC,
        abi::STAT_REFUSE_COMMAND,
        abi::STAT_REPLAY_REQUEST,
        abi::STAT_REPLAY_TIMEOUT,
    ] {
        let (name, count) = (abi::REASONS[stat as usize].name, stats[stat as usize]);
        assert!(count >= SEEDS / 4, "{name}: only {count}");
    }
}

fn caught(library: &Library) -> Vec<&'static str> {
    let runs = (1..=SEEDS_OF_MISTAKE).filter_map(|seed| echo::run(seed, library).violation);
    runs.map(|violation| violation.check).collect()
}

#[test]
fn an_answer_before_those_that_are_owed_is_caught() {
    let edit = (
        "splice/splice.h",
        "\tif (conn->requests != conn->replies)\n\t\treturn STAT_REFUSE_UNANSWERED;\n",
        "",
    );
    let caught = caught(&build("unanswered", Some(edit)));
    println!("{caught:?}");
    assert!(caught.contains(&"neighbour"), "{caught:?}");
}

#[test]
fn a_handler_that_counts_wrong_is_caught() {
    for (name, wrong) in [("fewer", "1"), ("more", "w->commands + 1")] {
        let edit = (
            "echo/handler.h",
            "how == UP_WHOLE ? w->commands : 0",
            &*format!("how == UP_WHOLE ? {wrong} : 0"),
        );
        let caught = caught(&build(name, Some(edit)));
        println!("{name}: {caught:?}");
        assert!(caught.contains(&"T6"), "{name}: {caught:?}");
    }
}
