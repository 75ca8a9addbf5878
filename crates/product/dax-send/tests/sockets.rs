// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real sockets over `lo`, files in memory (tmpfs) and in the page cache. Here the kernel copies what is
//! delivered, and says so; what still waits in the sender's queue shows whether the send itself has copied.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dax_send::{Connection, Error, MappedFile, Options, PageCache, Progress, Reason, Ring, Sender};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use socket2::{Domain, Socket, Type};

const FILE_BYTES: usize = 4 << 20;
/// So that a window closes after some kilobytes.
const SMALL_BYTES: usize = 4096;
/// For a child of these tests: what it is to do.
const CHILD: &str = "DAX_SEND_CHILD";

fn content(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; FILE_BYTES];
    StdRng::seed_from_u64(seed).fill(&mut bytes[..]);
    bytes
}

/// A file in memory, and a second descriptor to write to it.
fn file(bytes: &[u8]) -> (Arc<MappedFile>, File) {
    let named = tempfile::NamedTempFile::new_in("/dev/shm").expect("a file");
    let writer = OpenOptions::new()
        .write(true)
        .open(named.path())
        .expect("open");
    writer.write_all_at(bytes, 0).expect("room");
    let mapped = MappedFile::new(named.reopen().expect("open")).expect("a file");
    (Arc::new(mapped), writer)
}

/// The deadline is longer than any machine takes for what is sent here.
fn zero_copy() -> Options {
    Options {
        page_cache: PageCache::ZeroCopy,
        deadline: Duration::from_secs(120),
        ..Options::default()
    }
}

/// Of tests in which the deadline passes.
const DEADLINE: Duration = Duration::from_millis(400);
/// For what ends by itself, if it ends.
const PATIENCE: Duration = Duration::from_secs(30);

fn impatient() -> Options {
    Options {
        deadline: DEADLINE,
        ..zero_copy()
    }
}

/// A connection and its peer; `receive_bytes` bounds what the peer's kernel takes.
fn pair(sender: &Arc<Sender>, receive_bytes: Option<usize>) -> (Connection, TcpStream) {
    pair_on(sender, receive_bytes, None)
}

/// A ring, where the kernel has one to give.
fn ring() -> Option<Arc<Ring>> {
    let ring = Ring::new();
    if let Err(error) = &ring {
        println!("no ring here: {error}");
    }
    ring.ok()
}

/// The same, by a ring if there is one.
fn pair_on(
    sender: &Arc<Sender>,
    receive_bytes: Option<usize>,
    ring: Option<&Arc<Ring>>,
) -> (Connection, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("lo");
    let peer = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    if let Some(bytes) = receive_bytes {
        peer.set_recv_buffer_size(bytes).expect("an option");
    }
    peer.connect(&listener.local_addr().expect("bound").into())
        .expect("connected");
    let (stream, _) = listener.accept().expect("accepted");
    socket2::SockRef::from(&stream)
        .set_send_buffer_size(1 << 20)
        .expect("an option");
    let connection = match ring {
        Some(ring) => sender.connection_on(ring, stream),
        None => sender.connection(stream),
    };
    (connection.expect("a connection"), peer.into())
}

fn all_of(mut peer: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).expect("a whole stream");
    bytes
}

/// Sends random ranges with bytes between them, and compares.
fn random_ranges(sender: &Arc<Sender>, seed: u64, rounds: usize) {
    random_ranges_on(sender, seed, rounds, None);
}

fn random_ranges_on(sender: &Arc<Sender>, seed: u64, rounds: usize, ring: Option<&Arc<Ring>>) {
    let bytes = content(seed);
    let (file, _) = file(&bytes);
    let (mut connection, peer) = pair_on(sender, None, ring);
    let reader = std::thread::spawn(|| all_of(peer));
    let mut random = StdRng::seed_from_u64(seed);
    let mut wanted = Vec::new();
    for round in 0..rounds {
        for _ in 0..random.random_range(1..20) {
            if random.random_bool(0.3) {
                connection.queue_bytes(*b"head\r\n");
                wanted.extend_from_slice(b"head\r\n");
            }
            let from = random.random_range(0..FILE_BYTES);
            let longest = [100, 5_000, 300_000][random.random_range(0..3)];
            let end = (from + random.random_range(0..longest)).min(FILE_BYTES);
            connection.queue(&file, from as u64..end as u64);
            wanted.extend_from_slice(&bytes[from..end]);
        }
        if round % 4 == 0 {
            connection.finish().expect("all of it");
        }
    }
    connection.finish().expect("all of it");
    assert_eq!((connection.open_tickets(), file.open_tickets()), (0, 0));
    assert_eq!(connection.pinned_bytes(), 0);
    drop(connection);
    let seen = reader.join().expect("no panic");
    assert!(
        seen == wanted,
        "seed {seed}: {} bytes of {}",
        seen.len(),
        wanted.len()
    );
}

