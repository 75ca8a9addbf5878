// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A new daemon for what is at work already: after the old one's death, or in its place, with the
//! same programs or with those of another build.
//!
//! Invariants:
//! 1. Whatever can fail comes before the old daemon is asked to end; it serves meanwhile.
//! 2. Between the two daemons nothing is answered, and everything is translated.
//! 3. Links change under the lock, which only one daemon holds. Whoever is killed at any point
//!    leaves something that the next `erb boost` takes over.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use erb_datapath::{
    AttachMode, Attached, CacheSize, Datapath, Device, Links, Sizes, TableSize, WantedTiers,
    promote, stage, unstage,
};
use erb_report::Status;
use erb_report::shell::quoted_path;
use nix::fcntl::Flock;
use serde_json::Value;

use crate::boost::{BoostConfig, Boosted, Checked, Taken};
use crate::client::request_within;
use crate::journal::new_id;
use crate::rundir::{Notes, RunDir, netns_inode};
use crate::server::Request;
use crate::signals::Signals;
use crate::{Error, Result, others};

/// Time that a running daemon has to answer and to end.
const HAND_OVER_MAX: Duration = Duration::from_secs(5);

/// Between looks whether it has ended.
const LOOK: Duration = Duration::from_millis(2);

/// Layout of what this program's BPF programs share, as noted.
pub(crate) fn own_layout() -> String {
    format!("{:016x}", erb_abi::LAYOUT)
}

/// Takes over what is at work in the run directory; see the head of this file.
pub(crate) fn take_over(
    config: &BoostConfig,
    checked: Checked,
    signals: &Signals,
) -> Result<(Boosted, Links, Datapath)> {
    let Checked {
        devices,
        sizes,
        port,
        run_dir,
        journal_folder,
        ..
    } = checked;
    run_dir.check_not_begun()?;
    let _turn = run_dir.turn()?;
    if run_dir.is_locked() && !run_dir.has_notes() {
        // Another boost is in its first moments.
        return Err(run_dir.taken());
    }
    let noted = run_dir.notes()?;
    check_same(&run_dir, &noted, &devices, port)?;
    check_mode(&run_dir, &noted, sizes)?;
    // What is at work needs a daemon all the same.
    others::warn(config, &run_dir);
    let pins = run_dir.pins();
    let links = Links::new(&pins);
    let own = config.programs.build();
    let alive = run_dir.is_locked();
    if alive {
        check_goes(config, &run_dir, &noted)?;
    }
    let is_other = noted.build != own || noted.sink != config.journal_sink;
    let replace = is_other || !links.run_pinned();
    if replace {
        let sizes = noted_sizes(&noted)?;
        stage(&pins, sizes, config.journal_sink, &config.programs)?;
    }
    let lock = take_lock(&run_dir, alive, signals).inspect_err(|_| unstage(&pins))?;
    // The old daemon may have detached before it was asked: then nothing but the lock is there.
    let mut notes = match run_dir.notes() {
        Ok(notes) => notes,
        Err(error) => {
            unstage(&pins);
            run_dir.remove(false)?;
            return Err(error);
        }
    };
    // Of a boost that was killed when it was as good as at work.
    run_dir.end_begun();
    if replace {
        replace_programs(config, &run_dir, &mut notes)?;
    }
    let datapath = Datapath::open(&pins, devices[0].ifindex)?;
    warn_of_what_stays(config, &notes, sizes);
    config.redis.to_string().clone_into(&mut notes.redis);
    note_journal(&mut notes, journal_folder)?;
    run_dir.write_notes(&notes)?;
    let boosted = Boosted {
        run_dir,
        _lock: lock,
        notes,
        taken: match replace {
            true => Taken::Replaced,
            false => Taken::Adopted,
        },
    };
    Ok((boosted, links, datapath))
}

/// The maps stay, and so does the identity of what is kept of them; an older build has noted none.
fn note_journal(notes: &mut Notes, folder: Option<PathBuf>) -> Result<()> {
    if let Some(old) = notes
        .journal_folder
        .as_ref()
        .filter(|old| folder.as_ref() != Some(old))
    {
        tracing::warn!(
            "the journal was in {}: what is there of this boost lies in the rings, too, and `erb journal discard {}` \
             deletes it",
            old.display(),
            quoted_path(old)
        );
    }
    notes.journal_folder = folder;
    if notes.journal.is_empty() {
        notes.journal = new_id()?;
    }
    Ok(())
}

/// A daemon that detaches is not to be replaced, and what it needs is another word than one at work.
fn check_stays(run_dir: &RunDir) -> Result<()> {
    // One that does not answer, or not as this build asks, is told by what follows.
    let status = request_within::<Status>(run_dir, &Request::Status, HAND_OVER_MAX);
    match status.ok().filter(|status| status.daemon == "detaching") {
        Some(status) => Err(Error::Detaching {
            run_dir: run_dir.path().to_path_buf(),
            translated: status.connections.translated,
        }),
        None => Ok(()),
    }
}

