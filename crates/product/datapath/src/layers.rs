// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which device lies above which, as the kernel lists them (rtnetlink): where a packet must be looked
//! at so that each is looked at once.
//!
//! A *layer* hands frames on as they are: a VLAN, a bond, a bridge, a macvlan. What wraps them up (a
//! tunnel) is none: below it they are no packets of Redis's.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::{Error, Result};

/// The kernel fills at most 32 KiB per read of a dump.
const ANSWER_BYTES: usize = 64 * 1024;
const HEADER_BYTES: usize = 16;
const LINK_BYTES: usize = 16;

// include/uapi/linux/if_link.h
const IFLA_IFNAME: u16 = 3;
pub(crate) const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
pub(crate) const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_TARGET_NETNSID: u16 = 46;

/// Kinds that have devices below them which name them as their master.
const MASTERS: [&str; 5] = ["bond", "bridge", "openvswitch", "team", "vrf"];
/// Kinds that lie above the device that they name.
const ABOVE_ONE: [&str; 5] = ["ipvlan", "ipvtap", "macvlan", "macvtap", "vlan"];

/// A device as the kernel lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) name: String,
    pub(crate) ifindex: u32,
    /// Kind of a device made by software, as `ip -d link` shows it; else empty.
    pub(crate) kind: String,
    /// ARPHRD_*.
    pub(crate) hardware: u16,
    /// The device that it names, if that is in this namespace.
    pub(crate) link: Option<u32>,
    /// The device of which it is a part.
    pub(crate) master: Option<u32>,
}

impl Layer {
    fn is_master(&self) -> bool {
        MASTERS.contains(&self.kind.as_str())
    }

    /// The device below that hands frames on to it, other than its parts.
    fn below(&self) -> Option<u32> {
        self.link
            .filter(|_| ABOVE_ONE.contains(&self.kind.as_str()))
    }

    fn is_bundle(&self) -> bool {
        self.kind == "bond" || self.kind == "team"
    }
}

/// All devices of the caller's namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers(Vec<Layer>);

impl Layers {
    /// Asks the kernel.
    pub(crate) fn read() -> Result<Self> {
        dump().map(Self).map_err(|reason| Error::System {
            what: "could not ask which device lies above which".to_owned(),
            reason,
        })
    }

    pub(crate) fn of(&self, ifindex: u32) -> Option<&Layer> {
        self.0.iter().find(|layer| layer.ifindex == ifindex)
    }

    /// Those to which a device hands frames on, and so on upward.
    fn above(&self, ifindex: u32) -> Vec<u32> {
        let mut found = vec![ifindex];
        let mut next = 0;
        while next < found.len() {
            let at = found[next];
            let master = self.of(at).and_then(|layer| layer.master);
            let named = |layer: &&Layer| layer.below() == Some(at);
            let uppers = self.0.iter().filter(named).map(|layer| layer.ifindex);
            for upper in uppers.chain(master) {
                if !found.contains(&upper) {
                    found.push(upper);
                }
            }
            next += 1;
        }
        found.remove(0);
        found
    }

    /// Whether packets of local sockets may be looked at as they leave by it. A VRF hands them on to
    /// the device of its own route, which looks like the first one again.
    pub(crate) fn may_watch_egress(&self, ifindex: u32) -> bool {
        self.of(ifindex).is_none_or(|layer| layer.kind != "vrf")
    }

    /// The devices beside the boosted ones at which packets that come in are looked at: those at which
    /// frames arrive in this namespace, unless they are looked at above.
    pub(crate) fn elsewhere(&self, boosted: &[u32]) -> Vec<u32> {
        let wanted = self.0.iter().filter(|layer| {
            layer.hardware != libc::ARPHRD_LOOPBACK
                && !boosted.contains(&layer.ifindex)
                && !layer.is_master()
                && layer.below().is_none()
                && !self
                    .above(layer.ifindex)
                    .iter()
                    .any(|upper| boosted.contains(upper))
        });
        wanted.map(|layer| layer.ifindex).collect()
    }

