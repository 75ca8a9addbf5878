// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb boost`: starts the daemon in the background and says how that went, or is the daemon.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use erb_daemon::log::{self, Log};
use erb_daemon::proc::is_there;
use erb_daemon::{
    Allowed, BoostConfig, Daemon, Error, JournalPlace, Notes, Request, Result, RunDir, STATE_ROOT,
    Taken, WITHDRAW, drop_privileges, enter_base_mount_namespace, request,
};
use erb_datapath::{
    AttachMode, Attached, JournalSink, Programs, VlanOffload, WantedTiers, other_end, parse_bytes,
};
use erb_report::Status;
use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::{BoostArgs, Mode, Tier};
use crate::exit;
use crate::interrupt::{self, Interrupt};
use crate::journal_args::{JournalMode, SinkArg};
use crate::show::mention;

/// Attaching, the first state of Redis and the pause before connections are admitted take about
/// 0.3 s; a Redis that must not be answered for is not waited for longer than this.
const SERVING_MAX: Duration = Duration::from_secs(2);

/// The option of a process that only starts the daemon.
const ORPHAN: &str = "--orphan";
const NOT_STARTED: &str = "could not start the daemon";

/// Between looks whether the daemon serves.
const LOOK: Duration = Duration::from_millis(20);

/// What a background daemon says about its start, one line of JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Announcement {
    Started {
        report: String,
        run_dir: PathBuf,
        pid: u32,
        /// Nothing was at work before.
        fresh: bool,
    },
    Failed {
        error: String,
        code: u8,
    },
}

