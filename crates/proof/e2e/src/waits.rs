// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a test waits for at its lab: that ERB is at work, refuses, answers a key, settles. A wait that ends in
//! vain is out of patience.

use std::thread::sleep;
use std::time::Duration;

use erb_check::net::Conn;
use erb_steady::must_come;

use crate::calls;
use crate::lab::{STATE_WAIT, TestLab, wait};
use crate::status::{Counters, brief};

/// What may close the fast path for no fault of ERB's is over by then.
const MOMENT: Duration = Duration::from_secs(5);
/// After this tables are empty again: a TIME_WAIT, and the sweeps after it.
const TABLES_WAIT: Duration = Duration::from_secs(90);
/// A fill takes about two round trips after the first miss.
const FILL: Duration = Duration::from_millis(3);

impl TestLab {
    /// Waits until new connections can become fast and fast answers are given.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn wait_admitting(&self) {
        wait(STATE_WAIT, || {
            let s = self.try_status()?;
            let good = s.serving && s.admitting && s.fence == 0 && s.lease_left_ms > 0;
            good.then_some(())
                .ok_or_else(|| format!("not at work: {}", brief(&s)))
        });
    }

    /// Waits until the status says that ERB does not serve, for a reason with `word` in it.
    ///
    /// # Panics
    /// If it goes on serving, or says something else.
    pub fn wait_refusing(&self, word: &str, limit: Duration) {
        wait(limit, || {
            let s = self.try_status()?;
            let good = !s.serving && s.not_serving.iter().any(|why| why.contains(word));
            good.then_some(())
                .ok_or_else(|| format!("no refusal about {word:?}: {}", brief(&s)))
        });
    }

    /// Reads `key` until ERB answers it, when what a SET said is over: it is cached and `conn` is fast.
    ///
    /// # Panics
    /// If it is not answered fast soon.
    pub fn heat(&self, conn: &mut Conn, key: &str) {
        wait(STATE_WAIT, || {
            for _ in 0..4 {
                calls::get(conn, key);
                sleep(FILL);
            }
            sleep(20 * FILL);
            let before = self.counters();
            calls::get(conn, key);
            let after = self.counters();
            if after.since(&before, "FAST_GET") > 0 {
                return Ok(());
            }
            let (brief, moved) = (brief(&self.status()), after.moved(&before));
            Err(format!("{key} never hit: {brief}; counted {moved}"))
        });
    }

    /// ERB answers reads of `key` on `conn`, but for a moment (a lease that came late on a machine that
    /// does other things).
    ///
    /// # Panics
    /// With `what` and why not, if none of the reads within some seconds was answered.
    pub fn assert_fast(&self, conn: &mut Conn, key: &str, what: &str) {
        wait(MOMENT, || {
            let before = self.counters();
            for _ in 0..5 {
                calls::get(conn, key);
            }
            let after = self.counters();
            if after.since(&before, "FAST_GET") > 0 {
                return Ok(());
            }
            let (brief, moved) = (brief(&self.status()), after.moved(&before));
            Err(format!("{what}: {key} not hit: {brief}; counted {moved}"))
        });
    }

    /// Waits until nothing is under way, then checks what must hold in every quiet moment.
    ///
    /// # Panics
    /// If fence or marks stay, or an invariant broke.
    pub fn assert_settled(&self) -> Counters {
        self.assert_settled_within(STATE_WAIT)
    }

    /// As [`TestLab::assert_settled`], with a time of one's own.
    ///
    /// # Panics
    /// If fence or marks stay, or an invariant broke.
    pub fn assert_settled_within(&self, limit: Duration) -> Counters {
        // What stays held for so long is no question of pace.
        let counters = must_come(limit, || {
            let status = self.try_status()?;
            let c = Counters::of(&status);
            let even = c.get("MARK_TAKEN") == c.get("MARK_RELEASED")
                && c.get("FENCE_TAKEN") == c.get("FENCE_RELEASED");
            if status.fence == 0 && even {
                Ok(c)
            } else {
                Err(format!(
                    "marks or fence stay: {} {}",
                    brief(&status),
                    c.text("MARK FENCE")
                ))
            }
        });
        assert_eq!(counters.get("INVARIANT"), 0, "invariants broken");
        counters
    }

    /// Waits until no connection is tracked any more.
    ///
    /// # Panics
    /// If entries are left long after that.
    pub fn assert_tables_empty(&self) {
        wait(TABLES_WAIT, || {
            let status = self.try_status()?;
            if status.connections.total == 0 {
                Ok(())
            } else {
                Err(brief(&status))
            }
        });
    }
}
