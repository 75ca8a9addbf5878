// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The streaming scanners against traffic whose meaning is known, cut anywhere.

use erb_abi as abi;
use erb_packets::fixture::{self, Bench};
use erb_packets::frame::PSH;
use erb_packets::reference::{Effect, Reply, Request, cut};
use erb_packets::scene::{META_TO_TC, Scene, TCX_NEXT, V4, V6, XDP_PASS};
use fastrand::Rng;
use libbpf_rs::{MapCore as _, MapFlags};

use crate::seed;

/// Streams per test: seconds, not minutes; the seed moves from run to run.
const STREAMS: u32 = 60;
const PAYLOAD_BYTES_MAX: usize = 1400;

/// Every share and mark is given back.
fn assert_open(bench: &Bench, what: &str) {
    bench.settle();
    assert_eq!(bench.dp.control().fence(), 0, "fence after {what}");
    let at = std::mem::offset_of!(abi::cache_set, marks);
    for index in 0..=bench.dp.control().set_mask() as u32 {
        let set = bench
            .sets
            .lookup(&index.to_ne_bytes(), MapFlags::ANY)
            .unwrap()
            .unwrap();
        assert_eq!(set[at..at + 4], [0; 4], "marks of set {index} after {what}");
    }
}

fn invariants(bench: &Bench) -> u64 {
    bench.stats()[abi::STAT_INVARIANT as usize]
}

/// Replies in random pieces; after each piece exactly the complete replies are counted.
#[test]
fn replies() {
    let seed = seed();
    fixture::with(move |bench| {
        let mut rng = Rng::with_seed(seed);
        for stream in 0..STREAMS {
            let mut scene = Scene::connect(bench, if rng.bool() { V4 } else { V6 });
            scene.make_fast();
            // As if the client had asked for them all.
            scene.edit(|entry| entry.requests = 1_000_000);
            let replies: Vec<Reply> = (0..20).map(|_| Reply::random(&mut rng, 4)).collect();
            let bytes: Vec<u8> = replies
                .iter()
                .flat_map(|reply| reply.bytes.clone())
                .collect();
            let mut ends = Vec::new();
            let mut end = 0;
            for reply in &replies {
                end += reply.bytes.len();
                ends.push((end, reply.is_push));
            }
            let mut done = 0;
            for piece in cut(&mut rng, &bytes, PAYLOAD_BYTES_MAX) {
                let at = scene.rcv.wrapping_add(done as u32);
                let segment = scene.reply_segment(at, &piece);
                assert_eq!(scene.egress(&segment.bytes()).verdict, TCX_NEXT);
                done += piece.len();
                let counted = scene.entry().unwrap().replies - 1;
                let complete = ends
                    .iter()
                    .filter(|(end, push)| *end <= done && !push)
                    .count();
                assert_eq!(
                    counted as usize, complete,
                    "stream {stream} at byte {done} of {bytes:02x?}, seed {seed}"
                );
            }
            let entry = scene.entry().unwrap();
            assert_eq!(u32::from(entry.flags) & abi::CONN_F_UNCOUNTABLE, 0);
        }
    });
}

/// A command stream on its way up, with what is known about it.
struct Upstream {
    requests: Vec<(usize, Request)>,
    bytes: Vec<u8>,
}

impl Upstream {
    fn random(rng: &mut Rng) -> Self {
        let mut bytes = Vec::new();
        let requests = (0..rng.usize(1..60))
            .map(|_| {
                let request = Request::random(rng);
                bytes.extend(&request.bytes);
                (bytes.len(), request)
            })
            .collect();
        Self { requests, bytes }
    }

    /// Requests whose last byte is below `end`.
    fn complete(&self, end: usize) -> impl Iterator<Item = &Request> {
        self.requests
            .iter()
            .filter(move |(at, request)| *at <= end && request.counts)
            .map(|(_, request)| request)
    }

    /// As [`Self::complete`], with the one that `end` cuts.
    fn begun(&self, end: usize) -> usize {
        let mut start = 0;
        self.requests
            .iter()
            .filter(|(at, request)| {
                let begun = start < end;
                start = *at;
                begun && request.counts
            })
            .count()
    }
}

/// The sets and fences that the given requests must have marked, in order.
fn marks(bench: &Bench, requests: &[&Request]) -> Vec<(u32, u32)> {
    let mut marks = Vec::new();
    let (mut multi, mut hidden) = (false, false);
    for (number, request) in requests.iter().enumerate() {
        let number = number as u32 + 1;
        // EXEC runs what was queued.
        let effect = match &request.effect {
            Effect::Settle if request.exec && hidden => &Effect::Fence,
            effect => effect,
        };
        hidden |= multi && matches!(effect, Effect::Fence);
        multi |= request.multi;
        match effect {
            Effect::None => {}
            Effect::Fence => marks.push((number, abi::EFFECT_FENCE)),
            Effect::Settle if request.exec => marks.push((number, abi::EFFECT_EXEC)),
            Effect::Settle => marks.push((number, abi::EFFECT_SETTLE)),
            Effect::Marks(keys) => {
                marks.extend(keys.iter().map(|key| (number, set_of(bench, key))));
            }
        }
    }
    marks
}

