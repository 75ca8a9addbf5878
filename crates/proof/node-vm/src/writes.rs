// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Power is cut under SETs that are answered in Redis's place, and the disk loses its cache: what do Redis's log and the
//! journal have then of what the client was told?
//!
//! ```text
//! boot ─► (check what the last cut has left ─► apply it) ─► a new Redis, boosted ─► SETs ─► a cut of the machine ─► boot
//! ```
//!
//! | cut | what must be there |
//! | --- | --- |
//! | at work | in Redis all but [`WINDOW_MS`] of what was told, and a prefix |
//! | Redis stood still, what waits is kept | that, and in the journal all that waited, without a gap |
//! | the same, and Redis's log was synced before | everything |

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::drive::Drive;
use crate::guest::{Guest, free_port, until_up};

const BOOT: Duration = Duration::from_secs(600);
const ANSWER: Duration = Duration::from_secs(400);
const MIB: usize = 1 << 20;
/// Redis syncs its log each second, and one sync may be under way for another; half a second more until what waits is
/// kept.
const WINDOW_MS: u64 = 2_500;
/// Longer than all that.
const QUIET: Duration = Duration::from_secs(6);

/// Arguments.
#[derive(Debug, Args)]
pub struct Writes {
    /// Boots a guest. Arguments: --boot, the kernel, the host's port of commands, the drive's socket, a file for QEMU's
    /// process id.
    boot: PathBuf,
    /// Where sockets are made.
    folder: PathBuf,
    /// Cuts.
    #[arg(long, default_value_t = 4)]
    rounds: u64,
    /// Of all that is random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The drive says that it has flushed, and has not: the test has to find that out.
    #[arg(long)]
    lying: bool,
    /// Debian's package of the kernel.
    #[arg(long)]
    kernel: String,
}

/// What a cut comes behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Stopped,
    Synced,
    AtWork,
}

const ALL: [When; 3] = [When::Stopped, When::Synced, When::AtWork];

/// Numbers of the SETs that the client was told of, each with its time, ms.
type Told = Arc<Mutex<Vec<(u64, u64)>>>;

/// What was left of a round.
#[derive(Debug, Default)]
struct Left {
    redis: BTreeSet<u64>,
    journal: Vec<u64>,
}

/// A guest. It ends with this.
struct Machine {
    guest: Guest,
    port: u16,
}

impl Machine {
    fn boot(args: &Writes) -> Result<Self> {
        let port = free_port()?;
        let pid_file = args.folder.join("pid");
        let mut command = Command::new(&args.boot);
        command
            .arg("--boot")
            .arg(&args.kernel)
            .arg(port.to_string());
        command.arg(args.folder.join("disk")).arg(&pid_file);
        let machine = Self {
            guest: Guest::start(&mut command, pid_file)?,
            port,
        };
        until_up(BOOT, || machine.tell("ping"))?;
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
}

/// The client's load; what it is told is in the book from here on.
fn load(machine: &Machine) -> Result<Told> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let told = Told::default();
    let book = told.clone();
    thread::spawn(move || -> Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut line = [0; 16];
        loop {
            match stream.read_exact(&mut line) {
                // The power is gone.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
                read => read?,
            }
            let (number, ms) = line.split_at(8);
            let pair = (be(number)?, be(ms)?);
            book.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(pair);
        }
    });
    machine.tell(&format!("load {port}"))?;
    let begun = Instant::now();
    while count(&told) < 100 {
        ensure!(begun.elapsed() < ANSWER, "nothing is answered");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(told)
}

fn be(bytes: &[u8]) -> Result<u64> {
    Ok(u64::from_be_bytes(bytes.try_into()?))
}

fn count(told: &Told) -> usize {
    told.lock().unwrap_or_else(PoisonError::into_inner).len()
}

/// A Redis, boosted, its load, and a cut; what the client was told by then.
fn round(machine: &Machine, when: When, random: &mut fastrand::Rng) -> Result<Vec<(u64, u64)>> {
    for step in ["clear", "redis", "boost"] {
        machine.step(step)?;
    }
    let told = load(machine)?;
    thread::sleep(Duration::from_millis(random.u64(2_000..6_000)));
    match when {
        When::AtWork => {}
        When::Stopped => {
            machine.step("stop")?;
            machine.step("kept")?;
        }
        When::Synced => {
            machine.tell("pause")?;
            thread::sleep(QUIET);
            machine.step("stop")?;
            machine.tell("go")?;
            machine.step("kept")?;
        }
    }
    machine.guest.end()?;
    let told = told.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(told.clone())
}

fn numbers(text: &str) -> Result<BTreeSet<u64>> {
    let lines = text.lines().filter_map(|line| line.strip_prefix('k'));
    lines.map(|number| Ok(number.parse()?)).collect()
}

/// Keys of `erb journal show --json`, in their order.
fn shown(text: &str) -> Result<Vec<u64>> {
    let key = |line: &str| -> Result<u64> {
        let at = line.split_once("\"key\":\"k").context("no key")?.1;
        Ok(at.split_once('"').context("no key")?.0.parse()?)
    };
    text.lines().map(key).collect()
}

fn look(machine: &Machine) -> Result<Left> {
    for step in ["mount", "redis", "check"] {
        machine.step(step)?;
    }
    Ok(Left {
        redis: numbers(&machine.step("keys")?)?,
        journal: shown(&machine.step("show")?)?,
    })
}

