// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The VM lab: ERB under other kernels than the one that runs, in emulated machines (`erb lab vm`).
//!
//! # Layout
//! - [`version`]: kernels by name, and what is wanted of them. [`kernels`]: which there are, which is taken.
//! - [`lists`]: Debian's packages as a private apt knows them.
//! - [`unpack`]: a kernel out of its packages. [`toolchain`]: the kernel module, with the compiler of the kernel's release.
//! - [`initrd`]: a guest's first file system. [`machine`]: QEMU. [`device`]: what a machine has. [`wire`]: what is between a guest's
//!   cards.
//! - [`checks`]: what is tried, some with `guests` of more devices. [`options`]: what checks are told. `guest/`: what guests run, behind `common.sh`.
//! - [`run`]: a guest, from its start to what is wrong with it. [`host`]: what this machine does meanwhile. [`boots`]: guests that
//!   another program starts, to cut their power.
//! - [`judge`]: what a guest's log says.
//! - [`fault`]: why nothing could be tried.
//!
//! All that is kept lies below `vm` in the build's target folder: lists, a folder for each kernel, one for each check's last
//! run with its log. Nothing is installed.

pub mod boots;
pub mod checks;
pub mod device;
pub mod fault;
mod guests;
pub mod host;
pub mod initrd;
pub mod judge;
pub mod kernels;
pub mod lists;
pub mod machine;
pub mod options;
pub mod run;
pub mod toolchain;
pub mod unpack;
pub mod version;
pub mod wire;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use erb_lab::apt::kept_dir;
use erb_lab::{Erb, Stop};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use crate::boots::SCRIPT;
use crate::checks::{Case, Check, Guest};
use crate::fault::{Missing, Unfit, Unprivileged};
use crate::kernels::{Kernel, Kernels, Needed};
use crate::lists::Lists;
use crate::machine::Accelerator;
use crate::options::{Given as GivenOption, Options};
use crate::run::Run;
use crate::toolchain::Headers;
use crate::unpack::Unpacked;
use crate::version::Wanted;

/// Stands before what each guest runs.
const COMMON: &str = include_str!("../guest/common.sh");
/// Kernels that are tried if none is named.
const USUAL: [Wanted; 2] = [Wanted::Series((6, 12)), Wanted::Newest];
/// What unpacking kernels needs of this machine: a program or file, and its package.
const NEEDED: [(&str, &str); 2] = [(unpack::DEPMOD, "kmod"), ("/usr/bin/xz", "xz-utils")];
/// What an emulated machine needs beside.
const STARTED: [(&str, &str); 2] = [
    ("/usr/bin/qemu-system-x86_64", "qemu-system-x86"),
    (initrd::BUSYBOX, "busybox-static"),
];
/// How many times slower a kernel is that looks for mistakes, and how many times the memory it needs.
const DEBUG_SLOW: u32 = 5;
const DEBUG_MEMORY: u32 = 2;
/// What it is told: nothing that it says is lost with a ring that is full.
const DEBUG_WORDS: &str = "erb_debug=1 ignore_loglevel";
/// What a kernel is told that is not to look for memory that is used wrongly.
const UNWATCHED_WORDS: &str = "slub_debug=- kfence.sample_interval=0 page_poison=0 init_on_alloc=0";
/// Where it is below what is kept: a link.
const DEBUG: &str = "linux-debug";
/// How long a check may be told to take: 11 days at most.
const SECONDS: RangeInclusive<u64> = 10..=1_000_000;
/// Of a socket's path, as the kernel has it.
const SOCKET_PATH_MAX: usize = 107;
/// The longest name of a socket in a guest's folder.
const SOCKET: &str = "flush";
/// So many times a list's or server's kernel may have vanished before that is no chance any more.
const TRIES: u32 = 4;

