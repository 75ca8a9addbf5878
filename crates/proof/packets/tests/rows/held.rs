// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is held while no reply says that a command has run: whom Redis refuses (bpf/redis/modes.h, M5), and
//! what a list proves of who does not read (bpf/splice/table.h).

use std::collections::BTreeMap;

use erb_abi::{self as abi, ControlPlane as _};
use erb_packets::fixture::{self, Bench};
use erb_packets::row::moved;
use erb_packets::scene::{Scene, V4, patient};

use crate::{SET_KEY, fast};

const UNKNOWN: &[u8] = b"*2\r\n$13\r\nNOSUCHCOMMAND\r\n$1\r\nk\r\n";

/// A first payload under access rules by which nobody may do anything without a password.
fn stranger(bench: &mut Bench) -> Scene<'_> {
    let control = bench.dp.control();
    control.set_open(abi::DOOR_SHUT);
    control.set_rights(control.rights() + 1);
    Scene::connect(bench, V4)
}

/// Whether the cache was emptied when Redis answered an unknown command like this.
fn empties(scene: &mut Scene, reply: &[u8]) -> bool {
    let epoch = scene.bench.dp.control().cache_epoch();
    scene.request(UNKNOWN);
    scene.reply(reply);
    scene.acknowledge();
    scene.bench.settle();
    assert_eq!(
        scene.bench.dp.control().fence(),
        0,
        "{}",
        String::from_utf8_lossy(reply)
    );
    scene.bench.dp.control().cache_epoch() != epoch
}

#[test]
fn what_redis_refuses_without_a_password_keeps_the_cache() {
    fixture::with(|bench| {
        let mut scene = stranger(bench);
        for reply in [
            &b"-NOAUTH Authentication required.\r\n"[..],
            b"-ERR unknown command 'NOSUCHCOMMAND', with args beginning with: 'k' \r\n",
            b"-ERR wrong number of arguments for 'x' command\r\n",
            b"-WRONGPASS invalid username-password pair or user is disabled.\r\n",
            b"-ERR DEBUG command not allowed.\r\n",
        ] {
            assert!(
                !empties(&mut scene, reply),
                "{}",
                String::from_utf8_lossy(reply)
            );
        }
        assert!(empties(&mut scene, b"-ERR a module's\r\n"));
        assert!(
            empties(&mut scene, b"-NOAUTH Authentication required.\r\n"),
            "who was let in once may have run anything"
        );
        scene.bench.open_for_service();
    });
}

#[test]
fn under_other_access_rules_a_refusal_proves_nothing() {
    fixture::with(|bench| {
        let mut scene = stranger(bench);
        assert!(!empties(&mut scene, b"-NOAUTH x\r\n"));
        let control = scene.bench.dp.control();
        control.set_rights(control.rights() + 1);
        assert!(empties(&mut scene, b"-NOAUTH x\r\n"));
    });
    fixture::with(|bench| {
        let mut scene = stranger(bench);
        assert!(!empties(&mut scene, b"-NOAUTH x\r\n"));
        scene.bench.dp.control().set_open(abi::DOOR_UNKNOWN);
        assert!(empties(&mut scene, b"-NOAUTH x\r\n"));
        scene.bench.open_for_service();
    });
}

/// The sweep's row for a connection whose reply does not come.
fn unanswered(scene: &Scene) -> abi::sweep_row {
    patient("the sweep says that proof may come", || {
        let report = scene.bench.dp.walk().expect("erb_sweep");
        let row = report.rows.iter().find(|row| {
            row.key.client_port_be == scene.port.to_be() && row.flags & abi::SWEEP_F_COUNTED != 0
        });
        row.copied()
    })
}

fn released(scene: &Scene, row: &abi::sweep_row) -> (bool, BTreeMap<&'static str, u64>) {
    let before = scene.bench.stats();
    let done = scene.bench.dp.release(row, false).expect("erb_release");
    (done, moved(&before, &scene.bench.stats()))
}

#[test]
fn what_a_list_shows_to_have_run_is_released_and_no_more() {
    fixture::with(|bench| {
        let mut scene = Scene::connect(bench, V4);
        fast(&mut scene);
        let set = scene.segment(SET_KEY);
        scene.up(&set);
        scene.read_request(SET_KEY);
        let row = unanswered(&scene);
        assert_eq!(row.flags & abi::SWEEP_F_HALF, 0);
        let later = abi::sweep_row {
            requests: row.requests + 1,
            ..row
        };
        assert!(!released(&scene, &later).0, "so many were never sent");
        let earlier = abi::sweep_row {
            requests: row.requests - 1,
            ..row
        };
        let (_, counted) = released(&scene, &earlier);
        assert_eq!(counted.get("MARK_RELEASED"), None, "{counted:?}");
        let set = scene.segment(SET_KEY);
        scene.up(&set);
        let (done, counted) = released(&scene, &row);
        assert!(done);
        assert_eq!(counted.get("MARK_RELEASED"), Some(&1), "{counted:?}");
        scene.read_request(SET_KEY);
        let (_, counted) = released(&scene, &unanswered(&scene));
        assert_eq!(counted.get("MARK_RELEASED"), Some(&1), "{counted:?}");
    });
}

#[test]
fn half_a_command_is_told_behind_what_waits() {
    fixture::with(|bench| {
        for half in [
            &SET_KEY[..20],
            &b"*3\r\n$4\r\nHGET\r\n$1\r\nh\r\n$9\r\nfie"[..],
        ] {
            let mut scene = Scene::connect(bench, V4);
            fast(&mut scene);
            for bytes in [SET_KEY, half] {
                let segment = scene.segment(bytes);
                scene.up(&segment);
                scene.read_request(bytes);
            }
            let row = unanswered(&scene);
            assert_ne!(
                row.flags & abi::SWEEP_F_HALF,
                0,
                "{}",
                String::from_utf8_lossy(half)
            );
            assert!(released(&scene, &row).0);
        }
    });
}
