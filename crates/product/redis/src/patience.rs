// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long a client waits for who has its writes, by its own words: the last argument of WAIT and WAITAOF.

use crate::clock::{MS, SECOND_NS};

/// Nobody is ended sooner: replicas acknowledge each second, and logs are synced each second. An asking that is under way when
/// somebody comes does not count for him, so it may take two of these.
const LEAST_NS: u64 = 3 * SECOND_NS;

/// Nobody is waited for longer, whoever would wait for ever: a replica that stands still is none any more after Redis's
/// repl-timeout, a minute by default.
const MOST_NS: u64 = 600 * SECOND_NS;

/// How long the last WAIT or WAITAOF of a packet waits; none: there is none, or it does not begin with a request.
pub(crate) fn of_packet(mut payload: &[u8]) -> Option<u64> {
    let mut found = None;
    while let Some((words, rest)) = request(payload) {
        payload = rest;
        found = of_request(&words).or(found);
    }
    found
}

fn of_request(words: &[&[u8]]) -> Option<u64> {
    let timeout = match words {
        [name, _, timeout] if name.eq_ignore_ascii_case(b"wait") => timeout,
        [name, _, _, timeout] if name.eq_ignore_ascii_case(b"waitaof") => timeout,
        _ => return None,
    };
    let timeout_ms = number(timeout)?;
    Some(match timeout_ms {
        0 => MOST_NS,
        _ => timeout_ms.saturating_mul(MS).clamp(LEAST_NS, MOST_NS),
    })
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Up to the next end of a line, and what is behind that.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let line = &bytes[..end];
    Some((line.strip_suffix(b"\r").unwrap_or(line), &bytes[end + 1..]))
}

/// The words of a whole request, and what is behind it.
fn request(bytes: &[u8]) -> Option<(Vec<&[u8]>, &[u8])> {
    let (head, mut rest) = line(bytes)?;
    let Some(count) = head.strip_prefix(b"*") else {
        let words = head.split(u8::is_ascii_whitespace);
        return Some((words.filter(|word| !word.is_empty()).collect(), rest));
    };
    let mut words = Vec::new();
    for _ in 0..number(count)? {
        let (head, behind) = line(rest)?;
        let bytes = usize::try_from(number(head.strip_prefix(b"$")?)?).ok()?;
        words.push(behind.get(..bytes)?);
        rest = behind.get(bytes..)?.strip_prefix(b"\r\n")?;
    }
    Some((words, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: &[u8] = b"*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$4\r\n3500\r\n";

    #[test]
    fn it_is_what_the_client_says_within_bounds() {
        assert_eq!(of_packet(WAIT), Some(3_500 * MS));
        assert_eq!(of_packet(b"wait 1 100\r\n"), Some(LEAST_NS));
        assert_eq!(of_packet(b"WAIT 1 0\n"), Some(MOST_NS));
        assert_eq!(of_packet(b"WAITAOF 1 0 99999999\r\n"), Some(MOST_NS));
        let huge = format!("WAITAOF 1 0 {}\r\n", u64::MAX);
        assert_eq!(of_packet(huge.as_bytes()), Some(MOST_NS));
    }

    #[test]
    fn of_several_the_last_counts() {
        let all = [
            b"*1\r\n$4\r\nPING\r\n",
            WAIT,
            b"WAIT 1 3000\r\n",
            b"GET k\r\n",
        ]
        .concat();
        assert_eq!(of_packet(&all), Some(3_000 * MS));
    }

    #[test]
    fn what_is_no_whole_request_says_nothing() {
        for cut in 0..WAIT.len() {
            assert_eq!(of_packet(&WAIT[..cut]), None, "{cut}");
            assert_eq!(of_packet(&WAIT[cut + 1..]), None, "{cut}");
        }
        let others: [&[u8]; 7] = [
            b"",
            b"GET key\r\n",
            b"WAIT 1\r\n",
            b"WAIT 1 -1\r\n",
            b"WAIT 1 x\r\n",
            b"*99999999999999999999\r\n",
            b"*3\r\n$18446744073709551615\r\nWAIT\r\n",
        ];
        for other in others {
            assert_eq!(of_packet(other), None, "{other:?}");
        }
    }
}
