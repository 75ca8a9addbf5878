// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An emulated machine: QEMU with a kernel, and this machine's files read-only below what the guest writes.
//!
//! KVM runs not everywhere where its device is: some machines run only kernels that know them. So a guest that says nothing
//! under KVM is begun again without, and that is remembered. Software shows what is right, not what is fast.

use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use erb_lab::Stop;
use nix::sys::prctl;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::checks::Megabytes;
use crate::device::{self, Device};
use crate::unpack::Unpacked;
use crate::wire::Wire;

/// The program.
pub const QEMU: &str = "qemu-system-x86_64";
/// Where KVM is.
const KVM: &str = "/dev/kvm";
/// A guest under KVM has said its first word by then, or never will.
const KVM_WAIT: Duration = Duration::from_secs(20);
/// Pause between two looks at the clock and at signals.
const LOOK: Duration = Duration::from_millis(100);
/// What a kernel shows of memory that is used wrongly; warnings go to the console.
const KERNEL_WORDS: &str = "console=ttyS0 loglevel=5 panic=-1 mitigations=off no_timer_check sysrq_always_enabled \
                            kfence.sample_interval=1 slub_debug=FZPU page_poison=1";
/// What such a kernel says, and how many starts may come to it.
const LATE_INT3: &str = "Oops: int3";
const STARTS: u32 = 3;
/// Of a kernel's command line; what is behind that it does not read.
const WORDS_MAX: usize = 2047;
/// What QEMU itself says, in the machine's folder.
const SAID: &str = "qemu";
/// How a guest's lines begin that are about what is tried.
const WORD: &str = "guest: ";

/// What executes a guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Accelerator {
    /// KVM where it runs the guest, else software.
    Auto,
    /// The processor.
    Kvm,
    /// Software.
    Tcg,
}

/// A machine that can be started.
pub struct Machine<'a> {
    /// Its kernel.
    pub kernel: &'a Unpacked,
    /// Its own files: what it is started with, and its log.
    pub dir: &'a Path,
    /// What remembers that KVM does not run guests here.
    pub no_kvm: PathBuf,
    /// What it runs as root; it ends the guest.
    pub script: &'a Path,
    /// Memory.
    pub memory: Megabytes,
    /// More words of the kernel's command line, by which the script is told things.
    pub words: Vec<String>,
    /// Between two cards of it.
    pub wire: Option<&'a Wire>,
    /// What else it has.
    pub devices: &'a [Device],
    /// By which another thread ends it.
    pub supply: Supply,
    /// Ends a guest that does not end by itself.
    pub limit: Duration,
    /// So does a signal to this program.
    pub stop: &'a Arc<Stop>,
}

/// A machine's power, which another thread may cut.
#[derive(Clone, Debug, Default)]
pub struct Supply(Arc<Mutex<Power>>);

#[derive(Debug, Default)]
enum Power {
    /// Nothing runs.
    #[default]
    Off,
    /// This process of QEMU's, which nobody has waited for.
    On(Pid),
    /// From now on nothing runs.
    Cut,
}

impl Supply {
    /// Ends the machine in the midst of what it does. One that has not begun does not begin.
    pub fn cut(&self) {
        let mut power = self.power();
        if let Power::On(process) = *power {
            let _ = signal::kill(process, Signal::SIGKILL);
        }
        *power = Power::Cut;
    }

    fn power(&self) -> MutexGuard<'_, Power> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_cut(&self) -> bool {
        matches!(*self.power(), Power::Cut)
    }

    /// Before anybody waits for it, so the number is this process's.
    fn on(&self, child: &Child) {
        let mut power = self.power();
        let process = process_of(child);
        if let Power::Cut = *power {
            let _ = signal::kill(process, Signal::SIGKILL);
        } else {
            *power = Power::On(process);
        }
    }

    fn off(&self) {
        let mut power = self.power();
        if let Power::On(_) = *power {
            *power = Power::Off;
        }
    }
}

/// Linux's numbers of processes have 22 bits.
fn process_of(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32)
}

