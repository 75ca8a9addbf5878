// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a connection still has to send.
//!
//! Invariants:
//! 1. Bytes leave in the order in which they were put.
//! 2. Data is not copied: several PDUs are parts of one buffer.
//! 3. A credit comes back once, with the last byte that was put before it. Credits are as old as their replies.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

#[derive(Debug)]
enum Piece {
    Own(Vec<u8>),
    Part(Arc<Vec<u8>>, Range<usize>),
    /// Bytes of the pool, and since when they wait here.
    Credit(usize, u64),
}

/// What a connection still has to send.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are gone.
    gone: usize,
    unsent: usize,
}

impl Outbox {
    pub(crate) fn unsent(&self) -> usize {
        self.unsent
    }

    pub(crate) fn push(&mut self, bytes: Vec<u8>) {
        self.unsent += bytes.len();
        self.pieces.push_back(Piece::Own(bytes));
    }

    pub(crate) fn push_part(&mut self, data: &Arc<Vec<u8>>, range: Range<usize>) {
        self.unsent += range.len();
        self.pieces.push_back(Piece::Part(Arc::clone(data), range));
    }

    /// Bytes of the pool that are free once all before is sent.
    pub(crate) fn push_credit(&mut self, bytes: usize, now_us: u64) {
        if bytes > 0 {
            self.pieces.push_back(Piece::Credit(bytes, now_us));
        }
    }

    /// Since when the oldest reply waits that has bytes of the pool.
    pub(crate) fn credit_since_us(&self) -> Option<u64> {
        self.pieces.iter().find_map(|piece| match piece {
            Piece::Credit(_, since_us) => Some(*since_us),
            _ => None,
        })
    }

    /// All that is to be sent, in its order. No part is empty.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let from = std::iter::once(self.gone).chain(std::iter::repeat(0));
        let parts = self.pieces.iter().zip(from);
        parts
            .map(|(piece, from)| &piece.bytes()[from..])
            .filter(|bytes| !bytes.is_empty())
    }

    /// The next bytes to send; nothing if there are none.
    pub(crate) fn front(&self) -> &[u8] {
        self.parts().next().unwrap_or(&[])
    }

    /// So many bytes of the front are sent. Returns what comes back to the pool.
    pub(crate) fn sent(&mut self, mut count: usize) -> usize {
        self.unsent -= count;
        let mut credit = 0;
        while let Some(piece) = self.pieces.front() {
            let left = piece.bytes().len() - self.gone;
            if let Piece::Credit(bytes, _) = piece {
                credit += bytes;
            } else if left > count {
                self.gone += count;
                break;
            }
            count -= left;
            self.gone = 0;
            self.pieces.pop_front();
        }
        credit
    }

    /// Forgets all of it. Returns what comes back to the pool.
    pub(crate) fn clear(&mut self) -> usize {
        let unsent = self.unsent;
        let credit = self.sent(unsent);
        self.pieces.clear();
        credit
    }
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Part(data, range) => &data[range.clone()],
            Self::Credit(..) => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_all_that_is_left_whatever_was_sent() {
        let data = Arc::new((0..10).collect::<Vec<u8>>());
        for count in 0..=16 {
            let mut outbox = Outbox::default();
            outbox.push(vec![100; 3]);
            outbox.push_part(&data, 2..7);
            outbox.push_credit(9, 1);
            outbox.push(vec![101; 4]);
            outbox.push_credit(5, 2);
            outbox.push_part(&data, 0..4);
            let whole = outbox.parts().collect::<Vec<_>>().concat();
            assert_eq!(whole.len(), outbox.unsent());
            let credit = outbox.sent(count);
            assert_eq!(outbox.parts().collect::<Vec<_>>().concat(), whole[count..]);
            assert_eq!(outbox.front(), outbox.parts().next().unwrap_or_default());
            let wanted = if count >= 12 {
                14
            } else if count >= 8 {
                9
            } else {
                0
            };
            assert_eq!(credit, wanted, "{count}");
            let oldest = match wanted {
                0 => Some(1),
                9 => Some(2),
                _ => None,
            };
            assert_eq!(outbox.credit_since_us(), oldest, "{count}");
        }
    }
}
