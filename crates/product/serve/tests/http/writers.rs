// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writers that append, rename over, edit in place and truncate beside readers. `ERB_LONG=1`: a million bodies by
//! each way. `ERB_SECONDS`: as many as there are in that time.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use dax_send::{Options, PageCache};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::client::{Answer, Client, Folder};

/// The last one edits as well, and has the file open for longer before: bodies beside it have no lease.
const KINDS: [&str; 5] = ["append", "rename", "edit", "cut", "held"];
/// Of a version of a file: one that is copied with its head, one that is sent for itself.
const BLOCKS: [usize; 2] = [30, 4000];
const BLOCK_BYTES: usize = 64;
const READERS: u64 = 2;
/// Bodies of each way of sending.
const BODIES_SHORT: u64 = 4000;
const BODIES_LONG: u64 = 1_000_000;
/// A file that stands still for so long while somebody edits it looks as if it were whole: it must for 100 ms.
const SLOW_EDIT: Duration = Duration::from_millis(90);
/// A slow edit has ended by then.
const EDITED: Duration = Duration::from_secs(60);
/// An appended file is replaced when it is so many times longer.
const APPENDED_TIMES_MAX: u64 = 8;

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

fn name(kind: &str, blocks: usize) -> String {
    format!("{kind}-{blocks}")
}

/// Makes the next version of a file; returns when the first byte of it was changed.
fn change(root: &Path, kind: &str, blocks: usize, version: u64) -> Instant {
    let path = root.join(name(kind, blocks));
    let replace = |bytes: Vec<u8>| {
        let new = path.with_extension("new");
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
            std::thread::sleep(Duration::from_millis(if version % 5 == 0 {
                300
            } else {
                1
            }));
            file.write_all(&versioned(0, blocks.div_ceil(400)))
                .expect("written");
            let length = file.metadata().expect("facts").len();
            if length > APPENDED_TIMES_MAX * (blocks * BLOCK_BYTES) as u64 {
                replace(versioned(0, blocks));
            }
        }
        "rename" => replace(versioned(version, blocks)),
        _ => {
            // It waits here for the bodies under way.
            let mut file = fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .expect("open");
            if kind == "held" {
                std::thread::sleep(Duration::from_millis(200));
            }
            let begin = Instant::now();
            if kind == "cut" {
                file.set_len(0).expect("cut");
            }
            for part in versioned(version, blocks).chunks(blocks * BLOCK_BYTES / 8) {
                file.write_all(part).expect("written");
                std::thread::yield_now();
            }
            return begin;
        }
    }
    Instant::now()
}

/// What readers have seen.
#[derive(Default)]
struct Seen {
    whole: AtomicU64,
    reset: AtomicU64,
    refused: AtomicU64,
    /// Mixed, beside an edit that the machine had suspended for longer than a file must stand still.
    beside_slow_edits: AtomicU64,
    slow_edits: Mutex<Vec<(&'static str, usize, Instant, Instant)>>,
}

impl Seen {
    fn bodies(&self) -> u64 {
        self.whole.load(Relaxed) + self.reset.load(Relaxed)
    }

    fn text(&self) -> String {
        let [whole, reset, refused, beside] = [
            &self.whole,
            &self.reset,
            &self.refused,
            &self.beside_slow_edits,
        ]
        .map(|count| count.load(Relaxed));
        format!("{whole} whole, {reset} reset, {refused} refused, {beside} beside slow edits")
    }

    fn edited(&self, kind: &'static str, blocks: usize, begin: Instant) {
        if begin.elapsed() >= SLOW_EDIT {
            let mut edits = self.slow_edits.lock().expect("no panic");
            edits.push((kind, blocks, begin, Instant::now()));
        }
    }

