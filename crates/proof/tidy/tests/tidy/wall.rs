// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The walls between the folders of `bpf/`, and what headers include. Names are those that a header
//! defines: functions where they are called, types behind `struct` and `enum`, constants in capitals,
//! maps.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;

use crate::assert_none;
use crate::files;

/// Folder, and those whose headers its own may include.
const ARROWS: &[(&str, &[&str])] = &[
    ("base", &["base"]),
    ("net", &["base", "net"]),
    ("cache", &["base", "cache"]),
    ("splice", &["base", "net", "cache", "splice"]),
    ("redis", &["base", "net", "cache", "splice", "redis"]),
    ("trace", &["base", "trace"]),
];

/// What this header includes is what whoever includes it may use: it is the kernel as we see it.
const SEAM: &str = "base/seam.h";
const BEHIND_SEAM: &[&str] = &[
    "base/abi.h",
    "base/kernel_types.h",
    "base/limits.h",
    "base/maps.h",
    "redis/abi.h", // HANDLER_ABI
];
/// The handler's scratch is part of the splice's: HANDLER_WORK.
const WORK: (&str, &str) = ("redis/work.h", "net/work.h");
/// Put together what others define; the object chooses one of the tiers.
const PUT_TOGETHER: &[&str] = &["redis/handler.h", "splice/handler.h"];
const TIERS: &[&str] = &["net/tier_xdp.h", "net/tier_skb.h"];
/// These are included before the maps exist.
const BARE: &[&str] = &["redis/abi.h", "redis/log.h", "base/verdict.h"];

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a valid pattern")
}

/// A header of `bpf/` without comments and strings.
struct Header {
    name: String,
    includes: BTreeSet<String>,
    code: String,
    defines: BTreeSet<String>,
}

fn all(pattern: &Regex, text: &str) -> BTreeSet<String> {
    let found = pattern.captures_iter(text);
    found.map(|found| found[1].to_owned()).collect()
}

fn definitions(code: &str) -> BTreeSet<String> {
    let mut names = all(
        &regex(r"(?m)^(?:INLINE|__noinline|static)[^\n(;]*?\b(\w+)\("),
        code,
    );
    names.extend(all(&regex(r"(?m)^((?:struct|enum) \w+) \{"), code));
    names.extend(all(&regex(r"(?m)^[ \t]*#define (\w+)"), code));
    names.extend(all(&regex(r"(?m)^\} (\w+) SEC"), code));
    for body in regex(r"(?ms)^enum \w+ \{(.*?)\}").captures_iter(code) {
        names.extend(all(
            &regex(r"(?m)\b([A-Z][A-Z0-9_]+)\s*(?:=|,|$)"),
            &body[1],
        ));
    }
    names
}

