// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who watches ERB while it is measured: Prometheus, a browser with the dashboard open, `erb top`.
//!
//! The first two are made of the requests that they send, each second as in the page's script, on connections that
//! stay open as theirs do. `erb top` is the program itself; it runs on the server, so its time counts as the server's.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use erb_lab::Boost;
use erb_lab::netns::enter_in_thread;

use crate::cputime;

/// Where the daemon serves, in the server's namespace.
pub const AT: &str = "127.0.0.1:9279";
/// What a boost is told, beside the rest.
pub const OPTIONS: [&str; 4] = ["--metrics", AT, "--dashboard", "--dashboard-details"];

const EACH: Duration = Duration::from_secs(1);
/// The page asks for the hour each ten seconds.
const HOUR_EACH: u64 = 10;
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// All of them, until dropped.
pub struct Watchers {
    top: Child,
    ends: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    readers: Vec<JoinHandle<()>>,
}

/// What is asked for in this second, by who it is that asks.
const READERS: [fn(u64) -> Vec<&'static str>; 2] = [
    |_| vec!["/metrics"],
    |second| match second % HOUR_EACH {
        0 => vec!["/now.json", "/hour.json?since=0"],
        _ => vec!["/now.json"],
    },
];

impl Watchers {
    /// Begins: readers run on `reader_core`, `erb top` on the server's.
    pub fn begin(
        boost: &Boost,
        netns: &str,
        [server_core, reader_core]: [usize; 2],
    ) -> Result<Self> {
        let words = ["top", "--batch", "--every", "1s"];
        let mut top = boost
            .start(&words, Stdio::null())
            .context("erb top could not be started")?;
        let printed = top.stdout.take();
        // Somebody looks: what is not read would stop it.
        std::thread::spawn(move || {
            printed.map(|mut printed| std::io::copy(&mut printed, &mut std::io::sink()))
        });
        cputime::pin(top.id(), server_core)?;
        let mut watchers = Self {
            top,
            ends: Arc::default(),
            answers: Arc::default(),
            readers: Vec::new(),
        };
        for wanted in READERS {
            let (ends, answers) = (Arc::clone(&watchers.ends), Arc::clone(&watchers.answers));
            let netns = netns.to_owned();
            watchers.readers.push(std::thread::spawn(move || {
                if enter_in_thread(&netns)
                    .and_then(|()| cputime::pin_this(reader_core))
                    .is_ok()
                {
                    read_on(wanted, &ends, &answers);
                }
            }));
        }
        Ok(watchers)
    }

    /// The process whose time counts as the server's.
    pub fn pid(&self) -> u32 {
        self.top.id()
    }

    /// Answers that readers got so far.
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // It has no state to lose.
        let _ = self.top.kill();
        let _ = self.top.wait();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

/// Asks each second. A connection that ends, as each does after a minute, is made anew.
fn read_on(wanted: fn(u64) -> Vec<&'static str>, ends: &AtomicBool, answers: &AtomicU64) {
    let mut stream = None;
    let mut due = Instant::now();
    for second in 0.. {
        for path in wanted(second) {
            if stream.is_none() {
                stream = connect().ok();
            }
            match stream.as_mut().map(|stream| ask(stream, path)) {
                Some(Ok(())) => drop(answers.fetch_add(1, Ordering::Relaxed)),
                _ => stream = None,
            }
        }
        due += EACH;
        while Instant::now() < due {
            if ends.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn connect() -> Result<TcpStream> {
    let stream = TcpStream::connect(AT.parse::<SocketAddr>()?)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    Ok(stream)
}

/// One request and its whole answer.
fn ask(stream: &mut TcpStream, path: &str) -> Result<()> {
    let accept = "Accept: application/openmetrics-text;version=1.0.0";
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {AT}\r\n{accept}\r\n\r\n"
    )?;
    let (mut answer, mut part) = (Vec::new(), [0; 16 << 10]);
    loop {
        let read = stream.read(&mut part)?;
        ensure!(read > 0, "the connection has ended");
        answer.extend_from_slice(&part[..read]);
        let Some(head) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let text = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
        let length = text
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length
            .context("an answer without a length")?
            .trim()
            .parse()?;
        if answer.len() >= head + 4 + length {
            ensure!(text.starts_with("http/1.1 200"), "{path}: {text}");
            return Ok(());
        }
    }
}
