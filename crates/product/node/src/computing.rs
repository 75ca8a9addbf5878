// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Diffie-Hellman beside the loop, which would stand still for milliseconds. How many run at a time the target
//! decides; there are as many threads.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use erb_nvme::auth::{Computed, Job};
use erb_nvme::target::ConnectionId;

use crate::error::{Result, system};
use crate::wake::Wake;

/// Threads that compute.
pub(crate) struct Computing {
    /// None: they are told to end.
    jobs: Option<Sender<(ConnectionId, Job)>>,
    done: Receiver<(ConnectionId, Computed)>,
    threads: Vec<JoinHandle<()>>,
}

impl Computing {
    pub(crate) fn start(threads: usize, wake: &Wake) -> Result<Self> {
        let ((jobs, waiting), (tell, done)) = (channel(), channel());
        let waiting: Arc<Mutex<Receiver<(ConnectionId, Job)>>> = Arc::new(Mutex::new(waiting));
        let mut computing = Self {
            jobs: Some(jobs),
            done,
            threads: Vec::new(),
        };
        for _ in 0..threads {
            let (waiting, tell, wake) = (Arc::clone(&waiting), tell.clone(), wake.clone());
            let next = move || {
                waiting
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .recv()
            };
            let work = move || {
                while let Ok((id, job)) = next() {
                    if tell.send((id, job.run())).is_err() {
                        return;
                    }
                    wake.wake();
                }
            };
            let thread = Builder::new().name("erb-node-dh".to_owned()).spawn(work);
            let thread = thread.map_err(system("no thread is to be had"))?;
            computing.threads.push(thread);
        }
        Ok(computing)
    }

    pub(crate) fn begin(&self, id: ConnectionId, job: Job) {
        let jobs = self.jobs.as_ref().expect("threads end with their owner");
        jobs.send((id, job)).expect("threads wait for work");
    }

    pub(crate) fn done(&self) -> Option<(ConnectionId, Computed)> {
        self.done.try_recv().ok()
    }
}

impl Drop for Computing {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}