#[test]
fn every_byte_arrives_and_over_lo_the_choice_follows_the_kernels_copies() {
    let sender = Sender::new(zero_copy());
    for seed in 0..4 {
        random_ranges(&sender, seed, 40);
    }
    let counts = sender.counts();
    assert_eq!(counts.zero_copy_bytes, 0, "{counts:?}");
    assert!(counts.kernel_copied_bytes > 0, "{counts:?}");
    let ours = counts.copied_bytes[Reason::KernelCopies as usize];
    assert!(ours > 4 * counts.kernel_copied_bytes, "{counts:?}");
    assert_eq!((counts.pinned_bytes, counts.leftovers), (0, 0));
}

#[test]
fn every_byte_arrives_by_a_ring_too_and_its_completions_outlive_connections() {
    let Some(ring) = ring() else {
        erb_steady::skipped("no ring here");
        return;
    };
    let sender = Sender::new(zero_copy());
    for seed in 0..4 {
        random_ranges_on(&sender, seed, 40, Some(&ring));
    }
    let counts = sender.counts();
    assert_eq!(counts.zero_copy_bytes, 0, "{counts:?}");
    assert!(counts.kernel_copied_bytes > 0, "{counts:?}");
    let ours = counts.copied_bytes[Reason::KernelCopies as usize];
    assert!(ours > 4 * counts.kernel_copied_bytes, "{counts:?}");
    let (file, _) = file(&content(2));
    for number in 0..50 {
        let (mut connection, peer) = pair_on(&sender, Some(SMALL_BYTES), Some(&ring));
        connection.queue(&file, 0..200_000);
        connection.advance(Instant::now()).expect("sent");
        assert!(connection.pinned_bytes() > 0);
        // Either end goes first.
        if number % 2 == 0 {
            drop((peer, connection));
        } else {
            drop((connection, peer));
        }
    }
    erb_steady::wait(PATIENCE, || {
        sender.reap();
        let counts = sender.counts();
        let is_over = counts.leftovers == 0;
        is_over.then_some(()).ok_or_else(|| format!("{counts:?}"))
    });
    assert_eq!((ring.in_flight(), file.open_tickets()), (0, 0));
    assert_eq!(sender.counts().pinned_bytes, 0);
}

/// The receiver's kernel acknowledges before anybody has read; by `sendfile` it would then hold the file's pages.
#[test]
fn to_a_peer_on_this_machine_nothing_goes_by_sendfile() {
    let sender = Sender::new(Options::default());
    random_ranges(&sender, 9, 30);
    let counts = sender.counts();
    assert_eq!(counts.sendfile_bytes, 0, "{counts:?}");
    assert!(counts.copied_bytes[Reason::KernelCopies as usize] > 1 << 20);
    let old = vec![b'a'; 256 << 10];
    let (file, writer) = file(&old);
    let (mut connection, mut peer) = pair(&sender, Some(1 << 20));
    let ticket = connection.queue(&file, 0..file.length_bytes());
    connection.finish().expect("acknowledged");
    assert!(connection.is_done(ticket));
    writer
        .write_all_at(&vec![b'b'; old.len()], 0)
        .expect("written");
    let mut seen = vec![0; old.len()];
    peer.read_exact(&mut seen).expect("all of it");
    assert!(
        seen == old,
        "bytes that were written after the ticket was done"
    );
}

