// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other boosts of the same Redis. Each has a cache and marks of its own, and what passes one is seen by no other: with two,
//! readers of either would be stale behind writes of the other. So a Redis has one boost, with all its devices.
//!
//! Which Redis a boost is of is not told by devices, addresses, ports or directories; Redis itself tells. Two signs:
//! - The directory of a boost, wherever it is, is found by the mount of its pins. It names the address of its feed, and Redis
//!   lists the connections that it accepts: the one that is made to that address, or it is another server's. That shows
//!   boosts that begin, that have lost their feed, and that a dead daemon has left.
//! - Names in Redis's CLIENT LIST show the feeds of boosts that are at work, also from where no directory of theirs is seen:
//!   other mount namespaces, containers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use erb_datapath::{Device, Links};
use erb_redis::ClientLine;
use erb_report::Status;
use erb_report::shell::{quoted, quoted_path};

use crate::addr::RedisAddr;
use crate::asked::Asked;
use crate::boost::BoostConfig;
use crate::client::request_within;
use crate::mounts::{self, mounts};
use crate::rundir::{Notes, RunDir, netns_inode};
use crate::server::Request;
use crate::{Error, Result};

/// How the name of every feed begins.
const FEED: &str = "erb-feed:";

/// Redis closes the connection of a daemon that has ended when its loop comes round.
const STALE_MAX: Duration = Duration::from_secs(2);
const STALE_LOOK: Duration = Duration::from_millis(100);

/// Time that another daemon has to say what it does.
const STATUS_MAX: Duration = Duration::from_secs(2);

/// What a daemon calls its feed. A client name has no blanks.
pub(crate) fn feed_name(run_dir: &RunDir) -> String {
    let name = run_dir.path().file_name().unwrap_or_default();
    let name = name.to_string_lossy();
    format!("{FEED}{}", name.replace(char::is_whitespace, "_"))
}

/// What another boost does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its daemon loads, or takes back what it has loaded.
    Begins,
    /// A daemon is at work.
    Works,
    /// Its daemon has died.
    Dead,
}

/// A boost of this network namespace.
#[derive(Clone, Debug)]
pub(crate) struct Other {
    pub(crate) run_dir: RunDir,
    pub(crate) devices: Vec<String>,
    pub(crate) stage: Stage,
    redis: String,
    port: u16,
}

impl Other {
    /// What is in this directory, if it is a boost of this namespace that packets may pass, or will.
    fn of(run_dir: RunDir, netns: u64) -> Option<Self> {
        if let Some(begun) = run_dir.begun().filter(|begun| begun.netns == netns) {
            return Some(Self {
                run_dir,
                devices: begun.devices,
                stage: Stage::Begins,
                redis: begun.redis,
                port: begun.port,
            });
        }
        let notes = run_dir.notes().ok().filter(|notes| notes.netns == netns)?;
        let is_locked = run_dir.is_locked();
        let at_work = is_locked || !Links::new(&run_dir.pins()).boosted_devices().is_empty();
        at_work.then(|| Self {
            devices: names(&notes.devices()),
            stage: if is_locked { Stage::Works } else { Stage::Dead },
            redis: notes.redis,
            port: notes.port,
            run_dir,
        })
    }

    /// Whether it is a boost of the Redis that is asked.
    fn is_of(&self, asked: &mut Asked<'_>) -> Result<bool> {
        let told = match self.redis.strip_prefix("unix:") {
            Some(path) => asked.has_socket(Path::new(path))?,
            None => match self.redis.parse::<SocketAddr>() {
                Ok(at) => asked.accepts(at)?,
                Err(_) => None,
            },
        };
        if let Some(is_it) = told {
            return Ok(is_it);
        }
        // The way of its feed is shut by now, but the feed may be there, and its programs look at a port.
        let name = feed_name(&self.run_dir);
        let is_fed = |client: &ClientLine| self.stage == Stage::Works && client.name == name;
        let came = |client: &ClientLine| client.laddr.is_some_and(|at| at.port() == self.port);
        let clients = asked.clients()?;
        Ok(clients.iter().any(|client| is_fed(client) || came(client))
            || asked.listens_on(self.port)?)
    }

