// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tables of commands and of listeners of a data path, as its daemon reads and changes them.

use erb_abi::{CommandKey, Meaning, command_row, erb_listener};

use crate::map::Map;
use crate::path::Path;

impl Path {
    /// What a command means from now on; none: as if it were not listed.
    ///
    /// # Panics
    /// If the table is full.
    pub fn set_command(&self, key: &CommandKey, meaning: Option<&Meaning>) {
        let Map::Hash(hash) = &mut *self.0.map(self.0.known.commands) else {
            panic!("erb_commands is a hash")
        };
        let Some(meaning) = meaning else {
            hash.delete(key, 0);
            return;
        };
        // SAFETY: the row is as long as the map's value: both are struct command_row.
        let done = unsafe { hash.update(key, meaning.bytes().as_ptr(), 0, 0) };
        assert_eq!(done, 0, "the command table is too small");
    }

    /// All rows of the command table.
    #[must_use]
    pub fn command_rows(&self) -> Vec<(CommandKey, Meaning)> {
        let Map::Hash(hash) = &*self.0.map(self.0.known.commands) else {
            return Vec::new();
        };
        let row = |place| {
            let (key, value) = hash.at(place)?;
            let key = CommandKey::try_from(key).ok()?;
            // SAFETY: a value is a row, and nobody changes it meanwhile.
            Some((
                key,
                Meaning::of(&unsafe { value.cast::<command_row>().read() }),
            ))
        };
        (0..hash.places()).filter_map(row).collect()
    }

    /// Whose the listener with this cookie is from now on; none: that is not known. False if the
    /// table is full.
    ///
    /// # Panics
    /// If there is no such table.
    pub fn set_listener(&self, cookie: u64, whose: Option<erb_listener>) -> bool {
        let Map::Hash(hash) = &mut *self.0.map(self.0.known.listeners) else {
            panic!("erb_listeners is a hash")
        };
        let key = cookie.to_ne_bytes();
        let Some(whose) = whose else {
            hash.delete(&key, 0);
            return true;
        };
        // SAFETY: the value is a u32.
        unsafe { hash.update(&key, whose.to_ne_bytes().as_ptr(), 0, 0) == 0 }
    }

    /// The listeners that are known, and whose they are.
    #[must_use]
    pub fn listeners(&self) -> Vec<(u64, erb_listener)> {
        let Map::Hash(hash) = &*self.0.map(self.0.known.listeners) else {
            return Vec::new();
        };
        let row = |place| {
            let (key, value) = hash.at(place)?;
            // SAFETY: a value is a u32, and nobody changes it meanwhile.
            let whose = unsafe { value.cast::<u32>().read() };
            Some((u64::from_ne_bytes(key.try_into().ok()?), whose))
        };
        (0..hash.places()).filter_map(row).collect()
    }
}
