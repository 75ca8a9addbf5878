// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an object says of itself: names and sizes of types (`.BTF`); which instruction comes from which
//! line, and which depend on the kernel's types (`.BTF.ext`). Documentation/bpf/btf.rst.

use anyhow::{Context as _, Result};

/// Bytes of `struct btf_type`.
const TYPE_BYTES: usize = 12;
/// Where the header of `.BTF.ext` has offset and length of its parts.
const LINES_AT: usize = 16;
const RELOCATIONS_AT: usize = 24;

/// A little-endian word.
fn word(bytes: &[u8], at: usize) -> Result<u32> {
    let found = bytes.get(at..at + 4).context("a BTF section ends early")?;
    Ok(u32::from_le_bytes(found.try_into()?))
}

fn text(bytes: &[u8], at: usize) -> Result<String> {
    let rest = bytes.get(at..).context("a BTF section ends early")?;
    let end = rest.iter().position(|byte| *byte == 0);
    Ok(String::from_utf8_lossy(&rest[..end.unwrap_or(rest.len())]).into_owned())
}

/// Bytes behind a type's `struct btf_type`.
fn more_bytes(kind: u32, members: usize) -> usize {
    match kind {
        1 | 14 | 17 => 4,                // INT, VAR, DECL_TAG
        3 => 12,                         // ARRAY
        4 | 5 | 15 | 19 => 12 * members, // STRUCT, UNION, DATASEC, ENUM64
        6 | 13 => 8 * members,           // ENUM, FUNC_PROTO
        _ => 0,
    }
}

/// One instruction's record: the section's name, the offset in it, and three words more.
pub(crate) struct Record {
    pub(crate) section: String,
    pub(crate) offset: usize,
    pub(crate) words: [u32; 3],
}

/// Both sections of an object.
pub(crate) struct Btf<'a> {
    strings: &'a [u8],
    ext: &'a [u8],
    types: Vec<(String, usize)>,
}

impl<'a> Btf<'a> {
    pub(crate) fn parse(btf: &'a [u8], ext: &'a [u8]) -> Result<Self> {
        let field = |index: usize| Ok::<_, anyhow::Error>(word(btf, 4 + 4 * index)? as usize);
        let (header, types_at, types_len) = (field(0)?, field(1)?, field(2)?);
        let strings = btf
            .get(header + field(3)?..)
            .context("a BTF section ends early")?;
        let mut types = vec![(String::from("void"), 0)];
        let (mut at, end) = (header + types_at, header + types_at + types_len);
        while at < end {
            let (name, info, size) = (word(btf, at)?, word(btf, at + 4)?, word(btf, at + 8)?);
            types.push((text(strings, name as usize)?, size as usize));
            at += TYPE_BYTES + more_bytes(info >> 24 & 0x1f, (info & 0xffff) as usize);
        }
        Ok(Self {
            strings,
            ext,
            types,
        })
    }

    /// Name of the type with this number.
    pub(crate) fn type_name(&self, number: u32) -> &str {
        self.types.get(number as usize).map_or("", |(name, _)| name)
    }

    /// Size of the structure of this name.
    pub(crate) fn size_of(&self, name: &str) -> Option<usize> {
        let found = self.types.iter().find(|(known, _)| known == name);
        found.map(|(_, size)| *size)
    }

    pub(crate) fn text(&self, at: u32) -> Result<String> {
        text(self.strings, at as usize)
    }

    /// Instructions that begin a line: words are file, text and line * 1024 + column.
    pub(crate) fn lines(&self) -> Result<Vec<Record>> {
        self.records(LINES_AT)
    }

    /// Instructions that depend on the kernel's types: words are type, field and kind.
    pub(crate) fn relocations(&self) -> Result<Vec<Record>> {
        self.records(RELOCATIONS_AT)
    }

    fn records(&self, part: usize) -> Result<Vec<Record>> {
        let ext = self.ext;
        let start = (word(ext, 4)? + word(ext, part)?) as usize;
        let end = start + word(ext, part + 4)? as usize;
        let size = word(ext, start)? as usize;
        let mut records = Vec::new();
        let mut at = start + 4;
        while at < end {
            let section = self.text(word(ext, at)?)?;
            let count = word(ext, at + 4)? as usize;
            at += 8;
            for _ in 0..count {
                records.push(Record {
                    section: section.clone(),
                    offset: word(ext, at)? as usize,
                    words: [word(ext, at + 4)?, word(ext, at + 8)?, word(ext, at + 12)?],
                });
                at += size;
            }
        }
        Ok(records)
    }
}
