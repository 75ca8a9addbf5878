// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a scenario does to frames on their way.

use std::cell::Cell;
use std::rc::Rc;

use crate::inner::Event;
use crate::link::{Fate, Filter, Frame};
use crate::scenario::Scenario;

impl Scenario {
    /// From now on `filter` decides about frames from a machine to the server.
    pub fn up(&mut self, machine: usize, filter: Option<Filter>) {
        self.world.inner.up.borrow_mut()[machine].set_filter(filter);
    }

    /// From now on `filter` decides about frames from the server to a machine.
    pub fn down(&mut self, machine: usize, filter: Option<Filter>) {
        self.world.inner.down.borrow_mut()[machine].set_filter(filter);
    }

    /// The next `count` frames from machine 0 are lost.
    pub fn lose_up(&mut self, count: u32) {
        self.up(0, Some(first(count, Fate::Drop)));
    }

    /// The next `count` frames to machine 0 are lost.
    pub fn lose_down(&mut self, count: u32) {
        self.down(0, Some(first(count, Fate::Drop)));
    }

    /// The next `count` frames from machine 0 are held; [`Self::release_up`] lets them go.
    pub fn hold_up(&mut self, count: u32) {
        self.up(0, Some(first(count, Fate::Hold)));
    }

    /// The next `count` frames to machine 0 are held; [`Self::release_down`] lets them go.
    pub fn hold_down(&mut self, count: u32) {
        self.down(0, Some(first(count, Fate::Hold)));
    }

    /// Takes what is held of frames from machine 0.
    pub fn held_up(&mut self) -> Vec<Frame> {
        std::mem::take(self.world.inner.up.borrow_mut()[0].held())
    }

    /// Takes what is held of frames to machine 0.
    pub fn held_down(&mut self) -> Vec<Frame> {
        std::mem::take(self.world.inner.down.borrow_mut()[0].held())
    }

    /// What is held of frames from machine 0 arrives now, in order.
    pub fn release_up(&mut self) {
        for frame in self.held_up() {
            self.inject_up(0, frame);
        }
    }

    /// What is held of frames to machine 0 arrives now, in order.
    pub fn release_down(&mut self) {
        for frame in self.held_down() {
            self.inject_down(0, frame);
        }
    }

    /// A frame arrives at the server, as if from this machine, at once.
    pub fn inject_up(&mut self, machine: usize, frame: Frame) {
        let now = self.now();
        let key = self.world.inner.up.borrow_mut()[machine].inject(now, 0, frame);
        self.world.inner.at(key.0, Event::Up(machine, key));
    }

    /// A frame arrives at a machine at once.
    pub fn inject_down(&mut self, machine: usize, frame: Frame) {
        let now = self.now();
        let key = self.world.inner.down.borrow_mut()[machine].inject(now, 0, frame);
        self.world.inner.at(key.0, Event::Down(machine, key));
    }
}

/// A filter that gives the first `count` frames this fate and delivers the others.
#[must_use]
pub fn first(count: u32, fate: Fate) -> Filter {
    let mut left = count;
    Box::new(move |_, _| {
        if left == 0 {
            return Fate::Deliver;
        }
        left -= 1;
        fate.clone()
    })
}

/// A filter that gives this fate to frames of which `which` holds, and notes how many there were.
#[must_use]
pub fn only(which: impl Fn(&Frame) -> bool + 'static, fate: Fate) -> (Filter, Rc<Cell<u32>>) {
    let seen = Rc::new(Cell::new(0));
    let count = seen.clone();
    let filter: Filter = Box::new(move |_, frame| {
        if !which(frame) {
            return Fate::Deliver;
        }
        count.set(count.get() + 1);
        fate.clone()
    });
    (filter, seen)
}
