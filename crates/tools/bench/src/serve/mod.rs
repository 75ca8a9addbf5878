// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb bench serve`: what a request for a static file costs the server's processor, `erb serve` beside nginx.
//!
//! Server and client have a network namespace, a processor and a receive thread each. The veth between them
//! stands in for two cards with segmentation offload: it carries packets of 64 KB, and whoever receives them
//! pays. So what is measured as the server's is all that a server with a card would do, but for its driver.

mod client;
mod servers;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use comfy_table::{Table, presets};
use erb_lab::netns::{run_in, set_device};
use erb_lab::offload::{self, Offload};
use erb_lab::{Erb, nginx, process};
use serde::Serialize;
use tempfile::TempDir;

use crate::args::parse_seconds;
use crate::cputime;
use crate::interrupt::Interrupt;
use crate::netns::Pair;
use crate::serve::client::{Asked, Clients};
use crate::serve::servers::Running;
use crate::stats::Spread;

/// Before each run, so that none pays for cold tables.
const WARM_UP: Duration = Duration::from_millis(150);
/// The most that a veth takes (linux/if_ether.h `ETH_MAX_MTU`): as much as segmentation offload lets TCP hand
/// over at once.
const MTU_BYTES: &str = "65535";
/// What the figures stand for.
const STAND_INS: &str = "stand-in: a veth with packets of 64 KB for cards with segmentation offload. The server's processor time \
is that of its processes, its receive thread and softirq threads; a card's driver is left out. requests/s per core: at that price";

/// `erb bench serve`.
#[derive(Args, Debug, Clone)]
pub struct ServeArgs {
    /// Servers to measure, interleaved run by run (repeat or separate with commas).
    #[arg(long, value_enum, value_delimiter = ',',
          default_values_t = [Kind::Erb, Kind::Nginx, Kind::NginxKept])]
    pub server: Vec<Kind>,
    /// Sizes of files in bytes (separate with commas).
    #[arg(long, value_delimiter = ',', default_values_t = [1024, 4096, 16_384, 65_536, 262_144, 1_048_576],
          value_parser = clap::value_parser!(u32).range(1..=67_108_864))]
    pub size: Vec<u32>,
    /// Where the files lie (repeat or separate with commas).
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Place::Tmpfs, Place::PageCache])]
    pub place: Vec<Place>,
    /// Folder for the place `page-cache`, on a disk: its files are read once, then sent from memory [default:
    /// the folder for temporary files].
    #[arg(long)]
    pub disk: Option<std::path::PathBuf>,
    /// Program of nginx, or `debian`: Debian 13's is fetched, and unpacked beside this program.
    #[arg(long, default_value = "nginx")]
    pub nginx: String,
    /// Connections, one request in flight on each.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub conns: u32,
    /// Files of each size, asked for in turn.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub files: u32,
    /// Runs of each server, place and size.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Length of a run in seconds.
    #[arg(long, default_value_t = 0.5, value_parser = parse_seconds)]
    pub seconds: f64,
    /// Processor for everything that counts as server.
    #[arg(long, default_value_t = 0)]
    pub server_core: usize,
    /// Processor for the client.
    #[arg(long, default_value_t = 1)]
    pub client_core: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Servers that can be measured, each with one thread or worker.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// `erb serve`.
    Erb,
    /// nginx: `sendfile on; tcp_nopush on`, no log.
    Nginx,
    /// The same with `open_file_cache`: what a name leads to is looked up once a minute.
    NginxKept,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Erb => "erb serve",
            Self::Nginx => "nginx",
            Self::NginxKept => "nginx, open_file_cache",
        }
    }
}

/// Where files lie.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// On /dev/shm.
    Tmpfs,
    /// On a disk, in the page cache.
    PageCache,
}

impl Place {
    const fn name(self) -> &'static str {
        match self {
            Self::Tmpfs => "tmpfs",
            Self::PageCache => "page cache",
        }
    }
}

/// What a run has seen.
#[derive(Clone, Copy, Debug)]
struct Spent {
    requests: u64,
    server_ns: u64,
    /// For which the server's processor was busy with anybody else.
    foreign_ns: u64,
    time: Duration,
}

