// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests and replies are counted: whether Redis owes something decides who answers.

use crate::builder::{Builder, bulk, command};
use crate::exchange::{Exchange, Offer};

/// GET of the hot key.
const GET: &str = "GET hot";

pub(super) fn exchanges() -> Vec<Exchange> {
    vec![
        requests_without_reply(),
        first_command_is_an_error(),
        several_first_commands(),
        fast_behind_slow(),
        mixed_in_one_segment(),
        selected_database(),
        many_in_one_segment(),
    ]
}

fn value() -> String {
    bulk("value")
}

fn requests_without_reply() -> Exchange {
    let mut b = Builder::fast(
        "requests_without_reply",
        "[T-22] Empty lines and empty arrays have no reply; the count stays even and GETs stay fast.",
    );
    for silent in ["\r\n", "*0\r\n", "*-1\r\n", "\r\n\r\n*0\r\n"] {
        b.send(b.next(silent));
        b.step(crate::exchange::Step::Acked(b.seq));
        b.call(GET, &value());
        b.counted("FAST_GET", 1);
        b.send(b.next([silent.as_bytes(), b"PING\r\n"].concat()));
        b.reply("+PONG\r\n");
        b.ack();
    }
    b.still_works()
}

fn first_command_is_an_error() -> Exchange {
    let mut b = Builder::new(
        "first_command_is_an_error",
        "[T-22] An error neither admits nor bars: the first reply that is none does.",
    );
    b.hot("hot", "value");
    b.connect(Offer::USUAL);
    b.call(
        "GET",
        "-ERR wrong number of arguments for 'get' command\r\n",
    );
    b.call(GET, &value());
    b.counted("FAST_GET", 0);
    b.call(GET, &value());
    b.counted("FAST_GET", 1);
    b.still_works()
}

fn several_first_commands() -> Exchange {
    let mut b = Builder::new(
        "several_first_commands",
        "[T-22] All of the first segment is Redis's, if it holds several commands.",
    );
    b.hot("hot", "value");
    b.connect(Offer::USUAL);
    b.send(b.next(command(GET).repeat(3)));
    b.reply(value().repeat(3));
    b.ack();
    b.counted("FAST_GET", 0);
    b.call(GET, &value());
    b.counted("FAST_GET", 1);
    b.still_works()
}

fn fast_behind_slow() -> Exchange {
    let mut b = Builder::fast(
        "fast_behind_slow",
        "[T-2, T-22] A fast request behind an unanswered slow one is not answered before it.",
    );
    b.store("order-n", "0");
    for round in 1..5 {
        let slow = b.next(command("INCR order-n"));
        let fast = crate::exchange::Segment::new(slow.end(), b.got, command(GET));
        b.send_all(vec![slow, fast]);
        b.reply(format!(":{round}\r\n"));
        b.reply(value());
        b.ack();
        b.call(GET, &value());
    }
    b.still_works()
}

fn mixed_in_one_segment() -> Exchange {
    let mut b = Builder::fast(
        "mixed_in_one_segment",
        "[T-22] A segment with fast and slow commands is Redis's as a whole.",
    );
    b.store("mix-n", "0");
    for round in 0..3 {
        let n = 2 * round;
        let all = ["INCR mix-n", GET, "INCR mix-n", "PING"];
        b.send(b.next(all.map(command).concat()));
        b.reply(format!(":{}\r\n{}:{}\r\n+PONG\r\n", n + 1, value(), n + 2));
        b.ack();
        b.counted("FAST_GET", 0);
        b.call(GET, &value());
        b.counted("FAST_GET", 1);
    }
    b.still_works()
}

fn selected_database() -> Exchange {
    let mut b = Builder::fast(
        "selected_database",
        "[T-22] What changes a connection's meaning ends its fast answers: another database has another value.",
    );
    b.call(GET, &value());
    b.counted("FAST_GET", 1);
    b.call("SELECT 1", "+OK\r\n");
    b.call(GET, "$-1\r\n");
    b.send(b.next(command(GET)));
    b.reply("$-1\r\n");
    b.ack();
    b.counted("FAST_GET", 0);
    b.done()
}

fn many_in_one_segment() -> Exchange {
    let mut b = Builder::fast(
        "many_in_one_segment",
        "[T-10] Many fast commands in one segment are answered by one, and again by the same bytes.",
    );
    for count in [2, 17, 60] {
        let (seq, from) = (b.seq, b.got);
        b.send(b.next(command(GET).repeat(count)));
        b.reply(value().repeat(count));
        b.send(crate::exchange::Segment::new(
            seq,
            from,
            command(GET).repeat(count),
        ));
        b.again(from, value());
        b.ack();
        b.counted("FAST_GET", count as u64);
    }
    b.still_works()
}
