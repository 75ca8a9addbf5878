// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest whose power is cut: the time until somebody in it answers, and the time that cuts may take.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use erb_vm::boots::Booted;
use erb_vm::device::Device;

/// A port that nobody has at this moment.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.port())
}

/// A card by which this machine's ports lead to the guest's.
pub(crate) fn card(ports: Vec<(u16, u16)>) -> Device {
    Device::Card {
        model: "virtio-net-pci",
        network: "10.0.2.0/24",
        ports,
    }
}

/// Returns when somebody in the guest answers, which takes `most` at the most.
pub(crate) fn until_up<T>(
    guest: &Booted,
    most: Duration,
    tells: impl Fn() -> Result<T>,
) -> Result<()> {
    let begun = Instant::now();
    // QEMU takes connections before anybody in the guest does, and then ends them.
    while let Err(error) = tells() {
        guest.runs()?;
        ensure!(
            begun.elapsed() < most,
            "the guest does not come up: {error:#}"
        );
        thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}

/// No cut is begun that would not end in time, if it takes as long as the longest so far.
pub(crate) struct Time {
    begun: Instant,
    most: Duration,
    longest: Duration,
    of_cut: Instant,
}

impl Time {
    pub(crate) fn begin(most: Duration) -> Self {
        Self {
            begun: Instant::now(),
            most,
            longest: Duration::ZERO,
            of_cut: Instant::now(),
        }
    }

    /// Whether there is time for one more, which begins now.
    pub(crate) fn is_left(&mut self) -> bool {
        self.of_cut = Instant::now();
        self.begun.elapsed() + self.longest <= self.most
    }

    /// It is made, and looked at.
    pub(crate) fn made(&mut self) {
        self.longest = self.longest.max(self.of_cut.elapsed());
    }

    /// Since the begin.
    pub(crate) fn seconds(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }
}
