// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments that mix served, executed and new bytes, and requests in pieces.

use crate::builder::{Builder, bulk, command, length};
use crate::exchange::{Exchange, Segment, Step};

/// GET of the hot key.
const GET: &str = "GET hot";

pub(super) fn exchanges() -> Vec<Exchange> {
    vec![
        served_and_new("served_then_get", GET, "$5\r\nvalue\r\n"),
        served_and_new("served_then_ping", "PING", "+PONG\r\n"),
        served_and_new("served_then_slow", "SET cut-n 5", "+OK\r\n"),
        executed_and_new(),
        served_and_half(),
        two_served_and_new(),
        cut_everywhere("get_cut_everywhere", GET, "$5\r\nvalue\r\n"),
        cut_everywhere("ping_cut_everywhere", "PING", "+PONG\r\n"),
        cut_everywhere("set_cut_everywhere", "SET cut-n 7", "+OK\r\n"),
        single_bytes(),
        pieces_overlap(),
        halves_swapped(),
        slow_before_the_hole(),
        fast_before_the_hole(),
    ]
}

fn value() -> String {
    bulk("value")
}

/// [tail of a served request from every byte on][a new request], as a client retransmits.
fn served_and_new(name: &'static str, words: &str, reply: &str) -> Exchange {
    let mut b = Builder::fast(
        name,
        "[T-10] [served][new] in one segment, cut at every byte of the served: each is answered once.",
    );
    for cut in 0..length(command(GET)) {
        let seq = b.seq;
        b.call(GET, &value());
        let both = [command(GET), command(words)].concat();
        let new = b.seq;
        b.send(Segment::new(seq + cut, b.got, &both[cut as usize..]));
        // The copy of old bytes may be thrown away whole; then the client sends the new ones.
        b.send(Segment::new(new, b.got, command(words)));
        b.reply(reply);
        b.ack();
    }
    b.still_works()
}

fn executed_and_new() -> Exchange {
    let mut b = Builder::fast(
        "executed_then_get",
        "[T-10] [executed by Redis][new] in one segment: the old is not executed again, the new is answered.",
    );
    b.store("ex-n", "0");
    for round in 1..4 {
        let seq = b.seq;
        b.call("INCR ex-n", &format!(":{round}\r\n"));
        let both = [command("INCR ex-n"), command(GET)].concat();
        b.send(Segment::new(seq, b.got, both));
        b.reply(value());
        b.ack();
    }
    b.call("GET ex-n", "$1\r\n3\r\n");
    b.still_works()
}

fn served_and_half() -> Exchange {
    let mut b = Builder::fast(
        "served_and_half",
        "[T-10, T-15] [served][half a request], then the other half: the request is answered once.",
    );
    for cut in [1, 9, 21] {
        let seq = b.seq;
        b.call(GET, &value());
        let both = [command(GET), command(GET)[..cut].to_vec()].concat();
        let new = b.seq;
        b.send(Segment::new(seq, b.got, both));
        b.send(Segment::new(new, b.got, &command(GET)[..cut]));
        b.send(b.next(&command(GET)[cut..]));
        b.reply(value());
        b.ack();
    }
    b.still_works()
}

fn two_served_and_new() -> Exchange {
    let mut b = Builder::fast(
        "two_served_and_new",
        "[T-10] A retransmission that begins in the middle of several served requests.",
    );
    let from = b.got;
    let seq = b.seq;
    b.send(Segment::new(b.seq, from, command(GET)));
    b.reply(value());
    b.send(Segment::new(b.seq, from, command("PING")));
    b.reply("+PONG\r\n");
    let all = [command(GET), command("PING"), command(GET)].concat();
    let new = b.seq;
    // Neither reply is acknowledged: both were lost.
    b.send(Segment::new(seq, from, all));
    b.send(Segment::new(new, from, command(GET)));
    b.reply(value());
    b.ack();
    b.still_works()
}

