// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What TCP does not accept, no fast path may answer.

use crate::builder::{Builder, CHALLENGE_MS, bulk, command};
use crate::exchange::{CWR, ECE, Exchange, FIN, Fault, Offer, RST, SYN, Segment};

/// GET of the hot key.
const GET: &str = "GET hot";

pub(super) fn exchanges() -> Vec<Exchange> {
    vec![
        damaged("wrong_tcp_checksum", Fault::TcpChecksum),
        damaged("wrong_ip_checksum", Fault::IpChecksum),
        damaged("wrong_ip_length", Fault::IpLength),
        damaged("wrong_tcp_length", Fault::TcpLength),
        ack_of_what_was_never_sent(),
        ack_much_too_old(),
        data_beyond_the_window(),
        no_ack_flag(),
        old_timestamp(),
        no_timestamp(),
        congestion_marks(),
        connection_without_timestamps(),
        newest_timestamp_is_echoed(),
        first_window(),
    ]
}

fn value() -> String {
    bulk("value")
}

fn damaged(name: &'static str, fault: Fault) -> Exchange {
    let mut b = Builder::fast(
        name,
        "[T-14, T-15] A damaged frame is not answered, changes nothing and ends nothing.",
    );
    for flags in [0, FIN, RST, SYN] {
        b.send(b.next(command(GET)).flags(flags).fault(fault));
        b.send(b.bare().flags(flags).fault(fault));
        b.send(b.next(command("SET hot damaged")).flags(flags).fault(fault));
    }
    b.nothing();
    b.counted("FAST_GET", 0);
    b.call(GET, &value());
    b.counted("FAST_GET", 1);
    b.still_works()
}

fn ack_of_what_was_never_sent() -> Exchange {
    let mut b = Builder::fast(
        "ack_of_what_was_never_sent",
        "[T-15] Data with such an ACK are thrown away, and other bytes may come under their numbers.",
    );
    b.call(GET, &value());
    for far in [1, 5_000, 1 << 30] {
        b.pause(CHALLENGE_MS);
        b.send(Segment::new(b.seq, b.got + far, command(GET)).stray());
        b.expect_bare();
        b.send(Segment::new(b.seq, b.got + far, command("DEL hot")).stray());
        b.nothing_new();
    }
    b.counted("FAST_GET", 1);
    b.call("PING", "+PONG\r\n");
    b.ask("GET hot", &value());
    b.still_works()
}

fn ack_much_too_old() -> Exchange {
    let mut b = Builder::fast(
        "ack_much_too_old",
        "[T-3, T-15] Data with an ACK from before the stream are not taken.",
    );
    b.call(GET, &value());
    b.send(Segment::new(b.seq, b.got - (1 << 30), command("DEL hot")).stray());
    b.nothing_new();
    b.counted("FAST_GET", 1);
    b.ask("GET hot", &value());
    b.done()
}

fn data_beyond_the_window() -> Exchange {
    let mut b = Builder::fast(
        "data_beyond_the_window",
        "[T-15] Data beyond the window, or from half the number space away, are not taken.",
    );
    b.call(GET, &value());
    for far in [1 << 24, 1 << 30, -(1 << 24), -(1 << 30)] {
        b.send(Segment::new(b.seq + far, b.got, command("DEL hot")).stray());
        b.nothing_new();
    }
    b.ask("GET hot", &value());
    b.still_works()
}

fn no_ack_flag() -> Exchange {
    let mut b = Builder::fast(
        "no_ack_flag",
        "[T-15] Data without the ACK flag are thrown away.",
    );
    b.call(GET, &value());
    b.send(b.next(command(GET)).without_ack());
    b.nothing();
    b.send(b.next(command("DEL hot")).without_ack());
    b.nothing();
    b.call("PING", "+PONG\r\n");
    b.ask("GET hot", &value());
    b.still_works()
}

fn old_timestamp() -> Exchange {
    let mut b = Builder::fast(
        "old_timestamp",
        "[T-15] New bytes with a timestamp from before fail PAWS: an ACK, and nothing is read.",
    );
    b.call(GET, &value());
    b.call("INCR paws-n", ":1\r\n");
    for words in [GET, "DEL hot"] {
        b.send(b.next(command(words)).older(500_000).stray());
        b.expect_bare();
    }
    b.nothing_new();
    b.call("PING", "+PONG\r\n");
    b.ask("GET hot", &value());
    b.ask("DEL paws-n", ":1\r\n");
    b.still_works()
}

fn no_timestamp() -> Exchange {
    let mut b = Builder::fast(
        "no_timestamp",
        "[T-15] A segment without the timestamp that was agreed on is Redis's to answer, not the fast path's.",
    );
    b.call(GET, &value());
    b.counted("FAST_GET", 1);
    b.send(b.next(command(GET)).unstamped());
    b.reply(value());
    b.ack();
    b.counted("FAST_GET", 0);
    b.still_works()
}

fn congestion_marks() -> Exchange {
    let mut b = Builder::fast(
        "congestion_marks",
        "[T-27] CE, ECE and CWR are the kernel's: such requests go up, and the next one is fast.",
    );
    let marked = [
        b.next([]).ecn(3),
        b.next([]).flags(ECE),
        b.next([]).flags(CWR),
        b.next([]).flags(ECE | CWR),
    ];
    for mark in marked {
        let (ecn, flags) = (mark.ecn, mark.flags);
        b.send(b.next(command(GET)).ecn(ecn).flags(flags));
        b.reply(value());
        b.ack();
        b.counted("FAST_GET", 0);
        b.call(GET, &value());
        b.counted("FAST_GET", 1);
    }
    b.still_works()
}

fn connection_without_timestamps() -> Exchange {
    let mut b = Builder::new(
        "connection_without_timestamps",
        "[T-13] Without timestamps the same holds: fast, slow, repeated, reordered.",
    );
    b.hot("hot", "value");
    b.store("plain-n", "0");
    b.connect(Offer {
        timestamps: false,
        ..Offer::USUAL
    });
    b.admit();
    for round in 1..4 {
        let (seq, from) = (b.seq, b.got);
        b.ask_raw(GET, &value());
        b.send(Segment::new(seq, from, command(GET)));
        b.again(from, value());
        b.ack();
        b.call("INCR plain-n", &format!(":{round}\r\n"));
    }
    b.counted("FAST_GET", 3);
    b.still_works()
}

fn newest_timestamp_is_echoed() -> Exchange {
    let mut b = Builder::fast(
        "newest_timestamp_is_echoed",
        "[T-13] Redis's replies echo the newest timestamp, although the kernel has not seen it.",
    );
    b.store("echo-n", "0");
    for round in 1..4 {
        for _ in 0..5 {
            b.call(GET, &value());
        }
        b.ask_raw(GET, &value());
        b.step(crate::exchange::Step::Echo);
        b.ask_raw("INCR echo-n", &format!(":{round}\r\n"));
        b.step(crate::exchange::Step::Echo);
        b.ack();
    }
    b.still_works()
}

fn first_window() -> Exchange {
    let mut b = Builder::new(
        "first_window",
        "[T-16] The window of a SYN-ACK is not scaled; right edges of all later segments follow on it.",
    );
    b.hot("hot", "value");
    for isn in [0, 0x7fff_ffff, 0xffff_fff0] {
        b.connect(Offer {
            isn,
            ..Offer::USUAL
        });
        b.ask_raw("PING", "+PONG\r\n");
        for _ in 0..3 {
            b.ask_raw(GET, &value());
        }
        b.ack();
        b.send(b.bare().flags(RST));
        b.nothing();
    }
    b.end()
}