/// ERB under other kernels than the one that runs, in emulated machines.
///
/// Kernels are Debian's. They are downloaded once (100 to 170 MB), unpacked below the build's target folder and never installed. A
/// guest sees this machine's files read-only.
#[derive(Args, Debug)]
pub struct VmArgs {
    /// Kernels (a series like 6.12: its newest; newest: of all; a version; debug: what scripts/vm/debug-kernel.sh has built)
    /// and checks; by default 6.12, newest, and load, paths.
    #[arg(value_name = "KERNEL|CHECK", value_parser = word)]
    words: Vec<Word>,
    /// Show the kernels that can be had: image, headers or not, suite.
    #[arg(long, conflicts_with_all = ["words", "build", "only", "cycles", "seconds"])]
    list_kernels: bool,
    /// What executes a guest's instructions.
    #[arg(long, value_enum, default_value_t = Accelerator::Auto)]
    accel: Accelerator,
    /// Ends a check that does not end by itself, by default after 600 s or what it needs. `power` and `writes` begin no cut that
    /// would take longer.
    #[arg(long, value_parser = clap::value_parser!(u64).range(SECONDS))]
    seconds: Option<u64>,
    /// Of `paths`, `dax`, `kmod` and `sink` only what has this in its name.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = part_of_name)]
    only: String,
    /// How many times `kmod` inserts and removes the module (30), and `sink` changes the sink (3).
    #[arg(long)]
    cycles: Option<u32>,
    /// Guests' kernels do not look for memory that is used wrongly: the verifier is faster, for many cycles.
    #[arg(long)]
    unwatched: bool,
    /// Only make what guests need: kernels are unpacked, the module is built, no guest is started.
    #[arg(long)]
    build: bool,
    #[command(flatten)]
    options: Options,
}

/// A kernel or a check.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    Kernel(Wanted),
    Check(Check),
}

/// A word of the kernel's command line, and no pattern of a shell's.
fn part_of_name(text: &str) -> Result<String, String> {
    let is_good = |letter: char| letter.is_ascii_alphanumeric() || "-_.:/+,".contains(letter);
    if text.chars().all(is_good) {
        Ok(text.to_owned())
    } else {
        Err("a part of a check's name has letters, digits and -_.:/+, alone".to_owned())
    }
}

fn word(text: &str) -> Result<Word, String> {
    if let Ok(check) = Check::from_str(text, false) {
        return Ok(Word::Check(check));
    }
    let checks = names(Check::value_variants().iter());
    let wanted = text
        .parse()
        .map_err(|error| format!("{error}; checks are {checks}"));
    wanted.map(Word::Kernel)
}

impl VmArgs {
    fn kernels(&self) -> Vec<Wanted> {
        let named = self.words.iter().filter_map(|word| match word {
            Word::Kernel(wanted) => Some(wanted.clone()),
            Word::Check(_) => None,
        });
        let named: Vec<_> = named.collect();
        if named.is_empty() {
            USUAL.to_vec()
        } else {
            named
        }
    }

    /// What a guest's kernel and its script are told by the kernel's command line.
    fn guest_words(&self, seed: u64, is_debug: bool) -> Vec<String> {
        let cycles = self.cycles.map(|cycles| cycles.to_string());
        let mut words = self.options.words(seed);
        words.extend([
            format!("erb_only={}", self.only),
            format!("erb_cycles={}", cycles.unwrap_or_default()),
            format!("erb_slow={}", if is_debug { DEBUG_SLOW } else { 1 }),
        ]);
        if is_debug {
            words.push(DEBUG_WORDS.to_owned());
        }
        if self.unwatched {
            words.push(UNWATCHED_WORDS.to_owned());
        }
        words
    }

    fn checks(&self) -> Vec<Check> {
        let named = self.words.iter().filter_map(|word| match word {
            Word::Check(check) => Some(*check),
            Word::Kernel(_) => None,
        });
        let named: Vec<_> = named.collect();
        if named.is_empty() {
            Check::USUAL.to_vec()
        } else {
            named
        }
    }

    /// Whether each option is for a check that is wanted: one that nobody takes would be forgotten.
    fn fits(&self) -> Result<(), Unfit> {
        let checks = self.checks();
        let own: [GivenOption; 2] = [
            ("--only", !self.only.is_empty(), |check| {
                check.guest().chooses
            }),
            ("--cycles", self.cycles.is_some(), |check| {
                matches!(check, Check::Kmod | Check::Sink)
            }),
        ];
        let all = own.into_iter().chain(self.options.given());
        for (option, is_given, takes) in all {
            if is_given && !checks.iter().any(|check| takes(*check)) {
                let takers = Check::value_variants()
                    .iter()
                    .filter(|check| takes(**check));
                return Err(Unfit {
                    option,
                    takers: names(takers),
                    wanted: names(checks.iter()),
                });
            }
        }
        Ok(())
    }
}

