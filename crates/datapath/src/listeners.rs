// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose the listening sockets on Redis's port are, as the data path is told.

use erb_abi as abi;
use libbpf_rs::{ErrorKind, MapCore, MapFlags};

use crate::{Datapath, Error, Result};

const NAME: &str = "erb_listeners";

impl Datapath {
    /// What is said of listening sockets: cookie and `enum erb_listener`.
    ///
    /// # Errors
    /// [`Error::Map`] if the map cannot be read.
    pub fn listeners(&self) -> Result<Vec<(u64, abi::erb_listener)>> {
        let mut rows = Vec::new();
        for key in self.listeners.keys() {
            let value = self.listeners.lookup(&key, MapFlags::ANY);
            let value = value.map_err(|error| Error::map(NAME, error))?;
            let cookie = key.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
            let whose = value.as_deref().and_then(<[u8]>::first_chunk);
            rows.extend(cookie.zip(whose.map(|bytes| u32::from_ne_bytes(*bytes))));
        }
        Ok(rows)
    }

    /// Says whose a listening socket is; none: that is not known. False if there is no room.
    ///
    /// # Errors
    /// [`Error::Map`] if the map cannot be changed.
    pub fn set_listener(&self, cookie: u64, whose: Option<abi::erb_listener>) -> Result<bool> {
        let (key, map) = (cookie.to_ne_bytes(), &self.listeners);
        let done = match whose {
            Some(whose) => map.update(&key, &whose.to_ne_bytes(), MapFlags::ANY),
            None => map.delete(&key),
        };
        match done {
            Ok(()) => Ok(true),
            Err(error) if whose.is_none() && error.kind() == ErrorKind::NotFound => Ok(true),
            Err(_) if map.keys().count() >= abi::LISTENERS_MAX as usize => Ok(false),
            Err(error) => Err(Error::map(NAME, error)),
        }
    }
}
