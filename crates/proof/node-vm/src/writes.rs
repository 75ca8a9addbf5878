// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Power is cut under SETs that are answered in Redis's place, and the disk loses its cache: what do Redis's log and the
//! journal have then of what the clients were told?
//!
//! ```text
//! boot ─► (hold what the last cut has left against what was told ─► apply it) ─► a new Redis, boosted ─► calls ─► a cut ─► boot
//! ```
//!
//! What is promised of each cut says `writes_judge`. A file that was synced, and one that was not, lie beside: the disk
//! has to keep the one and to lose the other, or a cut shows nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use erb_vm::boots::{Boot, Booted, Boots, Place};
use erb_vm::device::{Bus, Device};
use serde_json::Value;

use crate::drive::Drive;
use crate::guest::{Time, card, free_port, until_up, verdict};
use crate::writes_inside::COMMANDS;
use crate::writes_judge::{Book, Left, When, applied, judge, keys_of, records_of};
use crate::writes_load::Told;

const BOOT: Duration = Duration::from_secs(600);
const ANSWER: Duration = Duration::from_secs(400);
/// Ends a guest whose power is not cut.
const GUEST: Duration = Duration::from_secs(900);
/// ERB gets to where it is waited for.
const STATUS: Duration = Duration::from_secs(200);
const MIB: usize = 1 << 20;
/// Where the drive is served.
const DISK: &str = "disk";
/// Longer than Redis takes to sync its log.
const QUIET: Duration = Duration::from_secs(6);
/// Redis stands still for longer than what may be lost.
const STOPPED_MIN: Duration = Duration::from_secs(3);
/// So many calls are answered before a cut is thought of.
const CALLS_MIN: usize = 200;

/// Arguments.
#[derive(Debug, Args)]
pub struct Writes {
    #[command(flatten)]
    guests: Place,
    /// The cuts, in their order.
    #[arg(long, value_enum, value_delimiter = ',')]
    cuts: Vec<When>,
    /// No cut is begun that would not end by then, if it takes as long as the longest so far.
    #[arg(long, default_value_t = 3_600)]
    seconds: u64,
    /// Of all that is random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The drive says that it has flushed, and has not: the test has to find that out.
    #[arg(long)]
    lying: bool,
}

/// A guest. It ends with this.
struct Machine {
    guest: Booted,
    port: u16,
}

impl Machine {
    fn boot(boots: &Boots) -> Result<Self> {
        let port = free_port()?;
        let disk = Device::Served {
            socket: DISK,
            bus: Bus::Virtio,
        };
        let guest = boots.boot(Boot {
            devices: vec![card(vec![(port, COMMANDS)]), disk],
            limit: GUEST,
        });
        let machine = Self { guest, port };
        until_up(&machine.guest, BOOT, || machine.tell("ping"))?;
        Ok(machine)
    }

    /// Has a command done; what was said to it.
    fn tell(&self, line: &str) -> Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(ANSWER))?;
        writeln!(stream, "{line}")?;
        let mut said = Vec::new();
        stream.read_to_end(&mut said)?;
        let (is_done, said) = said.split_first().context("nothing was said")?;
        let said = String::from_utf8_lossy(said).into_owned();
        ensure!(*is_done == 1, "{line}: {said}");
        Ok(said)
    }

    fn step(&self, step: &str) -> Result<String> {
        self.tell(&format!("step {step}"))
    }

    /// What ERB says of itself, once that is good.
    fn status(&self, is_good: impl Fn(&Value) -> bool) -> Result<Value> {
        let begun = Instant::now();
        loop {
            let status = serde_json::from_str(&self.step("status")?)?;
            if is_good(&status) {
                return Ok(status);
            }
            ensure!(begun.elapsed() < STATUS, "ERB says of itself: {status}");
        }
    }
}

type Shared = Arc<Mutex<Book>>;

/// The clients begin; what they are told is in the book from here on.
fn load(machine: &Machine) -> Result<Shared> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let shared = Shared::default();
    let book = shared.clone();
    thread::spawn(move || -> Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut bytes = [0; Told::BYTES];
        loop {
            match stream.read_exact(&mut bytes) {
                // The power is gone.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
                read => read?,
            }
            let told = Told::from_bytes(&bytes)?;
            let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
            book.now_us = book.now_us.max(told.answered_us);
            if !told.is_clock() {
                book.told.push(told);
            }
        }
    });
    machine.tell(&format!("load {port}"))?;
    until_told(&shared, CALLS_MIN, ANSWER)?;
    Ok(shared)
}

