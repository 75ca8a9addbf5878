// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is told on stdout. That it cannot be written (a pipe that is closed, a full disk) ends the run, not by a panic:
//! the session asks for [`lost`].

use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::OnceLock;

static LOST: OnceLock<String> = OnceLock::new();

/// Prints a line, like `println!`.
#[macro_export]
macro_rules! tell {
    ($($words:tt)*) => { $crate::out::line(format_args!($($words)*)) };
}

/// Prints a line to stdout.
pub fn line(text: Arguments) {
    // Tests of this program have their output taken from them.
    if cfg!(test) {
        println!("{text}");
        return;
    }
    if let Err(error) = write(&mut io::stdout().lock(), text) {
        LOST.get_or_init(|| format!("stdout: {error}"));
    }
}

/// Prints a line to stderr; there is no other place to say that it fails.
pub fn error(text: Arguments) {
    if cfg!(test) {
        eprintln!("{text}");
        return;
    }
    let _ = write(&mut io::stderr().lock(), text);
}

/// Why a line could not be printed.
pub fn lost() -> Option<&'static str> {
    LOST.get().map(String::as_str)
}

fn write(to: &mut impl Write, text: Arguments) -> io::Result<()> {
    to.write_fmt(text)?;
    to.write_all(b"\n")?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_cannot_be_written_is_an_error_and_no_panic() {
        let mut full = std::fs::OpenOptions::new();
        let mut full = full.write(true).open("/dev/full").expect("a device");
        assert!(write(&mut full, format_args!("a line")).is_err());
        let mut line = Vec::new();
        write(&mut line, format_args!("{}", 1)).expect("written");
        assert_eq!(line, b"1\n");
    }
}
