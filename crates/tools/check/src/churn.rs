// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `check churn`: very many short connections that end in every way a connection can end.

use std::collections::BTreeMap;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Args;
use fastrand::Rng;
use serde::Serialize;

use crate::net::{self, Broken, Conn};
use crate::resp;

/// Commands of the pipeline that is sent just before a close.
const PIPELINE: usize = 200;
/// Shared keys that are read; their values never change.
const READ_KEYS: u64 = 64;
/// Tries to connect while the source ports are used up, with pauses up to about a minute in all.
const PORT_TRIES: u32 = 12;
/// Wrong replies and resets that are spelled out.
const SHOWN_MAX: usize = 10;

/// Arguments of `check churn`.
#[derive(Debug, Clone, Args)]
pub struct ChurnArgs {
    /// The address under test, HOST:PORT or [IPV6]:PORT.
    #[arg(long)]
    pub target: String,
    /// Connections in total.
    #[arg(long, default_value_t = 100_000)]
    pub connections: u64,
    /// Connections at a time.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub parallel: u32,
    /// Source addresses to use in turn; each has about 28,000 ports.
    #[arg(long, value_delimiter = ',')]
    pub source_addrs: Vec<IpAddr>,
    /// Every so many connections one vanishes without FIN or RST (0: none; needs root).
    #[arg(long, default_value_t = 0)]
    pub vanish_every: u64,
    /// Seconds without progress that count as stuck.
    #[arg(long, default_value_t = 30)]
    pub stall_timeout: u64,
    /// Seed of everything random; printed with the result.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// close() with nothing outstanding: FIN, and TIME_WAIT at this end.
    Close,
    /// shutdown(WR) with requests outstanding, all replies, then EOF.
    HalfClose,
    /// RST with nothing outstanding.
    Reset,
    /// QUIT, +OK, EOF.
    Quit,
    /// Half a request, then close.
    MidRequest,
    /// Half a request, then RST.
    MidRequestReset,
    /// A large pipeline, then close without reading.
    PipelineClose,
    /// Nothing sent at all.
    Silent,
    /// Gone without a word, as when a machine dies.
    Vanish,
}

/// Endings by weight. Most end by RST, which leaves no TIME_WAIT and so frees the source port.
const ENDINGS: [(Ending, u32); 8] = [
    (Ending::Close, 15),
    (Ending::HalfClose, 15),
    (Ending::Reset, 35),
    (Ending::Quit, 10),
    (Ending::MidRequest, 5),
    (Ending::MidRequestReset, 8),
    (Ending::PipelineClose, 7),
    (Ending::Silent, 5),
];

/// What the run saw.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Seed of everything random.
    pub seed: u64,
    /// Connections made.
    pub connections: u64,
    /// Requests whose reply was verified.
    pub commands: u64,
    /// Connections by the way they ended.
    pub endings: BTreeMap<Ending, u64>,
    /// How many replies were wrong.
    pub wrong_count: u64,
    /// How many connections ended although they should not have.
    pub unexpected_reset_count: u64,
    /// How many stood still.
    pub stall_count: u64,
    /// The first of all of those.
    pub shown: Vec<String>,
    /// Times that no source port was free.
    pub port_waits: u64,
    /// Seconds.
    pub seconds: f64,
    /// Nothing was wrong.
    pub passed: bool,
}

impl Report {
    fn merge(&mut self, other: Self) {
        self.connections += other.connections;
        self.commands += other.commands;
        self.wrong_count += other.wrong_count;
        self.unexpected_reset_count += other.unexpected_reset_count;
        self.stall_count += other.stall_count;
        self.port_waits += other.port_waits;
        for (ending, count) in other.endings {
            *self.endings.entry(ending).or_default() += count;
        }
        self.shown.extend(other.shown);
        self.shown.truncate(SHOWN_MAX);
    }

    fn failed(&mut self, conn: u64, ending: Ending, broken: &Fault) {
        match broken {
            Fault::Wrong(_) => self.wrong_count += 1,
            Fault::Broken(Broken::Stalled(_)) => self.stall_count += 1,
            Fault::Broken(_) => self.unexpected_reset_count += 1,
        }
        if self.shown.len() < SHOWN_MAX {
            self.shown
                .push(format!("connection {conn} ({ending:?}): {broken}"));
        }
    }
}

/// What went wrong on one connection.
#[derive(Debug)]
enum Fault {
    Wrong(String),
    Broken(Broken),
}

impl From<Broken> for Fault {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Wrong(what) => write!(f, "wrong reply: {what}"),
            Self::Broken(broken) => write!(f, "{broken}"),
        }
    }
}

