// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From what the user wants to a daemon at work: checks first, then load or adopt.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use erb_abi::hash_secret;
use erb_datapath::{
    Attached, CacheSize, Datapath, Device, JournalSink, Links, LoadOptions, Programs, Sizes,
    TableSize, VlanOffload, WantedTiers, load_programs, possible_cpus, vlan_offload_off,
    vlan_offload_restore,
};
use erb_redis::Allowed;
use erb_watch::Endpoint;
use nix::fcntl::Flock;

use crate::addr::RedisAddr;
use crate::asked::{Asked, check_whose};
use crate::begun::{Begun, RootLock};
use crate::credentials::CredentialSource;
use crate::journal::{JournalPlace, LateJournal, new_id};
use crate::preflight::{
    check_answers, check_devices, check_kernel, check_listener, check_no_xdp, check_privileges,
    check_redis, check_write_rights,
};
use crate::privilege::{as_at_work, raise_reserve};
use crate::rundir::{Notes, RunDir, is_bpffs, netns_inode};
use crate::signals::Signals;
use crate::takeover::{own_layout, take_over};
use crate::{Error, Result, kmod, others, secret};

/// What the user wants.
#[derive(Clone, Debug)]
pub struct BoostConfig {
    /// Devices by which clients reach Redis.
    pub devices: Vec<String>,
    /// Address of the feed.
    pub redis: RedisAddr,
    /// As whom the feed speaks.
    pub credentials: CredentialSource,
    /// Redis's port, if the address does not say it.
    pub port: Option<u16>,
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// Places in the table of connections; `None`: as Redis's `maxclients` asks for.
    pub connections: Option<u32>,
    /// Run directory, if not the default one.
    pub run_dir: Option<PathBuf>,
    /// The programs to be at work.
    pub programs: Programs,
    /// Tiers for each device.
    pub tiers: WantedTiers,
    /// How long what a client said may wait for what was answered before it.
    pub hold_max: Duration,
    /// After so long without any gain the cache is closed, for as long at first; none: by an operator's word alone.
    pub close_after: Option<Duration>,
    /// Writes are answered in Redis's place where nothing speaks against it but this; none: never.
    pub write_back: Option<Allowed>,
    /// Where what waits for Redis for long is kept, with the former; none: nowhere.
    pub journal: Option<JournalPlace>,
    /// All of them are kept, not only what waits for long.
    pub journal_all: bool,
    /// Who writes them.
    pub journal_sink: JournalSink,
    /// Where metrics are served, if anywhere.
    pub metrics: Option<MetricsConfig>,
    /// Time a sample of requests.
    pub timing: bool,
    /// Take the place of a daemon of the same build too.
    pub take_over: bool,
    /// Also where nothing would be answered, however long it runs.
    pub anyway: bool,
}

/// Where metrics are served over HTTP.
#[derive(Clone, Debug)]
pub struct MetricsConfig {
    /// The address.
    pub address: SocketAddr,
    /// File whose first line is the token that readers have to show.
    pub token_file: Option<PathBuf>,
    /// With the dashboard.
    pub dashboard: bool,
    /// On it also keys and connections.
    pub details: bool,
}

impl MetricsConfig {
    fn token(&self) -> Result<Option<Vec<u8>>> {
        let read = |path: &PathBuf| {
            secret::first_line(path, "--metrics-token-file").map_err(|reason| Error::Token {
                path: path.clone(),
                reason,
            })
        };
        self.token_file.as_ref().map(read).transpose()
    }

    /// Whether it would be served: the address is not taken.
    ///
    /// # Errors
    /// The token is missing, or cannot be used.
    pub fn check(&self) -> Result<()> {
        Endpoint::fits(self.address, self.token()?.as_deref()).map_err(Error::Metrics)
    }

    /// Takes the address, if it is free: [`Endpoint::must_be_bound`].
    ///
    /// # Errors
    /// The token is missing, or cannot be used; the address cannot be listened on.
    pub fn bind(&self) -> Result<Endpoint> {
        let endpoint = Endpoint::bind(self.address, self.token()?).map_err(Error::Metrics)?;
        Ok(endpoint.with_dashboard(self.dashboard))
    }
}

/// How a daemon came to its data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It made it.
    Fresh,
    /// It was a dead daemon's.
    Adopted,
    /// The programs of another build, of a daemon that lived or not, were replaced.
    Replaced,
}

/// What belongs to a data path that is attached.
pub(crate) struct Boosted {
    pub(crate) run_dir: RunDir,
    /// Held until the daemon ends.
    pub(crate) _lock: Flock<File>,
    pub(crate) notes: Notes,
    pub(crate) taken: Taken,
}

