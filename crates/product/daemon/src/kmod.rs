// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel module `erb_io` as the daemon sees it: its device (`kmod/erb_io.h`), and why it may not be there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use erb_abi::{LOG_RECORD_BYTES_MAX, LOG_SET, SLOT_HEADER_BYTES, log_record};
use erb_journal::{HEADER_BYTES, Header, Id, Write, encode_header};

use crate::{Error, Result};

/// The module's name.
pub(crate) const NAME: &str = "erb_io";

/// Its device; one process has it open at a time.
const DEVICE: &str = "/dev/erb_io";

/// What describes its functions to programs.
const TYPES: &str = "/sys/kernel/btf/erb_io";

/// What the programs call of it.
const FUNCTIONS: [&str; 2] = ["erb_io_reserve", "erb_io_push"];

/// `enum gate` of `kmod/core/gate.h`.
pub(crate) const GATE_OPEN: u32 = 0;
const GATE_NO_FILE: u32 = 1;
const GATE_CLOSED: u32 = 2;
const GATE_WRITE: u32 = 3;
const GATE_SYNC: u32 = 4;
pub(crate) const GATE_GAP: u32 = 5;
pub(crate) const GATE_BACKWARD: u32 = 6;

/// `ERB_IO_IDLE`: no file is at work.
pub(crate) const IDLE: u32 = 0;

/// Records that it retains are apart by as much.
const ALIGN: usize = 8;

/// `struct erb_io_file`.
#[repr(C)]
struct Handed {
    fd: i32,
    pad: u32,
    header: [u8; HEADER_BYTES],
}

/// `struct erb_io_status`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IoStatus {
    /// Why nothing is taken; 0: it is.
    pub(crate) gate: u32,
    pub(crate) state: u32,
    /// Of the last failure, negative; 0: a short write, or none.
    pub(crate) error: i32,
    pub(crate) fifos: u32,
    pub(crate) written_lsn: u64,
    pub(crate) synced_lsn: u64,
    pub(crate) file_bytes: u64,
    pub(crate) records: u64,
    pub(crate) batches: u64,
    pub(crate) syncs: u64,
    pub(crate) failures: u64,
    pub(crate) pushed: u64,
    pub(crate) refused: u64,
    pub(crate) wakes: u64,
    pub(crate) retained_bytes: u64,
    pub(crate) files: u64,
    pub(crate) before_lsn: u64,
    pub(crate) journal: [u8; 16],
}

impl IoStatus {
    /// Why its gate is shut, for people.
    pub(crate) fn why(&self) -> String {
        let error = match self.error {
            0 => String::new(),
            code => format!(": {}", io::Error::from_raw_os_error(-code)),
        };
        match self.gate {
            GATE_NO_FILE => "it has no file".to_owned(),
            GATE_CLOSED => {
                "the daemon before this one has gone, and what it pushed is being written"
                    .to_owned()
            }
            GATE_WRITE if error.is_empty() => "its disk is full: a write was short".to_owned(),
            GATE_WRITE => format!("it could not write{error}"),
            GATE_SYNC => format!("it could not sync{error}"),
            GATE_GAP => "a record that was answered did not come to it".to_owned(),
            GATE_BACKWARD => "a record came to it twice".to_owned(),
            other => format!("its gate is shut ({other})"),
        }
    }

    /// Whose records it has.
    pub(crate) const fn id(&self) -> Id {
        Id(self.journal)
    }
}

mod calls {
    use super::{Handed, IoStatus};

    nix::ioctl_write_ptr!(file, 0xEB, 1, Handed);
    nix::ioctl_read!(status, 0xEB, 2, IoStatus);
    nix::ioctl_none!(sync, 0xEB, 3);
    nix::ioctl_write_ptr!(forget, 0xEB, 4, u64);
    nix::ioctl_write_ptr!(next, 0xEB, 5, Handed);
}

/// What is asked of its device, of which tests have one of their own. No call waits for a disk.
pub(crate) trait Calls {
    /// From here on records go to this new segment; `beside`: behind what the one at work is still to have.
    fn give(&self, file: &impl AsFd, header: &Header, beside: bool) -> io::Result<()>;

