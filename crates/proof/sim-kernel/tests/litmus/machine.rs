// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine that does each thread's instructions in any order that arm64 allows, on one memory (the
//! architecture is multi-copy atomic: a store is seen by all others at once). Every order is tried.
//!
//! An instruction waits for an earlier one if both are at one address, if one acquires or releases in
//! the right direction, or if it needs what that one loads: without branches there is nothing else
//! (Arm ARM B2.3). An addition is one step; one that acquires and releases orders all (`[A]; amo; [L]`
//! of the architecture's model).

use std::collections::HashSet;

use crate::parse::{Act, Condition, Instruction, Litmus, REGISTERS};

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    memory: Vec<i64>,
    registers: Vec<[i64; REGISTERS]>,
    /// Bit n of a thread: instruction n is done.
    done: Vec<u32>,
}

fn written(instruction: &Instruction) -> Option<usize> {
    match instruction.act {
        Act::Load { to } => Some(to),
        Act::Store { .. } => None,
        Act::Add { to, .. } => to,
    }
}

fn reads(instruction: &Instruction, register: usize) -> bool {
    let value = match instruction.act {
        Act::Load { .. } => None,
        Act::Store { from } => Some(from),
        Act::Add { amount, .. } => Some(amount),
    };
    instruction.at == register || value == Some(register)
}

/// Whether `later` must wait for `earlier`. Addresses never change, so they are those of the beginning.
fn waits(registers: &[i64; REGISTERS], earlier: &Instruction, later: &Instruction) -> bool {
    earlier.acquires
        || later.releases
        || registers[earlier.at] == registers[later.at]
        || written(earlier).is_some_and(|to| reads(later, to) || written(later) == Some(to))
        || matches!(earlier.act, Act::Store { .. }) && earlier.releases && later.acquires
}

fn execute(state: &mut State, thread: usize, instruction: &Instruction) {
    let registers = &mut state.registers[thread];
    let place = &mut state.memory[registers[instruction.at] as usize];
    match instruction.act {
        Act::Load { to } => registers[to] = *place,
        Act::Store { from } => *place = registers[from],
        Act::Add { amount, to } => {
            let before = *place;
            *place += registers[amount];
            if let Some(to) = to {
                registers[to] = before;
            }
        }
    }
}

fn holds(condition: &Condition, state: &State) -> bool {
    match condition {
        Condition::Is(thread, register, value) => state.registers[*thread][*register] == *value,
        Condition::All(parts) => parts.iter().all(|part| holds(part, state)),
        Condition::Any(parts) => parts.iter().any(|part| holds(part, state)),
    }
}

/// The states one step behind this one; none at the end.
fn steps(litmus: &Litmus, state: &State) -> Vec<State> {
    let mut next = Vec::new();
    for (number, thread) in litmus.threads.iter().enumerate() {
        let done = state.done[number];
        for (at, instruction) in thread
            .iter()
            .enumerate()
            .filter(|(n, _)| done & 1 << n == 0)
        {
            let waiting = thread[..at].iter().enumerate().any(|(n, earlier)| {
                done & 1 << n == 0 && waits(&litmus.registers[number], earlier, instruction)
            });
            if !waiting {
                let mut after = state.clone();
                after.done[number] |= 1 << at;
                execute(&mut after, number, instruction);
                next.push(after);
            }
        }
    }
    next
}

/// Whether some order ends as the test says that none may.
pub fn bad_is_possible(litmus: &Litmus) -> bool {
    let begin = State {
        memory: litmus.memory.clone(),
        registers: litmus.registers.clone(),
        done: vec![0; litmus.threads.len()],
    };
    let mut seen = HashSet::new();
    let mut waiting = vec![begin];
    while let Some(state) = waiting.pop() {
        if !seen.insert(state.clone()) {
            continue;
        }
        let next = steps(litmus, &state);
        if next.is_empty() && holds(&litmus.bad, &state) {
            return true;
        }
        waiting.extend(next);
    }
    false
}
