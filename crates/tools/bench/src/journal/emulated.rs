// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether this machine's processor is emulated: then times say how long the emulator takes for what, and rank nothing.
//!
//! That there is a hypervisor is no sign: with one the processor still runs what it is given. QEMU's DMI names are the
//! same with KVM and without. What tells is the hypervisor's own name (CPUID leaf 0x4000_0000), and the model's.

use std::arch::x86_64::__cpuid;
use std::fs;

use anyhow::{Context, Result};

/// First leaf of the hypervisor's, and the bit of leaf 1 (ECX) that says there is one.
const HYPERVISOR_LEAF: u32 = 0x4000_0000;
const HYPERVISOR_BIT: u32 = 1 << 31;

/// QEMU without KVM (target/i386/cpu.c).
const TCG: &[u8; 12] = b"TCGTCGTCGTCG";

/// Models that only emulators name so.
const MODELS: [&str; 2] = ["QEMU TCG CPU", "Bochs"];

/// By what this machine is emulated; none: it is not.
///
/// # Errors
/// /proc/cpuinfo cannot be read.
pub fn emulator() -> Result<Option<String>> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").context("could not read /proc/cpuinfo")?;
    Ok(told_by(&cpuinfo, hypervisor().as_ref()))
}

/// Name of the hypervisor, if there is one.
fn hypervisor() -> Option<[u8; 12]> {
    let has_one = __cpuid(1).ecx & HYPERVISOR_BIT != 0;
    has_one.then(|| {
        let leaf = __cpuid(HYPERVISOR_LEAF);
        let mut name = [0; 12];
        for (at, word) in [leaf.ebx, leaf.ecx, leaf.edx].into_iter().enumerate() {
            name[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
        }
        name
    })
}

/// By what a machine is emulated of which this is told.
fn told_by(cpuinfo: &str, hypervisor: Option<&[u8; 12]>) -> Option<String> {
    if hypervisor == Some(TCG) {
        return Some("QEMU without KVM, by CPUID".to_owned());
    }
    let models = cpuinfo
        .lines()
        .filter(|line| line.starts_with("model name"))
        .filter_map(|line| line.split_once(':'));
    let mut names = models.map(|(_, name)| name.trim());
    let name = names.find(|name| MODELS.iter().any(|of| name.starts_with(of)))?;
    Some(format!("an emulator whose processor is called {name:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPYC: &str = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu hypervisor\n";
    const MAX: &str = "processor\t: 0\nmodel name\t: QEMU TCG CPU version 2.5+\nflags\t\t: fpu\n";

    #[test]
    fn a_hypervisor_alone_is_no_emulator() {
        assert_eq!(told_by(EPYC, None), None);
        for name in [b"KVMKVMKVM\0\0\0", b"Microsoft Hv", b"VMwareVMware"] {
            assert_eq!(told_by(EPYC, Some(name)), None);
        }
    }

    #[test]
    fn qemu_without_kvm_is_known_by_either_sign() {
        // `-cpu EPYC` has an ordinary model's name, `-cpu max,-hypervisor` tells of no hypervisor.
        let by_cpuid = told_by(EPYC, Some(TCG)).expect("emulated");
        assert!(by_cpuid.contains("without KVM"), "{by_cpuid}");
        let by_model = told_by(MAX, None).expect("emulated");
        assert!(by_model.contains("QEMU TCG CPU version 2.5+"), "{by_model}");
    }

    #[test]
    fn a_model_is_looked_for_in_its_own_line() {
        let vendor = "vendor_id\t: Bochs\nmodel name\t: AMD EPYC\n";
        assert_eq!(told_by(vendor, None), None);
        assert_eq!(told_by("", None), None);
    }
}