    fn status(&self) -> io::Result<IoStatus>;

    /// Asks for a sync.
    fn sync(&self) -> io::Result<()>;

    /// What it retains up to this LSN is nobody's any more.
    fn forget(&self, lsn: u64) -> io::Result<()>;

    /// Tells what it retains, in order of LSN, while no file is at work.
    fn retained(&self, told: impl FnMut(Write<'_>) -> io::Result<()>) -> io::Result<()>;
}

/// Its device, open.
pub(crate) struct Module(File);

impl Module {
    /// Opens the device.
    ///
    /// # Errors
    /// Another process has it ([`io::ErrorKind::ResourceBusy`]), or it is not there.
    pub(crate) fn open() -> io::Result<Self> {
        let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
        opened.map(Self)
    }
}

impl Calls for Module {
    fn give(&self, file: &impl AsFd, header: &Header, beside: bool) -> io::Result<()> {
        let handed = Handed {
            fd: file.as_fd().as_raw_fd(),
            pad: 0,
            header: encode_header(header),
        };
        let device = self.0.as_raw_fd();
        // SAFETY: what is handed over lives through the call, and is what the device takes.
        let done = unsafe {
            match beside {
                true => calls::next(device, &raw const handed),
                false => calls::file(device, &raw const handed),
            }
        };
        Ok(done.map(drop)?)
    }

    fn status(&self) -> io::Result<IoStatus> {
        let mut status = IoStatus::default();
        // SAFETY: the status lives through the call, and is what the device fills.
        unsafe { calls::status(self.0.as_raw_fd(), &raw mut status) }?;
        Ok(status)
    }

    fn sync(&self) -> io::Result<()> {
        // SAFETY: the call takes nothing.
        Ok(unsafe { calls::sync(self.0.as_raw_fd()) }.map(drop)?)
    }

    fn forget(&self, lsn: u64) -> io::Result<()> {
        // SAFETY: the number lives through the call.
        Ok(unsafe { calls::forget(self.0.as_raw_fd(), &raw const lsn) }.map(drop)?)
    }

    fn retained(&self, mut told: impl FnMut(Write<'_>) -> io::Result<()>) -> io::Result<()> {
        // From the first one on, whatever was read before.
        (&self.0).rewind()?;
        let mut bytes = vec![0; 1 << 20];
        loop {
            let got = (&self.0).read(&mut bytes)?;
            if got == 0 {
                return Ok(());
            }
            let mut rest = &bytes[..got];
            while !rest.is_empty() {
                let (write, used) = record(rest)
                    .ok_or_else(|| io::Error::other("the kernel module tells what is no record"))?;
                told(write)?;
                rest = rest.get(used..).unwrap_or_default();
            }
        }
    }
}

/// The record that these bytes begin with, and how many are its own.
fn record(bytes: &[u8]) -> Option<(Write<'_>, usize)> {
    let head = size_of::<log_record>();
    let data = head + SLOT_HEADER_BYTES as usize;
    let word = |at: usize| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let half = |at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let said = u32::from_ne_bytes(*bytes.get(16..)?.first_chunk()?) as usize;
    let (value, key) = (usize::from(half(head + 4)?), usize::from(half(head + 6)?));
    let is_one = u32::from(half(20)?) == LOG_SET
        && said <= LOG_RECORD_BYTES_MAX as usize
        && said == data + value + key.next_multiple_of(8);
    let write = Write {
        lsn: word(0)?,
        db: half(head + 10)?,
        expiry_ms: word(8)?,
        key: bytes.get(data + value..data + value + key)?,
        value: bytes.get(data..data + value)?,
    };
    is_one.then_some((write, said.next_multiple_of(ALIGN)))
}

/// What of the machine tells about it.
struct Signs {
    device: PathBuf,
    types: PathBuf,
    /// Modules of the kernel that runs.
    modules: PathBuf,
    /// What modules are built with.
    headers: PathBuf,
    lockdown: PathBuf,
    is_loaded: PathBuf,
}

impl Signs {
    fn here() -> Self {
        let uname = nix::sys::utsname::uname();
        let release = uname.map_or_else(
            |_| String::new(),
            |names| names.release().to_string_lossy().into_owned(),
        );
        let modules = Path::new("/lib/modules").join(release);
        Self {
            device: DEVICE.into(),
            types: TYPES.into(),
            headers: modules.join("build"),
            modules,
            lockdown: "/sys/kernel/security/lockdown".into(),
            is_loaded: Path::new("/sys/module").join(NAME),
        }
    }

    /// Why programs cannot use it, and what to do; none: they can.
    fn against(&self) -> Option<String> {
        if !self.is_loaded.exists() {
            return Some(self.not_loaded());
        }
        let types = fs::read(&self.types).unwrap_or_default();
        let has = |name: &&str| {
            let name = [b"\0", name.as_bytes(), b"\0"].concat();
            types.windows(name.len()).any(|at| at == name)
        };
        if !FUNCTIONS.iter().all(has) {
            return Some(format!(
                "the module {NAME} is loaded, and the kernel does not know its functions ({} {}): it was built without \
                 this kernel's BTF, or for another one; `make -C kmod` says which, then `rmmod {NAME}` and load it anew",
                self.types.display(),
                if types.is_empty() {
                    "is missing"
                } else {
                    "has others"
                }
            ));
        }
        (!self.device.exists()).then(|| {
            format!(
                "the module {NAME} is loaded, and {} is missing: a container is not shown it unless it is passed in",
                self.device.display()
            )
        })
    }

    fn not_loaded(&self) -> String {
        if is_below(&self.modules, &format!("{NAME}.ko"), 3) {
            let lockdown = fs::read_to_string(&self.lockdown).unwrap_or_default();
            let signed = match lockdown.contains("[none]") || lockdown.is_empty() {
                true => "",
                false => {
                    "; this kernel is locked down (Secure Boot), so it takes signed modules alone: enrol DKMS's key with \
                     `mokutil --import`, and sign it"
                }
            };
            return format!("the module {NAME} is built and not loaded: `modprobe {NAME}`{signed}");
        }
        match self.headers.exists() {
            true => format!(
                "the module {NAME} is not built for this kernel: `make -C kmod`, then `insmod kmod/{NAME}.ko` \
                 (docs/internals/module.md)"
            ),
            false => format!(
                "the module {NAME} is not built, and this kernel's headers are missing ({}): install them (Debian: \
                 linux-headers-amd64), then `make -C kmod` and `insmod kmod/{NAME}.ko`",
                self.headers.display()
            ),
        }
    }
}

/// Whether a folder has a file whose name begins so, so many folders deep at most.
fn is_below(folder: &Path, name: &str, depth: u32) -> bool {
    let Ok(entries) = fs::read_dir(folder) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        entry.file_name().to_string_lossy().starts_with(name)
            || (is_folder && depth > 0 && is_below(&entry.path(), name, depth - 1))
    })
}

/// Why programs cannot use the module, and what to do; none: they can.
pub(crate) fn against() -> Option<String> {
    Signs::here().against()
}

/// Checks that a boost can have the module write its journal.
///
/// # Errors
/// [`Error::Kernel`] that says what to do.
pub(crate) fn check() -> Result<()> {
    let told = |why| {
        Error::Kernel(format!(
            "{why}; or leave out --journal-sink kmod: the daemon writes the journal by itself"
        ))
    };
    against().map_or(Ok(()), |why| Err(told(why)))
}

#[cfg(test)]
mod tests {
    use erb_abi::{LogWriter, Logs, Written};

