// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The compiled objects, each included once; of the three that are the data path, a build id by which two builds are told apart.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use crate::{Error, Result};

/// A compiled object, by its source's name.
macro_rules! object {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o"))
    };
}

const CONTROL: &[u8] = object!("control");
const XDP: &[u8] = object!("xdp");
const TC: &[u8] = object!("tc");
pub(crate) const TRACE_XDP: &[u8] = object!("trace_xdp");
pub(crate) const TRACE_TC: &[u8] = object!("trace_tc");
pub(crate) const FRONT: &[u8] = object!("front");
pub(crate) const NAGLE: &[u8] = object!("nagle");

/// Names of the objects. The first is loaded alone, the others side by side.
const NAMES: [&str; 3] = ["control", "xdp", "tc"];

/// Bytes of the largest object file that is read: some thirty times those of the largest one that is built here.
const OBJECT_BYTES_MAX: u64 = 16 << 20;

fn read_object(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(OBJECT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > OBJECT_BYTES_MAX {
        return Err(io::Error::other(format!(
            "it has more than {OBJECT_BYTES_MAX} bytes, so it is no object of this program"
        )));
    }
    Ok(bytes)
}

/// The objects of one build.
#[derive(Clone, Debug)]
pub struct Programs {
    objects: [(&'static str, Cow<'static, [u8]>); 3],
    build: String,
}

impl Programs {
    /// Those that this program was built with.
    #[must_use]
    pub fn builtin() -> Self {
        let [control, xdp, tc] = NAMES;
        Self::new([
            (control, Cow::Borrowed(CONTROL)),
            (xdp, Cow::Borrowed(XDP)),
            (tc, Cow::Borrowed(TC)),
        ])
    }

    /// Another build of the same sources: `xdp.bpf.o`, `tc.bpf.o` and `control.bpf.o` in `folder`.
    ///
    /// # Errors
    /// [`Error::System`] if one cannot be read.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let read = |name: &'static str| {
            let path = folder.join(format!("{name}.bpf.o"));
            match read_object(&path) {
                Ok(bytes) => Ok((name, Cow::Owned(bytes))),
                Err(reason) => Err(Error::System {
                    what: format!("could not read {}", path.display()),
                    reason,
                }),
            }
        };
        let [control, xdp, tc] = NAMES;
        Ok(Self::new([read(control)?, read(xdp)?, read(tc)?]))
    }

    fn new(objects: [(&'static str, Cow<'static, [u8]>); 3]) -> Self {
        let bytes = objects.iter().flat_map(|(_, bytes)| bytes.iter());
        // FNV-1a: to tell builds apart, not to prove anything.
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self {
            objects,
            build: format!("{hash:016x}"),
        }
    }

    /// Name of the build: a hash of the objects.
    #[must_use]
    pub fn build(&self) -> &str {
        &self.build
    }

    /// Names and bytes of the objects, in the order in which they are loaded.
    pub fn objects(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        self.objects.iter().map(|(name, bytes)| (*name, &bytes[..]))
    }
}

/// Every compiled object, those that only traces and small services need among them.
#[must_use]
pub fn objects() -> [(&'static str, &'static [u8]); 7] {
    [
        ("control", CONTROL),
        ("xdp", XDP),
        ("tc", TC),
        ("trace_xdp", TRACE_XDP),
        ("trace_tc", TRACE_TC),
        ("front", FRONT),
        ("nagle", NAGLE),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_differ_by_any_byte() {
        let one = Programs::builtin();
        let mut objects = one.objects.clone();
        objects[2].1.to_mut()[100] ^= 1;
        let other = Programs::new(objects);
        assert_eq!(one.build().len(), 16);
        assert_ne!(one.build(), other.build());
        assert_eq!(one.build(), Programs::builtin().build());
    }

    #[test]
    fn a_folder_without_programs_is_an_error() {
        assert!(Programs::from_folder(Path::new("/nonexistent")).is_err());
        assert!(read_object(Path::new("/dev/zero")).is_err(), "no end");
    }
}
