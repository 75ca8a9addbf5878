// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writers that append, rename over, edit in place and truncate beside readers.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use dax_send::{Options, PageCache};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::client::{Answer, Client, Folder};

const KINDS: [&str; 4] = ["append", "rename", "edit", "cut"];
/// Of a version of a file.
const BLOCKS: usize = 4000;
const BLOCK_BYTES: usize = 64;
/// An appended file is replaced when it is longer.
const APPENDED_BYTES_MAX: u64 = 2_000_000;

/// Reads a body to its end or to the reset.
fn body(folder: &Folder, path: &str) -> Option<Answer> {
    let mut client = Client::connect(folder);
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    client.stream.write_all(request.as_bytes()).ok()?;
    client.answer(true)
}

/// A file of one version: each block is the version's number, over and over.
fn versioned(version: u64, blocks: usize) -> Vec<u8> {
    version.to_le_bytes().repeat(BLOCK_BYTES / 8 * blocks)
}

fn is_of_one_version(bytes: &[u8]) -> bool {
    let Some(first) = bytes.get(..8) else {
        return bytes.is_empty();
    };
    bytes.chunks(8).all(|word| word == first)
}

/// Makes the next version of a file.
fn change(root: &Path, kind: &str, version: u64) {
    let path = root.join(kind);
    let replace = |bytes: Vec<u8>| {
        let new = root.join(format!("{kind}.new"));
        fs::write(&new, bytes).expect("written");
        fs::rename(&new, &path).expect("renamed");
    };
    match kind {
        "append" => {
            // Nothing that was there changes; what is longer is the next version.
            let mut file = fs::OpenOptions::new()
                .append(true)
                .open(&path)
                .expect("open");
            file.write_all(&versioned(0, 10)).expect("written");
            if file.metadata().expect("facts").len() > APPENDED_BYTES_MAX {
                replace(versioned(0, BLOCKS));
            }
        }
        "rename" => replace(versioned(version, BLOCKS)),
        "edit" => {
            let mut file = fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .expect("open");
            for part in versioned(version, BLOCKS).chunks(BLOCK_BYTES * 500) {
                file.write_all(part).expect("written");
                std::thread::yield_now();
            }
        }
        _ => fs::write(&path, versioned(version, BLOCKS)).expect("written"),
    }
}

/// Whole bodies and resets until the end; a mixed body fails.
fn read_until(folder: &Folder, end: Instant) -> (u64, u64) {
    let (mut whole, mut reset) = (0, 0);
    let mut random = StdRng::seed_from_u64(7);
    while Instant::now() < end {
        let kind = KINDS[random.random_range(0..KINDS.len())];
        let Some(answer) = body(folder, &format!("/{kind}")) else {
            reset += 1;
            continue;
        };
        if answer.status == 503 {
            continue;
        }
        assert_eq!(answer.status, 200, "{kind}");
        whole += 1;
        let length = answer.body.len();
        assert!(
            is_of_one_version(&answer.body),
            "{kind}: a mixed body of {length} bytes"
        );
        // To cut and to append is more than a step, and what is between is a version as well.
        let fixed = kind == "rename" || kind == "edit";
        assert!(!fixed || length == BLOCKS * BLOCK_BYTES, "{kind}: {length}");
    }
    (whole, reset)
}

fn beside_writers(page_cache: PageCache) {
    let options = Options {
        page_cache,
        ..Options::default()
    };
    let folder = Folder::serve_with(options);
    let root = folder.root();
    for kind in KINDS {
        fs::write(root.join(kind), versioned(0, BLOCKS)).expect("a file");
    }
    let seconds = if std::env::var_os("ERB_LONG").is_some() {
        600
    } else {
        6
    };
    let end = Instant::now() + Duration::from_secs(seconds);
    let (whole, reset) = std::thread::scope(|scope| {
        for kind in KINDS {
            let root = &root;
            scope.spawn(move || {
                for version in 1.. {
                    if Instant::now() >= end {
                        break;
                    }
                    change(root, kind, version);
                    let pause_ms = if version % 2 == 0 { 60 } else { 3 };
                    std::thread::sleep(Duration::from_millis(pause_ms));
                }
            });
        }
        read_until(&folder, end)
    });
    println!("{whole} whole, {reset} reset");
    assert!(whole > 100, "{whole} whole, {reset} reset");
    let report = folder.stop();
    println!("{report:?}");
    assert_eq!(report.pinned_bytes, 0);
}

#[test]
fn bodies_by_sendfile_are_whole_and_of_one_version_or_reset() {
    beside_writers(PageCache::Sendfile);
}

#[test]
fn bodies_by_zero_copy_are_whole_and_of_one_version_or_reset() {
    beside_writers(PageCache::ZeroCopy);
}
