// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Identify says. Offsets were checked against Linux (`include/linux/nvme.h`: `struct nvme_id_ctrl`,
//! `struct nvme_id_ns`, `struct nvme_id_ns_cs_indep`) and the KV command set specification.

use super::commands::{Outcome, Reply};
use super::config::{Config, Namespace};
use super::connection::{Connection, Context};
use super::controller::Controller;
use super::fabrics::{DISCOVERY_NQN, VERSION};
use crate::bytes::{put, put_text, put_u16, put_u32, put_u64};
use crate::command::{ALL_NAMESPACES, Sqe};
use crate::limits::{SHORT_KEY_BYTES_MAX, TRANSFER_BYTES_MAX};
use crate::status::Status;

/// Bytes of all pages.
const PAGE_BYTES: usize = 4096;
const KV: u8 = 1;

/// Which page (CNS).
pub mod page {
    /// A namespace, by the NVM command set.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Namespaces.
    pub const ACTIVE: u8 = 0x02;
    /// A namespace's identifiers.
    pub const DESCRIPTORS: u8 = 0x03;
    /// A namespace, by its command set.
    pub const NAMESPACE_OF_SET: u8 = 0x05;
    /// The controller, by a command set.
    pub const CONTROLLER_OF_SET: u8 = 0x06;
    /// Namespaces of a command set.
    pub const ACTIVE_OF_SET: u8 = 0x07;
    /// What all command sets say of a namespace.
    pub const INDEPENDENT: u8 = 0x08;
    /// Combinations of command sets.
    pub const COMMAND_SETS: u8 = 0x1c;
}

impl From<Result<Vec<u8>, Status>> for Outcome {
    fn from(page: Result<Vec<u8>, Status>) -> Self {
        match page {
            Ok(page) => Self::Reply(Reply::data(0, page)),
            Err(status) => status.into(),
        }
    }
}

pub(super) fn identify(
    connection: &Connection,
    cx: &mut Context<'_>,
    sqe: &Sqe,
) -> Result<Vec<u8>, Status> {
    let used_bytes = cx.backend.health().used_bytes;
    let config = cx.subsystem.config.clone();
    let controller = connection.controller(cx).ok_or(Status::SEQUENCE)?;
    let which = sqe.word(10).to_le_bytes()[0];
    let set = sqe.word(11).to_le_bytes()[3];
    if controller.is_discovery && which != page::CONTROLLER {
        return Err(Status::INVALID_FIELD);
    }
    let namespace = || {
        if sqe.namespace() == ALL_NAMESPACES {
            return Err(Status::INVALID_NAMESPACE);
        }
        let mut all = visible(&config, controller);
        let found = all.find(|it| it.id == sqe.namespace());
        found.cloned().ok_or(Status::INVALID_NAMESPACE)
    };
    match which {
        page::CONTROLLER => Ok(controller_page(&config, controller)),
        page::ACTIVE => active(&config, controller, sqe),
        page::ACTIVE_OF_SET if set == KV => active(&config, controller, sqe),
        page::ACTIVE_OF_SET | page::CONTROLLER_OF_SET if set == 0 => Ok(vec![0; PAGE_BYTES]),
        page::NAMESPACE => namespace().map(|it| plain_page(&it)),
        page::DESCRIPTORS => namespace().map(|it| descriptors(&it)),
        page::NAMESPACE_OF_SET if set == KV => namespace().map(|it| kv_page(&it, used_bytes)),
        page::CONTROLLER_OF_SET if set == KV => {
            let mut page = vec![0; PAGE_BYTES];
            // KV 1.3.
            page[1] = 3;
            put_u16(&mut page, 2, 1);
            Ok(page)
        }
        page::INDEPENDENT => namespace().map(|_| {
            let mut page = vec![0; PAGE_BYTES];
            // Ready.
            page[14] = 1;
            page
        }),
        page::COMMAND_SETS => {
            let mut page = vec![0; PAGE_BYTES];
            // One combination: NVM and KV.
            put_u64(&mut page, 0, 3);
            Ok(page)
        }
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Namespaces that the host may see. With another command set enabled there are none.
fn visible<'a>(
    config: &'a Config,
    controller: &'a Controller,
) -> impl Iterator<Item = &'a Namespace> {
    let all = config.namespaces.iter();
    all.filter(|it| controller.role(it.id).is_some())
}

