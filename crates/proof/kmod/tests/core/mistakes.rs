// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deliberate mistakes in the core: each must be found, or the tests beside this one prove little.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Sanitizer, compiled, root, run};

/// File of `kmod/core`, what is in it once, what stands there instead, which run finds it.
const MISTAKES: [(&str, &str, &str, &str); 13] = [
    // F3: what was not written is freed by a sync.
    (
        "sink.h",
        "->syncing = s->merge.fifos[at]->written",
        "->syncing = s->merge.fifos[at]->read",
        "race",
    ),
    // F2: bytes are not there when the head says so.
    (
        "sink.h",
        "core_release(&fifo->head,",
        "core_store(&fifo->head,",
        "race",
    ),
    // F3: the room is written over while a batch is made of it.
    (
        "fifo.h",
        "return end - fifo->tail_seen <= fifo->size;",
        "return end - fifo->tail_seen <= 2 * fifo->size;",
        "random",
    ),
    // F4: a reservation is not looked at.
    (
        "sink.h",
        "if (bytes > fifo->reserved) {",
        "if (core_load(&s->page->gate) != GATE_OPEN || bytes > fifo->reserved) {",
        "random",
    ),
    // M3: a number that is missing is passed over.
    (
        "merge.h",
        "m->heap[0].lsn > m->next ? MERGE_MISSING : MERGE_BACKWARD",
        "MERGE_READY",
        "random",
    ),
    // S2: records are taken while no file is at work.
    (
        "sink.h",
        "if (core_load(&s->page->gate) != GATE_OPEN)\n\t\treturn -ESHUTDOWN;",
        "(void)s;",
        "random",
    ),
    // S4: the next file begins behind what was written, not behind what was synced.
    (
        "sink.h",
        "merge_restart(&s->merge, synced_lsn + 1)",
        "merge_restart(&s->merge, s->merge.next)",
        "random",
    ),
    // S7: a file of which a write failed is synced.
    (
        "sink.h",
        "if (!gate_sound(&s->page->gate) || !core_exchange",
        "if (!core_exchange",
        "random",
    ),
    // A file takes the place of one that ends.
    (
        "sink.h",
        "core_load(&page->gate) != GATE_OPEN || s->next.first_lsn",
        "s->next.first_lsn",
        "random",
    ),
    // A number that is late is one that never comes.
    (
        "sink.h",
        "now - s->missing_since > patience",
        "now > patience",
        "random",
    ),
    // As is another one than was missed before.
    (
        "sink.h",
        "!s->missing_since || s->batch_records",
        "!s->missing_since",
        "random",
    ),
    // R2: the largest record is longer in a segment.
    (
        "sink.h",
        "s->batch_bytes >= SEGMENT_RECORD_BYTES_MAX",
        "s->batch_bytes >= RECORD_BYTES_MAX",
        "random",
    ),
    // S2: what was reserved is taken when the file has gone.
    (
        "sink.h",
        "core_store(&s->merge.fifos[at]->reserved, 0);",
        "(void)s;",
        "random",
    ),
];

/// The core with one text exchanged.
fn edited(file: &str, find: &str, replace: &str, name: &str) -> PathBuf {
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(to.join("core")).expect("a folder");
    fs::copy(root().join("kmod/erb_io.h"), to.join("erb_io.h")).expect("a copy");
    for entry in fs::read_dir(root().join("kmod/core")).expect("the core") {
        let entry = entry.expect("a header");
        let mut text = fs::read_to_string(entry.path()).expect("text");
        if entry.file_name() == file {
            assert_eq!(text.matches(find).count(), 1, "{file} has not one {find:?}");
            text = text.replace(find, replace);
        }
        fs::write(to.join("core").join(entry.file_name()), text).expect("a copy");
    }
    to
}

#[test]
fn each_mistake_is_found() {
    let mut unseen = Vec::new();
    for (number, (file, find, replace, command)) in MISTAKES.into_iter().enumerate() {
        let sanitizer = match command {
            "race" => Sanitizer::Thread,
            _ => Sanitizer::Address,
        };
        let name = format!("mistake-{number}");
        let kmod = edited(file, find, replace, &format!("{name}.d"));
        let program = compiled(&name, sanitizer, &kmod);
        // Most are found by the first; threads that never meet on a machine of one processor need more.
        let is_found = (1..=20).any(|seed: u32| {
            let folder = tempfile::tempdir().expect("a folder");
            let arguments = [command, &seed.to_string(), "10000"];
            let done = run(&program, &arguments, folder.path());
            !done.status.success() || !crate::disk::is_right(&done, folder.path())
        });
        if !is_found {
            unseen.push(find);
        }
    }
    assert!(unseen.is_empty(), "not seen: {unseen:#?}");
}
