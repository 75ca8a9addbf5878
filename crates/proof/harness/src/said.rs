// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a test program says: libtest's events, and all else.
//!
//! Events and the output of processes that the tests start come through the same pipe, so an event may begin within a
//! line and end before it.
//!
//! Invariants: 1. What is kept of a program that prints without end is bounded: [`RAW_MAX`] bytes, and [`LINES_MAX`]
//! lines of [`LINE_MAX`] bytes on their way; of events, [`TOLD_MAX`]. 2. The limit and the program's end are looked at every [`LOOK`], however
//! much it prints.

use std::io::{BufRead as _, BufReader, Read};
use std::process::Child;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use serde::Deserialize;

use crate::child::session;
use crate::run::{Ended, Tested};

/// For so long what a program has said is read after its end, if a result is missing: the reader may be starved.
const DRAIN: Duration = Duration::from_secs(10);
/// Between two looks whether the program has ended, or its time.
const LOOK: Duration = Duration::from_millis(500);
/// The same when both pipes have ended: the program is about to.
const CLOSED_LOOK: Duration = Duration::from_millis(2);
/// What is kept of that which is no event, bytes: half of it from the begin, half from the end.
pub const RAW_MAX: usize = 1 << 20;
/// A longer line is taken for two, bytes. An event has all that its test printed.
const LINE_MAX: u64 = 16 << 20;
/// Lines that were read and not looked at.
const LINES_MAX: usize = 4;
/// Results that are kept of a program: many times what any has.
const TOLD_MAX: usize = 100_000;
/// What an event begins with. Within one it cannot stand: quotes are escaped there.
const EVENT: &str = "{ \"type\": \"";

#[derive(Deserialize)]
struct Event {
    r#type: String,
    event: String,
    name: Option<String>,
    exec_time: Option<f64>,
    stdout: Option<String>,
}

/// What a program has said.
#[derive(Default)]
pub struct Said {
    /// Of its tests, by libtest's name.
    pub told: Vec<Tested>,
    /// All that is not of libtest: what threads, and processes that it started, print.
    pub raw: Raw,
}

impl Said {
    /// Reads until the program and both its pipes have ended; not for long after the program's end. False if no time is
    /// left before. The program is not waited for: its session stays known by its number.
    pub fn read(&mut self, child: &mut Child, tests: usize, left: impl Fn() -> Duration) -> bool {
        let (to, lines) = mpsc::sync_channel::<String>(LINES_MAX);
        let pipes: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|pipe| Box::new(pipe) as _),
            child.stderr.take().map(|pipe| Box::new(pipe) as _),
        ];
        for pipe in pipes.into_iter().flatten() {
            let to = to.clone();
            thread::spawn(move || pass_lines(pipe, &to));
        }
        drop(to);
        let mut looked = Instant::now();
        let (mut ended, mut is_open) = (None, true);
        loop {
            if is_open {
                match lines.recv_timeout(left().min(LOOK)) {
                    Ok(line) => self.line(&line),
                    Err(RecvTimeoutError::Timeout) => (),
                    Err(RecvTimeoutError::Disconnected) => is_open = false,
                }
            } else {
                thread::sleep(left().min(CLOSED_LOOK));
            }
            if is_open && looked.elapsed() < LOOK && !left().is_zero() {
                continue;
            }
            looked = Instant::now();
            if ended.is_none() && has_ended(child) {
                ended = Some(looked);
            }
            // A process that the test left behind may hold the pipes for ever. What the program said last may still
            // be in them.
            let patience = if self.told.len() >= tests {
                LOOK
            } else {
                DRAIN
            };
            match ended {
                Some(ended) if !is_open || ended.elapsed() >= patience => return true,
                None if left().is_zero() => return false,
                _ => (),
            }
        }
    }

    /// Takes a line in.
    pub fn line(&mut self, line: &str) {
        let Some((before, event, after)) = event(line) else {
            self.raw.push(line);
            return;
        };
        for rest in [before, after].into_iter().filter(|rest| !rest.is_empty()) {
            self.raw.push(rest);
        }
        let ended = match (event.r#type.as_str(), event.event.as_str()) {
            ("test", "ok") => Ended::Passed,
            ("test", "failed") => Ended::Failed,
            _ => return,
        };
        if self.told.len() >= TOLD_MAX {
            return;
        }
        self.told.push(Tested {
            name: event.name.unwrap_or_default(),
            ended,
            seconds: event.exec_time.unwrap_or(0.0),
            output: event.stdout.unwrap_or_default(),
            ..Tested::default()
        });
    }
}

