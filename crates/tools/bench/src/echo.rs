// SPDX-License-Identifier: Apache-2.0 OR MIT
//! User-space half of the bare XDP responder.

use anyhow::Result;
use libbpf_rs::{Link, Object};

use crate::generator::{attach_xdp, load, write};
use crate::mirror::bench_echo_config;
use crate::netns::{CLIENT_IP, CLIENT_MAC, SERVER_IP, SERVER_MAC};
use crate::packet::{Direction, template, words};
use crate::work::Work;

#[repr(align(8))]
struct Aligned<T>(T);
static OBJECT: &Aligned<[u8; include_bytes!(concat!(env!("OUT_DIR"), "/echo.bpf.o")).len()]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/echo.bpf.o")));

/// The compiled object.
pub(crate) fn object() -> &'static [u8] {
    &OBJECT.0
}

/// The responder on the server's device.
#[derive(Debug)]
pub struct Echo {
    _link: Link,
    object: Object,
    config: bench_echo_config,
}

impl Echo {
    /// Loads and attaches; everything passes until [`Echo::enable`].
    pub fn attach(netns: &str, dev: &str, port: u16, work: &Work) -> Result<Self> {
        let object = load(&OBJECT.0, "echo", 1)?;
        let link = attach_xdp(&object, "echo", netns, dev)?;
        let direction = Direction {
            from_mac: SERVER_MAC,
            to_mac: CLIENT_MAC,
            from_ip: SERVER_IP.octets(),
            to_ip: CLIENT_IP.octets(),
        };
        let payload = work.reply(&[0]);
        let config = bench_echo_config {
            reply: template(&direction, &payload),
            payload: words(&payload),
            reply_bytes: payload.len() as u32,
            enabled: 0,
            server_port_be: port.to_be(),
            pad: [0; 3],
        };
        Ok(Self {
            _link: link,
            object,
            config,
        })
    }

    /// Answers from now on.
    pub fn enable(&mut self) -> Result<()> {
        self.config.enabled = 1;
        write(&self.object, "config", 0, &self.config)
    }
}
