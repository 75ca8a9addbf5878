// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an emulated machine has beside processors, memory and this machine's files, declared as data.
//!
//! Files and sockets are named, and lie in the machine's folder.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};

use crate::checks::Megabytes;

/// Where a machine with an nvdimm may have memory, all in all.
const MEMORY_MAX: &str = "4G";
/// Where ports of this machine are forwarded.
const LOOPBACK: &str = "127.0.0.1";

/// Something that a machine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// A disk of zeros, which is there as long as the machine.
    Disk {
        /// Its file.
        file: &'static str,
        /// Its size.
        bytes: u64,
    },
    /// A disk that somebody serves by NBD.
    Served {
        /// Where it is served.
        socket: &'static str,
        /// By what the guest finds it.
        bus: Bus,
    },
    /// A folder to which the guest writes; it mounts it by this name.
    Folder(&'static str),
    /// Memory that its kernel takes for persistent.
    Memmap {
        /// How much, as `memmap=` has it.
        size: &'static str,
        /// From where on.
        from: &'static str,
    },
    /// A virtual nvdimm of so much memory.
    Nvdimm(&'static str),
    /// A card in a network with this machine alone, which is its second address.
    Card {
        /// QEMU's name of it.
        model: &'static str,
        /// The network.
        network: &'static str,
        /// Ports of this machine's loopback, and those of the guest that they lead to.
        ports: Vec<(u16, u16)>,
    },
}

/// By what a guest finds a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bus {
    /// virtio-blk, which has flushes.
    Virtio,
    /// A SCSI disk of virtio's, which has FUA too.
    Scsi,
}

