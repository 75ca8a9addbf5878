// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A conversation as others read it: tshark dissects what both ends said.

use std::collections::BTreeMap;
use std::process::Command;
use std::{env, fs, process};

use erb_nvme::backend::{Condition, Key, Selector};
use erb_nvme::client::calls;
use erb_nvme::layout::ListingRequest;
use erb_nvme::pdu::Digests;
use erb_nvme::target::{ANY_CONTROLLER, Proof};

use crate::world::{ALICE, World, config, secrets, settings};

const PORT: u16 = 4420;
/// Bytes of one packet's payload.
const SEGMENT_BYTES: usize = 60_000;

/// A capture file: packets of raw IPv4.
struct Capture {
    bytes: Vec<u8>,
    time_us: u32,
}

impl Capture {
    fn new() -> Self {
        let mut bytes = Vec::new();
        for word in [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 262_144, 101] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        // Major version first, then minor.
        bytes[4..8].copy_from_slice(&[2, 0, 4, 0]);
        Self { bytes, time_us: 0 }
    }

    fn packet(
        &mut self,
        from_client: bool,
        client_port: u16,
        numbers: (u32, u32),
        data: &[u8],
        flags: u8,
    ) {
        let (client, server) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let length = u16::try_from(40 + data.len()).expect("a packet");
        let mut packet = vec![0x45, 0];
        packet.extend_from_slice(&length.to_be_bytes());
        packet.extend_from_slice(&[0, 0, 0x40, 0, 64, 6, 0, 0]);
        let (source, target, ports) = if from_client {
            (client, server, [client_port, PORT])
        } else {
            (server, client, [PORT, client_port])
        };
        packet.extend_from_slice(&source);
        packet.extend_from_slice(&target);
        for port in ports {
            packet.extend_from_slice(&port.to_be_bytes());
        }
        packet.extend_from_slice(&numbers.0.to_be_bytes());
        packet.extend_from_slice(&numbers.1.to_be_bytes());
        packet.extend_from_slice(&[0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        packet.extend_from_slice(data);
        self.time_us += 10;
        let size = u32::try_from(packet.len()).expect("a packet");
        for word in [0, self.time_us, size, size] {
            self.bytes.extend_from_slice(&word.to_le_bytes());
        }
        self.bytes.extend_from_slice(&packet);
    }

    fn connection(&mut self, client_port: u16, record: &[(bool, Vec<u8>)]) {
        let (syn, ack, push) = (2, 16, 24);
        self.packet(true, client_port, (0, 0), &[], syn);
        self.packet(false, client_port, (0, 1), &[], syn | ack);
        self.packet(true, client_port, (1, 1), &[], ack);
        let (mut client, mut server) = (1_u32, 1_u32);
        for (from_client, bytes) in record {
            for data in bytes.chunks(SEGMENT_BYTES) {
                let length = u32::try_from(data.len()).expect("a packet");
                if *from_client {
                    self.packet(true, client_port, (client, server), data, push);
                    client += length;
                } else {
                    self.packet(false, client_port, (server, client), data, push);
                    server += length;
                }
            }
        }
    }
}

/// What a client and a target said, over an admin and an I/O queue.
fn conversation(digests: Digests) -> Vec<Vec<(bool, Vec<u8>)>> {
    let mut config = config(Default::default());
    config.proof = Proof::Always;
    let mut world = World::new(config, 21);
    world.records = true;
    let mut wanted = settings(ALICE, 0, ANY_CONTROLLER);
    wanted.digests = digests;
    wanted.secrets = Some(secrets());
    let admin = world.connect(wanted.clone());
    wanted.queue = 1;
    wanted.controller = world.links[admin].client.controller();
    let io = world.connect(wanted);
    for page in [0, 1, 2, 3, 5, 6, 7, 8, 0x1c] {
        world.call(
            admin,
            calls::identify(page, u32::from(page != 2 && page != 7), 1),
        );
    }
    for log in [0, 1, 2, 3, 4, 5, 0xc0, 0xc1] {
        world.call(admin, calls::log(log, 1, 1, 0, 512));
    }
    world.call(admin, calls::keep_alive());
    world.call(admin, calls::get_feature(0x0b, 0));
    let key = Key::Plain(b"k".to_vec());
    let listing = ListingRequest {
        moment: 0,
        changed_since: 0,
        has_deleted: false,
        prefix: Vec::new(),
    };
    for call in [
        calls::store(1, b"k", vec![7; 100], Condition::Any),
        calls::store(1, b"large", vec![7; 300_000], Condition::Any),
        calls::retrieve(1, b"k", 4096),
        calls::retrieve(1, b"large", 1 << 20),
        calls::retrieve(1, b"none", 4096),
        calls::list(1, b"", 4096),
        calls::exist(1, b"k"),
        calls::put_value(1, &[b'l'; 40], vec![7; 100], Some(0)),
        calls::get(1, &key, Selector::Head, true, 4096),
        calls::versions(1, &key, 0, 4096),
        calls::open_listing(1, &listing),
        calls::listed_keys(1, 1, 0, 4096),
        calls::delete(1, b"k"),
        calls::fence(),
    ] {
        world.call(io, call);
    }
    [admin, io]
        .map(|link| world.links[link].record.take().expect("a record"))
        .into()
}

fn tshark(file: &str, arguments: &[&str]) -> String {
    let decode = format!("tcp.port=={PORT},nvme-tcp");
    let output = Command::new("tshark")
        .args(["-n", "-r", file, "-d", &decode])
        .args(arguments)
        .output()
        .expect("tshark runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("tshark says text")
}

#[test]
fn tshark_finds_every_pdu_and_none_malformed() {
    if Command::new("tshark").arg("--version").output().is_err() {
        erb_steady::set_up_failed("tshark is missing: scripts/setup.sh installs it");
    }
    let both = Digests {
        header: true,
        data: true,
    };
    for (number, digests) in [(1, Digests::default()), (2, both)] {
        let records = conversation(digests);
        let mut capture = Capture::new();
        let mut said = BTreeMap::<u8, usize>::new();
        for (port, record) in (50_000..).zip(&records) {
            capture.connection(port, record);
            for side in [true, false] {
                let own = record
                    .iter()
                    .filter(|(from_client, _)| *from_client == side);
                let bytes: Vec<u8> = own.flat_map(|(_, bytes)| bytes.clone()).collect();
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    *said.entry(rest[0]).or_default() += 1;
                    let length = u32::from_le_bytes(rest[4..8].try_into().expect("4")) as usize;
                    rest = &rest[length..];
                }
            }
        }
        let file = env::temp_dir().join(format!("erb-nvme-{}-{number}.pcap", process::id()));
        fs::write(&file, &capture.bytes).expect("a file is written");
        let name = file.to_str().expect("text");
        let wrong = "_ws.malformed || _ws.expert.severity == \"Error\" || _ws.unreassembled";
        let wrong = tshark(name, &["-Y", wrong]);
        assert!(wrong.is_empty(), "{wrong}");
        let types = tshark(
            name,
            &["-T", "fields", "-e", "nvme-tcp.type", "-Y", "nvme-tcp"],
        );
        let mut found = BTreeMap::<u8, usize>::new();
        for kind in types.split([',', '\n']).filter(|kind| !kind.is_empty()) {
            *found
                .entry(kind.trim().parse().expect("a number"))
                .or_default() += 1;
        }
        fs::remove_file(&file).expect("the file was there");
        assert_eq!(found, said, "tshark sees every PDU that was said");
    }
}
