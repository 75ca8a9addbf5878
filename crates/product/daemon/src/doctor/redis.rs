// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Redis, its settings, and where it listens.

use std::collections::BTreeMap;
use std::net::IpAddr;

use erb_datapath::{LOOPBACK, TableSize};
use erb_redis::{ClientLine, Listener, Whose};

use super::{Findings, Patient, firewall};
use crate::asked::{Asked, check_whose, whose_listeners};
use crate::boost::ram_bytes;
use crate::facts::{RedisFacts, read_redis};
use crate::others::Other;
use crate::preflight::{check_listener, check_privileges, check_redis};
use crate::sockets::connections;
use crate::{Result, others};

const SUBJECT: &str = "redis";

/// Its listeners, as far as they are its own or may be; none: they are not known.
pub(super) fn examine(findings: &mut Findings, patient: &Patient) -> Option<Vec<Listener>> {
    let found = check_redis(&patient.redis, &patient.credentials, patient.port);
    let (state, port) = findings.checked(SUBJECT, found)?;
    findings.fine(
        SUBJECT,
        format!("version {} answers at {}", state.version, patient.redis),
    );
    let mut listeners = None;
    if findings.checked(SUBJECT, check_listener(port)).is_some() {
        listeners = examine_listeners(findings, patient, port);
        examine_boosts(findings, patient);
    }
    firewall::examine(findings, port);
    let facts = read_redis(&patient.redis, &patient.credentials);
    if let Some(facts) = findings.checked(SUBJECT, facts) {
        let table = TableSize::for_redis(state.maxclients, ram_bytes().unwrap_or(0));
        let open = connections(port).unwrap_or_default();
        let open: Vec<IpAddr> = open.keys().map(|pair| pair.client.ip()).collect();
        examine_room(findings, table, &open);
        examine_state(findings, &facts, port);
        examine_users(findings, &facts);
        examine_settings(findings, &facts.settings);
    }
    listeners
}

/// Boosts of this Redis that are at work. One that has the devices which are looked at is the one that is meant.
fn examine_boosts(findings: &mut Findings, patient: &Patient) {
    let found = boosts(patient);
    let Some((same, feed)) = findings.checked(SUBJECT, found) else {
        return;
    };
    for other in same {
        if other.has(&patient.devices) {
            findings.fine(SUBJECT, format!("is boosted already: {}", other.told()));
        } else {
            let refusal = other.refusal(&patient.devices, &patient.redis);
            findings.checked::<()>(SUBJECT, Err(refusal));
        }
    }
    let Some(feed) = feed else {
        return;
    };
    let refusal = others::refusal_of_feed(&feed, &patient.redis);
    if check_privileges().is_err() {
        // It may be that of a directory that only root may look into.
        findings.unknown(SUBJECT, refusal.to_string());
    } else {
        findings.checked::<()>(SUBJECT, Err(refusal));
    }
}

/// Those whose directories are seen, and a feed of none of them.
fn boosts(patient: &Patient) -> Result<(Vec<Other>, Option<ClientLine>)> {
    let mut asked = Asked::connect(&patient.redis, &patient.credentials)?;
    let same = others::same(others::here(None), &mut asked)?;
    let feed = others::lasting_feed(&mut asked, &same)?;
    Ok((same, feed))
}

fn examine_listeners(
    findings: &mut Findings,
    patient: &Patient,
    port: u16,
) -> Option<Vec<Listener>> {
    let found = whose_listeners(&patient.redis, &patient.credentials, port);
    let found = findings.checked(SUBJECT, found)?;
    let checked = check_whose(&patient.redis, &found, port);
    findings.checked(SUBJECT, checked)?;
    tell_listeners(findings, patient, port, &found);
    let own = found
        .into_iter()
        .filter(|(_, whose)| *whose != Whose::Other);
    Some(own.map(|(listener, _)| listener).collect())
}

