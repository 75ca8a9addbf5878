// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who waits while space is short, and who passes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use erb_kv::{Client, Identity, Selector};
use erb_node::{Format, Options, Retention, Role};
use tempfile::TempDir;

use crate::hostile::Over;
use crate::{Running, SMALL, WRITER, add, folder, options, to};

const RESTORER: &str = "nqn.2026-11.org.example:restorer";
const WRITERS: usize = 24;
/// What the writers overwrite is two thirds of the store, in few keys.
const VALUE_BYTES: usize = 64 << 10;
const KEYS: usize = 1500;
/// Restores that are looked at.
const RESTORES: usize = 60;
/// Until space was short for all of them.
const PATIENCE: Duration = erb_steady::patient(Duration::from_secs(120));
/// Nothing but the newest is kept: collecting makes room, and who writes waits for it.
const NOTHING: Retention = Retention {
    min_age_us: 0,
    keep_deleted_us: 0,
    min_count: 1,
};

/// When a client asked for a write, and the version that it got.
type Written = (Instant, u64);

fn node(folder: &TempDir) -> (Running, [Identity; 2]) {
    let wanted = Format {
        path: folder.path().join("store"),
        bytes: Some(SMALL),
        shards: 1,
        may_overwrite: false,
    };
    erb_node::format_keeping(&wanted, NOTHING, &mut |_, _| {}).expect("a store");
    let hosts = folder.path().join("hosts");
    let both = [(WRITER, Role::Writer), (RESTORER, Role::Restorer)];
    let both = both.map(|(nqn, role)| add(&hosts, nqn, role));
    let node = Running::with(&Options {
        hosts: Some(hosts),
        ..options(&wanted.path)
    });
    (node, both)
}

/// Overwrites until it is told to stop. A write that has waited for the node's whole patience has no version.
fn overwrite(mut client: Client, of: usize, ends: &AtomicBool, written: &Mutex<Vec<Written>>) {
    let value = vec![1; VALUE_BYTES];
    let mut number = of;
    while !ends.load(Ordering::Relaxed) {
        let key = format!("w{}", number % KEYS);
        let asked = Instant::now();
        if let Ok(version) = client.put(key.as_bytes(), &value, None) {
            written.lock().expect("writes").push((asked, version));
        }
        // They are overwritten in another order than that of the log.
        number += 7919 * WRITERS;
    }
}

#[test]
fn a_restorer_passes_writers_that_wait_for_space() {
    let folder = folder();
    let (node, [writer, restorer]) = node(&folder);
    let mut client = node.client_as(&restorer);
    client.put(b"r", b"good", None).expect("there is room");
    let good = client.snapshot().expect("a moment");
    client.put(b"r", b"bad", None).expect("there is room");
    let (ends, written) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let mut restored: Vec<Written> = Vec::new();
    thread::scope(|scope| {
        let _over = Over(&ends);
        for of in 0..WRITERS {
            let (client, ends, written) = (node.client_as(&writer), &ends, &written);
            scope.spawn(move || overwrite(client, of, ends, written));
        }
        let begun = Instant::now();
        while restored.len() < RESTORES {
            let level = node.status().space.level;
            if begun.elapsed() > PATIENCE {
                erb_steady::out_of_patience(format_args!(
                    "{} restores: space is {level}",
                    restored.len()
                ));
            }
            if level == "plenty" || level == "low" {
                thread::sleep(Duration::from_millis(5));
                continue;
            }
            let asked = Instant::now();
            let version = client.restore(b"r", Selector::AsOf(good));
            restored.push((asked, version.expect("it is let in")));
            client
                .roll_back(&to(b"r", good))
                .expect("so is a roll back");
        }
    });
    let written = written.into_inner().expect("writes");
    // Writers that had asked before a restore did, and wrote behind it.
    let passed = restored.iter().map(|(asked, version)| {
        let passed = written.iter().filter(|it| it.0 < *asked && it.1 > *version);
        passed.count()
    });
    let mut passed: Vec<usize> = passed.collect();
    passed.sort_unstable();
    println!(
        "{} writes; passed by each restore: {passed:?}",
        written.len()
    );
    let half = passed[RESTORES / 2];
    assert!(half >= WRITERS / 3, "{half} by half of the restores");
    node.stop();
}
