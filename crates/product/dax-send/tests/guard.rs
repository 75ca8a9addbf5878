// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guard: what a killed sender leaves behind, over `lo` and with files in memory. That no foreign byte leaves
//! is shown on persistent memory (`erb lab vm dax`); here, that the guard holds, aborts and lets go.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dax_send::{Guard, MappedFile, Options, PageCache, Reason, Ring, Sender};

const FILE_BYTES: u64 = 1 << 20;
/// So that a window closes after some kilobytes.
const SMALL_BYTES: usize = 4096;
/// For a child of these tests: what it is to do.
const CHILD: &str = "DAX_SEND_GUARDED_CHILD";
const PATIENCE: Duration = Duration::from_secs(30);

fn options() -> Options {
    Options {
        page_cache: PageCache::ZeroCopy,
        // No deadline is what these tests are about: a slow machine's reader may take its time.
        deadline: Duration::from_secs(300),
        ..Options::default()
    }
}

fn guard_command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_dax-send-guard"))
}

fn file() -> tempfile::NamedTempFile {
    let named = tempfile::NamedTempFile::new_in("/dev/shm").expect("a file");
    let bytes = vec![b'g'; FILE_BYTES as usize];
    named.as_file().write_all_at(&bytes, 0).expect("room");
    named
}

fn listener() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").expect("lo");
    socket2::SockRef::from(&listener)
        .set_recv_buffer_size(SMALL_BYTES)
        .expect("an option");
    listener
}

fn within(what: &str, is: impl FnMut() -> bool) {
    erb_steady::wait_until(PATIENCE, what, is);
}

/// Whether a process has the file mapped.
fn maps(process: u32, file: &Path) -> bool {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    maps.contains(&*file.to_string_lossy())
}

fn open_sockets(process: u32) -> usize {
    let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else {
        return 0;
    };
    let links = files
        .flatten()
        .filter_map(|it| fs::read_link(it.path()).ok());
    links
        .filter(|it| it.to_string_lossy().starts_with("socket:"))
        .count()
}

/// Whether the process has ended; what nobody has waited for yet counts.
fn is_gone(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}

/// The child that will be killed: sends to somebody who does not read.
#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    let (path, address) = what.split_once(' ').expect("a file and an address");
    let guard = Guard::start(&mut guard_command()).expect("a guard");
    let sender = Sender::guarded(options(), Arc::clone(&guard));
    let file = Arc::new(MappedFile::new(File::open(path).expect("open")).expect("a file"));
    let stream = TcpStream::connect(address).expect("connected");
    let mut connection = sender.connection(stream).expect("a connection");
    connection.queue(&file, 0..FILE_BYTES);
    connection.advance(Instant::now()).expect("sent");
    assert!(connection.pinned_bytes() > 0);
    println!("guarded by {}", guard.process());
    std::thread::sleep(erb_steady::patient(PATIENCE));
}

/// A sender at work, and its guard's number.
fn sender(path: &Path, listener: &TcpListener) -> (Child, u32) {
    let address = listener.local_addr().expect("bound");
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, format!("{} {address}", path.display()))
        .stdout(Stdio::piped());
    // So that what is told to its group is told to nobody else.
    command.process_group(0);
    let mut child = command.spawn().expect("the child starts");
    let said = BufReader::new(child.stdout.take().expect("piped"));
    let guard = said.lines().map_while(Result::ok).find_map(|line| {
        let (_, number) = line.split_once("guarded by ")?;
        number.trim().parse().ok()
    });
    (child, guard.expect("the child has a guard"))
}

