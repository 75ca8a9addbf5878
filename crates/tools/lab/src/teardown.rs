// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Taking a lab down, whatever state it is in.
//!
//! 1. Nothing is ended but processes whose pid and start time were noted, and processes inside
//!    the lab's own namespaces.
//! 2. Every step is tried even if an earlier one failed; the first error is told at the end.
//! 3. It depends on names only, not on a readable state file, so it also works after a crash.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Error, Result};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use serde::{Deserialize, Serialize};

use crate::erb::Erb;
use crate::lab::require_root;
use crate::netns;
use crate::process::{self, Process};
use crate::state::{End, LabName, LabState, RUN_ROOT};
use crate::topology;

/// How long the kernel may take to forget processes that have ended.
const GONE_WAIT: Duration = Duration::from_secs(2);
/// Rounds of looking for processes in the namespaces: one may fork while we look.
const SWEEPS_MAX: u32 = 5;

/// What `down` did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownReport {
    /// The lab's name.
    pub name: LabName,
    /// Whether there was anything to remove.
    pub was_there: bool,
    /// Processes that were ended.
    pub ended: Vec<Process>,
    /// Namespaces that were removed.
    pub namespaces: Vec<String>,
}

/// Steps that went wrong; the first is told, the rest follow it.
#[derive(Default)]
struct Troubles(Vec<Error>);

impl Troubles {
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.0.push(error)).ok()
    }

    fn into_result(self) -> Result<()> {
        let mut all = self.0.into_iter();
        let Some(first) = all.next() else {
            return Ok(());
        };
        let more: Vec<String> = all.map(|error| format!("{error:#}")).collect();
        if more.is_empty() {
            return Err(first);
        }
        Err(first.context(format!("more went wrong: {}", more.join("; "))))
    }
}

/// Removes lab `name`: processes, devices, namespaces, mounts, files. Does nothing if there is
/// none of it.
pub fn down(name: &LabName, erb: &Erb) -> Result<DownReport> {
    require_root()?;
    let mut troubles = Troubles::default();
    // A damaged file is no trouble: names tell what is to go, namespaces which processes.
    let state = LabState::load(name).ok().flatten();
    let namespaces: Vec<String> = [End::Client, End::Server, End::Middle]
        .map(|end| name.namespace(end))
        .into_iter()
        .filter(|namespace| netns::exists(namespace))
        .collect();
    let was_there = !namespaces.is_empty() || name.run_dir().exists() || name.redis_dir().exists();
    let mut ended = Vec::new();
    if let Some(state) = &state {
        if state.mode.is_boosted() {
            let detached = erb.boost_of(state).detach();
            troubles.note(detached.context("cannot detach ERB"));
        }
        end_all(state.processes.iter().rev(), &mut ended, &mut troubles);
    }
    for namespace in &namespaces {
        end_inside(namespace, &mut ended, &mut troubles);
    }
    process::await_gone(&ended, GONE_WAIT);
    for namespace in &namespaces {
        // Devices first: TCP retransmissions outlive a namespace for minutes and keep it busy.
        troubles.note(topology::remove_devices(namespace));
        troubles.note(netns::remove(namespace));
    }
    if was_there {
        troubles.note(remove_files(name));
    }
    troubles.into_result().with_context(|| {
        format!(
            "lab `{}` is not wholly removed; `erb lab down` may be repeated",
            name.as_str()
        )
    })?;
    Ok(DownReport {
        name: name.clone(),
        was_there,
        ended,
        namespaces,
    })
}

fn end_all<'a>(
    processes: impl Iterator<Item = &'a Process>,
    ended: &mut Vec<Process>,
    troubles: &mut Troubles,
) {
    for process in processes {
        if troubles.note(process.end()) == Some(true) {
            ended.push(process.clone());
        }
    }
}

/// Ends what still runs in one of the lab's namespaces: started with `exec`, or by an `up` that
/// crashed before it could note it.
fn end_inside(namespace: &str, ended: &mut Vec<Process>, troubles: &mut Troubles) {
    // A bare file (a half-finished create) has an inode number of another filesystem, which may
    // be the number of a namespace that is not ours.
    if !netns::is_namespace(namespace) {
        return;
    }
    let Some(inode) = troubles.note(netns::inode(namespace)) else {
        return;
    };
    for _ in 0..SWEEPS_MAX {
        let inside = |pid| netns::inode_of_process(pid) == Some(inode);
        let Some(found) = troubles.note(process::find("inside the lab", inside)) else {
            return;
        };
        if found.is_empty() {
            return;
        }
        end_all(found.iter(), ended, troubles);
    }
}

fn remove_files(name: &LabName) -> Result<()> {
    let run_dir = name.run_dir();
    let bpf_dir = run_dir.join("bpf");
    match umount2(&bpf_dir, MntFlags::MNT_DETACH) {
        // EINVAL: not mounted; ENOENT: not even made.
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
        Err(error) => {
            return Err(error).with_context(|| format!("cannot unmount {}", bpf_dir.display()));
        }
    }
    remove_tree(&name.redis_dir())?;
    remove_tree(&run_dir)?;
    // Parents go with the last lab; other labs, or other parts of ERB, keep them.
    for parent in [Path::new(RUN_ROOT), Path::new("/run/erb")] {
        if fs::remove_dir(parent).is_err() {
            break;
        }
    }
    Ok(())
}

fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
