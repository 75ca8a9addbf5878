// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which programs are under way on one machine's maps.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use crate::cpus::give_way;

/// All of them, and those of the network by numbers that grow.
#[derive(Default)]
pub(crate) struct UnderWay {
    count: Cell<u32>,
    next: Cell<u64>,
    sections: RefCell<BTreeSet<u64>>,
}

impl UnderWay {
    pub(crate) fn begin(&self) -> Running<'_> {
        self.count.set(self.count.get() + 1);
        Running(&self.count)
    }

    pub(crate) fn begin_section(&self) -> Section<'_> {
        let number = self.next.replace(self.next.get() + 1);
        self.sections.borrow_mut().insert(number);
        Section(&self.sections, number)
    }

    pub(crate) fn is_any(&self) -> bool {
        self.count.get() > 0
    }

    /// Returns when those of the network have ended that have begun.
    pub(crate) fn wait(&self) {
        let next = self.next.get();
        let began_before = |first: &u64| *first < next;
        while self.sections.borrow().first().is_some_and(began_before) {
            give_way();
        }
    }
}

/// One program in progress, also if its task is dropped.
pub(crate) struct Running<'a>(&'a Cell<u32>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// One of the network: who waits for it waits until it is dropped.
pub(crate) struct Section<'a>(&'a RefCell<BTreeSet<u64>>, u64);

impl Drop for Section<'_> {
    fn drop(&mut self) {
        self.0.borrow_mut().remove(&self.1);
    }
}