/// How a machine ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// All that was said on its console.
    pub log: String,
    /// From its start to the first word of what it runs.
    pub first_word: Option<Duration>,
    /// From its start to its end.
    pub took: Duration,
    /// Not by the limit.
    pub by_itself: bool,
    /// What QEMU said, if it ended badly by itself.
    pub broken: Option<String>,
    /// What executed its instructions.
    pub by: &'static str,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let took = self.took.as_secs();
        match self.first_word {
            Some(first) => write!(
                f,
                "{took} s by {}, first word after {:.1} s",
                self.by,
                first.as_secs_f64()
            ),
            None => write!(f, "{took} s by {}, without a word", self.by),
        }
    }
}

impl Machine<'_> {
    /// Runs it to its end. What it says goes to `say` line by line, and to `log` in its folder.
    ///
    /// # Errors
    /// If QEMU cannot be started.
    pub fn run(&self, accelerator: Accelerator, say: &mut dyn FnMut(&str)) -> Result<Ended> {
        let made = self.devices.iter().map(|device| device.make(self.dir));
        let ended = made
            .collect::<Result<()>>()
            .and_then(|()| self.run_by(accelerator, say));
        for device in self.devices {
            device.clear(self.dir);
        }
        ended
    }

    fn run_by(&self, accelerator: Accelerator, say: &mut dyn FnMut(&str)) -> Result<Ended> {
        fs::write(
            self.dir.join("initrd"),
            crate::initrd::of(&self.kernel.modules)?,
        )?;
        let tried = match accelerator {
            Accelerator::Tcg => false,
            Accelerator::Kvm => true,
            Accelerator::Auto => is_usable(KVM) && !self.no_kvm.exists(),
        };
        if !tried {
            return self.by_software(say);
        }
        let patience = (accelerator == Accelerator::Auto).then_some(KVM_WAIT);
        let ended = self.run_once(&BY_KVM, self.limit, patience, say)?;
        let is_ended = self.supply.is_cut() || self.stop.check().is_err();
        if accelerator == Accelerator::Kvm || is_ended {
            return Ok(ended);
        }
        match after_kvm(&ended) {
            Next::Taken => return Ok(ended),
            Next::Once(why) => {
                eprintln!("vm: QEMU does not run by KVM this time ({why}): software executes");
            }
            Next::Always(why) => {
                eprintln!(
                    "vm: KVM does not run this kernel here: software does, from now on ({} remembers it)",
                    self.no_kvm.display()
                );
                fs::write(&self.no_kvm, why)?;
            }
        }
        self.by_software(say)
    }

    /// Software that executes on several threads misses a change of the kernel's code now and then: the kernel has met an int3 then
    /// that is nobody's. Before a guest's first word that says nothing of what is tried.
    fn by_software(&self, say: &mut dyn FnMut(&str)) -> Result<Ended> {
        for _ in 1..STARTS {
            let ended = self.run_once(&TCG, self.limit, None, say)?;
            if self.supply.is_cut() || !has_met_late_int3(&ended) {
                return Ok(ended);
            }
            eprintln!("vm: the guest's kernel met an int3 that was nobody's: it is started again");
        }
        self.run_once(&TCG, self.limit, None, say)
    }

    /// `patience`: how long it may say nothing of what it runs.
    fn run_once(
        &self,
        by: &By,
        limit: Duration,
        patience: Option<Duration>,
        say: &mut dyn FnMut(&str),
    ) -> Result<Ended> {
        let mut log = File::create(self.dir.join("log"))?;
        let began = Instant::now();
        let mut child = self.start(by)?;
        self.supply.on(&child);
        let output = child.stdout.take().context("QEMU has no output")?;
        let watch = Watch::begin(&child, patience.unwrap_or(limit), self.stop);
        let mut ended = Ended {
            log: String::new(),
            first_word: None,
            took: Duration::ZERO,
            by_itself: true,
            broken: None,
            by: by.name,
        };
        for line in BufReader::new(output).split(b'\n') {
            let line = plain(&String::from_utf8_lossy(&line?));
            writeln!(log, "{line}")?;
            say(&line);
            if let Some(wire) = self.wire {
                wire.hear(&line);
            }
            ended.log += &line;
            ended.log.push('\n');
            if ended.first_word.is_none() && line.starts_with(WORD) {
                ended.first_word = Some(began.elapsed());
                watch.now(limit.saturating_sub(began.elapsed()));
            }
        }
        // Its output is at its end: only now may its number be another's.
        ended.by_itself = !watch.end();
        let status = child.wait().context("cannot wait for QEMU")?;
        if ended.by_itself && !status.success() && !self.supply.is_cut() {
            let said = fs::read_to_string(self.dir.join(SAID)).unwrap_or_default();
            let said = said.trim().lines().last().unwrap_or("it said nothing");
            ended.broken = Some(format!("{status}: {said}"));
        }
        self.supply.off();
        ended.took = began.elapsed();
        Ok(ended)
    }

    fn start(&self, by: &By) -> Result<Child> {
        let words = format!(
            "{KERNEL_WORDS} {} {} erb_work={} erb_modules={} erb_run={} {}",
            by.words,
            device::words(self.devices),
            self.dir.display(),
            self.kernel.modules.display(),
            self.script.display(),
            self.words.join(" ")
        );
        ensure!(
            words.len() <= WORDS_MAX,
            "the command line of the guest's kernel would have {} bytes, and {WORDS_MAX} is the most: a shorter path has to lead to {}",
            words.len(),
            self.dir.display()
        );
        let mut command = match self.wire {
            Some(wire) => wire.command(QEMU)?,
            None => Command::new(QEMU),
        };
        let devices = self.devices.iter().enumerate();
        let devices = devices.flat_map(|(number, device)| device.arguments(number, self.dir));
        command
            .args(by.arguments)
            .args(device::board(self.memory, self.devices))
            .args(["-smp", "2"])
            .args([
                "-nodefaults",
                "-no-reboot",
                "-nographic",
                "-serial",
                "stdio",
            ])
            .arg("-kernel")
            .arg(&self.kernel.image)
            .arg("-initrd")
            .arg(self.dir.join("initrd"))
            .args(["-append", &words])
            .args([
                "-fsdev",
                "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
            ])
            .args(["-device", "virtio-9p-pci,fsdev=root,mount_tag=root"])
            .args(self.wire.map(Wire::devices).unwrap_or_default())
            .args(devices)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(self.dir.join(SAID))?);
        ends_with_us(&mut command);
        command
            .spawn()
            .with_context(|| format!("cannot start {QEMU}"))
    }
}

