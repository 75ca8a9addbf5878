// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the ring of a connection cannot hold is held by a share of the fence, foreseen before the commit
//! (bpf/redis/effects.h, U2).

use erb_abi as abi;
use erb_packets::row::{Expect, Row, check};
use erb_packets::scene::{Scene, V4};

use crate::fast;

/// So many writes of as many keys as are marked.
fn many_keys(commands: usize) -> Vec<u8> {
    let keys = abi::KEYS_MARKED_MAX as usize;
    let mut words: Vec<&[u8]> = vec![b"MSET"];
    words.resize(1 + 2 * keys, b"k");
    erb_wire::resp::command(&words).repeat(commands)
}

/// A write that takes two packets.
fn long() -> Vec<u8> {
    erb_wire::resp::command(&[b"SET", b"k", &[b'x'; 1500]])
}

fn full(scene: &mut Scene) {
    fast(scene);
    let marks = scene.segment(&many_keys(2));
    scene.up(&marks);
    let entry = scene.entry().expect("tracked");
    assert_eq!(entry.h.mark_head - entry.h.mark_tail, abi::MARKS_IN_FLIGHT);
}

#[test]
fn a_share_stands_for_what_the_ring_cannot_hold() {
    check(vec![
        Row::xdp(
            "more marks than the ring holds",
            V4,
            fast,
            |s| s.segment(&many_keys(3)),
            Expect::Same,
            &[
                ("REFUSE_COMMAND", 1),
                ("MARK_TAKEN", 64),
                ("FENCE_TAKEN", 1),
                ("MARK_RELEASED", 64),
                ("UP_TRANSLATED", 1),
            ],
        ),
        Row::xdp(
            "as many as it holds",
            V4,
            fast,
            |s| s.segment(&many_keys(2)),
            Expect::Same,
            &[
                ("REFUSE_COMMAND", 1),
                ("MARK_TAKEN", 64),
                ("UP_TRANSLATED", 1),
            ],
        ),
        Row::xdp(
            "one more, when it is full",
            V4,
            full,
            |s| s.segment(crate::SET_OTHER),
            Expect::Same,
            &[
                ("REFUSE_COMMAND", 1),
                ("MARK_TAKEN", 1),
                ("FENCE_TAKEN", 1),
                ("MARK_RELEASED", 1),
                ("UP_TRANSLATED", 1),
            ],
        ),
        Row::xdp(
            "the first bytes of a write, when it is full, close nothing",
            V4,
            full,
            |s| s.segment(&long()[..1000]),
            Expect::Same,
            &[("REFUSE_COMMAND", 1), ("UP_TRANSLATED", 1)],
        ),
        Row::xdp(
            "its last ones take a share for the write, and one for what the ring lacks",
            V4,
            |s| {
                full(s);
                let first = s.segment(&long()[..1000]);
                s.up(&first);
            },
            |s| s.segment(&long()[1000..]),
            Expect::Same,
            &[
                ("FENCE_TAKEN", 2),
                ("FENCE_RELEASED", 1),
                ("UP_TRANSLATED", 1),
            ],
        ),
    ]);
}
