// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows of the command table: what a command means, as bytes of the map `erb_commands`.

use crate::{command_key, command_row, erb_cmd_class};

/// A key of `erb_commands`: `struct command_key`.
pub type CommandKey = [u8; size_of::<command_key>()];

/// Which arguments a `CMD_MARK` writes; the name is argument 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// The first one.
    pub first: u16,
    /// The last one; negative: from the end. Not used with `keynum`.
    pub last: i32,
    /// From one to the next.
    pub step: u16,
    /// Argument that says how many keys there are from `first` on; 0: none does.
    pub keynum: u16,
}

impl Keys {
    /// Argument 1 alone.
    pub const FIRST: Self = Self {
        first: 1,
        last: 1,
        step: 1,
        keynum: 0,
    };
    /// No argument.
    pub const NONE: Self = Self {
        first: 0,
        last: 0,
        step: 0,
        keynum: 0,
    };
}

/// What a command means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// `enum erb_cmd_class`.
    pub class: erb_cmd_class,
    /// Exact argument count for which the class holds, 0 = any.
    pub argc: u32,
    /// What it writes.
    pub keys: Keys,
    /// What it asks of the order of writes that were answered: `ORDER_*`.
    pub order: u16,
}

impl Meaning {
    /// The value of `erb_commands`.
    #[must_use]
    pub const fn row(&self) -> command_row {
        command_row {
            cmd_class: self.class,
            argc: self.argc,
            last: self.keys.last,
            first: self.keys.first,
            step: self.keys.step,
            keynum: self.keys.keynum,
            order: self.order,
        }
    }

    /// The same as bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; size_of::<command_row>()] {
        // SAFETY: the struct is integers without padding: its fields add up to its size.
        unsafe { std::mem::transmute(self.row()) }
    }

    /// What the bytes of a row say; none if they are of another length.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; size_of::<command_row>()] = bytes.try_into().ok()?;
        // SAFETY: the struct is integers without padding: any bytes are a value.
        let row: command_row = unsafe { std::mem::transmute(bytes) };
        Some(Self::of(&row))
    }

    /// What a row says.
    #[must_use]
    pub const fn of(row: &command_row) -> Self {
        Self {
            class: row.cmd_class,
            argc: row.argc,
            keys: Keys {
                first: row.first,
                last: row.last,
                step: row.step,
                keynum: row.keynum,
            },
            order: row.order,
        }
    }
}

/// One row of `commands.def`.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Lower-case name, `container|sub` for sub-commands.
    pub name: &'static str,
    /// `enum erb_cmd_class`.
    pub class: erb_cmd_class,
    /// Exact argument count for which the class holds, 0 = any.
    pub argc: u32,
    /// What it writes.
    pub keys: Keys,
    /// What it asks of the order of writes that were answered: `ORDER_*`.
    pub order: u16,
}

impl Command {
    /// What the row says.
    #[must_use]
    pub const fn meaning(&self) -> Meaning {
        Meaning {
            class: self.class,
            argc: self.argc,
            keys: self.keys,
            order: self.order,
        }
    }

    /// The key of `erb_commands`.
    #[must_use]
    pub fn key(&self) -> CommandKey {
        command_key_bytes(self.name).expect("build.rs checks the lengths")
    }

    /// The value of `erb_commands`.
    #[must_use]
    pub fn row(&self) -> [u8; size_of::<command_row>()] {
        self.meaning().bytes()
    }
}

/// The key of `erb_commands` for a name, `container|sub` for a sub-command: both zero padded. None if
/// a part is longer than the data path keeps.
#[must_use]
pub fn command_key_bytes(name: &str) -> Option<CommandKey> {
    let (name, sub) = name.split_once('|').unwrap_or((name, ""));
    let mut key = [0; size_of::<command_key>()];
    for (field, text) in [
        (std::mem::offset_of!(command_key, name), name),
        (std::mem::offset_of!(command_key, sub), sub),
    ] {
        if text.len() > crate::NAME_BYTES_MAX as usize {
            return None;
        }
        key[field..field + text.len()].copy_from_slice(text.as_bytes());
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CMD_GET, CMD_MARK, COMMANDS};

    fn find(name: &str) -> &'static Command {
        COMMANDS.iter().find(|row| row.name == name).unwrap()
    }

    #[test]
    fn keys_and_rows_have_their_place() {
        let get = find("get");
        assert_eq!(&get.key()[..4], b"get\0");
        assert!(get.key()[3..].iter().all(|byte| *byte == 0));
        let number = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().unwrap());
        assert_eq!(number(&get.row()[..4]), CMD_GET);
        assert_eq!(number(&get.row()[4..8]), 2);
        let sub = find("config|get").key();
        assert_eq!((&sub[..7], &sub[24..28]), (&b"config\0"[..], &b"get\0"[..]));
        assert!(command_key_bytes(&"x".repeat(25)).is_none());
    }

    #[test]
    fn what_writes_says_where() {
        let mset = find("mset").meaning();
        assert_eq!((mset.class, mset.keys.first), (CMD_MARK, 1));
        assert_eq!((mset.keys.last, mset.keys.step), (-1, 2));
        assert_eq!(Meaning::of(&mset.row()), mset);
        for command in &COMMANDS {
            let named = command.keys != Keys::NONE;
            assert_eq!(named, command.class == CMD_MARK, "{}", command.name);
        }
    }
}
