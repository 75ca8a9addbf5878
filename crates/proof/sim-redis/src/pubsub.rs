// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SUBSCRIBE and its kin, PUBLISH, MONITOR.

use crate::client::{Argv, Client};
use crate::dispatch::glob;
use crate::server::Redis;
use crate::types::{Bytes, ClientId, Peer};

/// A message that does not belong to a command: REPLY OFF does not hold it back.
pub(crate) fn push(client: &mut Client, parts: &[&[u8]]) {
    let was = std::mem::replace(&mut client.pushing, true);
    client.add_push(parts.len());
    for part in parts {
        client.add_bulk(part);
    }
    client.pushing = was;
}

fn confirm(client: &mut Client, kind: &[u8], channel: Option<&Bytes>) {
    let was = std::mem::replace(&mut client.pushing, true);
    client.add_push(3);
    client.add_bulk(kind);
    match channel {
        Some(channel) => client.add_bulk(channel),
        None => client.add_null(),
    }
    let count = client.subscriptions();
    client.add_count(count);
    client.pushing = was;
}

pub(crate) fn subscribe(redis: &mut Redis, id: ClientId, argv: &Argv) {
    for channel in &argv[1..] {
        let client = redis.client(id);
        client.channels.insert(channel.clone());
        confirm(client, b"subscribe", Some(channel));
    }
}

pub(crate) fn psubscribe(redis: &mut Redis, id: ClientId, argv: &Argv) {
    for pattern in &argv[1..] {
        let client = redis.client(id);
        if !client.patterns.contains(pattern) {
            client.patterns.push_back(pattern.clone());
        }
        confirm(client, b"psubscribe", Some(pattern));
    }
}

pub(crate) fn unsubscribe(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let client = redis.client(id);
    let named = &argv[1..];
    let channels = if named.is_empty() {
        client.channels.iter().cloned().collect()
    } else {
        named.to_vec()
    };
    for channel in &channels {
        client.channels.remove(channel);
        confirm(client, b"unsubscribe", Some(channel));
    }
    if channels.is_empty() {
        confirm(client, b"unsubscribe", None);
    }
}

pub(crate) fn punsubscribe(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let client = redis.client(id);
    let named = &argv[1..];
    let patterns: Vec<Bytes> = if named.is_empty() {
        client.patterns.iter().cloned().collect()
    } else {
        named.to_vec()
    };
    for pattern in &patterns {
        client.patterns.retain(|one| one != pattern);
        confirm(client, b"punsubscribe", Some(pattern));
    }
    if patterns.is_empty() {
        confirm(client, b"punsubscribe", None);
    }
}

pub(crate) fn publish(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let (channel, message) = (&argv[1], &argv[2]);
    let mut receivers = 0;
    for client in redis.clients.values_mut() {
        if client.channels.contains(channel) {
            push(client, &[b"message", channel, message]);
            receivers += 1;
        }
    }
    for client in redis.clients.values_mut() {
        for pattern in client.patterns.clone() {
            if glob(&pattern, channel) {
                push(client, &[b"pmessage", &pattern, channel, message]);
                receivers += 1;
            }
        }
    }
    redis.client(id).add_int(receivers);
}

pub(crate) fn monitor(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    let client = redis.client(id);
    if client.monitor {
        return;
    }
    client.monitor = true;
    client.add_ok();
}

/// A string as C shows it, in quotes (`sdscatrepr`).
pub(crate) fn quoted(text: &[u8]) -> String {
    let mut shown = String::from("\"");
    for byte in text {
        match byte {
            b'"' | b'\\' => shown.extend(['\\', char::from(*byte)]),
            b'\n' => shown.push_str("\\n"),
            b'\r' => shown.push_str("\\r"),
            b'\t' => shown.push_str("\\t"),
            7 => shown.push_str("\\a"),
            8 => shown.push_str("\\b"),
            0x20..=0x7e => shown.push(char::from(*byte)),
            other => shown.push_str(&format!("\\x{other:02x}")),
        }
    }
    shown.push('"');
    shown
}

impl Redis {
    /// Shows a command to the clients that sent MONITOR.
    pub(crate) fn feed_monitors(&mut self, id: ClientId, db: u32, argv: &Argv) {
        if self.loading || !self.clients.values().any(|client| client.monitor) {
            return;
        }
        let Some(from) = self.clients.get(&id).map(|client| match &client.peer {
            Peer::Tcp { peer, .. } | Peer::Master(peer) => peer.to_string(),
            Peer::Unix(path) => format!("unix:{path}"),
        }) else {
            return;
        };
        let words: Vec<String> = argv.iter().map(|word| quoted(word)).collect();
        let (seconds, micros) = (self.now_ns / 1_000_000_000, self.now_ns / 1000 % 1_000_000);
        let line = format!(
            "+{seconds}.{micros:06} [{db} {from}] {}\r\n",
            words.join(" ")
        );
        for client in self.clients.values_mut().filter(|client| client.monitor) {
            client.put(line.as_bytes());
        }
    }
}
