// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The front program of a device with more than one handler (`bpf/front.bpf.c`).

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use libbpf_rs::{Map, MapCore as _, MapFlags, Object, ObjectBuilder};

use crate::load::refused;
use crate::programs::FRONT;
use crate::{Error, Result};

/// A loaded front; it ends with this value and with whatever it is attached to.
#[derive(Debug)]
pub struct Front(Object);

impl Front {
    /// Loads it, without handlers: all packets pass.
    ///
    /// # Errors
    /// [`Error::Load`] if the kernel refuses.
    pub fn load() -> Result<Self> {
        let object = ObjectBuilder::default().open_memory(FRONT);
        let loaded = object.and_then(libbpf_rs::OpenObject::load);
        loaded.map(Self).map_err(|error| refused("front", &error))
    }

    /// The program `erb_front`, to be attached where a handler's own would be.
    ///
    /// # Panics
    /// If the object, which is built in, has no program.
    #[must_use]
    pub fn program(&self) -> BorrowedFd<'_> {
        let program = self.0.progs().next().expect("one program");
        // SAFETY: the descriptor is the object's, which lives as long as the borrow of self.
        unsafe { BorrowedFd::borrow_raw(program.as_fd().as_raw_fd()) }
    }

    fn map(&self, name: &str) -> Map<'_> {
        let mut maps = self.0.maps().filter(|map| map.name() == name);
        maps.next().expect("a map of bpf/front.bpf.c")
    }

    fn put(&self, map: &'static str, key: &[u8], value: &[u8]) -> Result<()> {
        let put = self.map(map).update(key, value, MapFlags::ANY);
        put.map_err(|error| Error::map(map, error))
    }

    /// Hands what comes for `port` (host order) to `handler`, an XDP program, under the number `slot`.
    /// The port's bit comes last: nothing is handed to an empty slot.
    ///
    /// # Errors
    /// [`Error::Map`] if there is no such slot, no room for the port, or the program is none that can be
    /// called.
    pub fn add(&self, slot: u32, port: u16, handler: BorrowedFd<'_>) -> Result<()> {
        let program = handler.as_raw_fd().to_ne_bytes();
        self.put("erb_handlers", &slot.to_ne_bytes(), &program)?;
        self.put("erb_port_slots", &port.to_be_bytes(), &slot.to_ne_bytes())?;
        let word = u32::from(port / 64).to_ne_bytes();
        let before = self.map("erb_port_bits").lookup(&word, MapFlags::ANY);
        let before = before.map_err(|error| Error::map("erb_port_bits", error))?;
        let before = before.and_then(|bytes| bytes.try_into().ok());
        let after = before.map_or(0, u64::from_ne_bytes) | 1 << (port % 64);
        self.put("erb_port_bits", &word, &after.to_ne_bytes())
    }
}
