// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is copied, and what goes itself.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use dax_send::{Counts, Options, PageCache, Progress, Reason, Sender};

use crate::peer::End;
use crate::world::{Card, Copies, Silence, World, mapped, number, options, overwrite};

const ALIAS_BYTES: u64 = 64 << 10;
const BULK_BYTES: u64 = 4 << 20;
/// Where the kernel tells what it does.
const TRACING: &str = "/sys/kernel/tracing";
/// Functions of the kernel that copy what is sent, or read from DAX files into memory.
const COPYING: [&str; 3] = ["skb_copy_ubufs", "dax_iomap_rw", "copy_splice_read"];

/// Cuts what is sent into packets; without scatter-gather it copies.
const SEGMENTS: &str = "skb_segment";
/// Functions that may copy behind the socket.
const COPYING_LATER: [&str; 4] = [
    "skb_copy_ubufs",
    SEGMENTS,
    "skb_copy_and_csum_bits",
    "__pskb_pull_tail",
];

/// How bytes are sent in the alias test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By dax-send.
    Ours,
    /// By `sendfile(2)`.
    Sendfile,
}

/// Sends to a peer that acknowledges nothing, writes version 2 over the file, and lets the peer have the rest.
/// Returns whether version 2 arrived: then the pages themselves were sent. Only of the first card.
pub fn alias(world: &World, way: Way) -> Result<bool> {
    let file = number() as u16;
    let path = world.file("alias", file, ALIAS_BYTES)?;
    let card = world.card();
    let silence = Silence::begin(card)?;
    let sender = Sender::new(Options {
        deadline: Duration::from_secs(30),
        page_cache: PageCache::ZeroCopy,
        ..options()
    });
    let (connection, mut sending) = card.open(&sender, card.ports.silent, file, false)?;
    let mapped = mapped(&path)?;
    if way == Way::Sendfile {
        let (to, from) = (sending.stream().as_raw_fd(), mapped.file().as_raw_fd());
        // SAFETY: both descriptors are open, and no offset is handed over.
        let sent = unsafe { libc::sendfile(to, from, std::ptr::null_mut(), ALIAS_BYTES as usize) };
        ensure!(sent == ALIAS_BYTES as isize, "sendfile took {sent}");
    } else {
        let ticket = sending.queue(&mapped, 0..ALIAS_BYTES);
        let progress = sending.advance(Instant::now())?;
        ensure!(progress == Progress::Idle, "not all was taken");
        sending.completions(Instant::now())?;
        ensure!(
            !sending.is_done(ticket),
            "a ticket is done without an acknowledgement"
        );
    }
    overwrite(&path, file, 2, ALIAS_BYTES)?;
    drop(silence);
    sending.finish()?;
    if way == Way::Sendfile {
        drop(sending);
    }
    let report = card.report(connection, Duration::from_secs(1))?;
    let report = if report.bytes < ALIAS_BYTES {
        card.report(connection, Duration::from_secs(20))?
    } else {
        report
    };
    ensure!(report.foreign_bytes == 0, "{report:?}");
    ensure!(report.bytes == ALIAS_BYTES, "{report:?}");
    fs::remove_file(&path)?;
    Ok(report.versions.1 == 2)
}

/// Sends megabytes and looks at how; returns the counters.
pub fn bulk(world: &World, card: &Card, options: Options) -> Result<Counts> {
    let file = number() as u16;
    let path = world.file("bulk", file, BULK_BYTES)?;
    let sender = Sender::new(options);
    let (connection, mut sending) = card.open(&sender, card.ports.data, file, false)?;
    sending.queue(&mapped(&path)?, 0..BULK_BYTES);
    sending.finish()?;
    ensure!(sending.open_tickets() == 0, "tickets are open");
    drop(sending);
    let report = card.report(connection, Duration::from_secs(20))?;
    ensure!(
        report.bytes == BULK_BYTES && report.foreign_bytes == 0 && report.end == End::Fin,
        "{report:?}"
    );
    fs::remove_file(&path)?;
    let counts = sender.counts();
    ensure!(counts.pinned_bytes == 0, "{counts:?}");
    Ok(counts)
}

