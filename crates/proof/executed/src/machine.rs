// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interpreter: instruction set v3 (RFC 9669 without what came with v4), on the simulator's maps, packets and helpers. It counts what it executes.
//!
//! I1. A program touches its stack and what [`Call::area`] names: anything else is refused.
//! I2. Behind a call R1 to R5 hold what no program can mean.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail, ensure};
use erb_sim_kernel::{Call, Interpreter};

use crate::program::{CALL_FUNCTION, CALL_KERNEL, Instruction, LOAD_IMM64, Object};

/// More is a loop without end: the verifier's own limit.
const EXECUTED_MAX: u64 = 1_000_000;
const STACK_BYTES: usize = 512;
const DEPTH_MAX: usize = 8;
const LINE_BYTES: usize = 64;
/// What a call leaves in R1 to R5.
const CLOBBERED: u64 = 0xdead_dead_dead_dead;
/// The stack's register.
const R10: usize = 10;
/// An instruction's `src` is a register, not `imm`.
const BY_REGISTER: u8 = 0x08;

/// One execution of a program.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// The program.
    pub program: &'static str,
    /// How often each instruction of its object was executed.
    pub executed: Vec<u32>,
    /// Calls of helpers and kernel functions, by name.
    pub calls: BTreeMap<String, u32>,
    /// Cache lines that the program itself touched: whose, and which.
    pub lines: BTreeSet<(String, usize)>,
}

impl Run {
    /// Instructions executed.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.executed.iter().sum()
    }
}

/// The objects, and what was run since it was last asked.
pub struct Machine {
    objects: Vec<Object>,
    runs: RefCell<Vec<Run>>,
}

impl Machine {
    /// One for these objects.
    #[must_use]
    pub const fn new(objects: Vec<Object>) -> Self {
        Self {
            objects,
            runs: RefCell::new(Vec::new()),
        }
    }

    /// What was run since the last call, in the order of ends.
    #[must_use]
    pub fn take_runs(&self) -> Vec<Run> {
        self.runs.take()
    }

    /// The object that has a program.
    ///
    /// # Panics
    /// If none has it.
    #[must_use]
    pub fn object(&self, program: &str) -> &Object {
        let found = self.objects.iter().find(|it| it.begin(program).is_some());
        found.unwrap_or_else(|| panic!("no object has the program {program}"))
    }
}

impl Interpreter for Machine {
    fn run(&self, program: &'static str, call: &Call) -> i32 {
        let object = self.object(program);
        let begin = object.begin(program).unwrap_or_default();
        let mut execution = Execution::new(object, call);
        execution.run.program = program;
        let done = execution.run(begin);
        let result = done.unwrap_or_else(|error| panic!("violation: {program}: {error:#}"));
        self.runs.borrow_mut().push(execution.run);
        result as i32
    }
}

/// What a function's caller finds again.
struct Frame {
    back: usize,
    kept: [u64; 4],
}

struct Execution<'a> {
    object: &'a Object,
    call: &'a Call,
    r: [u64; 11],
    frames: Vec<Frame>,
    stack: Vec<u64>,
    run: Run,
}

impl<'a> Execution<'a> {
    fn new(object: &'a Object, call: &'a Call) -> Self {
        let stack = vec![CLOBBERED; DEPTH_MAX * STACK_BYTES / 8];
        let mut r = [CLOBBERED; 11];
        r[1] = call.ctx();
        r[R10] = stack.as_ptr() as u64 + STACK_BYTES as u64;
        let run = Run {
            executed: vec![0; object.code.len()],
            ..Run::default()
        };
        Self {
            object,
            call,
            r,
            frames: Vec::new(),
            stack,
            run,
        }
    }

    fn run(&mut self, begin: usize) -> Result<u64> {
        let mut next = Some(begin);
        let mut executed = 0;
        while let Some(at) = next {
            let instruction = self.object.code.get(at);
            let instruction = *instruction.context("it runs over its end")?;
            self.run.executed[at] += 1;
            executed += 1;
            ensure!(executed <= EXECUTED_MAX, "it does not end");
            let done = self.step(at, instruction);
            next = done.with_context(|| match self.object.line(at) {
                Some(line) => format!("{}:{}", line.file, line.number),
                None => format!("instruction {at}"),
            })?;
        }
        Ok(self.r[0])
    }

