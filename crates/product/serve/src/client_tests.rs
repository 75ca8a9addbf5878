// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one turn of a client does, when more than a turn's work waits in the socket.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;

use dax_send::{Options, Sender};
use socket2::SockRef;

use super::*;
use crate::answer::Date;
use crate::counts::Counters;
use crate::files::Files;

/// In the socket before the turn begins.
const WAITING_BYTES: usize = 300_000;
/// A turn's reads, and the bytes that may be left of a head.
const TURN_BYTES: usize = (TURN_ROUNDS + 1) * HEAD_BYTES_MAX;

/// A client whose socket has received all of these bytes, what it needs, and its other end.
fn received(bytes: &[u8]) -> (Client, Shop, TcpStream) {
    let root = tempfile::tempdir().expect("a folder");
    let root = std::fs::File::open(root.path()).expect("open");
    let options = Options {
        copy_bytes_max: Some(4096),
        ..Options::default()
    };
    let deadline = options.deadline;
    let listener = TcpListener::bind("127.0.0.1:0").expect("lo");
    SockRef::from(&listener)
        .set_recv_buffer_size(2 * WAITING_BYTES)
        .expect("an option");
    let mut peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (stream, _) = listener.accept().expect("accepted");
    peer.write_all(bytes).expect("written");
    let mut seen = vec![0; bytes.len()];
    erb_steady::wait_until(std::time::Duration::from_secs(30), "all has come", || {
        stream.peek(&mut seen).expect("open") == bytes.len()
    });
    let taken = Arc::default();
    let place = Place::take(&taken, 1).expect("the only one");
    let connection = Sender::new(options).connection(stream).expect("a socket");
    let shop = Shop {
        files: Files::new(Arc::new(root), 1),
        date: Date::default(),
        counters: Arc::new(Counters::default()),
        index: "index.html".to_owned(),
        deadline,
        lease_time: deadline,
        stands_still: deadline,
    };
    (Client::new(connection, place, Instant::now()), shop, peer)
}

fn left_bytes(client: &Client) -> usize {
    client
        .stream()
        .peek(&mut vec![0; WAITING_BYTES])
        .unwrap_or_default()
}

#[test]
fn a_turn_answers_so_many_requests_and_leaves_the_rest() {
    let request = format!(
        "HEAD / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n",
        "x".repeat(950)
    );
    let asked = WAITING_BYTES / request.len();
    let (mut client, mut shop, _peer) = received(&request.repeat(asked).into_bytes());
    assert_eq!(client.turn(&mut shop, Instant::now()), Next::Again);
    assert!(left_bytes(&client) >= WAITING_BYTES - TURN_BYTES - request.len());
    let mut turns = 1;
    while client.turn(&mut shop, Instant::now()) == Next::Again {
        turns += 1;
    }
    assert!(turns >= WAITING_BYTES / TURN_BYTES, "{turns}");
    assert_eq!(left_bytes(&client), 0);
}

#[test]
fn a_turn_drops_so_much_behind_the_end_and_leaves_the_rest() {
    let mut bytes = b"POST / HTTP/1.1\r\n\r\n".to_vec();
    bytes.resize(WAITING_BYTES, b'x');
    let (mut client, mut shop, _peer) = received(&bytes);
    let mut turns = 1;
    while client.turn(&mut shop, Instant::now()) == Next::Again {
        turns += 1;
    }
    assert!(turns >= WAITING_BYTES / TURN_BYTES, "{turns}");
    assert_eq!(left_bytes(&client), 0);
}
