// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What all threads count together.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dax_send::{Counts, Reason, Sender};
use erb_report::{SentBytes, Serve};

use crate::answer::STATUSES;

/// The counters of all threads.
#[derive(Debug, Default)]
pub struct Counters {
    pub connections: AtomicU64,
    pub refused: AtomicU64,
    pub reset_changed: AtomicU64,
    pub reset_slow: AtomicU64,
    answers: [AtomicU64; STATUSES.len()],
    causes: Mutex<BTreeMap<String, u64>>,
}

impl Counters {
    pub fn answered(&self, status: u16) {
        let place = STATUSES.iter().position(|(number, _)| *number == status);
        let place = place.expect("every status that is answered has its words");
        self.answers[place].fetch_add(1, Relaxed);
    }

    /// The kernel copies what a connection sends.
    pub fn kernel_copies(&self, cause: &str) {
        let mut causes = self.causes.lock().unwrap_or_else(PoisonError::into_inner);
        *causes.entry(cause.to_owned()).or_default() += 1;
    }

    /// All of it, with what the sender has counted.
    pub fn report(&self, address: &str, threads: usize, sender: &Sender) -> Serve {
        let counts = sender.counts();
        let answers = STATUSES.iter().zip(&self.answers);
        let answers = answers.map(|((status, _), count)| (*status, count.load(Relaxed)));
        Serve {
            address: address.to_owned(),
            threads,
            connections: self.connections.load(Relaxed),
            refused: self.refused.load(Relaxed),
            answers: answers.filter(|(_, count)| *count > 0).collect(),
            reset_changed: self.reset_changed.load(Relaxed),
            reset_slow: self.reset_slow.load(Relaxed),
            sent_bytes: sent(&counts),
            kernel_copies: self
                .causes
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            pinned_bytes: counts.pinned_bytes,
            pinned_bytes_peak: counts.pinned_bytes_peak,
            guard: sender.guard().map(|guard| guard.process()),
            lacks: sender.lacks(),
        }
    }
}

fn sent(counts: &Counts) -> SentBytes {
    let copied = Reason::ALL.iter().zip(counts.copied_bytes);
    let copied = copied.filter(|(_, bytes)| *bytes > 0);
    SentBytes {
        zero_copy: counts.zero_copy_bytes,
        sendfile: counts.sendfile_bytes,
        kernel_copied: counts.kernel_copied_bytes,
        copied: copied
            .map(|(reason, bytes)| (reason.name().to_owned(), bytes))
            .collect(),
    }
}
