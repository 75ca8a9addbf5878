// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A lab whose server side (receive thread, Redis, ERB's daemon) has a processor of its own, with
//! keys loaded.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use erb_bench::clients::{self, ClientLoad, ClientOp};
use erb_bench::cputime;
use erb_lab::{Boost, Erb, Lab, LabConfig, LabName, Mode, ServerProgram, netns, process, xdp_pass};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// Keys that clients read: all fit into the cache of a lab.
pub const KEYS: u32 = 10_000;

/// Name of the lab.
const LAB: &str = "demo";
/// The client's device polls by timer: time between polls, nanoseconds, and how many empty ones it
/// takes until interrupts come back; as in `erb bench capacity`.
const CLIENT_POLL_NS: &str = "20000";
/// See [`CLIENT_POLL_NS`].
const CLIENT_EMPTY_POLLS: &str = "1000";

/// A lab that clients can be run against; removed when dropped.
pub struct Stage<'a> {
    lab: Option<Lab>,
    erb: &'a Erb,
    mode: Mode,
    napi_threads: Vec<u32>,
}

impl<'a> Stage<'a> {
    /// Makes the lab, gives each side a processor of its own, loads the keys.
    pub fn up(erb: &'a Erb, mode: Mode, server_core: usize, client_core: usize) -> Result<Self> {
        let name: LabName = LAB.parse()?;
        // The lock is ours: a lab of this name was left by a demonstration that was killed.
        erb_lab::down(&name, erb).context("cannot remove an earlier demonstration's lab")?;
        let config = LabConfig {
            name,
            direct: true,
            mode,
            redis_port: 6379,
            redis_args: Vec::new(),
            server: ServerProgram::Redis7,
        };
        let lab = Lab::up(&config, erb).context("cannot make the lab")?;
        let mut stage = Self {
            lab: Some(lab),
            erb,
            mode,
            napi_threads: Vec::new(),
        };
        stage.prepare(server_core, client_core)?;
        Ok(stage)
    }

    fn prepare(&mut self, server_core: usize, client_core: usize) -> Result<()> {
        let (client, server) = {
            let state = self.lab()?.state();
            (state.client.clone(), state.server.clone())
        };
        if self.mode == Mode::Off {
            // The same NAPI as the boosted server's: on veth it comes with an XDP program.
            xdp_pass::attach(&server.namespace, &server.device)?;
        }
        self.napi_threads = thread_napi(&server.namespace, &server.device)?;
        for pid in self.server_pids() {
            cputime::pin(pid, server_core)?;
        }
        // Without a thread of its own the client's receive side would run in the sender's time, and
        // without a poll timer the sender would pay for waking it. A card spares it both.
        for (name, value) in [
            ("napi_defer_hard_irqs", CLIENT_EMPTY_POLLS),
            ("gro_flush_timeout", CLIENT_POLL_NS),
        ] {
            netns::set_device(&client.namespace, &client.device, name, value)?;
        }
        for pid in thread_napi(&client.namespace, &client.device)? {
            cputime::pin(pid, client_core)?;
        }
        clients::load_keys(&self.load(&[])).context("cannot load the keys")?;
        if self.mode == Mode::Read {
            self.boost()?.wait_until_serving()?;
        }
        Ok(())
    }

    fn lab(&self) -> Result<&Lab> {
        self.lab.as_ref().context("the lab is down")
    }

    fn boost(&self) -> Result<Boost> {
        Ok(self.erb.boost_of(self.lab()?.state()))
    }

    /// Whether ERB boosts it.
    pub fn boosted(&self) -> bool {
        self.mode == Mode::Read
    }

    /// Processes and kernel threads whose time is the server's.
    pub fn server_pids(&self) -> Vec<u32> {
        let processes = self.lab.iter().flat_map(|lab| &lab.state().processes);
        processes
            .filter_map(|process| u32::try_from(process.pid).ok())
            .chain(self.napi_threads.iter().copied())
            .collect()
    }