    /// Executes one instruction; the place of the next one, none behind the end.
    fn step(&mut self, at: usize, i: Instruction) -> Result<Option<usize>> {
        let address = |register: u64| register.wrapping_add(i.offset as u64);
        let operand = match i.code & BY_REGISTER {
            0 => i.imm as u64,
            _ => self.r[i.src],
        };
        match i.code & 7 {
            0 => {
                ensure!(i.code == LOAD_IMM64, "instruction {:#x}", i.code);
                let high = self.object.code.get(at + 1).context("half a load")?.imm;
                self.r[i.dst] = u64::from(i.imm as u32) | (high as u64) << 32;
                return Ok(Some(at + 2));
            }
            1 => self.r[i.dst] = self.load(address(self.r[i.src]), size(i)?)?,
            2 => self.store(address(self.r[i.dst]), size(i)?, i.imm as u64)?,
            3 if i.code & 0xe0 == 0xc0 => self.atomic(i, address(self.r[i.dst]))?,
            3 => self.store(address(self.r[i.dst]), size(i)?, self.r[i.src])?,
            4 | 7 => self.r[i.dst] = compute(i, self.r[i.dst], operand)?,
            _ => return self.jump(at, i, operand),
        }
        Ok(Some(at + 1))
    }

    fn jump(&mut self, at: usize, i: Instruction, operand: u64) -> Result<Option<usize>> {
        match i.code & 0xf0 {
            0x80 if i.src == CALL_FUNCTION => {
                ensure!(self.frames.len() + 1 < DEPTH_MAX, "calls are too deep");
                let kept = [self.r[6], self.r[7], self.r[8], self.r[9]];
                self.frames.push(Frame { back: at + 1, kept });
                self.r[R10] += STACK_BYTES as u64;
                return Ok(Some((at as i64 + 1 + i64::from(i.imm)) as usize));
            }
            0x80 => self.call(i)?,
            0x90 => {
                let Some(frame) = self.frames.pop() else {
                    return Ok(None);
                };
                self.r[1..6].fill(CLOBBERED);
                self.r[6..R10].copy_from_slice(&frame.kept);
                self.r[R10] -= STACK_BYTES as u64;
                return Ok(Some(frame.back));
            }
            _ if taken(i, self.r[i.dst], operand)? => {
                return Ok(Some((at as i64 + 1 + i64::from(i.offset)) as usize));
            }
            _ => {}
        }
        Ok(Some(at + 1))
    }

    fn call(&mut self, i: Instruction) -> Result<()> {
        let a = [self.r[1], self.r[2], self.r[3], self.r[4], self.r[5]];
        let object = self.object;
        let (name, result) = if i.src == CALL_KERNEL {
            let name = &object.kernel_functions[i.imm as usize][..];
            (name, self.kernel_function(name, a)?)
        } else {
            // SAFETY: the verifier lets the program pass, and so its arguments.
            let done = unsafe { self.call.helper(i.imm, a) };
            done.with_context(|| {
                format!(
                    "helper {} is not known: add it to interpret.rs of sim-kernel",
                    i.imm
                )
            })?
        };
        *self.run.calls.entry(name.to_owned()).or_default() += 1;
        self.r[0] = result;
        self.r[1..6].fill(CLOBBERED);
        Ok(())
    }

