// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Firewall rules that name Redis's port: what ERB answers does not pass them, and behind some of
//! them a packet is not what it was at the device.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use super::Findings;

const SUBJECT: &str = "firewall";

/// Hooks and chains that only what this host sends passes, or what it routes for others.
const ON_THE_WAY_OUT: [&str; 6] = [
    "output",
    "postrouting",
    "egress",
    "OUTPUT",
    "POSTROUTING",
    "FORWARD",
];

/// What gives a connection other addresses or sequence numbers than its packets have at the device:
/// statements of nft, targets of iptables. (Not TPROXY: the proxy's socket tells whose it is.)
const REWRITES: [&str; 10] = [
    "dnat",
    "snat",
    "redirect",
    "masquerade",
    "synproxy",
    "DNAT",
    "SNAT",
    "REDIRECT",
    "MASQUERADE",
    "SYNPROXY",
];

/// Chains with rules that name the port; true: one of them rewrites.
type Places = BTreeMap<String, bool>;

fn add(places: &mut Places, place: String, rewrites: bool) {
    *places.entry(place).or_default() |= rewrites;
}

pub(super) fn examine(findings: &mut Findings, port: u16) {
    tell(findings, places(&printed, port), port);
}

/// Where rules name the port, by what these programs print; none: neither says.
fn places(printed: &impl Fn(&str, &[&str]) -> Option<String>, port: u16) -> Option<Places> {
    let nft = printed("nft", &["-j", "list", "ruleset"]);
    nft.and_then(|text| in_nft(&text, port)).or_else(|| {
        let both = ["iptables-save", "ip6tables-save"].map(|program| printed(program, &[]));
        let texts: Vec<String> = both.into_iter().flatten().collect();
        (!texts.is_empty()).then(|| in_iptables(&texts.concat(), port))
    })
}

fn tell(findings: &mut Findings, listed: Option<Places>, port: u16) {
    match listed {
        None => findings.unknown(
            SUBJECT,
            format!(
                "rules were not looked at, as neither nft nor iptables-save says them here: what ERB answers passes \
                 none; install one of the two, or see yourself that no rule names port {port}"
            ),
        ),
        Some(places) if places.is_empty() => {
            findings.fine(
                SUBJECT,
                format!("no rule for what comes in names port {port}"),
            );
        }
        Some(places) => {
            let names = |rewrites: bool| -> String {
                let chosen = places.iter().filter(|place| *place.1 == rewrites);
                let names: Vec<&str> = chosen.map(|place| place.0.as_str()).collect();
                names.join(", ")
            };
            let (rewriting, others) = (names(true), names(false));
            if !rewriting.is_empty() {
                findings.bad(
                    SUBJECT,
                    format!(
                        "rules give connections to port {port} other addresses or other sequence \
                         numbers ({rewriting}): at the device ERB sees what was before. Behind SYNPROXY \
                         no connection works, behind NAT writes are not seen. Take these rules away, \
                         or do not boost here"
                    ),
                );
            }
            if !others.is_empty() {
                findings.warn(
                    SUBJECT,
                    format!(
                        "rules name port {port} ({others}): packets that ERB answers do not pass them. \
                         A new rule holds for new connections at once, for one that is answered when \
                         its next command goes up to Redis, a minute later at most; `CLIENT KILL` ends \
                         it at once"
                    ),
                );
            }
        }
    }
}

/// What a program prints; none if it cannot be run or fails.
fn printed(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = || String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then(text)
}

/// Chains of `nft -j list ruleset` with a rule for a destination port that may be this one; none: it is no such list.
fn in_nft(text: &str, port: u16) -> Option<Places> {
    let mut found = Places::new();
    let list: Value = serde_json::from_str(text).ok()?;
    let entries = list["nftables"].as_array()?;
    let place = |of: &Value, chain: &str| {
        let word = |key: &str| of[key].as_str().unwrap_or_default().to_owned();
        format!("{} {} {}", word("family"), word("table"), word(chain))
    };
    let chains = entries.iter().filter_map(|entry| entry.get("chain"));
    let outward: Vec<String> = chains
        .filter(|chain| ON_THE_WAY_OUT.contains(&chain["hook"].as_str().unwrap_or_default()))
        .map(|chain| place(chain, "name"))
        .collect();
    let rules = entries.iter().filter_map(|entry| entry.get("rule"));
    for rule in rules.filter(|rule| names_port(&rule["expr"], port)) {
        let place = place(rule, "chain");
        if !outward.contains(&place) {
            add(&mut found, place, rewrites(&rule["expr"]));
        }
    }
    Some(found)
}

/// Whether a statement of [`REWRITES`] is in a rule.
fn rewrites(expression: &Value) -> bool {
    let statements = expression.as_array().into_iter().flatten();
    statements
        .filter_map(Value::as_object)
        .any(|statement| REWRITES.iter().any(|name| statement.contains_key(*name)))
}

/// Whether a match of a destination port is somewhere in an expression.
fn names_port(expression: &Value, port: u16) -> bool {
    match expression {
        Value::Array(list) => list.iter().any(|one| names_port(one, port)),
        Value::Object(fields) => {
            let found = fields.get("match").is_some_and(|one| {
                one["left"]["payload"]["field"] == "dport" && covers(&one["right"], port)
            });
            found || fields.values().any(|one| names_port(one, port))
        }
        _ => false,
    }
}

/// Whether a value, a set or a range of nft has the port in it.
fn covers(right: &Value, port: u16) -> bool {
    let port_of = |value: &Value| value.as_u64().and_then(|port| u16::try_from(port).ok());
    if let Some(list) = right["set"].as_array() {
        return list.iter().any(|one| covers(one, port));
    }
    if let Some([from, to]) = right["range"].as_array().map(Vec::as_slice) {
        return port_of(from) <= Some(port) && Some(port) <= port_of(to);
    }
    port_of(right) == Some(port)
}