fn cut_everywhere(name: &'static str, words: &str, reply: &str) -> Exchange {
    let mut b = Builder::fast(
        name,
        "[T-15] A request in two segments, cut at every byte, is answered once, and the next is fast again.",
    );
    let bytes = command(words);
    for cut in 1..bytes.len() {
        b.send(b.next(&bytes[..cut]));
        b.send(b.next(&bytes[cut..]));
        b.reply(reply);
        b.ack();
        b.call(
            GET,
            &bulk(if words.starts_with("SET hot") {
                "7"
            } else {
                "value"
            }),
        );
    }
    b.still_works()
}

fn single_bytes() -> Exchange {
    let mut b = Builder::fast(
        "single_bytes",
        "[T-15] Requests byte by byte, several in a row.",
    );
    b.store("one-n", "0");
    for (words, reply) in [
        (GET, value()),
        ("INCR one-n", ":1\r\n".into()),
        ("PING", "+PONG\r\n".into()),
    ] {
        for byte in command(words) {
            b.send(b.next([byte]));
        }
        b.reply(reply);
        b.ack();
    }
    b.still_works()
}

fn pieces_overlap() -> Exchange {
    let mut b = Builder::fast(
        "pieces_overlap",
        "[T-15] Pieces of one request that overlap each other: every byte counts once.",
    );
    b.store("ov-n", "0");
    for (round, words) in [GET, "INCR ov-n", GET, "INCR ov-n"].into_iter().enumerate() {
        let (bytes, seq) = (command(words), b.seq);
        let end = bytes.len();
        for (from, to) in [(0, 9), (5, 14), (0, 14), (12, end - 1), (3, end)] {
            b.send(Segment::new(seq + from as i64, b.got, &bytes[from..to]));
        }
        b.reply(if words == GET {
            value()
        } else {
            format!(":{}\r\n", round.div_ceil(2))
        });
        b.ack();
    }
    b.still_works()
}

fn halves_swapped() -> Exchange {
    let mut b = Builder::fast(
        "halves_swapped",
        "[T-4] The second half comes first: an ACK says what is missing, and the first half completes it.",
    );
    for words in [GET, "PING"] {
        let bytes = command(words);
        let reply = if words == GET {
            value()
        } else {
            "+PONG\r\n".to_owned()
        };
        for cut in [1, 4, bytes.len() - 1] {
            let seq = b.seq;
            let second = Segment::new(seq + cut as i64, b.got, &bytes[cut..]);
            let bare = Step::Bare(b.got, b.seq);
            b.send(second);
            b.step(bare);
            b.send(Segment::new(seq, b.got, &bytes[..cut]));
            b.reply(&reply);
            b.ack();
        }
    }
    b.still_works()
}

fn slow_before_the_hole() -> Exchange {
    let mut b = Builder::fast(
        "slow_before_the_hole",
        "[T-4] A slow request beyond a hole is executed when the hole is filled, behind what could have been served.",
    );
    b.store("hole-n", "0");
    b.call(GET, &value());
    let hole = Segment::new(b.seq, b.got, command(GET));
    let beyond = Segment::new(hole.end(), b.got, command("INCR hole-n"));
    let bare = Step::Bare(b.got, b.seq);
    b.send(beyond);
    b.step(bare);
    b.send(hole);
    b.reply(value());
    b.reply(":1\r\n");
    b.ack();
    b.nothing_new();
    b.ask("GET hole-n", "$1\r\n1\r\n");
    b.still_works()
}

fn fast_before_the_hole() -> Exchange {
    let mut b = Builder::fast(
        "fast_before_the_hole",
        "[T-4] A fast request beyond a hole is not answered before the slow one in the hole.",
    );
    b.store("hole-m", "0");
    b.call(GET, &value());
    let hole = Segment::new(b.seq, b.got, command("INCR hole-m"));
    let beyond = Segment::new(hole.end(), b.got, command(GET));
    let bare = Step::Bare(b.got, b.seq);
    b.send(beyond);
    b.step(bare);
    b.send(hole);
    b.reply(":1\r\n");
    b.reply(value());
    b.ack();
    b.still_works()
}
