// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guard as a program of its own, for senders that have no hidden command for it. Started by `Guard::start`.

fn main() -> std::io::Result<()> {
    dax_send::run_guard()
}
