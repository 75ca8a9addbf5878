// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ways to Redis that pass no boosted device: the addresses at which its listeners are reached, by device.

use std::collections::BTreeMap;
use std::net::IpAddr;

use erb_datapath::{Device, LOOPBACK};
use erb_redis::Listener;
use erb_report::shell::quoted;

use crate::Result;
use crate::sockets::device_addresses;

/// A device that is not boosted, and addresses of Redis's that clients reach by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) device: String,
    pub(crate) addresses: Vec<IpAddr>,
}

/// Whether a listener takes connections to this address.
fn takes(listener: &Listener, address: IpAddr) -> bool {
    match (listener.address, address) {
        (own, to) if own == to => true,
        (IpAddr::V4(own), IpAddr::V4(_)) => own.is_unspecified(),
        // One for all addresses of IPv6 may take those of IPv4 too.
        (IpAddr::V6(own), _) => own.is_unspecified(),
        _ => false,
    }
}

/// Those of no use to clients of other networks, of which every device has one.
const fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Ways by devices that are up, but for the boosted ones. `index` tells a device's number. Clients of this machine reach
/// all its addresses by `lo`.
pub(crate) fn unseen(
    listeners: &[Listener],
    up: &BTreeMap<String, Vec<IpAddr>>,
    boosted: &[String],
    index: impl Fn(&str) -> Option<u32>,
) -> Vec<Way> {
    let taken = |device: &str, addresses: &[IpAddr]| -> Vec<IpAddr> {
        let index = index(device);
        let is_here = |one: &&Listener| one.interface == 0 || Some(one.interface) == index;
        let mut taken = addresses.to_vec();
        taken.retain(|address| {
            let mut here = listeners.iter().filter(is_here);
            here.any(|one| {
                one.address == *address || !is_link_local(*address) && takes(one, *address)
            })
        });
        taken
    };
    let mut ways = Vec::new();
    for (device, own) in up.iter().filter(|(device, _)| !boosted.contains(device)) {
        let mut addresses = taken(device, own);
        if device == LOOPBACK && addresses.is_empty() {
            let all: Vec<IpAddr> = up.values().flatten().copied().collect();
            addresses = taken(device, &all);
        }
        if !addresses.is_empty() {
            ways.push(Way {
                device: device.clone(),
                addresses,
            });
        }
    }
    ways
}

/// The same of this moment, and of all addresses at which these listeners are reached.
pub(crate) fn unseen_now(listeners: &[Listener], boosted: &[String]) -> Result<Vec<Way>> {
    let index = |device: &str| Device::find(device).ok().map(|device| device.ifindex);
    Ok(unseen(listeners, &device_addresses()?, boosted, index))
}

/// What is to be said of them; none: there are none.
pub(crate) fn told(ways: &[Way]) -> Option<String> {
    if ways.is_empty() {
        return None;
    }
    let each = ways.iter().map(|way| {
        let addresses: Vec<String> = way.addresses.iter().map(ToString::to_string).collect();
        let whose = if way.device == LOOPBACK {
            ", for clients of this machine"
        } else {
            ""
        };
        format!("{} by {}{whose}", addresses.join(", "), way.device)
    });
    let flags = ways
        .iter()
        .map(|way| format!("--dev {}", quoted(way.device.as_bytes())));
    Some(format!(
        "Redis is reached past the boosted devices, at {}: reads right after a write by such a way are mostly old, for up to \
         100 ms. Boost each by which clients come as well: {}",
        each.collect::<Vec<_>>().join("; "),
        flags.collect::<Vec<_>>().join(" ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(address: &str, interface: u32) -> Listener {
        Listener {
            cookie: 1,
            address: address.parse().expect("an address"),
            interface,
        }
    }

    fn up() -> BTreeMap<String, Vec<IpAddr>> {
        let of = |words: &str| {
            let addresses = words.split_whitespace();
            addresses
                .map(|word| word.parse().expect("an address"))
                .collect()
        };
        BTreeMap::from([
            ("lo".to_owned(), of("127.0.0.1 ::1")),
            ("eth0".to_owned(), of("10.0.0.1 fd00::1 fe80::1")),
            ("eth1".to_owned(), of("10.1.0.1 fe80::2")),
            ("port0".to_owned(), Vec::new()),
        ])
    }

    fn index(device: &str) -> Option<u32> {
        ["lo", "eth0", "eth1", "port0"]
            .iter()
            .position(|name| *name == device)
            .map(|at| at as u32 + 1)
    }

    fn ways(listeners: &[Listener], boosted: &[&str]) -> Vec<String> {
        let boosted: Vec<String> = boosted.iter().map(|name| (*name).to_owned()).collect();
        let found = unseen(listeners, &up(), &boosted, index);
        found
            .into_iter()
            .map(|way| format!("{} {:?}", way.device, way.addresses))
            .collect()
    }

    #[test]
    fn addresses_are_told_by_the_devices_that_are_not_boosted() {
        let all = [listener("0.0.0.0", 0), listener("::", 0)];
        assert_eq!(
            ways(&all, &["eth0"]),
            ["eth1 [10.1.0.1]", "lo [127.0.0.1, ::1]"]
        );
        assert_eq!(ways(&all, &["eth0", "eth1", "lo"]), [""; 0]);
        // One for all of IPv6 is reached by IPv4 too.
        assert_eq!(ways(&all[1..], &["eth0", "eth1"]), ["lo [127.0.0.1, ::1]"]);
        let v4 = [listener("0.0.0.0", 0)];
        assert_eq!(ways(&v4, &["eth1", "lo"]), ["eth0 [10.0.0.1]"]);
        let link_local = [listener("fe80::2", 0)];
        assert_eq!(ways(&link_local, &["lo"]), ["eth1 [fe80::2]"]);
    }

    #[test]
    fn clients_of_this_machine_reach_every_address_by_lo() {
        let one = [listener("10.0.0.1", 0)];
        assert_eq!(ways(&one, &["eth0"]), ["lo [10.0.0.1]"]);
        assert_eq!(ways(&one, &["lo"]), ["eth0 [10.0.0.1]"]);
        let loopback = [listener("127.0.0.1", 0)];
        assert_eq!(ways(&loopback, &["eth0"]), ["lo [127.0.0.1]"]);
        // Bound to a device (SO_BINDTODEVICE).
        let bound = [listener("0.0.0.0", 2)];
        assert_eq!(ways(&bound, &["eth0"]), [""; 0]);
    }

    #[test]
    fn the_flags_that_are_missing_are_named() {
        let all = [listener("0.0.0.0", 0)];
        let found = unseen(&all, &up(), &["eth0".to_owned()], index);
        let told = told(&found).expect("words");
        for words in [
            "127.0.0.1 by lo, for clients of this machine",
            "10.1.0.1 by eth1",
            "--dev eth1 --dev lo",
        ] {
            assert!(told.contains(words), "{told}");
        }
        assert_eq!(super::told(&[]), None);
    }
}