    /// `kernel/bpf/bpf_iter.c` has the iterator: `cur` and `end` side by side.
    fn kernel_function(&mut self, name: &str, a: [u64; 5]) -> Result<u64> {
        match name {
            "bpf_iter_num_new" => {
                let (start, end) = (a[1] as i32, a[2] as i32);
                ensure!(start <= end, "an iterator from {start} to {end}");
                self.store(a[0], 4, i64::from(start - 1) as u64)?;
                self.store(a[0] + 4, 4, a[2])?;
                Ok(0)
            }
            "bpf_iter_num_next" => {
                let (now, end) = (self.load(a[0], 4)? as i32, self.load(a[0] + 4, 4)? as i32);
                if now + 1 >= end {
                    self.store(a[0], 8, 0)?;
                    return Ok(0);
                }
                self.store(a[0], 4, (now + 1) as u64)?;
                Ok(a[0])
            }
            "bpf_iter_num_destroy" => Ok(0),
            // The linker has put a 0 where the type is one of sockets.
            "bpf_rdonly_cast" if a[1] == 0 => Ok(self.call.cast_socket(a[0])),
            "bpf_rdonly_cast" => Ok(a[0]),
            // SAFETY: XDP's objects do not call it: the verifier would not let them.
            "bpf_cast_to_kern_ctx" => Ok(unsafe { self.call.kern_ctx() }),
            _ => bail!("kernel function {name} is not known: add it to machine.rs"),
        }
    }

    /// I1. Notes the lines.
    fn touch(&mut self, at: u64, bytes: usize) -> Result<()> {
        let stack = self.stack.as_ptr() as u64;
        let (name, offset) = if at >= stack && at + bytes as u64 <= self.r[R10] {
            (String::from("stack"), (at - stack) as usize)
        } else {
            let area = self.call.area(at, bytes);
            let area = area.with_context(|| format!("{bytes} bytes at {at:#x} are nobody's"))?;
            (area.name, area.offset)
        };
        for line in offset / LINE_BYTES..=(offset + bytes - 1) / LINE_BYTES {
            self.run.lines.insert((name.clone(), line));
        }
        Ok(())
    }

    fn load(&mut self, at: u64, bytes: usize) -> Result<u64> {
        self.touch(at, bytes)?;
        let mut word = [0; 8];
        // SAFETY: I1: the bytes are the program's to read.
        unsafe { word.as_mut_ptr().copy_from(at as *const u8, bytes) };
        Ok(u64::from_le_bytes(word))
    }

    fn store(&mut self, at: u64, bytes: usize, value: u64) -> Result<()> {
        self.touch(at, bytes)?;
        // SAFETY: I1; the verifier knows which of them may be written.
        unsafe { (at as *mut u8).copy_from(value.to_le_bytes().as_ptr(), bytes) };
        Ok(())
    }

    fn atomic(&mut self, i: Instruction, at: u64) -> Result<()> {
        let bytes = if i.code & 0x18 == 0x18 { 8 } else { 4 };
        let (was, by) = (self.load(at, bytes)?, self.r[i.src]);
        let mask = if bytes == 8 {
            u64::MAX
        } else {
            u64::from(u32::MAX)
        };
        let new = match i.imm {
            0x00 | 0x01 => was.wrapping_add(by),
            0x40 | 0x41 => was | by,
            0x50 | 0x51 => was & by,
            0xa0 | 0xa1 => was ^ by,
            0xe1 => by,
            0xf1 if was == self.r[0] & mask => by,
            0xf1 => was,
            other => bail!("atomic {other:#x}"),
        };
        self.store(at, bytes, new)?;
        match i.imm {
            0xf1 => self.r[0] = was,
            imm if imm & 1 != 0 => self.r[i.src] = was,
            _ => {}
        }
        Ok(())
    }
}

/// Bytes that a load or store moves.
fn size(i: Instruction) -> Result<usize> {
    ensure!(i.code & 0xe0 == 0x60, "instruction {:#x}", i.code);
    Ok([4, 2, 1, 8][usize::from(i.code >> 3 & 3)])
}