    /// GETs from the client's namespace, one connection.
    pub fn load<'p>(&'p self, server_pids: &'p [u32]) -> ClientLoad<'p> {
        let state = self.lab.as_ref().map(Lab::state);
        let ip = state.map_or(Ipv4Addr::LOCALHOST, |state| state.server.ipv4);
        ClientLoad {
            netns: state.map(|state| state.client.namespace.as_str()),
            address: SocketAddr::new(IpAddr::V4(ip), state.map_or(6379, |state| state.redis_port)),
            op: ClientOp::Get,
            conns: 1,
            keys: KEYS,
            server_pids,
        }
    }

    /// GETs that Redis itself has answered since its start.
    pub fn gets_of_redis(&self) -> Result<u64> {
        let state = self.lab()?.state();
        let url = format!("redis://127.0.0.1:{}/", state.redis_port);
        // Over loopback, past the device that is measured.
        let info: String = netns::run_in(&state.server.namespace, || {
            let mut connection = redis::Client::open(url)?.get_connection()?;
            Ok(redis::cmd("INFO")
                .arg("commandstats")
                .query(&mut connection)?)
        })
        .context("cannot ask Redis for its statistics")?;
        Ok(gets_in(&info))
    }

    /// What `erb status` says of this boost, for error messages.
    pub fn boost_status(&self) -> String {
        self.boost()
            .and_then(|boost| boost.run(&["status"]))
            .unwrap_or_else(|error| format!("{error:#}"))
    }

    /// Removes it.
    pub fn down(mut self) -> Result<()> {
        match self.lab.take() {
            Some(lab) => lab.down(self.erb).map(drop),
            None => Ok(()),
        }
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        let Some(lab) = self.lab.take() else { return };
        if let Err(error) = lab.down(self.erb) {
            eprintln!("cannot remove the lab: {error:#}; `erb lab down --name {LAB}` tries again");
        }
    }
}

/// Runs `work` in a thread on one processor; what it starts stays there.
pub fn on_core<T: Send>(core: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        scope
            .spawn(move || {
                let mut set = CpuSet::new();
                set.set(core)
                    .with_context(|| format!("no processor {core}"))?;
                sched_setaffinity(Pid::from_raw(0), &set)
                    .with_context(|| format!("cannot run on processor {core}"))?;
                work()
            })
            .join()
            .unwrap_or_else(|_| Err(anyhow!("a client's thread panicked")))
    })
}

/// Gives the device's receive side kernel threads of its own; returns them.
fn thread_napi(namespace: &str, device: &str) -> Result<Vec<u32>> {
    // Kernel threads of devices of this name, in any namespace.
    let named = || process::named(&format!("napi/{device}-"));
    let before = named()?;
    netns::set_device(namespace, device, "threaded", "1")?;
    // Devices of other namespaces may have the same name: those that were not there are ours.
    let mut threads = named()?;
    threads.retain(|thread| !before.contains(thread));
    ensure!(
        !threads.is_empty(),
        "{device} has no receive thread although threaded NAPI is on"
    );
    Ok(threads)
}

/// Calls of GET in `INFO commandstats`; 0 if there were none.
fn gets_in(info: &str) -> u64 {
    info.lines()
        .find_map(|line| {
            let calls = line.strip_prefix("cmdstat_get:calls=")?;
            calls.split(',').next()?.parse().ok()
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gets_are_read_from_commandstats() {
        let info = "# Commandstats\r\ncmdstat_getex:calls=5,usec=1\r\n\
                    cmdstat_get:calls=1234,usec=99,usec_per_call=0.1\r\n";
        assert_eq!(gets_in(info), 1234);
        assert_eq!(gets_in("cmdstat_set:calls=2,usec=1\r\n"), 0);
    }

    #[test]
    fn work_stays_on_its_processor() {
        let allowed = nix::sched::sched_getaffinity(Pid::from_raw(0)).unwrap();
        let core = (0..CpuSet::count()).find(|&core| allowed.is_set(core).unwrap());
        let core = core.unwrap();
        let ran_on = on_core(core, || Ok(nix::sched::sched_getcpu()?)).unwrap();
        assert_eq!(ran_on, core);
        assert!(on_core(CpuSet::count(), || Ok(())).is_err());
    }
}
