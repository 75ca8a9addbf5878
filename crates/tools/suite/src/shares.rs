// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many reads of the fast list ERB answered, by command.

use std::fmt::Write;

use serde::Serialize;

use crate::repeat::{Read, ReadTable};

/// All reads of a run.
#[derive(Debug, Serialize)]
pub struct ReadsReport {
    /// Share that must be reached.
    wanted: f64,
    /// Share of all reads that ERB answered.
    share: f64,
    /// Share of those that it may answer by its own rules.
    share_open: f64,
    sum: Read,
    commands: ReadTable,
}

impl ReadsReport {
    /// Of no read yet.
    pub fn new(wanted: f64) -> Self {
        Self {
            wanted,
            share: 0.0,
            share_open: 0.0,
            sum: Read::default(),
            commands: ReadTable::new(),
        }
    }

    /// Adds the reads of a file.
    pub fn add(&mut self, more: &ReadTable) {
        for (name, read) in more {
            self.commands.entry(name.clone()).or_default().add(read);
            self.sum.add(read);
        }
        self.share = share(self.sum.fast, self.sum.sent);
        self.share_open = share(self.sum.fast, self.sum.open());
    }

    /// Whether ERB answered as many as it was to answer.
    pub fn enough(&self) -> bool {
        self.share >= self.wanted
    }

    /// A table for people.
    pub fn add_to(&self, text: &mut String) {
        // Writing to a String cannot fail; the same below.
        let _ = writeln!(
            text,
            "{:<9}{:>8}{:>8}{:>6}{:>8}{:>6}{:>9}{:>10}{:>8}{:>8}{:>10}{:>9}{:>7}{:>8}",
            "read",
            "sent",
            "by ERB",
            "share",
            "open",
            "share",
            "at once",
            "by Redis",
            "beyond",
            "errors",
            "in MULTI",
            "tracked",
            "piped",
            "lines"
        );
        let all = ("all".to_owned(), self.sum);
        let rows = self
            .commands
            .iter()
            .map(|(name, read)| (name.clone(), *read));
        for (name, read) in rows.chain([all]) {
            let _ = writeln!(
                text,
                "{name:<9}{:>8}{:>8}{:>5.0}%{:>8}{:>5.0}%{:>9}{:>10}{:>8}{:>8}{:>10}{:>9}{:>7}{:>8}",
                read.sent,
                read.fast,
                100.0 * share(read.fast, read.sent),
                read.open(),
                100.0 * share(read.fast, read.open()),
                read.fast_at_once,
                read.slow,
                read.beyond,
                read.refused,
                read.queued,
                read.tracked,
                read.piped,
                read.lines
            );
        }
        text.push_str(
            "shares: of all reads sent, and of those open to ERB; not open are errors, reads in MULTI \
             or with tracking, and (beyond) what it cannot have: no such key, or no slot for the value\n",
        );
        if !self.enough() {
            let _ = writeln!(
                text,
                "ERB answered less than {:.0} % of the reads",
                100.0 * self.wanted
            );
        }
    }
}

fn share(fast: u64, of: u64) -> f64 {
    match of {
        0 => 0.0,
        of => fast as f64 / of as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_all_reads_that_were_sent() {
        let mut report = ReadsReport::new(0.5);
        let row = |sent, fast, refused| {
            let read = Read {
                sent,
                fast,
                refused,
                ..Read::default()
            };
            ReadTable::from([("get".to_owned(), read)])
        };
        report.add(&row(10, 5, 0));
        assert!(report.enough());
        report.add(&row(1, 0, 1));
        assert!(!report.enough());
        let mut text = String::new();
        report.add_to(&mut text);
        assert!(
            text.contains("get            11       5   45%      10   50%"),
            "{text}"
        );
        assert!(text.contains("less than 50 %"), "{text}");
    }
}