fn active(config: &Config, controller: &Controller, sqe: &Sqe) -> Result<Vec<u8>, Status> {
    if sqe.namespace() >= ALL_NAMESPACES - 1 {
        return Err(Status::INVALID_NAMESPACE);
    }
    let mut ids: Vec<u32> = visible(config, controller).map(|it| it.id).collect();
    ids.retain(|id| *id > sqe.namespace());
    ids.sort_unstable();
    let mut page = vec![0; PAGE_BYTES];
    for (at, id) in ids.iter().take(PAGE_BYTES / 4).enumerate() {
        put_u32(&mut page, 4 * at, *id);
    }
    Ok(page)
}

fn controller_page(config: &Config, controller: &Controller) -> Vec<u8> {
    let mut page = vec![0; PAGE_BYTES];
    let is_discovery = controller.is_discovery;
    put_text(&mut page, 4, 20, &config.serial, b' ');
    put_text(&mut page, 24, 40, &config.model, b' ');
    put_text(&mut page, 64, 8, &config.firmware, b' ');
    // MDTS: 2^8 pages of 4 KiB.
    page[77] = (TRANSFER_BYTES_MAX / PAGE_BYTES)
        .trailing_zeros()
        .to_le_bytes()[0];
    put_u16(&mut page, 78, controller.id);
    put_u32(&mut page, 80, VERSION);
    // OAES: namespaces; discovery.
    put_u32(&mut page, 92, if is_discovery { 1 << 31 } else { 1 << 8 });
    // CNTRLTYPE.
    page[111] = if is_discovery { 2 } else { 1 };
    // AERL, counted from 0.
    page[259] = 3;
    // LPA: effects, and pieces of logs.
    page[261] = 6;
    // KAS: in units of 100 ms.
    put_u16(&mut page, 320, 10);
    page[512] = 0x66;
    page[513] = 0x44;
    // MAXCMD.
    let commands = u16::try_from(config.limits.commands).unwrap_or(u16::MAX);
    put_u16(&mut page, 514, commands);
    let last = config.namespaces.iter().map(|it| it.id).max();
    put_u32(
        &mut page,
        516,
        if is_discovery { 0 } else { last.unwrap_or(0) },
    );
    // SGLS: supported, and offsets in capsules.
    put_u32(&mut page, 536, 0x0010_0001);
    let nqn = if is_discovery {
        DISCOVERY_NQN
    } else {
        &config.nqn
    };
    put_text(&mut page, 768, 256, nqn, 0);
    // IOCCSZ and IORCSZ, in units of 16 bytes.
    let capsule = (64 + config.limits.in_capsule_bytes) / 16;
    put_u32(&mut page, 1792, u32::try_from(capsule).unwrap_or(4));
    put_u32(&mut page, 1796, 1);
    // ICDOFF stays 0; MSDBD.
    page[1803] = 1;
    page
}

/// What a host is told that asks by the NVM command set: a namespace without a block in use. SPDK takes it for
/// inactive if this fails.
fn plain_page(namespace: &Namespace) -> Vec<u8> {
    let mut page = vec![0; PAGE_BYTES];
    let blocks = namespace.size_bytes / 4096;
    put_u64(&mut page, 0, blocks);
    put_u64(&mut page, 8, blocks);
    put(&mut page, 104, &namespace.nguid);
    // LBADS of format 0: 2^12 bytes.
    page[130] = 12;
    page
}

fn kv_page(namespace: &Namespace, used_bytes: u64) -> Vec<u8> {
    let mut page = vec![0; PAGE_BYTES];
    put_u64(&mut page, 0, namespace.size_bytes);
    put_u64(&mut page, 16, used_bytes);
    put(&mut page, 48, &namespace.nguid);
    // Format 0: KML, VML; MNKS 0: as many keys as there is room for.
    let key_bytes = u16::try_from(SHORT_KEY_BYTES_MAX).expect("16");
    let value_bytes = u32::try_from(TRANSFER_BYTES_MAX).expect("1 MiB");
    put_u16(&mut page, 72, key_bytes);
    put_u32(&mut page, 76, value_bytes);
    page
}

fn descriptors(namespace: &Namespace) -> Vec<u8> {
    let mut page = vec![0; PAGE_BYTES];
    let mut at = 0;
    let all: [(u8, &[u8]); 3] = [(2, &namespace.nguid), (3, &namespace.uuid), (4, &[KV])];
    for (kind, value) in all {
        page[at] = kind;
        page[at + 1] = u8::try_from(value.len()).expect("16 bytes at most");
        put(&mut page, at + 4, value);
        at += 4 + value.len();
    }
    page
}
