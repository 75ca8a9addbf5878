// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Older versions of keys: an array for each key that has any, oldest first.
//!
//! Invariants:
//! 1. An array has room for at most half as much again as it holds.
//! 2. An array of no versions takes nothing.

use crate::place::Place;
use crate::slab::Slab;
use crate::version::Version;

/// A version of a key: its number, and where its content lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Its number.
    pub version: Version,
    /// Where its content lies.
    pub place: Place,
}

/// Most older versions of a key: 256 MiB of memory for one.
pub const OLDER_MAX: usize = 1 << (CLASS_MAX / 2);
const CLASS_MAX: u8 = 48;

/// Where a key's older versions are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Array {
    pub(crate) index: u32,
    pub(crate) length: u32,
    /// 0: there are none.
    pub(crate) class: u8,
}

/// Room of a class: 1, 2, 3, 4, 6, 8, 12, 16, ...
fn room(class: u8) -> usize {
    match class {
        0 | 1 => usize::from(class),
        _ if class % 2 == 0 => 1 << (class / 2),
        _ => 3 << ((class - 3) / 2),
    }
}

fn class_for(length: usize) -> u8 {
    let fits = (0..=CLASS_MAX).find(|class| room(*class) >= length);
    fits.expect("who adds a version has asked whether there is room")
}

/// The arrays of all keys of an index.
#[derive(Debug)]
pub(crate) struct Arrays {
    /// By class less one.
    slabs: Vec<Slab<Held>>,
}

impl Arrays {
    pub(crate) fn new() -> Self {
        Self {
            slabs: (1..=CLASS_MAX)
                .map(|class| Slab::new(room(class)))
                .collect(),
        }
    }

    fn slab(&mut self, class: u8) -> &mut Slab<Held> {
        &mut self.slabs[usize::from(class) - 1]
    }

    pub(crate) fn get(&self, array: Array) -> &[Held] {
        if array.class == 0 {
            return &[];
        }
        let slab = &self.slabs[usize::from(array.class) - 1];
        &slab.get(array.index)[..array.length as usize]
    }

    pub(crate) fn get_mut(&mut self, array: Array) -> &mut [Held] {
        if array.class == 0 {
            return &mut [];
        }
        &mut self.slab(array.class).get_mut(array.index)[..array.length as usize]
    }

    /// Adds one at the end.
    pub(crate) fn push(&mut self, array: Array, held: Held) -> Array {
        let length = array.length as usize;
        let array = if length < room(array.class) {
            array
        } else {
            self.moved(array, class_for(length + 1))
        };
        self.slab(array.class).get_mut(array.index)[length] = held;
        Array {
            length: array.length + 1,
            ..array
        }
    }

    /// Holds these instead.
    pub(crate) fn replace(&mut self, array: Array, all: &[Held]) -> Array {
        let class = class_for(all.len());
        let mut array = if class == array.class {
            array
        } else {
            self.give_back(array);
            let index = if class == 0 {
                0
            } else {
                self.slab(class).take()
            };
            Array {
                index,
                length: 0,
                class,
            }
        };
        array.length = all.len() as u32;
        if class > 0 {
            self.slab(class).get_mut(array.index)[..all.len()].copy_from_slice(all);
        }
        array
    }

    fn moved(&mut self, array: Array, class: u8) -> Array {
        let index = self.slab(class).take();
        if array.class > 0 {
            // Two slabs at once: the new one is the later.
            let (lower, upper) = self.slabs.split_at_mut(usize::from(class) - 1);
            let old = &lower[usize::from(array.class) - 1];
            let old = &old.get(array.index)[..array.length as usize];
            upper[0].get_mut(index)[..old.len()].copy_from_slice(old);
        }
        self.give_back(array);
        Array {
            index,
            class,
            ..array
        }
    }

    pub(crate) fn give_back(&mut self, array: Array) {
        if array.class > 0 {
            self.slab(array.class).give_back(array.index);
        }
    }

    /// Moves it to where memory is denser.
    pub(crate) fn settle(&mut self, array: Array) -> Array {
        if array.class == 0 {
            return array;
        }
        let index = self.slab(array.class).settle(array.index);
        Array { index, ..array }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slabs.iter().map(Slab::bytes).sum::<usize>()
            + self.slabs.capacity() * size_of::<Slab<Held>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(number: u64) -> Held {
        Held {
            version: Version::new(number),
            place: Place::NOTHING,
        }
    }

    #[test]
    fn an_array_has_room_for_half_as_much_again_at_most() {
        for length in 1..100_000 {
            let room = room(class_for(length));
            assert!(room >= length && 2 * room <= 3 * length + 1, "{length}");
        }
        assert_eq!(class_for(0), 0);
        assert_eq!(room(CLASS_MAX), OLDER_MAX);
    }

    #[test]
    fn arrays_grow_shrink_and_stay_apart() {
        let mut arrays = Arrays::new();
        let mut held_by = vec![(Array::default(), Vec::new()); 40];
        let mut state = 7u64;
        for number in 0..30_000u64 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let (array, wanted) = &mut held_by[(state >> 40) as usize % 40];
            match (state >> 20) % 16 {
                0 => {
                    wanted.retain(|one: &Held| one.version.number() % 3 != 0);
                    *array = arrays.replace(*array, wanted);
                }
                1 => *array = arrays.settle(*array),
                2 if number % 8 == 0 => {
                    wanted.clear();
                    *array = arrays.replace(*array, wanted);
                }
                _ => {
                    wanted.push(held(number));
                    *array = arrays.push(*array, held(number));
                }
            }
            assert_eq!(arrays.get(*array), wanted);
        }
        for (array, wanted) in held_by {
            assert_eq!(arrays.get(array), wanted);
            arrays.give_back(array);
        }
        let empty = Arrays::new();
        // The list of chunks keeps its room, the chunks are gone.
        assert!(
            arrays.bytes() < empty.bytes() + 100_000,
            "{}",
            arrays.bytes()
        );
    }
}
