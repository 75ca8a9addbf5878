// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is decided about connections, in this order: the sweep says who holds something, who could
//! be admitted and who is gone; CLIENT LIST is asked; what it shows proves, admits, and tells whose
//! the listeners are.

use erb_abi::SweepReport;

use crate::admit::Admissions;
use crate::client_list::ClientLine;
use crate::expect::Question;
use crate::link::Link;
use crate::listeners::Listeners;
use crate::outside::{DataPath, Machine, Result, TcpPair};
use crate::proof::Proofs;
use crate::sweep::{Held, Part, Round, Sweeps};
use crate::unseen::{Unseen, UnseenConnections};
use crate::walk::Pieces;
use crate::watch::Watch;

/// With what it works.
pub(crate) struct Place<'a, P, M: Machine> {
    pub(crate) path: &'a P,
    pub(crate) machine: &'a mut M,
    pub(crate) link: &'a mut Link<M>,
    pub(crate) watch: &'a Watch,
    /// No detach is under way.
    pub(crate) is_running: bool,
}

/// The parts that know of connections.
pub(crate) struct Connections<M: Machine> {
    sweeps: Sweeps,
    proofs: Proofs,
    admissions: Admissions,
    listeners: Listeners<M::Stream>,
    unseen: Unseen,
}

impl<M: Machine> Connections<M> {
    /// Nothing is known of any.
    pub(crate) fn new(pieces: Pieces, port: u16, now: u64) -> Self {
        Self {
            sweeps: Sweeps::new(pieces),
            proofs: Proofs::default(),
            admissions: Admissions::new(now),
            listeners: Listeners::new(port),
            unseen: Unseen::default(),
        }
    }

    /// The last sweep.
    pub(crate) const fn report(&self) -> &SweepReport {
        self.sweeps.report()
    }

    /// Who listens.
    pub(crate) const fn listeners(&self) -> &Listeners<M::Stream> {
        &self.listeners
    }

    /// Connections for which the table had no room, as last counted.
    pub(crate) const fn unseen(&self) -> UnseenConnections {
        self.unseen.found()
    }

    /// Of a connection that stays out for its user's sake: the user and the rule.
    pub(crate) fn limit_of(&self, pair: &TcpPair) -> Option<String> {
        self.admissions.limit_of(pair)
    }

    /// Counts them for somebody who asks.
    pub(crate) fn count(&mut self, path: &impl DataPath) -> Result<()> {
        self.sweeps.count(path)
    }

    /// Whether nothing of them needs the next tick soon.
    pub(crate) fn is_idle(&self, path: &impl DataPath) -> bool {
        self.admissions.is_begun() && !self.sweeps.is_under_way() && !self.is_urgent(path)
    }

    /// A closed fence may wait for proof: everybody's hits wait with it.
    fn is_urgent(&self, path: &impl DataPath) -> bool {
        path.fence() != 0 || self.proofs.is_pending()
    }

    /// At each tick: who listens, if that is not known yet, and whether new connections can be told
    /// from older ones.
    pub(crate) fn look_for_new<P: DataPath>(
        &mut self,
        at: Place<'_, P, M>,
        now: u64,
    ) -> Result<()> {
        let may_probe = at.link.is_up();
        if self.listeners.wants_read(may_probe) {
            self.listeners.read(at.path, at.machine, now, may_probe)?;
        }
        if self.admissions.may_begin(now) && self.listeners.is_settled(now) {
            // The dump gives every older socket the cookie by which XDP knows it.
            at.machine.passing_connections()?;
            self.admissions.begin(at.path);
        }
        Ok(())
    }

    /// New connections are not taken in before [`Self::look_for_new`] is asked again.
    pub(crate) fn take_nobody_in(&mut self, now: u64) {
        self.admissions.begin_again(now);
    }

    /// Once a second: who listens, and who is not seen.
    pub(crate) fn look_around<P: DataPath>(&mut self, at: Place<'_, P, M>, now: u64) -> Result<()> {
        let may_probe = at.is_running && at.link.is_up();
        self.listeners.read(at.path, at.machine, now, may_probe)?;
        self.unseen.count(at.path, at.machine, now)
    }

    /// Whether the sweep has rested.
    pub(crate) const fn may_sweep(&self, now: u64) -> bool {
        self.sweeps.may(now)
    }

    /// Whether it should not wait for the next second.
    pub(crate) fn wants_sweep<P: DataPath>(&self, at: &Place<'_, P, M>) -> bool {
        self.sweeps.is_under_way()
            || !at.is_running
            || self.is_urgent(at.path)
            || at.link.is_up() && self.listeners.is_urgent()
    }

    /// Reads the counts of connections that are answered no more; true if they have moved.
    pub(crate) fn look_who_left(&mut self, path: &impl DataPath) -> Result<bool> {
        self.admissions.look(path)
    }

    /// Whether a sweep should look for connections to be admitted.
    pub(crate) const fn want_admission(&self, now: u64) -> bool {
        self.admissions.want_sweep(now)
    }

