// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of verified instructions, `bpf/budget.txt`.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::{Result, ensure};

/// Instructions that the verifier went through when it loaded the program: the `processed N insns`
/// of its log (`env->insn_processed`), kept by the kernel since Linux 5.16.
///
/// # Errors
/// If the kernel does not tell.
pub fn verified(program: &OwnedFd) -> Result<u32> {
    // SAFETY: plain integers; all zeroes is a valid value.
    let mut info: libbpf_sys::bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut size = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: info is live and of the size given.
    let done = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut size)
    };
    ensure!(done == 0, "bpf_prog_get_info_by_fd: {done}");
    Ok(info.verified_insns)
}

/// The table as it is committed: program, recorded number, a tenth more as budget.
#[must_use]
pub fn table(found: &BTreeMap<String, u32>) -> String {
    let mut text = String::from(
        "# Instructions verified per program (the verifier's limit is 1,000,000), recorded on\n\
         # Linux 6.18 with clang 19; the budget is a tenth more. Checked by crates/proof/packets; recorded\n\
         # anew by: ERB_RECORD_BUDGET=1 cargo test -p erb-packets instructions_verified\n\
         # program verified budget\n",
    );
    for (program, count) in found {
        text += &format!("{program} {count} {}\n", count + count / 10);
    }
    text
}

/// Budgets by program.
///
/// # Panics
/// If a line is not of the table's form.
#[must_use]
pub fn parse(text: &str) -> BTreeMap<String, u32> {
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            assert_eq!(fields.len(), 3, "line of bpf/budget.txt: {line:?}");
            (fields[0].to_owned(), fields[2].parse().expect("a number"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_reads_back_a_tenth_higher() {
        let found = BTreeMap::from([("a".to_owned(), 100), ("b".to_owned(), 7)]);
        let expected = BTreeMap::from([("a".to_owned(), 110), ("b".to_owned(), 7)]);
        assert_eq!(parse(&table(&found)), expected);
    }
}
