// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is read in words, or by lengths alone, is what is read byte by byte (`bpf/redis/scan_request.h`,
//! `bpf/redis/usual_reply.h`, `bpf/net/csum.h`): `tests/streams/streams.c`, with the functions as they are and with
//! mistakes in them.

use erb_sim_kernel::Library;

use crate::programs::{self, Build};

#[test]
fn streams_in_any_pieces_are_those_of_single_bytes() {
    let counts = programs::run("streams", &Library::sources(), "streams", Build::Optimised);
    assert_eq!(counts.of("wrong"), 0, "{counts:?}");
    assert!(counts.of("requests") > 100_000 && counts.of("effects") > 50_000);
    assert!(counts.of("lost") > 500 && counts.of("replies") > 100);
}

/// A name, a file, and a text exchanged.
type Mistake = (&'static str, &'static str, (&'static str, &'static str));

const MISTAKES: &[Mistake] = &[
    (
        "word-from-anywhere",
        "redis/scan_request.h",
        ("(s->number - s->skip) % 8 || n > avail", "n > avail"),
    ),
    (
        "word-half-come",
        "redis/scan_request.h",
        (
            "(s->number - s->skip) % 8 || n > avail",
            "(s->number - s->skip) % 8",
        ),
    ),
    (
        "word-with-what-follows",
        "redis/scan_request.h",
        ("n < 8 ? word & ((1ULL << n * 8) - 1) : word", "word"),
    ),
    (
        "word-s-place",
        "redis/scan_request.h",
        (
            "hash_word(&c->hash, s->hash, word, (s->number - s->skip) / 8)",
            "hash_word(&c->hash, s->hash, word, 0)",
        ),
    ),
    (
        "word-z-stays",
        "redis/command.h",
        ("0x2525252525252525ULL", "0x2626262626262626ULL"),
    ),
    (
        "arguments-over-a-key",
        "redis/requests.h",
        ("if (!stop || stop > left)", "if (stop)"),
    ),
    (
        "arguments-behind-the-packet",
        "redis/requests.h",
        ("if (!bytes || pos + bytes > w->scan_len)", "if (!bytes)"),
    ),
    (
        "length-with-a-zero-in-front",
        "redis/resp.h",
        ("if (!a || b > 9)", "if (b > 9)"),
    ),
    (
        "ok-and-more",
        "redis/usual_reply.h",
        ("return len == RESP_OK_BYTES;", "return true;"),
    ),
    (
        "number-and-more",
        "redis/usual_reply.h",
        ("return len == 4;", "return true;"),
    ),
    (
        "fold-without-the-carry",
        "net/csum.h",
        ("half += half << 16 | half >> 16;", "half += half << 16;"),
    ),
];

#[test]
fn mistakes_in_words_are_seen() {
    for (name, file, edit) in MISTAKES {
        let bpf = programs::edited(name, file, &[*edit]);
        let counts = programs::run("streams", &bpf, name, Build::Quick);
        assert!(counts.of("wrong") > 0, "{name}: {counts:?}");
    }
}