/// One server at one size.
#[derive(Clone, Debug, Serialize)]
pub struct ServeRow {
    /// Size of the file.
    pub size_bytes: u32,
    /// Where it lies.
    pub place: Place,
    /// Who served it.
    pub server: Kind,
    /// The server's processor time for each request.
    pub cpu_ns_per_request: Spread,
    /// Requests that a second of processor time is enough for, by the median.
    pub requests_per_core_second: f64,
    /// Requests a second, as they were; the client may have been what bounds them.
    pub requests_per_second: Spread,
    /// Processor time of nginx (each file opened anew) for each of this one's, by the medians.
    pub times_better_than_nginx: Option<f64>,
    /// The same of nginx with `open_file_cache`.
    pub times_better_than_nginx_kept: Option<f64>,
    /// Share of the time for which the server's processor worked for others, the most of any run.
    pub foreign_share_max: f64,
}

/// The table.
#[derive(Clone, Debug, Serialize)]
pub struct ServeReport {
    /// What the figures stand for.
    pub stand_ins: &'static str,
    /// Runs behind each figure.
    pub runs: u32,
    /// Version of nginx, as it tells it.
    pub nginx: Option<String>,
    /// By size, place, server.
    pub rows: Vec<ServeRow>,
}

type Runs = BTreeMap<(u32, Place, Kind), Vec<Spent>>;

/// Measures; needs root for the namespaces.
///
/// # Errors
/// If namespaces or a server cannot be had, or an answer is wrong.
pub fn measure(args: &ServeArgs, erb: &Erb) -> Result<ServeReport> {
    let interrupt = Interrupt::watch()?;
    let with_nginx = args.server.iter().any(|kind| *kind != Kind::Erb);
    let program = with_nginx
        .then(|| nginx::program(&args.nginx))
        .transpose()?;
    let pair = pair(args)?;
    let threads = pair.receive_threads(args.client_core, args.server_core)?;
    let mut folders = Vec::new();
    for place in &args.place {
        folders.push((*place, folder(args, *place)?));
    }
    let mut servers = Vec::new();
    for (place, dir) in &folders {
        for kind in &args.server {
            let port = 8000 + u16::try_from(servers.len())?;
            let programs = (erb, program.as_deref());
            let server = Running::start(*kind, programs, &pair, dir.path(), port, args.server_core)
                .with_context(|| format!("{} could not be started", kind.name()))?;
            servers.push((*place, *kind, server));
        }
    }
    cputime::pin_this(args.client_core)?;
    let mut runs = Runs::new();
    for run in 0..=args.runs {
        for &size in &args.size {
            for (place, kind, server) in &servers {
                interrupt.check()?;
                let asked = Asked {
                    address: server.address,
                    size_bytes: size as usize,
                    files: args.files,
                    conns: args.conns as usize,
                };
                let mut pids = server.pids()?;
                pids.push(threads.server);
                let spent = run_in(&pair.client, || one(args, asked, &pids))
                    .with_context(|| format!("{} from {}", kind.name(), place.name()))?;
                if run > 0 {
                    runs.entry((size, *place, *kind)).or_default().push(spent);
                }
            }
        }
    }
    Ok(ServeReport {
        stand_ins: STAND_INS,
        runs: args.runs,
        nginx: program.map(|it| servers::version(&it)).transpose()?,
        rows: rows(&runs),
    })
}

/// A veth pair whose ends receive on threads of their own, in packets as large as offload would make them.
fn pair(args: &ServeArgs) -> Result<Pair> {
    ensure!(
        args.server_core != args.client_core,
        "--server-core and --client-core are the same: what is whose could not be told"
    );
    let pair = Pair::make()?;
    for (netns, dev) in [
        (&pair.client, &pair.client_dev),
        (&pair.server, &pair.server_dev),
    ] {
        set_device(netns, dev, "mtu", MTU_BYTES)?;
        // A veth that offers segmentation hands packets over in the sender's own time.
        offload::set(netns, dev, Offload::Tso, false)?;
    }
    Ok(pair)
}

