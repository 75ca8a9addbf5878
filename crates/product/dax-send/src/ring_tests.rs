// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ring alone, over `lo`: two completions for a send, short ones and failures, sockets that are closed.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use super::*;

/// A ring, or none where the kernel has none to give.
fn ring() -> Option<Arc<Ring>> {
    match Ring::new() {
        Ok(ring) => Some(ring),
        Err(error) => {
            let known = [ErrorKind::Unsupported, ErrorKind::PermissionDenied];
            assert!(known.contains(&error.kind()), "{error}");
            erb_steady::skipped(format_args!("no ring here: {error}"));
            None
        }
    }
}

/// A connection to a peer that takes little.
fn pair(ring: &Arc<Ring>) -> (RingSocket, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("lo");
    let peer = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let peer = peer.expect("a socket");
    peer.set_recv_buffer_size(32 << 10).expect("an option");
    peer.connect(&listener.local_addr().expect("bound").into())
        .expect("connected");
    let (stream, _) = listener.accept().expect("accepted");
    stream.set_nonblocking(true).expect("an option");
    (
        RingSocket::new(Socket::new(stream), Arc::clone(ring)),
        peer.into(),
    )
}

fn until(what: &str, holds: impl FnMut() -> bool) {
    erb_steady::wait_until(Duration::from_secs(30), what, holds);
}

static BYTES: [u8; 1 << 20] = [7; 1 << 20];

#[test]
fn a_send_is_short_when_the_socket_is_full_and_done_when_the_peer_has_it() {
    let Some(ring) = ring() else { return };
    let (mut socket, mut peer) = pair(&ring);
    let mut sent = Vec::new();
    let error = loop {
        match socket.send(&[Piece::of(&BYTES)], true, false) {
            Ok(bytes) => sent.push(bytes),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(sent.iter().any(|bytes| *bytes < BYTES.len()), "{sent:?}");
    assert!(
        ring.in_flight() > 0,
        "what the peer has not taken is still read"
    );
    let all: usize = sent.iter().sum();
    let mut seen = vec![0; all];
    peer.read_exact(&mut seen).expect("all of it");
    assert!(seen.iter().all(|byte| *byte == 7));
    let mut numbers = Vec::new();
    until("all sends are done", || {
        while let Some(done) = socket.completion().expect("a ring never fails") {
            assert_eq!(done.first, done.last);
            assert!(done.copied, "over lo the kernel copies");
            numbers.push(done.first as usize);
        }
        numbers.len() == sent.len()
    });
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..sent.len()));
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn completions_come_when_the_socket_is_closed() {
    let Some(ring) = ring() else { return };
    let (mut socket, peer) = pair(&ring);
    while socket.send(&[Piece::of(&BYTES)], true, false).is_ok() {}
    assert!(ring.in_flight() > 0);
    let (other, _other_peer) = pair(&ring);
    // Reset, so that nothing waits for the peer; nobody has the socket any more.
    socket.abort().expect("aborted");
    drop(socket);
    until("the ring has told", || ring.in_flight() == 0);
    assert!(ring.told().is_empty(), "nobody is there to be told");
    drop((other, peer));
}

#[test]
fn a_failed_send_counts_for_nothing() {
    let Some(ring) = ring() else { return };
    let (mut socket, peer) = pair(&ring);
    assert!(
        socket
            .send(&[Piece::of(&BYTES[..100])], true, false)
            .is_ok()
    );
    drop(peer);
    let mut last = None;
    until("the reset is seen", || {
        last = socket.send(&[Piece::of(&BYTES[..100])], true, false).err();
        last.is_some()
    });
    let kind = last.expect("an error").kind();
    assert!(
        [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&kind),
        "{kind}"
    );
    let nowhere = Piece {
        address: std::ptr::without_provenance(4096),
        length_bytes: 100,
    };
    let (mut socket, _peer) = pair(&ring);
    let fault = socket
        .send(&[nowhere], true, false)
        .expect_err("nothing is mapped there");
    assert_eq!(fault.raw_os_error(), Some(libc::EFAULT));
    assert_eq!(
        socket
            .send(&[Piece::of(&BYTES[..100])], true, false)
            .expect("sent"),
        100
    );
    until("the one that succeeded is done", || {
        match socket.completion().expect("a ring never fails") {
            Some(done) => {
                assert_eq!((done.first, done.last), (0, 0));
                true
            }
            None => false,
        }
    });
    until("nothing is left", || ring.in_flight() == 0);
}

#[test]
fn it_tells_whose_completions_have_come() {
    let Some(ring) = ring() else { return };
    let (mut first, _peer) = pair(&ring);
    let (second, _other) = pair(&ring);
    first
        .send(&[Piece::of(&BYTES[..100])], true, false)
        .expect("sent");
    until("told", || ring.told() == [first.ring().1]);
    assert!(first.completion().expect("a ring never fails").is_some());
    assert!(ring.told().is_empty());
    drop(second);
}
