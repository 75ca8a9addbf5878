// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several CPUs in the data path at once.

use std::cell::RefCell;
use std::rc::Rc;

use erb_sim_kernel::{Context, Cpus, Datapath, DatapathConfig, Library, Tc, Xdp};

use erb_wire::layout::payload;

use erb_sim_kernel::scene::{Scene, command, get};

/// Two clients ask on two CPUs while a third CPU invalidates and fills; returns all that happened.
fn mixed(seed: u64) -> (Vec<String>, Vec<u64>, u64) {
    let mut scene = Scene::new(DatapathConfig {
        cpus: 3,
        sets: 1,
        ..DatapathConfig::default()
    });
    let cpus = Cpus::new(3, seed, 4);
    let log = Rc::new(RefCell::new(Vec::new()));
    scene.warm();
    scene.fill(b"key", b"value");
    for (cpu, port) in [(0, 40_001), (1, 40_002)] {
        scene.connect(port);
        scene.warm();
        let mut packet = scene.request(&get(b"key"));
        let (path, log) = (scene.path.clone(), Rc::clone(&log));
        cpus.spawn(cpu, Context::Softirq, move || {
            let verdict = path.run_xdp(&mut packet);
            if verdict == Xdp::Tx {
                assert_eq!(payload(packet.bytes()), b"$5\r\nvalue\r\n");
            }
            log.borrow_mut().push(format!("{cpu} {verdict:?}"));
        });
    }
    let filler = Scene {
        kernel: Rc::clone(&scene.kernel),
        path: scene.path.clone(),
        ..scene
    };
    let fills = Rc::clone(&log);
    cpus.spawn(2, Context::Process, move || {
        filler.path.run_prog(erb_sim_kernel::Prog::Invalidate);
        let status = filler.fill(b"key", b"value");
        fills.borrow_mut().push(format!("fill {status}"));
    });
    cpus.run();
    (log.take(), scene.path.stats(), cpus.switches())
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let runs: Vec<_> = (0..40).map(mixed).collect();
    assert_eq!(runs[7], mixed(7));
    let mut kinds: Vec<_> = runs.iter().map(|run| &run.0).collect();
    kinds.sort();
    kinds.dedup();
    assert!(kinds.len() > 3, "interleavings differ: {kinds:?}");
}

/// The same new bytes twice, on two CPUs at once: one of them is answered or goes up, never both as
/// new.
#[test]
fn one_request_on_two_cpus_is_consumed_once() {
    for seed in 0..200 {
        let mut scene = Scene::new(DatapathConfig::default());
        scene.warm();
        scene.fill(b"key", b"value");
        let cpus = Cpus::new(2, seed, 3);
        for cpu in 0..2 {
            let mut packet = scene.request(&get(b"key"));
            let path = scene.path.clone();
            cpus.spawn(cpu, Context::Softirq, move || {
                path.run_xdp(&mut packet);
            });
        }
        cpus.run();
        let conn = scene.conn();
        assert_eq!(conn.in_delta as usize, get(b"key").len(), "seed {seed}");
        assert_eq!(conn.out_delta, 11, "seed {seed}");
    }
}

#[test]
fn a_write_holds_its_mark_until_its_reply_has_left() {
    let mut scene = Scene::new(DatapathConfig::default());
    scene.warm();
    scene.fill(b"key", b"value");
    let set = command(&[b"SET", b"key", b"other"]);
    assert_eq!(scene.send(&set).0, Xdp::Pass);
    assert_eq!(marks(&scene), 1);
    assert_eq!(scene.served(set.len(), b"+OK\r\n").0, Tc::Next);
    assert_eq!(marks(&scene), 0);
}

/// Interleavings tried: a reader that is wrong shows in dozens of them.
pub const SEEDS: u64 = 3000;

/// How many of so many interleavings answer a value from before the cache was emptied, although the
/// lease had ended before and is renewed only behind that.
pub fn stale_answers(library: &Library, seeds: u64) -> usize {
    let stale = |seed: &u64| {
        let mut scene = Scene::on(library, DatapathConfig::default());
        scene.warm();
        scene.fill(b"key", b"old");
        let until = |path: &Datapath, ns: u64| {
            // SAFETY: programs run, but none while this does.
            unsafe { (*path.control()).lease_until_ns = ns };
        };
        until(&scene.path, 0);
        let cpus = Cpus::new(2, *seed, 20);
        let mut packet = scene.request(&get(b"key"));
        let verdict = Rc::new(RefCell::new(None));
        let (reader, seen) = (scene.path.clone(), Rc::clone(&verdict));
        cpus.spawn(0, Context::Softirq, move || {
            seen.replace(Some(reader.run_xdp(&mut packet)));
        });
        let daemon = scene.path.clone();
        cpus.spawn(1, Context::Process, move || {
            daemon.run_prog(erb_sim_kernel::Prog::Clear);
            until(&daemon, u64::MAX);
        });
        cpus.run();
        verdict.take() == Some(Xdp::Tx)
    };
    (0..seeds).filter(stale).count()
}

#[test]
fn a_renewed_lease_answers_nothing_from_before_it() {
    assert_eq!(stale_answers(&Library::builtin(), SEEDS), 0);
}

fn marks(scene: &Scene) -> u32 {
    (0..scene.path.set_count())
        .map(|index| scene.path.set(index).0.marks)
        .sum()
}
