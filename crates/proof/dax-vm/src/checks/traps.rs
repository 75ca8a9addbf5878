// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel does to a sender by hand, trap by trap (docs/internals/dax-send.md).

use std::fs;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use dax_send::{Cause, Options, Progress, Reason, Sender};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, UsageWho, getrusage, setrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::unistd::{Uid, setresuid};

use crate::checks::copies::bulk;
use crate::raw::{self, count};
use crate::world::{Card, Silence, World, mapped, number, options, run, within};

const SENDS: u32 = 8;
const SEND_BYTES: usize = 8 << 10;
const FILE_BYTES: u64 = SENDS as u64 * SEND_BYTES as u64;
const PATIENCE: Duration = Duration::from_secs(10);
/// What an ordinary user may pin by default in older systems.
const MEMLOCK_BYTES: u64 = 64 << 10;
/// Protocol of a packet socket that receives everything, `ETH_P_ALL`, as the network has it.
const ALL_PROTOCOLS_BE: i32 = 0x0300;
/// Sectors of 512 bytes.
const PAGE_SECTORS: u64 = 8;

/// Eight sends that the peer does not acknowledge.
fn in_flight(world: &World) -> Result<(Silence, TcpStream)> {
    let file = number() as u16;
    let path = world.file("trap", file, FILE_BYTES)?;
    let card = world.card();
    let silence = Silence::begin(card)?;
    let (_, stream) = card.connect(card.ports.silent, file, false)?;
    let mapping = raw::map(&path)?;
    raw::enable(&stream)?;
    for send in 0..SENDS as usize {
        let sent = raw::send(&stream, &mapping, send * SEND_BYTES, SEND_BYTES)?;
        ensure!(sent == SEND_BYTES, "a short send");
    }
    // Until the file system is unmounted: blocks stay this file's.
    std::mem::forget(mapping);
    Ok((silence, stream))
}

/// Traps 6 and 7: `shutdown` releases nothing, an abort everything, and its completions can be read before `close`.
pub fn abort_releases(world: &World) -> Result<String> {
    let (_silence, stream) = in_flight(world)?;
    stream.shutdown(Shutdown::Both)?;
    let held = raw::wait(&stream, SENDS, Duration::from_secs(1))?;
    ensure!(count(&held) < SENDS, "shutdown released all: {held:?}");
    let begin = Instant::now();
    raw::abort(&stream)?;
    let left = SENDS - count(&held);
    let freed = raw::wait(&stream, left, PATIENCE)?;
    ensure!(count(&freed) == left, "of {left} came {freed:?}");
    let millis = begin.elapsed().as_millis();
    Ok(format!(
        "{left} of {SENDS} held after shutdown, all free {millis} ms behind the abort"
    ))
}

/// Traps 10 and 11: completions join, number the calls without a gap, and set POLLERR without an error.
pub fn completions_join(world: &World) -> Result<String> {
    let (silence, stream) = in_flight(world)?;
    drop(silence);
    let mut files = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    poll(&mut files, PollTimeout::try_from(PATIENCE)?)?;
    let seen = files[0].revents().unwrap_or(PollFlags::empty());
    ensure!(seen.contains(PollFlags::POLLERR), "{seen:?}");
    // All of them, so that they wait together.
    std::thread::sleep(Duration::from_secs(3));
    let done = raw::wait(&stream, SENDS, PATIENCE)?;
    let mut numbers: Vec<u32> = done
        .iter()
        .flat_map(|(first, last, _)| *first..=*last)
        .collect();
    numbers.sort_unstable();
    ensure!(numbers == (0..SENDS).collect::<Vec<u32>>(), "{done:?}");
    ensure!(done.len() < SENDS as usize, "none has joined: {done:?}");
    ensure!(stream.take_error()?.is_none(), "POLLERR was an error");
    ensure!(done.iter().all(|(.., copied)| !copied), "{done:?}");
    Ok(format!(
        "{SENDS} sends in {} completions, POLLERR set, no error",
        done.len()
    ))
}

/// Trap 14: a packet socket that receives makes the kernel copy, and dax-send names it.
pub fn packet_socket(world: &World) -> Result<String> {
    let domain = libc::AF_PACKET;
    // SAFETY: no memory is handed over.
    let packets = unsafe { libc::socket(domain, libc::SOCK_RAW, ALL_PROTOCOLS_BE) };
    ensure!(
        packets >= 0,
        "no packet socket: {}",
        std::io::Error::last_os_error()
    );
    let card = world.card();
    let sender = Sender::new(options());
    let copied = bulk(world, card, options());
    let (_, sending) = card.open(&sender, card.ports.data, 1, false)?;
    let cause = Cause::of(sending.stream());
    // SAFETY: the descriptor is ours, and used no more.
    unsafe { libc::close(packets) };
    let (copied, cause) = (copied?, cause?);
    ensure!(cause == Cause::PacketSocket, "{cause:?}");
    ensure!(
        copied.kernel_copied_bytes > 0 && copied.zero_copy_bytes == 0,
        "{copied:?}"
    );
    ensure!(
        copied.copied_bytes[Reason::KernelCopies as usize] > 0,
        "{copied:?}"
    );
    let after = bulk(world, card, options())?;
    ensure!(after.kernel_copied_bytes == 0, "{after:?}");
    Ok("copies while it is open, none after; cause: packet_socket".to_owned())
}

