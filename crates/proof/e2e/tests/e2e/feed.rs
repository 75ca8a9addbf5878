// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Redis reports comes gathered, and no other connection is changed by that.

use std::net::{SocketAddr, TcpListener, TcpStream};

use erb_datapath::Nagle;
use erb_e2e::lab::TestLab;
use erb_lab::End;

/// Writes, each in a turn of Redis's loop of its own.
const WRITES: u64 = 5_000;

/// Segments with payload that Redis has sent on the feed's connection.
fn segments_of_the_feed(lab: &TestLab) -> u64 {
    let address = lab.address().ip().to_string();
    let port = format!("sport = :{}", lab.address().port());
    let own = ["ss", "-tinH", "src", &address, "dst", &address, &port];
    let text = lab.exec(End::Server, &own);
    let mut counts = text
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("data_segs_out:")?.parse().ok());
    let count = counts.next().expect("the feed");
    assert_eq!(counts.next(), None, "one feed: {text}");
    count
}

#[test]
fn many_writes_are_reported_in_few_segments() {
    let lab = TestLab::boosted("gathered");
    let mut client = lab.client();
    client.call(&["SET", "read", "v"]).expect("SET");
    lab.heat(&mut client, "read");
    let before = segments_of_the_feed(&lab);
    for number in 0..WRITES {
        let reply = client.call(&["INCR", "written"]).expect("INCR");
        assert_eq!(reply, format!(":{}\r\n", number + 1).as_bytes());
    }
    let segments = segments_of_the_feed(&lab) - before;
    assert!(segments < WRITES / 2, "{segments} of {WRITES} reports");
    lab.assert_fast(&mut client, "read", "what was not written is still there");
    lab.assert_settled();
}

/// A connection, its other end, and whether that end sends at once.
fn connection(listener: &TcpListener, to: SocketAddr) -> (TcpStream, TcpStream) {
    let own = TcpStream::connect(to).expect("a connection");
    let (other, _) = listener.accept().expect("its other end");
    for end in [&own, &other] {
        end.set_nodelay(true).expect("as Redis does");
    }
    (own, other)
}

#[test]
fn only_the_other_end_of_one_connection_gathers() {
    let lab = TestLab::up("nagle", &[]);
    lab.inside(End::Server, || {
        let nagle = Nagle::load().expect("the iterator");
        for (listens, reached) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("[::1]:0", "[::1]"),
            ("[::]:0", "127.0.0.1"),
        ] {
            let listener = TcpListener::bind(listens).expect(listens);
            let port = listener.local_addr().expect("bound").port();
            let to: SocketAddr = format!("{reached}:{port}").parse().expect("an address");
            let pairs: Vec<_> = (0..20).map(|_| connection(&listener, to)).collect();
            let (own, gathers) = &pairs[7];
            let peer = own.local_addr().expect("connected");
            let done = nagle.turn_on(to, peer).expect("the sockets are listed");
            assert!(done, "{listens}");
            assert!(!gathers.nodelay().expect("asked"), "{listens}");
            for (number, (own, other)) in pairs.iter().enumerate() {
                assert!(own.nodelay().expect("asked"), "{listens}: own {number}");
                assert_eq!(other.nodelay().expect("asked"), number != 7, "{listens}");
            }
            let nobody = SocketAddr::new(peer.ip(), port);
            assert!(!nagle.turn_on(to, nobody).expect("listed"), "{listens}");
        }
    });
}
