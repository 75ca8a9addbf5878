// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The order in which mistakes are judged, and the records of what was judged.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;

use erb_sim::mutate::judged::{DAEMON, JUDGES, Progress, Sources, order};

fn sources(pairs: &[(&str, &str)]) -> Sources {
    let pairs = pairs
        .iter()
        .map(|(name, hash)| ((*name).to_owned(), (*hash).to_owned()));
    Sources(pairs.collect())
}

#[test]
fn mistakes_of_changed_files_come_first_and_all_come() {
    let before = sources(&[("bpf/a.h", "1"), ("bpf/b.h", "1"), (DAEMON, "1")]);
    let now = sources(&[
        ("bpf/a.h", "1"),
        ("bpf/b.h", "2"),
        (DAEMON, "1"),
        ("bpf/c.h", "1"),
    ]);
    let files = [
        vec!["a.h"],
        vec!["a.h", "b.h"],
        vec![DAEMON],
        vec!["c.h"],
        vec!["b.h"],
    ];
    let mut orders = BTreeSet::new();
    for draw in 0..20 {
        let (order, changed) = order(&files, &now, &before, draw);
        assert_eq!(changed, 3);
        let first: BTreeSet<usize> = order[..3].iter().copied().collect();
        assert_eq!(
            first,
            BTreeSet::from([1, 3, 4]),
            "those of b.h and of the new c.h"
        );
        let all: BTreeSet<usize> = order.iter().copied().collect();
        assert_eq!(all.len(), files.len());
        orders.insert(order);
    }
    assert!(orders.len() > 3, "a commit draws its own order");
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let text = "# about\n1234  bpf/a.h\nabcd  crates/proof/sim/src\n";
    let read = Sources::parsed(text);
    assert_eq!(
        read,
        sources(&[("bpf/a.h", "1234"), ("crates/proof/sim/src", "abcd")])
    );
    assert!(read.judges_differ(&sources(&[("bpf/a.h", "1234")])));
    assert!(!read.any_differs(&read.clone(), &["a.h"]));
}

#[test]
fn this_tree_has_all_that_is_recorded() {
    let now = Sources::now().expect("sources");
    for name in JUDGES.iter().chain([&DAEMON, &"bpf/splice/splice.h"]) {
        assert!(now.0.contains_key(*name), "{name}");
    }
    assert_eq!(now, Sources::now().expect("sources"));
}

#[test]
fn progress_goes_on_and_a_cut_name_is_none() {
    let folder = std::env::temp_dir().join(format!("erb-judged-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let now = sources(&[("bpf/a.h", "1")]);
    let mut progress = Progress::open(&folder, &now);
    progress.add("one").expect("written");
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(&progress.path)
        .expect("there");
    file.write_all(b"tw").expect("written");
    let again = Progress::open(&folder, &now);
    assert!(again.has("one") && !again.has("tw") && !again.has("two"));
    let other = Progress::open(&folder, &sources(&[("bpf/a.h", "2")]));
    assert!(!other.has("one"), "other sources");
    fs::remove_dir_all(&folder).expect("removed");
}
