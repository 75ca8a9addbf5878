// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control plane over the maps of a world.

use std::cell::UnsafeCell;
use std::mem::offset_of;

use erb_abi::{Buffers, Control, ControlBlock, ControlPlane, Logs, Program, Table, Values};

use crate::datapath::{Datapath, Inner};
use crate::errno::{E2BIG, ENOENT};
use crate::library::MapShape;
use crate::map::Map;

/// What a daemon maps of these maps.
pub(crate) fn mapped(shapes: &[MapShape], maps: &[UnsafeCell<Map>]) -> (Control, Buffers) {
    let values = |name: &'static str| -> Result<Values, std::convert::Infallible> {
        let number = shapes.iter().position(|shape| shape.name == name);
        let number = number.unwrap_or_else(|| panic!("the data path has no map {name}"));
        // SAFETY: the caller alone has the maps.
        let Map::Array(values) = (unsafe { &*maps[number].get() }) else {
            panic!("{name} is an array")
        };
        // SAFETY: values stay where they are (M1) as long as the maps, which are kept with what is
        // made of this; the shapes are those of the C that runs.
        Ok(unsafe { Values::new(values.get(0), values.stride(), values.count(), ()) })
    };
    let Ok(control) = values("erb_control");
    let Ok(buffers) = Buffers::new(values);
    (Control::new(control), buffers)
}

impl Inner {
    fn table(&self, table: Table) -> &mut Map {
        self.map(match table {
            Table::Conns => self.known.conns,
            Table::Unseen => self.known.unseen,
            Table::Commands => self.known.commands,
            Table::Listeners => self.known.listeners,
            Table::Stats => self.known.stats,
            Table::Latency => self.known.latency,
        })
    }
}

impl Datapath {
    /// The log of writes that are answered in the server's place.
    ///
    /// # Panics
    /// If the data path has none.
    #[must_use]
    pub fn logs(&self) -> Logs {
        let values = |number: usize| {
            let Map::Array(values) = self.0.map(number) else {
                panic!("an array")
            };
            // SAFETY: values stay where they are (M1) as long as the maps, which are kept with what is made of this.
            unsafe { Values::new(values.get(0), values.stride(), values.count(), self.clone()) }
        };
        let order = values(self.0.known.control).behind(offset_of!(erb_abi::control, order));
        Logs::new(values(self.0.known.log), order)
    }
}

impl ControlBlock for Datapath {
    fn control(&self) -> &Control {
        &self.0.plane.0
    }
}

impl ControlPlane for Datapath {
    /// What the kernel's error would be.
    type Error = i64;

    fn buffers(&self) -> &Buffers {
        &self.0.plane.1
    }

    fn run(&self, program: Program) -> Result<u32, i64> {
        Ok(u32::try_from(self.run_prog(program)).unwrap_or(0))
    }

    fn run_on_frame(&self, program: Program, frame: &[u8]) -> Result<u32, i64> {
        let found = self.run_prog_on_frame(program, self.0.config.devices[0], frame);
        Ok(u32::try_from(found).unwrap_or(0))
    }

    fn keys(&self, table: Table) -> Vec<Vec<u8>> {
        let Map::Hash(hash) = self.0.table(table) else {
            return Vec::new();
        };
        let all = (0..hash.places()).filter_map(|place| hash.at(place));
        all.map(|(key, _)| key.to_vec()).collect()
    }

    fn look_up(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, i64> {
        let map = self.0.table(table);
        assert_eq!(key.len(), map.key_bytes(), "a key of {table:?}");
        let (bytes, cpus) = match map {
            Map::Hash(hash) => (hash.value_bytes(), 1),
            Map::Array(values) => (values.bytes(), 1),
            Map::PerCpu { values, .. } => (values.bytes(), self.0.config.cpus),
            Map::Ring(_) => return Err(-ENOENT),
        };
        let mut found = Vec::new();
        for cpu in 0..cpus {
            // SAFETY: the key is as long as the map's, and so are the bytes; one task runs.
            unsafe {
                let value = map.lookup(key.as_ptr(), cpu);
                if value.is_null() {
                    return Ok(None);
                }
                found.extend_from_slice(std::slice::from_raw_parts(value, bytes));
            }
        }
        Ok(Some(found))
    }

    fn put(&self, table: Table, key: &[u8], value: Option<&[u8]>) -> Result<(), i64> {
        let Map::Hash(hash) = self.0.table(table) else {
            return Err(-E2BIG);
        };
        let Some(value) = value else {
            hash.delete(key, 0);
            return Ok(());
        };
        assert_eq!(value.len(), hash.value_bytes(), "a value of {table:?}");
        // SAFETY: the value is as long as the map's.
        match unsafe { hash.update(key, value.as_ptr(), 0, 0) } {
            0 => Ok(()),
            error => Err(error),
        }
    }
}
