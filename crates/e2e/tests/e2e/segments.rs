// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments that no kernel would send: ERB answers as Redis behind the kernel would, or not at
//! all, and never twice.

use std::time::Duration;

use erb_e2e::calls::{bulk, set};
use erb_e2e::lab::TestLab;
use erb_e2e::segment::{RawClient, Shape, command};

/// Longer than a retransmission timer's least.
const PAUSE: Duration = Duration::from_millis(350);
/// GET of the hot key and its answer.
const GET: &str = "GET hot";

/// A lab in which `hot` is a hit, and a hand-made connection that is fast.
fn fast_client(name: &str) -> (TestLab, RawClient) {
    let lab = TestLab::boosted_with(name, &["--direct"]);
    let mut conn = lab.client();
    set(&mut conn, "hot", "value");
    lab.heat(&mut conn, "hot");
    drop(conn);
    let mut client = RawClient::connect(&lab, 30_000);
    client.expect("PING", "+PONG\r\n");
    await_fast(&lab, &mut client);
    (lab, client)
}

/// Reads until ERB answers.
fn await_fast(lab: &TestLab, client: &mut RawClient) {
    for _ in 0..50 {
        let before = lab.counters();
        client.expect(GET, &value());
        if lab.counters().since(&before, "FAST_GET") > 0 {
            return;
        }
    }
    panic!("never fast: {}", lab.counters().text("REFUSE ODD SOCK"));
}

fn value() -> String {
    bulk("value")
}

/// The connection still works, fast and slow.
fn still_works(lab: &TestLab, client: &mut RawClient) {
    client.assert_no_more(PAUSE);
    client.expect("SET own 1", "+OK\r\n");
    client.expect("INCR own", ":2\r\n");
    client.expect("GET own", "$1\r\n2\r\n");
    await_fast(lab, client);
    client.assert_no_more(PAUSE);
    lab.assert_settled();
}

/// A segment with explicit numbers.
fn at(seq: u32) -> Shape {
    Shape {
        seq: Some(seq),
        ..Shape::default()
    }
}

#[test]
fn a_repeated_request_is_answered_by_the_same_bytes() {
    let (lab, mut client) = fast_client("dup");
    for _ in 0..3 {
        let (from, seq) = (client.next, client.seq);
        client.send(&command(GET));
        assert_eq!(client.read(value().len()), value());
        // The reply was lost: the client still acknowledges what was before it.
        client.lose_from(from);
        client.send_shaped(
            &Shape {
                ack: Some(from),
                ..at(seq)
            },
            &command(GET),
        );
        let again =
            client.await_segment(|segment| segment.seq == from && !segment.payload.is_empty());
        assert_eq!(String::from_utf8_lossy(&again.payload), value());
        client.ack_now();
        // An old copy of a request whose reply is acknowledged: a bare ACK, nothing twice.
        client.send_shaped(&at(seq), &command(GET));
        client
            .await_segment(|segment| segment.payload.is_empty() && segment.ack == client_seq(seq));
    }
    still_works(&lab, &mut client);
}

/// The end of a GET that began at `seq`.
fn client_seq(seq: u32) -> u32 {
    seq.wrapping_add(u32::try_from(command(GET).len()).expect("short"))
}

#[test]
fn a_lost_reply_is_sent_again_by_the_timer_and_after_duplicate_acks() {
    let (lab, mut client) = fast_client("lost");
    for dup_acks in [0, 4] {
        let from = client.next;
        client.send(&command(GET));
        client.send_shaped(
            &Shape {
                ack: Some(from),
                ..Shape::default()
            },
            b"",
        );
        assert_eq!(client.read(value().len()), value());
        client.lose_from(from);
        for _ in 0..dup_acks {
            client.send_shaped(
                &Shape {
                    ack: Some(from),
                    ..Shape::default()
                },
                b"",
            );
        }
        let again =
            client.await_segment(|segment| segment.seq == from && !segment.payload.is_empty());
        assert_eq!(String::from_utf8_lossy(&again.payload), value());
        client.ack_now();
    }
    still_works(&lab, &mut client);
}

