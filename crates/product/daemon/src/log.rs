// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's log: standard error, wherever that leads. What cannot be written there is lost and counted, and is
//! no reason for anything to end: `erb status` says so while it lasts, and the log itself when it goes on.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

/// What was lost since the last message that was written.
static LOST: Mutex<Losses> = Mutex::new(Losses::new());

/// Messages that could not be written.
struct Losses {
    count: u64,
    /// What the first attempt said.
    why: String,
}

impl Losses {
    const fn new() -> Self {
        Self {
            count: 0,
            why: String::new(),
        }
    }

    /// Writes a message, after a word about those that were lost before it.
    fn write(&mut self, output: &mut impl Write, message: &[u8]) {
        let before = match self.count {
            0 => String::new(),
            count => format!("({count} messages were lost: {})\n", self.why),
        };
        let done = output
            .write_all(before.as_bytes())
            .and_then(|()| output.write_all(message))
            .and_then(|()| output.flush());
        match done {
            Ok(()) => *self = Self::new(),
            Err(error) if self.count == 0 => {
                self.why = error.to_string();
                self.count = 1;
            }
            Err(_) => self.count += 1,
        }
    }

    fn told(&self) -> Option<String> {
        (self.count > 0).then(|| {
            format!(
                "the log cannot be written ({}): {} messages lost so far, and all else goes on; make room, or `erb boost \
                 --take-over` with another --log",
                self.why, self.count
            )
        })
    }
}

/// Where messages are written to: [`std::io::stderr`], but it never fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let mut lost = LOST.lock().unwrap_or_else(PoisonError::into_inner);
        lost.write(&mut io::stderr(), message);
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is to be said of a log that cannot be written; none: it can.
#[must_use]
pub fn trouble() -> Option<String> {
    LOST.lock().unwrap_or_else(PoisonError::into_inner).told()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_full_disk_loses_messages_and_nothing_else_and_that_is_told_once() {
        let mut full = File::options()
            .write(true)
            .open("/dev/full")
            .expect("/dev/full");
        let mut lost = Losses::new();
        assert_eq!(lost.told(), None);
        for _ in 0..3 {
            lost.write(&mut full, b"a message\n");
        }
        let said = lost.told().expect("a sentence");
        assert!(
            said.contains("No space left") && said.contains("3 messages"),
            "{said}"
        );
        let mut room = Vec::new();
        lost.write(&mut room, b"another\n");
        lost.write(&mut room, b"and another\n");
        let text = String::from_utf8(room).expect("text");
        let (first, rest) = text.split_once('\n').expect("lines");
        assert!(
            first.starts_with("(3 messages were lost: No space"),
            "{first}"
        );
        assert_eq!(rest, "another\nand another\n");
        assert_eq!(lost.told(), None);
    }
}