/// The choice follows what the kernel says of the card.
pub fn choice(world: &World, card: &Card) -> Result<String> {
    let mut counts = Counts::default();
    let patient = Options {
        deadline: Duration::from_secs(30),
        ..options()
    };
    let traced = traced(0, &COPYING_LATER, || {
        counts = bulk(world, card, patient)?;
        Ok(())
    })?;
    let ours = counts.copied_bytes[Reason::KernelCopies as usize];
    let words = format!(
        "zero-copy {}, copied by the kernel {}, by us {ours}; {:?}",
        counts.zero_copy_bytes, counts.kernel_copied_bytes, traced.calls
    );
    match card.copies {
        Copies::Never => {
            // What is left behind a short send may be too small to pay.
            let small = counts.copied_bytes[Reason::Small as usize];
            let zero = counts.kernel_copied_bytes == 0
                && counts.zero_copy_bytes + small == BULK_BYTES
                && small < BULK_BYTES / 100;
            ensure!(zero, "{words}: {counts:?}");
        }
        Copies::Told => {
            let copied = counts.zero_copy_bytes == 0 && ours >= BULK_BYTES / 4;
            ensure!(copied, "{words}: {counts:?}");
        }
        // It goes its way, and nothing is told that could be followed.
        Copies::Untold => {
            let segmented = traced
                .calls
                .iter()
                .any(|(name, count)| *name == SEGMENTS && *count > 0);
            ensure!(ours > 0 || segmented, "{words}");
        }
    }
    Ok(words)
}

/// Not on DAX: plain `sendfile`, nothing pinned.
pub fn falls_back(world: &World) -> Result<String> {
    let counts = bulk(world, world.card(), options())?;
    let plain = counts.sendfile_bytes == BULK_BYTES && counts.pinned_bytes_peak == 0;
    ensure!(plain, "{counts:?}");
    Ok("by sendfile, nothing pinned".to_owned())
}

/// What the kernel did meanwhile: pages added to the page cache for a file, and calls of functions.
#[derive(Debug)]
pub struct Traced {
    /// Pages of the file.
    pub added_pages: u64,
    /// Those that the kernel can trace.
    pub calls: Vec<(&'static str, u64)>,
}

/// Pages that a way of sending adds to the page cache, and calls of functions that copy.
pub fn traced_way(world: &World, way: Way) -> Result<Traced> {
    let file = number() as u16;
    let path = world.file("traced", file, BULK_BYTES)?;
    let inode = fs::metadata(&path)?.ino();
    let seen = traced(inode, &COPYING, || {
        traced_send(world.card(), &path, file, way)
    })?;
    fs::remove_file(&path)?;
    Ok(seen)
}

fn traced(
    inode: u64,
    functions: &[&'static str],
    send: impl FnOnce() -> Result<()>,
) -> Result<Traced> {
    let set = |name: &str, value: &str| {
        fs::write(format!("{TRACING}/{name}"), value).with_context(|| format!("{name} = {value}"))
    };
    let known = fs::read_to_string(format!("{TRACING}/available_filter_functions"))?;
    let known: HashSet<&str> = known
        .lines()
        .filter_map(|it| it.split(' ').next())
        .collect();
    let watched: Vec<&'static str> = functions
        .iter()
        .copied()
        .filter(|name| known.contains(name))
        .collect();
    ensure!(watched.len() >= 2, "the kernel traces only {watched:?}");
    set("trace", "")?;
    set("set_ftrace_filter", &watched.join("\n"))?;
    set("current_tracer", "function")?;
    set("events/filemap/mm_filemap_add_to_page_cache/enable", "1")?;
    set("tracing_on", "1")?;
    let sent = send();
    set("tracing_on", "0")?;
    set("events/filemap/mm_filemap_add_to_page_cache/enable", "0")?;
    let trace = fs::read_to_string(format!("{TRACING}/trace"))?;
    set("current_tracer", "nop")?;
    sent?;
    let lines = |what: &str| trace.lines().filter(|it| it.contains(what)).count() as u64;
    let inode = format!("ino {inode:x} ");
    let added = trace
        .lines()
        .filter(|it| it.contains("mm_filemap_add_to_page_cache") && it.contains(&inode));
    let calls = watched
        .iter()
        .map(|name| (*name, lines(&format!("{name} <-"))));
    Ok(Traced {
        added_pages: added.count() as u64,
        calls: calls.collect(),
    })
}

fn traced_send(card: &Card, path: &std::path::Path, file: u16, way: Way) -> Result<()> {
    let sender = Sender::new(Options {
        deadline: Duration::from_secs(30),
        ..options()
    });
    if way == Way::Ours {
        let (_, mut sending) = card.open(&sender, card.ports.data, file, false)?;
        sending.queue(&mapped(path)?, 0..BULK_BYTES);
        sending.finish()?;
        return Ok(());
    }
    let (_, stream) = card.connect(card.ports.data, file, false)?;
    let from = File::open(path)?;
    let mut left = BULK_BYTES as usize;
    while left > 0 {
        let (to, from) = (stream.as_raw_fd(), from.as_raw_fd());
        // SAFETY: both descriptors are open, and no offset is handed over.
        let sent = unsafe { libc::sendfile(to, from, std::ptr::null_mut(), left) };
        match usize::try_from(sent) {
            Ok(sent) if sent > 0 => left -= sent,
            _ => bail!("sendfile: {}", std::io::Error::last_os_error()),
        }
    }
    Ok(())
}
