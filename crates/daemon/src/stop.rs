// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Detach: stop answering, wait until no connection needs translation, take everything away.

use std::time::{Duration, Instant};

use caps::{CapSet, Capability};
use erb_abi as abi;
use erb_datapath::{ConnView, Datapath};

use crate::boost::take_away;
use crate::client_list::addresses;
use crate::clock::monotonic_ns;
use crate::daemon::{Daemon, Stage};
use crate::rundir::{Notes, RunDir};
use crate::sockets::{TcpPair, destroy};
use crate::{Error, Result};

/// After `stopping` is set, a packet that was being answered at that moment is done by now.
const SETTLE_NS: u64 = 20_000_000;

/// Fills under way when detach is asked for have this long.
const FILLS_MAX_NS: u64 = 1_000_000_000;

/// Between looks at the table while waiting without a daemon; also the retransmission timer.
const LOOK: Duration = Duration::from_millis(50);

/// How a detach without daemon ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detached {
    /// Everything is gone.
    Gone,
    /// So many connections still need translation; the programs stay at work.
    Needed(u32),
}

impl Daemon {
    /// Stops answering; with `force` resets what still needs translation and leaves at once.
    pub(crate) fn stop(&mut self, force: bool) -> Result<()> {
        let control = self.boosted.datapath.control();
        control.set_stopping(1);
        control.set_serving(0);
        control.set_admit(0);
        control.set_lease_until_ns(0);
        if self.stage == Stage::Running {
            tracing::info!("detaching");
            self.stage = Stage::Stopping {
                since_ns: monotonic_ns(),
            };
        }
        if force {
            reset_translated(&self.boosted.datapath)?;
            self.stage = Stage::Leaving;
        } else {
            self.sweep_connections()?;
        }
        Ok(())
    }

    /// Leaves when fills are done and the last sweep found nothing to translate.
    pub(crate) fn leave_if_unneeded(&mut self, since_ns: u64) {
        let now = monotonic_ns();
        let fills = self
            .feed
            .as_ref()
            .map_or(0, crate::feed::Feed::fills_in_flight);
        if self.feed.is_some() && (fills == 0 || now > since_ns + FILLS_MAX_NS) {
            self.feed = None;
            self.watch.no_feed("detaching");
        }
        if self.feed.is_none() && self.sweep.translated == 0 && now > since_ns + SETTLE_NS {
            self.stage = Stage::Leaving;
        }
    }

    pub(crate) fn leave(self) -> Result<()> {
        let Self { boosted, .. } = self;
        take_away(&boosted.run_dir.pins(), &boosted.notes.vlan_before());
        // Kept in reserve for this moment only.
        if let Err(error) = caps::raise(None, CapSet::Effective, Capability::CAP_SYS_ADMIN) {
            tracing::warn!("unmounting needs CAP_SYS_ADMIN: {error}");
        }
        boosted.run_dir.remove(boosted.notes.mounted)?;
        tracing::info!("detached");
        Ok(())
    }
}

/// Ends every connection that cannot go on without translation.
fn reset_translated(datapath: &Datapath) -> Result<u32> {
    let mut reset = 0;
    let needed = |view: &ConnView| view.in_delta != 0 || view.out_delta != 0;
    for view in datapath.conn_views().iter().filter(|view| needed(view)) {
        let (client, server) = addresses(&view.key);
        if destroy(&TcpPair { client, server }, view.cookie)? {
            reset += 1;
        }
    }
    if reset > 0 {
        tracing::warn!("{reset} connections were reset");
    }
    Ok(reset)
}

/// Detaches what a dead daemon left at work. Without `force` it waits up to `wait` for the last
/// connection that needs translation.
///
/// # Errors
/// [`Error::NotBoosted`] if there is nothing, [`Error::AlreadyBoosted`] if a daemon is at work.
pub fn detach_without_daemon(run_dir: &RunDir, force: bool, wait: Duration) -> Result<Detached> {
    if !run_dir.path().exists() {
        return Err(Error::NotBoosted(run_dir.path().to_path_buf()));
    }
    crate::preflight::check_privileges()?;
    let _lock = run_dir.lock()?;
    let Ok(notes) = run_dir.notes() else {
        // Nothing was ever attached: a boost that died before its notes were written.
        take_away(&run_dir.pins(), &[]);
        run_dir.remove(true)?;
        return Ok(Detached::Gone);
    };
    if run_dir.has_pins() {
        let needed = quiesce(run_dir, &notes, force, wait)?;
        if needed > 0 {
            return Ok(Detached::Needed(needed));
        }
    }
    take_away(&run_dir.pins(), &notes.vlan_before());
    run_dir.remove(notes.mounted)?;
    Ok(Detached::Gone)
}

/// Stops answering and waits; returns the number of connections that still need translation.
fn quiesce(run_dir: &RunDir, notes: &Notes, force: bool, wait: Duration) -> Result<u32> {
    if notes.netns != crate::rundir::netns_inode()? {
        return Err(Error::Usage(
            "the daemon is dead: detach from the network namespace in which it was boosted"
                .to_owned(),
        ));
    }
    let first = notes
        .attached
        .first()
        .map_or(0, |attached| attached.device.ifindex);
    let datapath = Datapath::open(&run_dir.pins(), first)?;
    let control = datapath.control();
    control.set_stopping(1);
    control.set_serving(0);
    control.set_lease_until_ns(0);
    if force {
        reset_translated(&datapath)?;
        return Ok(0);
    }
    let until = Instant::now() + wait;
    loop {
        std::thread::sleep(LOOK);
        datapath.tick()?;
        let report = datapath.sweep()?;
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
