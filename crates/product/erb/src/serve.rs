// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb serve`.

use std::io::{self, Write};
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use dax_send::{Guard, Options};
use erb_report::Serve;
use erb_serve::{Config, Error, Server};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::{GuardUse, PageCache, ServeArgs};
use crate::exit;
use crate::watch_args::Watching;

/// How often it is seen whether serving has failed.
const LOOK: Duration = Duration::from_secs(1);

/// The hidden command that is the guard.
pub const GUARD_COMMAND: &str = "serve-guard";

/// Is the guard of a server, until that has ended.
pub fn guard() -> ExitCode {
    match dax_send::run_guard() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "error: no server is guarded: {error}; `erb serve` starts this command itself"
            );
            ExitCode::from(exit::FAILED)
        }
    }
}

fn start_guard(when: GuardUse) -> Result<Option<Arc<Guard>>, Error> {
    let wanted = match when {
        GuardUse::Auto => Guard::is_needed(),
        GuardUse::Always => true,
        GuardUse::Never => false,
    };
    if !wanted {
        return Ok(None);
    }
    let guard = Guard::start(process::Command::new("/proc/self/exe").arg(GUARD_COMMAND));
    let guard = guard.map_err(|source| Error::System {
        what: "the guard cannot be started; --guard never does without it",
        source,
    })?;
    Ok(Some(guard))
}

/// Runs the command until SIGINT or SIGTERM.
pub fn run(args: &ServeArgs) -> ExitCode {
    let watching = match args.watched.bind() {
        Ok(watching) => watching,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(exit::code(&error));
        }
    };
    match serve(args, watching) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(match error {
                Error::Root { .. } => exit::USAGE,
                Error::Address { .. } => exit::ADDRESS,
                Error::System { .. } => exit::FAILED,
            })
        }
    }
}

fn serve(args: &ServeArgs, watching: Option<Watching>) -> Result<(), Error> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let guard = start_guard(args.guard)?;
    let server = Server::start(&Config {
        root: args.root.clone(),
        address: args.listen,
        threads: args.threads.map_or(processors, usize::from),
        connections_max: args.connections as usize,
        index: args.index.clone(),
        send: Options {
            pinned_bytes_max: u64::from(args.pinned) << 20,
            deadline: args.deadline,
            page_cache: match args.page_cache {
                PageCache::Sendfile => dax_send::PageCache::Sendfile,
                PageCache::ZeroCopy => dax_send::PageCache::ZeroCopy,
            },
            ..Options::default()
        },
        guard,
    })?;
    let failed = |what| move |source| Error::System { what, source };
    let mut signals =
        Signals::new([SIGINT, SIGTERM]).map_err(failed("signals cannot be waited for"))?;
    let (told, stop) = mpsc::channel();
    std::thread::spawn(move || {
        for signal in &mut signals {
            // Who is told twice has ended already.
            let _ = told.send(signal);
        }
    });
    begin(args, &server.report());
    if let Some(watching) = watching {
        watching.tell(&args.watched, args.json);
        let reporter = server.reporter();
        let ended = || "the server has ended".to_owned();
        let served = watching.serve(move |_| reporter.report().ok_or_else(ended));
        served.map_err(failed("metrics cannot be served"))?;
    }
    let mut told_at = Instant::now();
    let look = args.every.unwrap_or(LOOK).min(LOOK);
    while stop.recv_timeout(look) == Err(RecvTimeoutError::Timeout) && !server.is_ending() {
        if args.every.is_some_and(|every| told_at.elapsed() >= every) {
            told_at = Instant::now();
            tell(args, &server.report());
        }
    }
    tell(args, &server.stop()?);
    Ok(())
}

fn begin(args: &ServeArgs, report: &Serve) {
    if args.json {
        return tell(args, report);
    }
    let (address, threads) = (&report.address, report.threads);
    say(&format!(
        "serving {} at http://{address}/ with {threads} threads; Ctrl-C ends",
        args.root.display()
    ));
    if let Some(guard) = report.guard {
        say(&format!(
            "process {guard} guards what is sent zero-copy and ends with this one: do not kill it"
        ));
    }
    if let Some(lack) = &report.lacks {
        say(&format!("warning: {lack}"));
    }
}

fn tell(args: &ServeArgs, report: &Serve) {
    if args.json {
        match serde_json::to_string(report) {
            Ok(line) => say(&line),
            Err(error) => eprintln!("error: the report cannot be written: {error}"),
        }
    } else {
        say(&text(report));
    }
}

/// Whoever reads it may have gone; serving goes on.
fn say(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn text(report: &Serve) -> String {
    let sent = &report.sent_bytes;
    let list = |pairs: Vec<String>| {
        if pairs.is_empty() {
            "none".to_owned()
        } else {
            pairs.join(", ")
        }
    };
    let answers = report
        .answers
        .iter()
        .map(|(status, count)| format!("{status}: {count}"));
    let copied = sent
        .copied
        .iter()
        .map(|(reason, bytes)| format!("{bytes} ({reason})"));
    let causes = report
        .kernel_copies
        .iter()
        .map(|(cause, count)| format!("{count} ({cause})"));
    let rows = [
        (
            "connections",
            format!("{}, refused {}", report.connections, report.refused),
        ),
        ("answers", list(answers.collect())),
        (
            "resets",
            format!(
                "file changed {}, client too slow {}",
                report.reset_changed, report.reset_slow
            ),
        ),
        (
            "bytes sent without a copy",
            format!("zero-copy {}, sendfile {}", sent.zero_copy, sent.sendfile),
        ),
        ("bytes copied by the kernel", sent.kernel_copied.to_string()),
        ("connections it copied for", list(causes.collect())),
        ("bytes copied by ERB", list(copied.collect())),
        (
            "pinned bytes",
            format!(
                "{}, at most {}",
                report.pinned_bytes, report.pinned_bytes_peak
            ),
        ),
    ];
    let lines = rows
        .iter()
        .map(|(name, value)| format!("{name:<28}{value}"));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_tells_how_each_byte_was_sent() {
        let mut report = Serve {
            connections: 3,
            ..Serve::default()
        };
        report.sent_bytes.zero_copy = 77;
        report.sent_bytes.copied.insert("small".to_owned(), 12);
        report.kernel_copies.insert("local_peer".to_owned(), 2);
        let text = text(&report);
        for words in [
            "zero-copy 77, sendfile 0",
            "12 (small)",
            "2 (local_peer)",
            "refused 0",
            "answers                     none",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
