// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When a client's operations are due.

use std::sync::Arc;
use std::time::Duration;

/// Of one client of several, which take the operations in turn.
#[derive(Debug, Clone)]
pub enum Pace {
    /// When a connection is idle: a closed loop.
    Closed,
    /// At a fixed rate.
    Even {
        /// The first one.
        first_ns: f64,
        /// From one to the next.
        step_ns: f64,
    },
    /// At given times, in microseconds, that do not go back.
    Times {
        /// Of all clients.
        all: Arc<[u64]>,
        /// This client's first one.
        first: usize,
        /// Clients.
        clients: usize,
    },
}

/// When one operation is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// As soon as a connection is idle.
    Now,
    /// At this time since the begin.
    At(Duration),
    /// There is none.
    Never,
}

impl Pace {
    /// The share that client number `client` of `clients` has of a rate, in operations per second.
    pub fn even(per_s: f64, client: u32, clients: u32) -> Self {
        let between_ns = 1e9 / per_s;
        Self::Even {
            first_ns: f64::from(client) * between_ns,
            step_ns: f64::from(clients) * between_ns,
        }
    }

    /// When operation `number` is due.
    pub fn due(&self, number: u64) -> Due {
        match self {
            Self::Closed => Due::Now,
            Self::Even { first_ns, step_ns } => {
                let due_ns = first_ns + step_ns * number as f64;
                Due::At(Duration::from_nanos(due_ns as u64))
            }
            Self::Times {
                all,
                first,
                clients,
            } => {
                let time = all.get(first + number as usize * clients);
                time.map_or(Due::Never, |&us| Due::At(Duration::from_micros(us)))
            }
        }
    }

    /// How many operations from number `from` on are due before this time; none of a closed loop.
    pub fn due_before(&self, time: Duration, from: u64) -> u64 {
        let due = |number: &u64| matches!(self.due(*number), Due::At(due) if due < time);
        (from..).take_while(due).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_take_a_rate_s_operations_in_turn() {
        let paces = [0, 1].map(|client| Pace::even(1000.0, client, 2));
        let at = |us| Due::At(Duration::from_micros(us));
        assert_eq!(
            [0, 1, 2].map(|number| paces[0].due(number)),
            [0, 2000, 4000].map(at)
        );
        assert_eq!(
            [0, 1, 2].map(|number| paces[1].due(number)),
            [1000, 3000, 5000].map(at)
        );
        let all = paces.map(|pace| pace.due_before(Duration::from_secs(1), 0));
        assert_eq!(all, [500, 500]);
    }

    #[test]
    fn given_times_end() {
        let pace = Pace::Times {
            all: [0, 5, 7].into(),
            first: 1,
            clients: 2,
        };
        assert_eq!(pace.due(0), Due::At(Duration::from_micros(5)));
        assert_eq!(pace.due(1), Due::Never);
        assert_eq!(pace.due_before(Duration::from_micros(5), 0), 0);
        assert_eq!(pace.due_before(Duration::from_micros(6), 0), 1);
        assert_eq!(Pace::Closed.due_before(Duration::from_secs(1), 0), 0);
    }
}
