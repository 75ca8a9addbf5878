// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Linux's own initiator: commands go through its character devices, as nvme-cli's passthru does
//! (`include/uapi/linux/nvme_ioctl.h`).

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use anyhow::{Context, Result};
use erb_nvme::client::{Call, Reply};
use erb_nvme::opcode::Way;
use erb_nvme::status::Status;

/// For so long the kernel waits for an answer.
const TIMEOUT_MS: u32 = 30_000;
const PAGE: usize = 4096;

/// `struct nvme_passthru_cmd64`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Passthru {
    opcode: u8,
    flags: u8,
    reserved_1: u16,
    namespace: u32,
    words_2: [u32; 2],
    metadata: u64,
    address: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    words_10: [u32; 6],
    timeout_ms: u32,
    reserved_2: u32,
    result: u64,
}

const _: () = assert!(size_of::<Passthru>() == 80);

nix::ioctl_readwrite!(admin_command, b'N', 0x47, Passthru);
nix::ioctl_readwrite!(io_command, b'N', 0x48, Passthru);

/// A controller's character device, or a namespace's.
pub struct Device {
    file: File,
    is_admin: bool,
}

impl Device {
    /// /dev/nvmeX takes admin commands.
    pub fn admin(path: &Path) -> Result<Self> {
        Self::open(path, true)
    }

    /// /dev/ngXnY takes commands of its namespace.
    pub fn io(path: &Path) -> Result<Self> {
        Self::open(path, false)
    }

    fn open(path: &Path, is_admin: bool) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.with_context(|| format!("{} cannot be opened", path.display()))?;
        Ok(Self { file, is_admin })
    }

    /// Has a command done. What the kernel itself refuses is an error, what the node refuses a reply.
    pub fn call(&self, call: &Call) -> Result<Reply> {
        let sqe = &call.sqe;
        let bytes = match sqe.way() {
            Way::FromNode => call.room,
            _ => call.data.len(),
        };
        // Of what is not aligned the kernel maps no 1 MiB.
        let mut buffer = vec![FILL; bytes + PAGE];
        let first = buffer.as_ptr().align_offset(PAGE);
        let data = &mut buffer[first..first + bytes];
        if sqe.way() != Way::FromNode {
            data.copy_from_slice(&call.data);
        }
        let mut command = Passthru {
            opcode: sqe.opcode(),
            namespace: sqe.namespace(),
            words_2: [sqe.word(2), sqe.word(3)],
            address: if bytes == 0 {
                0
            } else {
                data.as_mut_ptr() as u64
            },
            data_bytes: u32::try_from(bytes)?,
            words_10: [10, 11, 12, 13, 14, 15].map(|number| sqe.word(number)),
            timeout_ms: TIMEOUT_MS,
            ..Passthru::default()
        };
        let descriptor = self.file.as_raw_fd();
        // SAFETY: the kernel reads and writes `command` and the `data_bytes` at `address`, which is where `data` lies, and
        // keeps neither. `buffer` lives until the call has returned.
        let ended = unsafe {
            if self.is_admin {
                admin_command(descriptor, &mut command)
            } else {
                io_command(descriptor, &mut command)
            }
        };
        let ended = ended.with_context(|| format!("the kernel refuses {sqe:?}"))?;
        let status = Status::of_wire(u16::try_from(ended)? << 1);
        let data = match sqe.way() {
            Way::FromNode => data.to_vec(),
            _ => Vec::new(),
        };
        Ok(Reply {
            status,
            result: command.result,
            data,
        })
    }
}

/// What stands in a buffer where nothing came.
pub const FILL: u8 = 0xee;
