// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon is killed and started again, and its programs are replaced, under load: no client
//! notices, no read shows a stale value.

use std::net::SocketAddr;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use erb_check::history::{self, HistoryArgs};
use erb_check::shadow::{self, ShadowArgs};
use erb_e2e::calls::{bulk, call, expect, get, set};
use erb_e2e::lab::{STATE_WAIT, TestLab, arguments, erb_bin, long, scaled, wait};
use erb_e2e::process::{Owned, signal};
use erb_e2e::status::brief;
use erb_lab::End;
use erb_steady::{out_of_patience, patient};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::attach::{program_exists, programs};

/// Objects of another build.
const OTHER: &str = env!("ERB_OTHER_PROGRAMS");
/// Exit codes of `erb --help`.
const ALREADY: i32 = 11;
const OTHER_VERSION: i32 = 15;

/// Random enough to meet every moment, the same in every run.
struct Moments(u64);

impl Moments {
    /// Up to so many milliseconds.
    fn within(&mut self, ms: u64) -> Duration {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        Duration::from_micros((self.0 >> 33) % (ms * 1000))
    }
}

/// A lab boosted by hand, in which a daemon can be started again.
fn lab(name: &str) -> TestLab {
    let mut lab = TestLab::up(name, &["--direct"]);
    lab.use_run_dir(format!("/run/erb/e2e-{name}"));
    let output = boost(&lab, false);
    assert!(output.status.success(), "{output:?}");
    lab.wait_admitting();
    lab
}

/// Boosts with the programs of the other build, or with those of this one.
fn boost(lab: &TestLab, other: bool) -> Output {
    let words = ["--dev", "s0", "--programs", OTHER];
    lab.boost(if other { &words } else { &words[..2] })
}

