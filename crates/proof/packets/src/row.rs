// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows: a connection, a packet in, what must come out, and the counters that must have moved.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use erb_abi::REASONS;
use erb_steady::Cause;

use crate::fixture;
use crate::frame::{ACK, Checksum, PSH, Segment};
use crate::run::Outcome;
use crate::scene::{
    META_TO_TC, META_TRANSLATED, Scene, Shape, TCX_DROP, TCX_NEXT, XDP_DROP, XDP_PASS, XDP_TX,
};

/// The program that gets the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `erb_xdp`.
    Xdp,
    /// `erb_tc_ingress`, without metadata from XDP.
    Ingress,
    /// `erb_tc_ingress` on a packet merged from two.
    IngressMerged,
    /// `erb_tc_egress`.
    Egress,
}

/// What must come out.
#[derive(Clone, Debug)]
pub enum Expect {
    /// Sent back: this payload, right behind what the client has, acknowledging the whole packet.
    Answer(Vec<u8>),
    /// Sent back: sequence and acknowledgement number relative to the client's `rcv` and `snd`.
    Sent {
        /// Relative to the client's next expected number.
        seq: i32,
        /// Relative to the client's next own number before the packet.
        ack: i32,
        /// Payload.
        payload: Vec<u8>,
    },
    /// Passed on, marked as translated, but with nothing to change.
    Same,
    /// Passed on, marked as translated, changed like this.
    Changed(fn(&Scene, &mut Segment)),
    /// Left to the TC tier, unchanged.
    ToTc,
    /// None of the program's business: passed on unmarked and unchanged.
    Ignored,
    /// Dropped.
    Drop,
}

/// What happens before the packet.
pub type Before = fn(&mut Scene);
/// Makes the packet.
pub type Packet = fn(&mut Scene) -> Segment;

/// One row of a table.
pub struct Row {
    /// What is shown.
    pub name: &'static str,
    /// Kind of connection.
    pub shape: Shape,
    /// What happened before.
    pub before: Box<dyn Fn(&mut Scene) + Send>,
    /// The packet; the client's next number is moved by the row itself if it wants.
    pub packet: Box<dyn Fn(&mut Scene) -> Segment + Send>,
    /// Who gets it.
    pub program: Program,
    /// What must come out.
    pub expect: Expect,
    /// All counters that move, and by how much (egress counters are left out for ingress rows: the
    /// kernel may speak by itself at any time).
    pub moved: &'static [(&'static str, u64)],
}

impl Row {
    /// A row for `erb_xdp`.
    #[must_use]
    pub fn xdp(
        name: &'static str,
        shape: Shape,
        before: impl Fn(&mut Scene) + Send + 'static,
        packet: impl Fn(&mut Scene) -> Segment + Send + 'static,
        expect: Expect,
        moved: &'static [(&'static str, u64)],
    ) -> Self {
        Self {
            name,
            shape,
            before: Box::new(before),
            packet: Box::new(packet),
            program: Program::Xdp,
            expect,
            moved,
        }
    }

    /// The same row for another program.
    #[must_use]
    pub fn on(mut self, program: Program) -> Self {
        self.program = program;
        self
    }
}

/// Runs every row and reports all that fail.
///
/// # Panics
/// If a row fails.
pub fn check(rows: Vec<Row>) {
    let failures = fixture::with(move |bench| {
        let mut failures = Vec::new();
        for row in &rows {
            let ran = catch_unwind(AssertUnwindSafe(|| {
                let mut scene = Scene::connect(bench, row.shape);
                (row.before)(&mut scene);
                run_row(&mut scene, row)
            }));
            let failed = match ran {
                Ok(Ok(())) => continue,
                Ok(Err(why)) => why,
                Err(panic) => panic_text(&*panic),
            };
            // One that may be repeated says so where its message begins.
            assert!(
                Cause::of(&failed).is_none(),
                "{failed}, in row {:?}",
                row.name
            );
            failures.push(format!("row {:?} ({:?}): {failed}", row.name, row.shape));
        }
        failures
    });
    assert!(failures.is_empty(), "\n{}\n", failures.join("\n"));
}

/// The text of a panic.
#[must_use]
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "panic without text".to_owned())
}

/// Counters that moved between two readings.
#[must_use]
pub fn moved(before: &[u64], after: &[u64]) -> BTreeMap<&'static str, u64> {
    REASONS
        .iter()
        .zip(before.iter().zip(after))
        .filter(|(_, (before, after))| before != after)
        .map(|(reason, (before, after))| (reason.name, after.wrapping_sub(*before)))
        .collect()
}

