// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the end-to-end scenarios have in common.
//!
//! - [`lab`]: a boosted lab of a test's own, its status and counters, its Redis and its daemon.
//! - [`browser`]: a headless Chromium.
//! - [`calls`]: commands and replies in short.
//! - `carrier`: carries connections past all boosted devices.
//! - [`process`]: processes and limits.
//! - [`status`]: what `erb status --json` says.
//! - [`stop`]: ends what runs beside a test.
//! - [`turn`]: which tests run side by side.
//! - [`waits`]: what a test waits for at its lab.
//! - [`wire`]: a lab in which exchanges of raw segments are played.
//!
//! The scenarios are in `tests/e2e`. `ERB_LONG=1` runs them with their full numbers. A wait that ends
//! in vain, a set-up that fails and a side that is too slow are told apart from all else ([`erb_steady`]).

pub mod browser;
pub mod calls;
mod carrier;
pub mod lab;
pub mod process;
pub mod status;
pub mod stop;
pub mod turn;
pub mod waits;
pub mod wire;
