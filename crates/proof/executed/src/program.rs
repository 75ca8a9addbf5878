// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A compiled object, linked for the interpreter: instructions of all its sections side by side, maps
//! by number, calls by distance, and the source line of each instruction.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context as _, Result, bail};
use object::read::{Object as _, ObjectSection as _, ObjectSymbol as _};
use object::{File, RelocationTarget, SectionIndex, SectionKind, Symbol, SymbolKind};

use crate::btf::{Btf, Record};

/// Bytes of an instruction.
const BYTES: usize = 8;
/// Codes that the linker knows.
pub(crate) const CALL: u8 = 0x85;
pub(crate) const LOAD_IMM64: u8 = 0x18;
/// What a call's `src` says that it calls.
pub(crate) const CALL_FUNCTION: usize = 1;
pub(crate) const CALL_KERNEL: usize = 2;
/// Kinds of relocations, `enum bpf_core_relo_kind`.
const FIELD_OFFSET: u32 = 0;
const TYPE_IN_KERNEL: u32 = 7;

/// Where the instructions of each section begin.
type Begins = HashMap<SectionIndex, usize>;

/// One instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    pub(crate) code: u8,
    pub(crate) dst: usize,
    pub(crate) src: usize,
    pub(crate) offset: i16,
    pub(crate) imm: i32,
}

impl Instruction {
    fn decode(bytes: &[u8]) -> Self {
        Self {
            code: bytes[0],
            dst: usize::from(bytes[1] & 15),
            src: usize::from(bytes[1] >> 4),
            offset: i16::from_le_bytes([bytes[2], bytes[3]]),
            imm: i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        }
    }
}

/// A line of the sources.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// The file, from the root of the tree on.
    pub file: String,
    /// Its number, from 1 on.
    pub number: u32,
}

/// An object.
pub struct Object {
    pub(crate) code: Vec<Instruction>,
    pub(crate) kernel_functions: Vec<String>,
    /// Where functions begin; programs are among them.
    functions: BTreeMap<String, usize>,
    /// Of each instruction.
    lines: Vec<Option<Line>>,
}

impl Object {
    /// Links an object. `map` knows the numbers of maps.
    ///
    /// # Errors
    /// If it is no object of BPF programs, or has a relocation that is not known here.
    pub fn link(bytes: &[u8], map: impl Fn(&str) -> Option<u64>) -> Result<Self> {
        let file = File::parse(bytes)?;
        let mut object = Self {
            code: Vec::new(),
            kernel_functions: Vec::new(),
            functions: BTreeMap::new(),
            lines: Vec::new(),
        };
        let mut begins = HashMap::new();
        for section in file.sections().filter(|it| it.kind() == SectionKind::Text) {
            begins.insert(section.index(), object.code.len());
            let instructions = section.data()?.chunks_exact(BYTES);
            object.code.extend(instructions.map(Instruction::decode));
        }
        object.bind(&file, &begins, map)?;
        object.read_btf(&file, &begins)?;
        Ok(object)
    }

    /// Binds calls and maps.
    fn bind(
        &mut self,
        file: &File<'_>,
        begins: &Begins,
        map: impl Fn(&str) -> Option<u64>,
    ) -> Result<()> {
        let place = |symbol: &Symbol<'_, '_>| {
            let begin = begins.get(&symbol.section_index()?)?;
            Some(begin + symbol.address() as usize / BYTES)
        };
        for symbol in file.symbols().filter(|it| it.kind() == SymbolKind::Text) {
            if let Some(begin) = place(&symbol) {
                self.functions.insert(symbol.name()?.to_owned(), begin);
            }
        }
        for section in file.sections().filter(|it| it.kind() == SectionKind::Text) {
            for (offset, relocation) in section.relocations() {
                let RelocationTarget::Symbol(symbol) = relocation.target() else {
                    bail!("a relocation of no symbol at {offset:#x}");
                };
                let symbol = file.symbol_by_index(symbol)?;
                let name = symbol.name()?;
                let at = begins[&section.index()] + offset as usize / BYTES;
                match (self.code[at].code, place(&symbol)) {
                    (CALL, Some(target)) => self.bind_call(at, target),
                    (CALL, None) if symbol.is_undefined() => self.bind_kernel(at, name),
                    // A weak one of a module, which there is not.
                    (LOAD_IMM64, None) if symbol.is_undefined() => {}
                    (LOAD_IMM64, None) => {
                        let number = map(name).with_context(|| format!("no map {name}"))?;
                        self.code[at].imm = i32::try_from(number)?;
                    }
                    (code, _) => bail!("a relocation of {name} in an instruction {code:#x}"),
                }
            }
        }
        Ok(())
    }