fn names<'a>(checks: impl Iterator<Item = &'a Check>) -> String {
    let names: Vec<String> = checks.map(|check| check.name()).collect();
    names.join(", ")
}

/// Does what the arguments say.
///
/// # Errors
/// [`Missing`] if nothing can be tried here; [`Unfit`] if an option is for none of the checks; else if something was not as it
/// should be.
pub fn run(args: &VmArgs, json: bool, erb: &Erb) -> Result<()> {
    args.fits()?;
    let dir = kept_dir("vm")?;
    can_be_told(&dir)?;
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    if args.list_kernels {
        return list(&dir, json);
    }
    needed(args)?;
    may(args, geteuid().is_root())?;
    let stop = Stop::watch()?;
    // But while a guest runs nothing is there that another run would not do anew.
    stop.ends_at_once(true);
    let mut lab = Lab {
        dir,
        args,
        erb,
        source: None,
        stop: Arc::new(stop),
    };
    let mut failed = Vec::new();
    for wanted in args.kernels() {
        for check in args.checks() {
            if !lab.check(check, &wanted)? {
                failed.push(format!("{} on {wanted}", check.name()));
            }
        }
    }
    if !failed.is_empty() {
        bail!("not all is as it should be: {}", failed.join(", "));
    }
    Ok(())
}

/// Guests are told where their folder is by a kernel's command line.
fn can_be_told(dir: &Path) -> Result<()> {
    let is_word =
        |text: &str| !text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"');
    ensure!(
        dir.to_str().is_some_and(is_word),
        "guests cannot be told of {}: no part of that path may have a space, a quote or what is no UTF-8. Build ERB where none has, or \
         with CARGO_TARGET_DIR at such a place",
        dir.display()
    );
    Ok(())
}

/// Whether this user may do it; before anything is downloaded.
fn may(args: &VmArgs, is_root: bool) -> Result<(), Unprivileged> {
    let checks = args.checks();
    match checks
        .iter()
        .find(|check| check.guest().wire && !args.build)
    {
        Some(check) => {
            let what = || format!("the check `{}` makes network devices", check.name());
            Unprivileged::unless_root(is_root, what)
        }
        None => Ok(()),
    }
}

/// What is not here of what guests need.
fn needed(args: &VmArgs) -> Result<()> {
    let checks = args.checks();
    let of_checks = checks.iter().flat_map(|check| check.guest().packages);
    let of_guests = STARTED.iter().chain(of_checks);
    let all = NEEDED.iter().chain(of_guests.filter(|_| !args.build));
    let missing = all.filter(|(path, _)| match *path {
        initrd::BUSYBOX => !initrd::is_alone(path),
        path => !Path::new(path).exists(),
    });
    let missing: BTreeSet<&str> = missing.map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let missing: Vec<&str> = missing.into_iter().collect();
    Err(Missing::Packages(missing.join(" ")).into())
}

fn list(dir: &Path, json: bool) -> Result<()> {
    let (_, kernels) = source(dir)?;
    if json {
        println!("{}", serde_json::to_string(kernels.all())?);
        return Ok(());
    }
    println!("{:<20} {:<8} suite", "image", "headers");
    for kernel in kernels.all() {
        let headers = if kernel.headers.is_some() {
            "yes"
        } else {
            "no"
        };
        println!(
            "{:<20} {headers:<8} {}",
            kernel.version.as_str(),
            kernel.suites.join(", ")
        );
    }
    Ok(())
}

/// The lists as they are today, one at a time: others may look too.
fn source(dir: &Path) -> Result<(Lists, Kernels)> {
    let lists = Lists::open(&dir.join("apt"))?;
    let _lock = lock(dir)?;
    lists.refresh()?;
    let mut kernels = lists.kernels()?;
    if kernels.all().is_empty() {
        kernels = Kernels::new(unpack::kept(dir)?);
    }
    Ok((lists, kernels))
}