    /// Why XDP is left out on a device that seems to have it.
    pub(crate) fn why_not_xdp(&self, ifindex: u32) -> Option<String> {
        let layer = self.of(ifindex).filter(|layer| layer.is_bundle())?;
        let kind = &layer.kind;
        Some(format!(
            "XDP would run on the parts of a {kind}, and answers may leave by another than the \
             replies of Redis"
        ))
    }

    /// Why these devices cannot be boosted together, or one of them not at all.
    pub(crate) fn refusal(&self, boosted: &[u32]) -> Option<String> {
        boosted
            .iter()
            .find_map(|ifindex| self.refusal_of(self.of(*ifindex)?, boosted))
    }

    fn refusal_of(&self, layer: &Layer, boosted: &[u32]) -> Option<String> {
        let name = &layer.name;
        if layer.kind == "vrf" {
            return Some(format!(
                "{name} is a VRF, whose sockets ERB does not see: clients must come by a device \
                 outside of it"
            ));
        }
        if !matches!(layer.hardware, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK) {
            return Some(format!(
                "{name} is no Ethernet device (a tunnel, perhaps): its clients stay Redis's alone; \
                 leave it out"
            ));
        }
        let above: Vec<&Layer> = self
            .above(layer.ifindex)
            .into_iter()
            .filter_map(|upper| self.of(upper))
            .collect();
        for upper in above {
            let other = &upper.name;
            if upper.kind == "vrf" {
                return Some(format!(
                    "{name} belongs to the VRF {other}, whose sockets ERB does not see: clients must \
                     come by a device outside of it"
                ));
            }
            if upper.is_bundle() {
                return Some(format!(
                    "{name} is a part of the {} {other}, and replies may leave by another part: give \
                     {other} as --dev",
                    upper.kind
                ));
            }
            if boosted.contains(&upper.ifindex) {
                return Some(format!(
                    "{other} lies above {name}, so that each packet would be met twice: give one of \
                     them as --dev, {name} if it has native XDP"
                ));
            }
        }
        None
    }
}

fn open(flags: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | flags;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Hears of devices that come, go and change.
#[derive(Debug)]
pub struct DeviceWatch(OwnedFd);

impl DeviceWatch {
    /// Listens in the caller's namespace.
    ///
    /// # Errors
    /// [`Error::System`] if the kernel refuses.
    pub fn open() -> Result<Self> {
        let refused = |reason| Error::System {
            what: "could not listen for changes of devices".to_owned(),
            reason,
        };
        let socket = open(libc::SOCK_NONBLOCK).map_err(refused)?;
        // SAFETY: plain integers, for which zeros are valid.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = libc::RTMGRP_LINK as u32;
        let length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: address is live and as long as it is said to be.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        if bound < 0 {
            return Err(refused(io::Error::last_os_error()));
        }
        Ok(Self(socket))
    }

    /// Whether something has changed since the last call.
    #[must_use]
    pub fn changed(&self) -> bool {
        let mut bytes = [0_u8; 4096];
        let mut any = false;
        loop {
            // SAFETY: the buffer is live and as long as it is said to be.
            let size = unsafe {
                libc::recv(
                    self.0.as_raw_fd(),
                    bytes.as_mut_ptr().cast(),
                    bytes.len(),
                    0,
                )
            };
            // ENOBUFS: more has changed than the socket holds.
            if size < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::ENOBUFS) {
                return any;
            }
            any = true;
        }
    }
}

impl AsFd for DeviceWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn dump() -> io::Result<Vec<Layer>> {
    let socket = open(0)?;
    send(&socket, &request(libc::NLM_F_DUMP, 0, None))?;
    let mut found = Vec::new();
    let mut bytes = vec![0_u8; ANSWER_BYTES];
    loop {
        let size = receive(&socket, &mut bytes)?;
        if read_answer(&bytes[..size], &mut found)? {
            return Ok(found);
        }
    }
}

