// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `check crowd`: very many connections at once, of several users and databases, that come, change
//! and go; each knows the only right answer to what it asks.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use clap::Args;
use fastrand::Rng;
use serde::Serialize;

use crate::net::{self, Broken, Conn};
use crate::resp;

/// Shared keys of each database; their values never change.
const READ_KEYS: u64 = 40;
/// Password of the users.
const PASSWORD: &str = "crowd";
/// Of so many requests one ends the connection, another takes it to another database or user.
const MOVES: u32 = 100;
/// Wrong replies that are spelled out.
const SHOWN_MAX: usize = 10;
/// File descriptors beside the connections.
const OTHER_FILES: u64 = 64;

/// Arguments of `check crowd`.
#[derive(Debug, Clone, Args)]
pub struct CrowdArgs {
    /// The address under test, HOST:PORT or [IPV6]:PORT. Users are added to it and removed again.
    #[arg(long)]
    pub target: String,
    /// Connections at once.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=200_000))]
    pub conns: u32,
    /// Seconds at work with all connections open.
    #[arg(long, default_value_t = 30)]
    pub seconds: u64,
    /// Databases, from 0.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub databases: u32,
    /// Threads, each with a share of the connections.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub workers: u32,
    /// Source addresses to use in turn; each has about 28,000 ports.
    #[arg(long, value_delimiter = ',')]
    pub source_addrs: Vec<IpAddr>,
    /// Seconds without progress that count as stuck.
    #[arg(long, default_value_t = 60)]
    pub stall_timeout: u64,
    /// Seed of everything random; printed with the result.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// What the run saw.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Seed of everything random.
    pub seed: u64,
    /// Connections that were open at the same time.
    pub open_at_once: u64,
    /// Connections made in all.
    pub joined: u64,
    /// Times that a connection turned to another user or database.
    pub moved: u64,
    /// Replies verified.
    pub replies: u64,
    /// Of these, refusals by access rules.
    pub refused: u64,
    /// Replies that were wrong.
    pub wrong: u64,
    /// Connections that broke or stood still.
    pub broken: u64,
    /// The first of both.
    pub shown: Vec<String>,
    /// Seconds at work.
    pub seconds: f64,
    /// Nothing was wrong.
    pub passed: bool,
}

impl Report {
    fn merge(&mut self, other: Self) {
        self.joined += other.joined;
        self.moved += other.moved;
        self.replies += other.replies;
        self.refused += other.refused;
        self.wrong += other.wrong;
        self.broken += other.broken;
        self.shown.extend(other.shown);
        self.shown.truncate(SHOWN_MAX);
    }
}

/// Who a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum User {
    Default,
    /// May do everything, by another name.
    Full,
    /// Keys that end in 1 only.
    SomeKeys,
    /// GET, SELECT and AUTH only.
    FewCommands,
}

const USERS: [User; 4] = [User::Default, User::Full, User::SomeKeys, User::FewCommands];

impl User {
    const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Full => "crowd-full",
            Self::SomeKeys => "crowd-some-keys",
            Self::FewCommands => "crowd-few-commands",
        }
    }

    const fn rules(self) -> &'static str {
        match self {
            Self::Default | Self::Full => "~* &* +@all",
            Self::SomeKeys => "~*1 &* +@all",
            Self::FewCommands => "~* &* +get +select +auth",
        }
    }

    fn may(self, command: &str, key: &str) -> bool {
        match self {
            Self::Default | Self::Full => true,
            Self::SomeKeys => key.ends_with('1'),
            Self::FewCommands => command == "GET",
        }
    }
}

/// One place in the crowd; who takes it changes.
struct Place {
    number: u64,
    conn: Conn,
    user: User,
    db: u32,
    /// What this place's own key holds in each database.
    own: HashMap<u32, u64>,
}

/// What went wrong on a connection.
enum Fault {
    Wrong(String),
    Broken(String),
}

impl From<Broken> for Fault {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken.to_string())
    }
}

impl From<anyhow::Error> for Fault {
    fn from(error: anyhow::Error) -> Self {
        Self::Broken(format!("{error:#}"))
    }
}

type Done = std::result::Result<(), Fault>;

struct Crowd<'a> {
    args: &'a CrowdArgs,
    target: SocketAddr,
    stall: Duration,
    seed: u64,
    open: AtomicU64,
    /// All are open; nobody works before.
    all_here: Barrier,
}

