// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Senders that are killed at random moments, whose files are then freed and their blocks used again.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use dax_send::{Guard, Sender};
use fastrand::Rng;

use crate::free::{Filler, Free};
use crate::raw::Timed;
use crate::world::{Card, Silence, World, mapped, number, options};

const FILE_BYTES: u64 = 256 << 10;
/// Senders at a time.
const BATCH: usize = 8;
/// A sender lives at most so long after its connection stands.
const LIFE_MILLIS: u64 = 150;
/// Until guards have started, where all is emulated. Half of the batches are killed before.
const GUARDS_START: Duration = Duration::from_millis(800);
/// What takes longer waits for a peer.
const WAITS: Duration = Duration::from_secs(4);
const REPEATED: Duration = Duration::from_secs(60);

/// What was seen.
#[derive(Debug, Default)]
pub struct Sum {
    /// Senders that were killed.
    pub killed: usize,
    /// Of these, those whose peer had something of the file.
    pub begun: usize,
    /// Bytes that were not the file's.
    pub foreign_bytes: u64,
    /// Files that could not be freed before the peer was heard again.
    pub waited: usize,
    /// The longest time that freeing took.
    pub longest: Duration,
}

/// Kills senders, with the guard or without.
pub fn run(world: &World, guard: bool, kills: usize, seed: u64) -> Result<Sum> {
    let mut random = Rng::with_seed(seed);
    let mut sum = Sum::default();
    while sum.killed < kills {
        batch(world, guard, &mut random, &mut sum)
            .with_context(|| format!("seed {seed}: {sum:?}"))?;
    }
    Ok(sum)
}

fn batch(world: &World, guard: bool, random: &mut Rng, sum: &mut Sum) -> Result<()> {
    let card = world.card();
    let silence = Silence::begin(card)?;
    let mut children = Vec::new();
    for index in 0..BATCH {
        let file = number() as u16;
        let path = world.file(&format!("killed-{index}"), file, FILE_BYTES)?;
        let connection = number();
        // Every fourth has a peer that reads, so that some are killed among completions.
        let port = if random.u8(..4) == 0 {
            card.ports.data
        } else {
            card.ports.silent
        };
        let child = sender(&path, card, port, connection, file, guard)?;
        children.push((child, connection, path));
    }
    if guard && random.bool() {
        std::thread::sleep(GUARDS_START);
    }
    for (child, connection, _) in &mut children {
        if !card.has_begun(*connection, Duration::from_secs(20))? {
            bail!("a sender has not begun: {:?}", child.try_wait()?);
        }
        std::thread::sleep(Duration::from_millis(random.u64(..LIFE_MILLIS)));
        child.kill()?;
        child.wait()?;
    }
    let freeing: Vec<Timed> = children
        .iter()
        .map(|(_, _, path)| {
            let (path, free) = (path.clone(), Free::ALL[random.usize(..3)]);
            Timed::begin(move || free.apply(&path))
        })
        .collect();
    let until = Instant::now() + WAITS;
    let mut waiting = Vec::new();
    for one in freeing {
        match one.wait(until.saturating_duration_since(Instant::now()))? {
            Some(took) => sum.longest = sum.longest.max(took),
            None => waiting.push(one),
        }
    }
    let filler = Filler::fill(&world.dir)?;
    drop(silence);
    sum.waited += waiting.len();
    for one in waiting {
        ensure!(one.wait(REPEATED)?.is_some(), "a file is never freed");
    }
    for (_, connection, path) in &children {
        let report = card.report(*connection, REPEATED)?;
        sum.killed += 1;
        sum.begun += usize::from(report.bytes > 0);
        sum.foreign_bytes += report.foreign_bytes;
        // It is gone if it was unlinked.
        let _ = std::fs::remove_file(path);
    }
    drop(filler);
    Ok(())
}

/// Starts a sender, which is this program again.
fn sender(
    path: &Path,
    card: &Card,
    port: u16,
    connection: u64,
    file: u16,
    guard: bool,
) -> Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("sender").arg(path);
    command.arg(format!("{}:{port}", card.address));
    command.arg(connection.to_string()).arg(file.to_string());
    if guard {
        command.arg("--guarded");
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().context("a sender cannot be started")
}

/// What such a sender does: it sends its file over and over on one connection. It never ends by itself while its peer is
/// silent.
pub fn send(
    path: &Path,
    card: &Card,
    port: u16,
    number: u64,
    file: u16,
    guarded: bool,
) -> Result<()> {
    let mut patient = options();
    patient.deadline = Duration::from_secs(60);
    let sender = if guarded {
        let mut command = Command::new("/proc/self/exe");
        Sender::guarded(patient, Guard::start(command.arg("guard"))?)
    } else {
        Sender::new(patient)
    };
    let mapped = mapped(path)?;
    let stream = card.connect_as(port, number, file, false)?;
    let mut sending = sender.connection(stream)?;
    // Piece by piece, so that it may be killed anywhere between two system calls.
    for begin in (0..FILE_BYTES).step_by(16 << 10) {
        sending.queue(&mapped, begin..begin + (16 << 10));
        sending.advance(Instant::now())?;
    }
    sending.finish()?;
    std::thread::sleep(Duration::from_secs(3600));
    Ok(())
}
