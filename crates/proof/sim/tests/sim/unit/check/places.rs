// SPDX-License-Identifier: Apache-2.0 OR MIT
//! On which lists an entry must be.

use erb_abi as abi;
use erb_sim::check::maps::Handler;
use erb_sim::check::places;

fn wanted(conn: &abi::conn) -> Vec<abi::place_list> {
    places::wanted(conn, Handler::Redis)
}

#[test]
fn who_must_be_found_is_wanted_on_a_list() {
    let idle = abi::conn::default();
    assert_eq!(wanted(&idle), [abi::PLACES_USED]);
    let unacked = abi::conn {
        edge: u32::MAX,
        ack_max: 1,
        replay_from: u32::MAX,
        out_delta: 3,
        ..idle
    };
    assert_eq!(wanted(&unacked), [abi::PLACES_USED, abi::PLACES_TIMER]);
    let acked = abi::conn {
        ack_max: 2,
        ..unacked
    };
    assert_eq!(wanted(&acked), [abi::PLACES_USED]);
    let mut held = idle;
    held.h.mark_head = 1;
    assert_eq!(wanted(&held), [abi::PLACES_USED, abi::PLACES_HELD]);
    let fenced = abi::conn {
        flags: abi::CONN_F_FENCE_PROOF as u8,
        ..idle
    };
    assert_eq!(wanted(&fenced), [abi::PLACES_USED, abi::PLACES_HELD]);
}
