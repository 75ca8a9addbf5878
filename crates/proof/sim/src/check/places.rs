// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bpf/splice/place.h`: each entry has a place of its own, and is on the lists where it must be found.

use erb_abi::{self as abi, ControlPlane as _};
use erb_sim_kernel::Datapath;

use super::maps::{Broken, Handler, addresses};

/// P1: entries and places belong together, one to one; P2: who needs timer or proof is on its list.
///
/// # Errors
/// The first that is not so.
pub fn check(path: &Datapath, handler: Handler) -> Result<(), Broken> {
    let on = |list| path.places(list, 1, usize::MAX);
    let lists = [abi::PLACES_USED, abi::PLACES_TIMER, abi::PLACES_HELD].map(on);
    let mut error = None;
    let mut entries = 0;
    path.each_conn(|key, conn| {
        entries += 1;
        let owner = path.place_key(conn.place).map(|owner| addresses(&owner));
        let client = addresses(key).0;
        if owner != Some(addresses(key)) {
            let text = format!("place {} is not that of {client}", conn.place);
            error.get_or_insert(("P1", text));
        }
        for list in wanted(conn, handler) {
            if lists[list as usize].binary_search(&conn.place).is_err() {
                let text = format!("place {} of {client} is not on list {list}", conn.place);
                error.get_or_insert(("P2", text));
            }
        }
    });
    let used = lists[abi::PLACES_USED as usize].len();
    if used != entries {
        let text = format!("{used} places are used by {entries} entries");
        error.get_or_insert(("P1", text));
    }
    error.map_or(Ok(()), Err)
}

/// Lists that the entry must be on.
#[must_use]
pub fn wanted(conn: &abi::conn, handler: Handler) -> Vec<abi::place_list> {
    let mut lists = vec![abi::PLACES_USED];
    let past = |a: u32, b: u32| a.wrapping_sub(b) as i32 > 0;
    let end = conn.edge.wrapping_add(conn.out_delta);
    if past(end, conn.ack_max) && past(end, conn.replay_from) {
        lists.push(abi::PLACES_TIMER);
    }
    let shares = abi::CONN_F_FENCE_PROOF | abi::CONN_F_OVERFLOW;
    let marks = handler == Handler::Redis && conn.h.mark_head != conn.h.mark_tail;
    if marks || u32::from(conn.flags) & shares != 0 {
        lists.push(abi::PLACES_HELD);
    }
    lists
}