fn tell_listeners(
    findings: &mut Findings,
    patient: &Patient,
    port: u16,
    found: &[(Listener, Whose)],
) {
    let of = |wanted: Whose| -> Vec<IpAddr> {
        let here = found.iter().filter(|(_, whose)| *whose == wanted);
        here.map(|(listener, _)| listener.address).collect()
    };
    let shown = |addresses: &[IpAddr]| {
        let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        texts.join(", ")
    };
    let (own, others, unknown) = (of(Whose::Redis), of(Whose::Other), of(Whose::Unknown));
    let by_lo = own.iter().all(IpAddr::is_loopback) && unknown.is_empty();
    let named = patient.devices.iter().any(|device| device == LOOPBACK);
    if !own.is_empty() && by_lo && !named {
        findings.warn(
            SUBJECT,
            format!(
                "listens on {} alone, so no client comes by a device but lo: give --dev lo, or set `bind` in redis.conf",
                shown(&own)
            ),
        );
    } else if !own.is_empty() {
        findings.fine(
            SUBJECT,
            format!("listens on port {port} of {}", shown(&own)),
        );
    }
    if !others.is_empty() {
        findings.warn(
            SUBJECT,
            format!(
                "another server listens on port {port} of {}: its clients are left alone",
                shown(&others)
            ),
        );
    }
    if !unknown.is_empty() {
        findings.warn(
            SUBJECT,
            format!(
                "it cannot be told whose port {port} of {} is (is it shared, or are connections \
                 from this machine refused?): its clients are answered late or not at all",
                shown(&unknown)
            ),
        );
    }
}

/// Whether a boost without --connections would have room for all that are open.
fn examine_room(findings: &mut Findings, table: TableSize, open: &[IpAddr]) {
    let mut by_address: BTreeMap<IpAddr, u32> = BTreeMap::new();
    for address in open {
        *by_address.entry(*address).or_default() += 1;
    }
    let (room, share) = (table.connections(), table.per_address());
    let ask = "those beyond are not seen (never answered, and what they write shows late); boost with \
               more --connections";
    if open.len() > room as usize {
        findings.warn(
            SUBJECT,
            format!(
                "{} connections are open, ERB has room for {room}: {ask}",
                open.len()
            ),
        );
    }
    for (address, count) in by_address.into_iter().filter(|(_, count)| *count > share) {
        findings.warn(
            SUBJECT,
            format!(
                "{address} has {count} connections, ERB has room for {share} of one address: {ask}"
            ),
        );
    }
}

fn examine_state(findings: &mut Findings, facts: &RedisFacts, port: u16) {
    let unseen = facts.state.unseen_ports(port).into_iter();
    for text in unseen.chain(facts.state.list_beyond_limit()) {
        findings.warn(SUBJECT, text);
    }
    if let Some(text) = facts.state.better_policy() {
        findings.fine(SUBJECT, text);
    }
    let mut reasons = facts.state.reasons_against_serving();
    reasons.extend(facts.state.no_full_user());
    if reasons.is_empty() {
        findings.fine(SUBJECT, "nothing in its state forbids to answer");
    }
    for reason in reasons {
        findings.bad(SUBJECT, format!("ERB would answer nothing: {reason}"));
    }
}

/// Which users' clients are never answered.
fn examine_users(findings: &mut Findings, facts: &RedisFacts) {
    if facts.state.no_full_user().is_some() {
        return; // told already
    }
    for (user, count) in facts.state.limited_users(&facts.clients) {
        findings.warn(
            SUBJECT,
            format!(
                "connections of user {user}, which may not do everything: {count}. ERB answers none of them; \
                 `ACL SETUSER NAME ~* &* +@all` gives a user all rights"
            ),
        );
    }
}

