// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client's conversation, packet by packet, through two data paths: one interprets the objects, the
//! other runs the same C compiled for this machine. Verdicts, bytes and maps must be the same, and
//! what comes out must be right.

use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use erb_datapath::Programs;
use erb_sim_kernel::scene::Scene;
use erb_sim_kernel::{DatapathConfig, Library, Packet, Tc, Xdp};
use erb_wire::Segment;

use crate::cases::{self, Act};
use crate::machine::{Machine, Run};
use crate::program::Object;

/// Which programs a client's packets meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// `erb_xdp`, and behind it `erb_tc_ingress`.
    Xdp,
    /// `erb_tc_ingress` alone.
    Tc,
}

/// What executing one packet took.
pub struct Played {
    /// Tier and act, as in `xdp/hit`.
    pub case: String,
    /// Each program that was run for it.
    pub runs: Vec<Run>,
}

/// A machine with the objects that the loader loads.
///
/// # Errors
/// If one cannot be linked.
pub fn machine() -> Result<Machine> {
    let library = Library::builtin();
    let programs = Programs::builtin();
    let network = programs.objects().filter(|(name, _)| *name != "control");
    let objects = network.map(|(name, bytes)| {
        // A stage's program is called by no packet of the table: which map names it does not matter.
        let number = |map: &str| match map {
            "erb_stages" => Some(0),
            map => library.map_number(map, name),
        };
        let object = Object::link(bytes, number);
        object.with_context(|| format!("{name}.bpf.o cannot be linked for the interpreter"))
    });
    Ok(Machine::new(objects.collect::<Result<_>>()?))
}

/// Plays all acts in one tier.
///
/// # Errors
/// What came out wrong, and where.
pub fn play(machine: &Rc<Machine>, tier: Tier) -> Result<Vec<Played>> {
    let name = if tier == Tier::Xdp { "xdp" } else { "tc" };
    let mut worlds = [World::new(), World::new()];
    let interpreter: Rc<Machine> = Rc::clone(machine);
    worlds[0].scene.path.interpret(interpreter);
    let mut played = Vec::new();
    for (act_name, act) in cases::acts() {
        let case = format!("{name}/{act_name}");
        let [interpreted, compiled] = &mut worlds;
        let came = interpreted.act(&act, tier).with_context(|| case.clone())?;
        let right = compiled
            .act(&act, tier)
            .with_context(|| format!("{case}, compiled"))?;
        ensure!(
            came == right,
            "{case}: interpreted {came:x?}, compiled {right:x?}"
        );
        same_maps(&case, interpreted, compiled)?;
        let runs = machine.take_runs();
        if !act_name.is_empty() {
            played.push(Played { case, runs });
        }
    }
    Ok(played)
}

fn same_maps(case: &str, interpreted: &World, compiled: &World) -> Result<()> {
    let [one, other] = [interpreted, compiled].map(|world| world.scene.path.contents());
    ensure!(
        one.len() == other.len(),
        "{case}: {} elements and {}",
        one.len(),
        other.len()
    );
    for ((map, key, value), right) in one.iter().zip(&other) {
        ensure!(
            (map, key) == (&right.0, &right.1),
            "{case}: {map} has {key:x?}"
        );
        let differs = value
            .iter()
            .zip(&right.2)
            .position(|(one, other)| one != other);
        ensure!(
            differs.is_none(),
            "{case}: {map} of {key:x?} differs at byte {differs:?}"
        );
    }
    Ok(())
}

/// What a packet came to: verdicts, and frames with their metadata.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    verdicts: Vec<String>,
    /// Went on: to the stack, or to the client.
    passed: Option<Vec<u8>>,
    meta: Vec<u8>,
    /// Was sent in its place.
    answer: Option<Vec<u8>>,
}

struct World {
    scene: Scene,
    /// Request bytes that Redis has to answer.
    owed: usize,
}

impl World {
    fn new() -> Self {
        // As in the kernel a program finds in scratch what the one before it left: one word of that, whether
        // the last look-up was a miss, says which way the next packet takes.
        let config = DatapathConfig {
            garbage_one_in: 0,
            ..DatapathConfig::default()
        };
        Self {
            scene: Scene::new(config).with_timestamps(),
            owed: 0,
        }
    }

