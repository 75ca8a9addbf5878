// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Power is cut, again and again, under writers and readers outside of the guest, and what they know is compared with
//! what a node then recovers.
//!
//! ```text
//! boot ─► (check ─► load ─► a cut of the drive alone) several times ─► check ─► load ─► a cut of the machine ─► boot
//! ```
//!
//! - A cut of the drive alone: it loses its cache and fails all that is asked, the node is killed, power comes back.
//! - A cut of the machine: QEMU is killed, so the guest's kernel loses all it had, and the drive its cache.
//! - Each comes under load, or after a node was killed under load and another has recovered, or when that one has been
//!   read too: what it then told may have lain in the drive's cache alone (trap 56).

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use clap::Args;
use erb_kv::{Client, Url};
use erb_vm::boots::{Boot, Booted, Boots, Place as Guests};
use erb_vm::device::{Bus, Device};

use crate::book::{Book, WRITERS};
use crate::drive::Drive;
use crate::guest::{Time, card, free_port, until_up, verdict};
use crate::inside::{CARRIED, COMMANDS};

/// A guest is up within this time, or something is wrong.
const BOOT: Duration = Duration::from_secs(240);
const ANSWER: Duration = Duration::from_secs(120);
/// Ends a guest whose power is not cut.
const GUEST: Duration = Duration::from_secs(1_800);
/// Under load for so long, at most.
const LOAD_MS: u64 = 2500;
const READERS: usize = 2;
/// Where the drive is served that has flushes.
const FLUSH: &str = "flush";
/// And the one that has FUA too.
const FUA: &str = "fua";
const MIB: usize = 1 << 20;

/// Arguments.
#[derive(Debug, Args)]
pub struct Power {
    #[command(flatten)]
    guests: Guests,
    /// Cuts of the machine.
    #[arg(long, default_value_t = 6)]
    boots: u64,
    /// Cuts of the drive alone for each of them.
    #[arg(long, default_value_t = 4)]
    drive_cuts: u64,
    /// No cut of the machine is begun that would not end by then, if it takes as long as the longest so far.
    #[arg(long, default_value_t = 3_600)]
    seconds: u64,
    /// Of all that is random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Drives say that they have flushed, and have not: the test has to find that out.
    #[arg(long)]
    lying: bool,
}

/// A place for a store, with all that is known of it.
struct Place {
    path: &'static str,
    drive: Drive,
    book: Book,
    /// It lies in a file system, which does not outlive a cut of its drive alone.
    is_file: bool,
}

/// A guest. It ends with this.
struct Machine {
    guest: Booted,
    ports: [u16; 2],
}

/// What a cut comes behind.
#[derive(Clone, Copy, Debug)]
enum When {
    UnderLoad,
    AfterRecovery,
    AfterRead,
}

struct Test {
    args: Power,
    boots: Boots,
    places: [Place; 2],
    random: fastrand::Rng,
    said: Said,
}

#[derive(Debug, Default)]
struct Said {
    machine_cuts: u64,
    drive_cuts: u64,
    after_recovery: u64,
    after_a_read: u64,
}

impl Machine {
    fn boot(boots: &Boots) -> Result<Self> {
        let ports = [free_port()?, free_port()?];
        let served = |socket, bus| Device::Served { socket, bus };
        let guest = boots.boot(Boot {
            devices: vec![
                card(vec![(ports[0], CARRIED), (ports[1], COMMANDS)]),
                served(FLUSH, Bus::Virtio),
                served(FUA, Bus::Scsi),
            ],
            limit: GUEST,
        });
        let machine = Self { guest, ports };
        until_up(&machine.guest, BOOT, || machine.tell("run /bin/true"))?;
        Ok(machine)
    }

    fn tell(&self, line: &str) -> Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.ports[1]))?;
        stream.set_read_timeout(Some(ANSWER))?;
        writeln!(stream, "{line}")?;
        let mut said = String::new();
        BufReader::new(stream).read_line(&mut said)?;
        ensure!(said == "done\n", "{line}: {said:?}");
        Ok(())
    }

    fn client(&self) -> Result<Client> {
        let url: Url = format!("nvme://127.0.0.1:{}", self.ports[0]).parse()?;
        Ok(Client::connect(&url)?)
    }
}

impl Test {
    fn new(args: Power) -> Result<Self> {
        let drive = |name: &str, bytes, seed| -> Result<Drive> {
            let drive = Drive::new(bytes, seed);
            drive.serve(&args.guests.dir.join(name))?;
            Ok(drive)
        };
        let places = [
            Place {
                path: "/dev/vda",
                drive: drive(FLUSH, 256 * MIB, args.seed)?,
                book: Book::default(),
                is_file: false,
            },
            Place {
                path: "/run/file/store",
                drive: drive(FUA, 320 * MIB, args.seed.wrapping_add(1))?,
                book: Book::default(),
                is_file: true,
            },
        ];
        Ok(Self {
            random: fastrand::Rng::with_seed(args.seed),
            boots: Boots::new(args.guests.clone())?,
            places,
            args,
            said: Said::default(),
        })
    }

