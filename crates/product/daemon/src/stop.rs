// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of a detach: take everything away; and detach without a daemon.

use std::path::Path;
use std::time::{Duration, Instant};

use erb_abi::{self as abi, ControlPlane as _};
use erb_datapath::{Datapath, Device, Links, VlanOffload};
use erb_redis::reset_translated;

use crate::boost::take_away;
use crate::daemon::Daemon;
use crate::journal;
use crate::privilege::raise_reserve;
use crate::rundir::{Notes, RunDir};
use crate::sockets::destroy;
use crate::undrained::save_rest;
use crate::{Error, Result};

/// Between looks at the table while waiting without a daemon; also the retransmission timer.
const LOOK: Duration = Duration::from_millis(50);

/// How a detach without daemon ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detached {
    /// Everything is gone, but for so many SETs that are in the file that was named.
    Gone {
        /// SETs.
        kept: u64,
    },
    /// So many connections still need translation; the programs stay at work.
    Needed(u32),
    /// So many SETs were answered and are not in Redis; the programs stay at work.
    Undrained(u64),
}

/// What may be lost by a detach.
#[derive(Clone, Copy, Debug)]
pub struct Losses<'a> {
    /// Connections that need translation are reset.
    pub force: bool,
    /// What was answered in Redis's place and is not in Redis goes.
    pub discard: bool,
    /// It goes to this new file, if nothing else is in the way of the detach.
    pub keep_in: Option<&'a Path>,
}

impl Daemon {
    pub(crate) fn leave(self) -> Result<()> {
        crate::service::stops();
        let Self {
            boosted, journal, ..
        } = self;
        if let Some(journal) = journal {
            journal.remove();
        }
        take_away(&boosted.run_dir.pins(), &boosted.notes.vlan_before());
        raise_reserve();
        boosted.run_dir.remove(boosted.notes.mounted)?;
        tracing::info!("detached");
        Ok(())
    }
}

/// Detaches what a dead daemon left at work; a folder that is not ERB's stays as it is. Without `force` it waits up to
/// `wait` for the last connection that needs translation.
///
/// # Errors
/// [`Error::NotBoosted`] if there is nothing, [`Error::AlreadyBoosted`] if a daemon is at work, [`Error::CutOff`] if
/// one is that cannot be spoken to.
pub fn detach_without_daemon(
    run_dir: &RunDir,
    losses: Losses<'_>,
    wait: Duration,
) -> Result<Detached> {
    run_dir.check_not_cut_off()?;
    if !run_dir.path().exists() {
        return Err(Error::NotBoosted(run_dir.path().to_path_buf()));
    }
    crate::preflight::check_privileges()?;
    if !run_dir.is_erbs() {
        return Err(Error::NotBoosted(run_dir.path().to_path_buf()));
    }
    let _lock = run_dir.lock()?;
    let Ok(notes) = run_dir.notes() else {
        // Nothing was ever attached: a boost that died before its notes were written.
        take_away(&run_dir.pins(), &[]);
        run_dir.remove(run_dir.pins_are_own())?;
        return Ok(Detached::Gone { kept: 0 });
    };
    if notes.log_rings > 0 && !losses.discard && losses.keep_in.is_none() {
        let undrained = Datapath::open(&run_dir.pins(), 0)?.undrained();
        if undrained > 0 {
            return Ok(Detached::Undrained(undrained));
        }
    }
    let here = notes.netns == crate::rundir::netns_inode()?;
    let devices = Links::new(&run_dir.pins()).boosted_devices();
    let Some(first) = devices.first() else {
        // They are gone, with their namespace maybe: nothing passes ERB any more.
        let vlan = if here {
            notes.vlan_before()
        } else {
            Vec::new()
        };
        return leave_dead(run_dir, &notes, &vlan, losses.keep_in);
    };
    if !here {
        return Err(Error::Usage(
            "the daemon is dead: detach from the network namespace in which it was boosted \
             (`ip netns exec NAME erb detach`)"
                .to_owned(),
        ));
    }
    let needed = quiesce(run_dir, *first, losses.force, wait)?;
    if needed > 0 {
        return Ok(Detached::Needed(needed));
    }
    leave_dead(run_dir, &notes, &notes.vlan_before(), losses.keep_in)
}

/// Nothing is in the way any more: what is not in Redis is kept first, so that whatever fails loses nothing.
fn leave_dead(
    run_dir: &RunDir,
    notes: &Notes,
    vlan: &[(Device, VlanOffload)],
    keep_in: Option<&Path>,
) -> Result<Detached> {
    let kept = match keep_in {
        Some(path)
            if notes.log_rings > 0 && Datapath::open(&run_dir.pins(), 0)?.undrained() > 0 =>
        {
            save_rest(run_dir, notes, path)?
        }
        _ => 0,
    };
    take_away(&run_dir.pins(), vlan);
    journal::forget(notes);
    run_dir.remove(notes.mounted)?;
    Ok(Detached::Gone { kept })
}

/// Stops answering and waits; returns the number of connections that still need translation.
/// `ifindex` is a boosted device.
fn quiesce(run_dir: &RunDir, ifindex: u32, force: bool, wait: Duration) -> Result<u32> {
    let datapath = Datapath::open(&run_dir.pins(), ifindex)?;
    let control = datapath.control();
    control.set_absorb(false);
    control.set_stopping(control.stopping().max(abi::STOPPING_ANSWERS));
    control.set_serving(0);
    control.set_lease_until_ns(0);
    if force {
        reset_translated(&datapath.conn_views(), destroy)?;
        return Ok(0);
    }
    let until = Instant::now() + wait;
    loop {
        std::thread::sleep(LOOK);
        let report = datapath.walk()?;
        for row in report
            .rows
            .iter()
            .filter(|row| row.flags & abi::SWEEP_F_GONE != 0)
        {
            datapath.release(row, true)?;
        }
        if report.translated == 0 || Instant::now() >= until {
            return Ok(report.translated);
        }
    }
}
