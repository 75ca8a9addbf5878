//! The XDP program "pass" on the middle box's device that faces the server.
//!
//! veth hands over XDP_TX frames only if the device at the other end has NAPI (veth_xdp_xmit
//! looks at the peer's rq->napi). NAPI comes with GRO or with an XDP program. On the client's
//! device GRO alone is enough; the middle box must not see merged frames, so there the program
//! brings NAPI and GRO is turned off after it.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;

use crate::netns;

/// XDP_PASS of linux/bpf.h.
const XDP_PASS: i32 = 2;

/// Attaches a native XDP program that passes everything; it stays until the device goes.
pub fn attach(namespace: &str, device: &str) -> Result<()> {
    netns::run_in(namespace, || attach_here(device))
        .with_context(|| format!("cannot attach the XDP program `pass` to {device}"))
}

fn attach_here(device: &str) -> Result<()> {
    let program = load()?;
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

/// Loads `return XDP_PASS`: two instructions, not worth a compiler run.
fn load() -> Result<OwnedFd> {
    // SAFETY: bpf_insn is plain integers and bit fields; all zeroes is a valid value.
    let mut instructions: [libbpf_sys::bpf_insn; 2] = unsafe { std::mem::zeroed() };
    // r0 = XDP_PASS; exit (register fields stay 0).
    instructions[0].code = (libbpf_sys::BPF_ALU64 | libbpf_sys::BPF_MOV | libbpf_sys::BPF_K) as u8;
    instructions[0].imm = XDP_PASS;
    instructions[1].code = (libbpf_sys::BPF_JMP | libbpf_sys::BPF_EXIT) as u8;
    // SAFETY: name and licence are terminated strings, the instructions and their count match,
    // the options may be null; the result is checked below.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_XDP,
            c"erb_lab_pass".as_ptr(),
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
