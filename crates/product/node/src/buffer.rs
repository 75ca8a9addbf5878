// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that direct I/O takes.
//!
//! Invariant: `bytes` neither grows nor shrinks, so what `from` names stays aligned and stays where it is, whoever
//! owns the buffer.

use erb_store::layout::ALIGN_BYTES;

const ALIGN: usize = ALIGN_BYTES as usize;

/// Bytes that begin at a multiple of 4,096.
#[derive(Debug)]
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    from: usize,
    length: usize,
}

impl Aligned {
    pub(crate) fn zeroed(length: usize) -> Self {
        let bytes = vec![0; length + ALIGN];
        let from = bytes.as_ptr().align_offset(ALIGN);
        Self {
            bytes,
            from,
            length,
        }
    }

    pub(crate) fn of(content: &[u8]) -> Self {
        let mut buffer = Self::zeroed(content.len());
        buffer.slice_mut().copy_from_slice(content);
        buffer
    }

    pub(crate) fn slice(&self) -> &[u8] {
        &self.bytes[self.from..][..self.length]
    }

    pub(crate) fn slice_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..][..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_wherever_it_goes() {
        for length in [0, 1, 4096, 1 << 20] {
            let buffer = Box::new(Aligned::of(&vec![7; length]));
            assert_eq!(buffer.slice().as_ptr() as usize % ALIGN, 0);
            assert_eq!(buffer.slice(), vec![7; length]);
        }
    }
}
