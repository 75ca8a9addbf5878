// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What became of packets, live: `erb trace` without its text.
//!
//! It needs no daemon. Traced programs stand in for those at work ([`erb_datapath::Tracer`]) for as
//! long as the trace lives; when those are replaced it goes on with the new ones, if they are of this
//! build. A [`guard`] puts the others back should the trace be killed.

mod command;
pub mod guard;
mod packet;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use erb_abi::{KEY_BYTES_MAX, TRACE_LEASE_MS};
use erb_datapath::{AtWork, Links, Programs, TraceFilter, TraceMisses, Tracer};
use erb_report::Packet;

use crate::clock::{monotonic_ns, wall_minus_monotonic_ns};
use guard::Guard;

use crate::preflight::{check_kernel, check_privileges};
use crate::takeover::own_layout;
use crate::{Error, Result, RunDir};

/// Between two looks whether the traced programs are still at work, and renewals of their lease.
const LOOK: Duration = Duration::from_millis(200);

/// Which packets are wanted, from words of the command line.
///
/// # Errors
/// [`Error::Usage`] for what is no address or no key.
pub fn filter(client: Option<&str>, key: Option<&[u8]>) -> Result<TraceFilter> {
    let mut filter = TraceFilter::default();
    if let Some(text) = client {
        let (address, port) = client_of(text)?;
        filter.client = Some(match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        });
        filter.client_port = port;
    }
    if let Some(text) = key {
        let shown = String::from_utf8_lossy(text);
        let key = command::unquoted(text)
            .map_err(|reason| Error::Usage(format!("--key {shown}: {reason}")))?;
        if key.len() > KEY_BYTES_MAX as usize {
            return Err(Error::Usage(format!(
                "--key: {} bytes are more than {KEY_BYTES_MAX}; commands with keys that long always \
                 go up to Redis (REFUSE_COMMAND): use --client to see them",
                key.len()
            )));
        }
        filter.key = Some(key);
    }
    Ok(filter)
}

fn client_of(text: &str) -> Result<(IpAddr, u16)> {
    if let Ok(address) = text.parse() {
        return Ok((address, 0));
    }
    match text.parse::<SocketAddr>() {
        Ok(found) if found.port() != 0 => Ok((found.ip(), found.port())),
        _ => Err(Error::Usage(format!(
            "--client {text:?} is no address of a client: write 10.0.0.7, 10.0.0.7:40312, fd00::7 \
             or [fd00::7]:40312"
        ))),
    }
}

/// What happened to the programs that are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// They were replaced; the new ones are traced from now on.
    Replaced,
    /// ERB was detached.
    Gone,
}

/// A trace under way; nothing is left of it when it is dropped.
pub struct Trace {
    run_dir: RunDir,
    filter: TraceFilter,
    tracer: Option<Tracer>,
    whole: bool,
    looked: Instant,
    before: TraceMisses,
    // Gone last: it holds the lock.
    _guard: Guard,
}

impl Trace {
    /// Begins to trace what is at work in `run_dir`. `loads` is called when there is something to trace, and the traced
    /// programs are loaded next: that takes seconds.
    ///
    /// # Errors
    /// [`Error::NotBoosted`], [`Error::AlreadyTraced`], or one of the data path's if what is at work
    /// is of another build or the kernel refuses.
    pub fn begin(run_dir: RunDir, filter: TraceFilter, loads: impl FnOnce()) -> Result<Self> {
        check_kernel()?;
        check_boosted(&run_dir)?;
        let guard = Guard::start(&run_dir)?;
        loads();
        let (tracer, whole) = attach(&run_dir, &filter)?;
        Ok(Self {
            tracer: Some(tracer),
            whole,
            run_dir,
            filter,
            looked: Instant::now(),
            before: TraceMisses::default(),
            _guard: guard,
        })
    }

    /// Packets since the last call, oldest first.
    pub fn take(&mut self) -> Vec<Packet> {
        let events = self.tracer.as_mut().map_or_else(Vec::new, Tracer::take);
        if events.is_empty() {
            return Vec::new();
        }
        let offset = wall_minus_monotonic_ns();
        let packets = events.iter().map(|event| packet::packet(event, offset));
        packets.collect()
    }

    /// Packets that were not shown since it began.
    ///
    /// # Errors
    /// If they cannot be counted.
    pub fn misses(&self) -> Result<TraceMisses> {
        let now = self
            .tracer
            .as_ref()
            .map_or_else(|| Ok(TraceMisses::default()), erb_datapath::Tracer::misses)?;
        Ok(TraceMisses {
            lost: self.before.lost + now.lost,
            unsearched: self.before.unsearched + now.unsearched,
        })
    }