/// Runs the workload.
///
/// # Errors
/// If an argument is wrong, the users cannot be made or not so many files may be open.
pub fn execute(args: &CrowdArgs) -> Result<Report> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("check crowd: seed {seed}");
    net::raise_file_limit(u64::from(args.conns) + OTHER_FILES)?;
    let crowd = Crowd {
        args,
        target: net::resolve(&args.target)?,
        stall: Duration::from_secs(args.stall_timeout.max(1)),
        seed,
        open: AtomicU64::new(0),
        all_here: Barrier::new(args.workers as usize + 1),
    };
    crowd.prepare()?;
    let mut report = Report {
        seed,
        ..Report::default()
    };
    std::thread::scope(|scope| -> Result<()> {
        let crowd = &crowd;
        let workers: Vec<_> = (0..args.workers)
            .map(|worker| scope.spawn(move || crowd.work(worker)))
            .collect();
        crowd.all_here.wait();
        report.open_at_once = crowd.open.load(Ordering::Relaxed);
        let began = Instant::now();
        for worker in workers {
            report.merge(worker.join().map_err(|_| anyhow!("a worker panicked"))?);
        }
        report.seconds = began.elapsed().as_secs_f64();
        Ok(())
    })?;
    crowd.clean_up()?;
    report.passed = report.open_at_once == u64::from(args.conns)
        && report.replies > 0
        && report.wrong + report.broken == 0;
    Ok(report)
}

fn value(db: u32, number: u64) -> String {
    format!("value {number} of database {db}")
}

fn bulk(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into_bytes()
}

impl Crowd<'_> {
    fn read_key(&self, number: u64) -> String {
        format!("crowd{:x}:r{number}", self.seed)
    }

    /// Users, and the keys that everybody reads.
    fn prepare(&self) -> Result<()> {
        let mut conn = Conn::connect(self.target, self.stall)?;
        for user in &USERS[1..] {
            let password = format!(">{PASSWORD}");
            let mut words = vec!["ACL", "SETUSER", user.name(), "reset", "on", &password];
            words.extend(user.rules().split(' '));
            ok(&mut conn, &words)?;
        }
        for db in 0..self.args.databases {
            ok(&mut conn, &["SELECT", &db.to_string()])?;
            for number in 0..READ_KEYS {
                ok(
                    &mut conn,
                    &["SET", &self.read_key(number), &value(db, number)],
                )?;
            }
        }
        Ok(())
    }

    fn clean_up(&self) -> Result<()> {
        let mut conn = Conn::connect(self.target, self.stall)?;
        let mut words = vec!["ACL", "DELUSER"];
        words.extend(USERS[1..].iter().map(|user| user.name()));
        conn.call(&words)?;
        for db in 0..self.args.databases {
            ok(&mut conn, &["SELECT", &db.to_string()])?;
            for number in 0..READ_KEYS {
                conn.call(&["DEL", &self.read_key(number)])?;
            }
        }
        Ok(())
    }

    fn work(&self, worker: u32) -> Report {
        let mut report = Report::default();
        let mut rng = Rng::with_seed(self.seed ^ (u64::from(worker) << 32 | 0xc0));
        let numbers = (worker..self.args.conns).step_by(self.args.workers as usize);
        let mut places = Vec::new();
        for number in numbers {
            match self.join(u64::from(number), HashMap::new(), &mut rng, &mut report) {
                Ok(place) => places.push(place),
                Err(fault) => note(&mut report, u64::from(number), fault),
            }
        }
        self.open.fetch_add(places.len() as u64, Ordering::Relaxed);
        self.all_here.wait();
        let end = Instant::now() + Duration::from_secs(self.args.seconds);
        while !places.is_empty() && Instant::now() < end {
            let mut kept = Vec::with_capacity(places.len());
            for mut place in places {
                let number = place.number;
                let done = self.step(&mut place, &mut rng, &mut report);
                let place = match done {
                    Ok(true) => Ok(place),
                    Ok(false) => self.again(place, &mut rng, &mut report),
                    Err(fault) => Err(fault),
                };
                match place {
                    Ok(place) => kept.push(place),
                    Err(fault) => note(&mut report, number, fault),
                }
            }
            places = kept;
        }
        // One more answer of each: none was lost on the way.
        for place in &mut places {
            if let Err(fault) = self.ask(place, &mut rng, &mut report) {
                note(&mut report, place.number, fault);
            }
        }
        report
    }

    fn join(
        &self,
        number: u64,
        own: HashMap<u32, u64>,
        rng: &mut Rng,
        report: &mut Report,
    ) -> std::result::Result<Place, Fault> {
        let source = match self.args.source_addrs.len() {
            0 => None,
            n => Some(self.args.source_addrs[number as usize % n]),
        };
        let mut place = Place {
            number,
            conn: Conn::connect_from(self.target, source, self.stall)?,
            user: User::Default,
            db: 0,
            own,
        };
        report.joined += 1;
        self.turn(&mut place, rng, report)?;
        Ok(place)
    }

    /// Another user, another database.
    fn turn(&self, place: &mut Place, rng: &mut Rng, report: &mut Report) -> Done {
        let user = USERS[rng.usize(..USERS.len())];
        if user != place.user {
            let auth = ["AUTH", user.name(), PASSWORD];
            expect(place, &auth, b"+OK\r\n", report)?;
            place.user = user;
        }
        place.db = rng.u32(..self.args.databases);
        let select = ["SELECT", &place.db.to_string()];
        // Who may touch some keys only may select: no key is named.
        expect(place, &select, b"+OK\r\n", report)
    }

    /// Ends the connection, in one of three ways, and makes another in its place.
    fn again(
        &self,
        mut place: Place,
        rng: &mut Rng,
        report: &mut Report,
    ) -> std::result::Result<Place, Fault> {
        match rng.u32(..3) {
            0 => place.conn.reset_on_close()?,
            1 => {
                place.conn.send(&resp::command(&["QUIT"]))?;
                let reply = place.conn.reply()?;
                if reply != b"+OK\r\n" && place.user != User::FewCommands {
                    return Err(Fault::Wrong(format!("QUIT: {}", resp::show(&reply, 80))));
                }
            }
            _ => {}
        }
        let (number, own) = (place.number, place.own);
        drop(place.conn);
        self.join(number, own, rng, report)
    }

    /// Asks something; `false` if the connection is to end.
    fn step(
        &self,
        place: &mut Place,
        rng: &mut Rng,
        report: &mut Report,
    ) -> std::result::Result<bool, Fault> {
        match rng.u32(..MOVES) {
            0 => return Ok(false),
            1 => {
                report.moved += 1;
                self.turn(place, rng, report)?;
            }
            _ => self.ask(place, rng, report)?,
        }
        Ok(true)
    }

    fn ask(&self, place: &mut Place, rng: &mut Rng, report: &mut Report) -> Done {
        let number = rng.u64(..READ_KEYS);
        let key = self.read_key(number);
        match rng.u32(..10) {
            0 => {
                let next = rng.u64(..);
                let key = format!("crowd{:x}:own{}:1", self.seed, place.number);
                allowed(
                    place,
                    &["SET", &key, &format!("{next}")],
                    &key,
                    b"+OK\r\n",
                    report,
                )?;
                if place.user.may("SET", &key) {
                    place.own.insert(place.db, next);
                }
                Ok(())
            }
            1 => {
                let key = format!("crowd{:x}:own{}:1", self.seed, place.number);
                let held = place.own.get(&place.db);
                let want = held.map_or(b"$-1\r\n".to_vec(), |held| bulk(&held.to_string()));
                allowed(place, &["GET", &key], &key, &want, report)
            }
            2 => {
                let text = value(place.db, number);
                let want = [&b"*2\r\n"[..], &bulk(&text), &bulk(&text)].concat();
                allowed(place, &["MGET", &key, &key], &key, &want, report)
            }
            3 => {
                let want = format!(":{}\r\n", value(place.db, number).len());
                allowed(place, &["STRLEN", &key], &key, want.as_bytes(), report)
            }
            _ => allowed(
                place,
                &["GET", &key],
                &key,
                &bulk(&value(place.db, number)),
                report,
            ),
        }
    }
}