    /// Whether all these devices are among its own.
    pub(crate) fn has(&self, devices: &[String]) -> bool {
        devices.iter().all(|device| self.devices.contains(device))
    }

    /// In words, behind what says that it is boosted.
    pub(crate) fn told(&self) -> String {
        let (devices, place) = (self.devices.join(", "), self.run_dir.path().display());
        match self.stage {
            Stage::Begins => self.run_dir.begun().map_or_else(
                || format!("a boost of {devices} begins in {place}"),
                |begun| begun.told(self.run_dir.path()),
            ),
            Stage::Works => format!("on {devices} (run directory {place})"),
            Stage::Dead => format!(
                "on {devices} (run directory {place}), by a daemon that has died and left that at work"
            ),
        }
    }

    /// Why a boost of these devices is refused beside it, and what is right.
    pub(crate) fn refusal(&self, devices: &[String], redis: &RedisAddr) -> Error {
        if let Some(detaching) = self.detaching() {
            return detaching;
        }
        let detach = format!(
            "`erb detach --run-dir {}`",
            quoted_path(self.run_dir.path())
        );
        let mut all = self.devices.clone();
        all.extend(devices.iter().cloned());
        let right = if self.has(devices) {
            format!("that one has these devices; {detach} ends it")
        } else {
            let boost = boost_of(all, redis);
            format!(
                "{detach}, and then one boost with all devices: `{boost}`, with the other options"
            )
        };
        Error::OtherBoost(refusal(redis, &self.told(), &right))
    }

    /// One that leaves is told as such.
    fn detaching(&self) -> Option<Error> {
        if self.stage != Stage::Works {
            return None;
        }
        let status = request_within::<Status>(&self.run_dir, &Request::Status, STATUS_MAX).ok()?;
        (status.daemon == "detaching").then(|| Error::Detaching {
            run_dir: self.run_dir.path().to_path_buf(),
            translated: status.connections.translated,
        })
    }
}

fn refusal(redis: &RedisAddr, what: &str, right: &str) -> String {
    format!(
        "the Redis at {redis} is boosted already: {what}. A second boost would not see what is written through that one, and \
         answer old values; {right}"
    )
}

/// The command that boosts all of them.
fn boost_of(devices: Vec<String>, redis: &RedisAddr) -> String {
    let redis = quoted(redis.to_string().as_bytes());
    format!("erb boost{} --redis {redis}", device_words(devices))
}

/// Each device once, as a word of the command line.
fn device_words(devices: Vec<String>) -> String {
    let mut named: Vec<String> = Vec::new();
    for device in devices {
        let word = format!(" --dev {}", quoted(device.as_bytes()));
        if !named.contains(&word) {
            named.push(word);
        }
    }
    named.concat()
}

/// Why a boost is refused beside one of which Redis has the feed and no directory is seen.
pub(crate) fn refusal_of_feed(feed: &ClientLine, redis: &RedisAddr) -> Error {
    let address = feed
        .addr
        .map_or_else(|| "a unix socket".to_owned(), |address| address.to_string());
    let what = format!(
        "its client {} from {address} is the feed of a boost ({}) whose run directory is not seen from here (another mount \
         namespace or container?)",
        feed.id, feed.name
    );
    let right = format!(
        "detach that one where it was boosted, and then make one boost with all devices. If it is no boost, `redis-cli CLIENT \
         KILL ID {}` ends it",
        feed.id
    );
    Error::OtherBoost(refusal(redis, &what, &right))
}

/// Why a boost is refused in the directory of one with other devices, or of another port.
pub(crate) fn other_devices(
    run_dir: &RunDir,
    noted: &Notes,
    devices: &[Device],
    port: u16,
) -> Error {
    let mut wanted = names(devices);
    let noted_devices = names(&noted.devices());
    let is_more = noted_devices.iter().all(|one| wanted.contains(one));
    if !is_more && noted.port == port {
        wanted.splice(0..0, noted_devices.iter().cloned());
    }
    let with: String = device_words(wanted);
    Error::OtherBoost(format!(
        "boosted already: what is at work in {} has other devices, or is of another port ({}, port {}). `erb detach \
         --run-dir {}`, and then `erb boost{with}` with the other options; or boost with the same as that",
        run_dir.path().display(),
        noted_devices.join(", "),
        noted.port,
        quoted_path(run_dir.path()),
    ))
}

