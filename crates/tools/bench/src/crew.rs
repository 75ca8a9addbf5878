// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several clients, each in a thread on its processor.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use crate::interrupt::Interrupt;
use crate::load::{Load, Traffic};
use crate::pace::Pace;
use crate::tally::Tally;

/// Clients that share connections out.
pub struct Crew<T: Traffic> {
    clients: Vec<(usize, Load<T>)>,
}

impl<T: Traffic + Send> Crew<T> {
    /// A client for each of these processors, with its share of the connections; `make` is given its
    /// number. Call it in the clients' namespace.
    pub fn connect(
        address: SocketAddr,
        cores: &[usize],
        conns: u32,
        make: impl Fn(u32) -> Result<(T, Pace)>,
    ) -> Result<Self> {
        let count = cores.len() as u32;
        let clients = (0..count).zip(cores).map(|(number, &core)| {
            let conns = conns / count + u32::from(number < conns % count);
            let (traffic, pace) = make(number)?;
            let load = Load::connect(address, conns, traffic, pace);
            Ok((core, load.context("the clients could not connect")?))
        });
        let clients = clients.collect::<Result<_>>()?;
        Ok(Self { clients })
    }

    /// Lets all ask for `time`. No request is under way before or afterwards, so what servers count
    /// then is of whole drives.
    pub fn drive(&mut self, time: Duration, interrupt: &Interrupt) -> Result<Tally> {
        thread::scope(|scope| {
            let threads: Vec<_> = self
                .clients
                .iter_mut()
                .map(|(core, load)| scope.spawn(|| drive_one(*core, load, time, interrupt)))
                .collect();
            let mut all = Tally::new(T::OPERATIONS)?;
            for thread in threads {
                let panicked = |_| Err(anyhow!("a client's thread panicked"));
                all.add(&thread.join().unwrap_or_else(panicked)?)?;
            }
            Ok(all)
        })
    }

    /// What each asks.
    pub fn traffic(&self) -> impl Iterator<Item = &T> {
        self.clients.iter().map(|(_, load)| load.traffic())
    }

    /// Whether all have asked all that there was.
    pub fn exhausted(&self) -> bool {
        self.clients.iter().all(|(_, load)| load.exhausted())
    }

    /// Operations that were due and not begun.
    pub fn unsent(&self) -> u64 {
        self.clients.iter().map(|(_, load)| load.unsent()).sum()
    }

    /// Leaves out what was due and not begun.
    pub fn skip_unsent(&mut self) {
        for (_, load) in &mut self.clients {
            load.skip_unsent();
        }
    }
}

fn drive_one<T: Traffic>(
    core: usize,
    load: &mut Load<T>,
    time: Duration,
    interrupt: &Interrupt,
) -> Result<Tally> {
    let mut set = CpuSet::new();
    set.set(core)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .with_context(|| format!("cannot run on processor {core}"))?;
    let start = Instant::now();
    let mut tally = load.drive(time, interrupt)?;
    // The thread began with this run.
    let own = Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?);
    tally.cpu_ns = u64::try_from(own.as_nanos())?;
    tally.busy = own.as_secs_f64() / start.elapsed().as_secs_f64();
    Ok(tally)
}
