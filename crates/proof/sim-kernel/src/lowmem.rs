// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory below 4 GiB: a context shows its packet by 32-bit pointers, and programs on this machine
//! really follow them.

use std::cell::RefCell;

/// Two sizes: a page, as cards have, and what a merged packet of 64 KiB needs.
const SMALL_BYTES: usize = 4096;
const LARGE_BYTES: usize = 68 * 1024;
/// Bytes asked of the system at once.
const SMALL_ARENA: usize = 256 * SMALL_BYTES;
const LARGE_ARENA: usize = 16 * LARGE_BYTES;

thread_local! {
    static FREE: RefCell<[Vec<*mut u8>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// One buffer; goes back to its thread's pool.
pub(crate) struct LowBuf {
    at: *mut u8,
    bytes: usize,
}

impl LowBuf {
    /// A buffer of at least so many bytes with unspecified content.
    pub(crate) fn new(bytes: usize) -> Self {
        let large = bytes > SMALL_BYTES;
        assert!(
            bytes <= LARGE_BYTES,
            "no packet is that long: {bytes} bytes"
        );
        let size = if large { LARGE_BYTES } else { SMALL_BYTES };
        let at = FREE.with_borrow_mut(|free| {
            let pool = &mut free[usize::from(large)];
            if pool.is_empty() {
                let arena = if large { LARGE_ARENA } else { SMALL_ARENA };
                let base = map_low(arena);
                // SAFETY: the offsets are below the arena's length.
                pool.extend((0..arena / size).map(|index| unsafe { base.add(index * size) }));
            }
            pool.pop().expect("the pool was just filled")
        });
        Self { at, bytes: size }
    }

    pub(crate) const fn at(&self) -> *mut u8 {
        self.at
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for LowBuf {
    fn drop(&mut self) {
        let large = self.bytes == LARGE_BYTES;
        // A thread that is ending has no pool any more; its arenas stay mapped until the process
        // ends.
        let _ = FREE.try_with(|free| free.borrow_mut()[usize::from(large)].push(self.at));
    }
}

fn map_low(bytes: usize) -> *mut u8 {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no memory
    // of ours.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT,
            -1,
            0,
        )
    };
    assert!(
        at != libc::MAP_FAILED && (at as usize) + bytes <= 1 << 32,
        "no memory below 4 GiB: {}",
        std::io::Error::last_os_error()
    );
    at.cast()
}
