// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Histograms of latencies say what was timed, keys by heat what was asked for, and neither changes what leaves: Z7 to Z9.

use erb_abi::{
    ControlPlane as _, FILL_OK, LATENCY_HELD, LATENCY_HIT, LATENCY_MAX, LATENCY_UP, SAMPLE_ONE_OF,
    bucket_of, latency, latency_path,
};
use erb_sim::mutate::source::{Edit, edited};
use erb_sim_kernel::scene::{Scene, get};
use erb_sim_kernel::{DatapathConfig, Library, Tc, Xdp};
use erb_wire::resp::command;

use crate::judged::Deliberate;
use crate::runs::{are_the_same, build};

/// Of each profile.
const SEEDS: u64 = 3;
const LATENCY: &str = "splice/latency.h";
const KEY: &[u8] = b"key:000000000001";
const REPLY: &[u8] = b"$5\r\nvalue\r\n";
const ABSENT: &[u8] = b"$-1\r\n";
const ECHOED: &[u8] = b"$1\r\na\r\n";
const MS: u64 = 1_000_000;

/// All packets are timed, whatever the daemon says.
const ALWAYS: &[Edit] = &[
    Edit {
        file: LATENCY,
        find: "if (!c->sampling) {",
        replace: "if (0) {",
    },
    Edit {
        file: LATENCY,
        find: "if (left > 0)",
        replace: "if (0)",
    },
    Edit {
        file: "redis/heat.h",
        find: "!c->heat || ",
        replace: "",
    },
];

#[test]
fn runs_in_which_all_is_timed_are_the_same_runs() {
    let (off, always) = (build("latency-off", &[]), build("latency-always", ALWAYS));
    are_the_same(&off, &always, SEEDS);
}

/// A connection that is fast; what comes from now on is timed. The last packets were its first ones.
fn begun(library: &Library) -> Scene {
    let config = DatapathConfig {
        garbage_one_in: 0,
        sets: 64,
        conns: 16,
        client_conns: 16,
        ..DatapathConfig::default()
    };
    let mut scene = Scene::on(library, config).with_timestamps();
    scene.warm();
    assert_eq!(scene.fill(KEY, b"value"), FILL_OK);
    control(&scene, |control| control.sampling = 1);
    scene
}

fn control(scene: &Scene, change: impl FnOnce(&mut erb_abi::control)) {
    // SAFETY: no program runs.
    change(unsafe { &mut *scene.path.control() });
}

fn hits(scene: &mut Scene, many: u32) {
    for _ in 0..many {
        assert_eq!(scene.send(&get(KEY)).0, Xdp::Tx);
        scene.ack = scene.ack.wrapping_add(REPLY.len() as u32);
    }
}

/// Until the next packet is a sample: hits count down as all others.
fn to_the_next_sample(scene: &mut Scene) {
    let timed = |scene: &Scene| found(scene).samples(LATENCY_HIT);
    let before = timed(scene);
    for _ in 0..2 * SAMPLE_ONE_OF {
        if timed(scene) > before {
            break;
        }
        hits(scene, 1);
    }
    hits(scene, SAMPLE_ONE_OF - 1);
}

fn found(scene: &Scene) -> latency {
    scene.path.latency().expect("it can be read")
}

/// Times of these paths are these, and no others are there.
fn expect(scene: &Scene, what: &str, times: &[(latency_path, u64)]) -> Result<(), String> {
    let mut wanted = latency::default();
    for (path, ns) in times {
        wanted.sum_ns[*path as usize] += ns;
        wanted.counts[*path as usize][bucket_of(*ns)] += 1;
    }
    let found = found(scene);
    for path in 0..LATENCY_MAX as usize {
        let of = |it: &latency| (it.sum_ns[path], it.counts[path]);
        if of(&found) != of(&wanted) {
            let [found, wanted] =
                [&found, &wanted].map(|it| (it.sum_ns[path], it.counts[path].iter().sum::<u64>()));
            return Err(format!(
                "{what}: path {path}: {found:?} are not {wanted:?}, or not in their buckets"
            ));
        }
    }
    Ok(())
}

fn timed(conn: &erb_abi::conn) -> bool {
    u32::from(conn.spoke) & erb_abi::SPOKE_TIMED != 0
}

fn pass(scene: &Scene, ns: u64) {
    scene.kernel.now.set(scene.kernel.now.get() + ns);
}

