// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection as Redis keeps it: input, parser state, output, modes.

use std::collections::{BTreeSet, VecDeque};

use crate::types::{Bytes, ClientId, Peer};

/// Arguments of a command, the name first.
pub(crate) type Argv = Vec<Bytes>;

/// Why a client waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// BLPOP, BRPOPLPUSH.
    List {
        db: u32,
        keys: Vec<Bytes>,
        /// Where BRPOPLPUSH moves what comes.
        to: Option<Bytes>,
        until_ms: Option<u64>,
    },
    /// CLIENT PAUSE: the command runs again when the pause ends.
    Postponed(Argv),
}

/// A key under WATCH.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) db: u32,
    pub(crate) key: Bytes,
    /// It had expired already when WATCH came: its deletion is no change.
    pub(crate) expired: bool,
}

/// CLIENT TRACKING.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracking {
    pub(crate) on: bool,
    pub(crate) bcast: bool,
    pub(crate) noloop: bool,
    pub(crate) redirect: Option<ClientId>,
    pub(crate) broken_redirect: bool,
    pub(crate) prefixes: BTreeSet<Bytes>,
}

/// CLIENT REPLY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Muted {
    pub(crate) off: bool,
    pub(crate) skip: bool,
    pub(crate) skip_next: bool,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) peer: Peer,
    pub(crate) name: Bytes,
    pub(crate) resp: u8,
    pub(crate) db: u32,
    /// Bytes read and not dropped yet (`querybuf`); `taken` of them are parsed (`qb_pos`).
    pub(crate) query: Vec<u8>,
    pub(crate) taken: usize,
    /// Arguments still to come (`multibulklen`) and the length of the next (`bulklen`).
    pub(crate) args_left: usize,
    pub(crate) bulk_length: Option<usize>,
    pub(crate) argv: Argv,
    /// Output of this turn, and what has left for the kernel.
    pub(crate) out: Vec<u8>,
    pub(crate) sent: Vec<u8>,
    pub(crate) multi: Option<Vec<Argv>>,
    pub(crate) dirty_cas: bool,
    pub(crate) dirty_exec: bool,
    pub(crate) in_exec: bool,
    pub(crate) watched: Vec<Watched>,
    pub(crate) tracking: Tracking,
    pub(crate) muted: Muted,
    pub(crate) channels: BTreeSet<Bytes>,
    pub(crate) patterns: VecDeque<Bytes>,
    pub(crate) monitor: bool,
    pub(crate) no_evict: bool,
    pub(crate) authenticated: bool,
    pub(crate) user: String,
    pub(crate) blocked: Option<Blocked>,
    pub(crate) close_after_reply: bool,
    pub(crate) close_now: bool,
    pub(crate) eof: bool,
    /// A command that CLIENT PAUSE held back and that runs next.
    pub(crate) postponed: Option<Argv>,
    /// It killed itself: closes after this reply.
    pub(crate) close_after_reply_at_end: bool,
    /// Errors answered so far.
    pub(crate) errors: u64,
    /// Pushes are being written: REPLY OFF does not hold them back.
    pub(crate) pushing: bool,
    pub(crate) created_ns: u64,
    pub(crate) last_seen_ns: u64,
    pub(crate) last_command: String,
}

impl Client {
    pub(crate) fn new(id: ClientId, peer: Peer, now_ns: u64) -> Self {
        Self {
            id,
            peer,
            name: Bytes::from(&b""[..]),
            resp: 2,
            db: 0,
            query: Vec::new(),
            taken: 0,
            args_left: 0,
            bulk_length: None,
            argv: Vec::new(),
            out: Vec::new(),
            sent: Vec::new(),
            multi: None,
            dirty_cas: false,
            dirty_exec: false,
            in_exec: false,
            watched: Vec::new(),
            tracking: Tracking::default(),
            muted: Muted::default(),
            channels: BTreeSet::new(),
            patterns: VecDeque::new(),
            monitor: false,
            no_evict: false,
            authenticated: true,
            user: crate::acl::DEFAULT.to_owned(),
            blocked: None,
            close_after_reply: false,
            close_now: false,
            eof: false,
            postponed: None,
            close_after_reply_at_end: false,
            errors: 0,
            pushing: false,
            created_ns: now_ns,
            last_seen_ns: now_ns,
            last_command: "NULL".to_owned(),
        }
    }

    pub(crate) fn subscriptions(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    /// RESP2 in subscribe mode: only a few commands are allowed.
    pub(crate) fn in_pubsub(&self) -> bool {
        self.subscriptions() > 0
    }
}