    /// Sweeps a turn's part of the table; when the round began, if it is over.
    pub(crate) fn sweep<P: DataPath>(&mut self, at: Place<'_, P, M>) -> Result<Option<u64>> {
        let now = at.machine.monotonic_ns();
        let skip = self.admissions.skip();
        match self.sweeps.go_on(at.path, at.machine, skip)? {
            Part::Over(round) => Ok(Some(self.end_round(at, round))),
            Part::Held(held) => {
                self.prove(at, held, now);
                Ok(None)
            }
        }
    }

    /// The next sweep begins with the table's first place.
    pub(crate) fn begin_anew(&mut self) {
        self.sweeps.begin_anew();
    }

    /// Between two parts of a large table's round: everybody's hits wait for what some hold.
    pub(crate) fn hurry<P: DataPath>(&mut self, at: Place<'_, P, M>, now: u64) -> Result<()> {
        let is_urgent = !at.is_running || self.is_urgent(at.path);
        if self.sweeps.may_look_at_held(now) && is_urgent {
            let held = self.sweeps.look_at_held(at.path, at.machine)?;
            self.prove(at, held, now);
        }
        Ok(())
    }

    fn prove<P: DataPath>(&mut self, at: Place<'_, P, M>, held: Held, now: u64) {
        let Held { rows: proof, more } = held;
        self.proofs.add_pending(more);
        if self.proofs.want_list(&proof, at.path, now) {
            self.proofs.add_pending(true);
            let question = Question {
                proof,
                admit: Vec::new(),
                rights: at.path.rights(),
            };
            let now = at.machine.monotonic_ns();
            self.proofs.ask(question, at.link.ready(), now);
        }
    }

    fn end_round<P: DataPath>(&mut self, at: Place<'_, P, M>, mut round: Round) -> u64 {
        let now = at.machine.monotonic_ns();
        let Held { rows: proof, more } = self.sweeps.end(&mut round);
        let wants_list = self.proofs.want_list(&proof, at.path, now);
        // What did not fit is next, without waiting for the second.
        self.proofs.set_pending(wants_list || more);
        let mut question = Question {
            proof,
            admit: Vec::new(),
            rights: round.rights(),
        };
        if self.admissions.plan(self.sweeps.report(), now) {
            question.admit = self.sweeps.take_candidates();
        }
        if self.listeners.wants_list() || wants_list || !question.admit.is_empty() {
            if self.proofs.ask(question, at.link.ready(), now) {
                self.listeners.list_is_asked();
            } else {
                self.admissions.hurry();
            }
        }
        round.began_ns()
    }

    /// CLIENT LIST came back.
    pub(crate) fn take_list<P: DataPath>(
        &mut self,
        at: Place<'_, P, M>,
        list: &[ClientLine],
        question: &Question,
    ) -> Result<()> {
        let now = at.machine.monotonic_ns();
        self.proofs
            .take(list, &question.proof, at.path, at.watch, now)?;
        // Behind the proofs: who holds something is not admitted.
        let known = (question.rights, at.watch.parses_ahead());
        self.admissions
            .admit(at.path, list, &question.admit, known)?;
        self.listeners.judge(at.path, at.machine, list)
    }

    /// Whether nobody waits in a command that may make any key.
    pub(crate) const fn let_absences_be_answered(&self) -> bool {
        self.proofs.let_absences_be_answered()
    }

    /// ACL LIST was read.
    pub(crate) fn take_rights(&mut self, path: &impl DataPath, acl: &[String]) {
        self.admissions.take_rights(path, acl);
    }

    /// There is a new feed, perhaps to another Redis.
    pub(crate) fn doubt(&mut self) {
        self.listeners.doubt();
    }

    /// The feed is gone, and what was under way with it.
    pub(crate) fn forget(&mut self, path: &impl DataPath) {
        self.admissions.forget_rights(path);
        self.listeners.drop_probes();
        self.proofs.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doubles::{Recorder, Stand};
    use erb_abi::{PLACES_USED, admit_row};

    #[test]
    fn an_admission_that_is_left_out_has_its_turn() {
        let (path, mut machine, mut link) =
            (Recorder::default(), Stand::default(), Link::default());
        let pieces = Pieces {
            places: 2,
            per_turn: 10,
        };
        let watch = Watch::default();
        let mut connections = Connections::new(pieces, 6379, 0);
        path.places.borrow_mut()[PLACES_USED as usize] = (1..=19).collect();
        path.sweep.borrow_mut().admit = vec![admit_row::default(); 120];
        let mut sweep = || {
            let at = Place {
                path: &path,
                machine: &mut machine,
                link: &mut link,
                watch: &watch,
                is_running: true,
            };
            connections.sweep(at).unwrap();
            let report = connections.report();
            (report.admit_more, connections.admissions.skip())
        };
        assert_eq!(sweep(), (1200 - 1024, 1024));
        assert_eq!(sweep(), (0, 0));
    }
}