fn run_row(scene: &mut Scene, row: &Row) -> Result<(), String> {
    let sent = (row.packet)(scene);
    let frame = sent.bytes();
    let before = scene.bench.stats();
    let outcome = match row.program {
        Program::Xdp => scene.xdp(&frame),
        Program::Ingress => scene.ingress(&frame, 0),
        Program::IngressMerged => scene.ingress(&frame, 2),
        Program::Egress => scene.egress(&frame),
    };
    let mut counted = moved(&before, &scene.bench.stats());
    if row.program != Program::Egress {
        counted.retain(|name, _| !name.starts_with("EGRESS_") || *name == "EGRESS_CLONE");
    }
    check_outcome(scene, row, &sent, &outcome)
        .map_err(|why| format!("{why}\n    counters {counted:?}"))?;
    let expected: BTreeMap<_, _> = row.moved.iter().copied().collect();
    if counted != expected {
        return Err(format!("counters {counted:?}, expected {expected:?}"));
    }
    Ok(())
}

fn check_outcome(scene: &Scene, row: &Row, sent: &Segment, got: &Outcome) -> Result<(), String> {
    let (pass, drop) = match row.program {
        Program::Xdp => (XDP_PASS, XDP_DROP),
        _ => (TCX_NEXT, TCX_DROP),
    };
    let marks = row.program == Program::Xdp;
    let (verdict, mark) = match row.expect {
        Expect::Answer(_) | Expect::Sent { .. } => (XDP_TX, None),
        Expect::Same | Expect::Changed(_) => (pass, marks.then_some(META_TRANSLATED)),
        Expect::ToTc => (pass, Some(META_TO_TC)),
        Expect::Ignored => (pass, None),
        Expect::Drop => (drop, None),
    };
    if got.verdict != verdict {
        return Err(format!(
            "verdict {}, expected {verdict}; out {:?}",
            got.verdict as i32,
            Segment::parse(&got.frame)
        ));
    }
    let marked = got.meta.filter(|_| verdict == pass);
    if marked != mark && !(row.program == Program::Xdp && matches!(row.expect, Expect::Ignored)) {
        return Err(format!("mark {marked:x?}, expected {mark:x?}"));
    }
    match &row.expect {
        Expect::Answer(payload) => check_sent(
            scene,
            sent,
            &got.frame,
            0,
            sent.payload.len() as i32,
            payload,
        ),
        Expect::Sent { seq, ack, payload } => {
            check_sent(scene, sent, &got.frame, *seq, *ack, payload)
        }
        Expect::Same | Expect::ToTc | Expect::Ignored => same(&sent.bytes(), &got.frame),
        Expect::Changed(change) => {
            let mut expected = sent.clone();
            change(scene, &mut expected);
            same_segment(&expected, &got.frame)
        }
        Expect::Drop => Ok(()),
    }
}

fn same(expected: &[u8], got: &[u8]) -> Result<(), String> {
    if expected == got {
        return Ok(());
    }
    Err(format!(
        "frame changed:\n    {expected:02x?}\n    {got:02x?}"
    ))
}

fn same_segment(expected: &Segment, frame: &[u8]) -> Result<(), String> {
    let got = Segment::parse(frame).map_err(|why| format!("damaged frame: {why:#}"))?;
    let mut expected = expected.clone();
    let least = expected.pad_to.max({
        expected.pad_to = 0;
        expected.bytes().len()
    });
    if frame.len() != least {
        return Err(format!("frame of {} bytes, expected {least}", frame.len()));
    }
    if got != expected {
        return Err(format!("segment\n    {got:?}, expected\n    {expected:?}"));
    }
    Ok(())
}

/// A segment of the fast path's own.
fn check_sent(
    scene: &Scene,
    sent: &Segment,
    frame: &[u8],
    seq: i32,
    ack: i32,
    payload: &[u8],
) -> Result<(), String> {
    let got = Segment::parse(frame).map_err(|why| format!("damaged frame: {why:#}"))?;
    let push = if payload.is_empty() { 0 } else { PSH };
    let mut expected = Segment {
        up: false,
        flags: ACK | push,
        seq: scene.rcv.wrapping_add_signed(seq),
        ack: scene.snd.wrapping_add_signed(ack),
        window: got.window,
        payload: payload.to_vec(),
        checksum: Checksum::Full,
        vlan: sent.vlan.clone(),
        ts: None,
        ..Segment::new(scene.shape.family, scene.port)
    };
    if let (Some((value, _)), Some((clock, _))) = (got.ts, sent.ts) {
        // Not older than the last one sent, and not from the future.
        if value.wrapping_sub(scene.echo) > 10_000 {
            return Err(format!("TSval {value}, the last was {}", scene.echo));
        }
        // TS.Recent (RFC 7323 4.3): a packet that is not the next one need not move it, one that
        // is older than it must not.
        let newest = got.ts.map_or(0, |ts| ts.1);
        let exact = ack == sent.payload.len() as i32 && ack > 0;
        let older = newest.wrapping_sub(clock) < 1 << 31;
        let fitting = !exact && (older || clock.wrapping_sub(newest) < 10);
        expected.ts = Some((value, if fitting { newest } else { clock }));
    }
    if got != expected {
        return Err(format!("sent\n    {got:?}, expected\n    {expected:?}"));
    }
    if got.window == 0 {
        return Err("window 0".to_owned());
    }
    if frame.len() != expected.bytes().len() {
        return Err(format!(
            "frame of {} bytes, longer than the segment",
            frame.len()
        ));
    }
    Ok(())
}