fn names(devices: &[Device]) -> Vec<String> {
    devices.iter().map(|device| device.name.clone()).collect()
}

/// Feeds among Redis's clients.
pub(crate) fn feeds(clients: Vec<ClientLine>) -> Vec<ClientLine> {
    let mut feeds = clients;
    feeds.retain(|client| client.name.starts_with(FEED));
    feeds
}

/// Directories of boosts that are seen from here, each once, but for `own`.
fn directories(own: Option<&Path>) -> Vec<RunDir> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let own = own.map(real);
    let mounted = mounted(&mounts::table());
    let noted = RunDir::all().unwrap_or_default();
    let noted = noted.iter().map(|run_dir| real(run_dir.path()));
    let mut all: Vec<PathBuf> = mounted.iter().map(|path| real(path)).chain(noted).collect();
    all.sort();
    all.dedup();
    all.retain(|path| own.as_ref() != Some(path));
    all.iter().map(|path| RunDir::new(path)).collect()
}

/// Folders that have a bpffs where a run directory has one.
fn mounted(table: &str) -> Vec<PathBuf> {
    let pins = mounts(table).filter(|mount| mount.kind == "bpf" && mount.at.ends_with("bpf"));
    pins.filter_map(|mount| Some(mount.at.parent()?.to_path_buf()))
        .collect()
}

/// Boosts of this network namespace, of whatever Redis, but for the one in `own`.
pub(crate) fn here(own: Option<&Path>) -> Vec<Other> {
    let Ok(netns) = netns_inode() else {
        return Vec::new();
    };
    let all = directories(own).into_iter();
    all.filter_map(|run_dir| Other::of(run_dir, netns))
        .collect()
}

/// Those of them that are boosts of the Redis that is asked.
pub(crate) fn same(others: Vec<Other>, asked: &mut Asked<'_>) -> Result<Vec<Other>> {
    let mut same = Vec::new();
    for other in others {
        if other.is_of(asked)? {
            same.push(other);
        }
    }
    Ok(same)
}

/// Refuses to boost a Redis anew that another boost has.
///
/// # Errors
/// [`Error::OtherBoost`] saying which, and what is right; [`Error::Detaching`] if it leaves.
pub(crate) fn check(config: &BoostConfig, run_dir: &RunDir, asked: &mut Asked<'_>) -> Result<()> {
    if let Some(other) = same(here(Some(run_dir.path())), asked)?.first() {
        return Err(other.refusal(&config.devices, &config.redis));
    }
    match lasting_feed(asked, &[])? {
        Some(feed) => Err(refusal_of_feed(&feed, &config.redis)),
        None => Ok(()),
    }
}

/// The first half of [`check()`]: what may have begun since.
///
/// # Errors
/// As [`check()`].
pub(crate) fn check_directories(config: &BoostConfig, run_dir: &RunDir) -> Result<()> {
    let others = here(Some(run_dir.path()));
    if others.is_empty() {
        return Ok(());
    }
    let mut asked = Asked::connect(&config.redis, &config.credentials)?;
    match same(others, &mut asked)?.first() {
        Some(other) => Err(other.refusal(&config.devices, &config.redis)),
        None => Ok(()),
    }
}

/// A feed of another boost than these, and that stays: the one of a daemon which has just ended is there until Redis has
/// seen its end.
pub(crate) fn lasting_feed(asked: &mut Asked<'_>, known: &[Other]) -> Result<Option<ClientLine>> {
    let known: Vec<String> = known
        .iter()
        .map(|other| feed_name(&other.run_dir))
        .collect();
    let until = Instant::now() + STALE_MAX;
    let mut first: Option<Vec<u64>> = None;
    loop {
        let mut found = feeds(asked.clients()?);
        found.retain(|feed| !known.contains(&feed.name));
        if let Some(first) = &first {
            // One that is made anew is at work.
            if let Some(new) = found.iter().position(|feed| !first.contains(&feed.id)) {
                return Ok(Some(found.swap_remove(new)));
            }
        }
        if found.is_empty() {
            return Ok(None);
        }
        if Instant::now() >= until {
            return Ok(found.into_iter().next());
        }
        first.get_or_insert_with(|| found.iter().map(|feed| feed.id).collect());
        std::thread::sleep(STALE_LOOK);
    }
}