/// Clients at work while `disturb` goes on: some compare every byte with a Redis alone, some watch
/// for stale values, one lives through it all.
fn under_load(lab: &TestLab, plain: SocketAddr, disturb: impl FnOnce()) {
    let done = AtomicBool::new(false);
    let address = lab.address();
    thread::scope(|scope| {
        let shadow = scope.spawn(|| {
            let words = format!(
                "--target {address} --shadow {plain} --conns 6 --seconds 4 --value-max 1000"
            );
            lab.inside(End::Client, || {
                while !done.load(Ordering::Relaxed) {
                    let report = shadow::execute(&arguments::<ShadowArgs>(&words)).expect("shadow");
                    assert!(report.passed, "{report:#?}");
                }
            });
        });
        let history = scope.spawn(|| {
            let words = format!("--target {address} --ops 15000 --conns 8 --keys 8");
            lab.inside(End::Client, || {
                while !done.load(Ordering::Relaxed) {
                    let report =
                        history::execute(&arguments::<HistoryArgs>(&words)).expect("history");
                    assert!(report.passed, "{report:#?}");
                }
            });
        });
        let old = scope.spawn(|| {
            let mut conn = lab.client();
            let mut count = 0_u64;
            while !done.load(Ordering::Relaxed) {
                count += 1;
                let value = count.to_string();
                set(&mut conn, "its-own", &value);
                for _ in 0..20 {
                    expect(&mut conn, "GET its-own", &bulk(&value));
                }
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(disturb));
        done.store(true, Ordering::Relaxed);
        for client in [shadow, history, old] {
            client.join().expect("a thread of this test panicked");
        }
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    wait(STATE_WAIT, || {
        let status = lab.try_status()?;
        let good = status.serving && status.programs.whole;
        good.then_some(()).ok_or_else(|| brief(&status))
    });
    assert!(lab.assert_settled().get("FAST_GET") > 0);
}

/// A daemon that is replaced ends when the next one's programs are verified: seconds, and many of them
/// on a machine that does other things.
const DEATH_WAIT: Duration = Duration::from_secs(60);

/// Returns within moments of a process's end, reaped or not.
fn wait_for_death(pid: Pid) {
    let began = Instant::now();
    let stat = format!("/proc/{pid}/stat");
    while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        if began.elapsed() > patient(DEATH_WAIT) {
            out_of_patience("the old daemon stays");
        }
        sleep(Duration::from_micros(100));
    }
}

fn build(lab: &TestLab) -> String {
    lab.status().programs.build
}

#[test]
fn programs_are_replaced_under_load_and_nobody_notices() {
    let mut lab = lab("replace");
    let plain = lab.plain_redis();
    let (first, old) = (build(&lab), programs(&lab));
    under_load(&lab, plain, || {
        for round in 1..=scaled(6, 100) {
            let (pid, before) = (lab.daemon_pid(), lab.counters());
            let output = boost(&lab, round % 2 == 1);
            assert!(output.status.success(), "round {round}: {output:?}");
            assert_ne!(lab.daemon_pid(), pid, "round {round}: the same daemon");
            assert_eq!(build(&lab) == first, round % 2 == 0, "round {round}");
            lab.wait_admitting();
            wait(STATE_WAIT, || {
                let hits = lab.counters().since(&before, "FAST_GET");
                (hits > 0).then_some(()).ok_or_else(|| "no hits".to_owned())
            });
        }
    });
    assert_eq!(boost(&lab, false).status.code(), Some(ALREADY));
    wait(STATE_WAIT, || {
        let left: Vec<_> = old.iter().filter(|id| program_exists(&lab, **id)).collect();
        left.is_empty()
            .then_some(())
            .ok_or_else(|| format!("replaced programs are still loaded: {left:?}"))
    });
}

#[test]
fn a_daemon_killed_many_times_under_load_is_not_missed() {
    let mut lab = lab("kills");
    let plain = lab.plain_redis();
    let mut moments = Moments(1);
    under_load(&lab, plain, || {
        for round in 1..=scaled(12, 1000) {
            // From the first moments of a daemon to its full work.
            sleep(moments.within(if round % 3 == 0 { 2000 } else { 60 }));
            let daemon = lab.daemon_pid();
            signal(daemon, Signal::SIGKILL);
            wait_for_death(daemon);
            sleep(moments.within(200));
            let output = boost(&lab, false);
            assert!(output.status.success(), "round {round}: {output:?}");
        }
        lab.wait_admitting();
    });
}

#[test]
fn a_replacement_killed_at_any_moment_is_made_again() {
    let mut lab = lab("halfway");
    let plain = lab.plain_redis();
    let mut moments = Moments(2);
    let redis = lab.address().to_string();
    let mut halves = 0;
    under_load(&lab, plain, || {
        for round in 1..=scaled(4, 200) {
            let (other, old) = (round % 2 == 1, lab.daemon_pid());
            let mut command = lab.lab().exec(End::Server, erb_bin()).expect("exec");
            command.args([
                "boost",
                "--foreground",
                "--dev",
                "s0",
                "--cache-size",
                "64M",
            ]);
            command
                .args(["--redis", &redis, "--run-dir"])
                .arg(lab.run_dir());
            if other {
                command.args(["--programs", OTHER]);
            }
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let replacing = Owned::start(&mut command);
            if round % 4 < 2 {
                // The links change when the old daemon has gone.
                wait_for_death(old);
                sleep(moments.within(6));
            } else {
                sleep(moments.within(if long() { 6000 } else { 4000 }));
            }
            // kill -9 and wait.
            drop(replacing);
            halves += u32::from(!lab.status().programs.whole);
            let output = boost(&lab, other);
            let code = output.status.code();
            assert!(
                code == Some(0) || code == Some(ALREADY),
                "round {round}: {output:?}"
            );
            lab.wait_admitting();
            assert!(lab.status().programs.whole, "round {round}");
        }
    });
    println!("{halves} times some links ran the one build and some the other");
}

#[test]
fn what_was_loaded_with_another_layout_is_neither_adopted_nor_replaced() {
    let lab = lab("layout");
    let mut conn = lab.client();
    set(&mut conn, "hot", "v");
    lab.heat(&mut conn, "hot");
    let path = lab.run_dir().join("notes.json");
    let notes = std::fs::read_to_string(&path).expect("notes");
    let at = notes.find("\"layout\":\"").expect("a layout") + 10;
    let mut other = notes.clone();
    other.replace_range(at..at + 16, "0123456789abcdef");
    std::fs::write(&path, &other).expect("notes");
    let output = boost(&lab, true);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(OTHER_VERSION), "{said}");
    assert!(said.contains("erb detach"), "{said}");
    lab.assert_fast(&mut conn, "hot", "the old daemon goes on");
    let daemon = lab.daemon_pid();
    signal(daemon, Signal::SIGKILL);
    wait_for_death(daemon);
    assert_eq!(boost(&lab, false).status.code(), Some(OTHER_VERSION));
    std::fs::write(&path, &notes).expect("notes");
    assert_eq!(boost(&lab, false).status.code(), Some(0));
    expect(&mut conn, "GET hot", &bulk("v"));
}

#[test]
fn a_boost_that_died_before_its_notes_is_made_anew() {
    let lab = lab("unfinished");
    let daemon = lab.daemon_pid();
    signal(daemon, Signal::SIGKILL);
    wait_for_death(daemon);
    std::fs::remove_file(lab.run_dir().join("notes.json")).expect("notes");
    let output = boost(&lab, false);
    assert!(output.status.success(), "{output:?}");
    lab.wait_admitting();
    let mut conn = lab.client();
    set(&mut conn, "hot", "v");
    lab.heat(&mut conn, "hot");
    assert_eq!(get(&mut conn, "hot").as_deref(), Some("v"));
    assert!(call(&mut conn, "PING").contains("PONG"));
}
