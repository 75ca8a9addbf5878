// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the doctor reads of Redis: its state, as the feed reads it each second, settings, and its clients.

use std::collections::BTreeMap;

use erb_redis::resp::{RespStream, pairs, text};
use erb_redis::rights::Credentials;
use erb_redis::{ClientLine, RedisState, parse_clients};

use crate::addr::RedisAddr;
use crate::credentials::CredentialSource;
use crate::machine::Connection;
use crate::preflight::{ask, silent};
use crate::{Error, Result};

/// What of Redis decides whether ERB may answer, and settings that matter besides.
pub struct RedisFacts {
    /// Its state.
    pub state: RedisState,
    /// [`SETTINGS`] by name.
    pub settings: BTreeMap<String, String>,
    /// CLIENT LIST; empty where Redis would close the connection instead of answering.
    pub clients: Vec<ClientLine>,
}

/// Settings of Redis that are looked at beside its state.
const SETTINGS: [&[u8]; 5] = [
    b"timeout",
    b"protected-mode",
    b"tcp-keepalive",
    b"notify-keyspace-events",
    b"requirepass",
];

/// Reads what the feed reads each second, once, and some settings. Of `requirepass` only whether it
/// is set is kept.
///
/// # Errors
/// As of a preflight.
pub fn read_redis(address: &RedisAddr, source: &CredentialSource) -> Result<RedisFacts> {
    let credentials = source.read()?;
    let failed = |error: std::io::Error| Error::Redis {
        address: address.to_string(),
        reason: silent(&error),
    };
    let mut stream = Connection::unasked(address)
        .map(RespStream::new)
        .map_err(failed)?;
    let config: Vec<&[u8]> = [&b"CONFIG"[..], b"GET"]
        .into_iter()
        .chain(SETTINGS)
        .collect();
    let mut commands = vec![Credentials::hello(credentials.as_ref()), config];
    let [most @ .., list] = RedisState::QUESTIONS;
    commands.extend(most.iter().map(|words| words.to_vec()));
    let commands: Vec<&[&[u8]]> = commands.iter().map(Vec::as_slice).collect();
    let mut replies = ask(&mut stream, &commands).map_err(failed)?;
    // Redis would close the connection instead of answering.
    if RedisState::of(&replies[2..]).list_beyond_limit().is_none() {
        replies.extend(ask(&mut stream, &[list]).map_err(failed)?);
    }
    let mut settings: BTreeMap<String, String> = pairs(&replies[1]).into_iter().collect();
    if let Some(password) = settings
        .get_mut("requirepass")
        .filter(|text| !text.is_empty())
    {
        "set".clone_into(password);
    }
    let mut state = RedisState::of(&replies[2..]);
    state.user = source.user().map(str::to_owned);
    let list = replies.get(2 + most.len()).and_then(text);
    let list = list.map(|list| parse_clients(&String::from_utf8_lossy(list)));
    Ok(RedisFacts {
        state,
        settings,
        clients: list.unwrap_or_default(),
    })
}