    use super::*;

    /// A machine of which nothing tells of the module.
    fn signs(root: &Path) -> Signs {
        let at = |name: &str| root.join(name);
        Signs {
            device: at("device"),
            types: at("types"),
            modules: at("modules"),
            headers: at("modules/build"),
            lockdown: at("lockdown"),
            is_loaded: at("loaded"),
        }
    }

    #[test]
    fn each_reason_why_it_cannot_be_had_says_what_to_do() {
        let root = tempfile::tempdir().expect("a folder");
        let signs = signs(root.path());
        let told = |what: &str| {
            let why = signs.against().expect("it cannot be had");
            assert!(why.contains(what), "{why}");
        };
        told("headers are missing");
        fs::create_dir_all(&signs.headers).expect("a folder");
        told("`make -C kmod`, then `insmod");
        let folder = signs.modules.join("updates/dkms");
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("erb_io.ko.xz"), "").expect("a module");
        told("`modprobe erb_io`");
        fs::write(&signs.lockdown, "none [integrity] confidentiality\n").expect("a file");
        told("mokutil");
        fs::create_dir(&signs.is_loaded).expect("a folder");
        told("types is missing");
        fs::write(&signs.types, b"\0erb_io_reserve\0erb_io_pull\0").expect("types");
        told("types has others");
        fs::write(&signs.types, b"\0erb_io_reserve\0erb_io_push\0").expect("types");
        told("device is missing");
        fs::write(&signs.device, "").expect("a device");
        assert_eq!(signs.against(), None);
    }

