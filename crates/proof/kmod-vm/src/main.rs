// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks of the kernel module on the kernel that runs: `erb-kmod-vm CHECK MODULE FOLDER FOLDER`, where the folders are on the
//! file systems that the check is about. `erb lab vm kmod` runs it under other kernels.
//!
//! `erb-kmod-vm aof PROCESS LIBRARY` is the source paper's own way, for study (`erb lab vm study`): what the module takes is appended
//! to the log of that Redis too, which has this C library. It ends when it is killed.
//!
//! The checks are C (`guest/`), as is what they share with the module: its calls and a segment's layout.
//!
//! `erb-kmod-vm cuts LOG DISK FOLDER` judges what power cuts would leave of a disk whose writes were logged.
//!
//! Exit code 0: it holds.

mod cuts;

use std::env;
use std::ffi::{CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
// The checks call it.
use libbpf_sys as _;

/// What pushes records.
static PROGRAMS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/push.bpf.o"));
/// What looks at pushes.
static AOF: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/aof.bpf.o"));
/// What calls the module as no program should.
static WRONG: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wrong.bpf.o"));

/// A part written in C: its words, its programs, how many bytes they are.
// SAFETY: as `guest/guest.h` has it.
type Part = unsafe extern "C" fn(*const *const c_char, *const c_void, usize) -> c_int;

// SAFETY: as `guest/guest.h` has it.
unsafe extern "C" {
    fn wrong_programs_are(object: *const c_void, bytes: usize);
    fn guest_check(words: *const *const c_char, programs: *const c_void, bytes: usize) -> c_int;
    fn guest_aof(words: *const *const c_char, programs: *const c_void, bytes: usize) -> c_int;
}

fn main() -> Result<ExitCode> {
    let words = env::args_os().skip(1);
    let words = words.map(|word| CString::new(word.into_vec()));
    let words: Vec<CString> = words.collect::<Result<_, _>>()?;
    if let [word, log, disk, folder] = &words[..]
        && word.as_bytes() == b"cuts"
    {
        let [log, disk, folder] =
            [log, disk, folder].map(|word| Path::new(OsStr::from_bytes(word.as_bytes())));
        return cuts::judge(log, disk, folder).map(|()| ExitCode::SUCCESS);
    }
    let pointers: Vec<*const c_char> = words.iter().map(|word| word.as_ptr()).collect();
    // SAFETY: so many bytes, which live for ever.
    unsafe { wrong_programs_are(WRONG.as_ptr().cast(), WRONG.len()) };
    let is_aof = words.first().is_some_and(|word| word.as_bytes() == b"aof");
    let (part, words, programs): (Part, _, _) = match pointers.len() {
        3 if is_aof => (guest_aof, &pointers[1..], AOF),
        4 if !is_aof => (guest_check, &pointers[..], PROGRAMS),
        _ => bail!(
            "usage: erb-kmod-vm CHECK MODULE FOLDER FOLDER, aof PROCESS LIBRARY, or cuts LOG DISK FOLDER"
        ),
    };
    // SAFETY: as many strings that end with a zero as it takes, and so many bytes; all live until it returns, and no other thread
    // runs.
    let result = unsafe { part(words.as_ptr(), programs.as_ptr().cast(), programs.len()) };
    Ok(if result == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
