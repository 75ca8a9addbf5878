// SPDX-License-Identifier: Apache-2.0 OR MIT
//! BPF_PROG_RUN: how the daemon calls its control programs and the timer.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use libbpf_rs::Program;

use crate::{Error, Result};

/// `struct __sk_buff` of Linux 6.12 (include/uapi/linux/bpf.h); only the device is
/// given, also as the one of arrival: by that the egress program knows ERB's own packets.
#[repr(C)]
struct SkbContext {
    before: [u32; 9],
    ingress_ifindex: u32,
    ifindex: u32,
    after: [u32; 37],
}
const _: () = assert!(size_of::<SkbContext>() == 192);
const _: () = assert!(std::mem::offset_of!(SkbContext, ifindex) == 40);

/// Smallest packet that the kernel takes as Ethernet without padding; its content is not looked at.
static PACKET: [u8; 64] = [0; 64];

/// A pinned program that this process may run.
pub(crate) struct Runnable {
    name: &'static str,
    fd: OwnedFd,
}

impl Runnable {
    /// Opens the pinned program.
    pub(crate) fn open(root: &Path, name: &'static str) -> Result<Self> {
        let path = crate::load::program_pin(root, name);
        let fd = Program::fd_from_pinned_path(&path).map_err(|error| Error::Pin {
            what: path.display().to_string(),
            reason: error.to_string(),
        })?;
        Ok(Self { name, fd })
    }

    fn run(&self, options: &mut libbpf_sys::bpf_test_run_opts) -> Result<u32> {
        options.sz = size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t;
        // SAFETY: options points to a live structure whose buffers outlive the call, with their
        // true sizes.
        let done = unsafe { libbpf_sys::bpf_prog_test_run_opts(self.fd.as_raw_fd(), options) };
        if done < 0 {
            let reason = io::Error::from_raw_os_error(-done);
            return Err(Error::Run {
                program: self.name,
                reason,
            });
        }
        Ok(options.retval)
    }

    /// Runs a `SEC("syscall")` program; returns its value.
    pub(crate) fn call(&self) -> Result<u32> {
        self.run(&mut libbpf_sys::bpf_test_run_opts::default())
    }

    /// Runs a `sched_cls` program once on an empty packet of the device; returns its value. The
    /// calling thread must be in the device's namespace.
    pub(crate) fn call_on(&self, ifindex: u32) -> Result<u32> {
        self.call_on_frame(ifindex, &PACKET)
    }

    /// The same on a frame.
    pub(crate) fn call_on_frame(&self, ifindex: u32, frame: &[u8]) -> Result<u32> {
        let context = SkbContext {
            before: [0; 9],
            ingress_ifindex: ifindex,
            ifindex,
            after: [0; 37],
        };
        let mut options = libbpf_sys::bpf_test_run_opts {
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            ctx_in: (&raw const context).cast(),
            ctx_size_in: size_of::<SkbContext>() as u32,
            repeat: 1,
            ..Default::default()
        };
        self.run(&mut options)
    }
}