    /// To be called again and again: lets the programs trace on, and looks now and then whether they
    /// are still at work.
    ///
    /// # Errors
    /// If the new ones cannot be traced.
    pub fn look(&mut self) -> Result<Option<Change>> {
        if self.looked.elapsed() < LOOK {
            return Ok(None);
        }
        self.looked = Instant::now();
        let Some(tracer) = &self.tracer else {
            return Ok(Some(Change::Gone));
        };
        match tracer.at_work() {
            AtWork::Traced => tracer.hold(lease_end_ns())?,
            AtWork::None => return Ok(Some(Change::Gone)),
            AtWork::Others => {
                self.before = self.misses()?;
                self.tracer = None;
                let (tracer, whole) = match attach(&self.run_dir, &self.filter) {
                    // Detached meanwhile.
                    Err(Error::NotBoosted(_)) => return Ok(Some(Change::Gone)),
                    other => other?,
                };
                (self.tracer, self.whole) = (Some(tracer), whole);
                return Ok(Some(Change::Replaced));
            }
        }
        Ok(None)
    }

    /// What of the boost the reader of the trace should know.
    #[must_use]
    pub fn remarks(&self) -> Vec<&'static str> {
        let mut remarks = Vec::new();
        if !self.run_dir.is_locked() {
            remarks.push("the daemon is dead: nothing is answered until `erb boost` again");
        }
        if !self.whole {
            remarks.push(
                "a replacement of the programs stopped half-way: packets that meet the others are \
                 not shown; `erb boost` again",
            );
        }
        remarks
    }
}

fn lease_end_ns() -> u64 {
    monotonic_ns() + u64::from(TRACE_LEASE_MS) * 1_000_000
}

/// Notes of what is at work, which must be of this build: the traced programs are.
fn check_boosted(run_dir: &RunDir) -> Result<()> {
    let notes = run_dir.notes()?;
    if Links::new(&run_dir.pins()).boosted_devices().is_empty() {
        return Err(Error::NotBoosted(run_dir.path().to_path_buf()));
    }
    if notes.log_rings > 0 {
        return Err(Error::Usage(
            "a trace cannot stand in for programs that answer writes (--mode write-back): \
             `erb detach` and boost with --mode read to trace"
                .to_owned(),
        ));
    }
    let own = Programs::builtin();
    if notes.build == own.build() && notes.layout == own_layout() {
        return Ok(());
    }
    Err(Error::OtherBuild {
        run_dir: run_dir.path().to_path_buf(),
        found: notes.build,
        own: own.build().to_owned(),
    })
}

/// Loads the traced programs and puts them to work; false beside them: not on all links.
fn attach(run_dir: &RunDir, filter: &TraceFilter) -> Result<(Tracer, bool)> {
    check_boosted(run_dir)?;
    let mut tracer = Tracer::load(&run_dir.pins(), filter)?;
    // Not while a boost changes the same links.
    let _turn = run_dir.turn()?;
    check_boosted(run_dir)?;
    if tracer.at_work() != AtWork::Traced {
        return Err(Error::OtherBuild {
            run_dir: run_dir.path().to_path_buf(),
            found: "one that has just begun".to_owned(),
            own: Programs::builtin().build().to_owned(),
        });
    }
    tracer.hold(lease_end_ns())?;
    let whole = tracer.begin()?;
    Ok((tracer, whole))
}

/// Checks that the caller may trace at all, before anything else is looked at.
///
/// # Errors
/// [`Error::Privilege`] naming what is missing.
pub fn check_may_trace() -> Result<()> {
    check_privileges()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients() {
        let found = |text| filter(Some(text), None).map(|one| (one.client, one.client_port));
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 7];
        assert_eq!(found("10.0.0.7").unwrap(), (Some(mapped), 0));
        assert_eq!(found("10.0.0.7:40312").unwrap(), (Some(mapped), 40312));
        let v6 = "fd00::7".parse::<std::net::Ipv6Addr>().unwrap().octets();
        assert_eq!(found("fd00::7").unwrap(), (Some(v6), 0));
        assert_eq!(found("[fd00::7]:1").unwrap(), (Some(v6), 1));
        for wrong in [
            "",
            "client",
            "10.0.0",
            "10.0.0.7:",
            "10.0.0.7:0",
            "10.0.0.7:70000",
            "[fd00::7",
            "10.0.0.7/24",
        ] {
            let refused = found(wrong);
            assert!(matches!(refused, Err(Error::Usage(_))), "{wrong}");
        }
    }

    #[test]
    fn keys() {
        let found = |text: &[u8]| filter(None, Some(text)).map(|one| one.key);
        assert_eq!(found(b"user:1").unwrap(), Some(b"user:1".to_vec()));
        assert_eq!(found(b"\"\\x00\"").unwrap(), Some(vec![0]));
        assert_eq!(found(b"").unwrap(), Some(Vec::new()));
        assert!(found(&[b'k'; 256]).is_ok());
        for wrong in [&[b'k'; 257][..], b"\"\\x\""] {
            assert!(matches!(found(wrong), Err(Error::Usage(_))));
        }
    }

    #[test]
    fn nothing_boosted_cannot_be_traced() {
        let run_dir = RunDir::new(std::path::Path::new("/nonexistent/erb"));
        let refused = Trace::begin(run_dir, TraceFilter::default(), || panic!("nothing loads"));
        assert!(matches!(refused.err(), Some(Error::NotBoosted(_))));
    }
}