    fn act(&mut self, act: &Act, tier: Tier) -> Result<Outcome> {
        match act {
            Act::Fill(kind, key, value) => {
                let filled = self.scene.fill_kind(*kind, key, value);
                ensure!(filled == erb_abi::FILL_OK, "a fill's status is {filled}");
                Ok(Outcome::default())
            }
            Act::Up(request) => self.goes_up(request, tier),
            Act::Hit(request, answer) => self.is_answered(request, answer, tier),
            Act::Reply(reply) => self.replied(reply),
            Act::Acknowledge(goes_up) => {
                let outcome = self.packet(b"", tier);
                ensure!(outcome.answer.is_none(), "it is answered: {outcome:x?}");
                ensure!(outcome.passed.is_some() == *goes_up, "{outcome:x?}");
                Ok(outcome)
            }
        }
    }

    /// One packet of the client's through the tier's programs.
    fn packet(&mut self, payload: &[u8], tier: Tier) -> Outcome {
        let path = &self.scene.path;
        let mut packet = self.scene.request(payload);
        let mut outcome = Outcome::default();
        let mut passed = true;
        if tier == Tier::Xdp {
            let verdict = path.run_xdp(&mut packet);
            outcome.verdicts.push(format!("{verdict:?}"));
            passed = verdict == Xdp::Pass;
            outcome.answer = (verdict == Xdp::Tx).then(|| packet.bytes().to_vec());
            outcome.meta = packet.meta().to_vec();
        }
        if passed {
            let verdict = path.run_tc_ingress(&mut packet);
            outcome.verdicts.push(format!("{verdict:?}"));
            outcome.passed = (verdict == Tc::Next).then(|| packet.bytes().to_vec());
            let mut sent = self.scene.kernel.sent.borrow_mut();
            outcome.answer = sent
                .drain(..)
                .next()
                .map(|(_, clone): (_, Packet)| clone.bytes().to_vec());
        }
        self.scene.seq = self.scene.seq.wrapping_add(payload.len() as u32);
        if outcome.passed.is_some() {
            self.scene.settle(); // by the packet's own acknowledgement
        }
        outcome
    }

    /// The kernel's TCP gets just what it awaits.
    fn goes_up(&mut self, request: &[u8], tier: Tier) -> Result<Outcome> {
        let mut awaited = 0;
        self.scene.sock(|sock| awaited = sock.rcv_nxt);
        let outcome = self.packet(request, tier);
        ensure!(outcome.answer.is_none(), "it is answered: {outcome:x?}");
        let frame = outcome.passed.as_deref().context("it does not go up")?;
        let segment = Segment::parse(frame)?;
        ensure!(
            segment.payload == request,
            "the payload is {:x?}",
            segment.payload
        );
        ensure!(
            segment.seq == awaited,
            "at {} where {awaited} is next",
            segment.seq
        );
        self.owed = request.len();
        Ok(outcome)
    }

    /// The client's TCP gets just what it awaits.
    fn is_awaited(&self, frame: &[u8], payload: &[u8]) -> Result<()> {
        let segment = Segment::parse(frame)?;
        let text = segment.payload.escape_ascii();
        ensure!(segment.payload == payload, "the payload is {text}");
        let numbers = (segment.seq, segment.ack);
        let awaited = (self.scene.ack, self.scene.seq);
        ensure!(
            numbers == awaited,
            "at {numbers:?} where {awaited:?} is next"
        );
        Ok(())
    }

    fn is_answered(&mut self, request: &[u8], answer: &[u8], tier: Tier) -> Result<Outcome> {
        let outcome = self.packet(request, tier);
        let frame = outcome.answer.as_deref();
        let frame = frame.with_context(|| format!("no answer: {:?}", self.reasons()))?;
        self.is_awaited(frame, answer)?;
        if let Some(frame) = &outcome.passed {
            ensure!(
                Segment::parse(frame)?.payload.is_empty(),
                "its payload goes up, too"
            );
        }
        self.scene.ack = self.scene.ack.wrapping_add(answer.len() as u32);
        Ok(outcome)
    }

    fn replied(&mut self, reply: &[u8]) -> Result<Outcome> {
        let before = self.scene.ack;
        let (verdict, packet) = self.scene.served(self.owed, reply);
        ensure!(verdict == Tc::Next, "the reply is dropped");
        let after = std::mem::replace(&mut self.scene.ack, before);
        self.is_awaited(packet.bytes(), reply)?;
        self.scene.ack = after;
        Ok(Outcome {
            passed: Some(packet.bytes().to_vec()),
            ..Outcome::default()
        })
    }

    fn reasons(&self) -> Vec<(&'static str, u64)> {
        let names = erb_abi::REASONS.iter().map(|reason| reason.name);
        let counts = names.zip(self.scene.path.stats());
        counts.filter(|(_, count)| *count > 0).collect()
    }
}
