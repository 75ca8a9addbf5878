// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the checks work with: a folder on the file system, ways to the peer, and what it has seen.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use dax_send::{Connection, MappedFile, Options, Sender};

use crate::pattern;
use crate::peer::{self, End, Ports};

/// How long a client may be silent in the checks.
pub const DEADLINE: Duration = Duration::from_secs(2);
/// Smaller sends are copied.
const COPY_BYTES_MAX: usize = 4 << 10;
/// Room for what waits behind a silent peer; the kernel gives twice of it.
const SEND_BUFFER_BYTES: usize = 208 << 10;
/// The device that is made silent, the first of the two cards.
const SILENT_DEVICE: &str = "eth0";

static NEXT: AtomicU64 = AtomicU64::new(1);

/// One way to a peer.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    /// For people.
    pub name: &'static str,
    /// The peer's.
    pub address: Ipv4Addr,
    /// Its ports.
    pub ports: Ports,
    /// What the kernel does behind the socket.
    pub copies: Copies,
}

/// Whether the kernel copies what was sent zero-copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// It does not.
    Never,
    /// It does, and completions say so.
    Told,
    /// It does when it cuts packets, and completions say nothing.
    Untold,
}

/// What the peer says of a connection.
#[derive(Clone, Debug)]
pub struct Report {
    /// Bytes that came.
    pub bytes: u64,
    /// Those of another file or place.
    pub foreign_bytes: u64,
    /// Versions of the file that were seen, the oldest and the newest; 0: none.
    pub versions: (u8, u8),
    /// How it ended.
    pub end: End,
}

/// A folder to work in, and the ways out.
#[derive(Debug)]
pub struct World {
    /// On the file system that is looked at.
    pub dir: PathBuf,
    /// e1000, virtio-net, lo, in this order.
    pub cards: [Card; 3],
    /// Of the running kernel.
    pub kernel: (u32, u32),
}

impl World {
    /// Makes a file of a pattern, with a number of its own.
    pub fn file(&self, name: &str, number: u16, bytes: u64) -> Result<PathBuf> {
        let path = self.dir.join(name);
        let _ = fs::remove_file(&path);
        let file = File::create(&path)?;
        pattern::write(&file, number, 1, bytes)?;
        file.sync_all()?;
        Ok(path)
    }

    /// The card that sends without a copy.
    pub const fn card(&self) -> &Card {
        &self.cards[0]
    }

    /// Since 6.15 frees wait for pages in flight, mapped or not.
    pub fn frees_wait(&self) -> bool {
        self.kernel >= (6, 15)
    }
}

/// Numbers begin here, apart from those of earlier runs with the same peer.
pub fn number_from(first: u64) {
    NEXT.store(first + 1, Relaxed);
}

/// The number of the next connection, or of anything else.
pub fn number() -> u64 {
    NEXT.fetch_add(1, Relaxed)
}

impl Card {
    /// A connection to its peer, which has its head.
    pub fn connect(&self, port: u16, file: u16, hold: bool) -> Result<(u64, TcpStream)> {
        let number = number();
        let stream = self.connect_as(port, number, file, hold)?;
        Ok((number, stream))
    }

    /// With a number that is given.
    pub fn connect_as(&self, port: u16, number: u64, file: u16, hold: bool) -> Result<TcpStream> {
        let address = SocketAddr::from((self.address, port));
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))
            .with_context(|| format!("the peer behind {}", self.name))?;
        socket2::SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER_BYTES)?;
        stream.set_nodelay(true)?;
        stream.write_all(&peer::head(number, file, hold))?;
        Ok(stream)
    }

    /// The same as a connection of dax-send.
    pub fn open(
        &self,
        sender: &Arc<Sender>,
        port: u16,
        file: u16,
        hold: bool,
    ) -> Result<(u64, Connection)> {
        let (number, stream) = self.connect(port, file, hold)?;
        Ok((number, sender.connection(stream)?))
    }

    /// Asks the peer.
    fn ask(&self, question: &str) -> Result<(bool, Report)> {
        let address = SocketAddr::from((self.address, self.ports.control));
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
        stream.write_all(format!("{question}\n").as_bytes())?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        let words: Vec<u64> = line
            .split_whitespace()
            .map(str::parse)
            .collect::<std::result::Result<_, _>>()?;
        let [found, bytes, foreign_bytes, oldest, newest, end] = words[..] else {
            bail!("the peer has said {line:?}");
        };
        let report = Report {
            bytes,
            foreign_bytes,
            versions: (u8::try_from(oldest)?, u8::try_from(newest)?),
            end: match end {
                0 => End::Open,
                1 => End::Fin,
                _ => End::Rst,
            },
        };
        Ok((found == 1, report))
    }

    /// Lets the peer read on.
    pub fn read_on(&self, number: u64) -> Result<()> {
        self.ask(&format!("read {number}")).map(drop)
    }

    /// Whether the connection's head arrives in time.
    pub fn has_begun(&self, number: u64, patience: Duration) -> Result<bool> {
        let begun = self.ask(&format!("begun {number} {}", patience.as_millis()));
        begun.map(|(begun, _)| begun)
    }

    /// What the peer has seen when the connection has ended, or after so long.
    pub fn report(&self, number: u64, patience: Duration) -> Result<Report> {
        let report = self.ask(&format!("wait {number} {}", patience.as_millis()));
        report.map(|(_, report)| report)
    }
}

/// Drops the peer's acknowledgements as long as it lives. What it takes to connect passes.
#[derive(Debug)]
pub struct Silence;

impl Silence {
    /// From this port of the first card's peer.
    pub fn begin(card: &Card) -> Result<Self> {
        let port = card.ports.silent.to_string();
        // Acknowledgements without SYN, in the 14th byte behind an IP header of 20.
        run(
            "tc",
            &[
                "filter",
                "add",
                "dev",
                SILENT_DEVICE,
                "ingress",
                "pref",
                "1",
                "protocol",
                "ip",
                "u32",
                "match",
                "ip",
                "sport",
                &port,
                "0xffff",
                "match",
                "u8",
                "0x10",
                "0x12",
                "at",
                "33",
                "action",
                "drop",
            ],
        )?;
        Ok(Self)
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        let gone = run("tc", &["filter", "del", "dev", SILENT_DEVICE, "ingress"]);
        if let Err(error) = gone {
            println!("the peer stays silent: {error:#}");
        }
    }
}

/// Runs a command that must succeed.
pub fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("{program} cannot be started"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {arguments:?}: {said}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Options of the checks.
pub fn options() -> Options {
    Options {
        deadline: DEADLINE,
        // What is measured in an emulated machine says nothing.
        copy_bytes_max: Some(COPY_BYTES_MAX),
        ..Options::default()
    }
}

/// A file that may be sent.
pub fn mapped(path: &Path) -> Result<Arc<MappedFile>> {
    Ok(Arc::new(MappedFile::new(File::open(path)?)?))
}

/// Writes a version over a file, in place.
pub fn overwrite(path: &Path, number: u16, version: u8, bytes: u64) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    pattern::write(&file, number, version, bytes)?;
    file.sync_all()?;
    Ok(())
}

/// Waits until something is so; returns whether it is.
pub fn within(patience: Duration, mut is: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + patience;
    loop {
        if is() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
