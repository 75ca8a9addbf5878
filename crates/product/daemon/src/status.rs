// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Answers to the commands that come over the control socket.

use erb_abi::{ControlBlock as _, ControlPlane as _, ValueKind};
use erb_redis::{Reports, Stage, Whose};
use erb_report::{
    AsideReport, ConnLine, Filled, ListenReport, ProgramsReport, RedisReport, Status,
    WaitingReport, WritesReport,
};
use serde_json::json;

use crate::clock::monotonic_ns;
use crate::daemon::{Daemon, FillClient};
use crate::rundir::{Notes, RunDir};
use crate::server::Request;
use crate::{Error, Result, conns, log, report, sockets, ways};

/// Why nothing is answered without a daemon, and the ways out.
const DEAD: &str = "the daemon is dead: `erb boost` with the same arguments adopts what is there, `erb detach` takes \
                    it away; connections go on meanwhile";

impl Daemon {
    pub(crate) fn serve_clients(&mut self) -> Result<()> {
        for (number, request) in self.server.turn() {
            match request {
                Ok(request) => self.serve_client(number, request)?,
                Err(error) => self.server.answer(number, &json!({ "error": error })),
            }
        }
        self.answer_fill();
        Ok(())
    }

    fn serve_client(&mut self, number: u64, request: Request) -> Result<()> {
        match request {
            Request::Status => {
                self.core.look()?;
                let status = self.status()?;
                self.server.answer(number, &status);
            }
            Request::Sample => {
                self.core.glance()?;
                let status = self.status()?;
                self.server.answer(number, &status);
            }
            Request::Detach { force, discard } => {
                if discard {
                    self.core.give_up_writes();
                }
                self.core.stop(force)?;
                let translated = self.core.last_sweep().translated;
                let undrained = self.core.datapath().loaded.undrained();
                let answer = json!({ "translated": translated, "undrained": undrained });
                self.server.answer(number, &answer);
            }
            Request::Fills { on } => {
                let control = self.core.datapath().loaded.control();
                control.set_fills(u32::from(on));
                self.server.answer(number, &json!({ "fills": on }));
            }
            Request::Aside { level, of_read } => {
                self.core.pin_aside(level);
                self.core.pin_reports(of_read.map(|of_read| match of_read {
                    true => Reports::OfRead,
                    false => Reports::All,
                }));
                self.server.answer(number, &json!({ "level": level }));
            }
            Request::Fill { keys, hashes } => self.begin_named_fill(number, keys, hashes)?,
            Request::HandOver => {
                if self.core.stage() == Stage::Running {
                    self.handed_over = true;
                    let answer = json!({ "pid": std::process::id() });
                    self.server.answer(number, &answer);
                } else {
                    let answer = json!({ "error": "a detach is under way" });
                    self.server.answer(number, &answer);
                }
            }
            Request::Conns => {
                let lines = self.conn_lines();
                self.server.answer(number, &lines);
            }
            Request::Keys => {
                if self.heat.ask(monotonic_ns()) {
                    // What is left there is of who asked before.
                    while !self.hot.drain().is_empty() {}
                    self.core.datapath().loaded.control().set_heat(1);
                }
                self.take_heat();
                self.server.answer(number, &self.heat.report());
            }
        }
        Ok(())
    }

    /// Takes what the data path has reported of keys, or ends it if nobody wants to know any more.
    pub(crate) fn take_heat(&mut self) {
        if !self.heat.is_wanted() {
            return;
        }
        for wanted in self.hot.drain() {
            self.heat.met(wanted);
        }
        if self.heat.ends(monotonic_ns()) {
            self.core.datapath().loaded.control().set_heat(0);
        }
    }

    fn begin_named_fill(&mut self, number: u64, keys: Vec<String>, hashes: bool) -> Result<()> {
        let datapath = self.core.datapath();
        let refusal = if datapath.serving() == 0 {
            Some("not serving")
        } else if datapath.fills() == 0 {
            Some("fills are switched off")
        } else if self.fill_client.is_some() {
            Some("another client is filling")
        } else {
            None
        };
        if let Some(reason) = refusal {
            self.server.answer(number, &json!({ "error": reason }));
            return Ok(());
        }
        let (filled, failed) = self.core.fill_counts();
        self.fill_client = Some(FillClient {
            number,
            filled,
            failed,
        });
        let kind = if hashes {
            ValueKind::Hash
        } else {
            ValueKind::String
        };
        let keys = keys.into_iter().map(String::into_bytes);
        Ok(self.core.fill(kind, keys)?)
    }