/// Traps 8 and 9: an ordinary user meets ENOBUFS, root does not; dax-send copies then and goes on.
pub fn memory_limit(world: &World) -> Result<String> {
    let file = number() as u16;
    let path = world.file("limit", file, 4 << 20)?;
    let mut words = Vec::new();
    for user in ["root", "nobody"] {
        let connection = number();
        let card = world.card();
        let mut command = Command::new("/proc/self/exe");
        command
            .arg("limit")
            .arg(&path)
            .arg(card.address.to_string());
        command.args([card.ports.data, card.ports.silent].map(|it| it.to_string()));
        command.arg(connection.to_string()).arg(file.to_string());
        if user == "nobody" {
            command.arg("--nobody");
        }
        let silence = Silence::begin(card)?;
        let output = command.output()?;
        drop(silence);
        let said = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{user}: {error}");
        words.push(format!("{user}: {}", said.trim()));
    }
    fs::remove_file(&path)?;
    Ok(words.join("; "))
}

/// The part of it that another process does.
pub fn limited(path: &Path, card: &Card, number: u64, file: u16, nobody: bool) -> Result<String> {
    if nobody {
        setrlimit(Resource::RLIMIT_MEMLOCK, MEMLOCK_BYTES, MEMLOCK_BYTES)?;
    }
    let mapped = mapped(path)?;
    let mapping = raw::map(path)?;
    let (_, stream) = card.connect(card.ports.silent, file, false)?;
    raw::enable(&stream)?;
    if nobody {
        let user = Uid::from_raw(65_534);
        setresuid(user, user, user)?;
    }
    let mut sends = 0;
    let refused = loop {
        if sends == 16 {
            break None;
        }
        match raw::send(&stream, &mapping, 0, 2 * SEND_BYTES) {
            Ok(_) => sends += 1,
            Err(error) => break error.raw_os_error(),
        }
    };
    raw::abort(&stream)?;
    raw::wait(&stream, sends, PATIENCE)?;
    let sender = Sender::new(Options {
        deadline: Duration::from_secs(30),
        ..options()
    });
    let stream = card.connect_as(card.ports.data, number, file, false)?;
    let mut sending = sender.connection(stream)?;
    sending.queue(&mapped, 0..mapped.length_bytes());
    sending.finish()?;
    let counts = sender.counts();
    if !nobody {
        ensure!(
            refused != Some(libc::ENOBUFS) && sender.lacks().is_none(),
            "{refused:?}"
        );
        ensure!(counts.zero_copy_bytes > 0, "{counts:?}");
        return Ok(format!("{sends} sends, no ENOBUFS"));
    }
    ensure!(
        refused == Some(libc::ENOBUFS),
        "{refused:?} after {sends} sends"
    );
    ensure!(
        sender.lacks().is_some() && counts.zero_copy_bytes == 0,
        "{counts:?}"
    );
    Ok(format!(
        "ENOBUFS after {sends} sends of 16 KiB with 64 KiB, dax-send copies and says why"
    ))
}

/// Trap 17: no page fault inside send, once the page tables around were filled.
pub fn populated(world: &World) -> Result<String> {
    const BYTES: u64 = 2 << 20;
    let file = number() as u16;
    let path = world.file("faults", file, BYTES)?;
    let card = world.card();
    let sender = Sender::new(Options {
        deadline: Duration::from_secs(30),
        ..options()
    });
    let (connection, mut sending) = card.open(&sender, card.ports.data, file, false)?;
    let mapped = mapped(&path)?;
    sending.queue(&mapped, 0..64 << 10);
    sending.finish()?;
    let faults = || getrusage(UsageWho::RUSAGE_THREAD).map(|it| it.minor_page_faults());
    let before = faults()?;
    let mut at = 64 << 10;
    while at < BYTES {
        sending.queue(&mapped, at..at + (64 << 10));
        while sending.advance(Instant::now())? != Progress::Idle || sending.open_tickets() > 0 {
            sending.completions(Instant::now())?;
        }
        at += 64 << 10;
    }
    let faults = faults()? - before;
    drop(sending);
    let report = card.report(connection, PATIENCE)?;
    ensure!(
        report.bytes == BYTES && report.foreign_bytes == 0,
        "{report:?}"
    );
    fs::remove_file(&path)?;
    // The queue's own memory may grow by some pages; 496 pages of the file were sent.
    ensure!(faults < 50, "{faults} page faults");
    Ok(format!("{faults} page faults for 496 pages"))
}