/// Lists and kernels are one command's at a time.
fn lock(dir: &Path) -> Result<Flock<File>> {
    lock_file(&dir.join("lock"), "lists and kernels")
}

fn lock_file(path: &Path, of: &str) -> Result<Flock<File>> {
    let failed = || format!("cannot lock {}", path.display());
    let file = File::create(path).with_context(failed)?;
    let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(locked) => return Ok(locked),
        Err((file, Errno::EWOULDBLOCK)) => file,
        Err((_, error)) => return Err(error).with_context(failed),
    };
    eprintln!(
        "vm: another one has {of} ({}): this one waits for it",
        path.display()
    );
    let locked = Flock::lock(file, FlockArg::LockExclusive);
    locked.map_err(|(_, error)| error).with_context(failed)
}

/// A kernel that is there.
#[derive(Clone, Debug)]
pub struct Given {
    /// Its version.
    pub version: String,
    /// Its headers, if the check needs them.
    pub headers: Option<Headers>,
    /// Its image and its modules.
    pub unpacked: Unpacked,
}

impl Given {
    /// The kernel that looks for mistakes itself.
    fn debug(vm: &Path) -> Result<Self> {
        let dir = fs::canonicalize(vm.join(DEBUG)).map_err(|_| Missing::Debug)?;
        Ok(Self {
            version: DEBUG.to_owned(),
            headers: Some(Headers::Here(dir.join("build"))),
            unpacked: unpack::found(&dir)?,
        })
    }

    fn is_debug(&self) -> bool {
        self.version == DEBUG
    }

    fn memory_factor(&self) -> u32 {
        if self.is_debug() { DEBUG_MEMORY } else { 1 }
    }

    /// One of Debian's; downloads what is not there.
    fn new(
        vm: &Path,
        kernel: &Kernel,
        (lists, kernels): (&Lists, &Kernels),
        needed: Needed,
    ) -> Result<Self> {
        let headers = match needed {
            Needed::Image => None,
            Needed::Headers => Some(Headers::of(vm, kernel, kernels, lists)?),
        };
        Ok(Self {
            version: kernel.version.to_string(),
            headers,
            unpacked: unpack::kernel(vm, kernels, kernel, lists)?,
        })
    }
}

/// What is at work for one command.
struct Lab<'a> {
    dir: PathBuf,
    args: &'a VmArgs,
    erb: &'a Erb,
    source: Option<(Lists, Kernels)>,
    stop: Arc<Stop>,
}

