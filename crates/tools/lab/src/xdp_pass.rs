// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The XDP program "pass" on the device at the other end of the server's.
//!
//! veth delivers XDP_TX frames only if their receiver has NAPI *and an XDP program*: GRO alone
//! gives it NAPI, and the frames are queued (veth_xdp_xmit looks at rq->napi), but veth_xdp_flush
//! still looks at rq->xdp_prog before it wakes the receiver, so they lie there until other
//! traffic comes by (seen on Linux 6.18: 2 of 100 echoes arrived). In the middle box GRO is
//! turned off after the program is attached, because merged frames would not fit the MTU.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use libbpf_sys::bpf_insn;
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;

use crate::netns;

/// Attaches a native XDP program that passes everything; it stays until the device goes.
pub fn attach(namespace: &str, device: &str) -> Result<()> {
    // SAFETY: bpf_insn is plain integers and bit fields; all zeroes is a valid value.
    let mut instructions: [bpf_insn; 2] = unsafe { std::mem::zeroed() };
    // r0 = XDP_PASS; exit (register fields stay 0).
    instructions[0].code = (libbpf_sys::BPF_ALU64 | libbpf_sys::BPF_MOV | libbpf_sys::BPF_K) as u8;
    instructions[0].imm = libbpf_sys::XDP_PASS as i32;
    instructions[1].code = (libbpf_sys::BPF_JMP | libbpf_sys::BPF_EXIT) as u8;
    attach_instructions(namespace, device, &instructions)
}

/// Attaches a native XDP program given as instructions (two do not need a compiler); it stays
/// until the device goes. Fails if the device has a program, or the verifier refuses this one.
pub fn attach_instructions(namespace: &str, device: &str, instructions: &[bpf_insn]) -> Result<()> {
    netns::run_in(namespace, || attach_here(device, &load(instructions)?))
        .with_context(|| format!("cannot attach an XDP program to {device} in {namespace}"))
}

fn attach_here(device: &str, program: &OwnedFd) -> Result<()> {
    let index = i32::try_from(if_nametoindex(device)?)?;
    // SAFETY: the descriptor is a loaded XDP program, the options may be null.
    let result = unsafe {
        libbpf_sys::bpf_xdp_attach(
            index,
            program.as_raw_fd(),
            libbpf_sys::XDP_FLAGS_DRV_MODE | libbpf_sys::XDP_FLAGS_UPDATE_IF_NOEXIST,
            std::ptr::null(),
        )
    };
    if result < 0 {
        return Err(Errno::from_raw(-result)).context("bpf_xdp_attach");
    }
    Ok(())
}

fn load(instructions: &[bpf_insn]) -> Result<OwnedFd> {
    // SAFETY: name and licence are terminated strings, the instructions and their count match,
    // the options may be null; the result is checked below.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_XDP,
            c"erb_lab".as_ptr(),
            c"GPL".as_ptr(),
            instructions.as_ptr(),
            instructions.len() as _,
            std::ptr::null_mut(),
        )
    };
    if fd < 0 {
        return Err(Errno::from_raw(-fd)).context("bpf_prog_load (root is needed)");
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