/// Says what is not as it is promised.
fn judge(when: When, told: &[(u64, u64)], left: &Left) -> Result<String> {
    let redis = left.redis.len() as u64;
    ensure!(
        left.redis.iter().copied().eq(1..=redis),
        "Redis's log has no prefix: {redis} keys, the last {:?}",
        left.redis.last()
    );
    let gaps = left.journal.windows(2).filter(|two| two[0] + 1 != two[1]);
    let first = left.journal.first().copied().unwrap_or(u64::MAX);
    let is_there = |number: u64| number <= redis || left.journal.binary_search(&number).is_ok();
    let lost: Vec<&(u64, u64)> = told.iter().filter(|one| !is_there(one.0)).collect();
    let last = told.last().context("nothing was told")?;
    // With Redis standing still, what is lost stood before what was kept.
    let end = match when {
        When::AtWork => last,
        _ => {
            ensure!(!left.journal.is_empty(), "the journal has nothing");
            ensure!(gaps.count() == 0, "the journal has a gap");
            let behind = lost.iter().find(|one| one.0 > first);
            ensure!(behind.is_none(), "what waited is not kept: {behind:?}");
            let at_first = told.iter().find(|one| one.0 >= first);
            at_first.unwrap_or(last)
        }
    };
    let window = lost.first().map_or(0, |one| end.1.saturating_sub(one.1));
    ensure!(
        when != When::Synced || lost.is_empty(),
        "{} SETs are lost whose log was synced",
        lost.len()
    );
    ensure!(window <= WINDOW_MS, "{window} ms are lost");
    Ok(format!(
        "{when:?}: {} told, {redis} in Redis, {} in the journal, {} lost of {window} ms",
        told.len(),
        left.journal.len(),
        lost.len()
    ))
}

/// Brings what the journal has to Redis: then both are there, and nothing else.
fn apply(machine: &Machine, left: &Left) -> Result<()> {
    machine.step("apply")?;
    let wanted: BTreeSet<u64> = left.redis.iter().chain(&left.journal).copied().collect();
    ensure!(
        numbers(&machine.step("keys")?)? == wanted,
        "not all was applied"
    );
    let wrong = machine.step("wrong")?;
    ensure!(wrong.trim() == "0", "{wrong} values are others");
    machine.step("discard")?;
    Ok(())
}

fn play(args: &Writes, drive: &Drive) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(args.seed);
    let mut machine = Machine::boot(args)?;
    for step in ["format", "mount"] {
        machine.step(step)?;
    }
    for number in 0..args.rounds {
        let when = ALL[(number % 3) as usize];
        if args.lying {
            drive.lie();
        }
        let told = round(&machine, when, &mut random)?;
        drop(machine);
        drive.cut();
        drive.power_on();
        machine = Machine::boot(args)?;
        let left = look(&machine)?;
        println!("{}; {:?}", judge(when, &told, &left)?, drive.counts());
        apply(&machine, &left)?;
    }
    Ok(())
}

/// Runs it.
pub fn run(args: &Writes) -> Result<()> {
    let drive = Drive::new(192 * MIB, args.seed);
    drive.serve(&args.folder.join("disk"))?;
    match (play(args, &drive), args.lying) {
        (ended, false) => ended,
        (Ok(()), true) => bail!("the drive lied, and nothing was lost: the test shows nothing"),
        (Err(error), true) => {
            println!("as it has to be with a drive that lies: {error:#}");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(redis: u64, journal: std::ops::RangeInclusive<u64>) -> Left {
        Left {
            redis: (1..=redis).collect(),
            journal: journal.collect(),
        }
    }

    #[test]
    fn what_is_missing_is_found() {
        // One each 10 ms.
        let told: Vec<(u64, u64)> = (1..=1_000).map(|number| (number, 10 * number)).collect();
        let judged = |when, left: &Left| judge(when, &told, left).is_ok();
        assert!(judged(When::Synced, &left(900, 901..=1_001)));
        assert!(!judged(When::Synced, &left(899, 901..=1_000)), "a gap");
        assert!(judged(When::Stopped, &left(700, 901..=1_000)));
        assert!(!judged(When::Stopped, &left(600, 901..=1_000)), "3 s");
        assert!(!judged(When::Stopped, &left(900, 901..=999)), "the last");
        assert!(judged(When::AtWork, &left(800, 901..=901)));
        let mut none = left(700, 901..=901);
        none.journal.clear();
        assert!(!judged(When::AtWork, &none), "3 s");
        let mut torn = left(900, 901..=1_000);
        torn.redis.remove(&7);
        assert!(!judged(When::Stopped, &torn), "no prefix");
        let mut gap = left(800, 801..=1_000);
        gap.journal.remove(50);
        assert!(!judged(When::Stopped, &gap), "a gap in the journal");
    }

    #[test]
    fn what_is_said_is_read() {
        let text = "{\"database\":0,\"key\":\"k7\",\"lsn\":3}\n{\"key\":\"k8\",\"lsn\":4}\n";
        assert_eq!(shown(text).expect("keys"), [7, 8]);
        let keys = numbers("k3\nk1\n\n").expect("keys");
        assert_eq!(keys, BTreeSet::from([1, 3]));
    }
}
