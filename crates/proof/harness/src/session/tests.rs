// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs of test programs that are shell scripts, in parts: exit codes and what is told.

use clap::Parser as _;
use nix::sys::signal::Signal;

use super::*;
use crate::fake;

/// Tells that the test named by its second word has passed; as a canary, that it panicked.
const PASSES: &str = r#"
panics() { printf '%s\n' "thread 'x' (7) panicked at x.rs:1:2:" "$1" >&2; tells failed; exit 101; }
tells() { echo '{ "type": "test", "name": "'"$test"'", "event": "'"$1"'", "exec_time": 0.1, "stdout": "'"$2"'" }'; }
once() { [ ! -e "$PWD/$test" ] && >"$PWD/$test"; }
test=$2
"#;
/// The end of each script.
const ENDS: &str = r#"
[ "$ERB_CANARY" != 1 ] || panics wrong
tells ok
"#;

/// A place in which parts of a run follow each other.
struct World {
    folder: fake::Folder,
    args: Args,
    tests: Tests,
}

impl World {
    fn new(words: &str, script: &str, names: &[&str]) -> Self {
        let folder = fake::folder("session");
        let words = ["./test"].into_iter().chain(words.split_whitespace());
        std::fs::create_dir(folder.join("scripts")).expect("a folder");
        let script = format!("{PASSES}{script}{ENDS}");
        let names: Vec<String> = names.iter().map(|it| (*it).to_owned()).collect();
        // One in each lane.
        let tests = ["sim", "wire"].map(|package| {
            let home = folder.join(format!("of-{package}"));
            std::fs::create_dir(&home).expect("a folder");
            (fake::program(&home, package, &script), names.clone())
        });
        let world = Self {
            folder,
            args: Args::parse_from(words),
            tests: tests.into(),
        };
        world.steps("exit 0");
        world
    }

    fn steps(&self, words: &str) {
        fake::script(&self.folder, "scripts/step", words);
    }

    fn session(&self) -> Session<'_> {
        let results = Results::open(&self.folder, "kind", Some("abc")).expect("a file");
        let is_resumable = self.args.long || self.args.times.is_some();
        Session {
            args: &self.args,
            root: self.folder.to_path_buf(),
            machine: Machine::default(),
            results: is_resumable.then_some(results),
            load: Mutex::default(),
            stop: Stop::default(),
            until: None,
            left: AtomicBool::new(false),
        }
    }

    /// A part: its exit code, and what it tells.
    fn part(&self) -> (u8, String) {
        let session = self.session();
        let mut summary = session.summary();
        session.work(&self.tests, &mut summary);
        (session.code(&summary), summary.text(1))
    }
}

#[test]
fn a_step_that_fails_is_red_in_this_part_and_in_those_after_it() {
    let world = World::new("--long", "", &["a", "canary::b"]);
    let (code, text) = world.part();
    assert_eq!(code, 0, "{text}");
    world.steps("exit 1");
    assert_eq!(world.part().0, 0, "no step is done twice");
    let world = World::new("--long", "", &["a", "canary::b"]);
    world.steps("[ $1 != clippy ]");
    let (code, text) = world.part();
    assert_eq!(code, FAILED);
    assert!(text.contains("Steps that failed:\n  clippy\n"), "{text}");
    world.steps("exit 0");
    let (code, text) = world.part();
    assert_eq!(code, FAILED, "nothing is left, and it has failed");
    let failed = "Steps that failed:\n  clippy (in a part before)\n";
    assert!(text.contains(failed), "{text}");
    assert!(text.contains("4 passed, 0 failed"), "{text}");
}

#[test]
fn a_run_whose_changes_reach_nothing_is_good_and_no_other() {
    for (words, expected) in [("--changed", 0), ("--changed --times 2", 0), ("", FAILED)] {
        let world = World::new(words, "", &[]);
        let session = world.session();
        assert_eq!(session.code(&session.summary()), expected, "{words}");
    }
}

#[test]
fn canaries_that_pass_or_are_missing_are_a_failed_step() {
    let world = World::new("--long", "", &["a"]);
    let (code, text) = world.part();
    assert_eq!(code, FAILED);
    assert!(text.contains("Steps that failed:\n  canaries\n"), "{text}");
    let world = World::new("--long", "panics() { :; }", &["canary::b"]);
    assert_eq!(world.part().0, FAILED);
}

