// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A check's guest, from its start to what is wrong with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use erb_lab::Stop;

use crate::boots::{NO_KVM, Place, SCRIPT};
use crate::checks::{Case, Check, Guest, Host, Megabytes};
use crate::host::{self, Driver, Peer};
use crate::judge;
use crate::machine::{Machine, Supply};
use crate::wire::Wire;

/// Who begins no cut that would take longer than allowed may take longer by this.
const DRIVER_ENDS: Duration = Duration::from_secs(1_200);

/// A guest that is ready to start.
pub struct Run<'a> {
    /// Its check.
    pub check: Check,
    /// What it is.
    pub guest: &'a Guest,
    /// What is known of it.
    pub case: Case<'a>,
    /// Of all that is random.
    pub seed: u64,
    /// A signal ends it.
    pub stop: &'a Arc<Stop>,
}

/// What came of it.
pub struct Done {
    /// How it ended.
    pub ended: String,
    /// What is not as it should be, line by line.
    pub problems: Vec<String>,
}

impl Run<'_> {
    /// Runs it.
    ///
    /// # Errors
    /// If something cannot be started.
    pub fn run(&self) -> Result<Done> {
        match self.guest.host {
            Host::Driver(program, verb) => self.drive(program, verb),
            _ => self.machine(),
        }
    }

    fn seconds(&self) -> u64 {
        self.case.args.seconds.unwrap_or(self.guest.seconds)
    }

    fn memory(&self) -> Megabytes {
        self.guest.memory * self.case.kernel.memory_factor()
    }

    /// What kernel and script are told by the kernel's command line.
    fn words(&self) -> Vec<String> {
        let is_debug = self.case.kernel.is_debug();
        let mut words = self.case.args.guest_words(self.seed, is_debug);
        words.push(self.guest.words.to_owned());
        words
    }

    /// One guest, which ends by itself.
    fn machine(&self) -> Result<Done> {
        let (guest, dir) = (self.guest, self.case.dir);
        let wire = guest.wire.then(|| Wire::new(dir)).transpose()?;
        let peer = match guest.host {
            Host::Peer(program) => Some(Peer::start(&dir.join(program))?),
            _ => None,
        };
        let mut words = self.words();
        words.extend(peer.iter().map(|peer| format!("erb_ports={}", peer.ports)));
        let machine = Machine {
            kernel: &self.case.kernel.unpacked,
            dir,
            no_kvm: self.case.vm.join(NO_KVM),
            script: &dir.join(SCRIPT),
            memory: self.memory(),
            words,
            wire: wire.as_ref(),
            devices: guest.devices,
            supply: Supply::default(),
            limit: Duration::from_secs(self.seconds()),
            stop: self.stop,
        };
        let ended = machine.run(self.case.args.accel, &mut |line| println!("{line}"))?;
        let verdict = judge::judge(&ended.log).but(guest.expected);
        let mut problems = verdict.problems();
        problems.extend(ended.broken.iter().map(|why| format!("QEMU ended: {why}")));
        let only = &self.case.args.only;
        if guest.chooses && !only.is_empty() && !judge::has_chosen(&ended.log) {
            problems.push(format!("nothing that was tried has {only:?} in its name"));
        }
        if !ended.by_itself {
            let seconds = self.seconds();
            problems.push(format!("it did not end by itself within {seconds} s"));
        }
        if let Host::Captures(folder) = guest.host {
            match host::look_at_captures(&dir.join(folder)) {
                Ok(wrong) => problems.extend(wrong),
                // A guest that is ended leaves half a capture.
                Err(error) => problems.push(format!("{error:#}")),
            }
        }
        Ok(Done {
            ended: ended.to_string(),
            problems,
        })
    }

    /// Guests that another program starts and ends.
    fn drive(&self, program: &str, verb: &str) -> Result<Done> {
        let dir = self.case.dir;
        let place = Place {
            dir: dir.to_owned(),
            kernel: self.case.kernel.unpacked.dir.clone(),
            memory: self.memory(),
            words: self.words().join(" "),
            accel: self.case.args.accel,
        };
        let mut arguments = self.case.args.options.arguments(self.check, self.seed);
        arguments.push(format!("--seconds={}", self.seconds()));
        let driver = Driver {
            program: &dir.join(program),
            verb,
            place: &place,
            arguments,
            limit: Duration::from_secs(self.seconds()) + DRIVER_ENDS,
            stop: self.stop,
        };
        let began = Instant::now();
        let ended_well = driver.run(&dir.join("said"), &mut |line| println!("{line}"))?;
        let problem = || format!("{program} {verb} did not end well");
        Ok(Done {
            ended: format!("{} s", began.elapsed().as_secs()),
            problems: (!ended_well).then(problem).into_iter().collect(),
        })
    }
}