/// A daemon at work is replaced if it is of another build, or if that is asked for.
fn check_goes(config: &BoostConfig, run_dir: &RunDir, noted: &Notes) -> Result<()> {
    check_stays(run_dir)?;
    if noted.build != config.programs.build() || config.take_over {
        return Ok(());
    }
    if noted.sink == config.journal_sink {
        return Err(run_dir.taken());
    }
    Err(Error::Usage(format!(
        "a daemon is at work in {}, and its journal has another --journal-sink: with --take-over this one goes on in its \
         place, and with the other sink",
        run_dir.path().display()
    )))
}

/// The staged programs go to work, and are noted.
fn replace_programs(config: &BoostConfig, run_dir: &RunDir, notes: &mut Notes) -> Result<()> {
    let pins = run_dir.pins();
    end_absorption(&pins)?;
    if notes.sink != config.journal_sink {
        // Who is killed here leaves programs of which nobody knows for whom they answer writes.
        notes.build.clear();
        run_dir.write_notes(notes)?;
    }
    promote(&pins)?;
    config.programs.build().clone_into(&mut notes.build);
    notes.sink = config.journal_sink;
    Ok(())
}

/// Says what the arguments ask for and only a new boost can give.
fn warn_of_what_stays(config: &BoostConfig, notes: &Notes, sizes: Sizes) {
    if notes.cache_sets != sizes.cache.sets() {
        tracing::warn!(
            "the cache keeps its size of {} sets until detached",
            notes.cache_sets
        );
    }
    if config.connections.is_some() && notes.connections != sizes.table.connections() {
        tracing::warn!(
            "the table keeps its {} places for connections until detached",
            notes.connections
        );
    }
    let native = |attached: &Attached| attached.mode == AttachMode::Native;
    if config.tiers == WantedTiers::Tc && notes.attached.iter().any(native) {
        tracing::warn!("the devices keep native XDP until detached");
    }
    if config.tiers == WantedTiers::Xdp && !notes.attached.iter().all(native) {
        tracing::warn!("what the TC tier alone answers stays so until detached");
    }
}

/// What is at work must be what is wanted, and of a build that this one can go on with.
fn check_same(run_dir: &RunDir, notes: &Notes, devices: &[Device], port: u16) -> Result<()> {
    if notes.netns != netns_inode()? {
        return Err(Error::Usage(format!(
            "what is at work in {} was boosted in another network namespace: give another --run-dir, or `erb detach` there \
             first (`ip netns exec NAME erb detach`)",
            run_dir.path().display()
        )));
    }
    if notes.devices() != devices || notes.port != port {
        return Err(others::other_devices(run_dir, notes, devices, port));
    }
    if notes.layout != own_layout() {
        return Err(erb_datapath::Error::OtherLayout {
            path: run_dir.pins(),
            found: notes.layout.clone(),
            own: own_layout(),
        }
        .into());
    }
    Ok(())
}

/// A dead daemon may have left it at work, and the programs that answer writes are reached by what is replaced.
fn end_absorption(pins: &Path) -> Result<()> {
    Datapath::open(pins, 0)?.control().set_absorb(false);
    Ok(())
}

/// Whether writes are answered is decided when the programs are loaded: their marks are taken from then on.
fn check_mode(run_dir: &RunDir, notes: &Notes, sizes: Sizes) -> Result<()> {
    if notes.log_rings == sizes.log_rings {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "what is at work in {} was boosted with --mode {}: boost with the same, or `erb detach` first",
        run_dir.path().display(),
        notes.mode()
    )))
}

/// The sizes that the maps at work have.
fn noted_sizes(notes: &Notes) -> Result<Sizes> {
    let bytes = u64::from(notes.cache_sets) * erb_datapath::SET_BYTES;
    Ok(Sizes {
        cache: CacheSize::from_bytes(bytes, u64::MAX)?,
        table: TableSize::of(notes.connections, u64::MAX)?,
        log_rings: notes.log_rings,
    })
}

/// The lock of a daemon that ends for it, or is dead. With it there is no way back: what was at work stays so.
fn take_lock(run_dir: &RunDir, alive: bool, signals: &Signals) -> Result<Flock<File>> {
    signals.check()?;
    match alive {
        true => hand_over(run_dir),
        false => run_dir.lock(),
    }
}

/// Asks the running daemon to end and waits for its lock.
fn hand_over(run_dir: &RunDir) -> Result<Flock<File>> {
    let no_answer = |reason: String| Error::NoAnswer {
        run_dir: run_dir.path().to_path_buf(),
        reason,
    };
    let answer = request_within::<Value>(run_dir, &Request::HandOver, HAND_OVER_MAX);
    match answer {
        Ok(answer) => {
            if let Some(error) = answer.get("error") {
                return Err(no_answer(format!("does not hand over: {error}")));
            }
        }
        // It died meanwhile: then the lock is free.
        Err(Error::NotBoosted(_)) => {}
        Err(error) => return Err(error),
    }
    let until = Instant::now() + HAND_OVER_MAX;
    loop {
        match run_dir.lock() {
            Ok(lock) => return Ok(lock),
            Err(stuck @ Error::Stuck { .. }) => return Err(stuck),
            Err(_) if Instant::now() >= until => {
                return Err(no_answer(format!("did not end within {HAND_OVER_MAX:?}")));
            }
            Err(_) => sleep(LOOK),
        }
    }
}
