// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a connection still has to send.
//!
//! Invariants:
//! 1. Bytes leave in the order in which they were put.
//! 2. Data is not copied: several PDUs are parts of one buffer.
//! 3. A credit comes back once, with the last byte that was put before it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

#[derive(Debug)]
enum Piece {
    Own(Vec<u8>),
    Part(Arc<Vec<u8>>, Range<usize>),
    Credit(usize),
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
    pub(crate) fn push_credit(&mut self, bytes: usize) {
        if bytes > 0 {
            self.pieces.push_back(Piece::Credit(bytes));
        }
    }

    /// The next bytes to send; nothing if there are none.
    pub(crate) fn front(&self) -> &[u8] {
        for piece in &self.pieces {
            let bytes = piece.bytes();
            let from = if std::ptr::eq(piece, &self.pieces[0]) {
                self.gone
            } else {
                0
            };
            if from < bytes.len() {
                return &bytes[from..];
            }
        }
        &[]
    }

    /// So many bytes of the front are sent. Returns what comes back to the pool.
    pub(crate) fn sent(&mut self, mut count: usize) -> usize {
        self.unsent -= count;
        let mut credit = 0;
        while let Some(piece) = self.pieces.front() {
            let left = piece.bytes().len() - self.gone;
            if let Piece::Credit(bytes) = piece {
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
            Self::Credit(_) => &[],
        }
    }
}