/// Says, where a daemon goes on with what is at work, that another boost has the same Redis: an older ERB allowed that.
pub(crate) fn warn(config: &BoostConfig, run_dir: &RunDir) {
    let others = here(Some(run_dir.path()));
    if others.is_empty() {
        return;
    }
    let found = Asked::connect(&config.redis, &config.credentials)
        .and_then(|mut asked| same(others, &mut asked));
    for other in found.unwrap_or_default() {
        tracing::warn!("{}", other.refusal(&config.devices, &config.redis));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_found_by_the_mounts_of_their_pins() {
        let table = "22 1 0:20 / /sys/fs/bpf rw,nosuid - bpf bpf rw,mode=700\n\
                     23 1 0:21 / /srv/a\\040b/bpf rw shared:4 - bpf erb rw,mode=700\n\
                     24 1 0:22 / /run/erb/eth0-5/bpf rw - bpf erb rw\n\
                     25 1 0:23 / /run/c/bpf rw - tmpfs erb rw\n\
                     26 1 0:24 / /run/d/pins rw - bpf erb rw\n";
        let found = mounted(table);
        for path in ["/srv/a b", "/run/erb/eth0-5"] {
            assert!(found.contains(&PathBuf::from(path)), "{found:?}");
        }
        for path in ["/run/c", "/run/d"] {
            assert!(!found.contains(&PathBuf::from(path)), "{found:?}");
        }
    }

    fn other(devices: &[&str], stage: Stage) -> Other {
        Other {
            run_dir: RunDir::new(Path::new("/run/my boosts/eth0-5")),
            devices: devices.iter().map(|name| (*name).to_owned()).collect(),
            stage,
            redis: "127.0.0.1:6379".to_owned(),
            port: 6379,
        }
    }

    #[test]
    fn the_right_command_names_all_devices_once() {
        let redis: RedisAddr = "[::1]:6379".parse().expect("an address");
        let wanted = ["lo".to_owned(), "eth0".to_owned()];
        for stage in [Stage::Works, Stage::Dead] {
            let told = other(&["eth0", "eth1"], stage).refusal(&wanted, &redis);
            let told = told.to_string();
            for words in [
                "on eth0, eth1 ",
                "`erb detach --run-dir '/run/my boosts/eth0-5'`",
                "`erb boost --dev eth0 --dev eth1 --dev lo --redis '[::1]:6379'`",
            ] {
                assert!(told.contains(words), "{told}");
            }
            assert_eq!(told.contains("has died"), stage == Stage::Dead, "{told}");
        }
        let told = other(&["eth0", "lo"], Stage::Works).refusal(&wanted, &redis);
        assert!(told.to_string().contains("has these devices"), "{told}");
    }

    #[test]
    fn feeds_are_known_by_their_names() {
        let list = "id=5 name=erb-feed:eth0-5 addr=127.0.0.1:4000\nid=6 name=erb-trial\nid=7 name=\n\
                    id=9 name=erb-feed:run addr=/run/redis.sock:0\n";
        let found = feeds(erb_redis::parse_clients(list));
        assert_eq!(found.iter().map(|feed| feed.id).collect::<Vec<_>>(), [5, 9]);
        let redis: RedisAddr = "127.0.0.1:6379".parse().expect("an address");
        let told = refusal_of_feed(&found[0], &redis).to_string();
        for words in ["client 5 from 127.0.0.1:4000", "CLIENT KILL ID 5"] {
            assert!(told.contains(words), "{told}");
        }
        let spaced = RunDir::new(Path::new("/run/my boost"));
        assert_eq!(feed_name(&spaced), "erb-feed:my_boost");
    }
}
