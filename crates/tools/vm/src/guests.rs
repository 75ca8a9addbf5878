// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests that need more than a wire: disks, persistent memory, a network, or to lose their power.

use crate::checks::{Guest, Host, MKFS, Package, REDIS};
use crate::device::Device;
use crate::kernels::Needed;
use crate::toolchain;

const TC: Package = ("/sbin/tc", "iproute2");
/// Of each of two kinds of persistent memory.
const PMEM: &str = "384M";
/// What cuts power.
const DRIVER: &str = "erb-node-vm";

pub(crate) static DAX: Guest = Guest {
    script: include_str!("../guest/dax.sh"),
    chooses: true,
    memory: 2560,
    devices: &[
        Device::Memmap {
            size: PMEM,
            from: "1G",
        },
        Device::Nvdimm(PMEM),
        // It sends without a copy.
        Device::Card {
            model: "e1000",
            network: "10.0.2.0/24",
            ports: Vec::new(),
        },
        // It does not.
        Device::Card {
            model: "virtio-net-pci",
            network: "10.0.3.0/24",
            ports: Vec::new(),
        },
    ],
    programs: &["erb-dax-vm"],
    packages: &[
        TC,
        MKFS,
        ("/sbin/mkfs.xfs", "xfsprogs"),
        ("/usr/bin/ndctl", "ndctl"),
        ("/sbin/wipefs", "util-linux"),
    ],
    host: Host::Peer("erb-dax-vm"),
    // The kernel's tracer changes its text, and so does KFENCE with each sample. Software that executes misses such a change
    // now and then, and then the kernel has met an int3 that is nobody's.
    words: "kfence.sample_interval=0",
    // Blocks are freed while TCP sends their pages: so does who sends without dax-send.
    expected: &["dax_disassociate_entry"],
    seconds: 1_800,
    ..Guest::PLAIN
};

pub(crate) static NODE: Guest = Guest {
    script: include_str!("../guest/node.sh"),
    memory: 1536,
    devices: &[
        Device::Disk {
            file: "disk",
            bytes: 256 << 20,
        },
        Device::Folder("out"),
    ],
    programs: &["erb-node-vm"],
    packages: &[
        TC,
        ("/usr/sbin/nvme", "nvme-cli"),
        ("/usr/bin/tshark", "tshark"),
        ("/usr/bin/dumpcap", "wireshark-common"),
    ],
    host: Host::Captures("out"),
    seconds: 1_800,
    ..Guest::PLAIN
};

pub(crate) static POWER: Guest = Guest {
    script: include_str!("../guest/power.sh"),
    memory: 1024,
    programs: &[DRIVER],
    packages: &[MKFS],
    host: Host::Driver(DRIVER, "power"),
    seconds: 3_600,
    ..Guest::PLAIN
};

pub(crate) static WRITES: Guest = Guest {
    script: include_str!("../guest/writes.sh"),
    memory: 1500,
    programs: &[DRIVER],
    packages: &[MKFS, REDIS],
    needed: |args| match args.options.has_module() {
        true => Needed::Headers,
        false => Needed::Image,
    },
    prepare: |case| match case.args.options.has_module() {
        true => toolchain::module(case),
        false => Ok(()),
    },
    host: Host::Driver(DRIVER, "writes"),
    seconds: 3_600,
    ..Guest::PLAIN
};
