// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Conversations of a TCP client that is made of raw segments, for what no kernel would send.
//!
//! An [`Exchange`] is data: set-up of keys, segments with chosen numbers, and what must come back. It
//! is played by [`play()`] over a [`Wire`], of which there are two: a lab with the programs in the
//! kernel, and the simulator's world. What was observed is written down in client space, without
//! times and windows ([`play::Log`]); both worlds must give the log that [`expected`] keeps, which
//! is how they are known to agree.
//!
//! - [`exchange`]: what an exchange consists of. - [`builder`]: how it is written.
//! - [`exchanges`]: all of them, by subject. - [`wire`]: what a world must offer.
//! - [`frame`]: segments as bytes. - [`peer`]: what was received, and what must always hold of it.

pub mod builder;
pub mod exchange;
pub mod exchanges;
pub mod expected;
pub mod frame;
pub mod peer;
pub mod play;
pub mod wire;

pub use exchange::Exchange;
pub use play::play;
pub use wire::Wire;
