// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Blocks that are freed and used again while a silent peer has not acknowledged what was sent from them.

use std::time::Duration;

use anyhow::{Result, ensure};
use dax_send::{Error, Sender};

use crate::free::{Filler, Free};
use crate::raw::{self, Timed};
use crate::world::{DEADLINE, Silence, World, mapped, number, options, within};

/// More than what a full file system keeps for itself, so that some of it is used again.
const FILE_BYTES: u64 = 256 << 10;
/// What takes longer beside a silent peer waits for it.
const WAITS: Duration = Duration::from_secs(4);
/// Until the peer has all that TCP repeats.
const REPEATED: Duration = Duration::from_secs(30);

/// What happened to a sender by hand, which unmaps at once.
#[derive(Debug)]
pub struct Naive {
    /// How long freeing took; none: until the peer was heard again.
    pub took: Option<Duration>,
    /// Bytes that were not the file's.
    pub foreign_bytes: u64,
}

/// Zero-copy by hand: the mapping goes right behind the send.
pub fn naive(world: &World, free: Free) -> Result<Naive> {
    let file = number() as u16;
    let path = world.file("naive", file, FILE_BYTES)?;
    let card = world.card();
    let silence = Silence::begin(card)?;
    let (connection, stream) = card.connect(card.ports.silent, file, false)?;
    let mapping = raw::map(&path)?;
    raw::enable(&stream)?;
    let sent = raw::send(&stream, &mapping, 0, FILE_BYTES as usize)?;
    ensure!(sent as u64 == FILE_BYTES, "not all was taken");
    drop(mapping);
    let freeing = {
        let path = path.clone();
        Timed::begin(move || free.apply(&path))
    };
    let took = freeing.wait(WAITS)?;
    let filler = took.map(|_| Filler::fill(&world.dir)).transpose()?;
    drop(silence);
    if took.is_none() {
        let took = freeing.wait(REPEATED)?;
        ensure!(took.is_some(), "{} never returned", free.name());
    }
    drop(stream);
    let report = card.report(connection, REPEATED)?;
    ensure!(report.bytes == FILE_BYTES, "{report:?}");
    drop(filler);
    if free != Free::Unlink {
        Free::Unlink.apply(&path)?;
    }
    Ok(Naive {
        took,
        foreign_bytes: report.foreign_bytes,
    })
}

/// What is expected of a naive sender on this kernel, and what it shows.
pub fn naive_check(world: &World, free: Free) -> Result<String> {
    let seen = naive(world, free)?;
    let words = match seen.took {
        Some(took) => format!(
            "returned after {:.2} s, {} of {FILE_BYTES} bytes were another file's",
            took.as_secs_f32(),
            seen.foreign_bytes
        ),
        None => format!("waited for the peer, {} foreign bytes", seen.foreign_bytes),
    };
    if world.frees_wait() {
        ensure!(seen.took.is_none() && seen.foreign_bytes == 0, "{words}");
    } else {
        // What the kernel's fault is: a kernel that has mended it makes this check fail, and the documents old.
        ensure!(seen.took.is_some() && seen.foreign_bytes > 0, "{words}");
    }
    Ok(words)
}

/// By dax-send: freeing returns within the deadline, and no foreign byte leaves.
pub fn ours(world: &World, free: Free) -> Result<String> {
    let file = number() as u16;
    let path = world.file("ours", file, FILE_BYTES)?;
    let card = world.card();
    let silence = Silence::begin(card)?;
    let sender = Sender::new(options());
    let (connection, mut sending) = card.open(&sender, card.ports.silent, file, false)?;
    sending.queue(&mapped(&path)?, 0..FILE_BYTES);
    sending.advance(std::time::Instant::now())?;
    ensure!(sending.pinned_bytes() >= FILE_BYTES, "nothing is pinned");
    let freeing = {
        let path = path.clone();
        Timed::begin(move || free.apply(&path))
    };
    let failed = sending.finish();
    ensure!(matches!(failed, Err(Error::Overdue { .. })), "{failed:?}");
    drop(sending);
    let took = freeing.wait(DEADLINE)?;
    let Some(took) = took else {
        anyhow::bail!("{} did not return", free.name());
    };
    ensure!(
        took <= DEADLINE + Duration::from_secs(1),
        "it took {took:?}"
    );
    let returned = within(Duration::from_secs(1), || {
        sender.reap();
        sender.counts().pinned_bytes == 0 && sender.counts().leftovers == 0
    });
    ensure!(returned, "{:?}", sender.counts());
    let filler = Filler::fill(&world.dir)?;
    drop(silence);
    let report = card.report(connection, Duration::from_secs(2))?;
    ensure!(report.foreign_bytes == 0, "{report:?}");
    drop(filler);
    if free != Free::Unlink {
        Free::Unlink.apply(&path)?;
    }
    Ok(format!(
        "returned after {:.2} s, deadline {} s; 0 foreign bytes; pinned at most {}, then 0",
        took.as_secs_f32(),
        DEADLINE.as_secs(),
        sender.counts().pinned_bytes_peak
    ))
}

/// A client that stops reading: its window closes, TCP is content, and the deadline frees what is pinned.
pub fn slow_reader(world: &World) -> Result<String> {
    const BYTES: u64 = 12 << 20;
    let file = number() as u16;
    let path = world.file("slow", file, BYTES)?;
    let card = world.card();
    let mut bounded = options();
    bounded.connection_pinned_bytes_max = 256 << 10;
    let sender = Sender::new(bounded);
    let (connection, mut sending) = card.open(&sender, card.ports.data, file, true)?;
    sending.queue(&mapped(&path)?, 0..BYTES);
    let failed = sending.finish();
    ensure!(matches!(failed, Err(Error::Overdue { .. })), "{failed:?}");
    drop(sending);
    let none = within(Duration::from_secs(1), || {
        sender.reap();
        sender.counts().pinned_bytes == 0
    });
    let counts = sender.counts();
    ensure!(none && counts.overdue == 1, "{counts:?}");
    ensure!(counts.pinned_bytes_peak <= 256 << 10, "{counts:?}");
    card.read_on(connection)?;
    let report = card.report(connection, REPEATED)?;
    ensure!(
        report.foreign_bytes == 0 && report.bytes < BYTES,
        "{report:?}"
    );
    Free::Unlink.apply(&path)?;
    Ok(format!(
        "reset at the deadline; pinned at most {}, then 0",
        counts.pinned_bytes_peak
    ))
}
