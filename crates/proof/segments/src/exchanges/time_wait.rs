// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that the server closes first, and their address pair afterwards.

use crate::builder::{Builder, bulk, command};
use crate::exchange::{Exchange, FIN, Offer, Segment, Step};

/// GET of the hot key.
const GET: &str = "GET hot";
/// Value whose reply is as long as its request.
const BIG_BYTES: usize = 16;
/// Such requests in one segment, and segments that move the server's numbers by more than 2^16.
const MANY: (usize, usize) = (60, 48);

pub(super) fn exchanges() -> Vec<Exchange> {
    vec![
        old_fin_in_time_wait(),
        reuse_with_timestamps(),
        reuse_without_timestamps_far(),
        old_data_in_time_wait(),
    ]
}

/// QUIT, both FINs, the last ACK: the server is in TIME_WAIT.
fn close_by_quit(b: &mut Builder) {
    b.ask_raw("QUIT", "+OK\r\n");
    b.step(Step::Fin(b.got, false));
    b.got += 1;
    b.send(b.bare().flags(FIN));
    b.step(Step::Acked(b.seq));
}

fn old_fin_in_time_wait() -> Exchange {
    let mut b = Builder::fast(
        "old_fin_in_time_wait",
        "[T-6] TIME_WAIT answers an old FIN: with the deltas of the connection it was.",
    );
    b.call(GET, &bulk("value"));
    close_by_quit(&mut b);
    b.send(Segment::ack(b.seq - 1, b.got).flags(FIN));
    b.expect_bare();
    b.end()
}

fn old_data_in_time_wait() -> Exchange {
    let mut b = Builder::fast(
        "old_data_in_time_wait",
        "[T-6, T-7] A request that comes after the end is not answered by the fast path.",
    );
    let seq = b.seq;
    b.call(GET, &bulk("value"));
    let got = b.got;
    close_by_quit(&mut b);
    b.send(Segment::new(seq, got, command(GET)).older(10));
    b.step(Step::Copies(got, 200, 0));
    b.counted("FAST_GET", 1);
    b.end()
}

fn reuse_with_timestamps() -> Exchange {
    let mut b = Builder::fast(
        "reuse_with_timestamps",
        "[T-30] The address pair is used again out of TIME_WAIT: the numbers of the next are its own.",
    );
    for _ in 0..3 {
        b.call(GET, &bulk("value"));
    }
    close_by_quit(&mut b);
    b.connect(Offer {
        isn: 0x0010_0000,
        ..Offer::USUAL
    });
    b.call("PING", "+PONG\r\n");
    b.call(GET, &bulk("value"));
    b.counted("FAST_GET", 1);
    b.still_works()
}

fn reuse_without_timestamps_far() -> Exchange {
    let mut b = Builder::new(
        "reuse_without_timestamps_far",
        "[T-30] Without PAWS, and far from the kernel's numbers, the pair is not used again before TIME_WAIT is over.",
    );
    let big = "b".repeat(BIG_BYTES);
    b.hot("big", &big);
    b.hot("hot", "value");
    let offer = Offer {
        timestamps: false,
        ..Offer::USUAL
    };
    b.connect(offer);
    b.admit();
    for _ in 0..MANY.1 {
        b.send(b.next(command("GET big").repeat(MANY.0)));
        b.reply(bulk(&big).repeat(MANY.0));
        b.ack();
    }
    b.counted("FAST_GET", (MANY.0 * MANY.1) as u64);
    close_by_quit(&mut b);
    b.step(Step::ConnectInVain(
        Offer {
            isn: 0x0010_0000,
            ..offer
        },
        300,
    ));
    b.counted("DROP_SYN_TIME_WAIT", 1);
    b.end()
}
