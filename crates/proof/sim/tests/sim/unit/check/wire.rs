// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams cut into requests, and replies taken apart.

use erb_sim::check::wire::{Requests, bulk, integer, nil_or_bulks, show_argv};

fn commands(pieces: &[&[u8]]) -> (Vec<String>, bool) {
    let mut requests = Requests::default();
    let mut found = Vec::new();
    for piece in pieces {
        requests.push(piece, |argv| found.push(show_argv(&argv)));
    }
    (found, requests.broken)
}

#[test]
fn requests_are_cut_at_any_byte() {
    let stream = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*0\r\n\r\nPING\r\n*-1\r\n*1\r\n$4\r\nPING\r\n";
    let whole = commands(&[stream]);
    assert_eq!(whole.0, ["GET a", "PING", "PING"]);
    for cut in 0..stream.len() {
        assert_eq!(commands(&[&stream[..cut], &stream[cut..]]), whole);
    }
}

#[test]
fn what_is_no_request_ends_the_stream() {
    assert!(commands(&[b"*1\r\n+4\r\nPING\r\n"]).1);
    assert!(commands(&[b"*x\r\n"]).1);
    assert!(commands(&[b"SET a \"b\r\n"]).1);
    assert!(commands(&[b"SET a \"b\"c\r\n"]).1);
}

#[test]
fn inline_commands_may_have_quotes() {
    let line = b"SET  \"a \\x41\\n\" 'it\\'s' x\"y\"\r\n";
    let (found, broken) = commands(&[line]);
    assert_eq!(found, ["SET a A\\n it\\'s xy"]);
    assert!(!broken);
}

#[test]
fn bulk_strings_are_exact() {
    assert_eq!(bulk(b"$1\r\na\r\n"), Some(Some(&b"a"[..])));
    assert_eq!(bulk(b"$-1\r\n"), Some(None));
    assert_eq!(bulk(b"$01\r\na\r\n"), None);
    assert_eq!(bulk(b"$2\r\na\r\n"), None);
    assert_eq!(bulk(b"$1\r\naXX"), None);
    assert_eq!(bulk(b"+OK\r\n"), None);
}

#[test]
fn arrays_and_integers_are_exact() {
    let bulks = |frame| nil_or_bulks(frame, b"_\r\n");
    let three = bulks(b"*3\r\n$1\r\na\r\n_\r\n$0\r\n\r\n");
    assert_eq!(three, Some(vec![Some(&b"a"[..]), None, Some(b"")]));
    for wrong in [
        &b"*2\r\n$1\r\na\r\n"[..],
        b"*02\r\n$1\r\na\r\n$0\r\n\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$1\r\na\r\n+",
        b"$1\r\na\r\n",
        b"*1\r\n:1\r\n",
    ] {
        assert_eq!(bulks(wrong), None);
    }
    assert_eq!(integer(b":-1\r\n"), Some(-1));
    assert_eq!(integer(b":01\r\n"), None);
    assert_eq!(integer(b":+1\r\n"), None);
    assert_eq!(integer(b"+1\r\n"), None);
}
