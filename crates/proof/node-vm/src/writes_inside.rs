// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the test of writes has in the guest: it has a script's steps done as the host says, and is Redis's client, which
//! tells the host at once what it was told.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

/// Where the guest hears the host's commands.
pub const COMMANDS: u16 = 5001;
const REDIS: &str = "10.9.0.1:6379";
/// This machine, as QEMU shows it to the guest.
const HOST: &str = "10.0.2.2";
/// Behind each key in its value.
const VALUE_BYTES: usize = 100;
/// Redis may be stopped for so long, and then the machine ends.
const REPLY_MAX: Duration = Duration::from_secs(600);

/// Arguments.
#[derive(Debug, Args)]
pub struct WritesInside {
    /// Does the steps.
    script: PathBuf,
}

/// Serves the host until the power goes.
pub fn run(args: &WritesInside) -> Result<()> {
    let commands = TcpListener::bind(("0.0.0.0", COMMANDS))?;
    let paused = Arc::new(AtomicBool::new(false));
    println!("guest: ready");
    for mut stream in commands.incoming().flatten() {
        let mut line = String::new();
        if BufReader::new(stream.try_clone()?)
            .read_line(&mut line)
            .is_err()
        {
            continue;
        }
        let (is_done, said) = match obey(&args.script, line.trim_end(), &paused) {
            Ok(said) => (1, said),
            Err(error) => (0, format!("{error:#}").into_bytes()),
        };
        // Who has gone does not want to know.
        let _ = stream.write_all(&[is_done]);
        let _ = stream.write_all(&said);
    }
    Ok(())
}

fn obey(script: &Path, line: &str, paused: &Arc<AtomicBool>) -> Result<Vec<u8>> {
    match line.split_once(' ').unwrap_or((line, "")) {
        ("ping", _) => Ok(Vec::new()),
        ("load", to) => {
            let book = TcpStream::connect((HOST, to.parse()?)).context("the host")?;
            book.set_nodelay(true)?;
            let redis = TcpStream::connect(REDIS).context("Redis")?;
            redis.set_nodelay(true)?;
            redis.set_read_timeout(Some(REPLY_MAX))?;
            let paused = paused.clone();
            paused.store(false, Ordering::Relaxed);
            thread::spawn(move || write(redis, book, &paused));
            Ok(Vec::new())
        }
        (word @ ("pause" | "go"), _) => {
            paused.store(word == "pause", Ordering::Relaxed);
            Ok(Vec::new())
        }
        ("step", step) => {
            let output = Command::new(script).arg(step).output()?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(
                output.status.success(),
                "{step}: {}: {}{said}",
                output.status,
                String::from_utf8_lossy(&output.stdout)
            );
            Ok(output.stdout)
        }
        _ => bail!("no such command: {line}"),
    }
}

/// One SET after the other, each of a key of its own; what was answered is told, with the time since the first.
fn write(mut redis: TcpStream, mut book: TcpStream, paused: &AtomicBool) -> Result<()> {
    let begun = Instant::now();
    for number in 1_u64.. {
        while paused.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(5));
        }
        let key = format!("k{number}");
        let value = format!("{key} {}", "v".repeat(VALUE_BYTES));
        let words = ["SET", &key, &value];
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        redis.write_all(request.as_bytes())?;
        let mut reply = [0; 5];
        redis.read_exact(&mut reply)?;
        ensure!(&reply == b"+OK\r\n", "SET was not done");
        let ms = u64::try_from(begun.elapsed().as_millis())?;
        book.write_all(&[number.to_be_bytes(), ms.to_be_bytes()].concat())?;
    }
    Ok(())
}
