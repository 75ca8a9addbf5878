// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams of more bytes than sequence numbers can tell apart, between two fast answers and before
//! the first: numbers that stood still must not be taken for newer ones (T8).

use std::panic::{AssertUnwindSafe, catch_unwind};

use erb_sim_kernel::{DatapathConfig, Library, Tc, Xdp};
use erb_wire::layout::payload;

use crate::mutants::mutant;
use erb_sim_kernel::scene::{Scene, command, get};

/// Payload of one packet, as segmentation offload makes it.
const BODY: usize = 60_000;
/// Commands in a packet.
const PIPELINE: usize = 32;
/// More than half of all sequence numbers.
const FAR: u64 = (1 << 31) + (1 << 27);

fn ping(scene: &mut Scene) -> Xdp {
    let (verdict, packet) = scene.send(&command(&[b"PING"]));
    if verdict == Xdp::Tx {
        assert_eq!(payload(packet.bytes()), b"+PONG\r\n");
        scene.ack = scene.ack.wrapping_add(7);
    }
    verdict
}

/// Sequence and acknowledgement number of a packet without VLAN tag and IP options.
fn numbers(bytes: &[u8]) -> (u32, u32) {
    let at = |from: usize| u32::from_be_bytes(bytes[from..from + 4].try_into().unwrap());
    (at(38), at(42))
}

/// A command goes up, with the numbers that the kernel expects, and is replied to; then the client
/// acknowledges that.
fn round(scene: &mut Scene, request: &[u8], reply: &[u8]) {
    let mut kernel = (0, 0);
    scene.sock(|sock| kernel = (sock.rcv_nxt, sock.write_seq));
    let (verdict, packet) = scene.send(request);
    assert_eq!(verdict, Xdp::Pass);
    assert_eq!(numbers(packet.bytes()), kernel);
    assert_eq!(scene.served(request.len(), reply).0, Tc::Next);
    scene.settle();
    scene.sock(|sock| {
        sock.rcv_wup = sock.rcv_nxt;
        kernel = (sock.rcv_nxt, sock.write_seq);
    });
    let (verdict, packet) = scene.send(b"");
    if verdict == Xdp::Pass {
        assert_eq!(numbers(packet.bytes()), kernel);
    }
}

fn bulk() -> Vec<u8> {
    let mut reply = format!("${BODY}\r\n").into_bytes();
    reply.resize(reply.len() + BODY, b'x');
    reply.extend(b"\r\n");
    reply
}

fn replies(scene: &mut Scene) {
    let reply = bulk();
    for _ in 0..FAR / BODY as u64 {
        round(scene, &get(b"large"), &reply);
    }
}

fn requests(scene: &mut Scene) {
    let request = command(&[b"SET", b"large", &[b'x'; BODY]]);
    for _ in 0..FAR / BODY as u64 {
        round(scene, &request, b"+OK\r\n");
    }
}

fn scene(library: &Library) -> Scene {
    let mut scene = Scene::on(library, DatapathConfig::default());
    scene.warm();
    scene
}

/// Answered before and behind.
fn spliced(library: &Library, way: fn(&mut Scene)) {
    let mut scene = scene(library);
    assert_eq!(ping(&mut scene), Xdp::Tx);
    way(&mut scene);
    assert_eq!(ping(&mut scene), Xdp::Tx);
    let conn = scene.conn();
    assert!(conn.in_delta > 0 && conn.out_delta > 0);
}

#[test]
fn gigabytes_before_the_first_answer() {
    let mut scene = scene(&Library::builtin());
    replies(&mut scene);
    assert_eq!(ping(&mut scene), Xdp::Tx);
}

#[test]
fn gigabytes_of_replies_between_two_answers() {
    spliced(&Library::builtin(), replies);
}

#[test]
fn gigabytes_of_requests_between_two_answers() {
    spliced(&Library::builtin(), requests);
}

/// Replies to one pipeline, acknowledged at once: no packet of the client shows the way there.
#[test]
fn gigabytes_without_a_packet_of_the_client() {
    let mut scene = scene(&Library::builtin());
    scene.sock(|sock| sock.rcv_wnd = 1 << 29);
    let (request, reply) = (get(b"large"), bulk());
    let pipeline = request.repeat(PIPELINE);
    let pipelines = FAR as usize / BODY / PIPELINE;
    for _ in 0..pipelines {
        assert_eq!(scene.send(&pipeline).0, Xdp::Pass);
    }
    for _ in 0..pipelines * PIPELINE {
        assert_eq!(scene.served(request.len(), &reply).0, Tc::Next);
    }
    scene.settle();
    round(&mut scene, &get(b"small"), b"$-1\r\n");
    assert_eq!(ping(&mut scene), Xdp::Tx);
}

fn is_caught(find: &str, replace: &str, way: fn(&mut Scene)) {
    let library = mutant("splice/splice.h", find, replace);
    let run = AssertUnwindSafe(|| spliced(&library, way));
    assert!(catch_unwind(run).is_err(), "{find}");
}

#[test]
fn numbers_that_stand_still_are_caught() {
    if !erb_steady::long() {
        erb_steady::left("sim-kernel: two deliberate mistakes that gigabytes show");
        return;
    }
    is_caught("acked >= FAR_BYTES", "0", replies);
    is_caught("got - conn->in_edge >= FAR_BYTES", "0", requests);
}