fn compute(i: Instruction, d: u64, s: u64) -> Result<u64> {
    let newer = || format!("instruction {:#x} of a newer set than v3", i.code);
    ensure!(i.offset == 0, newer());
    let wide = i.code & 7 == 7;
    if i.code & 0xf0 == 0xd0 {
        ensure!(!wide, newer());
        let to_big = i.code & BY_REGISTER != 0;
        return Ok(match (i.imm, to_big) {
            (16, true) => u64::from((d as u16).swap_bytes()),
            (32, true) => u64::from((d as u32).swap_bytes()),
            (64, true) => d.swap_bytes(),
            (16, false) => u64::from(d as u16),
            (32, false) => u64::from(d as u32),
            _ => d,
        });
    }
    let narrow = |word: u64| if wide { word } else { u64::from(word as u32) };
    let (d, s) = (narrow(d), narrow(s));
    let shift = s & if wide { 63 } else { 31 };
    Ok(narrow(match i.code & 0xf0 {
        0x00 => d.wrapping_add(s),
        0x10 => d.wrapping_sub(s),
        0x20 => d.wrapping_mul(s),
        0x30 => d.checked_div(s).unwrap_or(0),
        0x40 => d | s,
        0x50 => d & s,
        0x60 => d << shift,
        0x70 => d >> shift,
        0x80 => d.wrapping_neg(),
        0x90 => d.checked_rem(s).unwrap_or(d),
        0xa0 => d ^ s,
        0xb0 => s,
        0xc0 if wide => ((d as i64) >> shift) as u64,
        0xc0 => ((d as i32) >> shift) as u64,
        _ => bail!("instruction {:#x}", i.code),
    }))
}