    #[test]
    fn what_it_retains_is_read_as_the_programs_wrote_it() {
        let logs = Logs::zeros(1);
        let mut writer = LogWriter::new(&logs, 0);
        writer.put(&Written {
            lsn: 9,
            db: 3,
            key: b"a key",
            value: b"a value",
            expiry_ms: 7,
        });
        let mut bytes = [0; 128];
        logs.copy(0, 0, 0, &mut bytes);
        let (write, used) = record(&bytes).expect("a record");
        assert_eq!((write.lsn, write.db, write.expiry_ms), (9, 3, 7));
        assert_eq!((write.key, write.value), (&b"a key"[..], &b"a value"[..]));
        assert_eq!(used, 56, "head, slot's head, value, padded key; rounded up");
        for cut in 0..51 {
            assert!(record(&bytes[..cut]).is_none_or(|(_, used)| used > cut));
        }
        bytes[16] ^= 1;
        assert!(record(&bytes).is_none(), "its lengths differ");
        assert!(record(&[0; 64]).is_none(), "zeros");
    }

    /// The C of the device, printed: sizes, places and numbers of calls.
    const C: &str = r#"
#include <stddef.h>
#include <stdio.h>
#include "core/gate.h"
#include "erb_io.h"
int main(void)
{
    printf("%zu %zu %zu %zu %zu %zu %zu %d %d %lu", sizeof(struct erb_io_file), sizeof(struct erb_io_status),
           offsetof(struct erb_io_status, written_lsn), offsetof(struct erb_io_status, retained_bytes),
           offsetof(struct erb_io_status, files), offsetof(struct erb_io_status, before_lsn),
           offsetof(struct erb_io_status, journal), GATE_GAP, GATE_BACKWARD, (unsigned long)ERB_IO_NEXT);
}
"#;

    #[test]
    fn the_device_is_what_its_header_says() {
        let root = tempfile::tempdir().expect("a folder");
        let (source, program) = (root.path().join("layout.c"), root.path().join("layout"));
        fs::write(&source, C).expect("a source");
        let kmod = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../kmod");
        let mut clang = erb_clang::clang().expect("a clang");
        clang
            .arg("-I")
            .arg(kmod)
            .arg(&source)
            .arg("-o")
            .arg(&program);
        erb_clang::start(clang)
            .and_then(erb_clang::finish)
            .expect("it compiles");
        let said = std::process::Command::new(&program)
            .output()
            .expect("it runs");
        let said = String::from_utf8(said.stdout).expect("numbers");
        let own = [
            size_of::<Handed>(),
            size_of::<IoStatus>(),
            std::mem::offset_of!(IoStatus, written_lsn),
            std::mem::offset_of!(IoStatus, retained_bytes),
            std::mem::offset_of!(IoStatus, files),
            std::mem::offset_of!(IoStatus, before_lsn),
            std::mem::offset_of!(IoStatus, journal),
            GATE_GAP as usize,
            GATE_BACKWARD as usize,
            nix::request_code_write!(0xEB, 5, size_of::<Handed>()) as usize,
        ];
        let own: Vec<String> = own.iter().map(ToString::to_string).collect();
        assert_eq!(said, own.join(" "));
    }
}
