// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks at the maps while a run goes on, and at what is left when it is over.

use std::rc::Rc;

use erb_sim_path::Path;

use crate::client::machine::Machine;
use crate::inner::Inner;
use crate::server::Server;
use crate::violation::Violation;

/// The maps between two steps: nobody holds a lock.
///
/// # Errors
/// The broken rule.
pub fn maps(_inner: &Rc<Inner>, _server: &Rc<Server>, _path: &Path) -> Result<(), Violation> {
    Ok(())
}

/// What is left when all connections are over and all delays have passed.
///
/// # Errors
/// The broken rule.
pub fn leaks(
    _inner: &Rc<Inner>,
    _server: &Rc<Server>,
    _machines: &[Machine],
) -> Result<(), Violation> {
    Ok(())
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
