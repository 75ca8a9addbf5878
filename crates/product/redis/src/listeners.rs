// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose the listening sockets on Redis's port are: another server may listen on another address of
//! the same port, and come and go.
//!
//! It is found out without rights and without a word: the daemon connects to the listener, sends
//! nothing, and looks for this connection in CLIENT LIST of the feed. Redis knows it under the
//! addresses that the kernel gives both its ends, or it is not Redis that has accepted it. A proxy
//! in between has other addresses on its own connection to Redis.
//!
//! Invariants:
//! 1. A listener is called Redis's only if a list asked after the connection was made shows it, if the
//!    kernel gives that address to this listener alone, before and after, and if every connection
//!    from before, of which nothing has come yet, was listed too or is gone: so no connection that it
//!    may be asked about is another's.
//! 2. It is called another's only if such a connection was open for [`STRANGER_NS`] and [`STRANGER_LISTS`]
//!    lists and is in none.
//! 3. Everything else, a new one among them, is not known: the data path then takes its connections
//!    for older than ERB, which is slow and never wrong.

use std::collections::HashSet;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use erb_abi as abi;

use crate::client_list::{ClientLine, canonical};
use crate::clock::SECOND_NS;
use crate::outside::{DataPath, Listener, Machine, Result, TcpPair, Traffic};

/// Redis accepts what waits in one turn of its loop, others some ten per turn.
const STRANGER_NS: u64 = SECOND_NS;
const STRANGER_LISTS: u32 = 3;

/// Between two looks at another's: a listening socket may change hands.
const AGAIN_NS: u64 = 60 * SECOND_NS;
/// The same where nothing could be learnt.
const RETRY_NS: u64 = 2 * SECOND_NS;

/// So many lists are asked for at once, later ones with the sweep of each second.
const HURRY_LISTS: u32 = 5;

/// New connections wait at most so long for the first judgements to be believed to be new.
const SETTLED_NS: u64 = 3 * SECOND_NS;

/// Loopback addresses on which a listener on all addresses is looked for.
const LOOPBACKS: u8 = 8;

/// Whose a listener is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Whose {
    /// Not known (yet).
    #[default]
    Unknown,
    /// The Redis's that the feed speaks to.
    Redis,
    /// Another server's.
    Other,
}

impl Whose {
    const fn row(self) -> Option<abi::erb_listener> {
        match self {
            Self::Unknown => None,
            Self::Redis => Some(abi::LISTENER_REDIS),
            Self::Other => Some(abi::LISTENER_FOREIGN),
        }
    }

    const fn of(row: abi::erb_listener) -> Self {
        match row {
            abi::LISTENER_REDIS => Self::Redis,
            abi::LISTENER_FOREIGN => Self::Other,
            _ => Self::Unknown,
        }
    }
}

/// A connection that is looked for in Redis's lists.
struct Probe<S> {
    stream: S,
    pair: TcpPair,
    since_ns: u64,
    /// A list was asked for after it was made.
    asked: bool,
    lists: u32,
    seen: bool,
    /// Connections that nothing has come from and that no list has shown yet.
    before: HashSet<TcpPair>,
    /// All listeners when it was made.
    among: Vec<u64>,
}

struct Known<S> {
    listener: Listener,
    whose: Whose,
    /// Whether that was found out over this feed.
    judged: bool,
    next_ns: u64,
    probe: Option<Probe<S>>,
    why: Option<String>,
}

/// What is known of the listeners.
pub(crate) struct Listeners<S> {
    port: u16,
    known: Vec<Known<S>>,
    is_read: bool,
    settled_ns: u64,
}

/// Whether a listener takes connections to this address, and how exactly it is named.
fn fits(listener: &Listener, address: IpAddr) -> Option<u8> {
    match (listener.address, address) {
        (own, to) if own == to => Some(3),
        (IpAddr::V4(own), IpAddr::V4(_)) if own.is_unspecified() => Some(2),
        (IpAddr::V6(own), IpAddr::V6(_)) if own.is_unspecified() => Some(2),
        (IpAddr::V6(own), IpAddr::V4(_)) if own.is_unspecified() => Some(1),
        _ => None,
    }
}

