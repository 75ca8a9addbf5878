// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks at the maps while a run goes on, and at what is left when it is over.

use std::rc::Rc;

use erb_abi as abi;
use erb_sim_kernel::Datapath;

use crate::check::maps::{Maps, addresses};
use crate::check::stream::Streams;
use crate::check::{cache, quiet};
use crate::client::machine::Machine;
use crate::fault::Fault;
use crate::inner::Inner;
use crate::server::Server;
use crate::time::{Ns, SECOND};
use crate::violation::Violation;

/// The longest that a request may wait when nothing goes wrong any more.
const ANSWER_MAX: Ns = 300 * SECOND;

/// What the checks remember of the maps from one look to the next.
#[derive(Default)]
pub struct Looks {
    path: Option<Datapath>,
    maps: Maps,
    streams: Streams,
}

impl Looks {
    /// Looks at the maps between two steps: nobody holds a lock.
    ///
    /// # Errors
    /// The broken rule.
    pub fn maps(&mut self, inner: &Rc<Inner>, server: &Rc<Server>) -> Result<(), Violation> {
        let Some(path) = server.attached_path() else {
            self.path = None;
            return Ok(());
        };
        if self
            .path
            .as_ref()
            .is_none_or(|known| known.control() != path.control())
        {
            self.maps = Maps::default();
            self.streams = Streams::default();
            self.path = Some(path.clone());
        }
        let now = inner.now();
        let sock = |client, here| server.sock((here, client));
        count_states(inner, server, &path);
        self.maps.check(now, &path, sock)?;
        if path.stat(abi::STAT_BYTES_UNSEEN) > 0 && !server.had_unseen_input.get() {
            let text = "a stream was lost although every packet was seen".to_owned();
            return Err(Violation::new("unseen", now, text));
        }
        let checks = inner.checks.borrow();
        let owned = |key: &abi::conn_key| {
            let (client, here) = addresses(key);
            let sock = server.sock((here, client))?;
            Some((sock, server.conn_of(sock.cookie)?))
        };
        let whole = inner.coverage.borrow().fault_count(Fault::Fragment) == 0;
        self.streams.check(now, &path, &checks, whole, owned)?;
        cache::check(now, &path, checks.versions(), checks.here())
    }
}

/// Which states of entries meet which states of sockets.
fn count_states(inner: &Inner, server: &Server, path: &Datapath) {
    let mut coverage = inner.coverage.borrow_mut();
    path.each_conn(|key, entry| {
        let (client, here) = addresses(key);
        let tcp = server.sock((here, client)).map_or(0, |sock| sock.state);
        let state = ["NEW", "FAST", "BYPASS", "OLD"]
            .get(usize::from(entry.state))
            .unwrap_or(&"?");
        let name = format!("{state} flags {:02x} tcp {tcp}", entry.flags);
        coverage.count("state", &name);
    });
}

/// What is left when all connections are over and all delays have passed.
///
/// # Errors
/// The broken rule.
pub fn leaks(inner: &Rc<Inner>, server: &Rc<Server>) -> Result<(), Violation> {
    let now = inner.now();
    quiet::answered(now, &inner.checks.borrow(), ANSWER_MAX)?;
    let Some(path) = server.attached_path() else {
        return Ok(());
    };
    quiet::leaks(now, &path, |client, here| server.has_socket((here, client)))
}

/// Whether Redis holds what clients were told, where that is more than what Redis itself has said.
///
/// # Errors
/// The broken rule.
pub fn content(inner: &Rc<Inner>, server: &Rc<Server>) -> Result<(), Violation> {
    let redis = server.redis.borrow();
    match redis.as_ref().filter(|_| server.has_absorbed()) {
        Some(redis) => inner.checks.borrow().agree(inner.now(), &redis.contents()),
        None => Ok(()),
    }
}

/// Connections that do not end although nothing goes wrong any more.
#[must_use]
pub fn stuck(inner: &Rc<Inner>, machines: &[Machine]) -> Violation {
    let stuck: Vec<String> = machines
        .iter()
        .flat_map(Machine::sessions)
        .map(|session| {
            format!(
                "connection {} from {} ({:?}) waits for {} replies, has {} bytes to send",
                session.id,
                session.local,
                session.stage,
                session.owed(),
                session.outbox.len()
            )
        })
        .collect();
    Violation::new("stuck", inner.now(), stuck.join("; "))
}