    /// Answers the client that asked for keys to be filled when the last one is done.
    fn answer_fill(&mut self) {
        let Some(client) = self.fill_client else {
            return;
        };
        if self.core.named_left() > 0 {
            return;
        }
        self.fill_client = None;
        let (filled, failed) = self.core.fill_counts();
        let answer = Filled {
            filled: filled - client.filled,
            refused: failed - client.failed,
        };
        self.server.answer(client.number, &answer);
    }

    fn conn_lines(&self) -> Vec<ConnLine> {
        let datapath = &self.core.datapath().loaded;
        let rights = datapath.control().rights();
        conns::lines(&datapath.conn_views(), rights, |pair| {
            self.core.limit_of(pair)
        })
    }

    fn status(&self) -> Result<Status> {
        let (boosted, core) = (&self.boosted, &self.core);
        let datapath = &core.datapath().loaded;
        let mut status = base_status(
            &boosted.run_dir,
            &boosted.notes,
            datapath,
            self.core.last_sweep(),
        )?;
        "running".clone_into(&mut status.daemon);
        if core.stage() != Stage::Running {
            "detaching".clone_into(&mut status.daemon);
            status.not_serving = vec!["detach under way".to_owned()];
        } else {
            status.not_serving = core.reasons_against_serving();
        }
        // While INFO is not answered the gate cannot be opened, and the reason is that.
        let is_read = core.redis_state().is_none_or(|state| state.info_is_read);
        if !status.gate_open && is_read {
            let reason = "a command that may have changed Redis's configuration was seen";
            status.not_serving.push(reason.to_owned());
        }
        status.pid = std::process::id();
        status.metrics_at.clone_from(&self.metrics_at);
        status.dashboard_at.clone_from(&self.dashboard_at);
        status.serving = datapath.control().serving() == 1 && status.not_serving.is_empty();
        status.aside = AsideReport {
            unread: status.aside.unread,
            ..report::aside(core.aside(), core.reports(), monotonic_ns())
        };
        status.waiting = report::waiting(core.holding(), monotonic_ns());
        let used = report::commands(&core.usage(), monotonic_ns());
        status.commands = used.unwrap_or(status.commands);
        status.writes = report::writes(core.writes());
        if let Some(journal) = &self.journal {
            status.writes.journal = journal.report();
        }
        status.cache.fills_waiting = core.fills_waiting();
        status.cache.fills_in_flight = core.fills_in_flight();
        (status.cache.filled, _) = core.fill_counts();
        status.redis.feed_up = core.is_feed_up();
        status.redis.feeds_made = core.feeds_made();
        if let Some(found) = core.commands() {
            status.redis.commands = found.commands;
            found.off.clone_into(&mut status.redis.fast_off);
            found.renamed.clone_into(&mut status.redis.renamed);
        }
        let unseen = core.unseen();
        status.connections.unseen = unseen.count;
        let control = datapath.control();
        let (table, share) = (control.conns_max(), control.client_conns_max());
        let unseen = report::unseen(unseen, table, share);
        status.redis.listens = core.listeners().map(listens).collect();
        if let Some(state) = core.redis_state() {
            status.notes = state.unseen_ports(boosted.notes.port);
            status.notes.extend(state.list_beyond_limit());
            status.notes.extend(state.no_full_user());
            state.version.clone_into(&mut status.redis.version);
            state.role.clone_into(&mut status.redis.role);
            status.redis.maxmemory = state.maxmemory;
            state
                .maxmemory_policy
                .clone_into(&mut status.redis.maxmemory_policy);
            status.redis.timeout_s = state.timeout_s;
        }
        status.notes.extend(unseen);
        status.notes.extend(self.unseen_ways());
        status.notes.extend(log::trouble());
        Ok(status)
    }
}

impl Daemon {
    /// What is to be said of ways to Redis that pass no boosted device; what cannot be looked at is told by other means.
    pub(crate) fn unseen_ways(&self) -> Option<String> {
        let strangers = self.core.listeners();
        let strangers = strangers.filter(|(_, whose, _)| *whose == Whose::Other);
        let strangers: Vec<_> = strangers.map(|(address, ..)| address).collect();
        let notes = &self.boosted.notes;
        let mut listeners = sockets::listeners(notes.port).ok()?;
        listeners.retain(|listener| !strangers.contains(&listener.address));
        let boosted = notes.devices().into_iter().map(|device| device.name);
        let boosted: Vec<String> = boosted.collect();
        ways::told(&ways::unseen_now(&listeners, &boosted).ok()?)
    }
}