fn set_of(bench: &Bench, key: &[u8]) -> u32 {
    let control = bench.dp.control();
    (control.hash_secret().hash(key) & control.set_mask()) as u32
}

/// Sends one piece, now and then with a repetition or a later piece in front of it.
fn send_piece(scene: &mut Scene, rng: &mut Rng, at: usize, bytes: &[u8], piece: &[u8]) {
    let first = scene.snd;
    let mut send = |from: usize, payload: &[u8], verdict: u32| {
        let mut segment = scene.segment(payload);
        segment.seq = first.wrapping_add(from as u32);
        segment.flags |= PSH;
        let outcome = scene.xdp(&segment.bytes());
        (outcome.verdict == verdict, outcome.verdict)
    };
    if at > 0 && rng.u8(..6) == 0 {
        // A retransmission that brings old bytes again, and this piece behind them.
        let from = at - rng.usize(1..=at.min(700));
        let (fits, verdict) = send(from, &bytes[from..at], XDP_PASS);
        assert!(fits, "old bytes: verdict {verdict}");
        if at - from + piece.len() <= PAYLOAD_BYTES_MAX {
            let (fits, verdict) = send(from, &bytes[from..at + piece.len()], XDP_PASS);
            assert!(fits, "old and new bytes: verdict {verdict}");
            return;
        }
    }
    let (fits, verdict) = send(at, piece, XDP_PASS);
    assert!(fits, "verdict {verdict}");
}

/// After each piece: what is complete is counted and marked, what has not begun is not.
fn check_up(scene: &Scene, up: &Upstream, end: usize, context: &str) {
    let entry = scene.entry().unwrap();
    let counted = (entry.requests - 1) as usize;
    let complete: Vec<&Request> = up.complete(end).collect();
    assert!(
        complete.len() <= counted && counted <= up.begun(end),
        "{counted} requests counted, {} complete, {} begun; {context}",
        complete.len(),
        up.begun(end)
    );
    if u32::from(entry.flags) & (abi::CONN_F_OVERFLOW | abi::CONN_F_UNCOUNTABLE) != 0 {
        return; // a share of the fence holds what the ring has no room for
    }
    let held: Vec<(u32, u32)> = (entry.h.mark_tail..entry.h.mark_head)
        .map(|at| entry.h.marks[(at % abi::MARKS_IN_FLIGHT) as usize])
        .map(|mark| (mark.request - 1, mark.set))
        .collect();
    let all: Vec<&Request> = up
        .requests
        .iter()
        .map(|(_, r)| r)
        .filter(|r| r.counts)
        .collect();
    let unanswered = |marks: Vec<(u32, u32)>| -> Vec<(u32, u32)> {
        let replies = entry.replies - 1;
        marks
            .into_iter()
            .filter(|(number, _)| *number > replies)
            .collect()
    };
    let least = unanswered(marks(scene.bench, &complete));
    let most = unanswered(marks(scene.bench, &all[..up.begun(end)]));
    assert!(
        held.starts_with(&least) && most.starts_with(&held),
        "marks {held:?}, at least {least:?}, at most {most:?}; {context}"
    );
}

fn answer_some(scene: &mut Scene, rng: &mut Rng, replied: &mut usize, complete: usize, all: bool) {
    let due = complete - *replied;
    let count = if all { due } else { rng.usize(..=due) };
    for chunk in b"+OK\r\n".repeat(count).chunks(500) {
        let at = scene.rcv.wrapping_add(5 * *replied as u32);
        let segment = scene.reply_segment(at, chunk);
        assert_eq!(scene.egress(&segment.bytes()).verdict, TCX_NEXT);
        *replied += chunk.len() / 5;
    }
}

