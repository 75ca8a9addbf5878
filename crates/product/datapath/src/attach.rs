// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Links: which program sits where. Every link is pinned, so it outlives the daemon.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libbpf_rs::Program;

use crate::device::{Device, all_devices};
use crate::layers::Layers;
use crate::load::program_pin;
use crate::other_end::other_end;
use crate::{Error, Result};

/// The device of clients on this machine, in every network namespace.
pub const LOOPBACK: &str = "lo";

/// Tiers at work on a boosted device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttachMode {
    /// XDP in the driver, and TC.
    Native,
    /// The TC tier alone: the driver has no XDP, or XDP's answers would be late.
    Tc,
}

/// Tiers that are wanted on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedTiers {
    /// XDP in the driver where it has it and where answers arrive at once, and TC.
    Best,
    /// XDP in the driver where it has it, and TC.
    Xdp,
    /// TC alone.
    Tc,
}

/// One boosted device and how it was attached.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Attached {
    /// The device.
    pub device: Device,
    /// Tiers at work.
    pub mode: AttachMode,
    /// Why it is not native, empty otherwise.
    pub why_not_native: String,
}

#[derive(Clone, Copy)]
pub(crate) enum Hook {
    Xdp,
    Ingress,
    Egress,
}

impl Hook {
    pub(crate) const fn program(self) -> &'static str {
        match self {
            Self::Xdp => "erb_xdp",
            Self::Ingress => "erb_tc_ingress",
            Self::Egress => "erb_tc_egress",
        }
    }

    /// Name of the program that takes its place while somebody traces.
    pub(crate) const fn traced(self) -> &'static str {
        match self {
            Self::Xdp => "trace_xdp",
            Self::Ingress => "trace_ingress",
            Self::Egress => "trace_egress",
        }
    }

    const fn attach_type(self) -> libbpf_sys::bpf_attach_type {
        match self {
            Self::Xdp => libbpf_sys::BPF_XDP,
            Self::Ingress => libbpf_sys::BPF_TCX_INGRESS,
            Self::Egress => libbpf_sys::BPF_TCX_EGRESS,
        }
    }

    fn pin(self, root: &Path, ifindex: u32) -> PathBuf {
        let word = match self {
            Self::Xdp => "xdp",
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        };
        root.join(format!("link_{word}_{ifindex}"))
    }
}

/// Pin of the ingress program on a device that is not boosted.
fn elsewhere_pin(root: &Path, ifindex: u32) -> PathBuf {
    root.join(format!("link_elsewhere_{ifindex}"))
}

/// The links of one ERB, found by their pins.
#[derive(Clone, Debug)]
pub struct Links {
    root: PathBuf,
}

