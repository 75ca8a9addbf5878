// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands by name: what Redis executed, and what ERB answered.

use serde::{Deserialize, Serialize};

/// A command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandLine {
    /// Its name; `other`: of all that ERB does not know by name, modules' among them.
    pub command: String,
    /// Answered by ERB.
    pub answered: u64,
    /// Executed by Redis, for others than the daemon; none: no daemon has told.
    pub to_redis: Option<u64>,
}

impl CommandLine {
    /// Share of them that ERB answered; none: none came, or it is not known how many did.
    #[must_use]
    pub fn answered_share(&self) -> Option<f64> {
        let all = self.answered + self.to_redis?;
        #[allow(clippy::cast_precision_loss, reason = "a share for people")]
        (all > 0).then(|| self.answered as f64 / all as f64)
    }
}

/// Commands by name, and the processor time that Redis was spared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandsReport {
    /// Counted since so many seconds; none: since the data path was loaded, and of answers alone.
    pub since_s: Option<u64>,
    /// Commands that came at least once.
    pub rows: Vec<CommandLine>,
    /// What a command costs Redis besides what it runs for, ns, an estimate; none: Redis was not seen at work yet.
    pub overhead_ns: Option<u64>,
    /// Processor time of Redis that answers saved, ms, an estimate.
    pub cpu_saved_ms: u64,
}