/// The listener that takes connections to this address; none if nobody does, or it cannot be told:
/// several share it, or one is bound to a device.
pub fn taker(listeners: &[Listener], address: IpAddr) -> Option<&Listener> {
    let fit = |listener: &Listener| fits(listener, address);
    let best = listeners.iter().filter_map(fit).max()?;
    let mut takers = listeners.iter().filter(|one| fit(one) == Some(best));
    let taker = takers.next()?;
    let bound = |one: &&Listener| fit(one).is_some() && one.interface != 0;
    let strange = listeners
        .iter()
        .filter(bound)
        .any(|one| one.cookie != taker.cookie);
    (takers.next().is_none() && !strange).then_some(taker)
}

/// Addresses at which this listener, and no other, is reached.
#[must_use]
pub fn reached_at(listeners: &[Listener], one: &Listener, local: &[IpAddr]) -> Vec<IpAddr> {
    let mut tries = vec![one.address];
    if one.address.is_unspecified() {
        tries = vec![Ipv6Addr::LOCALHOST.into()];
        tries.extend((1..=LOOPBACKS).map(|n| IpAddr::V4(Ipv4Addr::new(127, 0, 0, n))));
        tries.extend(local);
    }
    tries.retain(|address| taker(listeners, *address).is_some_and(|it| it.cookie == one.cookie));
    tries
}

/// Whether the list shows this connection.
#[must_use]
pub fn is_listed(list: &[ClientLine], pair: &TcpPair) -> bool {
    list.iter().any(|line| {
        line.addr.map(canonical) == Some(pair.client)
            && line.laddr.map(canonical) == Some(pair.server)
    })
}

/// What an unlisted connection tells of its listener: none if it is a Redis that has refused it.
fn stranger(stream: &mut impl Read) -> Option<Whose> {
    let mut words = [0; 64];
    match stream.read(&mut words) {
        Ok(n) if words[..n].starts_with(b"-DENIED") || words[..n].starts_with(b"-ERR max") => None,
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => None,
        _ => Some(Whose::Other),
    }
}

impl<S: Read> Listeners<S> {
    /// Nothing is known of who listens on this port.
    pub(crate) const fn new(port: u16) -> Self {
        Self {
            port,
            known: Vec::new(),
            is_read: false,
            settled_ns: 0,
        }
    }

    /// Reads who listens, forgets who does no more, and looks for those who are not known if
    /// `may_probe`.
    pub(crate) fn read(
        &mut self,
        path: &impl DataPath,
        machine: &mut impl Machine<Stream = S>,
        now: u64,
        may_probe: bool,
    ) -> Result<()> {
        let found = machine.listeners()?;
        if !self.is_read {
            self.settled_ns = now + SETTLED_NS;
        }
        let mut known = Vec::new();
        for listener in &found {
            let before = &mut self.known;
            let at = before.iter().position(|one| one.listener == *listener);
            known.push(match at {
                Some(at) => before.swap_remove(at),
                None => Known {
                    listener: *listener,
                    whose: Whose::Unknown,
                    judged: false,
                    next_ns: 0,
                    probe: None,
                    why: None,
                },
            });
        }
        self.known = known;
        for (cookie, whose) in path.listeners()? {
            let one = self.known.iter_mut();
            let one = one.into_iter().find(|one| one.listener.cookie == cookie);
            match one {
                None => drop(path.set_listener(cookie, None)?),
                // Another daemon's judgement: it holds until there is an own one.
                Some(one) if !self.is_read => one.whose = Whose::of(whose),
                Some(_) => {}
            }
        }
        self.is_read = true;
        if may_probe {
            self.probe(machine, now, &found)?;
        }
        Ok(())
    }

