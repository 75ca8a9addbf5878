// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel module that keeps every write which is answered: its core (`kmod/core`, compiled with the data path) behind
//! the functions that programs call. Its threads are whoever plays the world.

use std::cell::{Cell, OnceCell, UnsafeCell};
use std::ffi::c_void;

use crate::datapath::Datapath;
use crate::exec::exec;

/// Bytes of one batch at most.
const BATCH_BYTES: usize = 16 << 10;

/// As cache lines lie.
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "C has it")] [u8; 64]);

/// A world's module, if it was inserted.
#[derive(Default)]
pub(crate) struct Module {
    memory: OnceCell<Box<[UnsafeCell<Line>]>>,
    keeps: Cell<bool>,
}

impl Module {
    /// Null: there is none.
    fn at(&self) -> *mut c_void {
        let memory = self.memory.get();
        memory.map_or(std::ptr::null_mut(), |lines| {
            UnsafeCell::raw_get(lines.as_ptr()).cast()
        })
    }

    fn insert(&self, bytes: u64) {
        let lines = usize::try_from(bytes).unwrap_or_default().div_ceil(64);
        self.memory
            .get_or_init(|| (0..lines).map(|_| UnsafeCell::new(Line([0; 64]))).collect());
    }
}

/// For programs that ask which of two is at work: nobody else runs meanwhile.
pub(crate) extern "C-unwind" fn keeps() -> u32 {
    u32::from(exec().inner().module.keeps.get())
}

/// The module's memory.
pub(crate) extern "C-unwind" fn memory() -> *mut c_void {
    exec().inner().module.at()
}

impl Datapath {
    /// From now on the programs are at work that hand each write to the module, which is inserted; or they are not.
    pub fn set_keeps(&self, keeps: bool) {
        self.0.module.insert(self.0.library.symbols().io_bytes);
        self.0.module.keeps.set(keeps);
    }

    fn module(&self) -> *mut c_void {
        let at = self.0.module.at();
        assert!(!at.is_null(), "the module is inserted");
        at
    }

    /// Hands a new segment's header over; whether the module takes it.
    ///
    /// # Panics
    /// If the module is not inserted.
    #[must_use]
    pub fn io_file(&self, header: &[u8; 64]) -> bool {
        let file = self.0.library.symbols().io_file;
        // SAFETY: the memory is the module's, which no task uses at this moment, and the header has 64 bytes.
        unsafe { file(self.module(), self.0.config.cpus as u32, header.as_ptr()) == 0 }
    }

    /// What the write thread writes next; empty: nothing.
    ///
    /// # Panics
    /// If the module is not inserted.
    #[must_use]
    pub fn io_write(&self) -> Vec<u8> {
        let write = self.0.library.symbols().io_write;
        let mut bytes = vec![0; BATCH_BYTES];
        // SAFETY: as above; the buffer is as long as is said.
        let count = unsafe { write(self.module(), bytes.as_mut_ptr(), BATCH_BYTES as u32) };
        bytes.truncate(count as usize);
        bytes
    }

    /// What was written is synced.
    ///
    /// # Panics
    /// If the module is not inserted.
    pub fn io_sync(&self) {
        // SAFETY: as above.
        unsafe { (self.0.library.symbols().io_sync)(self.module()) }
    }

    /// The module's gate is shut, as by a disk that is full.
    ///
    /// # Panics
    /// If the module is not inserted.
    pub fn io_shut(&self) {
        // SAFETY: as above.
        unsafe { (self.0.library.symbols().io_shut)(self.module()) }
    }
}
