// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What comes after something that was answered in Redis's place waits until that is drained. In this mode no
//! write is answered: the test gives LSNs and drains them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use erb_check::history::{self, HistoryArgs};
use erb_check::net::Conn;
use erb_check::shadow::{self, ShadowArgs};
use erb_daemon::RunDir;
use erb_datapath::{ControlPlane as _, Datapath};
use erb_e2e::calls::{get, set};
use erb_e2e::lab::{STALL, STATE_WAIT, TestLab, arguments, scaled, wait};
use erb_lab::End;
use erb_steady::{out_of_patience, patient};

use crate::loopback;

/// How long what is answered is not drained, while something waits for it.
const BEHIND: Duration = Duration::from_millis(60);
/// Between two looks whether something waits: far less than a client's timer, which would send it again.
const LOOK: Duration = Duration::from_millis(1);
/// Longest of that under load, and between two such times.
const BEHIND_US: u64 = 3_000;
const APART_US: u64 = 40_000;

fn path_of(run_dir: &Path) -> Datapath {
    let pins = RunDir::new(run_dir).pins();
    Datapath::open(&pins, 0).expect("the boost's maps")
}

/// Drains at its end, also when an assertion fails: a client waits for that.
struct Drains<F: Fn()>(F);

impl<F: Fn()> Drop for Drains<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Returns when one packet more than `before` is held.
fn wait_held(path: &Datapath, before: u64) {
    let (began, limit) = (Instant::now(), patient(STATE_WAIT));
    while held(path) == before {
        if began.elapsed() > limit {
            out_of_patience("nothing is held");
        }
        sleep(LOOK);
    }
}

fn held(path: &Datapath) -> u64 {
    path.stat(erb_abi::STAT_HELD).expect("a counter")
}

