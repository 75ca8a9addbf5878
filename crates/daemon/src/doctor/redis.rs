// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Redis, its settings, and where it listens.

use std::collections::BTreeMap;
use std::net::IpAddr;

use erb_abi::CONNS_MAX;

use super::{Findings, Patient};
use crate::preflight::{RedisFacts, check_listener, check_redis, read_redis};
use crate::sockets::{connections, listeners};

const SUBJECT: &str = "redis";

pub(super) fn examine(findings: &mut Findings, patient: &Patient) {
    let found = check_redis(&patient.redis, &patient.credentials, patient.port);
    let Some((state, port)) = findings.checked(SUBJECT, found) else {
        return;
    };
    findings.fine(
        SUBJECT,
        format!("version {} answers at {}", state.version, patient.redis),
    );
    if findings.checked(SUBJECT, check_listener(port)).is_some() {
        examine_listener(findings, port);
    }
    let facts = read_redis(&patient.redis, &patient.credentials);
    if let Some(facts) = findings.checked(SUBJECT, facts) {
        examine_state(findings, &facts);
        examine_settings(findings, &facts.settings);
    }
}

fn examine_listener(findings: &mut Findings, port: u16) {
    let Ok(addresses) = listeners(port) else {
        return;
    };
    let shown: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    if addresses.iter().all(IpAddr::is_loopback) {
        findings.warn(
            SUBJECT,
            format!(
                "listens on {} alone, so no client comes by a device: set `bind` in redis.conf",
                shown.join(", ")
            ),
        );
    } else {
        findings.fine(
            SUBJECT,
            format!("listens on port {port} of {}", shown.join(", ")),
        );
    }
    let open = connections(port).map_or(0, |found| found.len());
    let most = CONNS_MAX as usize;
    if open > most {
        findings.warn(
            SUBJECT,
            format!(
                "{open} connections are open, ERB tracks {most}: while there are more, no GET is \
                 answered; let clients share connections"
            ),
        );
    }
}

fn examine_state(findings: &mut Findings, facts: &RedisFacts) {
    let reasons = facts.state.reasons_against_serving();
    if reasons.is_empty() {
        findings.fine(SUBJECT, "nothing in its state forbids to answer");
    }
    for reason in reasons {
        findings.bad(SUBJECT, format!("ERB would answer nothing: {reason}"));
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
    if !of("notify-keyspace-events").is_empty() {
        findings.fine(
            SUBJECT,
            format!(
                "notify-keyspace-events is {:?}: it does not concern ERB, but reads that ERB answers \
                 cause no event (m)",
                of("notify-keyspace-events")
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    fn told(settings: &[(&str, &str)]) -> Vec<(Level, String)> {
        let mut findings = Findings::default();
        let settings = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        examine_settings(&mut findings, &settings);
        findings
            .0
            .into_iter()
            .map(|finding| (finding.level, finding.text))
            .collect()
    }

    #[test]
    fn settings_that_matter_are_told() {
        let quiet = [
            ("protected-mode", "no"),
            ("tcp-keepalive", "300"),
            ("timeout", "0"),
        ];
        assert_eq!(told(&quiet), []);
        for (setting, level) in [
            (("protected-mode", "yes"), Level::Warning),
            (("tcp-keepalive", "0"), Level::Warning),
            (("timeout", "30"), Level::Fine),
            (("notify-keyspace-events", "AKE"), Level::Fine),
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
