// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CLIENT and its sub-commands.

use crate::cast::{Signed, Unsigned};
use std::fmt::Write as _;

use crate::client::{Argv, Blocked, Client};
use crate::dispatch::lower;
use crate::resp::parse_i64;
use crate::server::Redis;
use crate::strings::SYNTAX;
use crate::types::{ClientId, Peer};

/// What Redis allocates for a client's query buffer at first.
const QUERY_BYTES: usize = 20_474;
/// Reply buffer of a client.
const REPLY_BYTES: usize = 16_384;
/// What a client costs beside its buffers.
const CLIENT_BYTES: usize = 1000;

fn flags(client: &Client) -> String {
    let tests = [
        (matches!(client.peer, Peer::Master(_)), 'M'),
        (client.monitor, 'O'),
        (client.in_pubsub(), 'P'),
        (client.multi.is_some() || client.in_exec, 'x'),
        (client.blocked.is_some(), 'b'),
        (client.tracking.on, 't'),
        (client.tracking.broken_redirect, 'R'),
        (client.tracking.bcast, 'B'),
        (client.dirty_cas, 'd'),
        (client.close_after_reply, 'c'),
        (matches!(client.peer, Peer::Unix(_)), 'U'),
        (client.close_now, 'A'),
        (client.no_evict, 'e'),
    ];
    let found: String = tests
        .iter()
        .filter(|(set, _)| *set)
        .map(|(_, letter)| letter)
        .collect();
    if found.is_empty() {
        "N".to_owned()
    } else {
        found
    }
}

fn line(client: &Client, now_ns: u64) -> String {
    let (addr, laddr) = match &client.peer {
        Peer::Tcp { peer, local } => (peer.to_string(), local.to_string()),
        Peer::Unix(path) => (format!("{path}:0"), format!("{path}:0")),
        Peer::Master(peer) => (peer.to_string(), "10.77.0.2:43210".to_owned()),
    };
    let age = (now_ns / 1_000_000_000).saturating_sub(client.created_ns / 1_000_000_000);
    let idle = (now_ns / 1_000_000_000).saturating_sub(client.last_seen_ns / 1_000_000_000);
    let queued: usize = client
        .multi
        .iter()
        .flatten()
        .flatten()
        .map(|word| word.len())
        .sum();
    let multi = client
        .multi
        .as_ref()
        .map_or(-1, |queue| queue.len().signed());
    let pending = client.out.len();
    let (obl, omem) = (
        pending.min(REPLY_BYTES),
        pending.saturating_sub(REPLY_BYTES),
    );
    let free = QUERY_BYTES.saturating_sub(client.query.len());
    let redirect = match (client.tracking.on, client.tracking.redirect) {
        (false, _) => -1,
        (true, target) => target.unwrap_or(0).signed(),
    };
    let mut text = format!(
        "id={} addr={addr} laddr={laddr} fd={}",
        client.id,
        client.id + 5
    );
    let name = String::from_utf8_lossy(&client.name);
    let _ = write!(
        text,
        " name={name} age={age} idle={idle} flags={}",
        flags(client)
    );
    let _ = write!(text, " db={} sub={}", client.db, client.channels.len());
    let _ = write!(text, " psub={} ssub=0 multi={multi}", client.patterns.len());
    let _ = write!(
        text,
        " qbuf={} qbuf-free={free} argv-mem={}",
        client.query.len(),
        client.argv.iter().map(|word| word.len()).sum::<usize>()
    );
    let _ = write!(
        text,
        " multi-mem={queued} rbs={REPLY_BYTES} rbp={REPLY_BYTES} obl={obl}"
    );
    let _ = write!(text, " oll={} omem={omem}", omem.div_ceil(REPLY_BYTES));
    let total = CLIENT_BYTES + QUERY_BYTES + REPLY_BYTES + omem + queued;
    let _ = write!(
        text,
        " tot-mem={total} events=r cmd={}",
        client.last_command
    );
    let _ = write!(
        text,
        " user={} redir={redirect} resp={}",
        client.user, client.resp
    );
    text
}

pub(crate) fn id(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    redis.client(id).add_int(id.signed());
}

pub(crate) fn info(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    let now_ns = redis.now_ns;
    let text = line(redis.client(id), now_ns) + "\n";
    redis.client(id).add_verbatim(&text);
}

pub(crate) fn list(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if argv.len() > 2 {
        let kind = argv.get(3).map(|kind| lower(kind));
        if argv.len() != 4 || lower(&argv[2]) != "type" || kind.as_deref() != Some("normal") {
            return redis.client(id).add_error(SYNTAX);
        }
    }
    let now_ns = redis.now_ns;
    let text: String = redis
        .clients
        .values()
        .filter(|client| client.id != 0)
        .map(|client| line(client, now_ns) + "\n")
        .collect();
    redis.client(id).add_verbatim(&text);
}

pub(crate) fn setname(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if redis.set_name(id, &argv[2]) {
        redis.client(id).add_ok();
    }
}

pub(crate) fn getname(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    let client = redis.client(id);
    let name = client.name.clone();
    if name.is_empty() {
        client.add_null();
    } else {
        client.add_bulk(&name);
    }
}

pub(crate) fn reply(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let client = redis.client(id);
    match lower(&argv[2]).as_str() {
        "on" => {
            client.muted.skip = false;
            client.muted.off = false;
            client.add_ok();
        }
        "off" => client.muted.off = true,
        "skip" => client.muted.skip_next = !client.muted.off,
        _ => client.add_error(SYNTAX),
    }
}

pub(crate) fn no_evict(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let client = redis.client(id);
    match lower(&argv[2]).as_str() {
        "on" => client.no_evict = true,
        "off" => client.no_evict = false,
        _ => return client.add_error(SYNTAX),
    }
    client.add_ok();
}

