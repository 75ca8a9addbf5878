// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Machines whose power is cut, again and again, by the program that has started them. Of each one the log is kept.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use erb_lab::Stop;

use crate::checks::Megabytes;
use crate::device::Device;
use crate::judge;
use crate::machine::{Accelerator, Ended, Machine, Supply};
use crate::unpack::{self, Unpacked};

/// What guests run lies in their folder by this name.
pub const SCRIPT: &str = "run";
/// And their log by this one.
const LOG: &str = "log";
/// What remembers that KVM does not run guests here, beside kernels.
pub const NO_KVM: &str = "no-kvm";

/// Where such a program finds what it starts.
#[derive(Args, Clone, Debug)]
pub struct Place {
    /// The guests' folder: what they run, and their logs.
    pub dir: PathBuf,
    /// Folder of an unpacked kernel.
    pub kernel: PathBuf,
    /// A guest's memory.
    #[arg(long, value_name = "MEGABYTES")]
    pub memory: Megabytes,
    /// More of a kernel's command line.
    #[arg(long, default_value = "")]
    pub words: String,
    /// What executes a guest's instructions.
    #[arg(long, value_enum, default_value_t = Accelerator::Auto)]
    pub accel: Accelerator,
}

impl Place {
    /// As arguments of a program.
    #[must_use]
    pub fn arguments(&self) -> [PathBuf; 5] {
        let accel = self.accel.to_possible_value();
        let accel = accel.map_or_else(String::new, |value| value.get_name().to_owned());
        let option = |name: &str, value: &str| PathBuf::from(format!("--{name}={value}"));
        [
            self.dir.clone(),
            self.kernel.clone(),
            option("memory", &self.memory.to_string()),
            option("words", &self.words),
            option("accel", &accel),
        ]
    }
}

/// What a machine is made of.
#[derive(Clone, Debug)]
pub struct Boot {
    /// What it has.
    pub devices: Vec<Device>,
    /// Ends a guest whose power nobody cuts.
    pub limit: Duration,
}

/// All machines of a program.
pub struct Boots {
    place: Place,
    kernel: Unpacked,
    stop: Arc<Stop>,
    count: AtomicU32,
    complaints: Arc<Mutex<Vec<String>>>,
}

impl Boots {
    /// None runs yet.
    ///
    /// # Errors
    /// If there is no kernel, or signals cannot be watched.
    pub fn new(place: Place) -> Result<Self> {
        Ok(Self {
            kernel: unpack::found(&place.kernel)?,
            stop: Arc::new(Stop::watch()?),
            place,
            count: AtomicU32::new(0),
            complaints: Arc::default(),
        })
    }

    /// Starts one.
    #[must_use]
    pub fn boot(&self, boot: Boot) -> Booted {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let supply = Supply::default();
        let (place, kernel) = (self.place.clone(), self.kernel.clone());
        let (stop, power) = (Arc::clone(&self.stop), supply.clone());
        let complaints = Arc::clone(&self.complaints);
        let runner = thread::spawn(move || {
            let no_kvm = place.kernel.with_file_name(NO_KVM);
            let machine = Machine {
                kernel: &kernel,
                dir: &place.dir,
                no_kvm,
                script: &place.dir.join(SCRIPT),
                memory: place.memory,
                words: vec![place.words.clone()],
                wire: None,
                devices: &boot.devices,
                supply: power,
                limit: boot.limit,
                stop: &stop,
            };
            let ended = machine.run(place.accel, &mut |_| ())?;
            if let Some(why) = ended.broken {
                bail!("QEMU ended: {why}");
            }
            let kept = place.dir.join(format!("{LOG}-{number}"));
            fs::rename(place.dir.join(LOG), kept).context("a guest has left no log")?;
            let said = judge::judge(&ended.log).complaints;
            let said = said.iter().map(|line| format!("guest {number}: {line}"));
            let mut all = complaints.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend(said);
            Ok(ended)
        });
        Booted {
            supply,
            runner: Some(runner),
        }
    }

    /// Whether the kernels of those that have ended complained of nothing.
    ///
    /// # Errors
    /// If one did.
    pub fn are_quiet(&self) -> Result<()> {
        let all = self.complaints.lock();
        let all = all.unwrap_or_else(PoisonError::into_inner);
        ensure!(all.is_empty(), "kernels complain:\n{}", all.join("\n"));
        Ok(())
    }
}

/// A machine that runs. It ends with this.
pub struct Booted {
    supply: Supply,
    runner: Option<JoinHandle<Result<Ended>>>,
}

impl Booted {
    /// Cuts its power, from whatever thread.
    pub fn cut(&self) {
        self.supply.cut();
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// If it has ended.
    pub fn runs(&self) -> Result<()> {
        let runner = self.runner.as_ref();
        ensure!(
            runner.is_some_and(|runner| !runner.is_finished()),
            "the guest has ended"
        );
        Ok(())
    }

    /// Cuts its power, and waits until nothing of it is left.
    ///
    /// # Errors
    /// If it could not be started.
    pub fn end(mut self) -> Result<Ended> {
        self.ended()
    }

    fn ended(&mut self) -> Result<Ended> {
        self.cut();
        let runner = self.runner.take().context("it has ended")?;
        runner
            .join()
            .map_err(|_| anyhow!("who ran the guest has panicked"))?
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        if self.runner.is_some() {
            if let Err(error) = self.ended() {
                eprintln!("vm: {error:#}");
            }
        }
    }
}