fn listens(listener: (std::net::IpAddr, Whose, Option<&str>)) -> ListenReport {
    let (address, whose, why) = listener;
    let whose = match whose {
        Whose::Redis => "redis",
        Whose::Other => "other",
        Whose::Unknown => "unknown",
    };
    ListenReport {
        address: address.to_string(),
        whose: whose.to_owned(),
        why: why.map(str::to_owned),
    }
}

/// The part of the report that needs no daemon.
fn base_status(
    run_dir: &RunDir,
    notes: &Notes,
    datapath: &erb_datapath::Datapath,
    sweep: &erb_datapath::SweepReport,
) -> Result<Status> {
    let stats = datapath.stats()?;
    let control = datapath.control();
    let cache = report::cache(datapath, &stats);
    let memory = report::memory(&cache, control.conns_max());
    let traced = run_dir.is_traced();
    let links = erb_datapath::Links::new(&run_dir.pins());
    let present = links.boosted_devices();
    // A lease that was taken away has no time at which it ended.
    let left_ns = match control.lease_until_ns() {
        0 => 0,
        until => i128::from(until) - i128::from(monotonic_ns()),
    };
    Ok(Status {
        daemon: "dead".to_owned(),
        pid: 0,
        run_dir: run_dir.path().display().to_string(),
        devices: notes
            .attached
            .iter()
            .zip(&notes.vlan)
            .map(|(attached, vlan)| {
                let gone = !present.contains(&attached.device.ifindex);
                report::device(attached, *vlan, gone)
            })
            .collect(),
        egress_devices: links.egress_devices(),
        mode: notes.mode().to_owned(),
        programs: ProgramsReport {
            build: notes.build.clone(),
            layout: notes.layout.clone(),
            whole: links.run_pinned() || traced,
            traced,
        },
        serving: false,
        not_serving: vec![DEAD.to_owned()],
        notes: Vec::new(),
        gate_open: control.gate_seen() == control.gate_ack(),
        admitting: control.admit() == 1 && control.stopping() == 0,
        lease_left_ms: i64::try_from(left_ns / 1_000_000).unwrap_or(i64::MIN),
        fence: control.fence(),
        redis: RedisReport {
            address: notes.redis.clone(),
            port: notes.port,
            ..RedisReport::default()
        },
        connections: report::connections(sweep),
        held: report::held(sweep),
        waiting: WaitingReport::default(),
        writes: WritesReport::default(),
        hit_ratio: report::hit_ratio(&cache),
        commands: report::commands_answered(&stats),
        metrics_at: None,
        dashboard_at: None,
        latency: report::latency(&datapath.latency()?),
        processors: report::processors(|stat| datapath.stat_by_cpu(stat))?,
        aside: AsideReport {
            unread: report::unread(control.stopping()),
            ..AsideReport::default()
        },
        cache,
        memory,
        counters: report::counters(&stats),
    })
}

/// The report when no daemon answers but programs are still at work.
///
/// # Errors
/// [`Error::NotBoosted`] if there are none, [`Error::UnderWay`] if a boost begins or is taken back, [`Error::LeftBehind`] if
/// one was interrupted, [`Error::CutOff`] if a daemon is there that cannot be spoken to.
pub fn status_without_daemon(run_dir: &RunDir) -> Result<Status> {
    let (notes, datapath) = left_datapath(run_dir)?;
    // A sweep would count absences; only the daemon may.
    let nothing = erb_datapath::SweepReport::default();
    let status = base_status(run_dir, &notes, &datapath, &nothing)?;
    Ok(Status {
        connections: report::connections_left(&datapath.conn_views()),
        ..status
    })
}

/// What a dead daemon has left at work. Errors as of [`status_without_daemon`].
pub(crate) fn left_datapath(run_dir: &RunDir) -> Result<(Notes, erb_datapath::Datapath)> {
    run_dir.check_not_cut_off()?;
    let notes = run_dir.notes();
    if matches!(notes, Err(Error::NotBoosted(_))) || !run_dir.has_pins() {
        let path = run_dir.path().to_path_buf();
        return Err(match notes {
            Err(error @ Error::Privilege(_)) => error,
            // Whoever holds the lock is beginning.
            _ if run_dir.is_erbs() && !run_dir.is_locked() => Error::LeftBehind(path),
            _ => Error::NotBoosted(path),
        });
    }
    let notes = notes?;
    let first = notes
        .attached
        .first()
        .map_or(0, |attached| attached.device.ifindex);
    let datapath = erb_datapath::Datapath::open(&run_dir.pins(), first)?;
    Ok((notes, datapath))
}