impl Links {
    /// Links pinned (or to be pinned) in `root`.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
        }
    }

    /// Attaches the wanted tiers to a boosted device: egress first, so that nothing is answered
    /// that egress does not see.
    ///
    /// # Errors
    /// [`Error::Attach`] if TC refuses, or XDP refuses for another reason than that the driver
    /// has none.
    pub fn boost(&self, device: &Device, wanted: WantedTiers) -> Result<Attached> {
        self.attach(Hook::Egress, device)?;
        self.attach(Hook::Ingress, device)?;
        let why_not_native = match wanted {
            WantedTiers::Tc => Some("asked for with --tier tc".to_owned()),
            WantedTiers::Best | WantedTiers::Xdp => {
                let late = || other_end(device)?.why_not_xdp().map(str::to_owned);
                let why = Layers::read()?.why_not_xdp(device.ifindex);
                match why.or_else(|| late().filter(|_| wanted == WantedTiers::Best)) {
                    Some(why) => Some(why),
                    None => self.attach_xdp(device)?,
                }
            }
        };
        Ok(Attached {
            device: device.clone(),
            mode: if why_not_native.is_none() {
                AttachMode::Native
            } else {
                AttachMode::Tc
            },
            why_not_native: why_not_native.unwrap_or_default(),
        })
    }

    /// Attaches XDP; why the device goes without, if its driver has none.
    fn attach_xdp(&self, device: &Device) -> Result<Option<String>> {
        match self.attach(Hook::Xdp, device) {
            Ok(()) => Ok(None),
            Err(Error::Attach { .. }) if device.name == LOOPBACK => {
                Ok(Some("a loopback has no driver for native XDP".to_owned()))
            }
            Err(Error::Attach { reason, .. }) if !is_occupied(&reason) => {
                Ok(Some(format!("the driver refused native XDP: {reason}")))
            }
            Err(other) => Err(other),
        }
    }

    /// Puts the TC programs on every device that has none of ours yet, for connections that move
    /// there: the egress program on all but VRFs, the ingress program where frames arrive. Takes the
    /// latter away where they are looked at above now, and forgets pins of devices that are gone.
    /// Returns the names of the devices that are newly covered.
    ///
    /// # Errors
    /// [`Error::System`] if the devices cannot be listed. A device that refuses (or vanished
    /// meanwhile) is left out and tried again at the next call.
    pub fn cover(&self) -> Result<Vec<String>> {
        let (devices, layers) = (all_devices()?, Layers::read()?);
        let covered = self.cover_egress(&devices, &layers);
        self.cover_elsewhere(&devices, &layers);
        for (ifindex, path) in self.pins() {
            if !devices.iter().any(|device| device.ifindex == ifindex) {
                // The kernel has detached the link with its device.
                let _ = std::fs::remove_file(path);
            }
        }
        Ok(covered)
    }

    /// As [`Self::cover`], only for what leaves: where no device is boosted.
    ///
    /// # Errors
    /// [`Error::System`] if the devices cannot be listed.
    pub fn watch_egress(&self) -> Result<Vec<String>> {
        Ok(self.cover_egress(&all_devices()?, &Layers::read()?))
    }

    fn cover_egress(&self, devices: &[Device], layers: &Layers) -> Vec<String> {
        let wanted = devices.iter().filter(|device| {
            layers.may_watch_egress(device.ifindex)
                && !Hook::Egress.pin(&self.root, device.ifindex).exists()
        });
        wanted
            .filter(|device| self.attach(Hook::Egress, device).is_ok())
            .map(|device| device.name.clone())
            .collect()
    }

    /// The ingress program where it is wanted beside the boosted devices, and nowhere else. If these are
    /// gone, that is everywhere: connections that were answered go on by other devices.
    fn cover_elsewhere(&self, devices: &[Device], layers: &Layers) {
        let boosted: Vec<u32> = self
            .links(Hook::Ingress)
            .into_iter()
            .filter(|(ifindex, path)| *path == Hook::Ingress.pin(&self.root, *ifindex))
            .map(|(ifindex, _)| ifindex)
            .collect();
        let wanted = layers.elsewhere(&boosted);
        for device in devices {
            let pin = elsewhere_pin(&self.root, device.ifindex);
            if !wanted.contains(&device.ifindex) {
                // Mostly there is none.
                let _ = std::fs::remove_file(pin);
            } else if !pin.exists() {
                // One that refuses, or is gone, is tried again at the next call.
                let _ = self.attach_at(Hook::Ingress, device, &pin);
            }
        }
    }

    /// Indexes of all devices that carry the egress program.
    #[must_use]
    pub fn egress_devices(&self) -> Vec<u32> {
        self.pins()
            .into_iter()
            .filter(|(ifindex, path)| *path == Hook::Egress.pin(&self.root, *ifindex))
            .map(|(ifindex, _)| ifindex)
            .collect()
    }

    /// Whether the XDP link of the device is pinned.
    #[must_use]
    pub fn is_native(&self, device: &Device) -> bool {
        Hook::Xdp.pin(&self.root, device.ifindex).exists()
    }

    /// Takes XDP off a boosted device; the TC tier goes on alone. Packets that wait in the driver may be
    /// lost with it once, which TCP repeats.
    ///
    /// # Errors
    /// [`Error::System`] if its pin cannot be removed.
    pub fn leave_xdp(&self, device: &Device) -> Result<()> {
        // Removing the last reference detaches the link.
        match std::fs::remove_file(Hook::Xdp.pin(&self.root, device.ifindex)) {
            Err(reason) if reason.kind() != io::ErrorKind::NotFound => Err(Error::System {
                what: format!("could not take XDP off {}", device.name),
                reason,
            }),
            _ => Ok(()),
        }
    }

    /// Takes all programs off their devices: XDP first, egress last, so that what XDP left to TC
    /// is still translated.
    pub fn detach_all(&self) {
        let pins = self.pins();
        for hook in [Hook::Xdp, Hook::Ingress, Hook::Egress] {
            for (ifindex, path) in &pins {
                if self.is_of(hook, *ifindex, path) {
                    // Removing the last reference detaches the link.
                    let _ = std::fs::remove_file(path);
                }
            }
        }
    }

    /// Lets every link of a hook go on with another program.
    pub(crate) fn update(&self, hook: Hook, program: &OwnedFd) -> Result<()> {
        for (ifindex, path) in self.links(hook) {
            let updated = open_pin(&path).and_then(|link| link_update(&link, program, None));
            unless_gone(hook, ifindex, updated)?;
        }
        Ok(())
    }

    /// Lets every link of a hook that runs `from` go on with `to`; returns how many did.
    pub(crate) fn swap(
        &self,
        hook: Hook,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
    ) -> Result<usize> {
        let from_id = program_id(&from).map_err(|reason| Error::System {
            what: "could not ask what a program is".to_owned(),
            reason,
        })?;
        let mut swapped = 0;
        for (ifindex, path) in self.links(hook) {
            let updated = open_pin(&path).and_then(|link| {
                if linked_program_id(&link)? == from_id {
                    link_update(&link, &to, Some(from))?;
                    swapped += 1;
                }
                Ok(())
            });
            unless_gone(hook, ifindex, updated)?;
        }
        Ok(swapped)
    }

    /// Lets every link that runs a traced program go on with the pinned one; returns how many did.
    ///
    /// # Errors
    /// [`Error::Attach`] if one cannot be updated.
    pub fn untrace(&self) -> Result<usize> {
        let mut swapped = 0;
        for hook in [Hook::Egress, Hook::Ingress, Hook::Xdp] {
            let path = program_pin(&self.root, hook.program());
            let Ok(pinned) = Program::fd_from_pinned_path(&path) else {
                continue; // nothing is left of it at all
            };
            let running = self.links(hook).into_iter().filter_map(|(_, path)| {
                let link = open_pin(&path).ok()?;
                let id = linked_program_id(&link).ok()?;
                let program = Program::fd_from_id(id).ok()?;
                let name = info::<libbpf_sys::bpf_prog_info>(&program).ok()?.name;
                (name_of(&name) == hook.traced()).then_some((id, program))
            });
            let running: BTreeMap<u32, OwnedFd> = running.collect();
            for program in running.values() {
                swapped += self.swap(hook, program.as_fd(), pinned.as_fd())?;
            }
        }
        Ok(swapped)
    }

    /// Whether every link runs the program that is pinned for it: not so after a replacement that
    /// was killed half-way.
    #[must_use]
    pub fn run_pinned(&self) -> bool {
        [Hook::Egress, Hook::Ingress, Hook::Xdp]
            .into_iter()
            .all(|hook| {
                let pinned = open_pin(&program_pin(&self.root, hook.program()))
                    .and_then(|program| program_id(&program));
                let Ok(pinned) = pinned else { return false };
                self.links(hook).iter().all(|(_, path)| {
                    let running = open_pin(path).and_then(|link| linked_program_id(&link));
                    running.is_ok_and(|running| running == pinned)
                })
            })
    }

    /// Indexes of the boosted devices that are still there. The kernel takes a link off its device
    /// when that goes, and keeps the pin.
    #[must_use]
    pub fn boosted_devices(&self) -> Vec<u32> {
        let mut found = self.links(Hook::Ingress);
        found.retain(|(ifindex, path)| *path == Hook::Ingress.pin(&self.root, *ifindex));
        found.retain(|(_, path)| open_pin(path).is_ok_and(|link| is_on_a_device(&link)));
        found.into_iter().map(|(ifindex, _)| ifindex).collect()
    }

    fn links(&self, hook: Hook) -> Vec<(u32, PathBuf)> {
        let mut pins = self.pins();
        pins.retain(|(ifindex, path)| self.is_of(hook, *ifindex, path));
        pins
    }

    /// Whether a pin is that of a link of this hook, on a boosted device or elsewhere.
    fn is_of(&self, hook: Hook, ifindex: u32, path: &Path) -> bool {
        *path == hook.pin(&self.root, ifindex)
            || (matches!(hook, Hook::Ingress) && *path == elsewhere_pin(&self.root, ifindex))
    }

    fn pins(&self) -> Vec<(u32, PathBuf)> {
        let Ok(entries) = std::fs::read_dir(&self.root) else {
            return Vec::new();
        };
        entries
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let ifindex = name
                    .strip_prefix("link_")?
                    .split_once('_')?
                    .1
                    .parse()
                    .ok()?;
                Some((ifindex, entry.path()))
            })
            .collect()
    }

    fn attach(&self, hook: Hook, device: &Device) -> Result<()> {
        self.attach_at(hook, device, &hook.pin(&self.root, device.ifindex))
    }

    fn attach_at(&self, hook: Hook, device: &Device, pin: &Path) -> Result<()> {
        let path = program_pin(&self.root, hook.program());
        let program = Program::fd_from_pinned_path(&path).map_err(|error| Error::Pin {
            what: path.display().to_string(),
            reason: error.to_string(),
        })?;
        let refused = |reason| Error::Attach {
            program: hook.program(),
            device: device.name.clone(),
            reason,
        };
        let link = link_create(&program, hook, device.ifindex).map_err(refused)?;
        pin_fd(&link, pin).map_err(refused)
    }
}

