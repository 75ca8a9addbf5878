// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What dax-send promises, checked on persistent memory, in a machine that `erb lab vm dax` emulates.
//!
//! - `pattern`: what files hold; `peer`: who receives, outside of the guest; `world`: ways to it, and its silence.
//! - `raw`: sends by hand; `free`: blocks freed and used again.
//! - `checks`: copies, freed blocks, killed senders, traps.

mod checks;
mod free;
mod pattern;
mod peer;
mod raw;
mod world;

use std::fs;
use std::io::{BufRead, stdin};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};

use crate::checks::copies::{self, Way};
use crate::checks::{Tally, freed, kills, traps};
use crate::free::Free;
use crate::peer::Ports;
use crate::world::{Card, Copies, World};

/// Checks of dax-send on persistent memory.
#[derive(Debug, Parser)]
#[command(name = "erb-dax-vm")]
struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Receives; prints its three ports, and ends with its standard input.
    Peer,
    /// Runs the checks, as root in the guest.
    Guest(Guest),
    /// Sends until it is killed; for the checks themselves.
    Sender {
        path: PathBuf,
        to: SocketAddrV4,
        connection: u64,
        file: u16,
        #[arg(long)]
        guarded: bool,
    },
    /// Is the guard of such a sender.
    Guard,
    /// Sends under a limit of pinned memory; for the checks themselves.
    Limit {
        path: PathBuf,
        address: Ipv4Addr,
        data: u16,
        silent: u16,
        connection: u64,
        file: u16,
        #[arg(long)]
        nobody: bool,
    },
}

#[derive(Debug, Args)]
struct Guest {
    /// A folder on an empty file system.
    dir: PathBuf,
    /// What lines begin with.
    #[arg(long)]
    place: String,
    /// Ports of the peer outside: questions, data, the one that is made silent.
    #[arg(long, value_delimiter = ',')]
    ports: Vec<u16>,
    /// Device of the file system.
    #[arg(long)]
    device: String,
    /// The files are not on DAX.
    #[arg(long)]
    page_cache: bool,
    /// A bad block alone, which makes the device useless.
    #[arg(long)]
    bad_block: bool,
    /// Copies and freed blocks alone.
    #[arg(long)]
    short: bool,
    /// Senders that are killed with a guard; an eighth as many without.
    #[arg(long, default_value_t = 48)]
    kills: usize,
    /// Of the random moments.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only checks whose name has this in it.
    #[arg(long)]
    only: Option<String>,
}

fn main() -> ExitCode {
    match run(Command::parse().what) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(what: What) -> Result<bool> {
    match what {
        What::Peer => {
            let Ports {
                control,
                data,
                silent,
            } = peer::start()?;
            println!("{control},{data},{silent}");
            for line in stdin().lock().lines() {
                line?;
            }
        }
        What::Guest(guest) => return checked(&guest),
        What::Sender {
            path,
            to,
            connection,
            file,
            guarded,
        } => {
            let card = card(*to.ip(), [0, to.port(), to.port()]);
            kills::send(&path, &card, to.port(), connection, file, guarded)?;
        }
        What::Guard => dax_send::run_guard()?,
        What::Limit {
            path,
            address,
            data,
            silent,
            connection,
            file,
            nobody,
        } => {
            let card = card(address, [0, data, silent]);
            println!(
                "{}",
                traps::limited(&path, &card, connection, file, nobody)?
            );
        }
    }
    Ok(true)
}

const fn card(address: Ipv4Addr, [control, data, silent]: [u16; 3]) -> Card {
    Card {
        name: "e1000",
        address,
        ports: Ports {
            control,
            data,
            silent,
        },
        copies: Copies::Never,
    }
}

fn world(guest: &Guest) -> Result<World> {
    let ports = <[u16; 3]>::try_from(&guest.ports[..])
        .ok()
        .context("three ports")?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split('.').map(str::parse::<u32>);
    let kernel = match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => anyhow::bail!("what is Linux {release}?"),
    };
    let outside = card(Ipv4Addr::new(10, 0, 2, 2), ports);
    let virtio = Card {
        name: "virtio-net",
        address: Ipv4Addr::new(10, 0, 3, 2),
        copies: Copies::Untold,
        ..outside
    };
    let lo = Card {
        name: "lo",
        address: Ipv4Addr::LOCALHOST,
        ports: peer::start()?,
        copies: Copies::Told,
    };
    Ok(World {
        dir: guest.dir.clone(),
        cards: [outside, virtio, lo],
        kernel,
    })
}