/// Runs the command.
pub fn run(args: &BoostArgs) -> Result<ExitCode> {
    if args.orphan {
        daemon_command()?.spawn().map_err(Error::io(NOT_STARTED))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.foreground {
        return Ok(run_daemon(args));
    }
    // Cheap mistakes are found without a second process.
    config(args)?;
    let interrupt = Interrupt::watch()?;
    let mut daemon = spawn(args)?;
    let mut by = None;
    let line = match daemon.stdout.take() {
        Some(output) => interrupt.line(output, |number| {
            if by.replace(number).is_none() {
                withdraw(args, &daemon);
            }
        }),
        None => Ok(String::new()),
    };
    let line = line.map_err(Error::io("could not hear how the daemon started"))?;
    match serde_json::from_str(&line) {
        Ok(Announcement::Started {
            report,
            run_dir,
            pid,
            fresh,
        }) => {
            if is_reload(args) {
                // Who is not heard is no worse off than before: the daemon works.
                let _ = sd_notify::notify(false, &[NotifyState::MainPid(pid)]);
            }
            mention(&report);
            // Of a reload it is no child: its parent ended at once.
            let mut ended = || match is_reload(args) {
                true => (!is_there(pid)).then(|| "has ended".to_owned()),
                false => ended(&mut daemon),
            };
            let served = match by {
                Some(number) => Err(Unserved::Interrupted(number)),
                None => wait_until_serving(&RunDir::new(&run_dir), &mut ended, || interrupt.take()),
            };
            Ok(match served {
                Err(Unserved::Interrupted(number)) if fresh => interrupt.detach(pid, number, ended),
                served => told(served, pid),
            })
        }
        Ok(Announcement::Failed { error, code }) => Ok(match by {
            // By what this process has told it.
            Some(number) if code > exit::BY_SIGNAL => interrupt::taken_back(number),
            _ => {
                eprintln!("error: {error}");
                ExitCode::from(code)
            }
        }),
        Err(_) => {
            let status = daemon
                .wait()
                .map_err(Error::io("could not wait for the daemon"))?;
            // So early that nothing had begun.
            if let Some(number) = by.filter(|_| status.signal() == Some(WITHDRAW as i32)) {
                return Ok(interrupt::taken_back(number));
            }
            eprintln!("error: the daemon ended while starting ({status})");
            Ok(ExitCode::from(exit::FAILED))
        }
    }
}

/// Says what came of the wait for a daemon that goes on.
fn told(served: std::result::Result<String, Unserved>, pid: u32) -> ExitCode {
    match served {
        Ok(said) => {
            mention(&format!("{said}\n"));
            ExitCode::SUCCESS
        }
        Err(Unserved::Ended(why)) => {
            eprintln!("error: {why}");
            ExitCode::from(exit::FAILED)
        }
        Err(Unserved::Interrupted(number)) => {
            eprintln!(
                "error: interrupted by signal {number}: what was at work before goes on, with process {pid}; `erb detach` \
                 takes it away"
            );
            interrupt::code(number)
        }
    }
}

/// Asks a daemon that begins to take back what it has done. One that goes on with what was at work does not hear it.
fn withdraw(args: &BoostArgs, daemon: &Child) {
    eprintln!(
        "interrupted: what has begun is taken back when the step that is under way is done, which may take some seconds"
    );
    if !is_reload(args) {
        interrupt::signal(daemon.id(), WITHDRAW);
    }
}

/// Why nobody waits any more until a daemon serves.
#[derive(Debug)]
enum Unserved {
    /// It has ended, and so.
    Ended(String),
    /// A signal of this number came.
    Interrupted(u8),
}

/// Waits until new connections can be answered; says so, or why not yet. What `ended` says is how the daemon has ended
/// meanwhile, what `interrupted` says is the number of a signal.
fn wait_until_serving(
    run_dir: &RunDir,
    mut ended: impl FnMut() -> Option<String>,
    mut interrupted: impl FnMut() -> Option<u8>,
) -> std::result::Result<String, Unserved> {
    let until = Instant::now() + SERVING_MAX;
    loop {
        if let Some(number) = interrupted() {
            return Err(Unserved::Interrupted(number));
        }
        let why_not = match request::<Status>(run_dir, &Request::Status) {
            Ok(status) if status.serving && status.admitting => {
                return Ok(with_notes("serving", &status.notes));
            }
            Ok(status) => with_notes(&not_yet(&status.not_serving.join("; ")), &status.notes),
            Err(error) => match ended() {
                Some(how) => {
                    return Err(Unserved::Ended(format!(
                        "the daemon {how} after it had begun: its log ({} unless --log names another) may say why, \
                         `erb status` what it left at work; `erb boost` with the same arguments goes on with that, \
                         `erb detach` takes it away",
                        run_dir.log().display()
                    )));
                }
                None => not_yet(&error.to_string()),
            },
        };
        if Instant::now() >= until {
            return Ok(why_not);
        }
        std::thread::sleep(LOOK);
    }
}

fn not_yet(why: &str) -> String {
    format!("not serving yet: {why} (see `erb status`)")
}

/// A word, and what else an operator should know.
fn with_notes(word: &str, notes: &[String]) -> String {
    let notes = notes.iter().map(|note| format!("\n  note: {note}"));
    std::iter::once(word.to_owned()).chain(notes).collect()
}

/// How a process that was started here has ended; none: it has not.
fn ended(child: &mut Child) -> Option<String> {
    let status = child.try_wait().ok().flatten()?;
    Some(format!("has ended ({status})"))
}

/// This program again, with the words it was given, as a daemon that announces itself.
fn daemon_command() -> Result<Command> {
    let program =
        std::env::current_exe().map_err(Error::io("could not find this program's file"))?;
    let mut command = Command::new(program);
    let own = ["--foreground", "--announce"];
    command.arg("boost").args(own);
    // Behind the program's name and `boost`, which has nothing before it. A process between has ours already.
    let is_typed = |word: &OsString| word != ORPHAN && !own.iter().any(|own| word == own);
    command.args(std::env::args_os().skip(2).filter(is_typed));
    command.stdin(Stdio::null());
    Ok(command)
}

/// Whether systemd is to go on with the daemon that is started: as `systemctl reload` asks for one.
fn is_reload(args: &BoostArgs) -> bool {
    args.take_over && std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Starts it. As the main process of a service it has to be a child of systemd: whom
/// systemd has not for a child, it kills without waiting for his end. So its parent ends at once.
fn spawn(args: &BoostArgs) -> Result<Child> {
    let mut command = daemon_command()?;
    if is_reload(args) {
        command.arg(ORPHAN);
    }
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Error::io(NOT_STARTED))?;
    if is_reload(args) {
        child.wait().map_err(Error::io(NOT_STARTED))?;
    }
    Ok(child)
}

/// What the arguments ask for, as far as they tell by themselves.
pub fn config(args: &BoostArgs) -> Result<BoostConfig> {
    Ok(BoostConfig {
        devices: args.dev.clone(),
        redis: args.redis.parse()?,
        credentials: args.login.source()?,
        port: args.port,
        cache_bytes: parse_bytes(&args.cache_size)?,
        connections: args.connections,
        programs: match &args.programs {
            Some(folder) => Programs::from_folder(folder)?,
            None => Programs::builtin(),
        },
        run_dir: args.run_dir.clone(),
        hold_max: args.hold_max,
        close_after: args.close_after,
        write_back: (args.mode == Mode::WriteBack).then_some(Allowed {
            unseen: args.allow_unseen,
            modules: args.allow_modules,
        }),
        journal: journal(args)?,
        journal_all: args.kept.journal == Some(JournalMode::All),
        journal_sink: sink(args)?,
        metrics: args.watched.config(args.dashboard_details),
        timing: !args.no_timing,
        take_over: args.take_over,
        anyway: args.anyway,
        tiers: match args.tier {
            Tier::Auto => WantedTiers::Best,
            Tier::Xdp => WantedTiers::Xdp,
            Tier::Tc => WantedTiers::Tc,
        },
    })
}

/// Who writes the journal.
fn sink(args: &BoostArgs) -> Result<JournalSink> {
    match (args.kept.journal_sink, args.kept.journal) {
        (SinkArg::Daemon, _) => Ok(JournalSink::Daemon),
        (SinkArg::Kmod, Some(JournalMode::All)) if args.mode == Mode::WriteBack => {
            Ok(JournalSink::Kmod)
        }
        (SinkArg::Kmod, _) => Err(Error::Usage(
            "the kernel module writes every SET that is answered: --journal-sink kmod needs --mode write-back and \
             --journal all"
                .to_owned(),
        )),
    }
}

/// Where what waits for Redis is kept; none: nowhere.
fn journal(args: &BoostArgs) -> Result<Option<JournalPlace>> {
    let given = args.kept.journal_dir.clone().map(JournalPlace::Folder);
    if args.mode == Mode::Read {
        return match (args.kept.journal, given) {
            (Some(JournalMode::Late | JournalMode::All), _) | (_, Some(_)) => Err(Error::Usage(
                "a journal is for --mode write-back: in mode read nothing waits for Redis"
                    .to_owned(),
            )),
            _ => Ok(None),
        };
    }
    match (args.kept.journal, given) {
        (Some(JournalMode::None), Some(_)) => Err(Error::Usage(
            "--journal none keeps nothing: leave out --journal-dir".to_owned(),
        )),
        (Some(JournalMode::None), None) => Ok(None),
        (_, Some(folder)) => Ok(Some(folder)),
        (Some(JournalMode::Late | JournalMode::All), None) => Ok(Some(JournalPlace::Default)),
        (None, None) => Ok(Path::new(STATE_ROOT)
            .is_dir()
            .then_some(JournalPlace::Default)),
    }
}

fn run_daemon(args: &BoostArgs) -> ExitCode {
    if args.announce {
        // Ctrl-C is for the process that started it. Fails only for a process group leader, which a spawned child is not.
        let _ = nix::unistd::setsid();
    }
    begin_log(args);
    let started = start(args).and_then(|daemon| match settle(args, &daemon) {
        Ok(()) => Ok(daemon),
        Err(error) => {
            daemon.give_up();
            Err(error)
        }
    });
    let failed = match started.map(Daemon::run) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        // At work it has nobody to tell but the log.
        Ok(Err(error)) => {
            tracing::error!("{error}");
            return ExitCode::from(exit::code(&error));
        }
        Err(error) => error,
    };
    let code = exit::code(&failed);
    let error = failed.to_string();
    if !args.announce
        || announce(&Announcement::Failed {
            error: error.clone(),
            code,
        })
        .is_err()
    {
        let _ = writeln!(std::io::stderr(), "error: {error}");
    }
    ExitCode::from(code)
}

