// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Acknowledgements, windows, keepalive.

use crate::builder::{Builder, CHALLENGE_MS, bulk, command};
use crate::exchange::{Exchange, Offer, Segment, Step};

/// GET of the hot key.
const GET: &str = "GET hot";
/// A value of several segments.
const LONG_BYTES: usize = 6_000;

pub(super) fn exchanges() -> Vec<Exchange> {
    vec![
        slow_behind_unacknowledged(),
        below_the_edge(),
        sack_at_the_edge(),
        hand_over(),
        never_acknowledged(),
        keepalive(),
        slow_reply_and_closed_window(),
        fast_reply_and_closed_window(),
        fast_reply_and_small_window(),
        duplicate_acks_for_redis_bytes(),
        d_sack_for_redis_bytes(),
        partial_ack(),
        long_values(),
    ]
}

fn value() -> String {
    bulk("value")
}

fn slow_behind_unacknowledged() -> Exchange {
    let mut b = Builder::fast(
        "slow_behind_unacknowledged",
        "[T-3] A slow request whose ACK does not cover fast replies reaches Redis: the ACK has a floor.",
    );
    b.store("floor-n", "0");
    for round in 1..4 {
        let from = b.got;
        for _ in 0..2 {
            b.send(Segment::new(b.seq, from, command("PING")));
            b.reply("+PONG\r\n");
        }
        b.send(Segment::new(b.seq, from, command("INCR floor-n")));
        b.reply(format!(":{round}\r\n"));
        b.ack();
    }
    b.counted("FAST_PING", 6);
    b.still_works()
}

fn below_the_edge() -> Exchange {
    let mut b = Builder::fast(
        "below_the_edge",
        "[T-2] Kernel bytes below the edge never come again over fast ones, however old the client's ACKs.",
    );
    b.store("edge-n", "0");
    let from = b.got;
    b.ask_raw("INCR edge-n", ":1\r\n");
    // This request carries the ACK of the slow reply.
    let fast = b.got;
    b.ask_raw(GET, &value());
    b.send_all(vec![Segment::ack(b.seq, from); 4]);
    b.again(fast, value());
    b.step(Step::Copies(from, 700, 0));
    b.ack();
    b.counted("FAST_GET", 1);
    b.still_works()
}

fn sack_at_the_edge() -> Exchange {
    let mut b = Builder::fast(
        "sack_at_the_edge",
        "[T-19] A fast reply is lost, the slow one behind it is SACKed: only the lost one is wanted, all ends well.",
    );
    b.store("sack-n", "0");
    let from = b.got;
    b.ask_raw(GET, &value());
    let slow = b.got;
    b.send(Segment::new(b.seq, from, command("INCR sack-n")));
    b.reply(":1\r\n");
    b.send_all(vec![Segment::ack(b.seq, from).sack(slow, b.got); 3]);
    b.again(from, value());
    b.ack();
    b.call(GET, &value());
    b.still_works()
}

fn hand_over() -> Exchange {
    let mut b = Builder::fast(
        "hand_over",
        "[T-1] The request that carries the ACK of a slow reply is answered, and the kernel gets the ACK.",
    );
    b.store("hand-n", "0");
    for round in 1..6 {
        b.ask_raw("INCR hand-n", &format!(":{round}\r\n"));
        b.ask_raw(GET, &value());
        b.ask_raw(GET, &value());
    }
    b.counted("FAST_GET", 10);
    b.counted_at_least("FAST_PACKET_TC", 5);
    // The kernel retransmits nothing.
    b.step(Step::Copies(0, 0, 0));
    b.ack();
    b.still_works()
}

fn never_acknowledged() -> Exchange {
    let mut b = Builder::fast(
        "never_acknowledged",
        "[T-3, T-10] A pipeline that acknowledges nothing in between is answered in order.",
    );
    b.store("pipe-n", "0");
    let from = b.got;
    let mut all = String::new();
    for round in 0..12 {
        let (words, reply) = match round % 4 {
            0 | 3 => (GET, value()),
            1 => ("PING", "+PONG\r\n".to_owned()),
            _ => ("INCR pipe-n", format!(":{}\r\n", round / 4 + 1)),
        };
        b.send(Segment::new(b.seq, from, command(words)));
        all += &reply;
    }
    b.reply(all);
    b.ack();
    b.still_works()
}

fn keepalive() -> Exchange {
    let mut b = Builder::fast(
        "keepalive",
        "[5a] A keepalive probe, with or without a byte, is answered with the present numbers.",
    );
    b.store("keep-n", "0");
    for (round, garbage) in [&b""[..], b"x", b"", b"\n"].into_iter().enumerate() {
        b.call(GET, &value());
        b.send(Segment::new(b.seq - 1, b.got, garbage));
        b.expect_bare();
        b.call("INCR keep-n", &format!(":{}\r\n", round + 1));
        b.pause(CHALLENGE_MS);
        b.send(Segment::new(b.seq - 1, b.got, garbage));
        b.expect_bare();
        b.pause(CHALLENGE_MS);
    }
    b.counted("FAST_GET", 4);
    b.still_works()
}

