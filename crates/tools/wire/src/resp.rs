// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands and values as RESP writes them.

/// Appends a command: an array of bulk strings.
pub fn push_command<W: AsRef<[u8]>>(to: &mut Vec<u8>, words: &[W]) {
    push_head(to, b'*', words.len());
    for word in words {
        push_bulk(to, word.as_ref());
    }
}

/// Appends a bulk string.
pub fn push_bulk(to: &mut Vec<u8>, value: &[u8]) {
    push_head(to, b'$', value.len());
    to.extend_from_slice(value);
    to.extend_from_slice(b"\r\n");
}

/// Appends a kind's sign and a number; load generators call it for each request, so it allocates
/// nothing.
pub fn push_head(to: &mut Vec<u8>, kind: u8, number: usize) {
    to.push(kind);
    let begin = to.len();
    let mut rest = number;
    while rest > 0 || to.len() == begin {
        to.push(b'0' + (rest % 10) as u8);
        rest /= 10;
    }
    to[begin..].reverse();
    to.extend_from_slice(b"\r\n");
}

/// A command as clients send it.
#[must_use]
pub fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    push_command(&mut bytes, words);
    bytes
}

/// A command in words, separated by white space.
#[must_use]
pub fn said(text: &str) -> Vec<u8> {
    let words: Vec<&[u8]> = text.split_whitespace().map(str::as_bytes).collect();
    command(&words)
}

/// A bulk string: the reply to GET of this value.
#[must_use]
pub fn bulk(value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    push_bulk(&mut bytes, value);
    bytes
}

/// The same of text, as text.
#[must_use]
pub fn bulk_text(value: &str) -> String {
    format!("${}\r\n{value}\r\n", value.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_count_bytes() {
        let wanted = b"*2\r\n$3\r\nGET\r\n$2\r\n\xc3\xa9\r\n";
        assert_eq!(command(&[b"GET", b"\xc3\xa9"]), wanted);
        assert_eq!(said("GET  \u{e9}"), wanted);
        assert_eq!(command(&[]), b"*0\r\n");
        assert_eq!(bulk(b""), b"$0\r\n\r\n");
        assert!(bulk(&[b'x'; 1230]).starts_with(b"$1230\r\nx"));
        assert_eq!(bulk_text("\u{e9}"), "$2\r\n\u{e9}\r\n");
    }
}