/// The attributes of one device: of this namespace, or of the one that has this number here.
pub(crate) fn ask_link(ifindex: u32, namespace: Option<u32>) -> io::Result<Vec<u8>> {
    let socket = open(0)?;
    send(&socket, &request(0, ifindex, namespace))?;
    let mut bytes = vec![0_u8; ANSWER_BYTES];
    let size = receive(&socket, &mut bytes)?;
    bytes.truncate(size);
    // A refusal; else it is the one device that was asked for.
    read_answer(&bytes, &mut Vec::new())?;
    if bytes.len() < HEADER_BYTES + LINK_BYTES {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes.split_off(HEADER_BYTES + LINK_BYTES))
}

fn send(socket: &OwnedFd, request: &[u8]) -> io::Result<()> {
    // SAFETY: the buffer is live and as long as it is said to be.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            request.as_ptr().cast(),
            request.len(),
            0,
        )
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn receive(socket: &OwnedFd, bytes: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the buffer is live and as long as it is said to be.
    let size = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            0,
        )
    };
    usize::try_from(size).map_err(|_| io::Error::last_os_error())
}

/// `RTM_GETLINK` of one device, or of all with `NLM_F_DUMP`.
fn request(flags: libc::c_int, ifindex: u32, namespace: Option<u32>) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES + LINK_BYTES];
    let flags = (libc::NLM_F_REQUEST | flags) as u16;
    bytes[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    bytes[HEADER_BYTES + 4..HEADER_BYTES + 8].copy_from_slice(&ifindex.to_ne_bytes());
    if let Some(number) = namespace {
        bytes.extend(8_u16.to_ne_bytes());
        bytes.extend(IFLA_TARGET_NETNSID.to_ne_bytes());
        bytes.extend(number.to_ne_bytes());
    }
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes
}

/// Takes the devices out of one read; true if it was the last.
fn read_answer(mut bytes: &[u8], found: &mut Vec<Layer>) -> io::Result<bool> {
    while bytes.len() >= HEADER_BYTES {
        let length = (u32_at(bytes, 0) as usize).clamp(HEADER_BYTES, bytes.len());
        let body = &bytes[HEADER_BYTES..length];
        match i32::from(u16_at(bytes, 4)) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let code = body.get(..4).map_or(0, |_| u32_at(body, 0) as i32);
                return Err(io::Error::from_raw_os_error(-code));
            }
            kind if kind == i32::from(libc::RTM_NEWLINK) && body.len() >= LINK_BYTES => {
                found.push(layer(body));
            }
            _ => {}
        }
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    Ok(false)
}

fn layer(body: &[u8]) -> Layer {
    let mut layer = Layer {
        hardware: u16_at(body, 2),
        ifindex: u32_at(body, 4),
        ..Layer::default()
    };
    let mut elsewhere = false;
    for (kind, value) in attributes(&body[LINK_BYTES..]) {
        match kind {
            IFLA_IFNAME => layer.name = text(value),
            IFLA_LINK if value.len() >= 4 => layer.link = Some(u32_at(value, 0)),
            IFLA_MASTER if value.len() >= 4 => layer.master = Some(u32_at(value, 0)),
            IFLA_LINK_NETNSID => elsewhere = true,
            IFLA_LINKINFO => {
                let mut inner = attributes(value);
                let kind = inner.find(|(kind, _)| *kind == IFLA_INFO_KIND);
                layer.kind = kind.map(|(_, value)| text(value)).unwrap_or_default();
            }
            _ => {}
        }
    }
    if elsewhere {
        layer.link = None;
    }
    layer
}