    fn read_btf(&mut self, file: &File<'_>, begins: &Begins) -> Result<()> {
        let section = |name: &str| -> Result<&[u8]> {
            let found = file.section_by_name(name);
            Ok(found
                .with_context(|| format!("no section {name}"))?
                .data()?)
        };
        let btf = Btf::parse(section(".BTF")?, section(".BTF.ext")?)?;
        let at = |record: &Record| -> Result<usize> {
            let section = file.section_by_name(&record.section);
            let begin = section.and_then(|it| begins.get(&it.index()));
            let begin = begin.with_context(|| format!("no section {}", record.section))?;
            Ok(begin + record.offset / BYTES)
        };
        for record in btf.relocations()? {
            self.relocate(at(&record)?, &record, &btf)?;
        }
        self.lines = vec![None; self.code.len()];
        for record in btf.lines()? {
            self.lines[at(&record)?] = Some(Line {
                file: btf.text(record.words[0])?,
                number: record.words[2] >> 10,
            });
        }
        for index in 1..self.lines.len() {
            if self.lines[index].is_none() {
                self.lines[index] = self.lines[index - 1].clone();
            }
        }
        Ok(())
    }

    fn bind_call(&mut self, at: usize, target: usize) {
        let call = &mut self.code[at];
        // As libbpf reads it: the symbol's place, and from there as far as the call says, plus one.
        call.imm += target as i32 - at as i32;
        call.src = CALL_FUNCTION;
    }

    fn bind_kernel(&mut self, at: usize, name: &str) {
        let known = self.kernel_functions.iter().position(|it| *it == name);
        let number = known.unwrap_or_else(|| {
            self.kernel_functions.push(name.to_owned());
            self.kernel_functions.len() - 1
        });
        self.code[at].src = CALL_KERNEL;
        self.code[at].imm = number as i32;
    }

    /// The structures are laid out as the object knows them, so nothing moves but what the simulator has
    /// elsewhere: see `shim/bpf_core_read.h`, whose three definitions these are.
    fn relocate(&mut self, at: usize, record: &Record, btf: &Btf<'_>) -> Result<()> {
        let [number, _, kind] = record.words;
        match (kind, btf.type_name(number)) {
            (TYPE_IN_KERNEL, name) => self.code[at].imm = i32::from(name == "dst_entry"),
            (FIELD_OFFSET, "tcp_sock___usec") => {
                let size = btf.size_of("tcp_sock").context("no type tcp_sock")?;
                match self.code[at].code & 7 {
                    1..=3 => self.code[at].offset += size as i16,
                    _ => self.code[at].imm += size as i32,
                }
            }
            _ => {}
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn of_code(program: &str, code: &[Instruction]) -> Self {
        Self {
            code: code.to_vec(),
            kernel_functions: Vec::new(),
            functions: BTreeMap::from([(program.to_owned(), 0)]),
            lines: Vec::new(),
        }
    }

    /// Where a program begins, if the object has it.
    #[must_use]
    pub fn begin(&self, program: &str) -> Option<usize> {
        self.functions.get(program).copied()
    }

    /// The line that an instruction comes from.
    #[must_use]
    pub fn line(&self, instruction: usize) -> Option<&Line> {
        self.lines.get(instruction)?.as_ref()
    }
}