struct Churner {
    target: SocketAddr,
    sources: Vec<IpAddr>,
    stall: Duration,
    vanish_every: u64,
    seed: u64,
    next: AtomicU64,
    connections: u64,
}

/// Runs the workload.
///
/// # Errors
/// If an argument is wrong or the target cannot be reached at all.
pub fn execute(args: &ChurnArgs) -> Result<Report> {
    let began = Instant::now();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("check churn: seed {seed}");
    let churner = Arc::new(Churner {
        target: net::resolve(&args.target)?,
        sources: args.source_addrs.clone(),
        stall: Duration::from_secs(args.stall_timeout.max(1)),
        vanish_every: args.vanish_every,
        seed,
        next: AtomicU64::new(0),
        connections: args.connections,
    });
    churner.prepare()?;
    let threads: Vec<_> = (0..args.parallel)
        .map(|_| {
            let churner = Arc::clone(&churner);
            std::thread::Builder::new().spawn(move || churner.work())
        })
        .collect::<std::io::Result<_>>()?;
    let mut report = Report {
        seed,
        ..Report::default()
    };
    for thread in threads {
        report.merge(
            thread
                .join()
                .map_err(|_| anyhow!("a connection's thread panicked"))??,
        );
    }
    report.seconds = began.elapsed().as_secs_f64();
    report.passed = report.connections == args.connections
        && report.wrong_count + report.unexpected_reset_count + report.stall_count == 0;
    Ok(report)
}

impl Churner {
    fn read_key(&self, number: u64) -> String {
        format!("c{:x}:r{number}", self.seed)
    }

    /// Sets the keys that everybody reads.
    fn prepare(&self) -> Result<()> {
        let mut conn = Conn::connect(self.target, self.stall)?;
        for number in 0..READ_KEYS {
            let key = self.read_key(number);
            let reply = conn.call(&["SET", &key, &format!("value {number}")])?;
            if reply != b"+OK\r\n" {
                return Err(anyhow!("SET was answered {}", resp::show(&reply, 100)));
            }
        }
        Ok(())
    }