/// Whether standard error goes to the journal (systemd.exec(5), `JOURNAL_STREAM`) and no file is asked for.
fn is_journaled(args: &BoostArgs) -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let own = nix::sys::stat::fstat(std::io::stderr());
    let own = own.map(|found| format!("{}:{}", found.st_dev, found.st_ino));
    args.log.is_none() && own.is_ok_and(|own| own == stream)
}

fn begin_log(args: &BoostArgs) {
    if is_journaled(args) {
        if let Ok(journal) = tracing_journald::layer() {
            let all = tracing_subscriber::registry().with(LevelFilter::INFO);
            all.with(journal.with_syslog_identifier("erb".to_owned()))
                .init();
            return;
        }
    }
    tracing_subscriber::fmt()
        .with_writer(|| Log)
        // They would go where the message could not.
        .log_internal_errors(false)
        .with_ansi(false)
        .with_target(false)
        .init();
}

/// Says how the start went and takes the place where the daemon works from.
fn settle(args: &BoostArgs, daemon: &Daemon) -> Result<()> {
    let report = report(daemon);
    if !args.announce {
        if let Some(log) = &args.log {
            log_to(log)?;
        }
        drop_privileges()?;
        let trouble = log::trouble().map(|trouble| format!("  warning: {trouble}\n"));
        mention(&(report + &trouble.unwrap_or_default()));
        return Ok(());
    }
    // Whether it can be written stands in the status, which the parent reads.
    leave_terminal(args, daemon.run_dir())?;
    drop_privileges()?;
    announce(&Announcement::Started {
        report,
        run_dir: daemon.run_dir().to_path_buf(),
        pid: std::process::id(),
        fresh: daemon.taken() == Taken::Fresh,
    })?;
    silence_output()
}

