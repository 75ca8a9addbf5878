// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is running on this thread right now: which CPU, which world's maps, what it holds.
//!
//! E1. EXEC points to the running task's state, or is null; set by the scheduler around each resume
//!     and by a run outside of any task.
//! E2. A task holds at most one lock, and calls no helper meanwhile: else a violation.
//! E3. A program leaves with no lock, no socket and no ring record: else a violation.

use std::cell::Cell;
use std::ptr;

use corosensei::Yielder;

use crate::datapath::Inner;

/// A socket that a program holds: memory as C sees it.
pub(crate) struct Held {
    pub(crate) mirror: Box<[u64]>,
    pub(crate) sock: u64,
    pub(crate) last: crate::Sock,
}

/// State of one task, or of a run outside of tasks.
pub(crate) struct Exec {
    pub(crate) id: u32,
    pub(crate) cpu: usize,
    pub(crate) inner: *const Inner,
    /// Device of the running program's packet.
    pub(crate) ifindex: u32,
    pub(crate) lock: *mut u32,
    pub(crate) blocked_on: *mut u32,
    /// It waits for what another task will do, and is asked again and again.
    pub(crate) gives_way: bool,
    pub(crate) held: Vec<Held>,
    pub(crate) records: Vec<*mut u8>,
    /// Homes of sockets whose address the program has cast.
    pub(crate) casts: Vec<usize>,
    /// Sections in which no other task of the same CPU may run.
    pub(crate) pins: u32,
    pub(crate) yielder: *const Yielder<(), ()>,
}

impl Exec {
    pub(crate) const fn new(id: u32, cpu: usize) -> Self {
        Self {
            id,
            cpu,
            inner: ptr::null(),
            ifindex: 0,
            lock: ptr::null_mut(),
            blocked_on: ptr::null_mut(),
            gives_way: false,
            held: Vec::new(),
            records: Vec::new(),
            casts: Vec::new(),
            pins: 0,
            yielder: ptr::null(),
        }
    }

    /// Whether another task of the same CPU may run now.
    pub(crate) const fn pinned(&self) -> bool {
        self.pins > 0 || !self.lock.is_null()
    }

    pub(crate) fn inner(&self) -> &Inner {
        assert!(
            !self.inner.is_null(),
            "a helper was called outside of a program"
        );
        // SAFETY: inner is set by Datapath::run for as long as the program runs, and the Datapath is
        // borrowed meanwhile.
        unsafe { &*self.inner }
    }

    /// The kernel goes on while a task waits: what it holds is shown anew.
    pub(crate) fn refresh(&mut self) {
        if self.held.is_empty() && self.casts.is_empty() {
            return;
        }
        // SAFETY: as in inner(); only programs hold sockets and cast addresses.
        let inner = unsafe { &*self.inner };
        inner.refresh_homes(&self.casts);
        for held in &mut self.held {
            inner.refresh(held);
        }
    }
}

thread_local! {
    static EXEC: Cell<*mut Exec> = const { Cell::new(ptr::null_mut()) };
    /// Points left until the running task may be switched away; `u32::MAX` if it never is.
    static FUEL: Cell<u32> = const { Cell::new(u32::MAX) };
}

/// A rule that the kernel enforces, or the data path's own, was broken.
#[cold]
pub(crate) fn violation(what: &str) -> ! {
    panic!("violation: {what}");
}

pub(crate) fn exec_pointer() -> *mut Exec {
    EXEC.get()
}

pub(crate) fn set_exec(exec: *mut Exec) -> *mut Exec {
    EXEC.replace(exec)
}

pub(crate) fn set_fuel(points: u32) {
    FUEL.set(points);
}

/// The running task's state. Borrows must not live across a point.
pub(crate) fn exec() -> &'static mut Exec {
    let at = EXEC.get();
    assert!(!at.is_null(), "a helper was called outside of a program");
    // SAFETY: E1: it points to the state of the task that runs on this thread. Callers drop the
    // reference before the next point, so there is one at a time.
    unsafe { &mut *at }
}

/// A place at which another CPU may run: at every helper and lock boundary. World code may call it
/// too. Nothing happens outside of tasks.
pub fn point() {
    let left = FUEL.get();
    if left == u32::MAX {
        return;
    }
    if left > 0 {
        FUEL.set(left - 1);
        return;
    }
    switch();
}

/// Lets others run now, if this is a task.
pub(crate) fn switch() {
    let at = EXEC.get();
    if at.is_null() {
        return;
    }
    // SAFETY: E1. The yielder belongs to the coroutine that runs and lives as long as it.
    unsafe {
        if (*at).yielder.is_null() {
            return;
        }
        (*(*at).yielder).suspend(());
        (*at).refresh();
    }
}

/// The same for who waits for them, without a lock.
pub(crate) fn give_way() {
    if EXEC.get().is_null() {
        return;
    }
    exec().gives_way = true;
    switch();
    exec().gives_way = false;
}

/// Beginning of every helper: none may be called under a lock.
pub(crate) fn enter(helper: &str) {
    if !exec().lock.is_null() {
        violation(&format!("{helper} is called while a lock is held"));
    }
    point();
}

/// `bpf_spin_lock`.
pub(crate) fn lock(at: *mut u32) {
    let me = exec();
    if me.lock == at {
        violation("a lock is taken twice");
    }
    if !me.lock.is_null() {
        violation("a second lock is taken while one is held");
    }
    point();
    // SAFETY: the program hands a pointer to a lock inside a map's value, which outlives the run.
    while unsafe { at.read() } != 0 {
        let me = exec();
        if me.yielder.is_null() {
            violation("a lock is waited for that nobody will release");
        }
        me.blocked_on = at;
        switch();
        exec().blocked_on = ptr::null_mut();
    }
    let me = exec();
    // SAFETY: as above.
    unsafe { at.write(me.id) };
    me.lock = at;
    point();
}

/// `bpf_spin_unlock`.
pub(crate) fn unlock(at: *mut u32) {
    let me = exec();
    // SAFETY: as in lock.
    let owner = unsafe { at.read() };
    if me.lock != at || owner != me.id {
        violation("a lock is released that is not held");
    }
    // SAFETY: as in lock.
    unsafe { at.write(0) };
    me.lock = ptr::null_mut();
    point();
}

/// No other task of the same CPU runs while it lives: softirqs off, as in the kernel's network code.
#[derive(Debug)]
pub struct Pinned(());

/// Begins a section in which the current task keeps its CPU (others go on).
#[must_use]
pub fn pin() -> Pinned {
    if !EXEC.get().is_null() {
        exec().pins += 1;
    }
    Pinned(())
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !EXEC.get().is_null() {
            let me = exec();
            me.pins = me.pins.saturating_sub(1);
        }
    }
}

/// CPU of the running task; 0 outside of tasks.
#[must_use]
pub fn current_cpu() -> usize {
    let at = EXEC.get();
    if at.is_null() {
        return 0;
    }
    // SAFETY: E1.
    unsafe { (*at).cpu }
}