pub(crate) fn pause(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let all = match argv.get(3).map(|mode| lower(mode)).as_deref() {
        None | Some("all") if argv.len() <= 4 => true,
        Some("write") if argv.len() == 4 => false,
        _ => {
            return redis
                .client(id)
                .add_error("ERR CLIENT PAUSE mode must be WRITE or ALL");
        }
    };
    let Some(ms) = parse_i64(&argv[2]) else {
        let text = "ERR timeout is not an integer or out of range";
        return redis.client(id).add_error(text);
    };
    if ms < 0 {
        return redis.client(id).add_error("ERR timeout is negative");
    }
    let until = redis.now_ms().saturating_add(ms);
    // The stricter of two pauses and the later end hold.
    redis.pause_all = all || (redis.is_paused() && redis.pause_all);
    redis.paused_until_ms = redis.paused_until_ms.max(until);
    redis.client(id).add_ok();
}

pub(crate) fn unpause(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    redis.end_pause();
    redis.client(id).add_ok();
}

/// CLIENT KILL: the old form by address, the new one by ID, ADDR, SKIPME.
pub(crate) fn kill(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if argv.len() == 3 {
        let found = redis.clients.values().find(|client| {
            matches!(&client.peer, Peer::Tcp { peer, .. } if peer.to_string().as_bytes() == &*argv[2])
        });
        let Some(target) = found.map(|client| client.id) else {
            return redis.client(id).add_error("ERR No such client");
        };
        redis.client(id).add_ok();
        return kill_one(redis, id, target);
    }
    let (mut wanted, mut addr, mut skip_me) = (None, None, true);
    if argv.len() % 2 == 1 {
        return redis.client(id).add_error(SYNTAX);
    }
    for pair in argv[2..].chunks_exact(2) {
        match lower(&pair[0]).as_str() {
            "id" => match parse_i64(&pair[1]) {
                Some(number) if number > 0 => wanted = Some(number.unsigned()),
                _ => {
                    let text = "ERR client-id should be greater than 0";
                    return redis.client(id).add_error(text);
                }
            },
            "addr" => addr = Some(pair[1].clone()),
            "skipme" => match lower(&pair[1]).as_str() {
                "yes" => skip_me = true,
                "no" => skip_me = false,
                _ => return redis.client(id).add_error(SYNTAX),
            },
            _ => return redis.client(id).add_error(SYNTAX),
        }
    }
    let targets: Vec<ClientId> = redis
        .clients
        .values()
        .filter(|client| client.id != 0 && wanted.is_none_or(|wanted| wanted == client.id))
        .filter(|client| {
            addr.as_ref().is_none_or(|addr| {
                matches!(&client.peer, Peer::Tcp { peer, .. } if peer.to_string().as_bytes() == &**addr)
            })
        })
        .map(|client| client.id)
        .filter(|target| !skip_me || *target != id)
        .collect();
    redis.client(id).add_count(targets.len());
    for target in targets {
        kill_one(redis, id, target);
    }
}

fn kill_one(redis: &mut Redis, id: ClientId, target: ClientId) {
    if id == target {
        redis.client(id).close_after_reply_at_end = true;
    } else {
        redis.close_at_once(target);
    }
}

pub(crate) fn unblock(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(number) = redis.integer_or_reply(id, &argv[2]) else {
        return;
    };
    let error = match argv.get(3).map(|mode| lower(mode)).as_deref() {
        None | Some("timeout") => false,
        Some("error") => true,
        _ => {
            let text = "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR";
            return redis.client(id).add_error(text);
        }
    };
    let target = number.unsigned();
    let waits = redis
        .clients
        .get(&target)
        .is_some_and(|client| matches!(client.blocked, Some(Blocked::List { .. })));
    if waits {
        redis.unblock(target, |client| {
            if error {
                client.add_error("UNBLOCKED client unblocked via CLIENT UNBLOCK");
            } else {
                client.add_null_array();
            }
        });
    }
    redis.client(id).add_int(i64::from(waits));
}

pub(crate) fn tracking(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let (mut bcast, mut noloop, mut redirect, mut prefixes) = (false, false, None, Vec::new());
    let mut at = 3;
    while at < argv.len() {
        match lower(&argv[at]).as_str() {
            "bcast" => bcast = true,
            "noloop" => noloop = true,
            "redirect" if at + 1 < argv.len() => {
                at += 1;
                let Some(target) = redis.integer_or_reply(id, &argv[at]) else {
                    return;
                };
                let target = target.unsigned();
                if !redis.clients.contains_key(&target) {
                    let text = "ERR The client ID you want redirect to does not exist";
                    return redis.client(id).add_error(text);
                }
                redirect = Some(target);
            }
            "prefix" if at + 1 < argv.len() => {
                at += 1;
                prefixes.push(argv[at].clone());
            }
            _ => return redis.client(id).add_error(SYNTAX),
        }
        at += 1;
    }
    match lower(&argv[2]).as_str() {
        "on" => {
            if !bcast && !prefixes.is_empty() {
                let text = "ERR PREFIX option requires BCAST mode to be enabled";
                return redis.client(id).add_error(text);
            }
            let before = &redis.client(id).tracking;
            if before.on && before.bcast != bcast {
                return redis.client(id).add_error(
                    "ERR You can't switch BCAST mode on/off before disabling tracking for this \
                     client, and then re-enabling it with a different mode.",
                );
            }
            redis.enable_tracking(id, bcast, noloop, redirect, prefixes);
        }
        "off" => redis.disable_tracking(id),
        _ => return redis.client(id).add_error(SYNTAX),
    }
    redis.client(id).add_ok();
}