/// Attributes with their types.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        if bytes.len() < 4 {
            return None;
        }
        let length = usize::from(u16_at(bytes, 0)).clamp(4, bytes.len());
        let found = (u16_at(bytes, 2) & 0x3fff, &bytes[4..length]);
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
        Some(found)
    })
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, kind, the device it names, its master; indexes count from 1.
    fn layers(all: &[(&str, &str, u32, u32)]) -> Layers {
        let some = |index: u32| (index > 0).then_some(index);
        let one = |(place, (name, kind, link, master)): (usize, &(&str, &str, u32, u32))| Layer {
            name: (*name).to_owned(),
            ifindex: place as u32 + 1,
            kind: (*kind).to_owned(),
            hardware: match *kind {
                "loopback" => libc::ARPHRD_LOOPBACK,
                "wireguard" => libc::ARPHRD_NONE,
                _ => libc::ARPHRD_ETHER,
            },
            link: some(*link),
            master: some(*master),
        };
        Layers(all.iter().enumerate().map(one).collect())
    }

    #[test]
    fn packets_that_come_in_are_looked_at_once() {
        let host = layers(&[
            ("lo", "loopback", 0, 0),   // 1
            ("eth0", "", 0, 0),         // 2
            ("eth1", "", 0, 7),         // 3
            ("eth0.5", "vlan", 2, 0),   // 4
            ("wg0", "wireguard", 0, 0), // 5
            ("vx0", "vxlan", 2, 0),     // 6
            ("br0", "bridge", 0, 0),    // 7
            ("veth0", "veth", 0, 7),    // 8
        ]);
        assert_eq!(host.elsewhere(&[2]), [3, 5, 6, 8]);
        assert_eq!(host.elsewhere(&[4]), [3, 5, 6, 8], "eth0 is below");
        assert_eq!(
            host.elsewhere(&[7]),
            [2, 5, 6],
            "the bridge's ports are below"
        );
        assert_eq!(host.elsewhere(&[3]), [2, 5, 6, 8]);
    }

    #[test]
    fn a_vlan_on_a_bond_on_two_cards() {
        let host = layers(&[
            ("eth0", "", 0, 3),
            ("eth1", "", 0, 3),
            ("bond0", "bond", 0, 0),
            ("bond0.7", "vlan", 3, 0),
        ]);
        assert_eq!(host.elsewhere(&[3]), [0; 0]);
        assert_eq!(host.elsewhere(&[4]), [0; 0]);
        assert!(host.refusal(&[3]).is_none());
        assert!(host.refusal(&[4]).is_none());
        assert!(host.why_not_xdp(3).is_some());
        assert!(host.why_not_xdp(1).is_none());
        let part = host.refusal(&[1]).unwrap();
        assert!(part.contains("part of the bond bond0"), "{part}");
        let twice = host.refusal(&[3, 4]).unwrap();
        assert!(twice.contains("bond0.7 lies above bond0"), "{twice}");
    }

    #[test]
    fn a_port_of_a_bridge_may_be_boosted_and_one_of_a_vrf_not() {
        let host = layers(&[
            ("eth0", "", 0, 2),
            ("br0", "bridge", 0, 0),
            ("eth1", "", 0, 4),
            ("blue", "vrf", 0, 0),
            ("wg0", "wireguard", 0, 0),
            ("eth1.3", "vlan", 3, 4),
        ]);
        assert!(host.refusal(&[1]).is_none());
        assert!(host.refusal(&[2]).is_none());
        for (device, why) in [
            (3, "belongs to the VRF blue"),
            (4, "blue is a VRF"),
            (5, "no Ethernet device"),
            (6, "belongs to the VRF blue"),
        ] {
            let text = host.refusal(&[device]).unwrap();
            assert!(text.contains(why), "{text}");
        }
        assert!(!host.may_watch_egress(4));
        assert!(host.may_watch_egress(3));
    }

    #[test]
    fn the_kernels_own_list() {
        let host = Layers::read().unwrap();
        let lo = host.0.iter().find(|layer| layer.name == "lo").unwrap();
        assert_eq!((lo.ifindex, lo.hardware), (1, libc::ARPHRD_LOOPBACK));
        assert!(!host.elsewhere(&[]).contains(&1));
    }
}
