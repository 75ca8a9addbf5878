// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks of the kernel module on the kernel that runs: `erb-kmod-vm CHECK MODULE FOLDER FOLDER`, where the folders are on the
//! file systems that the check is about. `erb lab vm kmod` runs it under other kernels.
//!
//! The checks are C (`guest/`), as is what they share with the module: its calls and a segment's layout.
//!
//! Exit code 0: it holds.

use std::env;
use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStringExt as _;
use std::process::ExitCode;

use anyhow::{Result, ensure};
// The checks call it.
use libbpf_sys as _;

/// What pushes records.
static PROGRAMS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/push.bpf.o"));
/// What calls the module as no program should.
static WRONG: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wrong.bpf.o"));
/// Of the command line.
const WORDS: usize = 4;

// SAFETY: as `guest/guest.h` has it.
unsafe extern "C" {
    fn wrong_programs_are(object: *const c_void, bytes: usize);
    fn guest_check(words: *const *const c_char, programs: *const c_void, bytes: usize) -> c_int;
}

fn main() -> Result<ExitCode> {
    let words = env::args_os().skip(1);
    let words = words.map(|word| CString::new(word.into_vec()));
    let words: Vec<CString> = words.collect::<Result<_, _>>()?;
    ensure!(
        words.len() == WORDS,
        "usage: erb-kmod-vm CHECK MODULE FOLDER FOLDER"
    );
    let pointers: Vec<*const c_char> = words.iter().map(|word| word.as_ptr()).collect();
    // SAFETY: so many bytes, which live for ever.
    unsafe { wrong_programs_are(WRONG.as_ptr().cast(), WRONG.len()) };
    // SAFETY: four strings that end with a zero, and so many bytes; all live until it returns, and no other thread runs.
    let result =
        unsafe { guest_check(pointers.as_ptr(), PROGRAMS.as_ptr().cast(), PROGRAMS.len()) };
    Ok(if result == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
