// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a connection is not answered: rows of `slow.def`, and which of them an entry says.

use crate::{
    CONN_BYPASS, CONN_F_CLOSING, CONN_F_EGRESS_SEEN, CONN_FAST, CONN_K_LISTENS, CONN_K_TRIAL,
    CONN_NEW, ConnView, SLOW, SLOW_CLOSING, SLOW_LISTENS, SLOW_NEW, SLOW_NO_EGRESS, SLOW_NONE,
    SLOW_OLDER, SLOW_RIGHTS, SLOW_TRIAL, SLOW_VERSION, slow_why,
};

/// One row of `slow.def`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slow {
    /// Its number: `enum slow_why`, or of a command's class `enum erb_cmd_class`.
    pub why: slow_why,
    /// Its name, for programs.
    pub name: &'static str,
    /// Its sentence.
    pub text: &'static str,
}

/// An entry that says no reason: as of a test, or of programs of another build.
const UNKNOWN: Slow = Slow {
    why: SLOW_NONE,
    name: "unknown",
    text: "no reason is noted",
};

impl Slow {
    /// The row of a number.
    #[must_use]
    pub fn of(why: slow_why) -> &'static Self {
        SLOW.iter().find(|row| row.why == why).unwrap_or(&UNKNOWN)
    }
}

impl ConnView {
    /// Why it is not answered, while `control.rights` is this; none: it may be.
    #[must_use]
    pub fn slow(&self, rights: u32) -> Option<&'static Slow> {
        let has = |flag: u32| u32::from(self.flags) & flag != 0;
        let keeps = |bit: u32| u32::from(self.kept) & bit != 0;
        let why = match u32::from(self.state) {
            _ if has(CONN_F_CLOSING) => SLOW_CLOSING,
            CONN_FAST if self.rights != rights => SLOW_RIGHTS,
            CONN_FAST if self.resp < 2 => SLOW_VERSION,
            CONN_FAST if !has(CONN_F_EGRESS_SEEN) => SLOW_NO_EGRESS,
            CONN_FAST => return None,
            CONN_NEW => SLOW_NEW,
            CONN_BYPASS => u32::from(self.slow),
            _ if keeps(CONN_K_TRIAL) => SLOW_TRIAL,
            _ if keeps(CONN_K_LISTENS) => SLOW_LISTENS,
            _ if self.slow == 0 => SLOW_OLDER,
            _ => u32::from(self.slow),
        };
        Some(Slow::of(why))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::{
        CMD_CLASS_MAX, CMD_MULTI, CONN_OLD, SLOW_BEFORE, SLOW_MAX, SLOW_TRIAL_FAILED, SLOW_USER,
        conn, erb_conn_state,
    };

    #[test]
    fn every_reason_has_a_number_a_name_and_a_sentence() {
        let names: HashSet<_> = SLOW.iter().map(|row| row.name).collect();
        let numbers: HashSet<_> = SLOW.iter().map(|row| row.why).collect();
        assert_eq!((names.len(), numbers.len()), (SLOW.len(), SLOW.len()));
        for number in SLOW_BEFORE + 1..SLOW_MAX {
            assert_eq!(Slow::of(number).why, number);
        }
        for row in &SLOW {
            assert!(row.why != SLOW_NONE && row.why < SLOW_MAX, "{row:?}");
            assert!(!row.text.is_empty() && !row.text.ends_with('.'), "{row:?}");
        }
        assert_eq!(Slow::of(CMD_MULTI).name, "multi");
        assert!(Slow::of(CMD_CLASS_MAX - 1).why < SLOW_BEFORE + 1);
    }

    #[test]
    fn an_entry_says_why_it_is_not_answered() {
        let view = |state: erb_conn_state, change: fn(&mut conn)| {
            let mut entry = conn {
                state: state as u8,
                flags: CONN_F_EGRESS_SEEN as u8,
                ..conn::default()
            };
            (entry.h.rights, entry.h.resp) = (7, 2);
            change(&mut entry);
            ConnView::from(&entry).slow(7).map(|slow| slow.why)
        };
        assert_eq!(view(CONN_FAST, |_| {}), None);
        for (state, change, why) in [
            (
                CONN_FAST,
                (|entry| entry.h.rights = 6) as fn(&mut conn),
                SLOW_RIGHTS,
            ),
            (CONN_FAST, |entry| entry.h.resp = 0, SLOW_VERSION),
            (CONN_FAST, |entry| entry.flags = 0, SLOW_NO_EGRESS),
            (
                CONN_FAST,
                |entry| entry.flags |= CONN_F_CLOSING as u8,
                SLOW_CLOSING,
            ),
            (CONN_NEW, |_| {}, SLOW_NEW),
            (
                CONN_BYPASS,
                |entry| entry.h.slow = CMD_MULTI as u8,
                CMD_MULTI,
            ),
            (
                CONN_BYPASS,
                |entry| entry.h.slow = SLOW_USER as u8,
                SLOW_USER,
            ),
            (CONN_BYPASS, |_| {}, SLOW_NONE),
            (CONN_OLD, |_| {}, SLOW_OLDER),
            (
                CONN_OLD,
                |entry| entry.h.kept = CONN_K_TRIAL as u16,
                SLOW_TRIAL,
            ),
            (
                CONN_OLD,
                |entry| entry.h.kept = CONN_K_LISTENS as u16,
                SLOW_LISTENS,
            ),
            (
                CONN_OLD,
                |entry| entry.h.slow = SLOW_TRIAL_FAILED as u8,
                SLOW_TRIAL_FAILED,
            ),
        ] {
            assert_eq!(view(state, change), Some(why));
        }
    }
}
