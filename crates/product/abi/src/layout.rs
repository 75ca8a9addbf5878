// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fingerprint of what programs of different builds share. Made by the build script; here again for
//! its tests.

/// What builds of the programs share while one takes the other's place: the maps and what lies in
/// them. A number that lies in a map is declared in one of these.
pub const SHARED: &[&str] = &[
    "base/abi.h",
    "base/latency.def",
    "base/limits.h",
    "base/maps.h",
    "redis/abi.h",
    "redis/log.h",
    "redis/maps.h",
    "redis/fast.def",
    "redis/slow.def",
    "redis/usual.def",
    // How the shared tables are addressed.
    "cache/key_hash.h",
];

/// Where the marks are defined by which XDP, TC ingress and TC egress speak to each other.
pub const MARKS: &[&str] = &["net/tier_xdp.h", "net/tier_skb.h"];

/// Where the counters are declared, in the order of their map.
pub const REASONS: &str = "base/reasons.def";

/// A fingerprint of all that: without comments, and with the counters' names in their order. `read`
/// gives the text of a file of `bpf/`.
///
/// # Errors
/// What `read` says.
pub fn fingerprint<E>(read: impl Fn(&str) -> Result<String, E>) -> Result<u64, E> {
    let mut text = String::new();
    for file in SHARED {
        text += &without_comments(&read(file)?);
    }
    for file in MARKS {
        let source = without_comments(&read(file)?);
        let marks = source.lines().filter(|line| {
            line.starts_with("#define META_") || line.starts_with("#define SKB_MARK_")
        });
        text.extend(marks);
    }
    let reasons = read(REASONS)?;
    let rows = reasons
        .lines()
        .filter_map(|line| line.strip_prefix("REASON("));
    for (name, _) in rows.filter_map(|row| row.split_once(',')) {
        text.extend([name, " "]);
    }
    // FNV-1a.
    Ok(text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    }))
}

/// C source without comments, empty lines and needless blanks. No string in it holds a comment.
fn without_comments(source: &str) -> String {
    let mut code = String::new();
    let mut rest = source;
    while let Some(start) = rest.find("/*") {
        code += &rest[..start];
        let end = rest[start..].find("*/").map(|at| start + at + 2);
        rest = &rest[end.unwrap_or(rest.len())..];
    }
    code += rest;
    let mut lines = String::new();
    for line in code.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if !words.is_empty() {
            lines += &words.join(" ");
            lines.push('\n');
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::{fs, io};

    use super::{SHARED, fingerprint};

    fn read(file: &str) -> io::Result<String> {
        fs::read_to_string(format!(
            "{}/../../../bpf/{file}",
            env!("CARGO_MANIFEST_DIR")
        ))
    }

    /// The fingerprint of sources in which `old`, wherever it stands, is `new`.
    fn edited(old: &str, new: &str) -> u64 {
        fingerprint(|file| Ok::<_, io::Error>(read(file)?.replace(old, new))).expect("the sources")
    }

    #[test]
    fn whatever_moves_in_the_maps_changes_it_and_a_comment_does_not() {
        assert_eq!(fingerprint(read).expect("the sources"), crate::LAYOUT);
        assert_eq!(edited("/*", "/* so to speak, "), crate::LAYOUT);
        let moved = [
            // Numbers: of a connection's state, and of what its scanners wait for.
            ("CONN_FAST,", "CONN_OTHER, CONN_FAST,"),
            ("RQ_ARGC,", "RQ_OTHER, RQ_ARGC,"),
            ("RP_NUMBER,", "RP_OTHER, RP_NUMBER,"),
            ("__u32 in_delta;", "__u64 in_delta;"),
            (
                "REASON(FAST_GET,",
                "REASON(OTHER, event, \"\")\nREASON(FAST_GET,",
            ),
        ];
        for (old, new) in moved {
            assert_ne!(edited(old, new), crate::LAYOUT, "{old} is not part of it");
        }
    }

    #[test]
    fn each_enum_that_a_field_is_said_to_hold_is_part_of_it() {
        let texts = SHARED.iter().map(|file| read(file).expect("a header"));
        let text = texts.collect::<Vec<_>>().concat();
        let named: Vec<&str> = text
            .split("/* enum ")
            .skip(1)
            .map(|rest| rest.split([' ', ':', ',', ';']).next().unwrap_or_default())
            .collect();
        assert!(named.contains(&"request_state") && named.contains(&"reply_state"));
        for name in named {
            assert!(text.contains(&format!("enum {name} {{")), "enum {name}");
        }
    }

    /// What no program includes yet must not change the fingerprint, and must from then on.
    #[test]
    fn the_log_is_part_of_it_as_soon_as_a_program_has_it() {
        let bpf = format!("{}/../../../bpf", env!("CARGO_MANIFEST_DIR"));
        let folders = ["", "base", "net", "cache", "splice", "redis", "trace"];
        let files = folders.iter().flat_map(|folder| {
            let files = fs::read_dir(format!("{bpf}/{folder}")).expect("a folder");
            files.map(|file| file.expect("a file").path())
        });
        let sources = files.filter(|path| path.is_file());
        let texts: Vec<String> = sources
            .map(|path| fs::read_to_string(path).expect("a source"))
            .collect();
        assert!(texts.len() > 50, "only {} sources", texts.len());
        let is_used = texts
            .iter()
            .any(|text| text.contains("#include \"redis/log.h\""));
        assert_eq!(is_used, SHARED.contains(&"redis/log.h"));
    }
}