    fn work(&self) -> Result<Report> {
        let mut report = Report::default();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.connections {
                return Ok(report);
            }
            let mut rng = Rng::with_seed(self.seed ^ (number << 8 | 0xc4));
            let ending = self.ending(number, &mut rng);
            let Some(conn) = self.connect(number, &mut report)? else {
                continue;
            };
            report.connections += 1;
            *report.endings.entry(ending).or_default() += 1;
            match self.live(conn, number, ending, &mut rng) {
                Ok(commands) => report.commands += commands,
                Err(fault) => report.failed(number, ending, &fault),
            }
        }
    }

    fn ending(&self, number: u64, rng: &mut Rng) -> Ending {
        if self.vanish_every > 0 && number % self.vanish_every == 0 {
            return Ending::Vanish;
        }
        let mut pick = rng.u32(..ENDINGS.iter().map(|e| e.1).sum::<u32>());
        for (ending, weight) in ENDINGS {
            if pick < weight {
                return ending;
            }
            pick -= weight;
        }
        Ending::Close
    }

    /// Waits for a free port if need be. `None`: refused or silent, which is noted.
    fn connect(&self, number: u64, report: &mut Report) -> Result<Option<Conn>> {
        let mut pause = Duration::from_millis(20);
        for _ in 0..PORT_TRIES {
            let source = match self.sources.len() {
                0 => None,
                n => Some(self.sources[number as usize % n]),
            };
            let error = match Conn::connect_from(self.target, source, self.stall) {
                Ok(conn) => return Ok(Some(conn)),
                Err(error) => error,
            };
            let os = error.root_cause().downcast_ref::<std::io::Error>();
            match os.and_then(std::io::Error::raw_os_error) {
                Some(libc::EADDRNOTAVAIL | libc::EADDRINUSE) => {
                    report.port_waits += 1;
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_secs(10));
                }
                _ => {
                    let broken = Broken::Reset(format!("{error:#}"));
                    report.failed(number, Ending::Silent, &Fault::Broken(broken));
                    return Ok(None);
                }
            }
        }
        Err(anyhow!(
            "no source port is free towards {}: give more addresses with --source-addrs",
            self.target
        ))
    }

    /// One connection's life; returns how many replies were verified.
    fn live(
        &self,
        mut conn: Conn,
        number: u64,
        ending: Ending,
        rng: &mut Rng,
    ) -> std::result::Result<u64, Fault> {
        let mut commands = 0;
        if ending != Ending::Silent {
            let own = format!("c{:x}:{}", self.seed, number % 4096);
            for _ in 0..rng.u32(1..=3) {
                let (request, want) = self.request(&own, number, rng);
                conn.send(&request)?;
                expect(&mut conn, &want)?;
                commands += 1;
            }
        }
        commands += self.end(conn, ending, rng)?;
        Ok(commands)
    }

    /// A request and the only right reply. Writes are to keys that nobody reads.
    fn request(&self, own: &str, number: u64, rng: &mut Rng) -> (Vec<u8>, Vec<u8>) {
        match rng.u32(..10) {
            0 => (resp::command(&["PING"]), b"+PONG\r\n".to_vec()),
            1 => (
                resp::command(&["SET", own, &number.to_string()]),
                b"+OK\r\n".to_vec(),
            ),
            2 => (resp::command(&["GET", "no such key"]), b"$-1\r\n".to_vec()),
            _ => self.get(rng.u64(..READ_KEYS)),
        }
    }

    fn get(&self, key: u64) -> (Vec<u8>, Vec<u8>) {
        let value = format!("value {key}");
        let want = format!("${}\r\n{value}\r\n", value.len());
        (
            resp::command(&["GET", &self.read_key(key)]),
            want.into_bytes(),
        )
    }

    fn end(
        &self,
        mut conn: Conn,
        ending: Ending,
        rng: &mut Rng,
    ) -> std::result::Result<u64, Fault> {
        let (get, want) = self.get(rng.u64(..READ_KEYS));
        let mut commands = 0;
        match ending {
            Ending::Close | Ending::Silent => {}
            Ending::Reset => reset_on_close(&conn)?,
            Ending::MidRequest | Ending::MidRequestReset => {
                conn.send(&get[..rng.usize(1..get.len())])?;
                if ending == Ending::MidRequestReset {
                    reset_on_close(&conn)?;
                }
            }
            Ending::PipelineClose => conn.send(&get.repeat(PIPELINE))?,
            Ending::HalfClose => {
                let count = rng.usize(1..=20);
                conn.send(&get.repeat(count))?;
                let shut = conn.stream().shutdown(Shutdown::Write);
                shut.map_err(|e| Broken::Reset(format!("shutdown: {e}")))?;
                for _ in 0..count {
                    expect(&mut conn, &want)?;
                }
                expect_eof(&mut conn)?;
                commands = count as u64;
            }
            Ending::Quit => {
                conn.send(&resp::command(&["QUIT"]))?;
                expect(&mut conn, b"+OK\r\n")?;
                expect_eof(&mut conn)?;
                commands = 1;
            }
            Ending::Vanish => conn
                .vanish()
                .map_err(|e| Broken::Reset(format!("cannot vanish: {e:#}")))?,
        }
        Ok(commands)
    }
}

fn reset_on_close(conn: &Conn) -> std::result::Result<(), Fault> {
    conn.reset_on_close()
        .map_err(|e| Fault::Broken(Broken::Reset(format!("SO_LINGER: {e:#}"))))
}

fn expect(conn: &mut Conn, want: &[u8]) -> std::result::Result<(), Fault> {
    let got = conn.reply()?;
    if got == want {
        return Ok(());
    }
    let (got, want) = (resp::show(&got, 200), resp::show(want, 200));
    Err(Fault::Wrong(format!("{got}, expected {want}")))
}

fn expect_eof(conn: &mut Conn) -> std::result::Result<(), Fault> {
    match conn.fill() {
        Err(Broken::Eof) if conn.buffered().is_empty() => Ok(()),
        Err(broken) => Err(broken.into()),
        Ok(()) => Err(Fault::Wrong(format!(
            "{} instead of EOF",
            resp::show(conn.buffered(), 200)
        ))),
    }
}

/// `check churn`: prints the report; exit code 0 if nothing was wrong, else 1.
///
/// # Errors
/// As [`execute`].
pub fn run(args: &ChurnArgs) -> Result<ExitCode> {
    let report = execute(args)?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        for line in &report.shown {
            println!("FAILED seed {}: {line}", report.seed);
        }
        println!(
            "{}: {} connections, {} replies verified, {} wrong, {} unexpected resets, {} stalls, \
             {} waits for a port, {:.1} s, seed {}\n  {:?}",
            if report.passed { "passed" } else { "FAILED" },
            report.connections,
            report.commands,
            report.wrong_count,
            report.unexpected_reset_count,
            report.stall_count,
            report.port_waits,
            report.seconds,
            report.seed,
            report.endings
        );
    }
    Ok(if report.passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
