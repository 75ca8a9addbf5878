// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets' ways through the stages: which outcomes are counted on which of them.
//!
//! # Invariants
//! 1. Every outcome of the kind `refused` is on one way, and no outcome on two.
//! 2. Each way is drawn in the dashboard, under its id.

use std::collections::HashMap;

use erb_report::Counter;

/// One way.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// As the picture calls it.
    pub id: &'static str,
    /// What goes this way, one sentence.
    pub text: &'static str,
    /// The outcomes that are counted on it.
    pub outcomes: &'static [&'static str],
}

const fn flow(id: &'static str, text: &'static str, outcomes: &'static [&'static str]) -> Flow {
    Flow { id, text, outcomes }
}

/// All ways, in the order in which a packet may come to them.
#[rustfmt::skip]
pub const FLOWS: &[Flow] = &[
    flow("plain", "Packets of connections without state, or of others: they pass as they came",
        &["UP_UNTRACKED", "UP_ELSEWHERE", "UP_FOREIGN", "UP_UNREAD", "UP_FEED", "CONN_TABLE_FULL", "CONN_SHARE_FULL", "CONN_UNSEEN"]),
    flow("to_tc", "Packets that XDP leaves to TC, as the kernel must get their acknowledgement",
        &["TO_TC"]),
    flow("splice_refused", "Packets that TCP, or their connection's state, does not let be answered at this moment",
        &["TC_MERGED", "ODD_IP_OPTIONS", "ODD_FRAGMENT", "ODD_FLAGS", "ODD_ECN", "ODD_OPTIONS", "ODD_URGENT", "LONG_PACKET",
          "SOCK_NONE", "SOCK_LISTEN", "SOCK_TIME_WAIT", "SOCK_CLOSING", "SOCK_COOKIE_ZERO", "SOCK_OTHER_COOKIE",
          "REFUSE_NEW", "REFUSE_BYPASS", "REFUSE_USER", "REFUSE_CLOSING", "REFUSE_NO_EGRESS", "REFUSE_ORDER", "REFUSE_KERNEL_BEHIND",
          "REFUSE_OWED", "REFUSE_UNANSWERED", "REFUSE_ACK", "REFUSE_PAWS", "REFUSE_WINDOW_CLIENT", "REFUSE_WINDOW_STALE",
          "REFUSE_WINDOW_SERVER", "REFUSE_MSS", "REFUSE_REPLAY_FULL", "REFUSE_HEARTBEAT", "REFUSE_RACE"]),
    flow("gate_refused", "Packets that are not answered as nobody is: gate or fence is closed, the lease is over, or serving is off",
        &["REFUSE_NOT_SERVING", "REFUSE_LEASE", "REFUSE_FENCE", "REFUSE_RIGHTS", "ABSORB_SHUT", "ABSORB_MARKED", "ABSORB_FULL", "ABSORB_LATE", "ABSORB_ASKED"]),
    flow("command_refused", "Packets with commands that are left to Redis: writes, and what is not fast",
        &["REFUSE_COMMAND", "REFUSE_COMMANDS", "REFUSE_INCOMPLETE", "ABSORB_FORM"]),
    flow("cache_refused", "Packets whose keys are not in the cache, or may not be answered from it",
        &["REFUSE_MISS", "REFUSE_MARKED", "REFUSE_SET_CHANGED", "REFUSE_EXPIRED", "REFUSE_ASIDE", "REFUSE_ABSENT"]),
    flow("hit_xdp", "Packets answered in XDP", &["FAST_PACKET"]),
    flow("hit_tc", "Packets answered in TC", &["FAST_PACKET_TC"]),
    flow("again", "Answers that are sent again, as the client or the timer asks for them",
        &["REPLAY_REQUEST", "REPLAY_ACK", "REPLAY_TIMEOUT"]),
    flow("up", "Packets with payload, translated, on their way up to TCP and Redis", &["UP_TRANSLATED"]),
    flow("reply", "Packets of the kernel, Redis's replies among them, on their way out by TC",
        &["EGRESS_TRANSLATED", "EGRESS_PLAIN"]),
];

/// How many packets have gone each way, since the data path was loaded.
#[must_use]
pub fn counts(counters: &[Counter]) -> Vec<(&'static str, u64)> {
    let counted: HashMap<&str, u64> = counters
        .iter()
        .map(|counter| (counter.name.as_str(), counter.count))
        .collect();
    let sum = |flow: &Flow| {
        let each = flow.outcomes.iter().filter_map(|name| counted.get(name));
        each.sum()
    };
    FLOWS.iter().map(|flow| (flow.id, sum(flow))).collect()
}