fn slow_reply_and_closed_window() -> Exchange {
    let mut b = Builder::fast(
        "slow_reply_and_closed_window",
        "[5b] Redis's reply waits for a window, and goes as soon as an update opens it.",
    );
    b.store("window-n", "0");
    b.call(GET, &value());
    for round in 1..3 {
        b.send(b.next(command("INCR window-n")).window(0));
        b.step(Step::Copies(b.got, 150, 0));
        b.ack();
        b.reply(format!(":{round}\r\n"));
        b.ack();
        b.call(GET, &value());
    }
    b.still_works()
}

fn fast_reply_and_closed_window() -> Exchange {
    let mut b = Builder::fast(
        "fast_reply_and_closed_window",
        "[5b,15] A request that closes the window is not answered into it.",
    );
    for _ in 0..2 {
        b.call(GET, &value());
        b.send(b.next(command(GET)).window(0));
        b.step(Step::Copies(b.got, 150, 0));
        b.ack();
        b.reply(value());
        b.ack();
    }
    b.counted("FAST_GET", 2);
    b.still_works()
}

fn fast_reply_and_small_window() -> Exchange {
    let mut b = Builder::fast(
        "fast_reply_and_small_window",
        "[T-15] Unacknowledged fast bytes count against the client's window, and so does what the kernel knows of it.",
    );
    // Window 16 << 4 = 256 bytes, and the kernel knows of more: Redis's, until the kernel knows.
    b.send(Segment::new(b.seq, b.got, command(GET)).window(16));
    b.reply(value());
    b.counted("FAST_GET", 0);
    b.send(b.bare().window(16));
    // A sixteenth is room for one reply of 11 bytes that is not acknowledged.
    let from = b.got;
    b.send(Segment::new(b.seq, from, command(GET)).window(16));
    b.reply(value());
    b.counted("FAST_GET", 1);
    b.send(Segment::new(b.seq, from, command(GET)).window(16));
    b.reply(value());
    b.ack();
    b.counted("FAST_GET", 0);
    b.still_works()
}

/// GET of a long value, of which nothing is acknowledged: its place and its bytes.
fn long_reply(b: &mut Builder) -> (i64, String) {
    let long = "0123456789".repeat(LONG_BYTES / 10);
    b.store("long", &long);
    b.call(GET, &value());
    let from = b.got;
    b.ask_raw("GET long", &bulk(&long));
    (from, bulk(&long))
}

fn duplicate_acks_for_redis_bytes() -> Exchange {
    let mut b = Builder::new(
        "duplicate_acks_for_redis_bytes",
        "[5c] Duplicate ACKs for bytes of Redis reach the kernel, also without SACK: it sends them again.",
    );
    b.hot("hot", "value");
    b.connect(Offer {
        sack: false,
        ..Offer::USUAL
    });
    b.admit();
    let (from, long) = long_reply(&mut b);
    b.send_all(vec![Segment::ack(b.seq, from); 4]);
    b.again(from, &long[..1_400]);
    b.ack();
    b.call(GET, &value());
    b.still_works()
}

fn d_sack_for_redis_bytes() -> Exchange {
    let mut b = Builder::fast(
        "d_sack_for_redis_bytes",
        "[5d] A D-SACK for bytes of Redis reaches the kernel in its own numbers and breaks nothing.",
    );
    let (from, _) = long_reply(&mut b);
    b.send(b.bare().sack(from, from + 1_000));
    b.call(GET, &value());
    b.counted("FAST_GET", 2);
    b.still_works()
}

fn partial_ack() -> Exchange {
    let mut b = Builder::fast(
        "partial_ack",
        "[T-10] Half of a reply acknowledged: what comes again begins there.",
    );
    for half in [1, 5, 10] {
        let from = b.got;
        b.ask_raw(GET, &value());
        b.send_all(vec![Segment::ack(b.seq, from + half); 5]);
        b.again(from + half, &value()[half as usize..]);
        b.step(Step::Copies(from, 50, 0));
        b.ack();
    }
    b.counted("FAST_GET", 3);
    b.still_works()
}

fn long_values() -> Exchange {
    let mut b = Builder::new(
        "long_values",
        "[T-12] Short values are fast, what is longer than a segment is Redis's; streams go on in between.",
    );
    // Where the device leaves little room, an answer cannot be much longer than its request.
    let most = "m".repeat(100);
    let more = "l".repeat(2_900);
    b.hot("hot", "value");
    b.hot("most", &most);
    b.store("more", &more);
    b.connect(Offer::USUAL);
    b.admit();
    for _ in 0..3 {
        b.call("GET most", &bulk(&most));
        b.call("GET more", &bulk(&more));
        let (seq, from) = (b.seq, b.got);
        b.ask_raw("GET most", &bulk(&most));
        b.send(Segment::new(seq, from, command("GET most")));
        b.again(from, bulk(&most));
        b.ack();
    }
    b.counted("FAST_GET", 6);
    b.still_works()
}
