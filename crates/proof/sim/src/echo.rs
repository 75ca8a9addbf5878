// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A world with another handler behind the splice: the server echoes, and `crates/proof/echo` answers
//! frames for it. Nothing is Redis's, nobody is a daemon.
//!
//! Judged are what clients read ([`crate::client::session::Session::take`]), the splice's invariants
//! ([`Maps`]), and that each request that went up is counted as answered once it is.

use std::path::Path;

use erb_abi::{self as abi, ControlPlane as _};
use erb_sim_kernel::{Context, Datapath, Library, LoadError};
use fastrand::Rng;

use crate::check::maps::{Handler, Maps, addresses};
use crate::client::machine::Machine;
use crate::client::workload::{Command, Operation};
use crate::inner::Event;
use crate::plan::{Options, Outcome, Plan};
use crate::profile::{CALM, ClientRates, LinkRates, Profile, ServerRates, Tier};
use crate::time::{MS, Ns, SECOND, START_NS, US};
use crate::violation::Violation;
use crate::world::World;

/// Lossy links that reorder, double, cut and join; a server with pauses.
static NATIVE: Profile = Profile {
    name: "echo",
    about: "a second handler: frames of all kinds of cuts, links that lose, double and reorder",
    connections: 6,
    operations: 60,
    duration: 2 * SECOND,
    link: LinkRates {
        loss: 30_000,
        duplicate: 20_000,
        reorder: 40_000,
        jitter: 300_000,
        jitter_max: 300 * US,
        old_duplicate: 5_000,
        split: 50_000,
        join: 50_000,
        ..CALM.link
    },
    server: ServerRates {
        merge: 200_000,
        slow_reader: 100_000,
        ..CALM.server
    },
    client: ClientRates {
        neighbour: 1_000_000,
        frames: true,
        torn: 200_000,
        pipelines: 300_000,
        pipeline_max: 8,
        think: MS,
        half_close: 200_000,
        ..CALM.client
    },
    ..CALM
};

/// The same without XDP, over IPv6, on a VLAN.
static TC: Profile = Profile {
    ipv6: true,
    vlan: Some(7),
    server: ServerRates {
        tier: Tier::Tc,
        ..NATIVE.server
    },
    ..NATIVE
};

/// Between two runs of the retransmission timer, as the daemon's.
const TICK_EVERY: Ns = abi::LEASE_MS as Ns / 2 * MS;
/// Between two looks at the maps.
const LOOK_EVERY: Ns = 5 * MS;
/// Virtual time that the connections may take to end.
const REST_MAX: Ns = 300 * SECOND;
/// After that all that was under way has arrived.
const SETTLE: Ns = 10 * SECOND;
/// One body in so many is long.
const LONG_ONE_IN: u32 = 30;

/// Frames sent together: most may be answered at the card.
pub(crate) fn operation(rates: &ClientRates, random: &mut Rng) -> Operation {
    let piped = random.u32(0..1_000_000) < rates.pipelines;
    let frames = if piped {
        random.u32(2..=rates.pipeline_max)
    } else {
        1
    };
    let commands = (0..frames).map(|_| Command {
        name: "frame",
        bytes: frame(random),
        replies: 1,
    });
    Operation {
        commands: commands.collect(),
        ..Operation::default()
    }
}

/// Bodies look like heads now and then: who loses its place reads nonsense.
fn frame(random: &mut Rng) -> Vec<u8> {
    let bytes = if random.u32(0..LONG_ONE_IN) == 0 {
        random.usize(0..4_000)
    } else {
        random.usize(0..100)
    };
    let body: Vec<u8> = (0..bytes)
        .map(|_| match random.u8(0..4) {
            0 => b"Efs\0"[random.usize(0..4)],
            _ => random.u8(..),
        })
        .collect();
    if random.u8(0..5) == 0 {
        erb_echo::slow(&body)
    } else {
        erb_echo::fast(&body)
    }
}

/// Compiles the splice with the echo handler in the folder `out`, which is made. `edit` may change the
/// copied sources.
///
/// # Errors
/// [`LoadError`] if that does not compile or fit.
///
/// # Panics
/// If the sources cannot be copied.
pub fn library(out: &Path, edit: impl FnOnce(&Path)) -> Result<Library, LoadError> {
    let bpf = out.join("bpf");
    Library::copy_sources(&bpf)
        .and_then(|()| Library::copy_folder(&erb_echo::sources(), &bpf))
        .unwrap_or_else(|error| panic!("sources in {}: {error}", bpf.display()));
    edit(&bpf);
    Library::build(&bpf, out)
}

