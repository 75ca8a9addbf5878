// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests that come again, and replies that were lost.

use crate::builder::{Builder, bulk, command, length};
use crate::exchange::{Exchange, Segment, Step};

/// GET of the hot key.
const GET: &str = "GET hot";
/// Longer than the kernel's and the daemon's patience with anything that is on its way.
const OLD_MS: u64 = 1_500;

pub(super) fn exchanges() -> Vec<Exchange> {
    vec![
        request_repeated(),
        replay_begins_at_the_highest_ack(),
        same_numbers_other_bytes(),
        old_duplicates(),
        old_duplicate_of_a_slow_request(),
        lost_reply_by_timer(),
        lost_reply_by_duplicate_acks(),
        lost_reply_by_sack(),
        d_sack_is_no_loss(),
    ]
}

fn value() -> String {
    bulk("value")
}

fn request_repeated() -> Exchange {
    let mut b = Builder::fast(
        "request_repeated",
        "[T-10] A copy of a served request gets the same bytes, and a bare ACK once they are acknowledged.",
    );
    for _ in 0..3 {
        let (seq, from) = (b.seq, b.got);
        b.ask_raw(GET, &value());
        b.send(Segment::new(seq, from, command(GET)));
        b.again(from, value());
        b.ack();
        b.send(Segment::new(seq, b.got, command(GET)));
        b.expect_bare();
    }
    b.counted("FAST_GET", 3);
    b.counted_at_least("REPLAY_REQUEST", 6);
    b.still_works()
}

fn replay_begins_at_the_highest_ack() -> Exchange {
    let mut b = Builder::fast(
        "replay_begins_at_the_highest_ack",
        "[T-10] A replay begins at the client's highest ACK, whatever request provoked it.",
    );
    let (seq, from) = (b.seq, b.got);
    let old = |b: &Builder| Segment::new(b.seq, from, command(GET));
    for _ in 0..3 {
        b.send(old(&b));
        b.reply(value());
    }
    let second = from + length(value());
    b.send(Segment::ack(b.seq, second));
    // The first request again, with an ACK older than the client's last.
    b.send(Segment::new(seq, from, command(GET)));
    b.again(second, value());
    b.ack();
    b.counted("FAST_GET", 3);
    b.still_works()
}

fn same_numbers_other_bytes() -> Exchange {
    let mut b = Builder::fast(
        "same_numbers_other_bytes",
        "[T-10] Bytes that come again under served numbers are never read, whatever they are.",
    );
    let seq = b.seq;
    b.call(GET, &value());
    let other = command("SET hot X");
    let end = b.seq;
    let part = &other[..(end - seq) as usize];
    b.send(Segment::new(seq, b.got, part));
    b.expect_bare();
    b.send(Segment::new(seq, b.got, command("DEL hot")));
    b.nothing_new();
    b.ask("GET hot", &value());
    b.still_works()
}

fn old_duplicates() -> Exchange {
    let mut b = Builder::fast(
        "old_duplicates",
        "[T-10, T-15] Copies that come seconds later are answered by ACKs only, and nothing is executed twice.",
    );
    b.store("old-n", "0");
    let first = b.seq;
    b.call("INCR old-n", ":1\r\n");
    let second = b.seq;
    b.call(GET, &value());
    b.call("INCR old-n", ":2\r\n");
    b.pause(OLD_MS);
    for _ in 0..2 {
        b.send(Segment::new(first, b.got, command("INCR old-n")));
        b.expect_bare();
        b.send(Segment::new(second, b.got, command(GET)));
        b.expect_bare();
        b.send(Segment::new(second, 0, command(GET)).older(90));
        b.send(Segment::new(first, 0, command("INCR old-n")).older(90));
        b.pause(OLD_MS);
    }
    b.nothing_new();
    b.call("GET old-n", "$1\r\n2\r\n");
    b.still_works()
}

fn old_duplicate_of_a_slow_request() -> Exchange {
    let mut b = Builder::fast(
        "old_duplicate_of_a_slow_request",
        "[T-10] A copy of a request that went up goes up again, uncounted: the kernel answers with the present numbers.",
    );
    b.store("slow-n", "0");
    b.call(GET, &value());
    let (seq, from) = (b.seq, b.got);
    b.ask_raw("INCR slow-n", ":1\r\n");
    // Not acknowledged: the kernel may send its reply again, but it executes nothing.
    b.send(Segment::new(seq, from, command("INCR slow-n")));
    b.nothing_new();
    b.ack();
    b.call(GET, &value());
    b.send(Segment::new(seq, b.got, command("INCR slow-n")));
    b.expect_bare();
    b.ask("GET slow-n", "$1\r\n1\r\n");
    b.still_works()
}

fn lost_reply_by_timer() -> Exchange {
    let mut b = Builder::fast(
        "lost_reply_by_timer",
        "[T-20] If nothing comes from the client, the timer sends the unacknowledged bytes again.",
    );
    let from = b.got;
    b.ask_raw(GET, &value());
    // What comes after this is not the first copy.
    b.send(Segment::ack(b.seq, from));
    b.again(from, value());
    b.ack();
    b.counted_at_least("REPLAY_TIMEOUT", 1);
    b.still_works()
}

fn lost_reply_by_duplicate_acks() -> Exchange {
    let mut b = Builder::fast(
        "lost_reply_by_duplicate_acks",
        "[T-18] The third equal ACK brings the lost bytes, and more of them bring no storm.",
    );
    let from = b.got;
    b.ask_raw(GET, &value());
    b.send_all(vec![Segment::ack(b.seq, from); 12]);
    b.again(from, value());
    // One for the ACKs; the timer may add one on a slow machine.
    b.step(Step::Copies(from, 150, 2));
    b.ack();
    b.counted_at_least("REPLAY_ACK", 1);
    b.still_works()
}

fn lost_reply_by_sack() -> Exchange {
    let mut b = Builder::fast(
        "lost_reply_by_sack",
        "[T-18] A SACK block above the ACK shows a hole: only the hole is filled, once per RTT.",
    );
    let from = b.got;
    for _ in 0..3 {
        b.send(Segment::new(b.seq, from, command(GET)));
        b.reply(value());
    }
    let second = from + length(value());
    b.send_all(vec![Segment::ack(b.seq, from).sack(second, b.got); 8]);
    b.again(from, value());
    b.step(Step::Copies(second, 100, 1));
    b.ack();
    b.counted("FAST_GET", 3);
    b.still_works()
}

fn d_sack_is_no_loss() -> Exchange {
    let mut b = Builder::fast(
        "d_sack_is_no_loss",
        "[T-18] A D-SACK says that bytes came twice: it provokes no replay.",
    );
    let from = b.got;
    b.call(GET, &value());
    let second = b.got;
    b.ask_raw(GET, &value());
    b.send_all(vec![Segment::ack(b.seq, second).sack(from, second); 6]);
    b.step(Step::Copies(second, 100, 1));
    b.ack();
    b.still_works()
}
