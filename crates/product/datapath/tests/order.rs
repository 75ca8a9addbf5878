// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The order of memory accesses in the compiled objects. An atomic that does not fetch orders nothing
//! on arm64 (STADD), and clang makes one of every atomic whose result nobody uses: so each instruction
//! of each object is looked at, for both processors that `bpf/base/seam.h` knows.

use std::fs;
use std::path::{Path, PathBuf};

use erb_clang::{Bpf, OBJECTS, target_macro};
use object::{Object, ObjectSection, SectionKind};

const X86: &str = "-D__TARGET_ARCH_x86";
const ARM64: &str = "-D__TARGET_ARCH_arm64";

/// include/uapi/linux/bpf.h
const BPF_CLASS_AND_MODE: u8 = 0xe7;
const BPF_STX_ATOMIC: u8 = 0xc3;
const BPF_LD_IMM64: u8 = 0x18;
const BPF_FETCH: i32 = 0x01;

fn bpf() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../bpf")
}

fn compiled(source: &Path, target: &str) -> Vec<u8> {
    let name = source.file_stem().expect("a name").to_string_lossy();
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}{target}.o"));
    let bpf = Bpf {
        sources: &bpf(),
        splice: None,
        libbpf: Path::new(env!("ERB_LIBBPF_INCLUDE")),
        cpu: "v3",
        target,
    };
    bpf.compile(source, &made)
        .unwrap_or_else(|error| panic!("{error}"));
    fs::read(made).expect("an object")
}

/// What an object's atomic instructions say of themselves: their `imm`.
fn atomics(bytes: &[u8]) -> Vec<i32> {
    let file = object::File::parse(bytes).expect("an ELF file");
    let mut found = Vec::new();
    for section in file.sections().filter(|s| s.kind() == SectionKind::Text) {
        let mut instructions = section.data().expect("its bytes").chunks_exact(8);
        while let Some(instruction) = instructions.next() {
            if instruction[0] == BPF_LD_IMM64 {
                instructions.next();
            } else if instruction[0] & BPF_CLASS_AND_MODE == BPF_STX_ATOMIC {
                let imm = instruction[4..].try_into().expect("four bytes");
                found.push(i32::from_le_bytes(imm));
            }
        }
    }
    found
}

fn weak(atomics: &[i32]) -> usize {
    atomics.iter().filter(|imm| **imm & BPF_FETCH == 0).count()
}

/// The objects that are loaded here, and what would be built for arm64, where a barrier between loads
/// is an instruction, too.
#[test]
fn every_atomic_of_every_object_fetches() {
    for name in OBJECTS {
        let built = Path::new(env!("OUT_DIR")).join(format!("{name}.bpf.o"));
        let x86 = atomics(&fs::read(built).expect("an object"));
        let arm64 = atomics(&compiled(&bpf().join(format!("{name}.bpf.c")), ARM64));
        assert_eq!(weak(&x86), 0, "{name}: so many orderless of {x86:x?}");
        assert_eq!(weak(&arm64), 0, "{name}: so many orderless of {arm64:x?}");
        if ["front", "nagle"].contains(&name) {
            assert!(x86.is_empty() && arm64.is_empty(), "nothing is shared");
            continue;
        }
        assert!(x86.len() >= 8, "{name}: {} atomics", x86.len());
        assert!(arm64.len() > x86.len(), "{name}: no barrier between loads");
    }
}

#[test]
fn an_atomic_that_nobody_uses_is_found() {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unused.bpf.c");
    let text = "void f(long *to) { __sync_fetch_and_add(to, 1); }
         long g(long *to) { return __sync_fetch_and_add(to, 1); }";
    fs::write(&source, text).expect("a source");
    let found = atomics(&compiled(&source, ARM64));
    assert_eq!(found.len(), 2);
    assert_eq!(weak(&found), 1);
}

#[test]
fn only_processors_that_were_tried_are_built_for() {
    assert_eq!(target_macro("x86_64"), Ok(X86));
    let refusal = target_macro("aarch64").expect_err("a refusal");
    assert!(
        refusal.contains("x86_64 only, not for aarch64"),
        "{refusal}"
    );
}
