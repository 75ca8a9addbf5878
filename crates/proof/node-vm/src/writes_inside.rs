// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the test of writes has in the guest: it has a script's steps done as the host says, and is Redis's clients, which
//! tell the host at once what they were told.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::writes_load::{CLIENTS, COUNTER, Does, Told, call};

/// Where the guest hears the host's commands.
pub const COMMANDS: u16 = 5001;
const REDIS: &str = "10.9.0.1:6379";
/// This machine, as QEMU shows it to the guest.
const HOST: &str = "10.0.2.2";
/// Between a client's calls. All is emulated, and the drain has to come along.
const BETWEEN: Duration = Duration::from_millis(3);
/// The same of who counts: what he has Redis do waits for what was answered, and few may.
const BETWEEN_COUNTS: Duration = Duration::from_millis(30);
/// How often the host is told what time it is.
const CLOCK: Duration = Duration::from_millis(10);
/// Redis may be stopped for so long, and then the machine ends.
const REPLY_MAX: Duration = Duration::from_secs(600);
/// Keys that are asked for at once.
const KEYS_AT_ONCE: usize = 500;
/// Of two files: this one is synced, and has to be there behind a cut.
const SYNCED: &str = "/run/disk/synced";
/// And this one is not.
const UNSYNCED: &str = "/run/disk/unsynced";
const WITNESS_BYTES: usize = 64 << 10;

/// Arguments.
#[derive(Debug, Args)]
pub struct WritesInside {
    /// Does the steps.
    script: PathBuf,
}

/// Serves the host until the power goes.
pub fn run(args: &WritesInside) -> Result<()> {
    // Else what XDP sends from the server's end of the veth pair lies there.
    erb_lab::xdp_pass::attach("client", "c0")?;
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
            paused.store(false, Ordering::Relaxed);
            load(to.parse()?, paused)?;
            Ok(Vec::new())
        }
        (word @ ("pause" | "go"), _) => {
            paused.store(word == "pause", Ordering::Relaxed);
            Ok(Vec::new())
        }
        ("keys", _) => keys(),
        ("synced", _) => {
            let mut file = File::create(SYNCED)?;
            file.write_all(&witness())?;
            file.sync_all()?;
            Ok(Vec::new())
        }
        ("unsynced", _) => {
            File::create(UNSYNCED)?.write_all(&witness())?;
            Ok(Vec::new())
        }
        ("witness", _) => {
            let is_there = |path| std::fs::read(path).is_ok_and(|bytes| bytes == witness());
            let said = format!("{} {}", is_there(SYNCED), is_there(UNSYNCED));
            Ok(said.into_bytes())
        }
        ("step", step) => {
            let output = Command::new("/bin/bash")
                .arg(script)
                .args(step.split(' '))
                .output()?;
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

fn witness() -> Vec<u8> {
    vec![0x5a; WITNESS_BYTES]
}

/// Where the host hears what was told, and since when time is counted.
struct Book {
    host: Mutex<TcpStream>,
    begun: Instant,
}

impl Book {
    fn now_us(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }

    fn note(&self, told: Told) -> Result<()> {
        let mut host = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(host.write_all(&told.to_bytes())?)
    }
}

/// All clients begin.
fn load(port: u16, paused: &Arc<AtomicBool>) -> Result<()> {
    let host = TcpStream::connect((HOST, port)).context("the host")?;
    host.set_nodelay(true)?;
    let book = Arc::new(Book {
        host: Mutex::new(host),
        begun: Instant::now(),
    });
    for client in 0..CLIENTS {
        let redis = TcpStream::connect(REDIS).context("Redis")?;
        redis.set_nodelay(true)?;
        redis.set_read_timeout(Some(REPLY_MAX))?;
        let (book, paused) = (Arc::clone(&book), Arc::clone(paused));
        thread::spawn(move || {
            // A boost that waits for too long ends who waits behind it, and so does the end of a Redis.
            if let Err(error) = say_all(client, &redis, &book, &paused) {
                println!("guest: client {client} has ended: {error:#}");
            }
        });
    }
    thread::spawn(move || -> Result<()> {
        loop {
            book.note(Told::clock(book.now_us()))?;
            thread::sleep(CLOCK);
        }
    });
    Ok(())
}

/// One call after the other; what was answered is told, with its times.
fn say_all(client: u64, redis: &TcpStream, book: &Book, paused: &AtomicBool) -> Result<()> {
    let mut replies = BufReader::new(redis);
    for number in 0.. {
        while paused.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(5));
        }
        let (key, does) = call(client, number);
        let (request, wanted) = match &does {
            Does::Set(value) => (request(&["SET", &key, value]), "+OK".to_owned()),
            Does::Add(sum) => (request(&["INCR", &key]), format!(":{sum}")),
        };
        let sent_us = book.now_us();
        let mut to = redis;
        to.write_all(request.as_bytes())?;
        let reply = line(&mut replies)?;
        ensure!(
            reply == wanted,
            "{key} was answered with {reply:?}, not {wanted}"
        );
        book.note(Told {
            client,
            number,
            sent_us,
            answered_us: book.now_us(),
        })?;
        thread::sleep(if client == COUNTER {
            BETWEEN_COUNTS
        } else {
            BETWEEN
        });
    }
    Ok(())
}

fn request(words: &[&str]) -> String {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request += &format!("${}\r\n{word}\r\n", word.len());
    }
    request
}

fn line(from: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    ensure!(from.read_line(&mut line)? > 0, "the connection has ended");
    Ok(line.trim_end().to_owned())
}

/// Each key of Redis's with its value, one in a line.
fn keys() -> Result<Vec<u8>> {
    let redis = TcpStream::connect(REDIS).context("Redis")?;
    let mut from = BufReader::new(&redis);
    let mut to = &redis;
    to.write_all(request(&["KEYS", "*"]).as_bytes())?;
    let keys = strings(&mut from)?;
    let mut said = String::new();
    for some in keys.chunks(KEYS_AT_ONCE) {
        let mut words = vec!["MGET"];
        words.extend(some.iter().map(String::as_str));
        to.write_all(request(&words).as_bytes())?;
        for (key, value) in some.iter().zip(strings(&mut from)?) {
            said += &format!("{key} {value}\n");
        }
    }
    Ok(said.into_bytes())
}

/// An array of strings.
fn strings(from: &mut impl BufRead) -> Result<Vec<String>> {
    let head = line(from)?;
    let count: usize = head.strip_prefix('*').context(head.clone())?.parse()?;
    let mut strings = Vec::new();
    for _ in 0..count {
        let head = line(from)?;
        let bytes: usize = head.strip_prefix('$').context(head.clone())?.parse()?;
        let mut bytes = vec![0; bytes + 2];
        from.read_exact(&mut bytes)?;
        bytes.truncate(bytes.len() - 2);
        strings.push(String::from_utf8(bytes)?);
    }
    Ok(strings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_read() {
        let mut text = &b"*2\r\n$2\r\nab\r\n$0\r\n\r\n"[..];
        assert_eq!(strings(&mut text).expect("it"), ["ab", ""]);
        assert!(strings(&mut &b"-ERR no\r\n"[..]).is_err());
        assert_eq!(request(&["GET", "a"]), "*2\r\n$3\r\nGET\r\n$1\r\na\r\n");
    }
}
