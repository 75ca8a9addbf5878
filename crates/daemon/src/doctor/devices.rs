// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The devices by which clients come.

use std::thread::available_parallelism;

use erb_datapath::{Abilities, Device, abilities, all_devices, check_layers, is_up};

use super::{Findings, Patient};
use crate::Error;
use crate::preflight::check_no_xdp;
use crate::rundir::RunDir;

/// Largest MTU at which a frame with XDP's headroom (256) and the kernel's own data behind it (320)
/// fits a page of 4096, with Ethernet and VLAN header: drivers without multi-buffer XDP refuse
/// native XDP above.
const XDP_MTU_MAX: u32 = 3498;

/// Names of ERB's own programs.
const OWN: [&str; 3] = ["erb_xdp", "erb_tc_ingress", "erb_tc_egress"];

pub(super) fn examine(findings: &mut Findings, patient: &Patient) {
    let mut names = patient.devices.clone();
    if names.is_empty() {
        let all = all_devices().unwrap_or_default();
        let others = all.into_iter().map(|device| device.name);
        names.extend(others.filter(|name| name != "lo"));
        if names.is_empty() {
            findings.bad(
                "devices",
                "there is no device but lo in this network namespace; boost where redis-server \
                 runs (`ip netns exec NAME erb doctor`)",
            );
        }
    }
    for name in &names {
        let found = findings.checked(name, Device::find(name).map_err(Error::from));
        let Some(device) = found else { continue };
        let fit = check_layers(std::slice::from_ref(&device));
        match fit {
            Ok(()) => examine_one(findings, &device),
            Err(why) if patient.devices.is_empty() => findings.warn(name, why.to_string()),
            Err(why) => drop(findings.checked::<()>(name, Err(why.into()))),
        }
    }
    examine_together(findings, &patient.devices);
    if !patient.devices.is_empty() {
        tell_others(findings, &patient.devices);
    }
}

/// Whether a boost of this namespace, wherever its run directory is, has the device.
fn is_boosted(device: &Device) -> bool {
    RunDir::of_device(&device.name).is_ok_and(|run_dir| run_dir.has_pins())
        || RunDir::all_here().is_ok_and(|all| {
            let notes = all.iter().filter_map(|run_dir| run_dir.notes().ok());
            notes
                .map(|notes| notes.devices())
                .any(|devices| devices.contains(device))
        })
}

/// Devices that are fit each by itself.
fn examine_together(findings: &mut Findings, names: &[String]) {
    let devices: Vec<Device> = names
        .iter()
        .filter_map(|name| Device::find(name).ok())
        .filter(|device| check_layers(std::slice::from_ref(device)).is_ok())
        .collect();
    if let Err(why) = check_layers(&devices) {
        findings.checked::<()>("devices", Err(why.into()));
    }
}

fn examine_one(findings: &mut Findings, device: &Device) {
    let name = &device.name;
    let boosted = is_boosted(device);
    if boosted {
        findings.fine(name, "boosted already, see `erb status`");
    } else if findings
        .checked(name, check_no_xdp(std::slice::from_ref(device)))
        .is_some()
    {
        findings.fine(name, "no XDP program is on it");
    }
    match abilities(device) {
        Ok(found) => examine_abilities(findings, name, &found),
        Err(error) => findings.warn(name, error.to_string()),
    }
}

fn examine_abilities(findings: &mut Findings, name: &str, found: &Abilities) {
    let driver = &found.driver;
    if !found.is_up {
        findings.warn(
            name,
            format!("is down, no client comes by it: `ip link set {name} up`"),
        );
    }
    if driver.is_empty() && !found.native_xdp {
        findings.warn(
            name,
            "has no native XDP, as loopback has none: the TC tier alone answers, which is slower",
        );
    } else if !found.native_xdp {
        findings.warn(
            name,
            format!(
                "its driver ({driver}) has no native XDP: the TC tier alone answers, which is \
                 slower; another card or driver would help"
            ),
        );
    } else if found.mtu > XDP_MTU_MAX {
        let mtu = found.mtu;
        findings.warn(
            name,
            format!(
                "MTU {mtu} is more than fits one buffer of XDP ({XDP_MTU_MAX}): the driver \
                 ({driver}) may refuse native XDP, and the slower TC tier answers alone; `ip link \
                 set {name} mtu {XDP_MTU_MAX}`"
            ),
        );
    } else {
        findings.fine(name, format!("native XDP by its driver ({driver})"));
    }
    examine_other_end(findings, name, found);
    if found.lro {
        findings.warn(
            name,
            format!(
                "merges segments in hardware (LRO), which most drivers refuse together with XDP: \
                 `ethtool -K {name} lro off`"
            ),
        );
    }
    examine_queues(findings, name, found);
    examine_tcx(findings, name, found);
}

/// A veth pair: what XDP sends reaches the other end at once only if that runs an XDP program. The
/// kernel drops it if nothing there polls, and wakes nobody if GRO alone does.
fn examine_other_end(findings: &mut Findings, name: &str, found: &Abilities) {
    if found.driver != "veth" || !found.native_xdp {
        return;
    }
    if found.xdp_sends {
        findings.fine(
            name,
            "its other end polls: by an XDP program, as it must, or by GRO alone, with which answers \
             come late (`ip link` in its namespace shows which)",
        );
    } else {
        findings.warn(
            name,
            "its other end (maybe in another namespace) has no XDP program, so what XDP sends does \
             not reach it: answers come some 250 ms late, by repetition; load an XDP program there \
             that passes all packets, or boost with --tier tc",
        );
    }
}

fn examine_queues(findings: &mut Findings, name: &str, found: &Abilities) {
    let processors = available_parallelism().map_or(1, |count| count.get() as u32);
    if let Some((now, most)) = found.queues {
        let wanted = processors.min(most);
        if now < wanted {
            findings.warn(
                name,
                format!(
                    "{now} receive queues for {processors} processors, {most} are possible: \
                     `ethtool -L {name} combined {wanted}` (rx instead of combined on some cards)"
                ),
            );
        }
    }
}

fn examine_tcx(findings: &mut Findings, name: &str, found: &Abilities) {
    let foreign: Vec<&str> = found
        .tcx
        .iter()
        .map(String::as_str)
        .filter(|program| !OWN.contains(program))
        .collect();
    if !foreign.is_empty() {
        findings.warn(
            name,
            format!(
                "other programs at tcx ({}): they see packets before or behind ERB's; if they \
                 change packets of Redis's port, detach them",
                foreign.join(", ")
            ),
        );
    }
}

/// Devices that are up and were not named: clients may come by them.
fn tell_others(findings: &mut Findings, named: &[String]) {
    let others: Vec<String> = all_devices()
        .unwrap_or_default()
        .into_iter()
        .filter(|device| device.name != "lo" && !named.contains(&device.name))
        .filter(|device| is_up(device).unwrap_or(false))
        .map(|device| device.name)
        .collect();
    if !others.is_empty() {
        findings.warn(
            "devices",
            format!(
                "{} are up and not named: what clients write by them is seen up to 100 ms late; give \
                 each by which clients come as --dev",
                others.join(", ")
            ),
        );
    }
}
