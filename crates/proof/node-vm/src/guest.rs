// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest whose power is cut: the time until somebody in it answers, and the time that cuts may take.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use erb_kv::Status;
use erb_vm::boots::Booted;
use erb_vm::device::Device;
use thiserror::Error;

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

/// No guest, and so nothing of what a cut has left was seen.
#[derive(Debug, Error)]
#[error("the guest does not come up: {0}")]
pub(crate) struct NotUp(String);

/// Returns when somebody in the guest answers, which takes `most` at the most.
pub(crate) fn until_up<T>(
    guest: &Booted,
    most: Duration,
    tells: impl Fn() -> Result<T>,
) -> Result<()> {
    let begun = Instant::now();
    // QEMU takes connections before anybody in the guest does, and then ends them.
    while let Err(error) = tells() {
        let why = match guest.runs() {
            Err(ended) => ended,
            Ok(()) if begun.elapsed() < most => {
                thread::sleep(Duration::from_millis(500));
                continue;
            }
            Ok(()) => error,
        };
        return Err(NotUp(format!("{why:#}")).into());
    }
    Ok(())
}

/// What a test has come to whose drives lie, if `is_lying`: it has to find that out behind a cut that took something away, and by what
/// a guest says.
pub(crate) fn verdict(ended: Result<()>, is_lying: bool, lied: u64) -> Result<()> {
    match ended {
        ended if !is_lying => ended,
        Ok(()) => bail!("the drives lied, and nothing was missed: the test shows nothing"),
        Err(error) if lied == 0 || error.is::<NotUp>() || is_busy(&error) => {
            Err(error.context("it did not come to what drives that lie have lost"))
        }
        Err(error) => {
            println!("as it has to be with drives that lie: {error:#}");
            Ok(())
        }
    }
}

/// So says a node that is slow, whatever its drive has lost.
fn is_busy(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<erb_kv::Error>();
    error.is_some_and(|error| error.status() == Some(Status::BUSY))
}

/// No cut is begun that would not end in time, if it takes as long as the longest so far.
pub(crate) struct Time {
    begun: Instant,
    most: Duration,
    longest: Duration,
    of_cut: Instant,
    count: usize,
}

impl Time {
    pub(crate) fn begin(most: Duration) -> Self {
        Self {
            begun: Instant::now(),
            most,
            longest: Duration::ZERO,
            of_cut: Instant::now(),
            count: 0,
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
        self.count += 1;
    }

    /// Says how many were made, if not all. Without any the test shows nothing.
    pub(crate) fn is_over(&self, wanted: usize) -> Result<()> {
        ensure!(
            self.count > 0,
            "no cut was made: there was no time for one within {} s",
            self.most.as_secs()
        );
        if self.count < wanted {
            println!("time is over: {} of {wanted} cuts were made", self.count);
        }
        Ok(())
    }

    /// Since the begin.
    pub(crate) fn seconds(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn drives_that_lie_are_found_out_by_what_they_lost_alone() {
        let lost = || Err(anyhow!("a key is missing")).context("behind a cut");
        let no_guest = || Err(NotUp("the guest has ended".to_owned()).into());
        assert!(verdict(lost(), true, 3).is_ok());
        assert!(verdict(lost(), true, 0).is_err(), "no cut was made");
        let of_no_guest = verdict(no_guest(), true, 3).unwrap_err();
        assert!(format!("{of_no_guest:#}").contains("the guest has ended"));
        let busy = erb_kv::Error::Status {
            status: Status::BUSY,
            result: 0,
        };
        assert!(verdict(Err(busy.into()), true, 3).is_err());
        assert!(verdict(no_guest().context("at work"), true, 3).is_err());
        assert!(verdict(Ok(()), true, 3).is_err());
        assert!(verdict(Ok(()), false, 0).is_ok());
        assert!(verdict(lost(), false, 3).is_err());
    }

    #[test]
    fn a_test_that_made_no_cut_shows_nothing() {
        let mut time = Time::begin(Duration::ZERO);
        assert!(!time.is_left() && time.is_over(6).is_err());
        time.made();
        assert!(time.is_over(6).is_ok());
    }
}