impl Device {
    /// Before the machine starts.
    ///
    /// # Errors
    /// If a file cannot be made.
    pub fn make(&self, dir: &Path) -> Result<()> {
        match self {
            Self::Disk { file, bytes } => {
                let path = dir.join(file);
                let made = File::create(&path).and_then(|file| file.set_len(*bytes));
                made.with_context(|| format!("cannot make {}", path.display()))
            }
            Self::Folder(name) => {
                let path = dir.join(name);
                fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// When the machine has ended.
    pub fn clear(&self, dir: &Path) {
        if let Self::Disk { file, .. } = self {
            let _ = fs::remove_file(dir.join(file));
        }
    }

    /// QEMU's arguments. `number` is this device's alone in its machine.
    #[must_use]
    pub fn arguments(&self, number: usize, dir: &Path) -> Vec<String> {
        let options = self.options(number, dir).into_iter();
        options
            .flat_map(|(option, value)| [option.to_owned(), value])
            .collect()
    }

    fn options(&self, number: usize, dir: &Path) -> Vec<(&'static str, String)> {
        let path = |name: &str| escaped(&dir.join(name));
        match self {
            Self::Disk { file, .. } => {
                let file = path(file);
                vec![(
                    "-drive",
                    format!("file={file},format=raw,if=virtio,cache=writeback"),
                )]
            }
            Self::Served { socket, bus } => {
                let name = format!("disk{number}");
                let from = format!(
                    "driver=raw,file.driver=nbd,file.server.type=unix,file.server.path={}",
                    path(socket)
                );
                let mut options = vec![("-blockdev", format!("node-name={name},{from}"))];
                let disk = match bus {
                    Bus::Virtio => "virtio-blk-pci",
                    Bus::Scsi => {
                        options.push(("-device", "virtio-scsi-pci".to_owned()));
                        "scsi-hd,dpofua=on"
                    }
                };
                options.push(("-device", format!("{disk},drive={name}")));
                options
            }
            Self::Folder(name) => {
                let path = path(name);
                vec![
                    (
                        "-fsdev",
                        format!("local,id={name},path={path},security_model=none"),
                    ),
                    (
                        "-device",
                        format!("virtio-9p-pci,fsdev={name},mount_tag={name}"),
                    ),
                ]
            }
            Self::Memmap { .. } => Vec::new(),
            Self::Nvdimm(size) => vec![
                (
                    "-object",
                    format!("memory-backend-ram,id=memory{number},size={size},share=on"),
                ),
                (
                    "-device",
                    format!("nvdimm,memdev=memory{number},id=nvdimm{number}"),
                ),
            ],
            Self::Card {
                model,
                network,
                ports,
            } => {
                let port =
                    |(from, to): &(u16, u16)| format!(",hostfwd=tcp:{LOOPBACK}:{from}-:{to}");
                let ports: String = ports.iter().map(port).collect();
                vec![
                    (
                        "-netdev",
                        format!("user,id=card{number},net={network},ipv6=off{ports}"),
                    ),
                    ("-device", format!("{model},netdev=card{number},romfile=")),
                ]
            }
        }
    }

    /// What the kernel is told of it.
    fn word(&self) -> Option<String> {
        match self {
            Self::Memmap { size, from } => Some(format!("memmap={size}!{from}")),
            _ => None,
        }
    }
}

/// What kernels are told of devices.
#[must_use]
pub fn words(devices: &[Device]) -> String {
    let words: Vec<String> = devices.iter().filter_map(Device::word).collect();
    words.join(" ")
}

/// QEMU's arguments of the board and of its memory.
#[must_use]
pub fn board(memory: Megabytes, devices: &[Device]) -> [String; 4] {
    let has_slot = |device: &Device| matches!(device, Device::Nvdimm(_));
    let slots = devices.iter().filter(|device| has_slot(device)).count();
    let (board, memory) = match slots {
        0 => ("q35".to_owned(), format!("{memory}M")),
        slots => (
            "q35,nvdimm=on".to_owned(),
            format!("{memory}M,slots={slots},maxmem={MEMORY_MAX}"),
        ),
    };
    ["-M".to_owned(), board, "-m".to_owned(), memory]
}

/// A path in an argument, whose parts commas divide.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_has_is_told_to_qemu_and_its_kernel() {
        let devices = [
            Device::Memmap {
                size: "384M",
                from: "1G",
            },
            Device::Nvdimm("384M"),
            Device::Served {
                socket: "fua",
                bus: Bus::Scsi,
            },
            Device::Card {
                model: "e1000",
                network: "10.0.2.0/24",
                ports: vec![(40_000, 5000), (40_001, 5001)],
            },
        ];
        assert_eq!(words(&devices), "memmap=384M!1G");
        let board = board(1024, &devices);
        assert_eq!(
            board,
            ["-M", "q35,nvdimm=on", "-m", "1024M,slots=1,maxmem=4G"]
        );
        assert_eq!(super::board(1024, &[])[1..], ["q35", "-m", "1024M"]);
        let all = |number: usize| {
            devices[number]
                .arguments(number, Path::new("/a,b"))
                .join(" ")
        };
        assert_eq!(all(0), "");
        assert!(all(1).ends_with("-device nvdimm,memdev=memory1,id=nvdimm1"));
        assert!(all(2).contains("file.server.path=/a,,b/fua -device virtio-scsi-pci -device"));
        assert!(all(2).ends_with("scsi-hd,dpofua=on,drive=disk2"));
        assert!(all(3).contains("hostfwd=tcp:127.0.0.1:40000-:5000,hostfwd=tcp:127.0.0.1:40001-"));
    }

    #[test]
    fn a_disk_is_there_as_long_as_its_machine() {
        let dir = std::env::temp_dir().join(format!("erb-vm-disk-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let disk = Device::Disk {
            file: "disk",
            bytes: 1 << 20,
        };
        disk.make(&dir).unwrap();
        assert_eq!(fs::metadata(dir.join("disk")).unwrap().len(), 1 << 20);
        disk.clear(&dir);
        assert!(!dir.join("disk").exists());
        fs::remove_dir_all(dir).unwrap();
    }
}
