// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's decisions are parts: what each knows is its own file's, and no file uses one that
//! uses it. So one can be read, and tested, without the others.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Attribute, Fields, Item, UseTree, Visibility};

use crate::assert_none;
use crate::files;

/// Where they are.
const CRATE: &str = "crates/product/redis/src/";
/// The parts, and what puts them in order: no field of theirs is visible outside their file.
const PARTS: [&str; 21] = [
    "Admissions",
    "Clock",
    "Connections",
    "Core",
    "Detach",
    "Feed",
    "Filling",
    "Fills",
    "Lease",
    "Link",
    "Listeners",
    "Never",
    "Pace",
    "Proofs",
    "Settling",
    "Sweeps",
    "Timer",
    "Touches",
    "Unseen",
    "Walk",
    "Watch",
];

/// A file of the crate, without its tests.
struct Source {
    /// The module's path in the crate.
    module: Vec<String>,
    items: Vec<Item>,
}

fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    for file in files::sources() {
        let Some(name) = file.name.strip_prefix(CRATE) else {
            continue;
        };
        let Some(name) = name.strip_suffix(".rs") else {
            continue;
        };
        // These are declared where they are for tests alone.
        if name.ends_with("tests") || name == "doubles" {
            continue;
        }
        let parsed = syn::parse_file(&file.text);
        let parsed = parsed.unwrap_or_else(|error| panic!("{} is no Rust: {error}", file.name));
        let module = name
            .split('/')
            .filter(|part| !["mod", "lib"].contains(part));
        found.push(Source {
            module: module.map(str::to_owned).collect(),
            items: without_tests(parsed.items),
        });
    }
    assert!(found.len() > 20, "only {} files found", found.len());
    found
}

fn without_tests(mut items: Vec<Item>) -> Vec<Item> {
    let word = |attribute: &Attribute| attribute.parse_args::<syn::Ident>();
    let is_test = |attributes: &[Attribute]| {
        let mut conditions = attributes.iter().filter(|one| one.path().is_ident("cfg"));
        conditions.any(|one| word(one).is_ok_and(|word| word == "test"))
    };
    items.retain(|item| match item {
        Item::Mod(item) => !is_test(&item.attrs),
        Item::Use(item) => !is_test(&item.attrs),
        _ => true,
    });
    items
}

#[test]
fn what_a_part_knows_is_its_own() {
    let mut complaints = Vec::new();
    let mut seen = BTreeSet::new();
    for source in sources() {
        for item in &source.items {
            let Item::Struct(item) = item else { continue };
            let name = item.ident.to_string();
            if !PARTS.contains(&name.as_str()) {
                continue;
            }
            for field in visible(&item.fields) {
                complaints.push(format!("{name}.{field} of {}.rs", source.module.join("/")));
            }
            assert!(seen.insert(name), "two parts of one name");
        }
    }
    assert_eq!(seen.len(), PARTS.len(), "a part is not there: {seen:?}");
    assert_none(
        "no field of a part is visible outside its file",
        &complaints,
    );
}

fn visible(fields: &Fields) -> Vec<String> {
    let open = fields
        .iter()
        .filter(|field| !matches!(field.vis, Visibility::Inherited));
    let name = |field: &syn::Field| {
        field
            .ident
            .as_ref()
            .map_or("0".to_owned(), ToString::to_string)
    };
    open.map(name).collect()
}

#[test]
fn no_file_uses_one_that_uses_it() {
    let sources = sources();
    let modules: BTreeSet<Vec<String>> = sources.iter().map(|one| one.module.clone()).collect();
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in &sources {
        let mut paths = Paths::of(source);
        paths.visit_all(&source.items);
        let used = paths
            .found
            .iter()
            .filter_map(|path| file_of(path, &modules));
        let used = used.filter(|module| *module != source.module);
        let used = used.map(|module| module.join("/")).collect();
        uses.insert(source.module.join("/"), used);
    }
    // The root declares all modules: what it gives to others it may use.
    uses.remove("");
    assert!(uses["turn"].len() > 10, "uses are found: {uses:?}");
    let circles = circle(uses);
    assert_none("files that use each other", &circles);
}

