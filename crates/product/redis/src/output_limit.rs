// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The output that Redis keeps for a client at most (`client-output-buffer-limit normal`). A client whose
//! answer is longer is closed, and what was answered before and not written yet is lost with it. The
//! longest answers that ERB asks for are CLIENT LIST, of all clients, and COMMAND INFO.

use std::io;

/// Bytes of a line of CLIENT LIST, where none was seen: with two IPv6 addresses and a short name.
const LINE_BYTES: u64 = 400;

/// The hard limit of normal clients in the setting's value, bytes; 0: none. What cannot be read is none.
pub(crate) fn hard_limit(value: &str) -> u64 {
    let words: Vec<&str> = value.split_whitespace().collect();
    let mut classes = words.chunks_exact(4);
    let normal = classes.find(|class| class[0] == "normal");
    normal
        .and_then(|class| class[1].parse().ok())
        .unwrap_or_default()
}

/// Bytes of one line of this list, rounded up.
pub(crate) fn line_bytes(list: &[u8]) -> u64 {
    let lines = list.iter().filter(|byte| **byte == b'\n').count() as u64;
    (list.len() as u64).div_ceil(lines.max(1))
}

/// What is to be said where a list of so many clients does not fit; lines of 0 bytes: none was seen.
pub(crate) fn warning(limit: u64, clients: u64, line_bytes: u64) -> Option<String> {
    let line_bytes = Some(line_bytes).filter(|bytes| *bytes > 0);
    let list = clients * line_bytes.unwrap_or(LINE_BYTES);
    (limit > 0 && limit < list).then(|| {
        format!(
            "client-output-buffer-limit normal closes who is owed more than {limit} bytes, and CLIENT LIST \
             of {clients} clients takes about {list}: Redis closes the daemon's connection when it asks, and \
             nothing is answered; `CONFIG SET client-output-buffer-limit \"normal 0 0 0\"`, or a hard limit \
             of some times {list}"
        )
    })
}

/// The end of a connection to which the long answer to `question` was owed; `limit`: if it is known.
pub(crate) fn end_while_owed(end: io::Error, question: &str, limit: Option<u64>) -> io::Error {
    let is_closed = matches!(
        end.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    );
    if !is_closed || limit == Some(0) {
        return end;
    }
    let what = match limit {
        Some(limit) => format!("client-output-buffer-limit normal is {limit} bytes,"),
        None => "if it was not stopped, client-output-buffer-limit normal is".to_owned(),
    };
    io::Error::new(
        io::ErrorKind::QuotaExceeded,
        format!(
            "{end} while it owed the answer to {question}: {what} less than that takes (Redis's log \
             tells); raise its hard limit, or `CONFIG SET client-output-buffer-limit \"normal 0 0 0\"`"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hard_limit_of_normal_clients_is_read() {
        let value = "slave 268435456 67108864 60 normal 65536 1 2 pubsub 33554432 8388608 60";
        assert_eq!(hard_limit(value), 65_536);
        for none in ["normal 0 0 0 slave 1 1 1", "", "normal", "normal x 0 0"] {
            assert_eq!(hard_limit(none), 0, "{none}");
        }
    }

    #[test]
    fn a_list_that_does_not_fit_is_told_before_it_is_asked_for() {
        assert_eq!(warning(0, 1 << 40, 0), None, "no limit");
        assert_eq!(warning(224_000, 600, 373), None);
        let told = warning(65_536, 600, 373).expect("a sentence");
        assert!(told.contains("65536") && told.contains("223800"), "{told}");
        assert!(warning(65_536, 600, 0).is_some() && warning(65_536, 100, 0).is_none());
        assert_eq!(line_bytes(b"id=1 a\nid=2 bc\n"), 8);
        assert_eq!(line_bytes(b""), 0);
    }

    #[test]
    fn only_a_closed_connection_is_the_limits_and_none_without_a_limit() {
        let end = |kind: io::ErrorKind, limit| {
            let end = end_while_owed(io::Error::new(kind, "the end"), "CLIENT LIST", limit);
            (end.kind(), end.to_string())
        };
        let (kind, told) = end(io::ErrorKind::UnexpectedEof, None);
        assert_eq!(kind, io::ErrorKind::QuotaExceeded);
        assert!(told.contains("CLIENT LIST: if it was not stopped, client-output"));
        let (_, told) = end(io::ErrorKind::ConnectionReset, Some(65_536));
        assert!(told.contains("is 65536 bytes"), "{told}");
        for (kind, limit) in [
            (io::ErrorKind::UnexpectedEof, Some(0)),
            (io::ErrorKind::TimedOut, None),
        ] {
            assert_eq!(end(kind, limit), (kind, "the end".to_owned()));
        }
    }
}