/// Makes the run of a seed, on a [`library`]; one in four has no XDP.
#[must_use]
pub fn run(seed: u64, library: &Library) -> Outcome {
    let profile = if seed % 4 == 0 { &TC } else { &NATIVE };
    let plan = Plan::new(profile, seed);
    let options = Options {
        library: Some(library.clone()),
        ..Options::default()
    };
    let mut world = World::bare(&plan, &options);
    let path = world.server.neighbour_is_served();
    for _ in 0..plan.connections {
        let conn = world.new_conn();
        let at = START_NS + world.inner.random.borrow_mut().u64(0..plan.duration / 2);
        world.inner.at(at, Event::Open(conn));
    }
    let mut echo = Echo {
        world,
        path,
        maps: Maps::of(Handler::Other),
    };
    if let Err(violation) = echo.live(&plan) {
        echo.world.inner.fail(violation);
    }
    echo.world.outcome()
}

struct Echo {
    world: World,
    path: Datapath,
    maps: Maps,
}

impl Echo {
    fn live(&mut self, plan: &Plan) -> Result<(), Violation> {
        let end = START_NS + plan.duration;
        self.until(end)?;
        self.world.end_faults();
        let finished = |world: &World| world.machines.iter().map(Machine::finished).sum::<u32>();
        while finished(&self.world) < plan.connections {
            if self.now() > end + REST_MAX {
                let (inner, machines) = (&self.world.inner, &self.world.machines);
                return Err(crate::look::stuck(inner, machines));
            }
            self.until(self.now() + TICK_EVERY)?;
        }
        self.until(self.now() + SETTLE)?;
        self.all_answered(|_, _| true)?;
        match self.path.stat(abi::STAT_REPLY_EXTRA) {
            0 => Ok(()),
            extra => Err(self.broken(format!("{extra} times a reply had no request"))),
        }
    }

    fn broken(&self, text: String) -> Violation {
        Violation::new("T6", self.now(), text)
    }

    fn now(&self) -> Ns {
        self.world.inner.now()
    }

    /// Runs, ticks and looks.
    fn until(&mut self, end: Ns) -> Result<(), Violation> {
        while self.now() < end {
            for _ in 0..TICK_EVERY / LOOK_EVERY {
                self.world.run_for(LOOK_EVERY)?;
                self.look()?;
            }
            self.tick();
        }
        Ok(())
    }

    /// A process runs the retransmission timer.
    fn tick(&self) {
        let path = self.path.clone();
        self.world.server.cpus.spawn(0, Context::Process, move || {
            let places = path.places(abi::PLACES_TIMER, 1, abi::WALK_PLACES as usize);
            path.tick(&places).expect("it runs");
        });
        self.world.server.run_tasks();
    }

    fn look(&mut self) -> Result<(), Violation> {
        let server = &self.world.server;
        let now = self.world.inner.now();
        self.maps
            .check(now, &self.path, |client, here| server.sock((here, client)))?;
        self.all_answered(|key, conn| {
            let (client, here) = addresses(key);
            server.sock((here, client)).is_some_and(|sock| {
                let read = sock.copied_seq.wrapping_add(conn.in_delta) == conn.next;
                let left = conn.scan_next == sock.write_seq && conn.egress_max == sock.write_seq;
                read && left && sock.cookie == conn.cookie && server.has_echoed((here, client))
            })
        })
    }

    /// T6 from the other side: of an entry that is `done`, all requests are answered.
    fn all_answered(
        &self,
        done: impl Fn(&abi::conn_key, &abi::conn) -> bool,
    ) -> Result<(), Violation> {
        let mut error = None;
        self.path.each_conn(|key, conn| {
            let counted = u32::from(conn.flags) & abi::CONN_F_UNCOUNTABLE == 0;
            let between = u32::from(conn.in_at) == abi::STREAM_BETWEEN;
            if counted && between && done(key, conn) && conn.requests != conn.replies {
                let (client, requests, replies) = (addresses(key).0, conn.requests, conn.replies);
                error = Some(format!(
                    "entry of {client}: {replies} replies to {requests} requests, \
                     and all is echoed"
                ));
            }
        });
        error.map_or(Ok(()), |text| Err(self.broken(text)))
    }
}
