// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the scenarios of this thread run with: a mutant of the data path or a mistake of the daemon.

use std::cell::{Cell, RefCell};
use std::panic::{set_hook, take_hook};
use std::sync::Once;

use erb_sim_kernel::Library;

use crate::mutate::DaemonMistake;
use crate::plan::Outcome;

thread_local! {
    static AT_HAND: RefCell<(Option<Library>, Option<DaemonMistake>)> = const { RefCell::new((None, None)) };
    static QUIET: Cell<bool> = const { Cell::new(false) };
    static PLAYED: Cell<Played> = const { Cell::new(Played { worlds: 0, events: 0 }) };
    static OUTCOMES: RefCell<Option<Vec<Outcome>>> = const { RefCell::new(None) };
}

/// What this thread has played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Played {
    /// Worlds made.
    pub worlds: u64,
    /// Events in them.
    pub events: u64,
}

impl Played {
    /// So far.
    #[must_use]
    pub fn so_far() -> Self {
        PLAYED.get()
    }

    /// What was played since an earlier moment.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            worlds: self.worlds - before.worlds,
            events: self.events - before.events,
        }
    }
}

pub(super) fn played(worlds: u64, events: u64) {
    let before = PLAYED.get();
    PLAYED.set(Played {
        worlds: before.worlds + worlds,
        events: before.events + events,
    });
}

/// A world is over.
pub(super) fn over(outcome: impl FnOnce() -> Outcome) {
    OUTCOMES.with_borrow_mut(|kept| {
        if let Some(kept) = kept {
            kept.push(outcome());
        }
    });
}

/// Runs `play`; what its worlds were besides.
pub(super) fn outcomes<T>(play: impl FnOnce() -> T) -> (T, Vec<Outcome>) {
    OUTCOMES.set(Some(Vec::new()));
    let done = play();
    (done, OUTCOMES.take().unwrap_or_default())
}

pub(super) fn library() -> Option<Library> {
    AT_HAND.with_borrow(|at_hand| at_hand.0.clone())
}

pub(super) fn mistake() -> Option<DaemonMistake> {
    AT_HAND.with_borrow(|at_hand| at_hand.1)
}

/// Runs `play` with this at hand. A panic, which is expected, prints nothing.
pub(super) fn with<T>(
    library: Option<Library>,
    mistake: Option<DaemonMistake>,
    play: impl FnOnce() -> T,
) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                usual(panic);
            }
        }));
    });
    let quiet = QUIET.replace(true);
    let before = AT_HAND.replace((library, mistake));
    let done = play();
    AT_HAND.set(before);
    QUIET.set(quiet);
    done
}
