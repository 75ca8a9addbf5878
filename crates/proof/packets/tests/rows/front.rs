// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The front program before Redis's handler, with the echo handler on another port of the device.

use std::os::fd::AsFd as _;

use erb_datapath::Front;
use erb_packets::fixture::{self, Neighbour, Objects};
use erb_packets::frame::{Family, PORT};
use erb_packets::row::moved;
use erb_packets::run::run_xdp;
use erb_packets::scene::{Scene, Shape, V4, V4_VLAN, V6, XDP_DROP, XDP_PASS, XDP_TX};

use crate::{GET_KEY, spliced};

/// Of the echo server, which need not run: its program says that it has met the packet.
const ECHO_PORT: u16 = 7007;

/// The frame with another destination port.
fn to_port(frame: &[u8], shape: Shape, port: u16) -> Vec<u8> {
    let ip = if shape.family == Family::V4 { 20 } else { 40 };
    let at = 14 + shape.vlan.map_or(0, |_| 4) + ip + 2;
    let mut frame = frame.to_vec();
    frame[at..at + 2].copy_from_slice(&port.to_be_bytes());
    frame
}

#[test]
fn each_port_has_its_handler() {
    fixture::with(|bench| {
        let objects = Objects::from_folder(erb_echo::objects()).expect("the echo handler");
        let echo = Neighbour::load(bench, &objects, ECHO_PORT);
        let front = Front::load().expect("the front");
        let program = front.program().try_clone_to_owned().expect("a descriptor");
        for shape in [V4, V6, V4_VLAN] {
            let mut scene = Scene::connect(bench, shape);
            spliced(&mut scene);
            let get = scene.segment(GET_KEY);
            let run =
                |frame: &[u8], ifindex| run_xdp(&program, frame, ifindex).expect("the front runs");
            let ifindex = scene.bench.ifindex;
            if shape == V4 {
                assert_eq!(
                    run(&get.bytes(), ifindex).verdict,
                    XDP_PASS,
                    "nobody has a port yet"
                );
                let redis = scene.bench.programs.xdp.as_fd();
                front.add(0, PORT, redis).expect("Redis's slot");
                front
                    .add(7, ECHO_PORT, echo.xdp.as_fd())
                    .expect("echo's slot");
            }
            let outcome = run(&get.bytes(), ifindex);
            assert_eq!(
                outcome.verdict, XDP_TX,
                "{shape:?}: Redis's handler answers"
            );
            scene.snd = get.seq.wrapping_add(get.payload.len() as u32);
            assert_eq!(scene.take_answer(&outcome), b"$5\r\nvalue\r\n");
            // The same segment to the other port is the other's, and nobody else's. Its sum is wrong now.
            let before = (scene.bench.stats(), echo.dp.stats().expect("stats"));
            let other = to_port(&get.bytes(), shape, ECHO_PORT);
            assert_eq!(run(&other, ifindex).verdict, XDP_DROP);
            let counted = moved(&before.1, &echo.dp.stats().expect("stats"));
            assert_eq!(
                counted.get("DROP_CHECKSUM"),
                Some(&1),
                "{shape:?}: {counted:?}"
            );
            let nobodys = to_port(&get.bytes(), shape, ECHO_PORT + 1);
            assert_eq!(run(&nobodys, ifindex).verdict, XDP_PASS);
            assert!(
                moved(&before.0, &scene.bench.stats()).is_empty(),
                "{shape:?}"
            );
            let counted = moved(&before.1, &echo.dp.stats().expect("stats"));
            assert_eq!(counted.len(), 1, "{shape:?}: {counted:?}");
        }
    });
}

#[test]
fn a_slot_that_is_none_is_refused() {
    fixture::with(|bench| {
        let front = Front::load().expect("the front");
        let program = bench.programs.xdp.as_fd();
        assert!(
            front.add(8, PORT, program).is_err(),
            "there are eight slots"
        );
        let egress = bench.programs.egress.as_fd();
        assert!(front.add(0, PORT, egress).is_err(), "no XDP program");
    });
}
