// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which kernels there are, and which one is taken.
//!
//! Debian has images longer than the headers by which a module is built, and takes both away within days of the
//! next one. So a kernel is wanted by its series, and one that has gone is replaced by the next; whoever asked is told.
//! From 6.19 on the package of an image has nothing but dependencies, which lead to what it is made of.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::version::{Series, Version, Wanted};

/// Beginning of the names of packages that are a kernel or part of one.
const NAMES: [&str; 6] = [
    "linux-image-",
    "linux-binary-",
    "linux-modules-",
    "linux-base-",
    "linux-headers-",
    "linux-kbuild-",
];
/// End of the names of those for this processor.
const PROCESSOR: &str = "-amd64";

/// A package of a suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version, which is not the kernel's.
    pub version: String,
    /// The suite that has it.
    pub suite: String,
    /// Packages that it needs, of which there is no choice.
    pub needs: Vec<Need>,
}

/// Something that a package needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The name.
    pub name: String,
    /// Whether it has to be of one version: so are the parts of one kernel.
    pub exact: bool,
}

/// The packages of kernels in an index of a suite, as Debian writes it.
#[must_use]
pub fn packages(index: &str, suite: &str) -> Vec<Package> {
    let mut found = Vec::new();
    for stanza in index.split("\n\n") {
        let value = |key: &str| {
            let mut lines = stanza.lines();
            lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
        };
        let Some(name) = value("Package").filter(|name| is_of_kernel(name)) else {
            continue;
        };
        found.push(Package {
            name: name.to_owned(),
            version: value("Version").unwrap_or_default().to_owned(),
            suite: suite.to_owned(),
            needs: value("Depends").map(needs).unwrap_or_default(),
        });
    }
    found
}

fn is_of_kernel(name: &str) -> bool {
    NAMES.iter().any(|begin| name.starts_with(begin))
}

fn needs(text: &str) -> Vec<Need> {
    let sure = text.split(',').filter(|one| !one.contains('|'));
    let need = sure.filter_map(|one| {
        let (name, bound) = one.trim().split_once(' ').unwrap_or((one.trim(), ""));
        Some(Need {
            name: is_of_kernel(name).then(|| name.to_owned())?,
            exact: bound.starts_with("(= "),
        })
    });
    need.collect()
}

/// A kernel that can be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kernel {
    /// Its version.
    pub version: Version,
    /// The package of its image.
    pub image: String,
    /// The package of its headers, without which no module can be built.
    pub headers: Option<String>,
    /// The suites that have the image.
    pub suites: Vec<String>,
}

/// What must be there beside the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needed {
    /// Nothing.
    Image,
    /// Headers, by which a module is built.
    Headers,
}

/// A kernel that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// It.
    pub kernel: Kernel,
    /// What was wanted and is not there.
    pub instead_of: Option<String>,
}

/// All kernels of some suites.
#[derive(Clone, Debug, Default)]
pub struct Kernels {
    packages: BTreeMap<String, Package>,
    all: Vec<Kernel>,
}

impl Kernels {
    /// From the packages of all suites.
    #[must_use]
    pub fn new(packages: Vec<Package>) -> Self {
        let mut suites: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut by_name = BTreeMap::new();
        for package in packages {
            let of_name = suites.entry(package.name.clone()).or_default();
            of_name.insert(package.suite.clone());
            by_name.insert(package.name.clone(), package);
        }
        let mut all: Vec<Kernel> = by_name
            .keys()
            .filter_map(|name| {
                let version = name.strip_prefix("linux-image-")?.strip_suffix(PROCESSOR)?;
                let headers = format!("linux-headers-{version}{PROCESSOR}");
                Some(Kernel {
                    version: Version::parse(version)?,
                    image: name.clone(),
                    headers: by_name.contains_key(&headers).then_some(headers),
                    suites: suites[name].iter().cloned().collect(),
                })
            })
            .collect();
        all.sort_by(|a, b| a.version.cmp(&b.version));
        Self {
            packages: by_name,
            all,
        }
    }

    /// From the oldest to the newest.
    #[must_use]
    pub fn all(&self) -> &[Kernel] {
        &self.all
    }

    /// The package of this name.
    #[must_use]
    pub fn package(&self, name: &str) -> Option<&Package> {
        self.packages.get(name)
    }

    /// As if this one were not there: what the servers refuse is none.
    pub fn forget(&mut self, version: &Version) {
        self.all.retain(|kernel| kernel.version != *version);
    }

    /// The kernel that is taken for what is wanted; none if there is none at all.
    #[must_use]
    pub fn take(&self, wanted: &Wanted, needed: Needed) -> Option<Taken> {
        let good = |kernel: &&Kernel| match needed {
            Needed::Image => true,
            Needed::Headers => kernel.headers.is_some(),
        };
        let good: Vec<&Kernel> = self.all.iter().filter(good).collect();
        let last_of = |series: Series| {
            let mut newest_first = good.iter().rev();
            newest_first.find(|kernel| kernel.version.series() == series)
        };
        let found = match wanted {
            Wanted::Newest => good.last(),
            // None of Debian's.
            Wanted::Debug => return None,
            Wanted::Series(series) => last_of(*series),
            Wanted::Version(version) => good.iter().find(|kernel| kernel.version == *version),
        };
        let taken = |kernel: &Kernel, instead_of| Taken {
            kernel: kernel.clone(),
            instead_of,
        };
        if let Some(kernel) = found {
            return Some(taken(kernel, None));
        }
        let next = match wanted {
            Wanted::Newest | Wanted::Debug => None,
            Wanted::Series(series) => next_series(&good, *series).and_then(last_of),
            Wanted::Version(version) => good.iter().find(|kernel| kernel.version > *version),
        };
        let kernel = next.or_else(|| good.last())?;
        Some(taken(kernel, Some(wanted.to_string())))
    }

    /// The packages that a kernel, or its headers, is made of; itself first.
    #[must_use]
    pub fn parts(&self, name: &str) -> Vec<&Package> {
        let mut found: Vec<&Package> = Vec::new();
        let mut next = vec![name.to_owned()];
        while let Some(name) = next.pop() {
            let known = found.iter().any(|package| package.name == name);
            let Some(package) = self.package(&name).filter(|_| !known) else {
                continue;
            };
            found.push(package);
            let of_image = !name.starts_with("linux-headers-");
            let part = |need: &&Need| {
                let builds = need.name.starts_with("linux-headers-")
                    || need.name.starts_with("linux-kbuild-");
                if of_image { need.exact } else { builds }
            };
            next.extend(
                package
                    .needs
                    .iter()
                    .filter(part)
                    .map(|need| need.name.clone()),
            );
        }
        found
    }
}

/// The first series behind this one.
fn next_series(kernels: &[&Kernel], series: Series) -> Option<Series> {
    let mut all = kernels.iter().map(|kernel| kernel.version.series());
    all.find(|one| *one > series)
}

#[cfg(test)]
#[path = "kernels_tests.rs"]
mod tests;
