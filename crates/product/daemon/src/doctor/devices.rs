// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The devices by which clients come.

use std::thread::available_parallelism;

use erb_datapath::{
    Abilities, AttachMode, Attached, Device, LOOPBACK, abilities, all_devices, check_layers, is_up,
};
use erb_redis::Listener;
use erb_report::shell::quoted;

use super::{Findings, Patient};
use crate::Error;
use crate::preflight::check_no_xdp;
use crate::rundir::RunDir;
use crate::{others, ways};

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
}

/// Whether a boost of this namespace, wherever its run directory is, has the device.
enum AtWork {
    No,
    /// It has, and does not say how: it is being made.
    Unsaid,
    Noted(Attached),
}

fn at_work(device: &Device) -> AtWork {
    let all: Vec<RunDir> = others::here(None)
        .into_iter()
        .map(|other| other.run_dir)
        .collect();
    let own = RunDir::of_device(&device.name).ok();
    let noted = own
        .iter()
        .chain(&all)
        .filter_map(|run_dir| run_dir.notes().ok())
        .flat_map(|notes| notes.attached)
        .find(|attached| attached.device == *device);
    match noted {
        Some(attached) => AtWork::Noted(attached),
        None if own.is_some_and(|run_dir| run_dir.has_pins()) => AtWork::Unsaid,
        None => AtWork::No,
    }
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
    let at_work = at_work(device);
    if !matches!(at_work, AtWork::No) {
        findings.fine(name, "boosted already, see `erb status`");
    } else if findings
        .checked(name, check_no_xdp(std::slice::from_ref(device)))
        .is_some()
    {
        findings.fine(name, "no XDP program is on it");
    }
    match abilities(device) {
        Ok(found) => examine_abilities(findings, name, &found, &at_work),
        Err(error) => findings.unknown(name, error.to_string()),
    }
}

fn examine_abilities(findings: &mut Findings, name: &str, found: &Abilities, at_work: &AtWork) {
    if !found.is_up {
        findings.warn(
            name,
            format!(
                "is down, no client comes by it: `ip link set {} up`",
                quoted(name.as_bytes())
            ),
        );
    }
    match at_work {
        AtWork::Noted(attached) if attached.mode == AttachMode::Tc => findings.fine(
            name,
            format!(
                "the TC tier alone is at work: {}; what XDP would need does not matter",
                attached.why_not_native
            ),
        ),
        AtWork::Noted(_) => {
            examine_xdp(findings, name, found);
            examine_other_end(findings, name, found, true);
        }
        AtWork::No | AtWork::Unsaid => {
            examine_xdp(findings, name, found);
            examine_other_end(findings, name, found, false);
        }
    }
    examine_queues(findings, name, found);
    examine_tcx(findings, name, found);
}

/// What XDP needs of the device itself.
fn examine_xdp(findings: &mut Findings, name: &str, found: &Abilities) {
    let driver = &found.driver;
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
                 set {} mtu {XDP_MTU_MAX}`",
                quoted(name.as_bytes())
            ),
        );
    } else {
        findings.fine(name, format!("native XDP by its driver ({driver})"));
    }
    if found.lro {
        findings.warn(
            name,
            format!(
                "merges segments in hardware (LRO), which most drivers refuse together with XDP: \
                 `ethtool -K {} lro off`",
                quoted(name.as_bytes())
            ),
        );
    }
}

/// A veth pair. `native`: XDP answers there already.
fn examine_other_end(findings: &mut Findings, name: &str, found: &Abilities, native: bool) {
    let Some(end) = found.other_end.filter(|_| found.native_xdp) else {
        return;
    };
    let Some(why) = end.why_not_xdp() else {
        findings.fine(name, "its other end polls, by an XDP program");
        return;
    };
    let what = if native {
        "XDP answers all the same: boost anew without `--tier xdp`"
    } else {
        "`erb boost` takes the TC tier alone, which is slower"
    };
    findings.warn(
        name,
        format!(
            "{why}: {what}, or load an XDP program there that passes all packets, and boost then"
        ),
    );
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
                     `ethtool -L {} combined {wanted}` (rx instead of combined on some cards)",
                    quoted(name.as_bytes())
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

/// Devices that are up and were not named: clients may come by them. `listeners` are Redis's; none: it is not known where it
/// listens.
pub(super) fn tell_unseen(
    findings: &mut Findings,
    patient: &Patient,
    listeners: Option<&[Listener]>,
) {
    if patient.devices.is_empty() {
        return;
    }
    let mut told: Vec<String> = vec![LOOPBACK.to_owned()];
    match listeners.map(|listeners| ways::unseen_now(listeners, &patient.devices)) {
        Some(Ok(found)) => {
            if let Some(text) = ways::told(&found) {
                findings.warn("devices", text);
            }
            told.extend(found.into_iter().map(|way| way.device));
        }
        Some(Err(error)) => findings.unknown("devices", error.to_string()),
        None => {}
    }
    let others: Vec<String> = all_devices()
        .unwrap_or_default()
        .into_iter()
        .filter(|device| !told.contains(&device.name) && !patient.devices.contains(&device.name))
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

#[cfg(test)]
mod tests {
    use erb_datapath::OtherEnd;

    use super::*;
    use erb_report::Level;

    fn told(other_end: OtherEnd, at_work: &AtWork) -> Vec<(Level, String)> {
        let found = Abilities {
            driver: "veth".to_owned(),
            mtu: 1500,
            is_up: true,
            native_xdp: true,
            other_end: Some(other_end),
            ..Abilities::default()
        };
        let mut findings = Findings::default();
        examine_abilities(&mut findings, "s0", &found, at_work);
        let told = findings.told.into_iter();
        told.map(|finding| (finding.level, finding.text)).collect()
    }

    fn noted(mode: AttachMode, why: &str) -> AtWork {
        AtWork::Noted(Attached {
            device: Device {
                name: "s0".to_owned(),
                ifindex: 2,
            },
            mode,
            why_not_native: why.to_owned(),
        })
    }

    #[test]
    fn of_a_device_at_work_its_own_tier_is_told() {
        let tc = told(OtherEnd::Sleeps, &noted(AttachMode::Tc, "asked for"));
        assert_eq!(tc.len(), 1, "{tc:?}");
        assert_eq!(tc[0].0, Level::Fine);
        assert!(tc[0].1.contains("TC tier alone is at work: asked for"));
        let native = told(OtherEnd::Sleeps, &noted(AttachMode::Native, ""));
        let warned = |(level, text): &(Level, String)| {
            *level == Level::Warning && text.contains("boost anew without `--tier xdp`")
        };
        assert!(native.iter().any(warned), "{native:?}");
    }

    #[test]
    fn what_a_boost_would_do_with_the_other_end_is_told() {
        for at_work in [AtWork::No, AtWork::Unsaid] {
            let polls = told(OtherEnd::Polls, &at_work);
            assert!(polls.iter().all(|(level, _)| *level == Level::Fine));
            assert!(polls.iter().any(|(_, text)| text.contains("polls")));
            for end in [OtherEnd::Sleeps, OtherEnd::Unknown] {
                let late = told(end, &at_work);
                let warned = |(level, text): &(Level, String)| {
                    *level == Level::Warning && text.contains("takes the TC tier alone")
                };
                assert!(late.iter().any(warned), "{late:?}");
            }
        }
    }
}