/// What comes behind a start by KVM that nobody has ended.
#[derive(Debug, PartialEq, Eq)]
enum Next<'a> {
    /// The guest has begun.
    Taken,
    /// Software executes, for QEMU has failed; that may be of this moment alone.
    Once(&'a str),
    /// Software executes from now on, for this reason.
    Always(&'a str),
}

fn after_kvm(ended: &Ended) -> Next<'_> {
    match &ended.broken {
        _ if ended.first_word.is_some() => Next::Taken,
        Some(why) if !why.to_lowercase().contains("kvm") => Next::Once(why),
        Some(why) => Next::Always(why),
        None => Next::Always(&ended.log),
    }
}

fn has_met_late_int3(ended: &Ended) -> bool {
    ended.first_word.is_none() && ended.log.contains(LATE_INT3)
}

/// The command ends with this program, however that ends.
pub fn ends_with_us(command: &mut Command) {
    // SAFETY: one system call between fork and exec; nothing is allocated.
    unsafe {
        command.pre_exec(|| Ok(prctl::set_pdeathsig(Signal::SIGKILL)?));
    }
}

/// Without what moves a terminal's cursor: firmware clears the screen.
fn plain(line: &str) -> String {
    let mut kept = String::new();
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\x1b' => {
                // A letter, or a bracket and all up to the next letter.
                if letters.next() == Some('[') {
                    letters.by_ref().find(char::is_ascii_alphabetic);
                }
            }
            '\r' => {}
            letter => kept.push(letter),
        }
    }
    kept
}

/// How QEMU is told what executes.
struct By {
    name: &'static str,
    words: &'static str,
    arguments: &'static [&'static str],
}

const TCG: By = By {
    name: "software",
    // A processor that software executes may get none for a while: what stands then is not the kernel. Tasks that hang are
    // told of all the same.
    words: "watchdog_thresh=60",
    arguments: &["-accel", "tcg,thread=multi", "-cpu", "max"],
};
const BY_KVM: By = By {
    name: "KVM",
    words: "",
    arguments: &["-accel", "kvm", "-cpu", "host"],
};