/// Whether a change of the file after the send is seen by the peer: then the send has not copied.
fn alias(options: Options, ring: Option<&Arc<Ring>>) -> bool {
    let sender = Sender::new(options);
    let old = vec![b'a'; 256 << 10];
    let (file, writer) = file(&old);
    let (mut connection, mut peer) = pair_on(&sender, Some(SMALL_BYTES), ring);
    connection.queue(&file, 0..file.length_bytes());
    assert_eq!(
        connection.advance(Instant::now()).expect("sent"),
        Progress::Idle
    );
    std::thread::sleep(Duration::from_millis(50));
    writer
        .write_all_at(&vec![b'b'; old.len()], 0)
        .expect("written");
    let mut seen = vec![0; old.len()];
    let reader = std::thread::spawn(move || {
        peer.read_exact(&mut seen).expect("all of it");
        seen
    });
    connection.finish().expect("all of it");
    let seen = reader.join().expect("no panic");
    let tail = &seen[seen.len() - 65_536..];
    assert!(
        tail.iter().all(|byte| byte == &tail[0]),
        "one version in what had not left"
    );
    tail[0] == b'b'
}

#[test]
fn the_pages_themselves_are_sent_and_a_copy_where_we_say_so() {
    assert!(alias(zero_copy(), None), "zero-copy");
    if let Some(ring) = ring() {
        assert!(alias(zero_copy(), Some(&ring)), "zero-copy by a ring");
    }
    let copying = Options {
        copy_bytes_max: Some(usize::MAX),
        ..zero_copy()
    };
    assert!(!alias(copying, None), "copied at the send");
    assert!(
        !alias(Options::default(), None),
        "copied for a peer on this machine"
    );
}

#[test]
fn a_silent_peer_pins_nothing_after_the_deadline() {
    silent_peer(None);
    if let Some(ring) = ring() {
        silent_peer(Some(&ring));
    }
}

/// Not less than the deadline. How much more is the machine's: that it is exact is shown with the engine alone.
fn assert_waited(waited: Duration) {
    assert!(waited >= DEADLINE, "{waited:?}");
    if waited > erb_steady::patient(PATIENCE) {
        erb_steady::out_of_patience(format_args!("overdue after {waited:?}"));
    }
}

fn silent_peer(ring: Option<&Arc<Ring>>) {
    let sender = Sender::new(impatient());
    let (file, writer) = file(&content(1));
    let (mut connection, mut peer) = pair_on(&sender, Some(SMALL_BYTES), ring);
    connection.queue(&file, 0..FILE_BYTES as u64);
    let begin = Instant::now();
    let error = connection.finish().expect_err("the peer does not read");
    assert!(
        matches!(error, Error::Overdue { .. }) && error.is_peers(),
        "{error}"
    );
    assert_waited(begin.elapsed());
    assert!(sender.counts().pinned_bytes_peak > 0);
    assert_eq!((file.open_tickets(), sender.counts().pinned_bytes), (0, 0));
    assert_eq!(sender.counts().overdue, 1);
    writer.set_len(0).expect("nothing is in the way");
    let mut rest = Vec::new();
    assert!(
        peer.read_to_end(&mut rest).is_err(),
        "the peer sees a reset, not an end"
    );
}

#[test]
fn what_was_copied_has_a_deadline_too() {
    // On this machine nothing goes by sendfile: all of it is copied, and no send has a deadline of its own.
    let sender = Sender::new(Options {
        page_cache: PageCache::Sendfile,
        ..impatient()
    });
    let (file, _writer) = file(&content(1));
    let (mut connection, mut peer) = pair(&sender, Some(SMALL_BYTES));
    connection.queue(&file, 0..FILE_BYTES as u64);
    let (told, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let begin = Instant::now();
        let result = connection.finish();
        // Nobody listens any more if it took too long.
        let _ = told.send((result, begin.elapsed()));
    });
    let heard = heard.recv_timeout(erb_steady::patient(PATIENCE));
    let (result, waited) =
        heard.unwrap_or_else(|_| erb_steady::out_of_patience("finish does not wait for ever"));
    assert!(matches!(result, Err(Error::Overdue { .. })), "{result:?}");
    assert_waited(waited);
    assert_eq!((file.open_tickets(), sender.counts().overdue), (0, 1));
    assert_eq!(sender.counts().pinned_bytes_peak, 0);
    assert!(peer.read_to_end(&mut Vec::new()).is_err(), "it is reset");
}