/// Of hits one in so many, each with its time.
fn hits_are_timed(library: &Library) -> Result<(), String> {
    for step in [40, 300, 1_000, 5_000 * MS, 70_000 * MS] {
        let mut scene = begun(library);
        scene.kernel.step.set(step);
        control(&scene, |control| control.lease_until_ns = u64::MAX);
        let (first, many) = (found(&scene), 3 * SAMPLE_ONE_OF);
        hits(&mut scene, many);
        scene.kernel.step.set(0);
        let now = found(&scene);
        let path = LATENCY_HIT as usize;
        let rise = now.samples(LATENCY_HIT) - first.samples(LATENCY_HIT);
        let in_bucket = now.counts[path][bucket_of(step)] - first.counts[path][bucket_of(step)];
        if (rise, in_bucket, now.sum_ns[path] - first.sum_ns[path]) != (3, 3, 3 * step) {
            return Err(format!(
                "of {many} hits of {step} ns {rise} are timed, {in_bucket} of them so long"
            ));
        }
    }
    let mut scene = begun(library);
    control(&scene, |control| control.sampling = 0);
    hits(&mut scene, 3 * SAMPLE_ONE_OF);
    expect(&scene, "not asked for", &[])
}

/// A sampled request that goes up, until the reply of its number leaves.
fn ups_are_timed(library: &Library) -> Result<(), String> {
    // By both lanes; up by the general path; of two requests in a packet the last; by the general path down, too, as
    // no lane takes two replies in a packet.
    let miss = get(b"missed");
    let echo = command(&[b"ECHO", b"a"]);
    let both = [ECHOED, ABSENT].concat();
    for (request, replies) in [
        (miss.clone(), vec![ABSENT]),
        (echo.clone(), vec![ECHOED]),
        ([&echo[..], &miss].concat(), vec![ECHOED, ABSENT]),
        ([&echo[..], &miss].concat(), vec![&both[..]]),
    ] {
        let mut scene = begun(library);
        to_the_next_sample(&mut scene);
        let hit = found(&scene);
        let mut wanted: Vec<_> = (0..hit.samples(LATENCY_HIT))
            .map(|_| (LATENCY_HIT, 0))
            .collect();
        assert_eq!(scene.send(&request).0, Xdp::Pass);
        pass(&scene, 7 * MS);
        assert_eq!(scene.send(&miss).0, Xdp::Pass, "it is not the sample");
        pass(&scene, 28 * MS);
        let last = replies.len() - 1;
        for (number, reply) in replies.into_iter().enumerate() {
            expect(&scene, "before the reply", &wanted)?;
            let bytes = if number == 0 { request.len() } else { 0 };
            assert_eq!(scene.served(bytes, reply).0, Tc::Next);
            pass(&scene, u64::from(number < last) * MS);
        }
        wanted.push((LATENCY_UP, 35 * MS + last as u64 * MS));
        expect(&scene, "the reply has left", &wanted)?;
        pass(&scene, MS);
        assert_eq!(scene.served(miss.len(), ABSENT).0, Tc::Next);
        expect(&scene, "the other reply has left", &wanted)?;
    }
    another_owner_is_not_timed(library)
}

/// The entry's next owner begins anew: what its predecessor waited for is not its own.
fn another_owner_is_not_timed(library: &Library) -> Result<(), String> {
    let mut scene = begun(library);
    to_the_next_sample(&mut scene);
    let many = found(&scene).samples(LATENCY_HIT);
    let miss = get(b"missed");
    assert_eq!(scene.send(&miss).0, Xdp::Pass);
    let before = scene.conn();
    if !timed(&before) || found(&scene).samples(LATENCY_HIT) != many {
        return Err("the sample is not timed".to_owned());
    }
    scene.sock(|sock| {
        sock.cookie += 1000;
        sock.rcv_nxt = sock.rcv_nxt.wrapping_add(miss.len() as u32);
        sock.copied_seq = sock.rcv_nxt;
    });
    control(&scene, |control| control.sampling = 0);
    let mut packet = scene.request(&miss);
    if scene.path.run_xdp(&mut packet) == Xdp::Pass {
        let _ = scene.path.run_tc_ingress(&mut packet);
    }
    let conn = scene.conn();
    assert_ne!(conn.cookie, before.cookie, "it is another's");
    (!timed(&conn))
        .then_some(())
        .ok_or_else(|| "a new owner waits for what it never asked".to_owned())
}

/// From the first drop until it went up.
fn what_is_held_is_timed(library: &Library) -> Result<(), String> {
    let mut scene = begun(library);
    let write = command(&[b"SADD", KEY, b"member"]);
    control(&scene, |control| control.sampling = 0);
    control(&scene, |control| control.order.lsn += 1);
    // The first packet, and one behind it.
    let (first, bytes) = (scene.seq, write.len() as u32);
    for number in 0..2 {
        scene.seq = first.wrapping_add(number * bytes);
        let mut packet = scene.request(&write);
        assert_eq!(scene.path.run_xdp(&mut packet), Xdp::Drop, "it is held");
        expect(&scene, "while it is held", &[])?;
        pass(&scene, 400 * MS);
    }
    control(&scene, |control| {
        control.order.drained = control.order.lsn;
    });
    for number in 0..2 {
        scene.seq = first.wrapping_add(number * bytes);
        let mut packet = scene.request(&write);
        assert_eq!(scene.path.run_xdp(&mut packet), Xdp::Pass, "it goes up");
        expect(&scene, "behind it", &[(LATENCY_HELD, 800 * MS)])?;
        pass(&scene, 400 * MS);
    }
    Ok(())
}

