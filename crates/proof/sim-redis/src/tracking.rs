// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Server-assisted caching, as `tracking.c` of Redis 7.0 does it.
//!
//! Invariants:
//! 1. Keys for broadcasting clients are collected per prefix during a turn and leave at its end, in
//!    the order of their bytes, each once; with a key goes who changed it last: NOLOOP keeps it from
//!    that client.
//! 2. A flush (null) leaves at once, to the client that runs the command after its reply. So does a key that
//!    a client has read, to that client, and nobody remembers it from then on. There NOLOOP keeps back
//!    whatever changes while that client's command runs, such as what it finds expired.

use crate::cast::Signed;
use std::collections::BTreeSet;

use crate::client::{Argv, Client};
use crate::server::Redis;
use crate::table::Command;
use crate::types::{Bytes, ClientId};

fn send(client: &mut Client, keys: Option<&[&Bytes]>) {
    // A RESP2 client gets these by redirection only.
    if client.resp == 2 && !client.in_pubsub() {
        return;
    }
    let was = std::mem::replace(&mut client.pushing, true);
    if client.resp == 2 {
        client.add_push(3);
        client.add_bulk(b"message");
        client.add_bulk(b"__redis__:invalidate");
    } else {
        client.add_push(2);
        client.add_bulk(b"invalidate");
    }
    match keys {
        None if client.resp == 2 => client.add_null_array(),
        None => client.add_null(),
        Some(keys) => {
            client.add_array(keys.len());
            for key in keys {
                client.add_bulk(key);
            }
        }
    }
    client.pushing = was;
}

impl Redis {
    fn send_invalidation(&mut self, id: ClientId, keys: Option<&[&Bytes]>) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let Some(target) = client.tracking.redirect else {
            return send(client, keys);
        };
        if self.clients.contains_key(&target) {
            if let Some(target) = self.clients.get_mut(&target) {
                send(target, keys);
            }
        } else if let Some(client) = self.clients.get_mut(&id) {
            client.tracking.broken_redirect = true;
            if client.resp == 3 {
                let was = std::mem::replace(&mut client.pushing, true);
                client.add_push(2);
                client.add_bulk(b"tracking-redir-broken");
                client.add_int(target.signed());
                client.pushing = was;
            }
        }
    }

    /// `trackingInvalidateKey`.
    pub(crate) fn track_change(&mut self, by: Option<ClientId>, key: &Bytes) {
        for (prefix, keys) in &mut self.broadcast {
            if key.starts_with(prefix) {
                keys.insert(key.clone(), by);
            }
        }
        let Some(ids) = self.tracked.remove(key) else {
            return;
        };
        for id in ids {
            let Some(client) = self.clients.get(&id) else {
                continue;
            };
            let tracking = &client.tracking;
            let is_own = self.executing == Some(id);
            if !tracking.on || tracking.bcast || (tracking.noloop && is_own) {
                continue;
            }
            if is_own {
                self.pending_own.push(Some(key.clone()));
            } else {
                self.send_invalidation(id, Some(&[key]));
            }
        }
    }

    /// `trackingInvalidateKeysOnFlush`.
    pub(crate) fn track_flush(&mut self) {
        let ids: Vec<ClientId> = self
            .clients
            .values()
            .filter(|client| client.tracking.on)
            .map(|client| client.id)
            .collect();
        for id in ids {
            if self.executing == Some(id) {
                self.pending_own.push(None);
            } else {
                self.send_invalidation(id, None);
            }
        }
        self.tracked.clear();
    }

    /// `trackingHandlePendingKeyInvalidations`: after the reply of the client's own command.
    pub(crate) fn send_own_invalidations(&mut self, id: ClientId) {
        for key in std::mem::take(&mut self.pending_own) {
            match key {
                Some(key) => self.send_invalidation(id, Some(&[&key])),
                None => self.send_invalidation(id, None),
            }
        }
    }

    /// `trackingBroadcastInvalidationMessages`: at the end of a turn.
    pub(crate) fn send_broadcasts(&mut self) {
        let mut broadcast = std::mem::take(&mut self.broadcast);
        for (prefix, keys) in &mut broadcast {
            let keys = std::mem::take(keys);
            if keys.is_empty() {
                continue;
            }
            let listeners: Vec<(ClientId, bool)> = self
                .clients
                .values()
                .filter(|client| client.tracking.prefixes.contains(prefix))
                .map(|client| (client.id, client.tracking.noloop))
                .collect();
            for (id, noloop) in listeners {
                let names: Vec<&Bytes> = keys
                    .iter()
                    .filter(|(_, by)| !noloop || **by != Some(id))
                    .map(|(key, _)| key)
                    .collect();
                if !names.is_empty() {
                    self.send_invalidation(id, Some(&names));
                }
            }
        }
        self.broadcast = broadcast;
    }

    /// The keys that a tracking client has read are remembered (not for BCAST).
    pub(crate) fn remember_reads(&mut self, id: ClientId, command: &Command, argv: &Argv) {
        let client = self.client(id);
        if !client.tracking.on || client.tracking.bcast {
            return;
        }
        for place in command.key_places(argv.len()) {
            if let Some(key) = argv.get(place) {
                self.tracked.entry(key.clone()).or_default().insert(id);
            }
        }
    }

    /// `enableTracking`.
    pub(crate) fn enable_tracking(
        &mut self,
        id: ClientId,
        bcast: bool,
        noloop: bool,
        redirect: Option<ClientId>,
        prefixes: Vec<Bytes>,
    ) {
        let tracking = &mut self.client(id).tracking;
        tracking.on = true;
        tracking.broken_redirect = false;
        tracking.bcast = bcast;
        tracking.noloop = noloop;
        tracking.redirect = redirect;
        if bcast {
            let prefixes = if prefixes.is_empty() {
                vec![Bytes::from(&b""[..])]
            } else {
                prefixes
            };
            tracking.prefixes.extend(prefixes.iter().cloned());
            for prefix in prefixes {
                self.broadcast.entry(prefix).or_default();
            }
        }
    }

    /// `disableTracking`: what was collected for a prefix that nobody wants any more goes.
    pub(crate) fn disable_tracking(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.tracking = crate::client::Tracking::default();
        let wanted: BTreeSet<Bytes> = self
            .clients
            .values()
            .flat_map(|client| client.tracking.prefixes.iter().cloned())
            .collect();
        self.broadcast.retain(|prefix, _| wanted.contains(prefix));
    }
}
