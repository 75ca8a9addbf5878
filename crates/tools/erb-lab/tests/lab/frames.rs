// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Single frames through the lab: VLAN tags, order, XDP_TX.

use std::thread;
use std::time::{Duration, Instant};

use erb_lab::packet::{Batch, PacketSocket};
use erb_lab::{netns, xdp_pass};
use libbpf_sys::bpf_insn;

use crate::common::{TestLab, WAIT};

/// Ethernet type for local experiments (IEEE 802.1, 0x88b5): no stack takes it up.
const TYPE_EXPERIMENT: [u8; 2] = [0x88, 0xb5];

fn frame(tag: &[u8], number: u8) -> Vec<u8> {
    let addresses = [0x02, 0xe4, 0xb0, 0, 0, 2, 0x02, 0xe4, 0xb0, 0, 0, 1];
    [&addresses[..], tag, &TYPE_EXPERIMENT[..], &[number; 60][..]].concat()
}

/// Sends `frames` by one socket and collects what another one sees of them, until all are there.
fn carry(from: &PacketSocket, to: &PacketSocket, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    assert_eq!(
        from.send(&slices, 1_000, || thread::sleep(Duration::from_millis(1))),
        0
    );
    let mut batch = Batch::new();
    let mut seen: Vec<Vec<u8>> = Vec::new();
    let end = Instant::now() + WAIT;
    while seen.len() < frames.len() && Instant::now() < end {
        to.receive(&mut batch).unwrap();
        let is_ours = |frame: &&[u8]| frame.windows(2).take(20).any(|two| two == TYPE_EXPERIMENT);
        seen.extend(batch.frames().filter(is_ours).map(<[u8]>::to_vec));
        thread::sleep(Duration::from_millis(1));
    }
    seen
}

fn open(namespace: &str, device: &str) -> PacketSocket {
    netns::run_in(namespace, || PacketSocket::open(device)).unwrap()
}

#[test]
fn frames_arrive_as_sent_with_their_vlan_tags_and_in_order() {
    let test = TestLab::up("v", false);
    let state = test.state();
    let client = open(&state.client.namespace, &state.client.device);
    let server = open(&state.server.namespace, &state.server.device);
    let frames: Vec<Vec<u8>> = (0..100)
        .map(|number| {
            frame(
                if number % 2 == 0 {
                    &[]
                } else {
                    &[0x81, 0, 0x60, 100]
                },
                number,
            )
        })
        .collect();
    assert_eq!(carry(&client, &server, &frames), frames);
    assert_eq!(carry(&server, &client, &frames), frames);
    test.down();
}

/// Sends frames of the experimental type back by XDP_TX, passes all others.
fn bounce() -> Vec<bpf_insn> {
    let instruction = |code: u32, to: u8, from: u8, offset: i16, value: i32| {
        let mut instruction = bpf_insn {
            code: code as u8,
            off: offset,
            imm: value,
            ..Default::default()
        };
        instruction.set_dst_reg(to);
        instruction.set_src_reg(from);
        instruction
    };
    use libbpf_sys::*;
    let seen = i32::from(u16::from_ne_bytes(TYPE_EXPERIMENT));
    vec![
        instruction(BPF_LDX | BPF_MEM | BPF_W, 2, 1, 0, 0), // r2 = ctx->data
        instruction(BPF_LDX | BPF_MEM | BPF_W, 3, 1, 4, 0), // r3 = ctx->data_end
        instruction(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, XDP_PASS as i32),
        instruction(BPF_ALU64 | BPF_MOV | BPF_X, 4, 2, 0, 0),
        instruction(BPF_ALU64 | BPF_ADD | BPF_K, 4, 0, 0, 14),
        instruction(BPF_JMP | BPF_JGT | BPF_X, 4, 3, 3, 0), // shorter than a header: out
        instruction(BPF_LDX | BPF_MEM | BPF_H, 5, 2, 12, 0),
        instruction(BPF_JMP | BPF_JNE | BPF_K, 5, 0, 1, seen), // another type: out
        instruction(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, XDP_TX as i32),
        instruction(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
    ]
}

/// The property that all of ERB stands on: what XDP sends back at the server reaches the client.
#[test]
fn xdp_tx_at_the_server_reaches_the_client() {
    for (name, direct) in [("x", false), ("d", true)] {
        let test = TestLab::up(name, direct);
        let state = test.state();
        xdp_pass::attach_instructions(&state.server.namespace, &state.server.device, &bounce())
            .unwrap();
        let client = open(&state.client.namespace, &state.client.device);
        for round in 0..50 {
            // One at a time: no other traffic may be needed to wake the receiver.
            let frames = [frame(&[], round)];
            assert_eq!(
                carry(&client, &client, &frames),
                frames,
                "direct {direct}, {round}"
            );
        }
        test.down();
    }
}
