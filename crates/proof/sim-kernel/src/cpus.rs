// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPUs: tasks that interleave at every helper call and lock boundary, decided by a seed.
//!
//! P1. Exactly one task runs at a time; which one is decided by the seed alone.
//! P2. On one CPU softirq tasks run one after the other and before process tasks go on.
//! P3. A task that holds a lock or has pinned its CPU is not interrupted by others of its CPU.
//! P4. A CPU that stands still, as its hypervisor does not run it, runs no task. Whoever waits for one of
//!     its tasks goes on waiting, beyond the end of [`Cpus::run`] too.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};

use crate::exec::{self, Exec, violation};

/// Stacks are mapped once and used again; programs need little, panics more.
const STACK_BYTES: usize = 512 * 1024;
/// While a CPU stands still: so often in a row tasks give way to others until all are taken to wait for it.
const WAITS_MAX: u32 = 64;

/// What kind of work a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// Packets received: goes before processes of its CPU, one at a time, in order.
    Softirq,
    /// A process: Redis, the daemon.
    Process,
}

struct Task {
    coroutine: Coroutine<(), (), (), DefaultStack>,
    exec: Box<Exec>,
}

#[derive(Default)]
struct Cpu {
    softirq: VecDeque<Task>,
    process: VecDeque<Task>,
}

/// The CPUs of one machine.
pub struct Cpus {
    cpus: RefCell<Vec<Cpu>>,
    random: RefCell<fastrand::Rng>,
    /// Mean number of points between two switches; 0: tasks run to their ends.
    mean_points: Cell<u32>,
    next_id: Cell<u32>,
    /// Stands still: P4.
    still: Cell<Option<usize>>,
    /// Will, so many points into its next softirq task.
    stops: Cell<Option<(usize, u32)>>,
    switches: Cell<u64>,
    stacks: RefCell<Vec<DefaultStack>>,
}

impl Cpus {
    /// So many CPUs. A running task is switched away with a probability of one in `mean_points` at
    /// each point; 0: only if it must wait.
    #[must_use]
    pub fn new(cpus: usize, seed: u64, mean_points: u32) -> Self {
        Self {
            cpus: RefCell::new((0..cpus).map(|_| Cpu::default()).collect()),
            random: RefCell::new(fastrand::Rng::with_seed(seed)),
            mean_points: Cell::new(mean_points),
            next_id: Cell::new(1),
            still: Cell::new(None),
            stops: Cell::new(None),
            switches: Cell::new(0),
            stacks: RefCell::new(Vec::new()),
        }
    }