/// Whether a jump is taken.
fn taken(i: Instruction, d: u64, s: u64) -> Result<bool> {
    let wide = i.code & 7 == 5;
    ensure!(
        wide || i.code & 0xf0 != 0,
        "instruction {:#x} of a newer set than v3",
        i.code
    );
    let unsigned = |word: u64| if wide { word } else { u64::from(word as u32) };
    let signed = |word: u64| {
        if wide {
            word as i64
        } else {
            i64::from(word as i32)
        }
    };
    let (ud, us, sd, ss) = (unsigned(d), unsigned(s), signed(d), signed(s));
    Ok(match i.code & 0xf0 {
        0x00 => true,
        0x10 => ud == us,
        0x20 => ud > us,
        0x30 => ud >= us,
        0x40 => ud & us != 0,
        0x50 => ud != us,
        0x60 => sd > ss,
        0x70 => sd >= ss,
        0xa0 => ud < us,
        0xb0 => ud <= us,
        0xc0 => sd < ss,
        0xd0 => sd <= ss,
        _ => bail!("instruction {:#x}", i.code),
    })
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    use erb_sim_kernel::scene::Scene;
    use erb_sim_kernel::{DatapathConfig, Xdp};

    use super::*;

    const fn instruction(code: u8, dst: usize, src: usize, offset: i16, imm: i32) -> Instruction {
        Instruction {
            code,
            dst,
            src,
            offset,
            imm,
        }
    }

    const EXIT: Instruction = instruction(0x95, 0, 0, 0, 0);
    const PASS: Instruction = instruction(0xb7, 0, 0, 0, 2);

    /// What the program comes to on a packet, and what it executed.
    fn run(code: &[Instruction]) -> Result<(Xdp, u32), String> {
        let object = Object::of_code("erb_xdp", code);
        let machine = Rc::new(Machine::new(vec![object]));
        let mut scene = Scene::new(DatapathConfig::default());
        scene
            .path
            .interpret(Rc::clone(&machine) as Rc<dyn Interpreter>);
        let done = catch_unwind(AssertUnwindSafe(|| scene.send(b"x").0));
        let verdict = done.map_err(|panic| *panic.downcast::<String>().expect("a message"))?;
        Ok((verdict, machine.take_runs().iter().map(Run::total).sum()))
    }

    #[test]
    fn a_program_gets_its_context_and_returns() {
        assert_eq!(run(&[PASS, EXIT]), Ok((Xdp::Pass, 2)));
        // R2 = data, R0 = the frame's first byte.
        let first = [
            instruction(0x61, 2, 1, 0, 0),
            instruction(0x71, 0, 2, 0, 0),
            EXIT,
        ];
        assert_eq!(run(&first), Ok((Xdp::Pass, 3)), "the address begins with 2");
        // A jump over it, by a comparison of 32 bits; a call of what follows the end.
        let calls = [
            instruction(0x85, 0, CALL_FUNCTION, 0, 1),
            EXIT,
            instruction(0xb7, 0, 0, 0, -1),
            instruction(0x16, 0, 0, 1, -1),
            EXIT,
            PASS,
            EXIT,
        ];
        assert_eq!(run(&calls), Ok((Xdp::Pass, 6)));
    }

    #[test]
    fn what_a_verifier_refuses_is_refused() {
        let read = [instruction(0x79, 0, 1, 4096, 0), EXIT];
        let write = [instruction(0x62, 10, 0, 0, 1), PASS, EXIT];
        let after_call = [
            instruction(0x85, 0, 0, 0, 160),
            instruction(0x71, 0, 2, 0, 0),
            EXIT,
        ];
        for code in [&read[..], &write, &after_call] {
            let message = run(code).expect_err("it is refused");
            assert!(message.contains("are nobody's"), "{message}");
        }
        let endless = run(&[instruction(0x05, 0, 0, -1, 0)]).expect_err("it is refused");
        assert!(endless.contains("it does not end"), "{endless}");
        let unknown = run(&[instruction(0x85, 0, 0, 0, 9999), EXIT]).expect_err("it is refused");
        assert!(unknown.contains("helper 9999 is not known"), "{unknown}");
        let newer = run(&[instruction(0xbf, 0, 1, 8, 0), EXIT]).expect_err("it is refused");
        assert!(newer.contains("of a newer set"), "{newer}");
    }

    #[test]
    fn arithmetic_is_that_of_the_instruction_set() {
        const MINUS: u64 = u64::MAX;
        let wide = |code: u8, d, s| compute(instruction(code | 7, 0, 0, 0, 0), d, s).unwrap();
        let narrow = |code: u8, d, s| compute(instruction(code | 4, 0, 0, 0, 0), d, s).unwrap();
        assert_eq!(wide(0x00, MINUS, 2), 1);
        assert_eq!(narrow(0x00, MINUS, 2), 1, "the upper half is 0");
        assert_eq!((wide(0x30, 7, 0), wide(0x90, 7, 0)), (0, 7), "by 0");
        assert_eq!(narrow(0x90, 7 | 1 << 32, 1 << 32), 7, "by 0 in 32 bits");
        assert_eq!(
            (wide(0x60, 1, 65), narrow(0x60, 1, 33)),
            (2, 2),
            "bits of the shift"
        );
        assert_eq!(
            (wide(0xc0, MINUS - 1, 1), narrow(0xc0, MINUS - 1, 1)),
            (MINUS, MINUS >> 32)
        );
        assert_eq!((wide(0x80, 1, 0), narrow(0x80, 1, 0)), (MINUS, MINUS >> 32));
        let swap = |code, imm| compute(instruction(code, 0, 0, 0, imm), 0x0102_0304_0506_0708, 0);
        assert_eq!(swap(0xdc, 16).unwrap(), 0x0807);
        assert_eq!(swap(0xdc, 64).unwrap(), 0x0807_0605_0403_0201);
        assert_eq!(swap(0xd4, 32).unwrap(), 0x0506_0708);
    }

    #[test]
    fn comparisons_know_signs_and_widths() {
        let jumps = |code: u8, d: u64, s: u64| taken(instruction(code, 0, 0, 0, 0), d, s).unwrap();
        let minus = -1_i64 as u64;
        assert!(
            jumps(0x25, minus, 1) && !jumps(0x65, minus, 1),
            "above, greater"
        );
        assert!(
            jumps(0xc5, minus, 1) && !jumps(0xa5, minus, 1),
            "less, below"
        );
        assert!(
            jumps(0x16, 1 << 32, 0) && !jumps(0x15, 1 << 32, 0),
            "equal in 32 bits"
        );
        assert!(
            jumps(0xc6, 0xffff_ffff, 0) && !jumps(0xc5, 0xffff_ffff, 0),
            "signs"
        );
        assert!(jumps(0x45, 6, 4) && !jumps(0x45, 6, 1), "bits");
    }
}