impl Boosted {
    /// Takes a boost back that failed after it was attached; what was adopted stays at work.
    pub(crate) fn give_up(&self) {
        if self.taken != Taken::Fresh {
            return;
        }
        self.run_dir.note_withdraws();
        take_away(&self.run_dir.pins(), &self.notes.vlan_before());
        raise_reserve();
        if let Err(error) = self.run_dir.remove(self.notes.mounted) {
            tracing::error!("{error}");
        }
    }
}

/// What was found to be right before anything is changed.
pub(crate) struct Checked {
    pub(crate) devices: Vec<Device>,
    pub(crate) sizes: Sizes,
    pub(crate) port: u16,
    pub(crate) run_dir: RunDir,
    pub(crate) journal_folder: Option<PathBuf>,
    /// There is something at work already.
    taken: bool,
}

/// Memory of this machine, bytes.
pub(crate) fn ram_bytes() -> Result<u64> {
    let what = "could not read /proc/meminfo";
    let text = fs::read_to_string("/proc/meminfo").map_err(Error::io(what))?;
    text.lines()
        .find_map(|line| {
            line.strip_prefix("MemTotal:")?
                .trim()
                .strip_suffix(" kB")?
                .parse()
                .ok()
        })
        .map(|kib: u64| kib * 1024)
        .ok_or_else(|| Error::Kernel("/proc/meminfo does not state MemTotal".to_owned()))
}

/// The journal's folder, if there is to be one. It is made here: what cannot be is found out before anything is changed.
fn journal_folder(config: &BoostConfig, device: &Device, port: u16) -> Result<Option<PathBuf>> {
    let Some(place) = config
        .journal
        .as_ref()
        .filter(|_| config.write_back.is_some())
    else {
        return Ok(None);
    };
    let folder = place.folder(&device.name, port);
    as_at_work(|| LateJournal::make_folder(&folder))?;
    Ok(Some(folder))
}

fn check(config: &BoostConfig) -> Result<Checked> {
    let ram = ram_bytes()?;
    let cache = CacheSize::from_bytes(config.cache_bytes, ram)?;
    let wanted = config.connections;
    let wanted = wanted
        .map(|number| TableSize::of(number, ram))
        .transpose()?;
    check_privileges()?;
    check_kernel()?;
    if config.journal_sink == JournalSink::Kmod {
        kmod::check()?;
    }
    let devices = check_devices(&config.devices)?;
    let first = devices
        .first()
        .ok_or_else(|| Error::Usage("give at least one --dev".to_owned()))?;
    let run_dir = match &config.run_dir {
        Some(path) => RunDir::new(path),
        None => RunDir::of_device(&first.name)?,
    };
    // One that holds no lock here any more is seen by its process alone.
    if !run_dir.is_locked() {
        run_dir.check_not_cut_off()?;
    }
    let taken = run_dir.is_locked() || run_dir.has_pins();
    let (redis, port) = check_redis(&config.redis, &config.credentials, config.port)?;
    // What is at work already needs a daemon, whatever Redis has become.
    if !taken && !config.anyway {
        check_answers(&config.redis, &redis)?;
    }
    if config.write_back.is_some() {
        check_write_rights(&config.redis, &config.credentials)?;
    }
    check_listener(port)?;
    let mut asked = Asked::connect(&config.redis, &config.credentials)?;
    let listeners = asked.whose_listeners(port)?;
    check_whose(&config.redis, &listeners, port)?;
    if !taken {
        others::check(config, &run_dir, &mut asked)?;
        check_no_xdp(&devices)?;
    }
    Ok(Checked {
        journal_folder: journal_folder(config, first, port)?,
        devices,
        sizes: Sizes {
            cache,
            table: wanted.unwrap_or_else(|| TableSize::for_redis(redis.maxclients, ram)),
            log_rings: match config.write_back {
                Some(_) => possible_cpus()?,
                None => 0,
            },
        },
        port,
        run_dir,
        taken,
    })
}

/// Checks, then loads and attaches, or takes over what another daemon has at work or left at work.
/// On error nothing is left changed.
pub(crate) fn boost(config: &BoostConfig, signals: &Signals) -> Result<(Boosted, Links, Datapath)> {
    let mut checked = check(config)?;
    signals.check()?;
    if checked.taken && clear_useless(&checked.run_dir)? {
        checked = check(config)?;
    }
    if checked.taken {
        return take_over(config, checked, signals);
    }
    fresh(config, checked, signals)
}

