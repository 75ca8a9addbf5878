// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Words of a command in a message, which a user pastes into a shell.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Bytes that mean themselves in every shell.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"%+,-./:=@_".contains(&byte)
}

/// A word as a shell takes it for exactly these bytes: as it is; else in single quotes (POSIX.1-2017 XCU 2.2.2); with
/// control characters or what is not UTF-8 in `$'...'`, which bash, ksh, zsh and busybox have (POSIX.1-2024).
#[must_use]
pub fn quoted(word: &[u8]) -> String {
    match std::str::from_utf8(word) {
        Ok(text) if !word.is_empty() && word.iter().copied().all(is_plain) => text.to_owned(),
        Ok(text) if !text.chars().any(char::is_control) => {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
        _ => format!(
            "$'{}'",
            word.iter().map(|byte| escaped(*byte)).collect::<String>()
        ),
    }
}

/// A path as a word; one that begins like an option as a path that does not.
#[must_use]
pub fn quoted_path(path: &Path) -> String {
    let path = path.as_os_str().as_bytes();
    if path.starts_with(b"-") {
        quoted(&[b"./", path].concat())
    } else {
        quoted(path)
    }
}

fn escaped(byte: u8) -> String {
    match byte {
        b'\'' | b'\\' => format!("\\{}", char::from(byte)),
        b' '..=b'~' => char::from(byte).to_string(),
        // Always three digits: one that follows is not taken for a fourth.
        _ => format!("\\{byte:03o}"),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_needs_no_quotes_has_none() {
        assert_eq!(quoted(b"user/1:a"), "user/1:a");
        assert_eq!(quoted(b"#chan"), "'#chan'");
        assert_eq!(quoted(b""), "''");
        assert_eq!(quoted(b"it's"), r"'it'\''s'");
        assert_eq!(quoted(b"a\n1"), "$'a\\0121'");
        assert_eq!(quoted_path(Path::new("-a b")), "'./-a b'");
        assert_eq!(quoted_path(Path::new("/a-b")), "/a-b");
    }

    #[test]
    fn a_shell_gives_every_word_back() {
        let all: Vec<u8> = (1..=255).collect();
        let mut words: Vec<&[u8]> = vec![
            &all,
            b"",
            b"#chan",
            b"two words",
            b"it's",
            b"\"",
            b"$HOME `id` \\",
            b"a\nb",
            b"~",
            b"*",
            b"!x",
            "\u{e9}\u{1f600}".as_bytes(),
            b"\xff1",
            b"{a,b}",
            b"a;b&c|d<e>f(g)",
        ];
        let bytes: Vec<[u8; 2]> = (1..=255).map(|byte| [byte, b'7']).collect();
        words.extend(bytes.iter().map(|word| &word[..]));
        for word in words {
            let script = format!("printf %s {}", quoted(word));
            let output = Command::new("bash")
                .arg("-c")
                .arg(std::ffi::OsStr::from_bytes(script.as_bytes()))
                .output()
                .expect("bash");
            assert_eq!(output.stdout, word, "{script}");
        }
    }
}