#[test]
fn a_slow_reader_that_takes_something_in_time_is_waited_for() {
    let deadline = Duration::from_secs(2);
    let sender = Sender::new(Options {
        page_cache: PageCache::Sendfile,
        deadline,
        ..zero_copy()
    });
    let (file, _writer) = file(&content(1));
    let (mut connection, mut peer) = pair(&sender, Some(64 << 10));
    connection.queue(&file, 0..FILE_BYTES as u64);
    let reader = std::thread::spawn(move || {
        let (mut bytes, mut seen) = (vec![0; 128 << 10], 0);
        let (mut before, mut longest) = (Instant::now(), Duration::ZERO);
        while let Ok(count @ 1..) = peer.read(&mut bytes) {
            seen += count;
            longest = longest.max(before.elapsed());
            before = Instant::now();
            std::thread::sleep(Duration::from_millis(100));
        }
        (seen, longest.max(before.elapsed()))
    });
    let begin = Instant::now();
    let finished = connection.finish();
    let took = begin.elapsed();
    drop(connection);
    let (seen, longest) = reader.join().expect("no panic");
    if matches!(finished, Err(Error::Overdue { .. })) && longest > deadline / 2 {
        erb_steady::out_of_patience(format_args!("the reader took nothing for {longest:?}"));
    }
    finished.expect("all of it");
    // Else it has shown nothing.
    assert!(took > deadline, "it was quick");
    assert_eq!(seen, FILE_BYTES);
}

#[test]
fn a_dropped_connection_is_reset_and_unmaps_with_its_last_completion() {
    let sender = Sender::new(zero_copy());
    let (file, _) = file(&content(2));
    let (mut connection, mut peer) = pair(&sender, Some(SMALL_BYTES));
    connection.queue(&file, 0..200_000);
    connection.advance(Instant::now()).expect("sent");
    assert!(connection.pinned_bytes() > 0);
    let file = {
        let weak = Arc::downgrade(&file);
        drop(file);
        weak
    };
    assert!(file.upgrade().is_some(), "the tickets hold it");
    drop(connection);
    sender.reap();
    let counts = sender.counts();
    assert_eq!(
        (counts.pinned_bytes, counts.leftovers),
        (0, 0),
        "{counts:?}"
    );
    assert!(file.upgrade().is_none(), "unmapped");
    assert!(peer.read_to_end(&mut Vec::new()).is_err(), "reset");
}

#[test]
fn a_peer_that_resets_frees_everything() {
    let sender = Sender::new(zero_copy());
    let (file, _) = file(&content(3));
    for _ in 0..50 {
        let (mut connection, peer) = pair(&sender, Some(SMALL_BYTES));
        connection.queue(&file, 0..300_000);
        connection.advance(Instant::now()).expect("sent");
        socket2::SockRef::from(&peer)
            .set_linger(Some(Duration::ZERO))
            .expect("an option");
        drop(peer);
        let error = connection.finish().expect_err("reset");
        assert!(matches!(error, Error::Socket(_)), "{error}");
    }
    sender.reap();
    assert_eq!((file.open_tickets(), sender.counts().pinned_bytes), (0, 0));
}

#[test]
fn a_file_that_was_cut_is_an_error_and_no_signal() {
    for options in [Options::default(), zero_copy()] {
        let sender = Sender::new(options);
        let (file, writer) = file(&content(4));
        writer.set_len(4096).expect("cut");
        let (mut connection, _peer) = pair(&sender, None);
        connection.queue(&file, 1 << 20..2 << 20);
        let error = connection.finish().expect_err("nothing is there");
        assert!(matches!(error, Error::File { .. }), "{error}");
        assert!(error.to_string().contains("1048576"), "{error}");
    }
}