/// The files of a place; read once by having been written.
fn folder(args: &ServeArgs, place: Place) -> Result<TempDir> {
    let above = match (place, &args.disk) {
        (Place::Tmpfs, _) => Path::new("/dev/shm").to_owned(),
        (Place::PageCache, Some(disk)) => disk.clone(),
        (Place::PageCache, None) => std::env::temp_dir(),
    };
    let cannot = || format!("cannot write the files to {}", above.display());
    let dir = tempfile::Builder::new()
        .prefix("erb-bench-")
        .tempdir_in(&above);
    let dir = dir.with_context(cannot)?;
    for &size in &args.size {
        for number in 0..args.files {
            let path = dir.path().join(client::name(size as usize, number));
            fs::write(&path, client::content(size as usize, number)).with_context(cannot)?;
            fs::File::open(&path)?.sync_all()?;
        }
    }
    Ok(dir)
}

fn one(args: &ServeArgs, asked: Asked, pids: &[u32]) -> Result<Spent> {
    cputime::pin_this(args.client_core)?;
    let softirqs = process::named(&format!("ksoftirqd/{}", args.server_core))?;
    let pids = [pids, &softirqs].concat();
    let mut clients = Clients::connect(asked)?;
    clients.run(WARM_UP)?;
    let (own, core) = (
        cputime::of_processes(&pids)?,
        cputime::of_core(args.server_core)?,
    );
    let begin = Instant::now();
    let requests = clients.run(Duration::from_secs_f64(args.seconds))?;
    let time = begin.elapsed();
    let server_ns = cputime::of_processes(&pids)? - own;
    let busy_ns = cputime::of_core(args.server_core)? - core;
    ensure!(requests > 0, "nothing was answered");
    Ok(Spent {
        requests,
        server_ns,
        foreign_ns: busy_ns.saturating_sub(server_ns),
        time,
    })
}

fn rows(runs: &Runs) -> Vec<ServeRow> {
    let cost = |key: &(u32, Place, Kind)| {
        let per_request = |spent: &Spent| spent.server_ns as f64 / spent.requests as f64;
        Spread::of(runs.get(key)?.iter().map(per_request))
    };
    let row = |(key, spent): (&(u32, Place, Kind), &Vec<Spent>)| {
        let own = cost(key)?;
        let better = |other: Kind| {
            let other = cost(&(key.0, key.1, other)).filter(|_| other != key.2)?;
            Some(other.median / own.median)
        };
        let pace = |one: &Spent| one.requests as f64 / one.time.as_secs_f64();
        let foreign = |one: &Spent| one.foreign_ns as f64 / one.time.as_nanos() as f64;
        Some(ServeRow {
            size_bytes: key.0,
            place: key.1,
            server: key.2,
            cpu_ns_per_request: own,
            requests_per_core_second: 1e9 / own.median,
            requests_per_second: Spread::of(spent.iter().map(pace))?,
            times_better_than_nginx: better(Kind::Nginx),
            times_better_than_nginx_kept: better(Kind::NginxKept),
            foreign_share_max: spent.iter().map(foreign).fold(0.0, f64::max),
        })
    };
    runs.iter().filter_map(row).collect()
}

impl ServeReport {
    /// For people.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header([
            "file",
            "place",
            "server",
            "ns/request",
            "min..max",
            "requests/s per core",
            "requests/s",
            "better than nginx",
            "than open_file_cache",
        ]);
        let times = |gain: Option<f64>| gain.map_or("-".to_owned(), |gain| format!("{gain:.2}x"));
        for row in &self.rows {
            let cost = &row.cpu_ns_per_request;
            table.add_row([
                row.size_bytes.to_string(),
                row.place.name().to_owned(),
                row.server.name().to_owned(),
                format!("{:.0}", cost.median),
                format!("{:.0}..{:.0}", cost.min, cost.max),
                format!("{:.0}", row.requests_per_core_second),
                format!("{:.0}", row.requests_per_second.median),
                times(row.times_better_than_nginx),
                times(row.times_better_than_nginx_kept),
            ]);
        }
        let others = self.rows.iter().map(|row| row.foreign_share_max);
        format!(
            "{table}\nmedians of {} interleaved runs{}; others had at most {:.0} % of the server's processor; {}\n",
            self.runs,
            self.nginx
                .as_ref()
                .map_or(String::new(), |it| format!(", {it}")),
            others.fold(0.0, f64::max) * 100.0,
            self.stand_ins
        )
    }
}