fn examine_settings(findings: &mut Findings, settings: &BTreeMap<String, String>) {
    let of = |name: &str| settings.get(name).map_or("", String::as_str);
    if of("protected-mode") == "yes" && of("requirepass").is_empty() {
        findings.warn(
            SUBJECT,
            "protected-mode is on and no password is set: where `bind` names no address Redis \
             refuses clients of other machines; set `bind`, a password, or protected-mode no",
        );
    }
    if of("tcp-keepalive") == "0" {
        findings.warn(
            SUBJECT,
            "tcp-keepalive is 0: connections of clients that vanished stay, here and in ERB's table; \
             `CONFIG SET tcp-keepalive 300`",
        );
    }
    if !matches!(of("timeout"), "" | "0") {
        findings.fine(
            SUBJECT,
            format!(
                "timeout is {} s: each connection sends one command in three to Redis within that \
                 time, so that Redis does not close it",
                of("timeout")
            ),
        );
    }
    if of("notify-keyspace-events").contains('m') {
        findings.fine(
            SUBJECT,
            format!(
                "notify-keyspace-events is {:?}: reads of absent keys are events (m), so ERB answers \
                 none, and the daemon's questions cause no event but some at a boost",
                of("notify-keyspace-events")
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use erb_redis::{RedisState, parse_clients};
    use erb_report::Level;

    fn told(settings: &[(&str, &str)]) -> Vec<(Level, String)> {
        let mut findings = Findings::default();
        let settings = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        examine_settings(&mut findings, &settings);
        findings
            .told
            .into_iter()
            .map(|finding| (finding.level, finding.text))
            .collect()
    }

    #[test]
    fn connections_without_room_are_told() {
        let table = TableSize::of(64, u64::MAX).expect("a size");
        let of = |addresses: &[(u8, usize)]| {
            let mut open = Vec::new();
            for (last, count) in addresses {
                open.extend(std::iter::repeat_n(IpAddr::from([10, 0, 0, *last]), *count));
            }
            let mut findings = Findings::default();
            examine_room(&mut findings, table, &open);
            let texts = findings.told.into_iter().map(|finding| finding.text);
            texts.collect::<Vec<String>>()
        };
        assert!(of(&[(1, 32), (2, 32)]).is_empty());
        let share = of(&[(1, 33), (2, 1)]);
        assert!(
            share.len() == 1 && share[0].starts_with("10.0.0.1 has 33"),
            "{share:?}"
        );
        let full = of(&[(1, 32), (2, 32), (3, 1)]);
        assert!(
            full.len() == 1 && full[0].starts_with("65 connections"),
            "{full:?}"
        );
    }

    #[test]
    fn users_of_clients_that_are_never_answered_are_named_with_the_rule() {
        let state = RedisState {
            acl: vec![
                "user default on nopass ~* &* +@all".to_owned(),
                "user app on #1 ~app:* &* +@all".to_owned(),
                "user erb on #1 ~* -@all +ping".to_owned(),
            ],
            user: Some("erb".to_owned()),
            ..RedisState::default()
        };
        let line = |user: &str, rest: &str| {
            format!("id=3 addr=10.0.0.2:1 laddr=10.0.0.1:6379 flags=N user={user} {rest}\n")
        };
        let list = [
            line("app", ""),
            line("app", ""),
            line("default", ""),
            line("erb", ""),
            line("app", "flags=S"),
            line("app", "laddr=/run/redis.sock:0"),
        ];
        let mut facts = RedisFacts {
            state,
            settings: BTreeMap::new(),
            clients: parse_clients(&list.concat()),
        };
        let told = |facts: &RedisFacts| {
            let mut findings = Findings::default();
            examine_users(&mut findings, facts);
            findings.told
        };
        let found = told(&facts);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].level, Level::Warning);
        let words = "connections of user app (~app:*), which may not do everything: 2.";
        assert!(found[0].text.starts_with(words), "{found:?}");
        facts.clients.retain(|client| client.user != "app");
        assert!(told(&facts).is_empty());
    }

    #[test]
    fn settings_that_matter_are_told() {
        let quiet = [
            ("protected-mode", "no"),
            ("tcp-keepalive", "300"),
            ("timeout", "0"),
            ("notify-keyspace-events", "AKE"),
        ];
        assert_eq!(told(&quiet), []);
        for (setting, level) in [
            (("protected-mode", "yes"), Level::Warning),
            (("tcp-keepalive", "0"), Level::Warning),
            (("timeout", "30"), Level::Fine),
            (("notify-keyspace-events", "AKEm"), Level::Fine),
        ] {
            let found = told(&[setting]);
            assert_eq!(found.len(), 1, "{setting:?}");
            assert!(
                found[0].0 == level && found[0].1.contains(setting.0),
                "{found:?}"
            );
        }
        let safe = [("protected-mode", "yes"), ("requirepass", "x")];
        assert_eq!(told(&safe), []);
    }
}
