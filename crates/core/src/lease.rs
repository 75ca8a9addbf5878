// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rest: without a connection that could be answered the lease is of no use, and neither Redis nor
//! the daemon need wake up twenty times a second for it.

use erb_abi as abi;

use crate::outside::{DataPath, Machine, Result};
use crate::turn::{Core, MS};

/// After the start and after each look at the status the lease is kept up for this long, even if
/// there is no connection to answer.
pub(crate) const AWAKE_NS: u64 = 5000 * MS;

impl<P: DataPath, M: Machine> Core<P, M> {
    /// Whether nobody could be answered, lease or not: the last sweep found no connection that is
    /// fast or may become so, and none was made since. The first command of a connection goes up
    /// in any case, and by the tick after it the lease is back.
    pub(crate) fn is_at_rest(&self, now: u64) -> Result<bool> {
        if now < self.awake_until_ns || self.fills.is_busy() {
            return Ok(false);
        }
        let of = |state: abi::erb_conn_state| self.sweep.by_state[state as usize];
        let answerable = of(abi::CONN_NEW) + of(abi::CONN_FAST);
        Ok(answerable == 0 && self.path.stat(abi::STAT_CONN_CREATED)? == self.created)
    }
}