fn note(report: &mut Report, number: u64, fault: Fault) {
    let what = match fault {
        Fault::Wrong(what) => {
            report.wrong += 1;
            format!("wrong: {what}")
        }
        Fault::Broken(what) => {
            report.broken += 1;
            what
        }
    };
    if report.shown.len() < SHOWN_MAX {
        report.shown.push(format!("place {number}: {what}"));
    }
}

fn ok(conn: &mut Conn, words: &[&str]) -> Result<()> {
    let reply = conn.call(words)?;
    if reply != b"+OK\r\n" {
        bail!("{words:?} was answered {}", resp::show(&reply, 200));
    }
    Ok(())
}

/// The answer, or NOPERM if the connection's user may not.
fn allowed(place: &mut Place, words: &[&str], key: &str, want: &[u8], report: &mut Report) -> Done {
    if place.user.may(words[0], key) {
        return expect(place, words, want, report);
    }
    report.refused += 1;
    expect(place, words, b"-NOPERM", report)
}

fn expect(place: &mut Place, words: &[&str], want: &[u8], report: &mut Report) -> Done {
    let reply = place.conn.call(words)?;
    report.replies += 1;
    let right = if want == b"-NOPERM" {
        reply.starts_with(want)
    } else {
        reply == want
    };
    if right {
        return Ok(());
    }
    let (got, want) = (resp::show(&reply, 120), resp::show(want, 120));
    Err(Fault::Wrong(format!(
        "{words:?} of {} in database {} from {:?}: {got} instead of {want}",
        place.user.name(),
        place.db,
        place.conn.stream().local_addr()
    )))
}

/// `check crowd`: prints the report; exit code 0 if nothing was wrong, else 1.
///
/// # Errors
/// As [`execute`].
pub fn run(args: &CrowdArgs) -> Result<ExitCode> {
    let report = execute(args)?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        for line in &report.shown {
            println!("FAILED seed {}: {line}", report.seed);
        }
        println!(
            "{}: {} connections at once, {} made, {} turned to another user or database; {} replies \
             verified, {} of them refusals; {} wrong, {} broken, {:.1} s, seed {}",
            if report.passed { "passed" } else { "FAILED" },
            report.open_at_once,
            report.joined,
            report.moved,
            report.replies,
            report.refused,
            report.wrong,
            report.broken,
            report.seconds,
            report.seed
        );
    }
    Ok(if report.passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
