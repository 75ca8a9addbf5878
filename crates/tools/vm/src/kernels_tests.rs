// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of [`super`], on indices that Debian's servers had: see `recorded/`.

use super::*;

fn recorded() -> Kernels {
    let indices = [
        ("bookworm", include_str!("../recorded/bookworm")),
        (
            "bookworm-security",
            include_str!("../recorded/bookworm-security"),
        ),
        (
            "bookworm-backports",
            include_str!("../recorded/bookworm-backports"),
        ),
        (
            "trixie-security",
            include_str!("../recorded/trixie-security"),
        ),
        (
            "trixie-backports",
            include_str!("../recorded/trixie-backports"),
        ),
    ];
    let all = indices
        .iter()
        .flat_map(|(suite, text)| packages(text, suite));
    Kernels::new(all.collect())
}

fn taken(wanted: &str, needed: Needed) -> (String, Option<String>) {
    let taken = recorded().take(&wanted.parse().unwrap(), needed).unwrap();
    (taken.kernel.version.to_string(), taken.instead_of)
}

fn is_there(version: &str) -> (String, Option<String>) {
    (version.to_owned(), None)
}

#[test]
fn a_kernel_is_known_with_its_suite_and_its_headers() {
    let kernels = recorded();
    let of = |version: &str| {
        let mut all = kernels.all().iter();
        let found = all.find(|kernel| kernel.version.as_str() == version);
        found
            .unwrap_or_else(|| panic!("{version} is there"))
            .clone()
    };
    let kernel = of("6.12.117+deb12");
    assert_eq!(kernel.suites, ["bookworm-security"]);
    assert_eq!(
        kernel.headers.as_deref(),
        Some("linux-headers-6.12.117+deb12-amd64")
    );
    let kernel = of("6.12.100+deb12");
    assert_eq!(
        (kernel.image.as_str(), kernel.headers),
        ("linux-image-6.12.100+deb12-amd64", None)
    );
    // The packages that only name the newest, and other builds, are none.
    assert!(
        kernels
            .all()
            .iter()
            .all(|kernel| !kernel.image.contains("cloud"))
    );
    assert!(kernels.all().is_sorted_by(|a, b| a.version < b.version));
}

#[test]
fn the_newest_of_a_series_and_of_all_are_taken() {
    assert_eq!(taken("6.12", Needed::Image), is_there("6.12.118+deb13"));
    assert_eq!(taken("newest", Needed::Image), is_there("7.3.4+deb13"));
    assert_eq!(taken("6.1", Needed::Image), is_there("6.1.0-50"));
    assert_eq!(
        taken("6.12.100+deb12", Needed::Image),
        is_there("6.12.100+deb12")
    );
}

#[test]
fn a_module_is_built_for_what_has_headers() {
    assert_eq!(taken("6.12", Needed::Headers), is_there("6.12.118+deb13"));
    assert_eq!(taken("newest", Needed::Headers), is_there("7.3.4+deb13"));
    let (version, instead_of) = taken("6.12.100+deb12", Needed::Headers);
    assert_ne!(version, "6.12.100+deb12");
    assert_eq!(instead_of.as_deref(), Some("6.12.100+deb12"));
}

#[test]
fn what_has_vanished_is_replaced_by_the_next() {
    let instead = |version: &str, of: &str| (version.to_owned(), Some(of.to_owned()));
    assert_eq!(
        taken("6.12.107+deb12", Needed::Image),
        instead("6.12.115+deb12", "6.12.107+deb12")
    );
    assert_eq!(
        taken("6.18", Needed::Image),
        instead("6.19.14+deb13", "6.18")
    );
    assert_eq!(
        taken("6.6", Needed::Image),
        instead("6.12.118+deb13", "6.6")
    );
    // Nothing newer is left: the newest.
    assert_eq!(taken("9.1", Needed::Image), instead("7.3.4+deb13", "9.1"));
    assert_eq!(
        taken("7.3.9+deb13", Needed::Image),
        instead("7.3.4+deb13", "7.3.9+deb13")
    );
    assert_eq!(
        Kernels::default().take(&Wanted::Newest, Needed::Image),
        None
    );
}

#[test]
fn what_the_servers_refuse_is_left_out() {
    let mut kernels = recorded();
    kernels.forget(&Version::parse("7.3.4+deb13").unwrap());
    let taken = kernels.take(&Wanted::Newest, Needed::Image).unwrap();
    assert_eq!(taken.kernel.version.as_str(), "7.2.12+deb13");
}

#[test]
fn a_kernel_is_found_by_what_its_package_needs() {
    let kernels = recorded();
    let parts = |name: &str| {
        let mut names: Vec<_> = kernels
            .parts(name)
            .iter()
            .map(|one| one.name.clone())
            .collect();
        names.sort();
        names
    };
    assert_eq!(
        parts("linux-image-6.12.117+deb12-amd64"),
        ["linux-image-6.12.117+deb12-amd64"]
    );
    assert_eq!(
        parts("linux-image-7.3.4+deb13-amd64"),
        [
            "linux-base-7.3.4+deb13-amd64",
            "linux-binary-7.3.4+deb13-amd64",
            "linux-image-7.3.4+deb13-amd64",
            "linux-modules-7.3.4+deb13-amd64",
        ]
    );
    assert_eq!(
        parts("linux-headers-6.12.117+deb12-amd64"),
        [
            "linux-headers-6.12.117+deb12-amd64",
            "linux-headers-6.12.117+deb12-common",
            "linux-kbuild-6.12.117+deb12",
        ]
    );
}