fn until_told(shared: &Shared, calls: usize, most: Duration) -> Result<()> {
    let begun = Instant::now();
    while seen(shared).told.len() < calls {
        ensure!(begun.elapsed() < most, "nothing is answered");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn seen(shared: &Shared) -> Book {
    shared
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

fn absorbed(status: &Value) -> u64 {
    let counters = status["counters"].as_array().map_or(&[][..], Vec::as_slice);
    let found = counters.iter().find(|one| one["name"] == "ABSORBED");
    found.and_then(|one| one["count"].as_u64()).unwrap_or(0)
}

/// Redis stands still until what was answered meanwhile is kept; so many calls.
fn stand_still(machine: &Machine, when: When) -> Result<usize> {
    if when == When::Synced {
        machine.tell("pause")?;
        thread::sleep(QUIET);
    }
    machine.step("stop")?;
    machine.tell("go")?;
    let stopped = Instant::now();
    let status = machine.status(|status| {
        let writes = &status["writes"];
        let is_kept = writes["waiting"] == writes["journal"]["waiting"];
        writes["open"] == false && writes["waiting"] != 0 && is_kept
    })?;
    thread::sleep(STOPPED_MIN.saturating_sub(stopped.elapsed()));
    let waiting = status["writes"]["waiting"].as_u64().unwrap_or(0);
    Ok(usize::try_from(waiting)?)
}

/// A Redis, boosted, its load, and a cut; what the clients were told by then.
fn round(machine: &Machine, when: When, random: &mut fastrand::Rng) -> Result<Book> {
    for step in ["clear", "redis"] {
        machine.step(step)?;
    }
    if when.is_boosted() {
        machine.step(&format!("boost {}", when.keeps()))?;
        machine.status(|status| status["writes"]["open"] == true)?;
    }
    machine.tell("synced")?;
    let shared = load(machine)?;
    let mut sleep = |ms: std::ops::Range<u64>| thread::sleep(Duration::from_millis(random.u64(ms)));
    sleep(500..3_000);
    if when.is_boosted() {
        let absorbed = absorbed(&machine.status(|_| true)?);
        let told = seen(&shared).told.len() as u64;
        ensure!(absorbed * 2 > told, "{absorbed} of {told} were absorbed");
    }
    sleep(500..3_000);
    let waiting = match when.stands_still() {
        true => stand_still(machine, when)?,
        false => 0,
    };
    machine.tell("unsynced")?;
    match when {
        When::Young => {
            machine.step("stop")?;
            sleep(20..300);
        }
        When::Resumed => {
            let told = seen(&shared).told.len();
            machine.step("continue")?;
            // Who waited for too long has been reset, and then nobody is told any more.
            let _ = until_told(&shared, told + 1, Duration::from_secs(2));
            sleep(20..700);
        }
        _ => {}
    }
    machine.guest.cut();
    let mut book = seen(&shared);
    book.waiting = waiting;
    Ok(book)
}

fn look(machine: &Machine) -> Result<Left> {
    machine.step("mount")?;
    let witness = machine.tell("witness")?;
    ensure!(
        witness == "true false",
        "synced and not synced, they are there: {witness}"
    );
    for step in ["redis", "check"] {
        machine.step(step)?;
    }
    Ok(Left {
        redis: keys_of(&machine.tell("keys")?)?,
        journal: records_of(&machine.step("show")?)?,
    })
}

/// Brings what the journal has to Redis: then both are there, and nothing else.
fn apply(machine: &Machine, left: &Left) -> Result<()> {
    if !left.journal.is_empty() {
        machine.step("apply")?;
    }
    ensure!(
        keys_of(&machine.tell("keys")?)? == applied(left),
        "Redis has other keys than it had and the journal"
    );
    machine.step("discard")?;
    Ok(())
}

/// The drive keeps what it has flushed, and loses the rest with its power: nobody between guest and drive says otherwise.
fn control(machine: &Machine, drive: &Drive) -> Result<()> {
    machine.step("raw flushed one")?;
    machine.step("raw unflushed two")?;
    let before = machine.step("raw-read")?;
    drive.cut_all();
    drive.power_on();
    let behind = machine.step("raw-read")?;
    println!(
        "control: before a cut of the drive it had {}, behind it {}; the guest says its cache is {}",
        before.trim(),
        behind.trim(),
        machine.step("cache")?.trim()
    );
    ensure!(
        before.trim() == "two" && behind.trim() == "one",
        "the drive is no drive with a cache"
    );
    Ok(())
}

fn play(args: &Writes, boots: &Boots, drive: &Drive) -> Result<()> {
    let mut time = Time::begin(Duration::from_secs(args.seconds));
    let mut random = fastrand::Rng::with_seed(args.seed);
    let mut machine = Machine::boot(boots)?;
    control(&machine, drive)?;
    for step in ["format", "mount"] {
        machine.step(step)?;
    }
    for when in args.cuts.iter().copied() {
        if !time.is_left() {
            break;
        }
        if args.lying {
            drive.lie();
        }
        let book =
            round(&machine, when, &mut random).with_context(|| format!("before {when:?}"))?;
        machine.guest.end()?;
        drive.cut();
        drive.power_on();
        machine = Machine::boot(boots)?;
        let left = look(&machine).with_context(|| format!("behind {when:?}"))?;
        let found = judge(when, &book, &left).with_context(|| format!("{when:?}"))?;
        println!("{} s: {when:?}: {found}", time.seconds());
        apply(&machine, &left)?;
        time.made();
    }
    println!("{:?}", drive.counts());
    time.is_over(args.cuts.len())
}

/// Runs it.
pub fn run(args: &Writes) -> Result<()> {
    ensure!(!args.cuts.is_empty(), "no cuts are wanted");
    let drive = Drive::new(192 * MIB, args.seed);
    drive.serve(&args.guests.dir.join(DISK))?;
    let boots = Boots::new(args.guests.clone())?;
    let ended = play(args, &boots, &drive);
    verdict(ended, args.lying, drive.counts().lied)?;
    match args.lying {
        // A kernel may complain of what a file system has lost.
        true => Ok(()),
        false => boots.are_quiet(),
    }
}
