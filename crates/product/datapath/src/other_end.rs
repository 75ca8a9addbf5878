// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The other end of a veth pair. What XDP sends over such a pair reaches an end that runs an XDP program
//! in its driver at once. Where GRO alone polls the frames are queued and nobody is woken for them, and
//! where nothing polls they are lost: answers then come by repetition, some 200 ms late, where Redis alone
//! takes microseconds.

use std::io;

use crate::layers::{self, attributes, u32_at};
use crate::{Device, ethtool};

/// What the other end of a veth pair does with frames that XDP sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherEnd {
    /// It runs an XDP program: they arrive at once.
    Polls,
    /// It has none: they arrive late or never.
    Sleeps,
    /// It may not be asked, and polls by an XDP program or by GRO alone.
    Unknown,
}

impl OtherEnd {
    /// Why answers are not to be given by XDP, for a device with this end.
    #[must_use]
    pub fn why_not_xdp(self) -> Option<&'static str> {
        match self {
            Self::Polls => None,
            Self::Sleeps => Some(
                "its other end has no XDP program, without which what XDP sends arrives some 200 ms \
                 late",
            ),
            Self::Unknown => Some(
                "whether its other end has an XDP program may not be asked from here; without one \
                 what XDP sends arrives some 200 ms late",
            ),
        }
    }
}

/// What is known of the other end; `None`: the device is no veth device.
#[must_use]
pub fn other_end(device: &Device) -> Option<OtherEnd> {
    let is_veth = ethtool::driver(device).is_ok_and(|driver| driver == "veth");
    is_veth.then(|| judge(asked(device).ok(), || crate::probe::xdp_sends(device)))
}

/// `asked`: whether it said that it has a program. `sends`: what the driver says of this end, which it does
/// if the other one has a program or GRO.
fn judge(asked: Option<bool>, sends: impl FnOnce() -> bool) -> OtherEnd {
    match asked {
        Some(true) => OtherEnd::Polls,
        Some(false) => OtherEnd::Sleeps,
        None if !sends() => OtherEnd::Sleeps,
        None => OtherEnd::Unknown,
    }
}

/// Asks the kernel whether the other end, in whatever namespace, runs an XDP program in its driver.
fn asked(device: &Device) -> io::Result<bool> {
    let own = layers::ask_link(device.ifindex, None)?;
    let (index, namespace) = link_of(&own).ok_or(io::ErrorKind::NotFound)?;
    Ok(runs_xdp(&layers::ask_link(index, namespace)?))
}

/// The device that one names, and the number of its namespace if that is another.
fn link_of(body: &[u8]) -> Option<(u32, Option<u32>)> {
    let find = |wanted: u16| {
        let mut all = attributes(body);
        let found = all.find(|(kind, value)| *kind == wanted && value.len() >= 4);
        found.map(|(_, value)| u32_at(value, 0))
    };
    Some((find(layers::IFLA_LINK)?, find(layers::IFLA_LINK_NETNSID)))
}

/// Whether a device has an XDP program in its driver; a generic one does not poll.
fn runs_xdp(body: &[u8]) -> bool {
    // include/uapi/linux/if_link.h
    const IFLA_XDP: u16 = 43;
    const IFLA_XDP_DRV_PROG_ID: u16 = 5;
    let mut all = attributes(body);
    let xdp = all.find(|(kind, _)| *kind == IFLA_XDP);
    xdp.is_some_and(|(_, inner)| attributes(inner).any(|(kind, _)| kind == IFLA_XDP_DRV_PROG_ID))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn who_may_not_be_asked_is_judged_by_the_driver_of_this_end() {
        for (asked, sends, end) in [
            (Some(true), true, OtherEnd::Polls),
            (Some(false), true, OtherEnd::Sleeps),
            (Some(false), false, OtherEnd::Sleeps),
            (None, true, OtherEnd::Unknown),
            (None, false, OtherEnd::Sleeps),
        ] {
            assert_eq!(judge(asked, || sends), end, "{asked:?} {sends}");
            assert_eq!(end.why_not_xdp().is_none(), end == OtherEnd::Polls);
        }
    }

    #[test]
    fn a_program_counts_that_the_driver_runs() {
        let id = |kind| attribute(kind, &7_u32.to_ne_bytes());
        let attached = attribute(2, &[1]);
        let mtu = attribute(4, &1500_u32.to_ne_bytes());
        for (inner, runs) in [
            ([attached.clone(), id(4), id(5)].concat(), true),
            ([attached.clone(), id(6), id(5)].concat(), true),
            ([attached.clone(), id(4), id(6)].concat(), false),
            (attached, false),
        ] {
            // The kernel marks what has attributes inside.
            let body = [mtu.clone(), attribute(43 | 0x8000, &inner)].concat();
            assert_eq!(runs_xdp(&body), runs, "{inner:?}");
        }
        assert!(!runs_xdp(&mtu));
    }

    #[test]
    fn the_end_is_named_with_its_namespace() {
        let link = attribute(layers::IFLA_LINK, &9_u32.to_ne_bytes());
        let namespace = attribute(layers::IFLA_LINK_NETNSID, &3_u32.to_ne_bytes());
        assert_eq!(link_of(&link), Some((9, None)));
        assert_eq!(link_of(&[link, namespace].concat()), Some((9, Some(3))));
        assert_eq!(link_of(&[]), None);
    }

    #[test]
    fn lo_has_no_other_end() {
        assert_eq!(other_end(&Device::find("lo").unwrap()), None);
        let own = layers::ask_link(1, None).unwrap();
        assert!(!runs_xdp(&own) && link_of(&own).is_none());
        assert!(layers::ask_link(0x7fff_ffff, None).is_err());
    }
}
