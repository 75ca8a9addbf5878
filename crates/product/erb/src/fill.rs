// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb fill`, `erb fills`, `erb aside` and `erb consumed`: hidden, for checks and measurements.

use std::io::{BufRead, Write};
use std::iter;
use std::net::SocketAddr;
use std::process::ExitCode;

use erb_daemon::{Error, Request, Result, RunDir, enter_base_mount_namespace, request};
use erb_datapath::Consumption;
use erb_report::{Consumed, Filled};
use serde::Deserialize;

use crate::args::{AsideArgs, AsideLevel, AsideReports, FillArgs, FillsArgs, Switch, Which};
use crate::{detach, show};

/// Keys per request: a line of some hundred kilobytes.
const KEYS_PER_REQUEST: usize = 10_000;
/// Bytes of a line of standard input: more than any key that the cache takes.
const LINE_BYTES_MAX: u64 = 4096;

/// The daemon's answer.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Done(Filled),
    Refused { error: String },
}

/// Puts keys into the cache.
pub fn fill(args: &FillArgs) -> Result<ExitCode> {
    enter_base_mount_namespace()?;
    let run_dir = detach::run_dir(&args.which)?;
    let mut keys: Box<dyn Iterator<Item = Result<String>>> = if args.keys.is_empty() {
        Box::new(lines())
    } else {
        Box::new(args.keys.iter().cloned().map(Ok))
    };
    let mut sum = Filled::default();
    loop {
        let batch: Vec<String> = keys
            .by_ref()
            .take(KEYS_PER_REQUEST)
            .collect::<Result<_>>()?;
        if batch.is_empty() {
            show::json(&sum)?;
            return Ok(ExitCode::SUCCESS);
        }
        let done = fill_batch(&run_dir, batch, args.hashes)?;
        sum.filled += done.filled;
        sum.refused += done.refused;
    }
}

fn fill_batch(run_dir: &RunDir, keys: Vec<String>, hashes: bool) -> Result<Filled> {
    match request(run_dir, &Request::Fill { keys, hashes })? {
        Answer::Done(filled) => Ok(filled),
        Answer::Refused { error } => Err(Error::NoAnswer {
            run_dir: run_dir.path().to_path_buf(),
            reason: format!("does not fill: {error}"),
        }),
    }
}

fn lines() -> impl Iterator<Item = Result<String>> {
    let mut input = std::io::stdin().lock();
    iter::from_fn(move || line(&mut input).transpose())
}

/// The next line without its end; none: there is no more.
fn line(input: impl BufRead) -> Result<Option<String>> {
    let mut line = String::new();
    let read = input.take(LINE_BYTES_MAX).read_line(&mut line);
    read.map_err(Error::io("could not read standard input"))?;
    let has_end = line.ends_with('\n');
    if !has_end && line.len() as u64 == LINE_BYTES_MAX {
        return Err(Error::Usage(format!(
            "a line of standard input has more than {LINE_BYTES_MAX} bytes"
        )));
    }
    line.truncate(line.trim_end_matches(['\r', '\n']).len());
    Ok((has_end || !line.is_empty()).then_some(line))
}

/// Turns fills by misses on or off.
pub fn fills(args: &FillsArgs) -> Result<ExitCode> {
    enter_base_mount_namespace()?;
    let run_dir = detach::run_dir(&args.which)?;
    let on = args.switch == Switch::On;
    let _: serde_json::Value = request(&run_dir, &Request::Fills { on })?;
    Ok(ExitCode::SUCCESS)
}

/// Leaves out what does not pay up to a level, or as the daemon decides.
pub fn aside(args: &AsideArgs) -> Result<ExitCode> {
    enter_base_mount_namespace()?;
    let run_dir = detach::run_dir(&args.which)?;
    let level = match args.level {
        AsideLevel::Auto => None,
        AsideLevel::Nothing => Some(0),
        AsideLevel::Looks => Some(1),
        AsideLevel::Fills => Some(2),
        AsideLevel::Closed => Some(3),
    };
    let of_read = args.reports.map(|to| to == AsideReports::OfRead);
    let _: serde_json::Value = request(&run_dir, &Request::Aside { level, of_read })?;
    Ok(ExitCode::SUCCESS)
}

/// Answers each line `CLIENT SERVER` of standard input by what is known of that connection.
pub fn consumed(which: &Which) -> Result<ExitCode> {
    enter_base_mount_namespace()?;
    let run_dir = detach::run_dir(which)?;
    let table = Consumption::open(&run_dir.pins())?;
    let mut output = std::io::stdout().lock();
    for line in lines() {
        let answer = of(&table, &line?)?;
        serde_json::to_writer(&mut output, &answer)
            .map_err(std::io::Error::from)
            .and_then(|()| output.write_all(b"\n"))
            .and_then(|()| output.flush())
            .map_err(Error::io("could not write to standard output"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// None: the connection is not tracked.
fn of(table: &Consumption, line: &str) -> Result<Option<Consumed>> {
    let address = |text: &str| text.parse::<SocketAddr>().ok();
    let pair = line.split_once(' ');
    let pair = pair.and_then(|(client, server)| Some((address(client)?, address(server)?)));
    let (client, server) = pair.ok_or_else(|| {
        Error::Usage(format!(
            "{line:?} is no connection; write CLIENT SERVER, each as IP:PORT"
        ))
    })?;
    let entry = table.of(client, server)?;
    Ok(entry.map(|entry| Consumed {
        bytes: entry.bytes,
        bypass: entry.bypass,
    }))
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, repeat};

    use super::*;

    #[test]
    fn lines_end_by_themselves_or_with_the_input() {
        let mut input = &b"a b\n\nc\r\nd"[..];
        let mut lines = iter::from_fn(|| line(&mut input).transpose());
        let lines: Vec<String> = lines.by_ref().collect::<Result<_>>().expect("text");
        assert_eq!(lines, ["a b", "", "c", "d"]);
    }

    #[test]
    fn a_line_without_end_is_read_no_further() {
        let refused = line(BufReader::new(repeat(b'k'))).expect_err("no end");
        assert!(refused.to_string().contains("4096"), "{refused}");
    }
}