/// Chains of `iptables-save` with a rule whose destination port may be this one.
fn in_iptables(text: &str, port: u16) -> Places {
    let mut table = "";
    let mut found = Places::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name.trim();
        }
        let mut words = line.split_whitespace();
        if words.next() != Some("-A") {
            continue;
        }
        let chain = words.next().unwrap_or_default();
        let mut before = "";
        let (mut named, mut rewrites) = (false, false);
        for word in words {
            rewrites |= before == "-j" && REWRITES.contains(&word);
            named |= matches!(before, "--dport" | "--dports" | "--destination-port")
                && word.split(',').any(|ports| in_range(ports, port));
            before = word;
        }
        if named && !ON_THE_WAY_OUT.contains(&chain) {
            add(&mut found, format!("{table} {chain}"), rewrites);
        }
    }
    found
}

/// `6379`, `6000:7000` or an end left open.
fn in_range(ports: &str, port: u16) -> bool {
    let (from, to) = ports.split_once(':').unwrap_or((ports, ports));
    let end = |word: &str, open| match word {
        "" => Some(open),
        word => word.parse::<u16>().ok(),
    };
    let from = end(from, 0).is_some_and(|from| from <= port);
    from && end(to, u16::MAX).is_some_and(|to| port <= to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_nft() {
        let rule = |chain: &str, right: &str| {
            format!(
                "{{\"rule\":{{\"family\":\"inet\",\"table\":\"f\",\"chain\":\"{chain}\",\"expr\":[\
                 {{\"match\":{{\"op\":\"==\",\"left\":{{\"payload\":{{\"protocol\":\"tcp\",\
                 \"field\":\"dport\"}}}},\"right\":{right}}}}},{{\"drop\":null}}]}}}}"
            )
        };
        let chain = |name: &str, hook: &str| {
            format!(
                "{{\"chain\":{{\"family\":\"inet\",\"table\":\"f\",\"name\":\"{name}\",\"hook\":\
                 \"{hook}\"}}}}"
            )
        };
        let all = |rules: &[String]| {
            let chains = [chain("in", "input"), chain("out", "output")];
            let list = [&chains[..], rules].concat().join(",");
            in_nft(&format!("{{\"nftables\":[{list}]}}"), 6379).expect("a list")
        };
        let found = Places::from([("inet f in".to_owned(), false)]);
        for right in ["6379", "{\"set\":[22,6379]}", "{\"range\":[6000,7000]}"] {
            assert_eq!(all(&[rule("in", right)]), found, "{right}");
            assert!(all(&[rule("out", right)]).is_empty(), "{right}");
        }
        for right in ["6380", "{\"set\":[22,{\"range\":[80,90]}]}", "\"@ports\""] {
            assert!(all(&[rule("in", right)]).is_empty(), "{right}");
        }
        for statement in ["dnat", "redirect", "synproxy"] {
            let rule = rule("in", "6379").replace("\"drop\"", &format!("\"{statement}\""));
            assert!(all(&[rule])["inet f in"], "{statement}");
        }
        assert_eq!(in_nft("no JSON", 6379), None);
        assert_eq!(in_nft("{}", 6379), None);
    }

    #[test]
    fn rules_that_no_program_says_are_unknown_and_not_fine() {
        use erb_report::Level;
        let level = |printed: &dyn Fn(&str) -> Option<&'static str>| {
            let mut findings = Findings::default();
            let printed = |program: &str, _: &[&str]| printed(program).map(str::to_owned);
            tell(&mut findings, places(&printed, 6379), 6379);
            findings.told[0].level
        };
        let rules = "*filter\n-A INPUT -p tcp --dport 6379 -j DROP\n";
        assert_eq!(level(&|_| None), Level::Unknown);
        assert_eq!(
            level(&|program| (program == "nft").then_some("no JSON")),
            Level::Unknown
        );
        assert_eq!(
            level(&|program| (program == "nft").then_some("{\"nftables\":[]}")),
            Level::Fine
        );
        assert_eq!(
            level(&|program| (program == "iptables-save").then_some(rules)),
            Level::Warning
        );
        assert_eq!(
            level(&|program| Some(if program == "nft" { "no JSON" } else { rules })),
            Level::Warning
        );
    }

    #[test]
    fn rules_of_iptables() {
        let text = "*filter\n:INPUT ACCEPT [0:0]\n\
                    -A INPUT -s 10.0.0.9/32 -p tcp -m tcp --dport 6379 -j DROP\n\
                    -A KUBE-X -p tcp -m multiport --dports 80,6000:7000 -j DROP\n\
                    -A OUTPUT -p tcp -m tcp --dport 6379 -j ACCEPT\n\
                    -A INPUT -p tcp -m tcp --sport 6379 -j ACCEPT\nCOMMIT\n";
        let found = in_iptables(text, 6379);
        let of = |place: &str, rewrites| (place.to_owned(), rewrites);
        let wanted = [of("filter INPUT", false), of("filter KUBE-X", false)];
        assert_eq!(found, Places::from(wanted));
        let text = "*nat\n-A PREROUTING -p tcp --dport 6379 -j REDIRECT --to-ports 7001\nCOMMIT\n";
        assert_eq!(
            in_iptables(text, 6379),
            Places::from([of("nat PREROUTING", true)])
        );
        assert!(in_iptables(text, 22).is_empty());
        assert!(in_range(":7000", 6379) && in_range("6000:", 6379) && !in_range("x", 6379));
    }
}