/// Whether a child has ended; it can still be waited for.
fn has_ended(child: &Child) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let status = waitid(Id::Pid(session(child)), flags);
    !matches!(status, Ok(WaitStatus::StillAlive))
}

/// The event in a line, and what stands before and after it.
fn event(line: &str) -> Option<(&str, Event, &str)> {
    let (before, text) = line.split_at(line.rfind(EVENT)?);
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Event>();
    let event = values.next()?.ok()?;
    Some((before, event, &text[values.byte_offset()..]))
}

fn pass_lines(pipe: impl Read, to: &mpsc::SyncSender<String>) {
    let mut pipe = BufReader::new(pipe);
    let mut bytes = Vec::new();
    while Read::by_ref(&mut pipe)
        .take(LINE_MAX)
        .read_until(b'\n', &mut bytes)
        .is_ok_and(|count| count > 0)
    {
        let line = String::from_utf8_lossy(&bytes);
        let sent = to.send(line.trim_end_matches('\n').to_owned());
        if sent.is_err() {
            return;
        }
        bytes.clear();
    }
}

/// Lines of which the first and the last are kept.
#[derive(Debug, Default)]
pub struct Raw {
    first: String,
    last: String,
    /// Bytes between them.
    left_out: usize,
}

impl Raw {
    /// Adds a line.
    pub fn push(&mut self, line: &str) {
        let half = RAW_MAX / 2;
        if self.last.is_empty() && self.first.len() + line.len() < half {
            self.first.extend([line, "\n"]);
            return;
        }
        self.last.extend([line, "\n"]);
        if self.last.len() > 2 * half {
            let mut cut = self.last.len() - half;
            while !self.last.is_char_boundary(cut) {
                cut += 1;
            }
            self.last.drain(..cut);
            self.left_out += cut;
        }
    }

    /// Whether something was left out.
    pub const fn is_cut(&self) -> bool {
        self.left_out > 0
    }

    /// All that was kept.
    pub fn text(&self) -> String {
        let mut text = self.first.clone();
        if self.is_cut() {
            text.push_str(&format!(
                "[{} bytes of output left out here]\n",
                self.left_out
            ));
        }
        text.push_str(&self.last);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: &str = r#"{ "type": "test", "name": "a", "event": "ok", "exec_time": 1.5, "stdout": "{ \"type\": \"\n" }"#;

    #[test]
    fn an_event_is_found_wherever_in_a_line_it_stands() {
        let mut said = Said::default();
        said.line(&format!("no newline: {{ \"type\": \"x{OK}later"));
        said.line(r#"{ "type": "suite", "event": "failed" }"#);
        said.line("{ \"type\": \"test\", cut");
        assert_eq!(said.told.len(), 1);
        assert_eq!((&said.told[0].name[..], said.told[0].seconds), ("a", 1.5));
        let raw = said.raw.text();
        assert_eq!(
            raw,
            "no newline: { \"type\": \"x\nlater\n{ \"type\": \"test\", cut\n"
        );
    }

    #[test]
    fn of_output_without_end_the_first_and_the_last_lines_are_kept() {
        let mut raw = Raw::default();
        let lines = 100_000;
        for at in 0..lines {
            raw.push(&format!("line {at} é of many"));
        }
        let text = raw.text();
        assert!(text.starts_with("line 0 "));
        assert!(text.ends_with(&format!("line {} é of many\n", lines - 1)));
        assert!(text.contains("bytes of output left out here"));
        assert!(text.len() < 2 * RAW_MAX, "{}", text.len());
        raw.push(&"x".repeat(3 * RAW_MAX));
        assert!(raw.text().len() < 2 * RAW_MAX);
    }
}
