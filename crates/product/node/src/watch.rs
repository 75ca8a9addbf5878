// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Watches the file of hosts while the node runs: a thread of its own reads it twice a second, whatever its file
//! system takes for that.
//!
//! Invariants:
//! 1. Each content is told once, in the order in which it was met.
//! 2. A file that cannot be read, or is none, changes nothing: it is told, and those stay who were let in last.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use crate::error::{Result, system};
use crate::hosts::HostsFile;
use crate::wake::Wake;

/// A change is met within this time.
const LOOK: Duration = Duration::from_millis(500);

/// Watches the file.
pub(crate) struct Watch {
    told: Receiver<Result<HostsFile>>,
    // The thread ends with it. A file system that does not answer is not waited for.
    _lives: Sender<()>,
}

/// What was told last.
enum Last {
    Hosts(HostsFile),
    Wrong(String),
}

fn look(path: &Path, last: &mut Last) -> Option<Result<HostsFile>> {
    match HostsFile::read(path) {
        Ok(hosts) => {
            let is_new = !matches!(last, Last::Hosts(before) if *before == hosts);
            is_new.then(|| {
                *last = Last::Hosts(hosts.clone());
                Ok(hosts)
            })
        }
        Err(error) => {
            let text = error.to_string();
            let is_new = !matches!(last, Last::Wrong(before) if *before == text);
            is_new.then(|| {
                *last = Last::Wrong(text);
                Err(error)
            })
        }
    }
}

impl Watch {
    /// From what was read of it before.
    pub(crate) fn start(path: PathBuf, read: HostsFile, wake: Wake) -> Result<Self> {
        let ((tell, told), (lives, ended)) = (channel(), channel::<()>());
        let work = move || {
            let mut last = Last::Hosts(read);
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if let Some(found) = look(&path, &mut last) {
                    if tell.send(found).is_err() {
                        return;
                    }
                    wake.wake();
                }
            }
        };
        let thread = Builder::new().name("erb-node-hosts".to_owned()).spawn(work);
        thread.map_err(system("no thread is to be had"))?;
        Ok(Self {
            told,
            _lives: lives,
        })
    }

    pub(crate) fn told(&self) -> Option<Result<HostsFile>> {
        self.told.try_recv().ok()
    }
}
