// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The discovery log. Anybody may read it; it names the subsystem only to hosts that may connect to it. Checked
//! against Linux, `include/linux/nvme.h` (`struct nvmf_disc_rsp_page_entry`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::{Config, Host, Port};
use super::fabrics::ANY_CONTROLLER;
use crate::bytes::{put_text, put_u16, put_u64};

/// Bytes of the head, and of each entry.
const ENTRY_BYTES: usize = 1024;
const TCP: u8 = 3;
const NVM_SUBSYSTEM: u8 = 2;
/// TSAS of TCP: no TLS.
const TREQ_NOT_REQUIRED: u8 = 2;

/// A host that only asks what there is.
pub(super) fn host(nqn: &str) -> Arc<Host> {
    Arc::new(Host {
        nqn: nqn.to_owned(),
        number: 0,
        roles: BTreeMap::new(),
        secrets: None,
    })
}

/// Addresses that mean all addresses: nobody can connect to them.
const ANY: [&str; 2] = ["0.0.0.0", "::"];

/// The log, as a host sees it that has found this end there.
pub(super) fn page(
    config: &Config,
    found_at: Option<&Port>,
    nqn: &str,
    generation: u64,
) -> Vec<u8> {
    // Guests may only be meant to come over loopback, but they are told.
    let is_known = config.hosts.iter().any(|host| host.nqn == nqn) || !config.guests.is_empty();
    let ports: &[_] = if is_known { &config.ports } else { &[] };
    let mut page = vec![0; ENTRY_BYTES * (1 + ports.len())];
    put_u64(&mut page, 0, generation);
    put_u64(&mut page, 8, ports.len() as u64);
    for (number, (port, entry)) in
        (1..).zip(ports.iter().zip(page.chunks_exact_mut(ENTRY_BYTES).skip(1)))
    {
        let is_any = ANY.contains(&&port.address[..]);
        let port = found_at.filter(|_| is_any).unwrap_or(port);
        entry[0] = TCP;
        entry[1] = if port.address.contains(':') { 2 } else { 1 };
        entry[2] = NVM_SUBSYSTEM;
        entry[3] = TREQ_NOT_REQUIRED;
        put_u16(entry, 4, number);
        put_u16(entry, 6, ANY_CONTROLLER);
        let commands = u16::try_from(config.limits.commands).unwrap_or(u16::MAX);
        put_u16(entry, 8, commands);
        put_text(entry, 32, 32, &port.port.to_string(), 0);
        put_text(entry, 256, 256, &config.nqn, 0);
        put_text(entry, 512, 256, &port.address, 0);
    }
    page
}