impl Lab<'_> {
    /// Whether it passed.
    fn check(&mut self, check: Check, wanted: &Wanted) -> Result<bool> {
        let guest = check.guest();
        let kernel = self.kernel(wanted, (guest.needed)(self.args))?;
        self.guest(check, guest, &kernel)
    }

    /// The kernel that is taken, unpacked. One that the servers refuse is replaced by the next.
    fn kernel(&mut self, wanted: &Wanted, needed: Needed) -> Result<Given> {
        if *wanted == Wanted::Debug {
            return Given::debug(&self.dir);
        }
        let (lists, mut kernels) = match self.source.take() {
            Some(source) => source,
            None => source(&self.dir)?,
        };
        let _lock = lock(&self.dir)?;
        let mut why = "no suite has one".to_owned();
        for tried in 0..TRIES {
            let Some(taken) = kernels.take(wanted, needed) else {
                break;
            };
            let version = &taken.kernel.version;
            if let Some(gone) = &taken.instead_of {
                eprintln!(
                    "vm: {gone} is not on Debian's servers (any more): {version} takes its place"
                );
            }
            match Given::new(&self.dir, &taken.kernel, (&lists, &kernels), needed) {
                Ok(given) => {
                    remember(&self.dir, wanted, &taken.kernel, &kernels)?;
                    self.source = Some((lists, kernels));
                    return Ok(given);
                }
                Err(error) if error.is::<Unprivileged>() => return Err(error),
                // The lists may be older than what the servers have.
                Err(error) if tried == 0 => {
                    eprintln!("vm: {version} cannot be had: {error:#}");
                    why = format!("{error:#}");
                    lists.ask()?;
                    kernels = lists.kernels()?;
                }
                Err(error) => {
                    eprintln!("vm: {version} cannot be had, the next one is tried: {error:#}");
                    why = format!("{error:#}");
                    kernels.forget(version);
                }
            }
        }
        Err(Missing::Kernel(wanted.to_string(), why).into())
    }

    /// What the guest has in its folder.
    fn prepare(&self, guest: &Guest, case: &Case<'_>) -> Result<()> {
        let (check, dir) = (case.check, case.dir);
        let socket = dir.join(SOCKET).as_os_str().len();
        ensure!(
            !guest.has_sockets() || socket <= SOCKET_PATH_MAX,
            "{} is too long a path by {} bytes: the check `{check}` has sockets there. Build ERB at a shorter one, or with CARGO_TARGET_DIR",
            dir.display(),
            socket.saturating_sub(SOCKET_PATH_MAX)
        );
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        (guest.prepare)(case)?;
        if self.args.build {
            return Ok(());
        }
        fs::write(dir.join(SCRIPT), [COMMON, guest.script].concat())?;
        for program in [self.erb.found()?, &erb_lab::beside("erb-lab")?] {
            let to = dir.join(program.file_name().unwrap_or_default());
            fs::copy(program, to).with_context(|| format!("cannot copy {}", program.display()))?;
        }
        let mut programs = guest.programs.iter();
        programs.try_for_each(|program| checks::copy_program(check, program, dir))
    }

    fn guest(&self, check: Check, guest: &Guest, kernel: &Given) -> Result<bool> {
        let name = check.name();
        let runs = self.dir.join("runs");
        fs::create_dir_all(&runs).with_context(|| format!("cannot make {}", runs.display()))?;
        let run = format!("{name}-{}", kernel.version);
        let dir = runs.join(&run);
        // Whoever comes second would remove the folder of a guest that runs.
        let _lock = lock_file(
            &runs.join(format!("{run}.lock")),
            "this check on this kernel",
        )?;
        let case = Case {
            check: &name,
            vm: &self.dir,
            dir: &dir,
            args: self.args,
            kernel,
        };
        self.prepare(guest, &case)?;
        if self.args.build {
            return Ok(true);
        }
        let run = Run {
            check,
            guest,
            case,
            seed: self.args.options.seed(),
            stop: &self.stop,
        };
        let seed = check.is_random().then(|| format!(", seed {}", run.seed));
        eprintln!(
            "vm: {name} on {}{}",
            kernel.version,
            seed.unwrap_or_default()
        );
        self.stop.ends_at_once(false);
        let done = run.run();
        self.stop.check()?;
        self.stop.ends_at_once(true);
        let done = done?;
        let good = done.problems.is_empty();
        let word = if good { "passed" } else { "FAILED" };
        println!("vm: {name} on {} {word}: {}", kernel.version, done.ended);
        if !good {
            for problem in done.problems {
                println!("vm:   {problem}");
            }
            println!("vm:   all that was said is in {}", dir.display());
        }
        Ok(good)
    }
}

/// What was taken for this wish; says so if what was taken before has gone.
fn remember(dir: &Path, wanted: &Wanted, kernel: &Kernel, kernels: &Kernels) -> Result<()> {
    let file = dir.join("taken");
    let old = fs::read_to_string(&file).unwrap_or_default();
    let name = wanted.to_string();
    let mut lines = Vec::new();
    for line in old.lines() {
        match line.split_once(' ') {
            Some((of, version)) if of == name => {
                let mut all = kernels.all().iter();
                if all.all(|one| one.version.as_str() != version) {
                    eprintln!(
                        "vm: {version} has gone from Debian's servers: for {name}, {} takes its place",
                        kernel.version
                    );
                }
            }
            _ => lines.push(line.to_owned()),
        }
    }
    lines.push(format!("{name} {}", kernel.version));
    fs::write(&file, lines.join("\n") + "\n")
        .with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
#[path = "lib_tests.rs"]
mod tests;