#[test]
fn results_that_cannot_be_kept_end_the_run() {
    let world = World::new("--times 1", "", &["a", "b", "c", "d", "e"]);
    let mut session = world.session();
    session.results = Some(Results::full());
    let mut summary = session.summary();
    session.work(&world.tests, &mut summary);
    assert_eq!(session.code(&summary), CANNOT);
    // One of each worker at most.
    assert!(summary.tested.len() <= 3, "{summary:?}");
}

#[test]
fn a_round_that_passes_excuses_no_failure_but_a_repetition_does() {
    let names: Vec<String> = (0..6).map(|at| format!("t{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let script = "if once; then panics '[patience] no reply'; fi";
    // Twelve tests are too many to be repeated, in every part.
    let world = World::new("--times 3", script, &names);
    for _ in 0..2 {
        let (code, text) = world.part();
        assert_eq!(code, FAILED);
        assert!(text.contains("24 passed, 12 failed, 0 skipped"), "{text}");
    }
    let world = World::new("--times 3", script, &["a"]);
    let (code, text) = world.part();
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("2 unsteady"), "{text}");
    assert!(text.contains("6 passed, 0 failed, 0 skipped"), "{text}");
    assert_eq!(world.part().0, 0, "also when nothing is left to do");
}

#[test]
fn a_repetition_that_fails_or_skips_itself_is_red_in_every_part() {
    for again in [
        "panics '[pace] 1 of 2'",
        "if once; then panics '[pace] 1 of 2'; fi; tells ok 'skipped: no lab\\n'; exit",
    ] {
        let world = World::new("--times 1", again, &["a"]);
        for _ in 0..2 {
            let (code, text) = world.part();
            assert_eq!(code, FAILED, "{text}");
            assert!(
                text.contains("Failed:\n  sim::fake::a\n  wire::fake::a\n"),
                "{text}"
            );
        }
    }
    // Without parts, too.
    let world = World::new("--only x", "panics '[pace] 1 of 2'", &["a"]);
    assert_eq!(world.part().0, FAILED);
}

#[test]
fn a_run_in_which_nothing_passes_is_not_good() {
    let script = "tells ok 'skipped: no lab\\n'; exit";
    assert_eq!(World::new("--times 1", script, &["a"]).part().0, FAILED);
    let some = format!("if [ $test = a ]; then {script}; fi");
    let (code, text) = World::new("--times 1", &some, &["a", "b"]).part();
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("2 passed, 0 failed, 2 skipped"), "{text}");
}

#[test]
fn a_program_that_cannot_be_started_is_named_beside_the_others() {
    let mut world = World::new("--only x", "", &["a"]);
    world.tests[1].0.path = "/does/not/exist".into();
    let (code, text) = world.part();
    assert_eq!(code, FAILED);
    assert!(text.contains("Failed:\n  wire::fake::a\n"), "{text}");
    assert!(text.contains("1 passed, 1 failed"), "{text}");
}

#[test]
fn load_that_has_ended_ends_the_run() {
    let world = World::new("--times 1 --load 1", "", &["a"]);
    let session = world.session();
    *session.load.lock().expect("a lock") = Load::that_has_ended();
    let (program, tests) = &world.tests[0];
    let programs = std::collections::BTreeMap::from([(program.name(), program)]);
    let name = format!("{}::{}", program.name(), tests[0]);
    let job = crate::repeat::alone(&programs, &name).expect("a job");
    let results = job.run(&session.stop).expect("not stopped");
    assert!(!session.heard(&job, &results));
    assert_eq!(session.code(&session.summary()), CANNOT);
    drop(session);
    assert!(world.session().summary().before.is_empty());
}

#[test]
fn a_signal_ends_the_run_without_results_of_what_was_at_work() {
    let world = World::new(
        "--times 2",
        "[ $test = a ] || { >begun; sleep 1000; }",
        &["a", "b"],
    );
    let session = world.session();
    let mut summary = session.summary();
    let results = world.folder.join("harness/kind-abc.jsonl");
    let told = || std::fs::read_to_string(&results).expect("a file");
    let begun = |(program, _): &(Program, _)| program.folder.join("begun").exists();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !world.tests.iter().all(begun) || told().lines().count() < 2 {
                thread::sleep(Duration::from_millis(10));
            }
            session.stop.now(Why::Signal(Signal::SIGINT));
        });
        session.work(&world.tests, &mut summary);
    });
    assert_eq!(session.code(&summary), BY_SIGNAL + 2);
    let text = summary.text(1);
    assert!(text.contains("2 passed, 0 failed, 0 skipped"), "{text}");
    drop(session);
    assert_eq!(world.session().summary().before.len(), 2);
}