/// A child of one of the tests below; does nothing when run by itself.
#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    if let Some((path, address)) = what.split_once(' ') {
        send_and_wait(path, address);
        return;
    }
    let sender = Sender::new(zero_copy());
    random_ranges(&sender, 5, 30);
    if let Some(ring) = ring() {
        random_ranges_on(&sender, 6, 30, Some(&ring));
    }
    let counts = sender.counts();
    let refused = counts.copied_bytes[Reason::Refused as usize];
    let lacks = sender.lacks();
    println!("{what}: {lacks:?} {counts:?}");
    if what == "8388608" {
        assert!(lacks.is_none() && refused == 0 && counts.kernel_copied_bytes > 0);
        assert!(counts.pinned_bytes_peak <= 4 << 20);
    } else {
        assert!(lacks.is_some_and(|words| words.contains("RLIMIT_MEMLOCK")));
        assert!(refused > 1 << 20 && counts.pinned_bytes_peak == 0);
    }
}

fn as_child(what: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, what);
    command
}

#[test]
fn an_ordinary_user_is_served_under_every_limit_and_told_what_lacks() {
    if !nix::unistd::geteuid().is_root() {
        erb_steady::skipped("only root can change its user");
        return;
    }
    for limit in [0_u64, 65_536, 8 << 20] {
        let mut command = as_child(&limit.to_string());
        let lower = move || {
            nix::sys::resource::setrlimit(
                nix::sys::resource::Resource::RLIMIT_MEMLOCK,
                limit,
                limit,
            )?;
            let nobody = nix::unistd::Uid::from_raw(65_534);
            nix::unistd::setresuid(nobody, nobody, nobody)?;
            Ok(())
        };
        // SAFETY: two system calls between fork and exec, which take no lock and allocate nothing.
        unsafe { command.pre_exec(lower) };
        let output = command.output().expect("the child starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{limit}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(said.contains(&format!("{limit}: ")), "{said}");
    }
}

/// The child that will be killed: sends a file to somebody who does not read.
fn send_and_wait(path: &str, address: &str) {
    let sender = Sender::new(zero_copy());
    let file = Arc::new(MappedFile::new(File::open(path).expect("open")).expect("a file"));
    let stream = TcpStream::connect(address).expect("connected");
    let mut connection = sender.connection(stream).expect("a connection");
    connection.queue(&file, 0..file.length_bytes());
    connection.advance(Instant::now()).expect("sent");
    assert!(connection.pinned_bytes() > 0);
    println!("pinned");
    std::thread::sleep(erb_steady::patient(PATIENCE));
}

#[test]
fn of_a_killed_sender_the_peer_sees_its_file_alone_and_nobody_is_held_up() {
    for _ in 0..10 {
        let named = tempfile::NamedTempFile::new_in("/dev/shm").expect("a file");
        named
            .as_file()
            .write_all_at(&vec![b'k'; FILE_BYTES], 0)
            .expect("room");
        let listener = TcpListener::bind("127.0.0.1:0").expect("lo");
        socket2::SockRef::from(&listener)
            .set_recv_buffer_size(SMALL_BYTES)
            .expect("an option");
        let address = listener.local_addr().expect("bound");
        let what = format!("{} {address}", named.path().display());
        let mut child = as_child(&what)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the child starts");
        let (mut peer, _) = listener.accept().expect("accepted");
        let mut text = String::new();
        let out = child.stdout.as_mut().expect("piped");
        while !text.contains("pinned") {
            let mut said = [0; 4096];
            let count = out.read(&mut said).expect("words");
            assert!(count > 0, "the child has ended: {text}");
            text += &String::from_utf8_lossy(&said[..count]);
        }
        child.kill().expect("killed");
        child.wait().expect("ended");
        let begin = Instant::now();
        named.as_file().set_len(0).expect("cut");
        named
            .as_file()
            .write_all_at(&vec![b'x'; FILE_BYTES], 0)
            .expect("room");
        drop(named);
        let held = begin.elapsed();
        if held > erb_steady::patient(PATIENCE) {
            erb_steady::out_of_patience(format_args!("held up for {held:?}"));
        }
        let mut seen = Vec::new();
        peer.set_read_timeout(Some(erb_steady::patient(PATIENCE)))
            .expect("an option");
        let _ = peer.read_to_end(&mut seen);
        assert!(
            seen.iter().all(|byte| *byte == b'k'),
            "another file's bytes"
        );
    }
}