/// Takes away who uses nobody that is left, over and over; who then stays is in a circle or uses one.
fn circle(mut uses: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    loop {
        let left: BTreeSet<String> = uses.keys().cloned().collect();
        let before = uses.len();
        uses.retain(|_, used| used.iter().any(|one| left.contains(one)));
        if uses.len() == before {
            let line = |(file, used): (&String, &BTreeSet<String>)| {
                let used: Vec<&str> = used.intersection(&left).map(String::as_str).collect();
                format!("{file} uses {}", used.join(", "))
            };
            return uses.iter().map(line).collect();
        }
    }
}

/// The file in which the item of this path stands.
fn file_of(path: &[String], modules: &BTreeSet<Vec<String>>) -> Option<Vec<String>> {
    (1..=path.len())
        .rev()
        .map(|length| path[..length].to_vec())
        .find(|start| modules.contains(start))
}

/// Paths into the crate that a file names.
struct Paths {
    /// The file's module, and the one in which `super` stands.
    module: Vec<String>,
    found: Vec<Vec<String>>,
}

impl Paths {
    fn of(source: &Source) -> Self {
        Self {
            module: source.module.clone(),
            found: Vec::new(),
        }
    }

    fn visit_all(&mut self, items: &[Item]) {
        for item in items {
            self.visit_item(item);
        }
    }

    fn take(&mut self, words: &[String]) {
        let above = self.module.len().saturating_sub(1);
        let (start, rest) = match words.split_first() {
            Some((first, rest)) if first == "crate" => (&self.module[..0], rest),
            Some((first, rest)) if first == "super" => (&self.module[..above], rest),
            Some((first, rest)) if first == "self" => (&self.module[..], rest),
            // A module that the file itself declares.
            _ => (&self.module[..], words),
        };
        self.found.push([start, rest].concat());
    }

    fn take_tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: String| [before, &[name]].concat();
        match tree {
            UseTree::Path(path) => self.take_tree(&with(path.ident.to_string()), &path.tree),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.take_tree(before, tree);
                }
            }
            UseTree::Name(name) if name.ident == "self" => self.take(before),
            UseTree::Name(name) => self.take(&with(name.ident.to_string())),
            UseTree::Rename(name) => self.take(&with(name.ident.to_string())),
            UseTree::Glob(_) => self.take(before),
        }
    }
}

impl<'a> Visit<'a> for Paths {
    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.take_tree(&[], &item.tree);
    }

    /// `pub(super)` uses nothing.
    fn visit_vis_restricted(&mut self, _: &'a syn::VisRestricted) {}

    fn visit_path(&mut self, path: &'a syn::Path) {
        let words = path.segments.iter().map(|part| part.ident.to_string());
        let words: Vec<String> = words.collect();
        if ["crate", "super"].contains(&words[0].as_str()) {
            self.take(&words);
        }
        visit::visit_path(self, path);
    }
}

#[test]
fn circles_are_found() {
    let uses = |pairs: &[(&str, &str)]| {
        let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, to) in pairs {
            let used = uses.entry((*from).to_owned()).or_default();
            used.insert((*to).to_owned());
        }
        uses
    };
    assert!(circle(uses(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
    let found = circle(uses(&[("a", "b"), ("b", "c"), ("c", "b")]));
    assert_eq!(found, ["a uses b", "b uses c", "c uses b"]);
}

#[test]
fn paths_are_found_wherever_they_stand() {
    let text = "use crate::a::{self, b::C}; use super::d::e; mod g; use g::h;
        pub(super) fn f() -> crate::i::J { super::k() }
        #[cfg(test)] mod tests { use crate::l; }";
    let source = Source {
        module: vec!["x".to_owned(), "y".to_owned()],
        items: without_tests(syn::parse_file(text).unwrap().items),
    };
    let mut paths = Paths::of(&source);
    paths.visit_all(&source.items);
    let found: Vec<String> = paths.found.iter().map(|path| path.join("/")).collect();
    assert_eq!(found, ["a", "a/b/C", "x/d/e", "x/y/g/h", "i/J", "x/k"]);
}

#[test]
fn open_fields_are_found() {
    let item: syn::ItemStruct = syn::parse_quote! {
        struct Part { own: u8, pub(crate) shared: u8, pub all: u8 }
    };
    assert_eq!(visible(&item.fields), ["shared", "all"]);
}
