// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults that happen to the world as a whole, now and then.

use erb_sim_redis::CrashMode;

use super::World;
use crate::client::machine::machine_ip;
use crate::client::session::Stage;
use crate::client::settings;
use crate::fault::Fault;
use crate::inner::Event;
use crate::plan::Plan;
use crate::story::{Note, Place};
use crate::time::{MS, Ns, SECOND, US};

/// Ticks that a client's clock steps back at most.
const BACK_MAX: u32 = 300;
/// So much older than the server's record may a stamp be: steps back add up.
const BACK_LAG: i32 = 2_000;
/// A processor stands still within so many points of a softirq: most of a packet's programs.
const STILL_POINTS: u32 = 100;
/// For so long.
const STILL_MAX: Ns = 120 * MS;

impl World {
    pub(super) fn plan_rare(&mut self, fault: Fault, every: Ns) {
        if every > 0 && self.inner.plan.faults.has(fault) && !self.calm {
            let after = self.random.u64(every / 4..every * 2);
            self.inner.at(self.inner.now() + after, Event::Rare(fault));
        }
    }

    pub(super) fn rare(&mut self, fault: Fault) {
        if self.calm {
            return;
        }
        let every = all(&self.inner.plan)
            .find(|(kind, _)| *kind == fault)
            .map_or(0, |(_, e)| e);
        self.plan_rare(fault, every);
        let now = self.inner.now();
        self.inner
            .tell(Place::World, None, Note::Text(fault.about()));
        let counted = !matches!(
            fault,
            Fault::RedisKill | Fault::DaemonCrash | Fault::Replace | Fault::Ticks
        );
        if counted {
            self.inner.coverage.borrow_mut().fault(fault);
        }
        match fault {
            Fault::Blackout => self.black_out(),
            Fault::RedisCrash => self.crash_redis(CrashMode::Process),
            Fault::RedisStall => {
                let long = self.random.u64(20 * MS..6 * SECOND);
                self.server.redis_rests(long);
            }
            Fault::RedisKill => self.server.kill_one(),
            Fault::DaemonCrash => self.server.kill_daemon(),
            Fault::DaemonStall => {
                let long = self.random.u64(20 * MS..2 * SECOND);
                self.server.stall_daemon(long);
            }
            Fault::FeedCut => self.server.cut_feed(),
            Fault::MachineCrash => self.crash_machine(),
            Fault::ClockStep => self.step_clock(),
            Fault::Unseen => self.say_unseen(),
            Fault::Detach => {
                self.server.ask_detach();
                let back = self.random.u64(SECOND..4 * SECOND);
                self.inner.at(now + back, Event::DaemonBack);
            }
            Fault::Master => {
                if let Some(after) = self.server.master_does(&mut self.random) {
                    self.inner.at(now + after, Event::Loaded);
                }
            }
            Fault::Replace => self.server.replace_programs(),
            Fault::Settings => {
                let request = settings::draw_for(&self.inner.plan, &mut self.random);
                self.server.ask_unseen(&request);
            }
            Fault::Ticks => self.step_ticks(),
            Fault::Disk => {
                let on = self.random.bool();
                self.server.trouble_disk(on);
            }
            Fault::Aside => self.server.step_aside(),
            Fault::Reports => self.server.turn_reports(),
            Fault::Close => self.server.close_or_open(None),
            Fault::Still => self.stand_still(),
            Fault::Absorb => self.server.absorb_or_drain(),
            _ => {}
        }
    }

    fn say_unseen(&mut self) {
        self.unseen += 1;
        let command = self.workload.unseen(self.unseen);
        self.inner
            .coverage
            .borrow_mut()
            .count("unseen", command.name);
        self.server.ask_unseen_or_master(&command.bytes);
    }

    fn stand_still(&mut self) {
        let cpu = self.random.usize(..self.server.cpus.count());
        let points = self.random.u32(..STILL_POINTS);
        if self.server.cpus.stop(cpu, points) {
            let long = self.random.u64(US..STILL_MAX);
            self.inner.at(self.inner.now() + long, Event::GoesOn);
        }
    }

