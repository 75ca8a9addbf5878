// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A second handler behind `bpf/splice/handler.h`: each frame is its own answer. It proves that the
//! splice needs nothing of Redis; nobody ships it.
//!
//! A frame is `E`, its kind, the bytes of its body (two bytes, big endian) and the body. A frame of kind
//! `f` may be answered at the card, one of kind `s` only by the server.

use std::path::{Path, PathBuf};

/// Folder of `xdp.bpf.o`, `tc.bpf.o` and `control.bpf.o`.
#[must_use]
pub fn objects() -> &'static Path {
    Path::new(env!("ERB_ECHO_OBJECTS"))
}

/// The handler's sources: `xdp.bpf.c`, `tc.bpf.c` and the folder `echo`, to be laid over `bpf/`.
#[must_use]
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf")
}

/// A frame that may be answered at the card.
///
/// # Panics
/// If the body is longer than a frame can say.
#[must_use]
pub fn fast(body: &[u8]) -> Vec<u8> {
    frame(b'f', body)
}

/// A frame that only the server answers.
///
/// # Panics
/// If the body is longer than a frame can say.
#[must_use]
pub fn slow(body: &[u8]) -> Vec<u8> {
    frame(b's', body)
}

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let bytes = u16::try_from(body.len()).expect("a body of at most 65,535 bytes");
    [&[b'E', kind], &bytes.to_be_bytes()[..], body].concat()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_frame_says_how_long_it_is() {
        assert_eq!(super::fast(b"abc"), b"Ef\0\x03abc");
        assert_eq!(super::slow(&[7; 258])[..4], [b'E', b's', 1, 2]);
    }
}