    fn format(&self) -> Result<()> {
        let machine = Machine::boot(&self.boots)?;
        machine.tell("format /dev/vda")?;
        machine.tell("run mkfs.ext4 -q -F /dev/sda")?;
        machine.tell("run mount -t ext4 /dev/sda /run/file")?;
        machine.tell("format /run/file/store --size 256M")?;
        machine.tell("run umount /run/file")?;
        machine.tell("run sync")
    }

    fn run(&mut self) -> Result<()> {
        self.format()?;
        if self.args.lying {
            // What a format has written is there: else nothing would start.
            for place in &self.places {
                place.drive.lie();
            }
        }
        let mut time = Time::begin(Duration::from_secs(self.args.seconds));
        for boot in 0..self.args.boots {
            if !time.is_left() {
                break;
            }
            let place = &self.places[(boot % 2) as usize];
            let machine = Machine::boot(&self.boots)?;
            if place.is_file {
                machine.tell("run mount -t ext4 /dev/sda /run/file")?;
            }
            let cuts = if place.is_file {
                0
            } else {
                self.args.drive_cuts
            };
            for _ in 0..cuts {
                round(place, &machine, &mut self.random, &mut self.said, false)?;
                place.drive.power_on();
                self.said.drive_cuts += 1;
            }
            round(place, &machine, &mut self.random, &mut self.said, true)?;
            machine.guest.end()?;
            for place in &self.places {
                place.drive.cut();
                place.drive.power_on();
            }
            self.said.machine_cuts += 1;
            time.made();
            let seconds = time.seconds();
            println!("{seconds} s: {:?}; {}", self.said, self.counted());
        }
        time.is_over(usize::try_from(self.args.boots)?)?;
        self.last_look()
    }

    /// Both stores, once more.
    fn last_look(&self) -> Result<()> {
        let machine = Machine::boot(&self.boots)?;
        machine.tell("run mount -t ext4 /dev/sda /run/file")?;
        for place in &self.places {
            machine.tell(&format!("start {}", place.path))?;
            place.book.check(&mut machine.client()?)?;
            machine.tell("kill")?;
            machine.tell(&format!("check {}", place.path))?;
        }
        Ok(())
    }

    fn counted(&self) -> String {
        let of = |place: &Place| {
            let ((writes, reads), counts) = (place.book.counts(), place.drive.counts());
            format!(
                "{}: {writes} acknowledged writes, {reads} reads, {counts:?}",
                place.path
            )
        };
        self.places.each_ref().map(of).join("; ")
    }
}

/// From a check of what the last cut has left to a node, or a machine, that is dead.
fn round(
    place: &Place,
    machine: &Machine,
    random: &mut fastrand::Rng,
    said: &mut Said,
    ends_machine: bool,
) -> Result<()> {
    let start = format!("start {}", place.path);
    machine.tell(&start)?;
    place.book.check(&mut machine.client()?)?;
    // Under load most is in the cache.
    let all = [
        When::UnderLoad,
        When::UnderLoad,
        When::AfterRecovery,
        When::AfterRead,
    ];
    let when = all[random.usize(..all.len())];
    let kill = || {
        if ends_machine {
            machine.guest.cut();
            return Ok(());
        }
        place.drive.cut();
        machine.tell("kill")
    };
    let last = Duration::from_millis(random.u64(LOAD_MS / 10..LOAD_MS));
    if matches!(when, When::UnderLoad) {
        return load(place, machine, last, kill);
    }
    load(place, machine, last, || machine.tell("kill"))?;
    machine.tell(&start)?;
    said.after_recovery += 1;
    if matches!(when, When::AfterRead) {
        // What is found and told now stays, whatever lay in the drive's cache.
        place.book.check(&mut machine.client()?)?;
        said.after_a_read += 1;
    }
    kill()
}

/// Writers and readers, until the node or the machine is killed under them, at a moment that nobody knows.
fn load(
    place: &Place,
    machine: &Machine,
    last: Duration,
    kill: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let (book, stop) = (&place.book, AtomicBool::new(false));
    let before = book.counts().0;
    thread::scope(|scope| {
        let mut all = Vec::new();
        for writer in 0..WRITERS {
            let (mut client, stop) = (machine.client()?, &stop);
            all.push(scope.spawn(move || book.write(&mut client, writer, stop)));
        }
        for _ in 0..READERS {
            let (mut client, stop) = (machine.client()?, &stop);
            all.push(scope.spawn(move || book.read(&mut client, stop)));
        }
        let begun = Instant::now();
        while begun.elapsed() < last || book.counts().0 < before + WRITERS as usize {
            ensure!(begun.elapsed() < ANSWER, "nothing is acknowledged");
            thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Ordering::Relaxed);
        let killed = kill();
        for one in all {
            one.join().map_err(|_| anyhow!("a client has panicked"))??;
        }
        killed
    })
}

/// Runs it.
pub fn run(args: Power) -> Result<()> {
    let lying = args.lying;
    let mut test = Test::new(args)?;
    let ended = test.run();
    println!("{:?}; {}", test.said, test.counted());
    let lied = test.places.iter().map(|place| place.drive.counts().lied);
    verdict(ended, lying, lied.sum())?;
    match lying {
        // A kernel may complain of what a file system has lost.
        true => Ok(()),
        false => test.boots.are_quiet(),
    }
}
