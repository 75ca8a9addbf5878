// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What ends a connection.

use std::io;
use std::time::Duration;

use crate::ledger::Stray;

/// Why a connection cannot go on. It is aborted; drop it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The peer did not acknowledge in time.
    #[error("the peer has not acknowledged a send for {after:?}: the connection was aborted")]
    Overdue {
        /// The deadline.
        after: Duration,
    },
    /// The socket failed, or the peer has closed.
    #[error("the connection failed: {0}")]
    Socket(#[source] io::Error),
    /// Bytes of the file cannot be read: it was cut, or its medium has a bad block.
    #[error(
        "bytes {offset} and following of the file cannot be sent ({source}): it was cut, or its medium has a \
         bad block (read it to tell)"
    )]
    File {
        /// Where in the file.
        offset: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel named sends that this connection did not make.
    #[error("{0}: was the socket used with MSG_ZEROCOPY by somebody else?")]
    Stray(#[from] Stray),
    /// The connection has failed before.
    #[error("the connection has failed before")]
    Failed,
}