fn start(args: &BoostArgs) -> Result<Daemon> {
    let config = config(args)?;
    enter_base_mount_namespace()?;
    Daemon::start(&config)
}

fn announce(announcement: &Announcement) -> Result<()> {
    let line =
        serde_json::to_string(announcement).map_err(|error| Error::Usage(error.to_string()))?;
    let mut output = std::io::stdout();
    writeln!(output, "{line}")
        .and_then(|()| output.flush())
        .map_err(Error::io("could not announce the start"))
}

/// The log instead of the terminal.
fn leave_terminal(args: &BoostArgs, run_dir: &Path) -> Result<()> {
    if is_journaled(args) {
        return Ok(());
    }
    let default = run_dir.join("log");
    log_to(args.log.as_deref().unwrap_or(&default))
}

fn log_to(path: &Path) -> Result<()> {
    let file = File::options()
        .create(true)
        .append(true)
        .open(path)
        .map_err(Error::io(format!(
            "could not open the log {} (--log names another)",
            path.display()
        )))?;
    nix::unistd::dup2_stderr(file).map_err(Error::io("could not redirect the log"))?;
    // The first line tells whether there can be others.
    let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
    tracing::info!("erb {version} begins, process {pid}");
    Ok(())
}

/// Nobody reads standard output any more once the start is announced.
fn silence_output() -> Result<()> {
    let null = File::options()
        .write(true)
        .open("/dev/null")
        .map_err(Error::io("could not open /dev/null"))?;
    nix::unistd::dup2_stdout(null).map_err(Error::io("could not redirect standard output"))
}

