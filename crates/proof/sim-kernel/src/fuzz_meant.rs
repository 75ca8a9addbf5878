// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What two connections must have in common that were told the same stream in other pieces.

/// What of a `scan_request` has a meaning where the scanner stands. The rest is what an earlier command has left there, by
/// whichever way it was read.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ScanState {
    state: u8,
    /// Value, digits and sign of a count or a length that has begun. Of an argument that is being read, its length.
    number: Option<(u32, u8, u8)>,
    /// Arguments still to come, of how many.
    args: Option<(u32, u32)>,
    /// Bytes of an argument that are still to come.
    skip: u32,
    /// The command's name, until its class is known.
    name: Option<(u8, [u8; erb_abi::NAME_BYTES_MAX as usize])>,
    /// The same bytes of another argument, while they are read.
    sub: Option<(u8, [u8; erb_abi::NAME_BYTES_MAX as usize])>,
    /// Hash so far of an argument that may be a key, and the word begun.
    hash: Option<(u64, u64, u8)>,
    /// What the command takes when it is whole: whether anything, and which but marks or a plain share in place of
    /// them. A plain share it is if there are more marks than one packet may bring: this depends on the cut.
    takes: (bool, u32),
    /// Arguments that are keys: the next, from which on or up to which, by how many.
    keys: Option<(u32, u32, u16)>,
}

impl ScanState {
    pub(crate) fn of(conn: &erb_abi::handler_conn) -> Self {
        let scan = &conn.in_;
        let state = u32::from(scan.state);
        let body = (erb_abi::RQ_BODY..=erb_abi::RQ_BODY_LF).contains(&state);
        let mut meant = Self {
            state: scan.state,
            number: match state {
                erb_abi::RQ_ARGC | erb_abi::RQ_ARGC_LF | erb_abi::RQ_LEN | erb_abi::RQ_LEN_LF => {
                    Some((scan.number, scan.number_len, scan.number_neg))
                }
                _ => body.then_some((scan.number, 0, 0)),
            },
            ..Self::default()
        };
        let name = Some((scan.name_len, scan.name));
        match state {
            erb_abi::RQ_INLINE_NAME | erb_abi::RQ_INLINE_REST => return Self { name, ..meant },
            erb_abi::RQ_IDLE
            | erb_abi::RQ_ARGC
            | erb_abi::RQ_ARGC_LF
            | erb_abi::RQ_INLINE_SPACE
            | erb_abi::RQ_LOST => return meant,
            _ => {}
        }
        let index = scan.args_total - scan.args_left;
        meant.args = Some((scan.args_left, scan.args_total));
        meant.skip = scan.skip;
        if index == 0 && !body {
            return meant;
        }
        meant.name = name.filter(|_| index < 2);
        let pending = u32::from(scan.pending);
        meant.takes = (
            pending > 0 || conn.half > 0,
            pending & !erb_abi::PENDING_SETTLE,
        );
        if index > 0 && body {
            meant.sub = Some((scan.sub_len, scan.sub));
            meant.hash = (scan.has_key > 0).then_some((scan.hash, scan.word, scan.word_len));
        }
        if scan.key_next > 0 {
            let bound = match scan.key_first {
                0 => scan.key_last,
                first => first.into(),
            };
            meant.keys = Some((scan.key_next, bound, scan.key_step));
        }
        meant
    }
}

/// The marks that a connection's ring holds, (request's number, set); behind them those of a command that is not whole, (tag
/// of the key, set). A share of the fence is a mark too. None where one share stands for whatever there is to hold: when
/// it does depends on the cut.
pub(crate) fn marks_of(conn: &erb_abi::conn) -> Option<(Vec<(u32, u32)>, usize)> {
    let one_share = erb_abi::CONN_F_OVERFLOW | erb_abi::CONN_F_FENCE_PROOF;
    if u32::from(conn.flags) & one_share != 0 {
        return None;
    }
    let held = conn.h.mark_head.wrapping_sub(conn.h.mark_tail);
    let marks = (0..held + u32::from(conn.h.half)).map(|index| {
        let at = conn.h.mark_tail.wrapping_add(index) % erb_abi::MARKS_IN_FLIGHT;
        let mark = &conn.h.marks[at as usize];
        let is_share = mark.set >= erb_abi::EFFECT_EXEC;
        // Whether its value waits too depends on the cut: only what one packet brings whole is taken up.
        let set = if is_share {
            mark.set
        } else {
            mark.set & erb_abi::MARK_SET
        };
        (mark.request, set)
    });
    Some((marks.collect(), held as usize))
}