fn is_usable(device: &str) -> bool {
    File::options().read(true).write(true).open(device).is_ok()
}

/// Ends a process at a moment that may be moved.
pub(crate) struct Watch {
    orders: mpsc::Sender<Duration>,
    watcher: thread::JoinHandle<bool>,
}

impl Watch {
    pub(crate) fn begin(child: &Child, limit: Duration, stop: &Arc<Stop>) -> Self {
        let (orders, next) = mpsc::channel();
        let process = process_of(child);
        let mut end = Instant::now() + limit;
        let stop = Arc::clone(stop);
        let watcher = thread::spawn(move || {
            loop {
                match next.recv_timeout(LOOK) {
                    Ok(other) => end = Instant::now() + other,
                    Err(mpsc::RecvTimeoutError::Disconnected) => return false,
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        if Instant::now() >= end || stop.check().is_err() {
                            let _ = signal::kill(process, Signal::SIGKILL);
                            return true;
                        }
                    }
                }
            }
        });
        Self { orders, watcher }
    }

    /// From now on so long.
    fn now(&self, limit: Duration) {
        let _ = self.orders.send(limit);
    }

    /// Whether it had to end the process.
    pub(crate) fn end(self) -> bool {
        drop(self.orders);
        self.watcher.join().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};

    use std::time::Duration;

    use super::{Ended, Next, Supply, after_kvm, has_met_late_int3, plain};

    fn sleeps() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    #[test]
    fn a_machine_ends_with_its_power_and_does_not_begin_without() {
        let supply = Supply::default();
        let mut child = sleeps();
        supply.on(&child);
        supply.clone().cut();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(supply.is_cut());
        let mut child = sleeps();
        supply.on(&child);
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        let supply = Supply::default();
        let mut child = sleeps();
        supply.on(&child);
        child.kill().unwrap();
        supply.off();
        child.wait().unwrap();
        // Its number may be another's by now.
        supply.cut();
        assert!(supply.is_cut());
    }

    fn ended(log: &str, broken: Option<&str>, has_begun: bool) -> Ended {
        Ended {
            log: log.to_owned(),
            first_word: has_begun.then_some(Duration::from_secs(8)),
            took: Duration::from_secs(9),
            by_itself: true,
            broken: broken.map(str::to_owned),
            by: "KVM",
        }
    }

    #[test]
    fn kvm_is_given_up_for_what_is_said_of_it_alone() {
        let no_memory = "exit status: 1: cannot set up guest memory 'pc.ram'";
        let no_kvm = "exit status: 1: failed to initialize kvm: No such device";
        let next =
            |log, broken, has_begun| format!("{:?}", after_kvm(&ended(log, broken, has_begun)));
        assert_eq!(
            next("", Some(no_memory), false),
            format!("{:?}", Next::Once(no_memory))
        );
        assert_eq!(
            next("", Some(no_kvm), false),
            format!("{:?}", Next::Always(no_kvm))
        );
        assert_eq!(
            next("SeaBIOS", None, false),
            format!("{:?}", Next::Always("SeaBIOS"))
        );
        assert_eq!(next("guest: ", Some(no_memory), true), "Taken");
    }

    #[test]
    fn a_guest_is_started_again_only_if_it_did_not_begin() {
        let oops = "[    3.364974] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n";
        assert!(has_met_late_int3(&ended(oops, None, false)));
        assert!(!has_met_late_int3(&ended(oops, None, true)));
        assert!(!has_met_late_int3(&ended(
            "[    3.364974] Oops: Oops: 0000 [#1]\n",
            None,
            false
        )));
    }

    #[test]
    fn what_firmware_does_to_a_screen_is_left_out() {
        assert_eq!(plain("\x1bc\x1b[?7l\x1b[2J\x1b[0mSeaBIOS\r"), "SeaBIOS");
        assert_eq!(plain("guest: 0 failed"), "guest: 0 failed");
        assert_eq!(plain("cut off \x1b["), "cut off ");
    }
}
