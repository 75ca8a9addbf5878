// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asks on the terminal whether a command is to go on.

use std::io::{self, BufRead};

/// Bytes of an answer that are read: what does not fit is no "yes".
const ANSWER_BYTES_MAX: u64 = 1024;

/// Asks. Anything but "y" or "yes" is a no.
///
/// # Errors
/// If standard input cannot be read.
pub fn is_wanted(question: &str) -> io::Result<bool> {
    eprint!("{question} [y/N] ");
    is_yes(io::stdin().lock())
}

fn is_yes(from: impl BufRead) -> io::Result<bool> {
    let mut answer = Vec::new();
    from.take(ANSWER_BYTES_MAX).read_until(b'\n', &mut answer)?;
    let answer = String::from_utf8_lossy(&answer).trim().to_lowercase();
    Ok(["y", "yes"].contains(&answer.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        for yes in ["y\n", "Yes\n", " y \nn\n", "yes"] {
            assert!(is_yes(yes.as_bytes()).expect("bytes"), "{yes}");
        }
        for no in ["", "\n", "n\n", "yes please\n", "\n y\n", "\u{fffd}\n"] {
            assert!(!is_yes(no.as_bytes()).expect("bytes"), "{no}");
        }
    }

    #[test]
    fn an_answer_without_end_is_read_no_further() {
        let endless = io::BufReader::new(io::repeat(b'y'));
        assert!(!is_yes(endless).expect("bytes"));
    }
}
