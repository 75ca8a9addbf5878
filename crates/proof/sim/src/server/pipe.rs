// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A stream between two processes of the server that no packet of the data path shows: the daemon's
//! connection to Redis, a client on a unix socket.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::rc::Rc;

/// What the kernel keeps per direction; beyond it writes would block.
const BUFFER_BYTES: usize = 64 * 1024;

/// Bytes to bytes.
type Change = dyn Fn(&[u8]) -> Vec<u8>;

/// What becomes of the user's bytes on their way.
#[derive(Clone)]
struct Rewrite(Rc<Change>);

impl fmt::Debug for Rewrite {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Rewrite")
    }
}

#[derive(Debug, Default)]
struct State {
    to_redis: VecDeque<u8>,
    from_redis: VecDeque<u8>,
    closed_by_redis: bool,
    closed_by_user: bool,
    rewrite: Option<Rewrite>,
}

/// The stream; clones are the same stream. Reading and writing is the user's end, not Redis's.
#[derive(Clone, Debug, Default)]
pub struct Pipe(Rc<RefCell<State>>);

impl Pipe {
    /// Redis takes what the user has written, at most so many bytes.
    #[must_use]
    pub fn redis_read(&self, max: usize) -> Vec<u8> {
        let mut state = self.0.borrow_mut();
        let len = state.to_redis.len().min(max);
        state.to_redis.drain(..len).collect()
    }

    /// Redis writes.
    pub fn redis_write(&self, bytes: &[u8]) {
        self.0.borrow_mut().from_redis.extend(bytes);
    }

    /// Whether both are ends of one stream.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// From now on the user's bytes are written like this: those of a user with another mind.
    pub fn rewrite(&self, how: impl Fn(&[u8]) -> Vec<u8> + 'static) {
        self.0.borrow_mut().rewrite = Some(Rewrite(Rc::new(how)));
    }

    /// Redis's end is gone.
    pub fn redis_close(&self) {
        self.0.borrow_mut().closed_by_redis = true;
    }

    /// The user's end is gone.
    pub fn user_close(&self) {
        self.0.borrow_mut().closed_by_user = true;
    }

    /// Both ends see the stream's end.
    pub fn cut(&self) {
        self.redis_close();
        self.user_close();
    }

    /// Whether Redis has read all and the user is gone.
    #[must_use]
    pub fn is_over_for_redis(&self) -> bool {
        let state = self.0.borrow();
        state.closed_by_user && state.to_redis.is_empty()
    }

    /// Whether there is something for the user, the end included.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        let state = self.0.borrow();
        !state.from_redis.is_empty() || state.closed_by_redis
    }

    /// Whether there is something for Redis, the end included.
    #[must_use]
    pub fn has_input(&self) -> bool {
        let state = self.0.borrow();
        !state.to_redis.is_empty() || state.closed_by_user
    }
}

impl Read for Pipe {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut state = self.0.borrow_mut();
        if state.from_redis.is_empty() {
            return if state.closed_by_redis {
                Ok(0)
            } else {
                Err(io::ErrorKind::WouldBlock.into())
            };
        }
        let len = state.from_redis.len().min(bytes.len());
        for (place, byte) in bytes.iter_mut().zip(state.from_redis.drain(..len)) {
            *place = byte;
        }
        Ok(len)
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.borrow_mut();
        if state.closed_by_redis {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if let Some(Rewrite(rewrite)) = state.rewrite.clone() {
            state.to_redis.extend(rewrite(bytes));
            return Ok(bytes.len());
        }
        let len = bytes
            .len()
            .min(BUFFER_BYTES.saturating_sub(state.to_redis.len()));
        if len == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.to_redis.extend(&bytes[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