    fn probe(
        &mut self,
        machine: &mut impl Machine<Stream = S>,
        now: u64,
        found: &[Listener],
    ) -> Result<()> {
        let mut local = Vec::new();
        let mut silent = None;
        let probed: HashSet<TcpPair> = self.probes().collect();
        for one in &mut self.known {
            if one.probe.is_some() || now < one.next_ns {
                continue;
            }
            one.next_ns = now + RETRY_NS;
            if local.is_empty() {
                local = machine.local_addresses()?;
            }
            let tries = reached_at(found, &one.listener, &local);
            if tries.is_empty() {
                let text = "it shares its address with another listening socket";
                one.why = Some(text.to_owned());
                continue;
            }
            let mut made = Err(io::ErrorKind::AddrNotAvailable.into());
            for address in tries {
                made = machine.probe(address);
                if made.is_ok() {
                    break;
                }
            }
            let (stream, pair) = match made {
                Ok(made) => made,
                Err(error) => {
                    one.why = Some(format!("no connection to it could be made: {error}"));
                    continue;
                }
            };
            if silent.is_none() {
                let mut quiet = machine.passing_connections()?;
                quiet.retain(|pair, traffic| *traffic == Traffic::Silent && !probed.contains(pair));
                silent = Some(quiet.into_keys().collect::<HashSet<_>>());
            }
            let mut before = silent.clone().unwrap_or_default();
            before.retain(|old| {
                *old != pair && taker(found, old.server.ip()).is_none_or(|it| *it == one.listener)
            });
            one.probe = Some(Probe {
                stream,
                pair,
                since_ns: now,
                asked: false,
                lists: 0,
                seen: false,
                before,
                among: found.iter().map(|listener| listener.cookie).collect(),
            });
        }
        Ok(())
    }

    /// The daemon's own connections to listeners.
    fn probes(&self) -> impl Iterator<Item = TcpPair> {
        let probes = self.known.iter().filter_map(|one| one.probe.as_ref());
        probes.map(|probe| probe.pair)
    }

    /// A list is asked for; whether a probe wants it.
    pub(crate) fn list_is_asked(&mut self) {
        for one in &mut self.known {
            if let Some(probe) = &mut one.probe {
                probe.asked = true;
            }
        }
    }

    /// Whether a probe waits for a list.
    pub(crate) fn wants_list(&self) -> bool {
        self.probes().next().is_some()
    }

    /// Whether one should not wait for the next second.
    pub(crate) fn is_urgent(&self) -> bool {
        let mut probes = self.known.iter().filter_map(|one| one.probe.as_ref());
        probes.any(|probe| probe.lists < HURRY_LISTS)
    }

    /// Whether new connections can be told from older ones.
    pub(crate) fn is_settled(&self, now: u64) -> bool {
        let known = |one: &Known<S>| one.whose != Whose::Unknown || one.why.is_some();
        self.is_read && (now >= self.settled_ns || self.known.iter().all(known))
    }

    /// CLIENT LIST came back.
    pub(crate) fn judge(
        &mut self,
        path: &impl DataPath,
        machine: &impl Machine<Stream = S>,
        list: &[ClientLine],
    ) -> Result<()> {
        if !self.wants_list() {
            return Ok(());
        }
        let now = machine.monotonic_ns();
        let present = machine.listeners()?;
        let open = machine.passing_connections()?;
        let is_silent = |pair: &TcpPair| open.get(pair) == Some(&Traffic::Silent);
        for one in &mut self.known {
            let Some(probe) = one.probe.as_mut().filter(|probe| probe.asked) else {
                continue;
            };
            probe.asked = false;
            probe.lists += 1;
            probe.seen |= is_listed(list, &probe.pair);
            probe
                .before
                .retain(|old| is_silent(old) && !is_listed(list, old));
            let same = present.len() == probe.among.len()
                && present.iter().all(|it| probe.among.contains(&it.cookie));
            let late = probe.lists >= STRANGER_LISTS && now >= probe.since_ns + STRANGER_NS;
            let whose = match (same, probe.seen) {
                (false, _) => None,
                (true, true) if probe.before.is_empty() => Some(Whose::Redis),
                (true, false) if late => stranger(&mut probe.stream),
                _ => continue,
            };
            one.probe = None;
            one.next_ns = match whose {
                Some(Whose::Redis) => u64::MAX,
                Some(_) => now + AGAIN_NS,
                None => now + RETRY_NS,
            };
            one.why = (whose.is_none() && same).then(|| "it refuses connections".to_owned());
            let Some(whose) = whose else { continue };
            let was = std::mem::replace(&mut one.whose, whose);
            one.judged = true;
            if was == whose {
                continue;
            }
            // Behind an admission that was made for another's connection nothing may be answered.
            if was == Whose::Redis {
                path.set_rights(path.rights().wrapping_add(1));
            }
            let address = one.listener.address;
            if !path.set_listener(one.listener.cookie, whose.row())? {
                one.whose = Whose::Unknown;
                one.why = Some("there are more than ERB has room for".to_owned());
            } else if whose == Whose::Other {
                let port = self.port;
                tracing::warn!("another server listens on port {port} of {address}: left alone");
            } else {
                tracing::info!("Redis listens on {address}");
            }
        }
        Ok(())
    }