/// Why XDP, which is at work there because it was asked for, answers late.
fn why_late(attached: &Attached) -> Option<&'static str> {
    let end = other_end(&attached.device).filter(|_| attached.mode == AttachMode::Native)?;
    end.why_not_xdp()
}

/// What was attached where, for the user.
fn report(daemon: &Daemon) -> String {
    let notes: &Notes = daemon.notes();
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    let verb = match daemon.taken() {
        Taken::Fresh => "boosted",
        Taken::Adopted => "adopted",
        Taken::Replaced => "replaced the programs on",
    };
    for (attached, vlan) in notes.attached.iter().zip(&notes.vlan) {
        let mode = match attached.mode {
            AttachMode::Native => "native XDP and TC".to_owned(),
            AttachMode::Tc => format!("TC alone, {}", attached.why_not_native),
        };
        line(format!("{verb} {} ({mode})", attached.device.name));
        if let Some(why) = why_late(attached) {
            line(format!("  warning: {why}; --tier tc answers without XDP"));
        }
        match vlan {
            VlanOffload::WasOff => {}
            VlanOffload::SwitchedOff(_) => {
                line(format!(
                    "  VLAN tag offload of {} switched off until detach",
                    attached.device.name
                ));
            }
            VlanOffload::Fixed => {
                line(
                    "  VLAN tag offload cannot be switched off: tagged traffic goes up".to_owned(),
                );
            }
        }
    }
    line(format!(
        "  Redis {} on port {}, mode {}",
        notes.redis,
        notes.port,
        notes.mode()
    ));
    if let Some(folder) = &notes.journal_folder {
        line(format!(
            "  journal of what waits for Redis for long: {}",
            folder.display()
        ));
    } else if notes.log_rings > 0 {
        line(
            "  no journal: what waits for Redis is lost if the machine loses its power".to_owned(),
        );
    }
    line(format!(
        "  cache of {} sets, room for {} connections, run directory {}",
        notes.cache_sets,
        notes.connections,
        daemon.run_dir().display()
    ));
    line(
        "  changes by clients that ERB does not see (other devices, unix socket) reach the cache by\n  \
         Redis's invalidations; if those stop, values up to 100 ms old (the lease) may be answered"
            .to_owned(),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_has_ended_is_no_success() {
        let folder = tempfile::tempdir().expect("a folder");
        let run_dir = RunDir::new(folder.path());
        let mut child = Command::new("false").spawn().expect("a process");
        let limit = Duration::from_secs(30);
        // Its parent has not heard of it yet.
        erb_steady::wait_until(limit, "its end", || !is_there(child.id()));
        let why = wait_until_serving(&run_dir, || ended(&mut child), || None);
        let Err(Unserved::Ended(why)) = why else {
            panic!("its end is told: {why:?}");
        };
        assert!(why.contains("has ended (exit status: 1)"), "{why}");
        assert!(why.contains("erb detach") && why.contains("log"), "{why}");
    }

    #[test]
    fn one_that_lives_and_does_not_serve_yet_is_waited_for_and_then_left_to_itself() {
        let folder = tempfile::tempdir().expect("a folder");
        let said = wait_until_serving(&RunDir::new(folder.path()), || None, || None);
        assert!(
            said.expect("no error")
                .starts_with("not serving yet: nothing is boosted")
        );
        assert!(is_there(std::process::id()));
    }

    #[test]
    fn a_signal_ends_the_wait() {
        let folder = tempfile::tempdir().expect("a folder");
        let said = wait_until_serving(&RunDir::new(folder.path()), || None, || Some(2));
        assert!(matches!(said, Err(Unserved::Interrupted(2))), "{said:?}");
    }

    #[test]
    fn what_else_is_to_be_known_follows_on_lines_of_its_own() {
        assert_eq!(with_notes("serving", &[]), "serving");
        let notes = ["one".to_owned(), "two".to_owned()];
        assert_eq!(
            with_notes("serving", &notes),
            "serving\n  note: one\n  note: two"
        );
    }
}
