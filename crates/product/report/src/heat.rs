// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys by heat: which are asked for most, from a sample.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// Characters of a key that are shown, escapes included.
pub const KEY_CHARS_MAX: usize = 120;

/// A key that is asked for often.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HotKey {
    /// The key, as [`shown_key`] shows it.
    pub key: String,
    /// Its bytes.
    pub key_bytes: u32,
    /// Its database.
    pub db: u16,
    /// Samples that asked for it, at most.
    pub count: u64,
    /// By how many that may be too large: those of keys whose place it has taken.
    pub error: u64,
}

/// Keys by heat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HotKeys {
    /// Requests of a processor, of which one is a sample.
    pub one_of: u32,
    /// Samples with a key since somebody asked.
    pub samples: u64,
    /// The hottest first.
    pub keys: Vec<HotKey>,
}

/// A key as people may see it, whatever is in it: printable ASCII as it is, but for the backslash; all else
/// escaped by bytes, as redis-cli does. So nothing of it is obeyed by a terminal or turns the direction of writing.
/// What is longer than [`KEY_CHARS_MAX`] ends with three dots.
#[must_use]
pub fn shown_key(key: &[u8]) -> String {
    let mut shown = String::new();
    for byte in key {
        let length = shown.len();
        // Writing into a string cannot fail.
        let _ = match byte {
            b'\\' => write!(shown, "\\\\"),
            b' '..=b'~' => write!(shown, "{}", *byte as char),
            b'\n' => write!(shown, "\\n"),
            b'\r' => write!(shown, "\\r"),
            b'\t' => write!(shown, "\\t"),
            other => write!(shown, "\\x{other:02x}"),
        };
        if shown.len() > KEY_CHARS_MAX {
            shown.truncate(length);
            return shown + "...";
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_in_a_key_it_is_plain_text_and_short() {
        assert_eq!(shown_key(b"user:17"), "user:17");
        assert_eq!(
            shown_key(b"a\\b\n\r\t\x1b[31m\0"),
            r"a\\b\n\r\t\x1b[31m\x00"
        );
        assert_eq!(shown_key("\u{202e}é".as_bytes()), r"\xe2\x80\xae\xc3\xa9");
        assert_eq!(
            shown_key(b"<script>alert(1)</script>"),
            "<script>alert(1)</script>"
        );
        let whole = "k".repeat(KEY_CHARS_MAX);
        assert_eq!(shown_key(whole.as_bytes()), whole);
        for byte in [b'k', 0xff, b'\\'] {
            let shown = shown_key(&vec![byte; 1 << 16]);
            assert!(
                shown.len() <= KEY_CHARS_MAX + 3 && shown.ends_with("..."),
                "{shown}"
            );
            assert!(shown.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        }
        assert_eq!(shown_key(b""), "");
    }
}