    fn black_out(&mut self) {
        let until = self.inner.now()
            + self
                .random
                .u64(MS..=self.inner.plan.profile.link.blackout_max);
        let machine = self.random.usize(..self.machines.len());
        let ways = self.random.u8(1..4);
        if ways & 1 != 0 {
            self.inner.up.borrow_mut()[machine].go_dark(until);
        }
        if ways & 2 != 0 {
            self.inner.down.borrow_mut()[machine].go_dark(until);
        }
    }

    fn step_clock(&mut self) {
        let by = self.random.i64(-2_000..2_000);
        let wall = self.inner.wall_minus_mono_ms.get() + by;
        self.inner.wall_minus_mono_ms.set(wall);
        let now = self.inner.now();
        self.inner.checks.borrow_mut().wall_stepped(now, wall);
    }

    /// A machine's timestamp clock steps: at most so far that the server's TCP, which hears of it by
    /// the next segment, takes the machine for itself.
    fn step_ticks(&mut self) {
        let number = self.random.usize(..self.machines.len());
        let by = match self.random.u8(0..4) {
            0 => self.random.u32(1..5_000),
            1 => self.random.u32(1..BACK_MAX).wrapping_neg(),
            _ => self.random.u32(1 << 29..3 << 29),
        };
        let machine = &mut self.machines[number];
        let ip = machine_ip(number, self.inner.plan.profile.ipv6);
        let connecting = machine.sessions().any(|s| s.stage == Stage::Connecting);
        let fits = self.server.newest_stamps(ip).all(|(port, newest)| {
            let own = machine.ticks.newest(port);
            own.is_some_and(|own| own.wrapping_add(by).wrapping_sub(newest) as i32 > -BACK_LAG)
        });
        if !connecting && fits {
            machine.ticks.step(by);
            self.inner.coverage.borrow_mut().fault(Fault::Ticks);
        }
    }

    fn crash_redis(&mut self, mode: CrashMode) {
        if std::mem::replace(&mut self.redis_down, true) {
            return;
        }
        self.server.crash_redis(mode);
        let back = self.random.u64(MS..SECOND);
        self.inner.at(self.inner.now() + back, Event::RedisBack);
    }

    fn crash_machine(&mut self) {
        if self.redis_down {
            return;
        }
        self.redis_down = true;
        self.server.lose_power();
        let back = self.random.u64(100 * MS..2 * SECOND);
        self.inner.at(self.inner.now() + back, Event::MachineBack);
    }

    pub(super) fn boot(&mut self) {
        self.server.boot();
        self.redis_down = false;
        let daemon = self.random.u64(MS..SECOND);
        self.inner.at(self.inner.now() + daemon, Event::DaemonBack);
    }
}

/// Rare faults and the mean times between them.
pub(super) fn all(plan: &Plan) -> impl Iterator<Item = (Fault, Ns)> + use<> {
    let events = plan.profile.events;
    [
        (Fault::Blackout, plan.profile.link.blackout_every),
        (Fault::RedisCrash, events.redis_crash),
        (Fault::RedisStall, events.redis_stall),
        (Fault::RedisKill, events.redis_kill),
        (Fault::DaemonCrash, events.daemon_crash),
        (Fault::DaemonStall, events.daemon_stall),
        (Fault::FeedCut, events.feed_cut),
        (Fault::MachineCrash, events.machine_crash),
        (Fault::ClockStep, events.clock_step),
        (Fault::Unseen, events.unseen),
        (Fault::Ticks, events.ticks),
        (Fault::Detach, events.detach),
        (Fault::Settings, events.settings),
        (Fault::Master, events.master),
        (Fault::Replace, events.replace),
        (Fault::Disk, events.disk),
        (Fault::Aside, events.aside),
        (Fault::Reports, events.reports),
        (Fault::Absorb, events.absorb),
        (Fault::Close, events.close),
        (Fault::Still, events.still),
    ]
    .into_iter()
}
