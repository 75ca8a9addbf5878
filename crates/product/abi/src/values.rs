// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Array maps in the memory of this process, shared with the programs.

use std::any::Any;

/// All values of an array map.
pub struct Values {
    at: *mut u8,
    stride: usize,
    count: usize,
    _keeper: Box<dyn Any>,
}

impl Values {
    /// So many values, the first at this address, each `stride` bytes behind the one before.
    ///
    /// # Safety
    /// They must be values of the map that it is used for, and stay there as long as `keeper`. This
    /// process must not access them in any other way while a method of what is made of this runs.
    pub unsafe fn new(at: *mut u8, stride: usize, count: usize, keeper: impl Any) -> Self {
        Self {
            at,
            stride,
            count,
            _keeper: Box::new(keeper),
        }
    }

    /// Zeros, of no map: for who stands in for the programs.
    #[must_use]
    pub fn zeros(bytes: usize, count: usize) -> Self {
        let words = bytes.div_ceil(size_of::<u64>());
        let mut memory = vec![0u64; words * count];
        let at = memory.as_mut_ptr().cast();
        // SAFETY: the values are the vector's, which is kept and does not move what it holds.
        unsafe { Self::new(at, words * size_of::<u64>(), count, memory) }
    }

    /// What lies so many bytes into the only value.
    ///
    /// # Panics
    /// If there are more, or it is shorter.
    #[must_use]
    pub fn behind(self, bytes: usize) -> Self {
        assert!(self.count == 1 && bytes <= self.stride);
        Self {
            // SAFETY: that is within the value, or its end.
            at: unsafe { self.at.add(bytes) },
            stride: self.stride - bytes,
            ..self
        }
    }

    /// How many there are.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Address of one of them, valid as long as this is.
    ///
    /// # Panics
    /// If there is no such value, or it is smaller than a `T`.
    #[must_use]
    pub fn at<T>(&self, index: usize) -> *mut T {
        assert!(index < self.count, "value {index} of {}", self.count);
        assert!(size_of::<T>() <= self.stride, "a value has {}", self.stride);
        // SAFETY: the index was checked.
        unsafe { self.at.add(index * self.stride).cast() }
    }

    /// Works on the only value, which nobody but programs that the caller itself runs touches.
    pub(crate) fn with<T, R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: no program runs meanwhile, and no other reference is made: the caller's promise
        // at `new`, and `work` knows of no way to here.
        work(unsafe { &mut *self.at::<T>(0) })
    }
}