/// Runs `work` while LSNs are given and drained.
fn absorbing<T>(run_dir: &Path, work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    scope(|threads| {
        threads.spawn(|| {
            let mut random = fastrand::Rng::with_seed(7);
            let mut nap = |most| sleep(Duration::from_micros(random.u64(..most)));
            let path = path_of(run_dir);
            let control = path.control();
            while !done.load(Ordering::Relaxed) {
                control.give_lsns(control.lsn() + 3);
                nap(BEHIND_US);
                control.set_drained(control.lsn() - 1);
                nap(BEHIND_US);
                control.set_drained(control.lsn());
                nap(APART_US);
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })
}

#[test]
fn what_waits_for_a_drain_arrives_whole_and_in_order() {
    let mut lab = TestLab::boosted_with("order", &[]);
    let run_dir = lab.run_dir().to_path_buf();
    let path = path_of(&run_dir);
    let control = path.control();
    let (mut client, mut other) = (lab.client(), lab.client());
    set(&mut client, "k", "before");
    lab.heat(&mut other, "k");
    let before = lab.counters();
    control.give_lsns(control.lsn() + 1);
    scope(|threads| {
        let (began, held) = (Instant::now(), held(&path));
        let writer = threads.spawn(move || {
            set(&mut client, "k", "behind");
            began.elapsed()
        });
        let drains = Drains(|| control.set_drained(control.lsn()));
        wait_held(&path, held);
        sleep(BEHIND);
        drop(drains);
        let took = writer.join().expect("a thread of this test panicked");
        assert!(took >= BEHIND, "it passed after {took:?}");
    });
    // Without its client's timer, which has 200 ms at least.
    for counter in ["HELD", "HELD_COPIED", "HELD_INJECTED"] {
        assert!(lab.counters().since(&before, counter) > 0, "{counter}");
    }
    assert_eq!(get(&mut other, "k").as_deref(), Some("behind"));

    // All that clients see under load and loss is what Redis alone shows, but later.
    lab.link("loss=0.5% dup=0.5% reorder=1% delay=200us");
    let (target, plain) = (lab.address(), lab.plain_redis());
    let seconds = scaled(5, 60);
    let words = format!("--target {target} --shadow {plain} --seconds {seconds} --conns 16");
    let report = absorbing(&run_dir, || {
        lab.inside(End::Client, || {
            shadow::execute(&arguments::<ShadowArgs>(&words)).expect("shadow")
        })
    });
    assert!(report.passed, "{report:#?}");
    let ops = scaled(4_000, 100_000);
    let words = format!("--target {target} --ops {ops} --conns 16 --keys 8");
    wait(STATE_WAIT, || {
        let report = absorbing(&run_dir, || {
            lab.inside(End::Client, || {
                history::execute(&arguments::<HistoryArgs>(&words)).expect("history")
            })
        });
        assert!(report.passed, "{report:#?}");
        let counters = lab.assert_settled();
        let names = ["HELD", "HELD_COPIED", "HELD_INJECTED"];
        let all = names.iter().all(|name| counters.since(&before, name) > 10);
        all.then_some(()).ok_or_else(|| counters.text("HELD"))
    });
}

/// By every device: `lo`, whose packets have no route of their own when they come again, and both protocols.
#[test]
fn copies_come_again_by_lo() {
    let lab = loopback::boosted("orderlo", &[]);
    let path = path_of(lab.run_dir());
    let control = path.control();
    let here = |address: IpAddr| SocketAddr::new(address, lab.address().port());
    let local = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let addresses = local.map(here).into_iter();
    for to in addresses.chain([lab.address(), lab.address6()]) {
        let mut client = lab.inside(End::Server, || Conn::connect(to, STALL).expect("connect"));
        set(&mut client, "hot", "v");
        lab.heat(&mut client, "hot");
        wait(STATE_WAIT, || {
            let (before, sent_again) = (lab.counters(), client.retransmissions());
            let held = held(&path);
            control.give_lsns(control.lsn() + 1);
            scope(|threads| {
                threads.spawn(|| set(&mut client, "k", "behind"));
                let _drains = Drains(|| control.set_drained(control.lsn()));
                wait_held(&path, held);
            });
            if client.retransmissions().expect("TCP_INFO") > sent_again.expect("TCP_INFO") {
                return Err("the client's timer sent it, too".to_owned());
            }
            let counters = lab.counters();
            for counter in ["HELD", "HELD_COPIED", "HELD_INJECTED"] {
                assert_eq!(counters.since(&before, counter), 1, "{counter} at {to}");
            }
            Ok(())
        });
        assert_eq!(get(&mut client, "k").as_deref(), Some("behind"));
    }
    lab.assert_settled();
}

/// A client that waits longer than `--hold-max` is reset; the daemon and the others go on.
#[test]
fn who_waits_too_long_is_reset() {
    let mut lab = TestLab::up("holdmax", &["--direct"]);
    lab.use_run_dir("/run/erb/e2e-holdmax");
    let lab = lab;
    let output = lab.boost(&["--dev", "s0", "--hold-max", "500ms"]);
    assert!(output.status.success(), "{output:?}");
    lab.wait_admitting();
    let path = path_of(lab.run_dir());
    let control = path.control();
    let (mut client, mut other) = (lab.client(), lab.client());
    set(&mut client, "k", "before");
    set(&mut other, "quiet", "value");
    lab.heat(&mut other, "quiet");
    control.give_lsns(control.lsn() + 1);
    let began = Instant::now();
    let refused = client.call(&["SET", "k", "behind"]).is_err();
    let took = began.elapsed();
    assert!(refused, "it was answered");
    assert!(took >= Duration::from_millis(400), "within {took:?}");
    let waiting = lab.status().waiting;
    assert_eq!((waiting.ended, waiting.connections), (1, 0), "{waiting:?}");
    // What is known of another key is not waited for.
    assert_eq!(get(&mut other, "quiet").as_deref(), Some("value"));
    control.set_drained(control.lsn());
    let mut next = lab.client();
    set(&mut next, "k", "after");
    assert_eq!(get(&mut next, "k").as_deref(), Some("after"));
    lab.assert_settled();
}