/// EBUSY and EEXIST: another program came between preflight and attach; that is no reason to fall
/// back but to stop.
fn is_occupied(reason: &io::Error) -> bool {
    matches!(reason.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

fn link_create(program: &OwnedFd, hook: Hook, ifindex: u32) -> io::Result<OwnedFd> {
    let mut options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    if matches!(hook, Hook::Xdp) {
        options.flags = libbpf_sys::XDP_FLAGS_DRV_MODE;
    }
    // SAFETY: options is a live, zero-filled structure of the size it states.
    let fd = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            ifindex as i32,
            hook.attach_type(),
            &raw const options,
        )
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn pin_fd(link: &OwnedFd, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: path is a live NUL-terminated string.
    let done = unsafe { libbpf_sys::bpf_obj_pin(link.as_raw_fd(), path.as_ptr()) };
    if done < 0 {
        Err(io::Error::from_raw_os_error(-done))
    } else {
        Ok(())
    }
}

fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: path is a live NUL-terminated string.
    let fd = unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `from`: only if that is what the link runs.
fn link_update(
    link: &OwnedFd,
    program: &impl AsRawFd,
    from: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut options = libbpf_sys::bpf_link_update_opts {
        sz: size_of::<libbpf_sys::bpf_link_update_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    if let Some(from) = from {
        options.flags = libbpf_sys::BPF_F_REPLACE;
        options.old_prog_fd = from.as_raw_fd() as u32;
    }
    // SAFETY: options is a live structure of the size it states; all descriptors are open.
    let done = unsafe {
        libbpf_sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), &raw const options)
    };
    if done < 0 {
        Err(io::Error::from_raw_os_error(-done))
    } else {
        Ok(())
    }
}

/// The outcome of a change of a link, where a device that is gone, and its link with it, is fine.
fn unless_gone(hook: Hook, ifindex: u32, done: io::Result<()>) -> Result<()> {
    match done.as_ref().map_err(io::Error::raw_os_error) {
        Ok(()) | Err(Some(libc::ENOENT | libc::ENOLINK | libc::ENODEV)) => Ok(()),
        Err(_) => done.map_err(|reason| Error::Attach {
            program: hook.program(),
            device: format!("device number {ifindex}"),
            reason,
        }),
    }
}

/// A program's name as the kernel gives it: up to the first zero.
fn name_of(bytes: &[std::ffi::c_char]) -> String {
    let letters = bytes.iter().map(|byte| *byte as u8);
    letters
        .take_while(|byte| *byte != 0)
        .map(char::from)
        .collect()
}

/// What the kernel says of a descriptor, as the plain structure `T` of its kind.
pub(crate) fn info<T: Default>(fd: &impl AsRawFd) -> io::Result<T> {
    let mut found = T::default();
    let mut length = size_of::<T>() as u32;
    // SAFETY: found is a live structure of that many bytes, for which any content is valid; the
    // kernel writes no more.
    let done = unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(fd.as_raw_fd(), (&raw mut found).cast(), &raw mut length)
    };
    if done < 0 {
        Err(io::Error::from_raw_os_error(-done))
    } else {
        Ok(found)
    }
}

/// Instructions that the verifier went through when it loaded the program: the `processed N insns` of its log
/// (`env->insn_processed`), kept by the kernel since Linux 5.16.
///
/// # Errors
/// [`Error::System`] if the kernel does not tell.
pub fn verified(program: &impl AsRawFd) -> Result<u32> {
    let found = info::<libbpf_sys::bpf_prog_info>(program).map_err(|reason| Error::System {
        what: "could not ask what a program is".to_owned(),
        reason,
    })?;
    Ok(found.verified_insns)
}

/// Whether a link at tcx has not lost its device.
fn is_on_a_device(link: &OwnedFd) -> bool {
    info::<libbpf_sys::bpf_link_info>(link).is_ok_and(|found| {
        // SAFETY: of a link at tcx the kernel has filled this member; all of them are plain data.
        unsafe { found.__bindgen_anon_1.tcx.ifindex != 0 }
    })
}

pub(crate) fn program_id(program: &impl AsRawFd) -> io::Result<u32> {
    Ok(info::<libbpf_sys::bpf_prog_info>(program)?.id)
}

fn linked_program_id(link: &OwnedFd) -> io::Result<u32> {
    Ok(info::<libbpf_sys::bpf_link_info>(link)?.prog_id)
}
