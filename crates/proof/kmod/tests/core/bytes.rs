// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Both sinks write the same bytes. The C's structs have the offsets that the journal's format has.

use std::io::Write as _;
use std::process::{Command, Stdio};

use erb_journal::{Header, Id, Identity, Write, encode_header, encode_record};

use crate::{Sanitizer, build};

/// The record as it lies in a ring: `struct log_record`, a slot's header, value, key.
fn ring_record(write: &Write<'_>) -> Vec<u8> {
    let padding = write.key.len().next_multiple_of(8) - write.key.len();
    let count = 36 + write.value.len() + write.key.len() + padding;
    let mut bytes = Vec::with_capacity(count);
    bytes.extend(write.lsn.to_le_bytes());
    bytes.extend(write.expiry_ms.to_le_bytes());
    bytes.extend((count as u32).to_le_bytes());
    bytes.extend([1, 0, 0, 0]); // LOG_SET
    bytes.extend([7; 4]); // an epoch that nobody looks at
    bytes.extend((write.value.len() as u16).to_le_bytes());
    bytes.extend((write.key.len() as u16).to_le_bytes());
    bytes.extend([0; 2]);
    bytes.extend(write.db.to_le_bytes());
    bytes.extend(write.value);
    bytes.extend(write.key);
    bytes.resize(count, 0);
    bytes
}

#[test]
fn the_module_writes_the_bytes_that_the_journal_writes() {
    let program = build("core-bytes", Sanitizer::Address);
    let seed = 1;
    let mut random = fastrand::Rng::with_seed(seed);
    let header = Header {
        identity: Identity {
            journal: Id(random.u128(..).to_le_bytes()),
            boot: Id(random.u128(..).to_le_bytes()),
        },
        number: random.u64(..),
        first_lsn: 1,
    };
    let (mut to_core, mut wanted) = (encode_header(&header).to_vec(), Vec::new());
    for lsn in 1..=500 {
        let key: Vec<u8> = (0..random.usize(1..=256)).map(|_| random.u8(..)).collect();
        let value: Vec<u8> = (0..random.usize(..=1451)).map(|_| random.u8(..)).collect();
        let write = Write {
            lsn,
            db: random.u16(..),
            expiry_ms: random.u64(..),
            key: &key,
            value: &value,
        };
        to_core.extend(ring_record(&write));
        encode_record(&header, &write, &mut wanted);
    }
    let mut core = Command::new(program)
        .arg("encode")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let mut input = core.stdin.take().expect("its input");
    let feeder = std::thread::spawn(move || input.write_all(&to_core));
    let done = core.wait_with_output().expect("its output");
    feeder.join().expect("a thread").expect("all is read");
    assert!(done.status.success(), "seed {seed}: {done:?}");
    assert_eq!(done.stdout.len(), wanted.len(), "seed {seed}");
    assert!(done.stdout == wanted, "seed {seed}: other bytes");
}

#[test]
fn the_package_has_the_version_of_all() {
    let conf = std::fs::read_to_string(crate::root().join("kmod/dkms.conf")).expect("dkms.conf");
    let version = format!("PACKAGE_VERSION=\"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(conf.lines().any(|line| line == version), "{version}");
}
