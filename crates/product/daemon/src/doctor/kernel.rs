// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel and what this process may do with it.

use std::fs;

use super::Findings;
use crate::preflight::{check_kernel, check_privileges};

fn setting(path: &str) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

pub(super) fn examine(findings: &mut Findings) {
    if findings.checked("privilege", check_privileges()).is_some() {
        findings.fine("privilege", "enough to boost");
    }
    if findings.checked("kernel", check_kernel()).is_some() {
        let release = setting("/proc/sys/kernel/osrelease").unwrap_or_default();
        findings.fine("kernel", format!("Linux {release} with BTF"));
    }
    match setting("/proc/sys/net/core/bpf_jit_enable").as_deref() {
        Some("0") => findings.warn(
            "kernel",
            "BPF programs are interpreted, which is several times slower: `sysctl -w \
             net.core.bpf_jit_enable=1`",
        ),
        Some(_) => findings.fine("kernel", "BPF programs are compiled (JIT)"),
        // The kernel shows it in its first network namespace, to root of its first user namespace.
        None => findings.unknown(
            "kernel",
            "whether BPF programs are compiled (JIT) is not shown in this namespace: `sysctl \
             net.core.bpf_jit_enable` outside of it says 1 if they are",
        ),
    }
    if setting("/proc/sys/net/core/bpf_jit_harden").as_deref() == Some("2") {
        findings.warn(
            "kernel",
            "constants in all BPF programs are blinded, which makes them slower: `sysctl -w \
             net.core.bpf_jit_harden=1` blinds those of unprivileged users alone",
        );
    }
    let lockdown = setting("/sys/kernel/security/lockdown").unwrap_or_default();
    if lockdown.contains("[confidentiality]") {
        findings.bad(
            "kernel",
            "lockdown=confidentiality forbids programs to read kernel memory: boot with \
             lockdown=integrity or without",
        );
    }
}