fn headers() -> Vec<Header> {
    let (comment, string) = (regex(r"(?s)/\*.*?\*/"), regex(r#""[^"\n]*""#));
    let include = regex(r#"(?m)^#include "([^"]+\.h)""#);
    let mut headers = Vec::new();
    for file in files::all() {
        let Some(name) = file.name.strip_prefix("bpf/") else {
            continue;
        };
        if !name.contains('/') || !file.is(&[".h"]) {
            continue;
        }
        let code = comment.replace_all(&file.text, " ");
        let includes = all(&include, &code);
        let code = string.replace_all(&code, "\"\"").into_owned();
        let defines = definitions(&code);
        headers.push(Header {
            name: name.to_owned(),
            includes,
            code,
            defines,
        });
    }
    assert!(headers.len() > 30, "only {} headers found", headers.len());
    headers
}

/// What a header's code uses, in the forms in which definitions are named.
fn uses(header: &Header) -> BTreeSet<String> {
    let code = regex(r"(?m)^\s*#include.*$").replace_all(&header.code, "");
    let mut names = all(&regex(r"\b((?:struct|enum) \w+)"), &code);
    for declared in all(&regex(r"(?m)^(struct \w+);"), &code) {
        names.remove(&declared);
    }
    names.extend(all(&regex(r"\b([a-z_]\w+)\("), &code));
    names.extend(all(&regex(r"\b([A-Z][A-Z0-9_]+)\b"), &code));
    names.extend(all(&regex(r"&(\w+)"), &code));
    names
}

/// Name -> the one header that defines it. A name of several is nobody's: tiers, handlers, traces.
fn owners(headers: &[Header]) -> BTreeMap<&str, &str> {
    let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for header in headers {
        if TIERS.contains(&&*header.name) || header.name.starts_with("trace/") {
            continue;
        }
        for name in &header.defines {
            let promised = name.starts_with("handler_") && header.name != "splice/handler.h";
            if !promised {
                found.entry(name).or_default().insert(&header.name);
            }
        }
    }
    found.retain(|_, owners| owners.len() == 1);
    found
        .into_iter()
        .filter_map(|(name, owners)| owners.into_iter().next().map(|owner| (name, owner)))
        .collect()
}

/// TCP knows no protocol: nothing of the splice, of the net or of the cache names anything of a handler,
/// and nobody includes what lies above him.
#[test]
fn folders_rest_on_those_below_them() {
    let headers = headers();
    let above: BTreeSet<&str> = headers
        .iter()
        .filter(|header| header.name.starts_with("redis/"))
        .flat_map(|header| header.defines.iter().map(String::as_str))
        .filter(|name| !name.contains("handler_"))
        .collect();
    assert!(above.len() > 200, "only {} names of Redis", above.len());
    let part = regex(r"->h\.\w+|\bredis\w*");
    let mut complaints = Vec::new();
    for header in &headers {
        let (folder, _) = header.name.split_once('/').expect("a folder");
        let Some((_, below)) = ARROWS.iter().find(|(name, _)| *name == folder) else {
            complaints.push(format!("bpf/{}: a folder without a place", header.name));
            continue;
        };
        for included in &header.includes {
            let of = included.split('/').next().unwrap_or_default();
            if !below.contains(&of) && included.contains('/') {
                complaints.push(format!("bpf/{}: includes {included}", header.name));
            }
        }
        if !["net", "cache", "splice"].contains(&folder) {
            continue;
        }
        let found = uses(header);
        let named = found.iter().filter(|name| above.contains(&***name));
        complaints.extend(named.map(|name| format!("bpf/{}: names {name}", header.name)));
        for found in part.find_iter(&header.code) {
            complaints.push(format!("bpf/{}: names {}", header.name, found.as_str()));
        }
    }
    assert_none("no folder of bpf/ knows those above it", &complaints);
}

/// A header can be read, moved and thrown away by itself.
#[test]
fn headers_include_what_they_use() {
    let headers = headers();
    let owners = owners(&headers);
    let mut complaints = Vec::new();
    for header in &headers {
        let exempt = header.name.starts_with("base/") || header.name.starts_with("trace/");
        if exempt || BARE.contains(&&*header.name) || header.name == "redis/handler.h" {
            continue;
        }
        let mut wanted: BTreeMap<&str, String> = BTreeMap::new();
        for name in uses(header) {
            let Some(mut owner) = owners.get(&*name).copied() else {
                continue;
            };
            if BEHIND_SEAM.contains(&owner) {
                owner = SEAM;
            }
            if owner == WORK.0 {
                owner = WORK.1;
            }
            let own = header.defines.contains(&name) && !name.starts_with("handler_");
            if owner != header.name && !own && header.name != WORK.0 {
                wanted.entry(owner).or_insert(name);
            }
        }
        for (missing, name) in &wanted {
            if !header.includes.contains(*missing) {
                let text = format!("bpf/{}: uses {name}, which is in {missing}", header.name);
                complaints.push(text);
            }
        }
        for idle in &header.includes {
            let needed = wanted.contains_key(&**idle) || header.name == WORK.0 || idle == SEAM;
            if !needed && !PUT_TOGETHER.contains(&&**idle) {
                complaints.push(format!("bpf/{}: uses nothing of {idle}", header.name));
            }
        }
    }
    assert_none(
        "each header includes what it uses, and no more",
        &complaints,
    );
}