    /// How many CPUs there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.cpus.borrow().len()
    }

    /// Changes how often tasks are switched.
    pub fn set_mean_points(&self, mean_points: u32) {
        self.mean_points.set(mean_points);
    }

    /// Switches so far.
    #[must_use]
    pub fn switches(&self) -> u64 {
        self.switches.get()
    }

    /// Queues a task on a CPU; it runs in [`Cpus::run`]. Tasks may spawn others.
    pub fn spawn(&self, cpu: usize, context: Context, work: impl FnOnce() + 'static) {
        let id = self.next_id.get();
        // 0 is a free lock.
        self.next_id.set(id.checked_add(1).unwrap_or(1));
        let mut exec = Box::new(Exec::new(id, cpu));
        let at: *mut Exec = &raw mut *exec;
        let stack = self.stacks.borrow_mut().pop();
        let stack = stack.unwrap_or_else(|| {
            DefaultStack::new(STACK_BYTES).expect("no memory for the stack of a task")
        });
        let coroutine = Coroutine::with_stack(stack, move |yielder, ()| {
            // SAFETY: exec lives in the task beside the coroutine and is boxed, so it stays where
            // it is for as long as the coroutine runs.
            unsafe { (*at).yielder = yielder };
            work();
        });
        let mut cpus = self.cpus.borrow_mut();
        let queue = match context {
            Context::Softirq => &mut cpus[cpu].softirq,
            Context::Process => &mut cpus[cpu].process,
        };
        queue.push_back(Task { coroutine, exec });
        drop(cpus);
        if !exec::exec_pointer().is_null() {
            self.refuel(); // a task that was alone is so no longer
        }
    }

    /// This CPU will stand still, so many points into the next softirq task that it runs; not at all if that ends
    /// before. False: another does, or will.
    pub fn stop(&self, cpu: usize, points: u32) -> bool {
        let may = self.still.get().is_none() && self.stops.get().is_none();
        if may {
            self.stops.set(Some((cpu, points)));
        }
        may
    }

    /// The CPU that stands still.
    #[must_use]
    pub fn still(&self) -> Option<usize> {
        self.still.get()
    }

    /// It goes on, in the next [`Cpus::run`], or will not stand still.
    pub fn go_on(&self) {
        self.stops.set(None);
        self.still.set(None);
    }

    /// Runs all tasks to their ends, those that they spawn included; but for those of a CPU that stands still, and
    /// who waits for them.
    ///
    /// # Panics
    /// With "violation: ..." if a task breaks a rule, or if all wait for each other; what a task
    /// panics with comes out here. Remaining tasks are dropped then.
    pub fn run(&self) {
        let mut waits = 0;
        while let Some((cpu, context, index)) = self.choose() {
            let gave_way = self.resume(cpu, context, index);
            waits = if gave_way { waits + 1 } else { 0 };
            if waits > WAITS_MAX && self.still.get().is_some() {
                return;
            }
        }
    }

    /// Whether nothing is left to run.
    #[must_use]
    pub fn idle(&self) -> bool {
        let cpus = self.cpus.borrow();
        cpus.iter()
            .all(|cpu| cpu.softirq.is_empty() && cpu.process.is_empty())
    }

    /// Drops all tasks where they are: the machine has crashed.
    pub fn crash(&self) {
        self.go_on();
        for cpu in self.cpus.borrow_mut().iter_mut() {
            for task in cpu.softirq.drain(..).chain(cpu.process.drain(..)) {
                drop_task(task);
            }
        }
    }

    fn choose(&self) -> Option<(usize, Context, usize)> {
        let cpus = self.cpus.borrow();
        let mut ready = Vec::with_capacity(8);
        let mut any = false;
        let still = self.still.get();
        let running = cpus.iter().enumerate();
        for (number, cpu) in running.filter(|(number, _)| still != Some(*number)) {
            any |= !cpu.softirq.is_empty() || !cpu.process.is_empty();
            cpu.ready(|context, index| ready.push((number, context, index)));
        }
        if ready.is_empty() {
            if any && still.is_none() {
                violation("deadlock: every task waits for a lock");
            }
            return None;
        }
        let chosen = if ready.len() == 1 {
            0
        } else {
            self.random.borrow_mut().usize(..ready.len())
        };
        Some(ready[chosen])
    }

    fn refuel(&self) {
        let mean = self.mean_points.get();
        let points = if mean == 0 {
            u32::MAX
        } else {
            // Uniform with this mean: short and long runs alike, and cheap.
            self.random
                .borrow_mut()
                .u32(..mean.saturating_mul(2).max(1))
        };
        exec::set_fuel(points);
    }

    /// Returns whether the task gave way to what it waits for.
    fn resume(&self, cpu: usize, context: Context, index: usize) -> bool {
        let mut task = {
            let mut cpus = self.cpus.borrow_mut();
            let cpu = &mut cpus[cpu];
            // Its place is kept by position: the task is put back below.
            let queue = cpu.queue(context);
            queue.remove(index).expect("the chosen task is there")
        };
        self.refuel();
        let stops = self.stops.get();
        let stops = stops.filter(|stops| stops.0 == cpu && context == Context::Softirq);
        if let Some((_, points)) = stops {
            exec::set_fuel(points);
            self.stops.set(None);
        }
        self.switches.set(self.switches.get() + 1);
        let before = exec::set_exec(&raw mut *task.exec);
        let restore = Restore(before);
        let result = task.coroutine.resume(());
        drop(restore);
        match result {
            CoroutineResult::Yield(()) => {
                if stops.is_some() {
                    self.still.set(Some(cpu));
                }
                let gave_way = task.exec.gives_way;
                let mut cpus = self.cpus.borrow_mut();
                cpus[cpu].queue(context).insert(index, task);
                gave_way
            }
            CoroutineResult::Return(()) => {
                if task.exec.pinned() {
                    violation("a task ends while it holds a lock or has pinned its CPU");
                }
                self.stacks.borrow_mut().push(task.coroutine.into_stack());
                false
            }
        }
    }
}

impl Cpu {
    fn queue(&mut self, context: Context) -> &mut VecDeque<Task> {
        match context {
            Context::Softirq => &mut self.softirq,
            Context::Process => &mut self.process,
        }
    }

    /// Names the tasks of this CPU that may run now: P2, P3.
    fn ready(&self, mut found: impl FnMut(Context, usize)) {
        let waits = |task: &Task| {
            let at = task.exec.blocked_on;
            // SAFETY: blocked_on points to a lock in a map that the task's program keeps alive.
            !at.is_null() && unsafe { at.read() } != 0
        };
        if let Some(index) = self.process.iter().position(|task| task.exec.pinned()) {
            if !waits(&self.process[index]) {
                found(Context::Process, index);
            }
            return;
        }
        if let Some(task) = self.softirq.front() {
            if !waits(task) {
                found(Context::Softirq, 0);
            }
            return;
        }
        for (index, task) in self.process.iter().enumerate() {
            if !waits(task) {
                found(Context::Process, index);
            }
        }
    }
}

impl Drop for Cpus {
    fn drop(&mut self) {
        self.crash();
    }
}

/// A suspended task is unwound when it is dropped: with its own state in place.
fn drop_task(mut task: Task) {
    let restore = Restore(exec::set_exec(&raw mut *task.exec));
    let Task { coroutine, exec } = task;
    drop(coroutine);
    drop(restore);
    drop(exec);
}

/// Lets other tasks run now, whatever the seed says: for world code that waits for what another task
/// will do. Nothing happens outside of tasks.
pub fn give_way() {
    exec::give_way();
}

struct Restore(*mut Exec);

impl Drop for Restore {
    fn drop(&mut self) {
        exec::set_exec(self.0);
        exec::set_fuel(u32::MAX);
    }
}
