// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is not seen is counted.

use std::net::SocketAddr;

use erb_abi as abi;

use super::Bench;
use crate::outside::{TcpPair, Traffic};

#[test]
fn connections_without_room_are_counted() {
    let mut bench = Bench::serving();
    let from = |last: u8, port: u16| TcpPair {
        client: SocketAddr::from(([10, 0, 0, last], port)),
        server: SocketAddr::from(([10, 0, 0, 1], 6379)),
    };
    let key = |pair: &TcpPair| crate::client_list::key_of(pair.client, pair.server);
    let open = [
        (from(2, 1), Traffic::Heard),
        (from(2, 2), Traffic::Heard),
        (from(2, 3), Traffic::Heard),
        (from(2, 4), Traffic::Silent),
        (from(3, 5), Traffic::Heard),
        // Older than ERB, and has said nothing since.
        (from(3, 6), Traffic::Heard),
    ];
    bench.core.machine.open.borrow_mut().extend(open);
    bench.core.path.track(&abi::conn {
        key: key(&open[0].0),
        ..abi::conn::default()
    });
    for (pair, _) in &open[1..5] {
        bench.core.path.pass_unseen(&key(pair));
    }
    bench.pass(1_100, true);
    assert_eq!(bench.core.unseen().count, 0, "nobody was refused");
    let stat = abi::STAT_CONN_SHARE_FULL;
    bench.core.path.stats.borrow_mut().insert(stat, 1);
    bench.pass(1_100, true);
    let found = bench.core.unseen();
    assert_eq!(found.count, 3);
    let most = crate::UnseenClient {
        address: [10, 0, 0, 2].into(),
        unseen: 2,
        seen: 1,
    };
    assert_eq!(found.most, Some(most));
    bench.core.machine.open.borrow_mut().clear();
    bench.pass(1_100, true);
    assert_eq!(bench.core.unseen(), crate::UnseenConnections::default());
}
