// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Write-through: what a SET says waits in the cache for its reply, and is answered from then on.

use std::thread::sleep;
use std::time::Duration;

use erb_abi::{self as abi, ControlPlane as _};
use erb_packets::frame::Segment;
use erb_packets::row::{Expect, Program, Row, check};
use erb_packets::scene::{Scene, Shape, V4, V4_NO_TS, V4_VLAN, V6};

use crate::{bulk, get};

const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$7\r\nthrough\r\n$5\r\nvalue\r\n";
const UP: Moved = &[
    ("REFUSE_COMMAND", 1),
    ("MARK_TAKEN", 1),
    ("CACHE_INVALIDATED", 1),
    ("UP_TRANSLATED", 1),
];

type Moved = &'static [(&'static str, u64)];

/// The key is cached, and what a SET says is believed.
fn cached(scene: &mut Scene) {
    scene.bench.dp.clear().expect("erb_clear"); // of what an earlier row's SET said
    scene.bench.fill(b"through", b"old", 0);
    scene.make_fast();
    scene.bench.dp.control().set_write_through(1);
}

fn on_its_way(scene: &mut Scene) {
    cached(scene);
    scene.request(SET);
}

fn answered(scene: &mut Scene, reply: &[u8]) {
    on_its_way(scene);
    scene.reply(reply);
    scene.acknowledge();
}

fn reply(name: &'static str, shape: Shape, text: &'static [u8], moved: Moved) -> Row {
    let packet = move |scene: &mut Scene| -> Segment { scene.reply_segment(scene.rcv, text) };
    Row::xdp(name, shape, on_its_way, packet, Expect::Ignored, moved).on(Program::Egress)
}

fn read(
    name: &'static str,
    shape: Shape,
    before: impl Fn(&mut Scene) + Send + 'static,
    expect: Expect,
    moved: Moved,
) -> Row {
    let packet = |scene: &mut Scene| scene.segment(&get("through"));
    Row::xdp(name, shape, before, packet, expect, moved)
}

#[test]
fn what_a_set_says_is_answered_from_its_reply_on() {
    let fast: Moved = &[("FAST_PACKET", 1), ("FAST_GET", 1)];
    let value = || Expect::Answer(bulk(b"value"));
    let rows = [V4, V4_NO_TS, V4_VLAN, V6].into_iter().flat_map(|shape| {
        let set = |scene: &mut Scene| scene.segment(SET);
        let shown: Moved = &[
            ("EGRESS_PLAIN", 1),
            ("MARK_RELEASED", 1),
            ("CACHE_WRITTEN", 1),
        ];
        let reported = |scene: &mut Scene| {
            answered(scene, b"+OK\r\n");
            let dp = &scene.bench.dp;
            dp.invalidate(&[b"through"]).expect("erb_invalidate");
        };
        [
            Row::xdp("SET goes up", shape, cached, set, Expect::Same, UP),
            reply("OK shows its value", shape, b"+OK\r\n", shown),
            read(
                "and it is read",
                shape,
                |scene| answered(scene, b"+OK\r\n"),
                value(),
                fast,
            ),
            read("behind its report too", shape, reported, value(), fast),
        ]
    });
    check(rows.collect());
}

#[test]
fn what_redis_refuses_or_is_over_is_not_answered() {
    let missed: Moved = &[("REFUSE_MISS", 1), ("UP_TRANSLATED", 1)];
    let over = |scene: &mut Scene| {
        answered(scene, b"+OK\r\n");
        sleep(Duration::from_nanos(abi::WRITTEN_NS.into()) + Duration::from_millis(20));
    };
    let cleared = |scene: &mut Scene| {
        answered(scene, b"+OK\r\n");
        scene.bench.dp.clear().expect("erb_clear");
    };
    let unwanted = |scene: &mut Scene| {
        cached(scene);
        scene.bench.dp.control().set_write_through(0);
        scene.request(SET);
        scene.reply(b"+OK\r\n");
        scene.acknowledge();
    };
    let refused = |scene: &mut Scene| answered(scene, b"-OOM\r\n");
    let moved: Moved = &[("EGRESS_PLAIN", 1), ("MARK_RELEASED", 1)];
    check(vec![
        reply("refused", V4, b"-OOM\r\n", moved),
        reply("another's word", V4, b"+QUEUED\r\n", moved),
        read("refused", V4, refused, Expect::Same, missed),
        read("the cache was emptied", V4, cleared, Expect::Same, missed),
        read("nobody wants it", V4, unwanted, Expect::Same, missed),
        read(
            "it is over",
            V4,
            over,
            Expect::Same,
            &[("REFUSE_EXPIRED", 1), ("UP_TRANSLATED", 1)],
        ),
    ]);
}