/// Keys that were told since they were last asked for.
fn keys_told(scene: &Scene) -> Vec<Vec<u8>> {
    let told = scene.path.take_heat().into_iter();
    told.map(|it| it.key).collect()
}

/// Keys of samples, while the daemon wants to hear of them.
fn keys_are_told(library: &Library) -> Result<(), String> {
    let mut scene = begun(library);
    hits(&mut scene, 2 * SAMPLE_ONE_OF);
    if !scene.path.take_heat().is_empty() {
        return Err("keys are told of which nobody wants to hear".to_owned());
    }
    control(&scene, |control| control.heat = 1);
    hits(&mut scene, 5 * SAMPLE_ONE_OF);
    let told = keys_told(&scene);
    if told != vec![KEY.to_vec(); 5] {
        return Err(format!("{} keys are told", told.len()));
    }
    to_the_next_sample(&mut scene);
    let _ = scene.path.take_heat();
    assert_eq!(scene.send(&get(b"missed\0\x1b")).0, Xdp::Pass);
    let told = keys_told(&scene);
    (told == [b"missed\0\x1b".to_vec()])
        .then_some(())
        .ok_or_else(|| format!("of a miss {told:?} is told"))
}

/// All of it.
fn judge(library: &Library) -> Result<(), String> {
    hits_are_timed(library)?;
    ups_are_timed(library)?;
    what_is_held_is_timed(library)?;
    keys_are_told(library)
}

#[test]
fn what_was_timed_is_counted() {
    assert_eq!(judge(&build("latency-as-it-is", &[])), Ok(()));
}

/// Name, file, what stands there, what stands there instead.
#[rustfmt::skip]
const MISTAKES: &[(&str, &str, &str, &str)] = &[
    ("sampled-twice", LATENCY, "if (left > 0)", "if (left > 30)"),
    ("sampled-unasked", LATENCY, "if (!c->sampling) {", "if (0) {"),
    ("hit-unsampled", LATENCY, "return w->sample_left == SAMPLE_ONE_OF;", "return true;"),
    ("bucket-of-half", LATENCY, "rest = ns >> (log - LATENCY_STEPS_LOG2)", "rest = ns >> (log - 1 - LATENCY_STEPS_LOG2)"),
    ("bucket-unshifted", LATENCY, "((log - LATENCY_LEAST_LOG2) << LATENCY_STEPS_LOG2)", "(log << LATENCY_STEPS_LOG2)"),
    ("sum-forgotten", LATENCY, "\tlatency->sum_ns[path] += ns;\n", ""),
    ("any-reply-ends", LATENCY, "if (!(conn->spoke & SPOKE_TIMED) || seq_before(conn->replies, conn->timed_request))", "if (!(conn->spoke & SPOKE_TIMED))"),
    ("timed-for-ever", LATENCY, "\tconn->spoke &= ~SPOKE_TIMED;\n\treturn conn->timed_ns;", "\treturn conn->timed_ns;"),
    ("held-since-last", LATENCY, "\tif (!conn->held_ns)\n", ""),
    ("held-for-ever", LATENCY, "\tconn->held_ns = 0;\n", ""),
    ("held-uncounted", "splice/up.h", "\tlatency_held(w);\n", ""),
    ("lane-reply-untimed", "splice/lane_down.h", "\tlatency_down(d->timed_ns);\n", ""),
    ("reply-untimed", "splice/egress.h", "\tlatency_down(ow->timed_ns);\n", ""),
    ("timed-outlives-its-owner", "splice/conn.h", "conn->dup_acks = conn->tries = conn->spoke = 0;", "conn->dup_acks = conn->tries = 0;"),
    ("heat-unasked", "redis/heat.h", "!c->heat || ", ""),
    ("lane-up-untimed", "splice/lane.h", "\tif (sampled(w))\n\t\tlatency_up();\n", ""),
];

fn edit(mistake: &(&str, &'static str, &'static str, &'static str)) -> Edit {
    let (_, file, find, replace) = *mistake;
    Edit {
        file,
        find,
        replace,
    }
}

/// Told at once, and not by the slow test.
#[test]
fn each_mistake_in_what_is_timed_has_its_place() {
    let edits = MISTAKES.iter().map(edit);
    edits.for_each(|edit| drop(edited(&[edit]).expect("a text that is there once")));
}

pub fn mistakes() -> impl Iterator<Item = Deliberate> {
    MISTAKES.iter().map(|mistake| Deliberate {
        name: format!("latency {}", mistake.0),
        files: vec![mistake.1],
        judge: Box::new(|| {
            let library = build(&format!("latency-{}", mistake.0), &[edit(mistake)]);
            let judged = std::panic::catch_unwind(|| judge(&library));
            match judged {
                Ok(Ok(())) => Err("does not show".to_owned()),
                Ok(Err(why)) => Ok(why),
                Err(_) => Ok("a panic".to_owned()),
            }
        }),
    })
}
