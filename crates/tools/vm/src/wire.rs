// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The wire between the two cards of a guest: tap devices in a network namespace of this machine, and the lab's middle box
//! between them.
//!
//! So each card has several queues, which QEMU's own hub cannot give: with too few of them XDP's answers of all processors share
//! a locked one. And what the wire loses, repeats, reorders or corrupts is the guest's to say: a line `wire: loss=1% seed=7`
//! on its console, or `wire: reset`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use erb_lab::apt::output;
use erb_lab::control::{self, Request};
use erb_lab::{LinkChange, netns};

use crate::machine::ends_with_us;

/// Ends of the wire, by the guest's namespaces.
const ENDS: [&str; 2] = ["client", "server"];
/// How namespaces are named: behind it stands the number of the process that has made one.
const NAMES: &str = "erb-vm-";
/// Queues of a card: one for each of two processors, and one more each that XDP answers by.
const QUEUES: u32 = 4;
/// Vectors of interrupts of a card: two for each queue, one for its settings, one more.
const VECTORS: u32 = 2 * QUEUES + 2;
/// What the guest's words to the wire begin with.
const WORD: &str = "wire: ";
/// The middle box listens by then.
const WAIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// What a card must not do: leave sums to others, or send and get frames that are put together. A wire has neither.
const CARD: &str = "csum=off,gso=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off,\
                    guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,romfile=";

/// A wire. It goes with the value.
#[derive(Debug)]
pub struct Wire {
    namespace: String,
    socket: PathBuf,
    middle: Child,
}

impl Wire {
    /// Makes it; its files lie in `dir`.
    ///
    /// # Errors
    /// If this process may not make devices, or the middle box does not come up.
    pub fn new(dir: &Path) -> Result<Self> {
        let namespace = format!("{NAMES}{}", std::process::id());
        netns::remove_left(NAMES);
        netns::create(&namespace)?;
        let made = Self::make(&namespace, dir);
        if made.is_err() {
            let _ = netns::remove(&namespace);
        }
        made
    }

    fn make(namespace: &str, dir: &Path) -> Result<Self> {
        for end in ENDS {
            let ip = |words: &[&str]| output(netns::command(namespace, "ip")?.args(words));
            ip(&["tuntap", "add", "dev", end, "mode", "tap", "multi_queue"])?;
            ip(&["link", "set", end, "up"])?;
        }
        let socket = dir.join("wire");
        let mut command = netns::command(namespace, erb_lab::beside("erb-lab")?)?;
        command.args(["lab", "__forward"]).args(ENDS).arg(&socket);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        ends_with_us(&mut command);
        let wire = Self {
            namespace: namespace.to_owned(),
            socket,
            middle: command.spawn().context("cannot start the middle box")?,
        };
        let end = Instant::now() + WAIT;
        while let Err(error) = control::ask(&wire.socket, Request::Get) {
            ensure!(
                Instant::now() < end,
                "the middle box does not come up: {error:#}"
            );
            thread::sleep(PAUSE);
        }
        Ok(wire)
    }

    /// A program that sees its devices.
    ///
    /// # Errors
    /// If it is gone.
    pub fn command(&self, program: &str) -> Result<Command> {
        netns::command(&self.namespace, program)
    }

    /// Its ends as QEMU's arguments, in the order of [`ENDS`].
    #[must_use]
    pub fn devices(&self) -> Vec<String> {
        let end = |(number, end): (usize, &str)| {
            [
                "-netdev".to_owned(),
                format!(
                    "tap,id={end},ifname={end},script=no,downscript=no,vhost=off,queues={QUEUES}"
                ),
                "-device".to_owned(),
                format!(
                    "virtio-net-pci,netdev={end},mac=52:54:00:12:34:{number:02x},mq=on,vectors={VECTORS},{CARD}"
                ),
            ]
        };
        ENDS.into_iter().enumerate().flat_map(end).collect()
    }

    /// Does what the guest says, if this line of its console is to the wire.
    pub fn hear(&self, line: &str) {
        let Some(words) = line.strip_prefix(WORD) else {
            return;
        };
        if let Err(error) = self.set(words) {
            eprintln!("vm: the wire does not do `{words}`: {error:#}");
        }
    }

    fn set(&self, words: &str) -> Result<()> {
        let request = match words {
            "reset" => Request::Reset,
            words => Request::Set(LinkChange::parse(&words.split(' ').collect::<Vec<_>>())?),
        };
        // What it has done until then is told.
        let before = control::ask(&self.socket, Request::Get)?;
        for (way, count) in [("server", before.to_server), ("client", before.to_client)] {
            println!(
                "vm: the wire to the {way}: {} frames, {} lost, {} repeated, {} reordered, {} corrupted; {} had no room",
                count.received,
                count.lost,
                count.duplicated,
                count.reordered,
                count.corrupted,
                count.failed + count.missed
            );
        }
        control::ask(&self.socket, request).map(drop)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = self.middle.kill();
        let _ = self.middle.wait();
        if let Err(error) = netns::remove(&self.namespace) {
            eprintln!("vm: {error:#}");
        }
    }
}