    /// Whether a slow edit of the file was under way beside a body that has just ended.
    fn was_edited_slowly(&self, kind: &str, blocks: usize, body: Instant) -> bool {
        let ended = Instant::now();
        let beside = |edit: &&(&str, usize, Instant, Instant)| edit.2 <= ended && edit.3 >= body;
        let own = |edit: &&(&str, usize, Instant, Instant)| (edit.0, edit.1) == (kind, blocks);
        // It may be under way still.
        while ended.elapsed() < EDITED {
            let edits = self.slow_edits.lock().expect("no panic");
            if edits.iter().filter(own).any(|edit| beside(&edit)) {
                return true;
            }
            drop(edits);
            std::thread::sleep(Duration::from_millis(200));
        }
        false
    }
}

/// Reads bodies until it is enough; a mixed one fails.
fn read_until(folder: &Folder, seed: u64, seen: &Seen, is_enough: impl Fn() -> bool) {
    let mut random = StdRng::seed_from_u64(seed);
    while !is_enough() {
        let kind = KINDS[random.random_range(0..KINDS.len())];
        let blocks = BLOCKS[random.random_range(0..BLOCKS.len())];
        let begin = Instant::now();
        let Some(answer) = body(folder, &format!("/{}", name(kind, blocks))) else {
            seen.reset.fetch_add(1, Relaxed);
            continue;
        };
        if answer.status == 503 {
            seen.refused.fetch_add(1, Relaxed);
            continue;
        }
        assert_eq!(answer.status, 200, "{kind}");
        seen.whole.fetch_add(1, Relaxed);
        let length = answer.body.len();
        if !is_of_one_version(&answer.body) {
            let is_slow = seen.was_edited_slowly(kind, blocks, begin);
            assert!(is_slow, "{kind}: a mixed body of {length} bytes");
            seen.beside_slow_edits.fetch_add(1, Relaxed);
        }
        // To cut and to append is more than a step, and what is between is a version as well.
        let fixed = kind == "rename" || kind == "edit" || kind == "held";
        assert!(!fixed || length == blocks * BLOCK_BYTES, "{kind}: {length}");
    }
}

/// Ends what goes on beside a test also when that has found something.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn beside_writers(page_cache: PageCache) {
    let options = Options {
        page_cache,
        ..Options::default()
    };
    let folder = Folder::serve_with(options);
    let root = folder.root();
    let files = KINDS.map(|kind| BLOCKS.map(|blocks| (kind, blocks)));
    let files: Vec<(&str, usize)> = files.into_iter().flatten().collect();
    for (kind, blocks) in &files {
        fs::write(root.join(name(kind, *blocks)), versioned(0, *blocks)).expect("a file");
    }
    let begin = Instant::now();
    let (seen, over) = (Seen::default(), AtomicBool::new(false));
    let time = std::env::var("ERB_SECONDS").ok();
    let time = time.and_then(|seconds| seconds.parse().ok().map(Duration::from_secs));
    let bodies = erb_steady::scaled(BODIES_SHORT, BODIES_LONG);
    let is_enough = || {
        let has_all = seen.bodies() >= bodies;
        over.load(Relaxed) || time.map_or(has_all, |time| begin.elapsed() >= time)
    };
    std::thread::scope(|scope| {
        for (kind, blocks) in files {
            let (root, over, seen) = (&root, &over, &seen);
            scope.spawn(move || {
                let mut version = 0;
                while !over.load(Relaxed) {
                    version += 1;
                    let begin = change(root, kind, blocks, version);
                    seen.edited(kind, blocks, begin);
                    let pause_ms = if version % 2 == 0 { 60 } else { 3 };
                    std::thread::sleep(Duration::from_millis(pause_ms));
                }
            });
        }
        let readers: Vec<_> = (0..READERS)
            .map(|seed| {
                let (folder, seen, over) = (&folder, &seen, &over);
                scope.spawn(move || {
                    let _over = Over(over);
                    read_until(folder, seed, seen, is_enough);
                })
            })
            .collect();
        for reader in readers {
            reader.join().expect("a thread of this test panicked");
        }
    });
    println!("{} in {:?}", seen.text(), begin.elapsed());
    let whole = seen.whole.load(Relaxed);
    let unjudged = seen.beside_slow_edits.load(Relaxed);
    if unjudged > 3 + whole / 10_000 {
        erb_steady::out_of_patience(format_args!("too slow to judge: {}", seen.text()));
    }
    assert!(
        whole > 100 && whole > seen.reset.load(Relaxed),
        "{}",
        seen.text()
    );
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
