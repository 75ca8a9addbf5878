// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command table of a data path, as its daemon reads and changes it.

use erb_abi::{CommandKey, Meaning, command_row};

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
}
