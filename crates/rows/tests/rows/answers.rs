//! What XDP answers.

use erb_rows::row::{Expect, Program, Row, check};
use erb_rows::scene::{Scene, Shape, V4, V4_NO_TS, V4_VLAN, V6, V6_NO_TS, V6_VLAN};

const EVERY_SHAPE: [Shape; 6] = [V4, V4_NO_TS, V4_VLAN, V6, V6_NO_TS, V6_VLAN];

fn fast(scene: &mut Scene) {
    scene.bench.fill(b"key", b"value", 0);
    scene.make_fast();
}

#[test]
fn get_and_ping() {
    let mut rows = Vec::new();
    for shape in EVERY_SHAPE {
        rows.push(Row {
            name: "GET hit",
            shape,
            before: fast,
            packet: |scene| scene.segment(b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n"),
            program: Program::Xdp,
            expect: Expect::Answer(b"$5\r\nvalue\r\n".to_vec()),
            moved: &[("FAST_PACKET", 1), ("FAST_GET", 1)],
        });
    }
    check(rows);
}