/// Takes away what no packet passes: what a boost that was killed has left before its notes were
/// written, and what a dead daemon has left on devices that are gone, as with a container that was
/// started anew. True if there was such.
fn clear_useless(run_dir: &RunDir) -> Result<bool> {
    let at_work =
        || run_dir.has_notes() && !Links::new(&run_dir.pins()).boosted_devices().is_empty();
    if run_dir.is_locked() || at_work() {
        return Ok(false);
    }
    let _lock = run_dir.lock()?;
    if at_work() {
        return Ok(false);
    }
    tracing::warn!("a boost that was killed half-way, or whose devices are gone, is taken away");
    take_away(&run_dir.pins(), &[]);
    run_dir.remove(run_dir.pins_are_own())?;
    Ok(true)
}

/// The lock, the bpffs and the note that a boost begins, if no other boost of this Redis is there.
fn begin(config: &BoostConfig, checked: &Checked) -> Result<(Flock<File>, Undo)> {
    let _one_begins = RootLock::take();
    others::check_directories(config, &checked.run_dir)?;
    let run_dir = &checked.run_dir;
    let lock = run_dir.lock()?;
    let mut undo = Undo {
        run_dir: run_dir.clone(),
        mounted: false,
        vlan: Vec::new(),
        armed: true,
    };
    undo.mounted = run_dir.mount_pins()?;
    run_dir.note_begun(&Begun {
        pid: std::process::id(),
        devices: config.devices.clone(),
        redis: config.redis.to_string(),
        port: checked.port,
        netns: netns_inode()?,
        withdraws: false,
    })?;
    Ok((lock, undo))
}

fn fresh(
    config: &BoostConfig,
    checked: Checked,
    signals: &Signals,
) -> Result<(Boosted, Links, Datapath)> {
    let (lock, mut undo) = begin(config, &checked)?;
    let run_dir = checked.run_dir.clone();
    let pins = run_dir.pins();
    let options = LoadOptions {
        sizes: checked.sizes,
        sink: config.journal_sink,
        port: checked.port,
        devices: checked
            .devices
            .iter()
            .map(|device| device.ifindex)
            .collect(),
        hash: random_secret()?,
    };
    load_programs(&pins, &options, &config.programs)?;
    signals.check()?;
    for device in &checked.devices {
        undo.vlan.push((device.clone(), vlan_offload_off(device)?));
    }
    let links = Links::new(&pins);
    let attached: Vec<Attached> = checked
        .devices
        .iter()
        .map(|device| {
            signals.check()?;
            Ok(links.boost(device, config.tiers)?)
        })
        .collect::<Result<_>>()?;
    links.cover()?;
    let datapath = Datapath::open(&pins, checked.devices[0].ifindex)?;
    signals.check()?;
    let notes = notes(config, checked, &undo, attached)?;
    run_dir.write_notes(&notes)?;
    undo.armed = false;
    let boosted = Boosted {
        run_dir,
        _lock: lock,
        notes,
        taken: Taken::Fresh,
    };
    Ok((boosted, links, datapath))
}

/// What is to be known of what was attached.
fn notes(
    config: &BoostConfig,
    checked: Checked,
    undo: &Undo,
    attached: Vec<Attached>,
) -> Result<Notes> {
    Ok(Notes {
        attached,
        vlan: undo.vlan.iter().map(|(_, vlan)| *vlan).collect(),
        redis: config.redis.to_string(),
        port: checked.port,
        cache_sets: checked.sizes.cache.sets(),
        connections: checked.sizes.table.connections(),
        log_rings: checked.sizes.log_rings,
        journal: new_id()?,
        journal_folder: checked.journal_folder,
        sink: config.journal_sink,
        netns: netns_inode()?,
        mounted: undo.mounted,
        build: config.programs.build().to_owned(),
        layout: own_layout(),
    })
}

/// Takes back what a boost that failed half-way has changed.
struct Undo {
    run_dir: RunDir,
    mounted: bool,
    vlan: Vec<(Device, VlanOffload)>,
    armed: bool,
}

impl Drop for Undo {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        self.run_dir.note_withdraws();
        take_away(&self.run_dir.pins(), &self.vlan);
        if let Err(error) = self.run_dir.remove(self.mounted) {
            tracing::error!("{error}");
        }
    }
}

/// Detaches everything pinned in the folder, removes the pins and restores the devices.
pub(crate) fn take_away(pins: &std::path::Path, vlan: &[(Device, VlanOffload)]) {
    if is_bpffs(pins) {
        Links::new(pins).detach_all();
        erb_datapath::remove_pins(pins);
    }
    for (device, before) in vlan {
        if let Err(error) = vlan_offload_restore(device, *before) {
            tracing::warn!("{error}");
        }
    }
}

fn random_secret() -> Result<hash_secret> {
    use std::io::Read;
    let mut bytes = [0; hash_secret::BYTES];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(Error::io("could not read /dev/urandom"))?;
    Ok(hash_secret::of_bytes(&bytes))
}