#[test]
fn a_selective_hole_among_fast_replies_is_filled() {
    let (lab, mut client) = fast_client("sack");
    let from = client.next;
    let length = u32::try_from(value().len()).expect("short");
    for _ in 0..3 {
        client.send_shaped(
            &Shape {
                ack: Some(from),
                ..Shape::default()
            },
            &command(GET),
        );
        client.skip(command(GET).len());
    }
    assert_eq!(client.read(3 * value().len()), value().repeat(3));
    let block = (from.wrapping_add(length), from.wrapping_add(3 * length));
    for _ in 0..3 {
        client.send_shaped(
            &Shape {
                ack: Some(from),
                sack: Some(block),
                ..Shape::default()
            },
            b"",
        );
    }
    let again = client.await_segment(|segment| segment.seq == from && !segment.payload.is_empty());
    let sent = String::from_utf8_lossy(&again.payload).into_owned();
    assert!(value().repeat(3).starts_with(&sent), "{sent:?}");
    client.ack_now();
    still_works(&lab, &mut client);
}

#[test]
fn a_segment_of_served_and_new_bytes_is_answered_once() {
    let (lab, mut client) = fast_client("overlap");
    for tail in [GET, "INCR n", "PING"] {
        let seq = client.seq;
        client.expect(GET, &value());
        let both = [command(GET), command(tail)].concat();
        client.send_shaped(&at(seq), &both);
        client.skip(command(tail).len());
        let want = match tail {
            GET => value(),
            "PING" => "+PONG\r\n".to_owned(),
            _ => ":1\r\n".to_owned(),
        };
        // The kernel may drop a copy of old bytes; then the client sends the new ones again.
        client.send_shaped(&at(client_seq(seq)), &command(tail));
        assert_eq!(client.read(want.len()), want, "after {tail}");
        client.ack_now();
    }
    still_works(&lab, &mut client);
}

#[test]
fn old_copies_of_requests_are_never_executed_again() {
    let (lab, mut client) = fast_client("old");
    let seq = client.seq;
    client.expect("INCR n", ":1\r\n");
    let get = client.seq;
    client.expect(GET, &value());
    client.expect("INCR n", ":2\r\n");
    for _ in 0..3 {
        client.send_shaped(&at(seq), &command("INCR n"));
        client.send_shaped(&at(get), &command(GET));
        client.send_shaped(
            &Shape {
                age_ms: 2_000,
                ..at(get)
            },
            &command(GET),
        );
    }
    client.assert_no_more(PAUSE);
    client.expect("GET n", "$1\r\n2\r\n");
    still_works(&lab, &mut client);
}