fn checked(guest: &Guest) -> Result<bool> {
    world::number_from(u64::from(std::process::id()) << 20);
    let world = world(guest)?;
    ensure!(
        traps::is_up(world.card()),
        "the peer outside does not answer"
    );
    let mut tally = Tally {
        place: guest.place.clone(),
        only: guest.only.clone(),
        ..Tally::default()
    };
    tally.check("statx", || {
        let path = world.file("statx", 1, 4096)?;
        let is_dax = world::mapped(&path)?.is_dax();
        ensure!(is_dax != guest.page_cache, "DAX: {is_dax}");
        Ok(format!("DAX: {is_dax}"))
    });
    if guest.page_cache {
        tally.check("falls_back", || copies::falls_back(&world));
    } else if guest.bad_block {
        tally.check("bad_block", || traps::bad_block(&world, &guest.device));
    } else {
        copied(&world, &mut tally);
        free::ballast(&world.dir)?;
        freed_by_others(&world, &mut tally, guest.short);
        if !guest.short {
            trapped(&world, &mut tally, guest);
            killed(&world, &mut tally, guest);
        }
    }
    println!("{} checks, {} failed", tally.done, tally.failed);
    if tally.done > 0 {
        println!("guest: chosen");
    }
    Ok(tally.failed == 0 && (tally.done > 0 || guest.only.is_some()))
}

fn copied(world: &World, tally: &mut Tally) {
    tally.check("alias_ours", || {
        ensure!(copies::alias(world, Way::Ours)?, "a copy was sent");
        Ok("the pages themselves are sent, also when TCP repeats".to_owned())
    });
    tally.check("alias_sendfile", || {
        ensure!(
            !copies::alias(world, Way::Sendfile)?,
            "sendfile has not copied"
        );
        Ok("stock sendfile copies from DAX".to_owned())
    });
    for card in &world.cards {
        tally.check(&format!("choice_{}", card.name), || {
            copies::choice(world, card)
        });
    }
    tally.check("traced_ours", || {
        let seen = copies::traced_way(world, Way::Ours)?;
        let copies: u64 = seen.calls.iter().map(|(_, count)| count).sum();
        ensure!(seen.added_pages == 0 && copies == 0, "{seen:?}");
        Ok("0 page-cache pages, 0 calls that copy".to_owned())
    });
    tally.check("traced_sendfile", || {
        let seen = copies::traced_way(world, Way::Sendfile)?;
        let copies: u64 = seen.calls.iter().map(|(_, count)| count).sum();
        ensure!(copies > 0, "the tracer sees nothing: {seen:?}");
        Ok(format!("{seen:?}"))
    });
}

fn freed_by_others(world: &World, tally: &mut Tally, short: bool) {
    for free in Free::ALL {
        tally.check(&format!("naive_{}", free.name()), || {
            freed::naive_check(world, free)
        });
        tally.check(&format!("ours_{}", free.name()), || {
            freed::ours(world, free)
        });
    }
    if !short {
        tally.check("slow_reader", || freed::slow_reader(world));
    }
}

fn trapped(world: &World, tally: &mut Tally, guest: &Guest) {
    tally.check("abort_releases", || traps::abort_releases(world));
    tally.check("completions_join", || traps::completions_join(world));
    tally.check("packet_socket", || traps::packet_socket(world));
    tally.check("memory_limit", || traps::memory_limit(world));
    tally.check("populated", || traps::populated(world));
    if guest.place.contains("xfs") {
        tally.check("reflink", || traps::reflink(world));
    }
    tally.check("lets_go", || traps::lets_go(world));
}

fn killed(world: &World, tally: &mut Tally, guest: &Guest) {
    tally.check("killed_unguarded", || {
        let sum = kills::run(world, false, guest.kills / 8, guest.seed)?;
        ensure!(sum.begun > 0, "{sum:?}");
        if world.frees_wait() {
            ensure!(sum.foreign_bytes == 0 && sum.waited > 0, "{sum:?}");
        } else {
            ensure!(sum.foreign_bytes > 0, "{sum:?}");
        }
        Ok(format!("{sum:?}"))
    });
    tally.check("killed_guarded", || {
        let sum = kills::run(world, true, guest.kills, guest.seed)?;
        ensure!(
            sum.foreign_bytes == 0 && sum.waited == 0 && sum.begun > 0,
            "{sum:?}"
        );
        ensure!(sum.longest <= Duration::from_secs(3), "{sum:?}");
        Ok(format!("{sum:?}"))
    });
}