/// Trap 19: a bad block is an error of the file and no signal. It cannot be mended again: nothing else is done on
/// this device afterwards.
pub fn bad_block(world: &World, device: &str) -> Result<String> {
    let file = number() as u16;
    let path = world.file("bad", file, 256 << 10)?;
    let sector = sector_within(&path)?;
    let list = format!("/sys/block/{device}/badblocks");
    fs::write(&list, format!("{sector} 8")).with_context(|| list.clone())?;
    let card = world.card();
    let sender = Sender::new(options());
    let (connection, mut sending) = card.open(&sender, card.ports.data, file, false)?;
    sending.queue(&mapped(&path)?, 0..256 << 10);
    let failed = sending.finish();
    drop(sending);
    let read = fs::read(&path).map(|it| it.len());
    let report = card.report(connection, PATIENCE)?;
    ensure!(report.foreign_bytes == 0, "{report:?}");
    ensure!(read.is_err(), "read() takes the block for good");
    let Err(dax_send::Error::File { offset, source }) = failed else {
        bail!("{failed:?}; read() said {read:?}");
    };
    let read = read.map_or_else(|error| error.to_string(), |it| it.to_string());
    Ok(format!(
        "error at byte {offset} ({source}); read() says {read}"
    ))
}

/// A sector in the middle of the file's first extent, by page (`FIEMAP`, by filefrag, in blocks of 512 bytes).
fn sector_within(path: &Path) -> Result<u64> {
    let said = run("filefrag", &["-b512", "-v", &path.to_string_lossy()])?;
    // "   0:        0..     511:      12345..     12856:    512: ..."
    let line = said.lines().find(|it| it.trim_start().starts_with("0:"));
    let words: Vec<&str> = line.context("no extent")?.split(':').collect();
    let first = |word: usize| {
        let number = words.get(word).and_then(|it| it.split("..").next());
        number.context("filefrag names no number")
    };
    let (from, count): (u64, u64) = (first(2)?.trim().parse()?, first(3)?.trim().parse()?);
    Ok(from + count / 2 / PAGE_SECTORS * PAGE_SECTORS)
}

/// Trap 21: a shared extent is copied by who writes to its clone; what is in flight stays.
pub fn reflink(world: &World) -> Result<String> {
    const BYTES: u64 = 64 << 10;
    let file = number() as u16;
    let path = world.file("shared", file, BYTES)?;
    let clone = world.dir.join("clone");
    let _ = fs::remove_file(&clone);
    run(
        "cp",
        &[
            "--reflink=always",
            &path.to_string_lossy(),
            &clone.to_string_lossy(),
        ],
    )?;
    let card = world.card();
    let silence = Silence::begin(card)?;
    let sender = Sender::new(Options {
        deadline: Duration::from_secs(30),
        ..options()
    });
    let (connection, mut sending) = card.open(&sender, card.ports.silent, file, false)?;
    sending.queue(&mapped(&path)?, 0..BYTES);
    sending.advance(Instant::now())?;
    ensure!(sending.pinned_bytes() >= BYTES, "nothing is pinned");
    let writing = {
        let clone = clone.clone();
        raw::Timed::begin(move || {
            crate::world::overwrite(&clone, file, 2, BYTES).map_err(std::io::Error::other)
        })
    };
    let took = writing.wait(Duration::from_secs(3))?;
    drop(silence);
    sending.finish()?;
    drop(sending);
    if took.is_none() {
        ensure!(
            writing.wait(PATIENCE)?.is_some(),
            "the clone is never written"
        );
    }
    let report = card.report(connection, PATIENCE)?;
    ensure!(
        report.foreign_bytes == 0 && report.versions == (1, 1),
        "{report:?}"
    );
    fs::remove_file(&clone)?;
    fs::remove_file(&path)?;
    Ok(format!(
        "the clone was written after {took:?}, the peer has version 1 alone"
    ))
}

/// Trap 20 in small: nothing of ours keeps the file system busy.
pub fn lets_go(world: &World) -> Result<String> {
    let ours = fs::read_to_string("/proc/self/maps")?;
    let dir = world.dir.to_string_lossy().into_owned();
    let held: Vec<&str> = ours.lines().filter(|it| it.contains(&dir)).collect();
    let names = |line: &&str| line.contains("trap") || line.contains("naive");
    let unexpected: Vec<&&str> = held.iter().filter(|line| !names(line)).collect();
    ensure!(unexpected.is_empty(), "{unexpected:?}");
    Ok("no file is mapped that has no tickets".to_owned())
}

/// A socket that nobody needs, to see that the network is up.
pub fn is_up(card: &Card) -> bool {
    let raw = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::empty(),
        None,
    );
    raw.is_ok_and(|it| it.as_raw_fd() >= 0)
        && within(PATIENCE, || card.connect(card.ports.data, 1, false).is_ok())
}
