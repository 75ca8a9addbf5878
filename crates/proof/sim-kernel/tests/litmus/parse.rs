// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Litmus tests as herd7 reads them, as far as `litmus` needs: straight code of loads, stores and
//! additions.

use std::collections::HashMap;

/// What an instruction does. Registers are numbers; `at` holds an address.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// `LDR`, `LDAR`.
    Load { to: usize },
    /// `STR`, `STLR`.
    Store { from: usize },
    /// `LDADDAL`, and `STADD`, which keeps nothing.
    Add { amount: usize, to: Option<usize> },
}

/// An instruction with what orders it.
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    /// What it does.
    pub act: Act,
    /// The register with the address.
    pub at: usize,
    /// Nothing behind it is done before it.
    pub acquires: bool,
    /// It is done behind all before it.
    pub releases: bool,
}

/// What is true of the end.
#[derive(Clone, Debug)]
pub enum Condition {
    /// A thread's register has a value.
    Is(usize, usize, i64),
    /// All of them.
    All(Vec<Condition>),
    /// One of them.
    Any(Vec<Condition>),
}

pub const REGISTERS: usize = 16;

/// A test. Addresses are indices of `memory`.
#[derive(Clone, Debug)]
pub struct Litmus {
    pub name: String,
    pub memory: Vec<i64>,
    pub registers: Vec<[i64; REGISTERS]>,
    pub threads: Vec<Vec<Instruction>>,
    pub bad: Condition,
}

type Parsed<T> = Result<T, String>;

fn register(text: &str) -> Parsed<usize> {
    text.trim_matches(|c: char| "[] ".contains(c))
        .strip_prefix(['W', 'X'])
        .and_then(|number| number.parse().ok())
        .filter(|number| *number < REGISTERS)
        .ok_or_else(|| format!("no register: {text}"))
}

fn instruction(text: &str) -> Parsed<Instruction> {
    let (name, rest) = text.split_once(' ').ok_or_else(|| text.to_owned())?;
    let operands = rest.split(',').map(register).collect::<Parsed<Vec<_>>>()?;
    let (acquires, releases, act) = match (name, operands.as_slice()) {
        ("LDR", [to, _]) => (false, false, Act::Load { to: *to }),
        ("LDAR", [to, _]) => (true, false, Act::Load { to: *to }),
        ("STR", [from, _]) => (false, false, Act::Store { from: *from }),
        ("STLR", [from, _]) => (false, true, Act::Store { from: *from }),
        ("LDADDAL", [amount, to, _]) => {
            let (amount, to) = (*amount, Some(*to));
            (true, true, Act::Add { amount, to })
        }
        ("STADD", [amount, _]) => {
            let (amount, to) = (*amount, None);
            (false, false, Act::Add { amount, to })
        }
        _ => return Err(format!("not known: {text}")),
    };
    Ok(Instruction {
        act,
        at: operands[operands.len() - 1],
        acquires,
        releases,
    })
}

/// Splits at a mark outside of parentheses.
fn split(text: &str, mark: &str) -> Vec<String> {
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for word in text
        .replace('(', " ( ")
        .replace(')', " ) ")
        .split_whitespace()
    {
        depth += i32::from(word == "(") - i32::from(word == ")");
        if depth == 0 && word == mark {
            parts.push(String::new());
        } else if let Some(last) = parts.last_mut() {
            last.push_str(word);
            last.push(' ');
        }
    }
    parts
}

fn condition(text: &str) -> Parsed<Condition> {
    for (mark, made) in [
        ("\\/", Condition::Any as fn(Vec<Condition>) -> Condition),
        ("/\\", Condition::All),
    ] {
        let parts = split(text, mark);
        if parts.len() > 1 {
            let parts = parts.iter().map(|part| condition(part));
            return Ok(made(parts.collect::<Parsed<Vec<_>>>()?));
        }
    }
    let text = text.trim();
    if let Some(inner) = text.strip_prefix('(').and_then(|t| t.strip_suffix(')')) {
        return condition(inner);
    }
    let (what, value) = text.split_once('=').ok_or_else(|| text.to_owned())?;
    let (thread, name) = what.split_once(':').ok_or_else(|| text.to_owned())?;
    let number = |text: &str| {
        text.trim()
            .parse::<i64>()
            .map_err(|error| error.to_string())
    };
    let thread = usize::try_from(number(thread)?).map_err(|error| error.to_string())?;
    Ok(Condition::Is(thread, register(name)?, number(value)?))
}

impl Litmus {
    /// Reads a file.
    pub fn parse(text: &str) -> Parsed<Self> {
        let missing = |what: &str| format!("no {what}");
        let (head, rest) = text.split_once('{').ok_or_else(|| missing("{"))?;
        let (init, rest) = rest.split_once('}').ok_or_else(|| missing("}"))?;
        let (code, bad) = rest.split_once("exists").ok_or_else(|| missing("exists"))?;
        let name = head.lines().next().and_then(|l| l.strip_prefix("AArch64 "));
        let mut rows = code.trim().lines().map(|row| {
            let row = row.trim().trim_end_matches(';');
            row.split('|').map(|cell| cell.trim().to_owned()).collect()
        });
        let count = rows.next().map_or(0, |row: Vec<String>| row.len());
        let mut threads = vec![Vec::new(); count];
        for row in rows {
            for (thread, cell) in threads.iter_mut().zip(row) {
                if !cell.is_empty() {
                    thread.push(instruction(&cell)?);
                }
            }
        }
        let mut litmus = Self {
            name: name.ok_or_else(|| missing("AArch64 NAME"))?.to_owned(),
            memory: Vec::new(),
            registers: vec![[0; REGISTERS]; count],
            threads,
            bad: condition(bad)?,
        };
        litmus.begin_with(init)?;
        Ok(litmus)
    }

    fn begin_with(&mut self, init: &str) -> Parsed<()> {
        let mut places: HashMap<String, usize> = HashMap::new();
        for part in init.split(';').map(str::trim).filter(|p| !p.is_empty()) {
            let (what, value) = part.split_once('=').ok_or_else(|| part.to_owned())?;
            let number = value.parse::<i64>();
            let name = if number.is_ok() { what } else { value };
            let mut place = |memory: &mut Vec<i64>| {
                *places.entry(name.to_owned()).or_insert_with(|| {
                    memory.push(0);
                    memory.len() - 1
                })
            };
            if let Some((thread, name)) = what.split_once(':') {
                let thread = thread.parse::<usize>().map_err(|error| error.to_string())?;
                self.registers[thread][register(name)?] = match number {
                    Ok(number) => number,
                    Err(_) => place(&mut self.memory) as i64,
                };
            } else {
                let at = place(&mut self.memory);
                self.memory[at] = number.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}