fn run_upstream(scene: &mut Scene, rng: &mut Rng, context: &str) {
    scene.make_fast();
    // Refused at the commit: the handler for whole commands runs too, nothing is consumed.
    scene.edit(|entry| entry.mss_limit = 1);
    let gates = scene.bench.dp.control().gate_seen();
    let up = Upstream::random(rng);
    let longest = [20, 200, PAYLOAD_BYTES_MAX][rng.usize(..3)];
    let (mut at, mut replied) = (0, 0);
    for piece in cut(rng, &up.bytes, longest) {
        if rng.u8(..10) == 0 {
            let mut early = scene.segment(&piece);
            early.seq = scene.snd.wrapping_add((up.bytes.len() + 10_000) as u32);
            let outcome = scene.xdp(&early.bytes());
            assert_eq!(
                (outcome.verdict, outcome.meta),
                (XDP_PASS, Some(META_TO_TC))
            );
        }
        send_piece(scene, rng, at, &up.bytes, &piece);
        at += piece.len();
        let context = format!(
            "{context}, byte {at} of {:?}",
            up.bytes.escape_ascii().to_string()
        );
        check_up(scene, &up, at, &context);
        answer_some(scene, rng, &mut replied, up.complete(at).count(), false);
        check_up(scene, &up, at, &context);
    }
    answer_some(scene, rng, &mut replied, up.complete(at).count(), true);
    let entry = scene.entry().unwrap();
    assert_eq!(entry.requests, entry.replies, "{context}");
    assert_eq!(
        entry.requests as usize - 1,
        up.complete(at).count(),
        "{context}"
    );
    assert_eq!(entry.h.in_.state, 0, "idle between commands; {context}");
    let flags = abi::CONN_F_SCAN_LOST | abi::CONN_F_UNCOUNTABLE | abi::CONN_F_OVERFLOW;
    assert_eq!(u32::from(entry.flags) & flags, 0, "{context}");
    let stateful = up.requests.iter().any(|(_, request)| request.stateful);
    let expected = if stateful {
        abi::CONN_BYPASS
    } else {
        abi::CONN_FAST
    };
    assert_eq!(u32::from(entry.state), expected, "{context}");
    let gate = up
        .requests
        .iter()
        .filter(|(_, request)| request.gate)
        .count() as u64;
    let execs = up
        .requests
        .iter()
        .filter(|(_, request)| request.exec)
        .count() as u64;
    // Several in one packet shut it once.
    let seen = scene.bench.dp.control().gate_seen() - gates;
    assert!(
        seen <= gate + execs && (seen > 0) == (gate > 0),
        "{seen} of {gate} gates; {context}"
    );
}

/// Streams on connections of their own; afterwards the fence is open and nothing is broken.
fn streams(run: fn(&mut Scene, &mut Rng, &str)) {
    let seed = seed();
    fixture::with(move |bench| {
        let mut rng = Rng::with_seed(seed);
        let before = invariants(bench);
        for stream in 0..STREAMS {
            let context = format!("stream {stream}, seed {seed}");
            let mut scene = Scene::connect(bench, if rng.bool() { V4 } else { V6 });
            run(&mut scene, &mut rng, &context);
            assert_open(scene.bench, &context);
        }
        assert_eq!(invariants(bench), before, "seed {seed}");
    });
}

#[test]
fn requests() {
    streams(run_upstream);
}

/// The same stream in pieces that overtake each other: TC scans it in order.
#[test]
fn requests_in_any_order() {
    streams(run_shuffled);
}

fn run_shuffled(scene: &mut Scene, rng: &mut Rng, context: &str) {
    scene.make_fast();
    scene.edit(|entry| entry.mss_limit = 1); // nothing is consumed
    let up = Upstream::random(rng);
    let longest = [20, 200, PAYLOAD_BYTES_MAX][rng.usize(..3)];
    let first = scene.snd;
    let (mut at, mut replied) = (0, 0);
    for group in cut(rng, &up.bytes, longest).chunks(5) {
        let mut places = Vec::new();
        for piece in group {
            places.push((at, piece));
            at += piece.len();
        }
        rng.shuffle(&mut places);
        for (from, piece) in places {
            let mut segment = scene.segment(piece);
            segment.seq = first.wrapping_add(from as u32);
            let outcome = scene.ingress(&segment.bytes(), 0);
            assert_eq!(outcome.verdict, TCX_NEXT, "{context}, piece at {from}");
        }
        let context = format!("{context}, byte {at} of {}", up.bytes.escape_ascii());
        check_up(scene, &up, at, &context);
        answer_some(scene, rng, &mut replied, up.complete(at).count(), false);
    }
    answer_some(scene, rng, &mut replied, up.complete(at).count(), true);
    let entry = scene.entry().unwrap();
    assert_eq!(entry.requests, entry.replies, "{context}");
    assert_eq!(
        entry.requests as usize - 1,
        up.complete(at).count(),
        "{context}"
    );
    let flags = abi::CONN_F_SCAN_LOST | abi::CONN_F_UNCOUNTABLE | abi::CONN_F_OVERFLOW;
    assert_eq!(u32::from(entry.flags) & flags, 0, "{context}");
}

/// A connection whose replies cannot be counted holds the fence until there is proof.
#[test]
fn uncountable() {
    fixture::with(|bench| {
        let mut scene = Scene::connect(bench, V4);
        scene.make_fast();
        scene.request(b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n");
        let entry = scene.entry().unwrap();
        assert_eq!(u32::from(entry.state), abi::CONN_BYPASS);
        scene.request(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n");
        assert_eq!(scene.bench.dp.control().fence(), 1, "no proof yet");
        scene.reply(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
        assert_eq!(
            scene.bench.dp.control().fence(),
            1,
            "replies prove nothing here"
        );
    });
}
