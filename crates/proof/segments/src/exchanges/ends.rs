// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SYN, RST and FIN where they do and do not belong.

use crate::builder::{Builder, CHALLENGE_MS, bulk, command, length};
use crate::exchange::{Exchange, FIN, RST, SYN, Segment};

/// GET of the hot key.
const GET: &str = "GET hot";

pub(super) fn exchanges() -> Vec<Exchange> {
    vec![
        syn_on_established(),
        rst_outside(),
        rst_inexact(),
        rst_exact(),
        socket_is_gone(),
        fin_retransmitted_by_the_server(),
        fin_with_get(),
        fin_with_slow(),
        fin_before_its_data(),
        fin_repeated(),
        half_closed_by_client(),
    ]
}

fn value() -> String {
    bulk("value")
}

fn syn_on_established() -> Exchange {
    let mut b = Builder::fast(
        "syn_on_established",
        "[T-6] A stray SYN gets a challenge ACK in the client's numbers and resets no state.",
    );
    b.call(GET, &value());
    for far in [0, 1, 1_000, 100_000_000, -1_000] {
        b.send(Segment::ack(b.seq + far, b.got).flags(SYN).stray());
        b.nothing_new();
        b.call(GET, &value());
        b.send(Segment::ack(b.seq + far, b.got).flags(SYN).without_ack());
        b.nothing_new();
        b.call(GET, &value());
    }
    b.counted("FAST_GET", 11);
    b.still_works()
}

fn rst_outside() -> Exchange {
    let mut b = Builder::fast(
        "rst_outside",
        "[T-6] A blind RST outside the window is ignored.",
    );
    b.call(GET, &value());
    for far in [-1_000, -1, 100_000_000, -100_000_000] {
        b.send(Segment::ack(b.seq + far, b.got).flags(RST).stray());
        b.nothing();
        b.call(GET, &value());
    }
    b.counted("FAST_GET", 5);
    b.still_works()
}

fn rst_inexact() -> Exchange {
    let mut b = Builder::fast(
        "rst_inexact",
        "[T-6] A RST in the window but not at its beginning gets a challenge ACK in the client's numbers.",
    );
    for far in [1, 1_000] {
        b.call(GET, &value());
        b.send(Segment::ack(b.seq + far, b.got).flags(RST).stray());
        b.expect_bare();
        b.pause(CHALLENGE_MS);
    }
    b.call(GET, &value());
    b.counted("FAST_GET", 3);
    b.still_works()
}

fn rst_exact() -> Exchange {
    let mut b = Builder::fast(
        "rst_exact",
        "[T-6] An exact RST with unacknowledged fast bytes ends the connection: the timer sends nothing.",
    );
    b.ask_raw(GET, &value());
    b.send(Segment::ack(b.seq, b.got).flags(RST));
    b.nothing();
    b.nothing();
    b.end()
}

fn socket_is_gone() -> Exchange {
    let mut b = Builder::fast(
        "socket_is_gone",
        "[T-26] Without socket nothing is translated: the kernel's RST has the number of the client's ACK.",
    );
    b.call(GET, &value());
    b.call(GET, &value());
    b.send(b.bare().flags(RST));
    b.nothing();
    b.send(b.next(command(GET)));
    b.step(crate::exchange::Step::Rst(b.got));
    b.send(b.bare());
    b.step(crate::exchange::Step::Rst(b.got));
    b.counted("FAST_GET", 2);
    b.end()
}

fn fin_retransmitted_by_the_server() -> Exchange {
    let mut b = Builder::fast(
        "fin_retransmitted_by_the_server",
        "[T-6] After both FINs the kernel still speaks: its FIN comes again under the same number.",
    );
    b.call(GET, &value());
    b.send(b.bare().flags(FIN));
    b.step(crate::exchange::Step::Fin(b.got, false));
    b.step(crate::exchange::Step::Acked(b.seq));
    // Says nothing new: the FIN is not acknowledged.
    b.send(b.bare());
    b.step(crate::exchange::Step::Fin(b.got, true));
    b.send(Segment::ack(b.seq, b.got + 1));
    b.nothing();
    b.end()
}

