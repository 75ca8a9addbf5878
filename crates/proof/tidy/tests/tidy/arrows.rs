// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which crate may use which, read from the Cargo.toml files.

use std::collections::BTreeMap;

use crate::assert_none;
use crate::files::{File, all};

/// What tools may use of the product: what it says (JSON, exit codes), its tables of commands and
/// limits, and the libraries that others use as crates as well.
const FOR_TOOLS: [&str; 5] = ["erb-report", "erb-abi", "erb-clang", "dax-send", "erb-kv"];

/// What has no command line of the product's yet, and who measures it from within: the drain. Whoever mounts
/// it in the daemon takes this away. And the storage node's engine, which has bars of its own with no network before it.
const FROM_WITHIN: [(&str, &str); 2] = [("erb-bench", "erb-redis"), ("erb-bench", "erb-node")];

/// What tests of every crate may use: it tells failures of the machine from those of the change.
const FOR_TESTS: &str = "erb-steady";

/// A member of the workspace.
struct Member {
    /// `product`, `tools` or `proof`.
    group: String,
    /// What its Cargo.toml names, for tests and build scripts too.
    uses: Vec<Use>,
}

struct Use {
    package: String,
    /// Of `[dev-dependencies]`: nothing that is shipped has it.
    is_for_tests: bool,
}

/// Members by package name.
fn members(files: &[File]) -> BTreeMap<String, Member> {
    let manifests = files.iter().filter_map(|file| {
        let folder = file.name.strip_suffix("/Cargo.toml")?;
        let group = folder.strip_prefix("crates/")?.split('/').next()?;
        Some(member(group, &file.text))
    });
    manifests.collect()
}

fn member(group: &str, manifest: &str) -> (String, Member) {
    let mut section = "";
    let mut name = String::new();
    let mut uses = Vec::new();
    let uses_in = |kind: &str, package: &str| Use {
        package: package.to_owned(),
        is_for_tests: kind.ends_with("dev-"),
    };
    for line in manifest.lines() {
        if let Some(heading) = line.strip_prefix('[') {
            section = heading.trim_end_matches(']');
            // [dependencies.NAME]
            let named = section.split_once("dependencies.");
            uses.extend(named.map(|(kind, package)| uses_in(kind, package)));
        } else if let Some((key, value)) = line.split_once('=') {
            if section == "package" && key.trim() == "name" {
                name = value.trim().trim_matches('"').to_owned();
            } else if let Some(kind) = section.strip_suffix("dependencies") {
                // NAME = ..., NAME.workspace = true
                let package = key.trim().split('.').next();
                uses.extend(package.map(|package| uses_in(kind, package)));
            }
        }
    }
    let group = group.to_owned();
    (name, Member { group, uses })
}

/// Whether a crate of the group `from` may use the crate `to` of the group `of`.
fn may_use(from: &str, to: &str, of: &str) -> bool {
    match from {
        "product" => of == "product",
        "tools" => of == "tools" || FOR_TOOLS.contains(&to),
        _ => true,
    }
}

fn forbidden(members: &BTreeMap<String, Member>) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, member) in members {
        for used in &member.uses {
            let Use {
                package: used,
                is_for_tests,
            } = used;
            let Some(other) = members.get(used) else {
                continue;
            };
            let is_measured = FROM_WITHIN.contains(&(name.as_str(), used.as_str()));
            let is_of_tests = *is_for_tests && used == FOR_TESTS;
            if !is_measured && !is_of_tests && !may_use(&member.group, used, &other.group) {
                let (from, of) = (&member.group, &other.group);
                complaints.push(format!("{name} ({from}) uses {used} ({of})"));
            }
        }
    }
    complaints
}

/// The product must be whole without what measures and proves it, so that it can be shipped and read
/// alone. Tools see the product as its users do, by command line and JSON: what they find holds for
/// those as well.
#[test]
fn product_uses_neither_tools_nor_proof_and_tools_use_its_words_alone() {
    let members = members(&all());
    for group in ["product", "tools", "proof"] {
        let count = members.values().filter(|it| it.group == group).count();
        assert!(count > 3, "only {count} crates of {group} found");
    }
    assert_none("arrows between crates go one way", &forbidden(&members));
    let uses = &members[FOR_TESTS].uses;
    assert!(uses.is_empty(), "every crate's tests would have it as well");
}

#[test]
fn forbidden_arrows_are_found() {
    let crates = |uses: &str| {
        BTreeMap::from([
            member("product", "[package]\nname = \"erb\"\n"),
            member("product", "[package]\nname = \"erb-report\"\n"),
            member("tools", &format!("[package]\nname = \"erb-lab\"\n{uses}")),
        ])
    };
    let allowed = "[dependencies]\nerb-report = { workspace = true }\nclap = \"4\"\n";
    assert!(forbidden(&crates(allowed)).is_empty());
    for uses in [
        "[dependencies]\nerb = { workspace = true }\n",
        "[dev-dependencies]\nerb.workspace = true\n",
        "[build-dependencies.erb]\nworkspace = true\n",
    ] {
        let found = forbidden(&crates(uses));
        assert_eq!(found, ["erb-lab (tools) uses erb (product)"], "{uses}");
    }
}

#[test]
fn what_is_for_tests_is_found_among_what_is_shipped() {
    let crates = |uses: &str| {
        BTreeMap::from([
            member("proof", "[package]\nname = \"erb-steady\"\n"),
            member("proof", "[package]\nname = \"erb-sim\"\n"),
            member("product", &format!("[package]\nname = \"erb\"\n{uses}")),
        ])
    };
    for allowed in [
        "[dependencies]\nclap = \"4\"\n\n[dev-dependencies]\nerb-steady = { workspace = true }\n",
        "[dev-dependencies.erb-steady]\nworkspace = true\n\n[dependencies]\nclap = \"4\"\n",
        "[target.'cfg(unix)'.dev-dependencies]\nerb-steady.workspace = true\n",
    ] {
        assert_eq!(forbidden(&crates(allowed)), [] as [&str; 0], "{allowed}");
    }
    for (uses, what) in [
        (
            "[dependencies]\nerb-steady.workspace = true\n",
            "erb-steady",
        ),
        (
            "[dev-dependencies]\nclap = \"4\"\n[dependencies]\nerb-steady.workspace = true\n",
            "erb-steady",
        ),
        (
            "[build-dependencies.erb-steady]\nworkspace = true\n",
            "erb-steady",
        ),
        (
            "[target.'cfg(unix)'.dependencies]\nerb-steady.workspace = true\n",
            "erb-steady",
        ),
        (
            "[dev-dependencies]\nerb-sim = { workspace = true }\n",
            "erb-sim",
        ),
    ] {
        let told = format!("erb (product) uses {what} (proof)");
        assert_eq!(forbidden(&crates(uses)), [told], "{uses}");
    }
}
