// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Users of the crate who ask for what it was not made for.

use std::fs::File;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dax_send::{Connection, Error, MappedFile, Options, PageCache, Reason, Sender};

const FILE_BYTES: usize = 1 << 20;

fn content() -> Vec<u8> {
    (0..FILE_BYTES).map(|at| (at >> 8) as u8).collect()
}

fn file() -> File {
    let file = tempfile::tempfile_in("/dev/shm").expect("a file");
    file.write_all_at(&content(), 0).expect("room");
    file
}

fn mapped() -> Arc<MappedFile> {
    Arc::new(MappedFile::new(file()).expect("a file"))
}

fn zero_copy(deadline: Duration) -> Arc<Sender> {
    Sender::new(Options {
        page_cache: PageCache::ZeroCopy,
        deadline,
        ..Options::default()
    })
}

fn pair(sender: &Arc<Sender>) -> (Connection, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("lo");
    let peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (stream, _) = listener.accept().expect("accepted");
    (sender.connection(stream).expect("a connection"), peer)
}

/// Longer than any machine takes for what is sent here.
const LONG: Duration = Duration::from_secs(120);

/// What the peer has read when the connection has ended.
fn reads(mut peer: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        peer.read_to_end(&mut bytes).expect("a whole stream");
        bytes
    })
}

/// A receiver behind such a socket is on this machine, so it must not get the file's own pages.
#[test]
fn over_a_unix_socket_bytes_are_copied() {
    for page_cache in [PageCache::Sendfile, PageCache::ZeroCopy] {
        let sender = Sender::new(Options {
            page_cache,
            deadline: LONG,
            ..Options::default()
        });
        let (own, peer) = UnixStream::pair().expect("sockets");
        let stream = TcpStream::from(OwnedFd::from(own));
        let mut connection = sender.connection(stream).expect("a connection");
        let reader = reads(peer);
        let ticket = connection.queue(&mapped(), 0..FILE_BYTES as u64);
        connection.finish().expect("taken");
        assert!(connection.is_done(ticket));
        drop(connection);
        assert!(reader.join().expect("no panic") == content());
        let counts = sender.counts();
        let copied: u64 = counts.copied_bytes.iter().sum();
        assert_eq!(copied, FILE_BYTES as u64, "{counts:?}");
        assert_eq!(counts.copied_bytes[Reason::Small as usize], 0, "{counts:?}");
    }
}

/// A time that no clock reaches is no deadline, and no panic.
#[test]
fn a_deadline_may_be_longer_than_time_itself() {
    let sender = zero_copy(Duration::MAX);
    let (mut connection, peer) = pair(&sender);
    let reader = reads(peer);
    connection.queue(&mapped(), 0..FILE_BYTES as u64);
    connection.advance(Instant::now()).expect("sent");
    assert_eq!(connection.due(), None);
    connection.finish().expect("acknowledged");
    drop(connection);
    assert!(reader.join().expect("no panic") == content());
}

#[test]
fn room_for_more_than_can_be_counted_is_none() {
    let (mut connection, _peer) = pair(&Sender::new(Options::default()));
    connection.queue_bytes(*b"x");
    assert!(connection.has_room(1));
    assert!(!connection.has_room(usize::MAX));
}

/// What lies behind the file's end, or where no file can be, is an error of the file that names the place.
#[test]
fn parts_that_no_file_has_are_errors_of_the_file_and_no_signals() {
    let sender = zero_copy(LONG);
    for range in [
        FILE_BYTES as u64..2 * FILE_BYTES as u64,
        (1 << 62)..(1 << 62) + 100_000,
        u64::MAX - 100_000..u64::MAX,
    ] {
        let part = MappedFile::part(file(), range.clone()).expect("a part");
        let (mut connection, _peer) = pair(&sender);
        connection.queue(&Arc::new(part), 0..range.end - range.start);
        let end = connection.finish();
        assert!(
            matches!(end, Err(Error::File { offset, .. }) if offset == range.start),
            "{range:?}: {end:?}"
        );
    }
    let backwards = std::ops::Range { start: 2, end: 1 };
    assert!(MappedFile::part(file(), backwards).is_err());
}

#[test]
fn parts_begin_anywhere_and_may_be_empty() {
    let sender = zero_copy(LONG);
    let (mut connection, peer) = pair(&sender);
    let reader = reads(peer);
    let odd = Arc::new(MappedFile::part(file(), 4097..300_001).expect("a part"));
    let none = Arc::new(MappedFile::part(file(), 7..7).expect("a part"));
    let first = connection.queue(&none, 0..0);
    assert!(connection.is_done(first));
    let long = connection.queue(&odd, 0..odd.length_bytes());
    // What is nothing by itself is done behind what was queued before, and makes nothing done.
    let last = connection.queue(&odd, 5..5);
    assert!(!connection.is_done(long) && !connection.is_done(last));
    assert_eq!(connection.open_tickets(), 2);
    connection.finish().expect("acknowledged");
    drop(connection);
    assert!(reader.join().expect("no panic") == content()[4097..300_001]);
}

/// Whoever is dropped first: the peer has all of it or a reset, and nothing stays pinned.
#[test]
fn owners_may_go_in_any_order() {
    let sender = zero_copy(LONG);
    let (mut connection, peer) = pair(&sender);
    let reader = reads(peer);
    let file = mapped();
    let ticket = connection.queue(&file, 0..FILE_BYTES as u64);
    drop((file, sender));
    connection.finish().expect("acknowledged");
    assert!(connection.is_done(ticket));
    drop(connection);
    assert!(reader.join().expect("no panic") == content());
    let sender = zero_copy(LONG);
    let (mut connection, mut peer) = pair(&sender);
    let file = mapped();
    connection.queue(&file, 0..FILE_BYTES as u64);
    connection.advance(Instant::now()).expect("sent");
    drop(connection);
    let mut rest = Vec::new();
    let read = peer.read_to_end(&mut rest);
    assert!(read.is_err(), "what was not followed to its end is reset");
    erb_steady::wait(Duration::from_secs(30), || {
        sender.reap();
        let counts = sender.counts();
        let is_free = counts.pinned_bytes == 0 && file.open_tickets() == 0;
        let is_over = is_free || counts.leftovers == 0;
        is_over.then_some(()).ok_or_else(|| format!("{counts:?}"))
    });
    assert_eq!(sender.counts().pinned_bytes, 0);
}
