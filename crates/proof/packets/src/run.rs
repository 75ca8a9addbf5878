// SPDX-License-Identifier: Apache-2.0 OR MIT
//! BPF_PROG_TEST_RUN on one frame, with the device of arrival in the context.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result};
use libbpf_sys::bpf_test_run_opts;

/// Longest frame that comes back: one page, what the kernel's test run offers.
const FRAME_BYTES_MAX: usize = 4096;

/// include/uapi/linux/bpf.h `struct xdp_md`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct XdpMd {
    data: u32,
    data_end: u32,
    data_meta: u32,
    ingress_ifindex: u32,
    rx_queue_index: u32,
    egress_ifindex: u32,
}

/// include/uapi/linux/bpf.h `struct __sk_buff`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SkBuff {
    len: u32,
    pkt_type: u32,
    mark: u32,
    before: [u32; 6],
    ingress_ifindex: u32,
    ifindex: u32,
    between: [u32; 27],
    tstamp: [u32; 2],
    wire_len: u32,
    gso_segs: u32,
    sk: [u32; 2],
    gso_size: u32,
    tail: [u32; 3],
}
const _: () = assert!(size_of::<SkBuff>() == 192);
const _: () = assert!(std::mem::offset_of!(SkBuff, ifindex) == 40);
const _: () = assert!(std::mem::offset_of!(SkBuff, gso_segs) == 164);

/// What a program made of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Return value of the program.
    pub verdict: u32,
    /// The frame as the program left it.
    pub frame: Vec<u8>,
    /// The word of metadata in front of it, XDP only.
    pub meta: Option<u32>,
}

/// Runs a program on a frame; `options` have its context.
fn test_run(program: &OwnedFd, frame: &[u8], options: &mut bpf_test_run_opts) -> Result<Outcome> {
    let mut bytes = [0u8; FRAME_BYTES_MAX];
    options.sz = size_of::<bpf_test_run_opts>() as _;
    options.repeat = 1;
    options.data_in = frame.as_ptr().cast();
    options.data_size_in = frame.len() as u32;
    options.data_out = bytes.as_mut_ptr().cast();
    options.data_size_out = bytes.len() as u32;
    // SAFETY: options is live, states its true size, and its buffers outlive the call with the
    // sizes given beside them.
    let done = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), options) };
    if done < 0 {
        return Err(io::Error::from_raw_os_error(-done)).context("BPF_PROG_TEST_RUN");
    }
    Ok(Outcome {
        verdict: options.retval,
        frame: bytes[..options.data_size_out as usize].to_vec(),
        meta: None,
    })
}

/// Runs an XDP program on a frame that arrives by `ifindex` of the caller's namespace. The device
/// must have an XDP program: else it has no receive queue for the context.
///
/// # Errors
/// If the kernel does not run it.
pub fn run_xdp(program: &OwnedFd, frame: &[u8], ifindex: u32) -> Result<Outcome> {
    let context = XdpMd {
        data_end: frame.len() as u32,
        ingress_ifindex: ifindex,
        ..Default::default()
    };
    let mut after = XdpMd::default();
    let mut options = bpf_test_run_opts {
        ctx_in: (&raw const context).cast(),
        ctx_size_in: size_of::<XdpMd>() as u32,
        ctx_out: (&raw mut after).cast(),
        ctx_size_out: size_of::<XdpMd>() as u32,
        ..Default::default()
    };
    let mut outcome = test_run(program, frame, &mut options)?;
    let all = outcome.frame.split_off(after.data as usize);
    let meta = std::mem::replace(&mut outcome.frame, all);
    outcome.meta = meta.first_chunk().map(|word| u32::from_ne_bytes(*word));
    Ok(outcome)
}

/// What a TC program is told about a frame beside its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct SkbContext {
    /// Device.
    pub ifindex: u32,
    /// Device of arrival, 0 = made here.
    pub ingress_ifindex: u32,
    /// `skb->mark`.
    pub mark: u32,
    /// Segments merged into this one.
    pub gso_segs: u32,
}

/// Runs a TC program on a frame.
///
/// # Errors
/// If the kernel does not run it.
pub fn run_skb(program: &OwnedFd, frame: &[u8], context: SkbContext) -> Result<Outcome> {
    // SAFETY: plain integers; all zeroes is a valid value.
    let mut skb: SkBuff = unsafe { std::mem::zeroed() };
    skb.ifindex = context.ifindex;
    skb.ingress_ifindex = context.ingress_ifindex;
    skb.mark = context.mark;
    skb.gso_segs = context.gso_segs;
    let mut options = bpf_test_run_opts {
        ctx_in: (&raw const skb).cast(),
        ctx_size_in: size_of::<SkBuff>() as u32,
        ..Default::default()
    };
    test_run(program, frame, &mut options)
}