#[test]
fn a_request_cut_at_every_byte_is_answered_once() {
    let (lab, mut client) = fast_client("cut");
    for words in [GET, "PING", "SET hot value"] {
        let bytes = command(words);
        let want = match words {
            GET => value(),
            "PING" => "+PONG\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        };
        for cut in 1..bytes.len() {
            client.send(&bytes[..cut]);
            client.send(&bytes[cut..]);
            assert_eq!(client.read(want.len()), want, "{words} cut at {cut}");
            client.ack_now();
            client.expect(GET, &value());
        }
    }
    still_works(&lab, &mut client);
}

#[test]
fn halves_of_a_request_in_the_wrong_order_are_answered_once() {
    let (lab, mut client) = fast_client("swap");
    for words in [GET, "PING"] {
        let bytes = command(words);
        let want = if words == GET {
            value()
        } else {
            "+PONG\r\n".to_owned()
        };
        for cut in [1, 4, bytes.len() - 1] {
            let second = client.seq.wrapping_add(cut as u32);
            client.send_shaped(&at(second), &bytes[cut..]);
            client.send_shaped(&Shape::default(), &bytes[..cut]);
            // As a client does whose later part was thrown away.
            std::thread::sleep(Duration::from_millis(20));
            client.send_shaped(&at(second), &bytes[cut..]);
            client.skip(bytes.len());
            assert_eq!(client.read(want.len()), want, "{words} cut at {cut}");
            client.ack_now();
        }
    }
    still_works(&lab, &mut client);
}

#[test]
fn a_wrong_checksum_is_not_answered() {
    let (lab, mut client) = fast_client("sum");
    let seq = client.seq;
    for _ in 0..3 {
        client.send_shaped(
            &Shape {
                bad_checksum: true,
                ..at(seq)
            },
            &command(GET),
        );
        client.send_shaped(
            &Shape {
                bad_checksum: true,
                rst: true,
                ..at(seq)
            },
            b"",
        );
    }
    client.assert_no_more(PAUSE);
    still_works(&lab, &mut client);
}

#[test]
fn stray_syn_and_inexact_rst_end_nothing() {
    let (lab, mut client) = fast_client("stray");
    for far in [1, 1_000, 100_000_000] {
        let seq = client.seq;
        client.send_shaped(
            &Shape {
                syn: true,
                ..at(seq.wrapping_add(far))
            },
            b"",
        );
        client.expect(GET, &value());
        client.send_shaped(
            &Shape {
                rst: true,
                ..at(client.seq.wrapping_add(far))
            },
            b"",
        );
        client.expect(GET, &value());
        client.send_shaped(
            &Shape {
                rst: true,
                ..at(client.seq.wrapping_sub(far))
            },
            b"",
        );
        client.expect(GET, &value());
    }
    assert!(
        !client.log.iter().any(|segment| segment.rst),
        "the server gave up"
    );
    still_works(&lab, &mut client);
}

#[test]
fn keepalive_probes_are_answered_with_the_present_numbers() {
    let (lab, mut client) = fast_client("probe");
    for garbage in [&b""[..], b"x"] {
        client.expect(GET, &value());
        let (seq, next) = (client.seq, client.next);
        client.send_shaped(&at(seq.wrapping_sub(1)), garbage);
        let answer = client.await_segment(|segment| segment.payload.is_empty());
        assert_eq!((answer.ack, answer.seq), (seq, next), "answer to the probe");
    }
    still_works(&lab, &mut client);
}

#[test]
fn a_closed_window_stops_answers_until_it_opens() {
    let (lab, mut client) = fast_client("window");
    for words in [GET, "INCR n"] {
        let want = if words == GET {
            value()
        } else {
            ":1\r\n".to_owned()
        };
        client.send_shaped(
            &Shape {
                window: Some(0),
                ..Shape::default()
            },
            &command(words),
        );
        client.skip(command(words).len());
        let before = client.next;
        let end = std::time::Instant::now() + Duration::from_millis(150);
        while std::time::Instant::now() < end {
            client.poll();
        }
        let beyond = client.next.wrapping_sub(before);
        assert_eq!(beyond, 0, "{words}: {beyond} bytes into a closed window");
        client.send_shaped(&Shape::default(), b"");
        assert_eq!(client.read(want.len()), want, "after the window opened");
        client.ack_now();
    }
    still_works(&lab, &mut client);
}

#[test]
fn acks_and_data_outside_of_the_window_are_not_answered() {
    let (lab, mut client) = fast_client("outside");
    let (seq, next) = (client.seq, client.next);
    client.send_shaped(
        &Shape {
            ack: Some(next.wrapping_add(5_000)),
            ..at(seq)
        },
        &command(GET),
    );
    client.send_shaped(&at(seq.wrapping_add(1 << 30)), &command(GET));
    client.send_shaped(&at(seq.wrapping_sub(1 << 30)), &command(GET));
    client.assert_no_more(PAUSE);
    still_works(&lab, &mut client);
}

#[test]
fn a_pipeline_that_never_acknowledges_in_between_is_answered_in_order() {
    let (lab, mut client) = fast_client("noack");
    let from = client.next;
    let old_ack = Shape {
        ack: Some(from),
        ..Shape::default()
    };
    let mut want = String::new();
    for round in 0..8 {
        let words = [GET, "PING", "INCR n", GET][round % 4];
        client.send_shaped(&old_ack, &command(words));
        client.skip(command(words).len());
        want += &match words {
            GET => value(),
            "PING" => "+PONG\r\n".to_owned(),
            _ => format!(":{}\r\n", round / 4 + 1),
        };
    }
    assert_eq!(client.read(want.len()), want);
    client.ack_now();
    still_works(&lab, &mut client);
}