    /// A new feed, perhaps another Redis: everything is looked at again, and counts meanwhile.
    pub(crate) fn doubt(&mut self) {
        for one in &mut self.known {
            one.probe = None;
            one.judged = false;
            one.next_ns = 0;
        }
    }

    /// Without feed nothing can be found out.
    pub(crate) fn drop_probes(&mut self) {
        for one in &mut self.known {
            one.probe = None;
        }
    }

    /// Who listens on the port, and if that is not known why.
    pub(crate) fn all(&self) -> impl Iterator<Item = (IpAddr, Whose, Option<&str>)> {
        let known = self.known.iter();
        known.map(|one| (one.listener.address, one.whose, one.why.as_deref()))
    }

    /// Whether they are read between two seconds: one is to be looked for, if that `may_probe`.
    pub(crate) fn wants_read(&self, may_probe: bool) -> bool {
        let waits = |one: &Known<S>| one.next_ns == 0;
        !self.is_read || may_probe && self.known.iter().any(waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(cookie: u64, address: &str) -> Listener {
        Listener {
            cookie,
            address: address.parse().unwrap(),
            interface: 0,
        }
    }

    fn takes(listeners: &[Listener], address: &str) -> Option<u64> {
        taker(listeners, address.parse().unwrap()).map(|it| it.cookie)
    }

    #[test]
    fn the_most_exact_listener_takes_a_connection() {
        let all = [
            listener(1, "0.0.0.0"),
            listener(2, "::"),
            listener(3, "10.0.0.2"),
        ];
        assert_eq!(takes(&all, "10.0.0.2"), Some(3));
        assert_eq!(takes(&all, "10.0.0.3"), Some(1));
        assert_eq!(takes(&all, "fd00::1"), Some(2));
        assert_eq!(takes(&all[1..], "10.0.0.3"), Some(2), "both families");
        assert_eq!(takes(&all[2..], "10.0.0.3"), None);
    }

    #[test]
    fn who_shares_an_address_or_is_bound_to_a_device_takes_none_for_certain() {
        let shared = [listener(1, "10.0.0.2"), listener(2, "10.0.0.2")];
        assert_eq!(takes(&shared, "10.0.0.2"), None);
        let mut bound = [listener(1, "10.0.0.2"), listener(2, "0.0.0.0")];
        bound[1].interface = 4;
        assert_eq!(takes(&bound, "10.0.0.2"), None);
        assert_eq!(takes(&bound, "10.0.0.3"), Some(2), "whoever reaches it");
    }

    #[test]
    fn a_listener_on_all_addresses_is_reached_where_no_other_is() {
        let all = [listener(1, "0.0.0.0"), listener(3, "127.0.0.1")];
        let local = ["10.0.0.1".parse().unwrap()];
        let at = reached_at(&all, &all[0], &local);
        let shown: Vec<String> = at.iter().map(IpAddr::to_string).collect();
        assert!(!shown.contains(&"127.0.0.1".to_owned()), "{shown:?}");
        assert!(shown.contains(&"127.0.0.2".to_owned()), "{shown:?}");
        assert!(shown.contains(&"10.0.0.1".to_owned()), "{shown:?}");
        assert_eq!(reached_at(&all, &all[1], &local), [all[1].address]);
    }
}