fn fin_with_get() -> Exchange {
    let mut b = Builder::fast(
        "fin_with_get",
        "[T-6] A request with FIN is Redis's: answered, then the server closes.",
    );
    b.call(GET, &value());
    b.send(b.next(command(GET)).flags(FIN));
    b.reply(value());
    b.step(crate::exchange::Step::Fin(b.got, false));
    b.step(crate::exchange::Step::Acked(b.seq));
    b.counted("FAST_GET", 1);
    b.send(Segment::ack(b.seq, b.got + 1));
    b.nothing();
    b.end()
}

fn fin_with_slow() -> Exchange {
    let mut b = Builder::fast(
        "fin_with_slow",
        "[T-6] A write with FIN, its ACK below a fast reply, is executed once and answered.",
    );
    b.store("fin-n", "0");
    let from = b.got;
    b.ask_raw(GET, &value());
    b.send(Segment::new(b.seq, from, command("INCR fin-n")).flags(FIN));
    b.reply(":1\r\n");
    b.step(crate::exchange::Step::Fin(b.got, false));
    b.step(crate::exchange::Step::Acked(b.seq));
    b.send(Segment::ack(b.seq, b.got + 1));
    b.ask("GET fin-n", "$1\r\n1\r\n");
    b.nothing();
    b.end()
}

fn fin_before_its_data() -> Exchange {
    let mut b = Builder::fast(
        "fin_before_its_data",
        "[T-4, T-6] A FIN beyond a hole ends nothing before the hole is filled.",
    );
    b.store("fin-m", "0");
    b.call(GET, &value());
    let data = b.next(command("INCR fin-m"));
    let fin = Segment::ack(data.end(), b.got).flags(FIN);
    b.step(crate::exchange::Step::Send(vec![fin.clone().stray()]));
    b.step(crate::exchange::Step::Silence(
        100,
        crate::exchange::Silence::NewBytes,
    ));
    b.send_all(vec![data, fin]);
    b.reply(":1\r\n");
    b.step(crate::exchange::Step::Fin(b.got, false));
    b.step(crate::exchange::Step::Acked(b.seq));
    b.send(Segment::ack(b.seq, b.got + 1));
    b.nothing();
    b.end()
}

fn fin_repeated() -> Exchange {
    let mut b = Builder::fast(
        "fin_repeated",
        "[T-6] A client's FIN that comes again is acknowledged again, in the client's numbers.",
    );
    b.call(GET, &value());
    let fin = b.bare().flags(FIN);
    b.send(fin.clone());
    b.step(crate::exchange::Step::Fin(b.got, false));
    b.step(crate::exchange::Step::Acked(b.seq));
    b.send(fin);
    // FIN of the server is out: its next number is one further.
    b.step(crate::exchange::Step::Bare(b.got + 1, b.seq));
    b.send(Segment::ack(b.seq, b.got + 1));
    b.nothing();
    b.end()
}

fn half_closed_by_client() -> Exchange {
    let mut b = Builder::fast(
        "half_closed_by_client",
        "[T-6] FIN with several requests under way: all that came before it is answered.",
    );
    b.store("half-n", "0");
    let first = b.next(command("INCR half-n"));
    let second = Segment::new(first.end(), b.got, command(GET));
    let third = Segment::new(second.end(), b.got, command("INCR half-n")).flags(FIN);
    b.send_all(vec![first, second, third]);
    b.reply(":1\r\n");
    b.reply(value());
    b.reply(":2\r\n");
    b.step(crate::exchange::Step::Fin(b.got, false));
    b.step(crate::exchange::Step::Acked(b.seq));
    b.send(Segment::ack(b.seq, b.got + length("x")));
    b.nothing();
    b.end()
}
