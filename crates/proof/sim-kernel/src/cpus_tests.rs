// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tasks, locks and what is caught about them.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use crate::cpus::{Context, Cpus, give_way};
use crate::exec;

fn order(seed: u64, mean_points: u32) -> Vec<usize> {
    let cpus = Cpus::new(2, seed, mean_points);
    let order = Rc::new(RefCell::new(Vec::new()));
    for cpu in 0..2 {
        let order = Rc::clone(&order);
        cpus.spawn(cpu, Context::Softirq, move || {
            for _ in 0..20 {
                order.borrow_mut().push(exec::current_cpu());
                exec::point();
            }
        });
    }
    cpus.run();
    order.take()
}

#[test]
fn the_seed_decides_the_order() {
    assert_eq!(order(1, 3), order(1, 3));
    assert!((2..20).any(|seed| order(seed, 3) != order(1, 3)));
    let alone = order(1, 0);
    assert!(alone[..20].iter().all(|cpu| *cpu == alone[0]), "{alone:?}");
    let mixed = order(1, 3);
    assert!(
        mixed[..20].contains(&0) && mixed[..20].contains(&1),
        "{mixed:?}"
    );
}

#[test]
fn a_lock_keeps_others_out() {
    let cpus = Cpus::new(4, 9, 1);
    let lock = Rc::new(Cell::new(0u32));
    let inside = Rc::new(Cell::new(0u32));
    let rounds = Rc::new(Cell::new(0u32));
    for cpu in 0..4 {
        let (lock, inside, rounds) = (Rc::clone(&lock), Rc::clone(&inside), Rc::clone(&rounds));
        cpus.spawn(cpu, Context::Softirq, move || {
            for _ in 0..50 {
                exec::lock(lock.as_ptr());
                assert_eq!(inside.replace(1), 0);
                exec::point();
                assert_eq!(inside.replace(0), 1);
                rounds.set(rounds.get() + 1);
                exec::unlock(lock.as_ptr());
            }
        });
    }
    cpus.run();
    assert_eq!(rounds.get(), 200);
    assert!(cpus.switches() > 200);
}

#[test]
fn softirqs_go_before_processes_but_not_into_pinned_ones() {
    for pinned in [false, true] {
        let cpus = Rc::new(Cpus::new(1, 5, 1));
        let order = Rc::new(RefCell::new(Vec::new()));
        let (inner, log) = (Rc::clone(&cpus), Rc::clone(&order));
        cpus.spawn(0, Context::Process, move || {
            let guard = pinned.then(exec::pin);
            let late = Rc::clone(&log);
            inner.spawn(0, Context::Softirq, move || {
                late.borrow_mut().push("softirq")
            });
            for _ in 0..10 {
                exec::point();
            }
            log.borrow_mut().push("process");
            drop(guard);
        });
        cpus.run();
        let expected = if pinned {
            ["process", "softirq"]
        } else {
            ["softirq", "process"]
        };
        assert_eq!(order.take(), expected);
    }
}

fn caught(work: impl FnOnce() + 'static) -> String {
    let cpus = Cpus::new(1, 1, 1);
    cpus.spawn(0, Context::Softirq, work);
    let panic = catch_unwind(AssertUnwindSafe(|| cpus.run())).expect_err("a violation");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn broken_rules_are_violations() {
    static LOCKS: [std::sync::atomic::AtomicU32; 5] =
        [const { std::sync::atomic::AtomicU32::new(0) }; 5];
    let at = |index: usize| LOCKS[index].as_ptr();
    let helper = caught(move || {
        exec::lock(at(0));
        exec::enter("bpf_ktime_get_ns");
    });
    assert!(
        helper.contains("bpf_ktime_get_ns is called while a lock"),
        "{helper}"
    );
    let twice = caught(move || {
        exec::lock(at(1));
        exec::lock(at(1));
    });
    assert!(twice.contains("taken twice"), "{twice}");
    let second = caught(move || {
        exec::lock(at(2));
        exec::lock(at(3));
    });
    assert!(second.contains("second lock"), "{second}");
    let not_held = caught(move || exec::unlock(at(4)));
    assert!(not_held.contains("not held"), "{not_held}");
    let kept = caught(move || exec::lock(at(4)));
    assert!(kept.contains("ends while it holds"), "{kept}");
    let deadlock = caught(move || exec::lock(at(4)));
    assert!(deadlock.contains("deadlock"), "{deadlock}");
}

#[test]
fn a_crash_unwinds_what_is_suspended() {
    struct Note(Rc<Cell<u32>>);
    impl Drop for Note {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let dropped = Rc::new(Cell::new(0));
    let cpus = Cpus::new(2, 1, 1);
    let note = Note(Rc::clone(&dropped));
    cpus.spawn(0, Context::Process, move || {
        let _note = note;
        exec::switch();
        exec::lock(std::ptr::null_mut());
    });
    cpus.spawn(1, Context::Process, || panic!("power"));
    let stopped = catch_unwind(AssertUnwindSafe(|| cpus.run()));
    assert!(stopped.is_err());
    cpus.crash();
    assert_eq!(dropped.get(), 1);
    assert!(cpus.idle());
}

#[test]
fn who_waits_for_a_cpu_that_stands_still_waits_until_it_goes_on() {
    let cpus = Cpus::new(3, 1, 0);
    let done = Rc::new(Cell::new(0));
    let lock = Rc::new(Cell::new(0u32));
    let [first, second, third] = [0; 3].map(|_| Rc::clone(&done));
    let [held, wanted] = [0; 2].map(|_| Rc::clone(&lock));
    assert!(cpus.stop(0, 4) && !cpus.stop(1, 1));
    cpus.spawn(0, Context::Softirq, move || {
        exec::lock(held.as_ptr());
        for _ in 0..10 {
            exec::point();
        }
        exec::unlock(held.as_ptr());
        first.set(first.get() + 1);
    });
    cpus.run();
    assert_eq!(cpus.still(), Some(0));
    cpus.spawn(1, Context::Softirq, move || {
        exec::lock(wanted.as_ptr());
        exec::unlock(wanted.as_ptr());
        second.set(second.get() + 1);
    });
    cpus.spawn(2, Context::Process, move || {
        while third.get() < 2 {
            give_way();
        }
        third.set(3);
    });
    cpus.run();
    assert_eq!(done.get(), 0);
    cpus.go_on();
    cpus.run();
    assert_eq!(done.get(), 3);
    assert!(cpus.idle());
}