#[test]
fn a_killed_sender_is_survived_by_a_guard_that_resets_its_connections_and_then_ends() {
    for _ in 0..5 {
        let (named, listener) = (file(), listener());
        let (mut child, guard) = sender(named.path(), &listener);
        let (mut peer, _) = listener.accept().expect("accepted");
        assert!(maps(guard, named.path()), "the guard holds the file");
        child.kill().expect("killed");
        child.wait().expect("ended");
        // Nothing is read before, or the guard and this reader race for who is first at the file's end.
        within("the guard ends", || is_gone(guard));
        let patient = erb_steady::patient(PATIENCE);
        peer.set_read_timeout(Some(patient)).expect("an option");
        let mut seen = Vec::new();
        let error = peer.read_to_end(&mut seen).expect_err("reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        assert!(seen.len() < FILE_BYTES as usize, "all of it came");
        assert!(seen.iter().all(|it| *it == b'g'), "a foreign byte");
    }
}

#[test]
fn signals_to_the_senders_group_do_not_end_the_guard_first() {
    let (named, listener) = (file(), listener());
    let (mut child, guard) = sender(named.path(), &listener);
    let (_peer, _) = listener.accept().expect("accepted");
    let guard_number = nix::unistd::Pid::from_raw(i32::try_from(guard).expect("a number"));
    for name in [
        nix::sys::signal::Signal::SIGTERM,
        nix::sys::signal::Signal::SIGINT,
        nix::sys::signal::Signal::SIGHUP,
    ] {
        nix::sys::signal::kill(guard_number, name).expect("told");
    }
    std::thread::sleep(Duration::from_millis(50));
    assert!(maps(guard, named.path()), "it still holds the file");
    child.kill().expect("killed");
    child.wait().expect("ended");
    within("the guard ends", || is_gone(guard));
}

#[test]
fn what_is_done_is_let_go_and_connections_end_in_peace() {
    let guard = Guard::start(&mut guard_command()).expect("a guard");
    let sender = Sender::guarded(options(), Arc::clone(&guard));
    let named = file();
    let reopened = named.reopen().expect("open");
    let mapped = Arc::new(MappedFile::new(reopened).expect("a file"));
    for _ in 0..50 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("lo");
        let address = listener.local_addr().expect("bound");
        let mut connection = sender
            .connection(TcpStream::connect(address).expect("connected"))
            .expect("a connection");
        let (mut peer, _) = listener.accept().expect("accepted");
        let reader = std::thread::spawn(move || {
            let mut seen = Vec::new();
            peer.read_to_end(&mut seen).map(|_| seen.len() as u64)
        });
        connection.queue(&mapped, 0..FILE_BYTES);
        connection.finish().expect("all of it");
        assert!(maps(guard.process(), named.path()));
        drop(connection);
        let seen = reader.join().expect("no panic").expect("no reset");
        assert_eq!(seen, FILE_BYTES);
    }
    assert!(sender.counts().kernel_copied_bytes > 0);
    assert_eq!(sender.counts().copied_bytes[Reason::Unguarded as usize], 0);
    drop(mapped);
    within("the file is let go", || {
        !maps(guard.process(), named.path())
    });
    // Its channel alone, which is its standard input and a copy of it.
    within("sockets are let go", || open_sockets(guard.process()) == 2);
    let process = guard.process();
    drop((sender, guard));
    within("the guard ends", || is_gone(process));
}

/// Sends a file to somebody who reads; how many bytes were not guarded.
fn unguarded_bytes(sender: &Arc<Sender>, named: &tempfile::NamedTempFile) -> u64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("lo");
    let address = listener.local_addr().expect("bound");
    let stream = TcpStream::connect(address).expect("connected");
    let (mut peer, _) = listener.accept().expect("accepted");
    let reader = std::thread::spawn(move || peer.read_to_end(&mut Vec::new()));
    let mapped = MappedFile::new(named.reopen().expect("open")).expect("a file");
    let before = sender.counts().copied_bytes[Reason::Unguarded as usize];
    let mut connection = sender.connection(stream).expect("a connection");
    connection.queue(&Arc::new(mapped), 0..FILE_BYTES);
    connection.finish().expect("all of it");
    drop(connection);
    let seen = reader.join().expect("no panic").expect("no reset");
    assert_eq!(seen as u64, FILE_BYTES);
    sender.counts().copied_bytes[Reason::Unguarded as usize] - before
}

/// What a ring sends is nowhere to be seen for the guard: it must not take that for done.
#[test]
fn with_a_guard_nothing_is_sent_by_a_ring() {
    let Ok(ring) = Ring::new() else {
        erb_steady::skipped("no ring here");
        return;
    };
    let guard = Guard::start(&mut guard_command()).expect("a guard");
    let sender = Sender::guarded(options(), Arc::clone(&guard));
    let (named, listener) = (file(), listener());
    let mapped = MappedFile::new(named.reopen().expect("open")).expect("a file");
    let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (_peer, _) = listener.accept().expect("accepted");
    let mut connection = sender.connection_on(&ring, stream).expect("a connection");
    connection.queue(&Arc::new(mapped), 0..FILE_BYTES);
    connection.advance(Instant::now()).expect("sent");
    assert!(connection.pinned_bytes() > 0, "it is sent zero-copy");
    assert_eq!(ring.in_flight(), 0, "and not by the ring");
    assert!(maps(guard.process(), named.path()));
    connection.abort();
    within("completions come all the same", || {
        let _ = connection.completions(Instant::now());
        connection.pinned_bytes() == 0
    });
}

#[test]
fn without_its_guard_a_sender_copies_and_says_why() {
    let guard = Guard::start(&mut guard_command()).expect("a guard");
    let sender = Sender::guarded(options(), Arc::clone(&guard));
    let named = file();
    assert_eq!(unguarded_bytes(&sender, &named), 0);
    assert!(sender.lacks().is_none());
    let number = i32::try_from(guard.process()).expect("a number");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(number),
        nix::sys::signal::Signal::SIGKILL,
    )
    .expect("killed");
    assert_eq!(unguarded_bytes(&sender, &named), FILE_BYTES);
    assert!(guard.has_failed());
    assert!(sender.lacks().is_some_and(|it| it.contains("guard")));
}

#[test]
fn a_guard_without_descriptors_refuses_and_lives_on() {
    let mut command = guard_command();
    let few = || {
        nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, 4, 4)?;
        Ok(())
    };
    // SAFETY: one system call between fork and exec, which takes no lock and allocates nothing.
    unsafe { command.pre_exec(few) };
    let guard = Guard::start(&mut command).expect("a guard");
    let sender = Sender::guarded(options(), Arc::clone(&guard));
    assert_eq!(unguarded_bytes(&sender, &file()), FILE_BYTES);
    assert!(!guard.has_failed(), "it has answered");
    assert!(!is_gone(guard.process()));
}
