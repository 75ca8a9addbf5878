// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The express lane says what the general path would say: Q1. Without it every run is the same run,
//! as long as CPUs take turns at its own waits alone: the lane has other points at which they switch.

use std::mem::offset_of;

use erb_abi::{FAST_COMMANDS, cache_set};
use erb_sim::mutate::source::{self, Edit};
use erb_sim::profile::ServerRates;
use erb_sim::story::Keep;
use erb_sim::{Options, Outcome, PROFILES, Plan, Profile, run};
use erb_sim_kernel::compile::Flavour;
use erb_sim_kernel::scene::{Scene, get};
use erb_sim_kernel::{DatapathConfig, Library, Tc, Xdp, tcp_state};
use erb_wire::layout::{self, Layout};
use erb_wire::resp::command;

/// Of each profile.
const SEEDS: u64 = 6;
/// Seeds within which a mistake in the lane shows.
const SEEDS_OF_MISTAKE: u64 = 10;

const OFF: Edit = Edit {
    file: "splice/lane.h",
    find: "#define LANE\t     1",
    replace: "#define LANE\t     0",
};

fn build(name: &str, edits: &[Edit]) -> Library {
    source::build(name, edits, Flavour::Hasty).unwrap_or_else(|error| panic!("{name}: {error:#}"))
}

/// The profile without switches between helpers.
fn in_turns(profile: &'static Profile) -> &'static Profile {
    Box::leak(Box::new(Profile {
        server: ServerRates {
            switch: 0,
            ..profile.server
        },
        ..*profile
    }))
}

fn outcome(profile: &'static Profile, seed: u64, library: &Library) -> Outcome {
    let options = Options {
        library: Some(library.clone()),
        keep: Keep::All,
        ..Options::default()
    };
    run(&Plan::new(profile, seed), &options)
}

/// Where both runs differ first.
fn difference(one: &Outcome, other: &Outcome) -> Option<String> {
    let mut lines = one.story.lines().zip(other.story.lines());
    if let Some((left, right)) = lines.find(|(left, right)| left != right) {
        return Some(format!("with: {left}\nwithout: {right}"));
    }
    for (reason, (left, right)) in erb_abi::REASONS
        .iter()
        .zip(one.stats.iter().zip(&other.stats))
    {
        if left != right {
            return Some(format!("{}: with {left}, without {right}", reason.name));
        }
    }
    (one.coverage != other.coverage || one.story.len() != other.story.len())
        .then(|| "the runs reach other things".to_owned())
}

#[test]
fn runs_without_the_lane_are_the_same_runs() {
    let (with, without) = (build("lane-on", &[]), build("lane-off", &[OFF]));
    for profile in PROFILES {
        let profile = in_turns(profile);
        for seed in 1..=SEEDS {
            let one = outcome(profile, seed, &with);
            let other = outcome(profile, seed, &without);
            if let Some(text) = difference(&one, &other) {
                panic!("{} seed {seed}: {text}", profile.name);
            }
        }
    }
}

/// Moves a number of TCP's.
fn add(to: &mut u32, n: i32) {
    *to = to.wrapping_add_signed(n);
}

/// What client, kernel or another CPU has done just before the packet at hand comes.
type Upset = (&'static str, fn(&mut Scene));

#[rustfmt::skip]
const UPSETS: &[Upset] = &[
    ("nothing", |_| ()),
    ("the window is too small", |scene| scene.sock(|sock| sock.rcv_wnd = 10)),
    ("the kernel has not all", |scene| scene.sock(|sock| add(&mut sock.rcv_nxt, -5))),
    ("the kernel is ahead", |scene| scene.sock(|sock| add(&mut sock.rcv_nxt, 5))),
    ("the socket is another's", |scene| scene.sock(|sock| sock.cookie += 1)),
    ("Redis has closed", |scene| scene.sock(|sock| sock.state = tcp_state::FIN_WAIT1)),
    ("bytes wait to be sent", |scene| scene.sock(|sock| add(&mut sock.write_seq, 7))),
    ("bytes were sent by another way", |scene| scene.sock(|sock| { add(&mut sock.write_seq, 7); add(&mut sock.snd_nxt, 7); })),
    ("they are acknowledged", |scene| { scene.sock(|sock| { add(&mut sock.write_seq, 7); add(&mut sock.snd_nxt, 7); }); add(&mut scene.ack, 7); }),
    ("they are, and were never sent", |scene| { scene.sock(|sock| add(&mut sock.write_seq, 7)); add(&mut scene.ack, 7); }),
    ("nobody wrote what is acknowledged", |scene| add(&mut scene.ack, 7)),
    ("the acknowledgement is old", |scene| add(&mut scene.ack, -1)),
    ("it is very old", |scene| add(&mut scene.ack, -100_000)),
    ("the kernel lacks it", |scene| scene.sock(|sock| add(&mut sock.snd_una, -3))),
    ("the timestamp is old", |scene| scene.sock(|sock| { add(&mut sock.ts_recent, 9); sock.ts_recent_s = 9; })),
    ("bytes are missing", |scene| add(&mut scene.seq, 3)),
    ("bytes come again", |scene| add(&mut scene.seq, -3)),
    ("time has passed", |scene| scene.kernel.now.set(11 * 1_000_000_000)),
    ("the lease is over", |scene| scene.kernel.now.set(2000 * 1_000_000_000)),
    ("hashes are Redis's", hashes_off),
];

/// As where `rename-command` took them away.
fn hashes_off(scene: &mut Scene) {
    let hashes = FAST_COMMANDS
        .iter()
        .filter(|command| command.name.starts_with('h'));
    // SAFETY: no program runs.
    let control = unsafe { &mut *scene.path.control() };
    control.fast_off = hashes.map(|command| 1 << command.kind).sum();
}

const KEY: &[u8] = b"key:000000000001";
const VALUE: &[u8] = b"value";
/// `"$5\r\nvalue\r\n"`.
const REPLY_BYTES: u32 = 11;

/// An element of a map: its name, key and value.
type Element = (String, Vec<u8>, Vec<u8>);

/// What a packet leaves behind: what becomes of it and is counted, and all maps.
fn upset(
    library: &Library,
    [spliced, bare]: [bool; 2],
    request: &[u8],
    change: fn(&mut Scene),
) -> (String, Vec<Element>) {
    let config = DatapathConfig {
        garbage_one_in: 0,
        sets: 64,
        conns: 16,
        client_conns: 16,
        ..DatapathConfig::default()
    };
    let mut scene = Scene::on(library, config).with_timestamps();
    scene.warm();
    assert_eq!(scene.fill(KEY, VALUE), erb_abi::FILL_OK);
    for _ in 0..u32::from(spliced) * 3 {
        assert_eq!(scene.send(&get(KEY)).0, Xdp::Tx);
        scene.ack = scene.ack.wrapping_add(REPLY_BYTES);
    }
    // Where keys are missed the lane knows more.
    let missed = get(b"missed");
    assert_eq!(scene.send(&missed).0, Xdp::Pass);
    assert_eq!(scene.served(missed.len(), b"$-1\r\n").0, Tc::Next);
    scene.settle();
    change(&mut scene);
    let mut packet = scene.request(request);
    if bare {
        let at = Layout::of(packet.bytes()).expect("a segment");
        layout::seal_bare(packet.bytes_mut(), &at);
    }
    let verdict = scene.path.run_xdp(&mut packet);
    let mut maps = scene.path.contents();
    for (_, _, set) in maps.iter_mut().filter(|(map, ..)| *map == "erb_sets") {
        // The lane looks the key up first, the general path refuses first: who evicts may see it.
        let bits = offset_of!(cache_set, visited);
        set[bits..bits + 4].fill(0);
    }
    let (bytes, meta) = (packet.bytes(), packet.meta());
    (format!("{verdict:?} {bytes:x?} {meta:x?}"), maps)
}

/// GET of a key that is there, reads of keys that are not, and what only looks like one.
fn requests() -> Vec<Vec<u8>> {
    let hget = command(&[b"HGET", b"absent", b"field"]);
    vec![
        get(KEY),
        get(b"absent"),
        command(&[b"hgetall", b"absent"]),
        command(&[b"HGETALL", KEY]),
        [&hget[..], &get(b"absent")].concat(),
        hget,
        command(&[b"HDEL", b"absent", b"field"]),
    ]
}

/// The first upset that both builds take otherwise.
fn taken_otherwise(one: &Library, other: &Library) -> Option<String> {
    for how in [[false, false], [true, false], [true, true]] {
        let upsets = |request| UPSETS.iter().map(move |upset| (request, upset));
        for (request, (name, change)) in requests().iter().flat_map(upsets) {
            let [left, right] = [one, other].map(|library| upset(library, how, request, *change));
            let mut maps = left.1.iter().zip(&right.1);
            let map = maps.find(|(left, right)| left != right);
            if left.0 != right.0 || left.1.len() != right.1.len() || map.is_some() {
                let (request, map) = (request.escape_ascii(), map.map(|(left, _)| &left.0));
                return Some(format!("{name}, {how:?}, {request}: {} {map:?}", left.0));
            }
        }
    }
    None
}

#[test]
fn upset_sockets_are_treated_alike() {
    let (with, without) = (
        build("lane-by-hand", &[]),
        build("lane-off-by-hand", &[OFF]),
    );
    if let Some(text) = taken_otherwise(&with, &without) {
        panic!("{text}");
    }
}

const LANE: &str = "splice/lane.h";
const HANDLER: &str = "redis/usual.h";

/// Shown by an upset socket, not by a profile.
const BY_HAND: &str = "";

/// What the lane must not forget: what it leaves to the general path, and what it writes.
#[rustfmt::skip]
const MISTAKES: &[(&str, &str, &str, &str, &str)] = &[
    ("sum-unread", LANE, "if (!lane_sum_ok(&sum))", "if (0)", "corrupt"),
    ("tail-forgotten", LANE, "\t*(u64 *)(at + body_at + from) = *(u64 *)(w->reply + from);\n", "", "hot"),
    ("place-uncalled", LANE, "\tplace_call(w, PLACES_TIMER);\n", "", "lossy"),
    ("window-unasked", LANE, "\t    (conn->flags & CONN_F_SCAN_LOST) ||\n\t    seq_after(w->p.seq + w->p.payload_len - conn->in_delta, sock_right_edge(v)))", "\t    (conn->flags & CONN_F_SCAN_LOST))", BY_HAND),
    ("to-tc-unseen", LANE, "\t\thandler_usual_done(w, c);\n\t\treturn tier_to_tc(ctx);\n", "\t\treturn tier_to_tc(ctx);\n", "all"),
    ("miss-seq-untranslated", LANE, "\t*seq = new_seq;\n", "", "calm"),
    ("miss-ack-untranslated", LANE, "\t*ack = new_ack;\n", "", "calm"),
    ("miss-sum-forgotten", LANE, "\tif (!bare)\n\t\t*(u16 *)(tcp + 16)", "\tif (0)\n\t\t*(u16 *)(tcp + 16)", "calm"),
    ("miss-bare-sum-changed", LANE, "\tif (!bare)\n\t\t*(u16 *)(tcp + 16)", "\tif (1)\n\t\t*(u16 *)(tcp + 16)", "calm"),
    ("miss-uncounted", LANE, "\t\tconn->requests++;\n", "", "calm"),
    ("miss-undated", LANE, "\t\tconn->request_up_ns = w->now;\n", "", BY_HAND),
    ("miss-unreported", LANE, "\thandler_usual_done(w, c);\n\tcount(w->refusal);\n", "\tcount(w->refusal);\n", "calm"),
    ("miss-beside-buffer", LANE, " | CONN_F_AHEAD;", ";", "holes"),
    ("miss-window", LANE, "if (seq_after(w->end - conn->in_delta, sock_right_edge(v)) ||", "if (", BY_HAND),
    ("miss-old-ack", LANE, "seq_before(p->ack, conn->ack_max) || seq_before(ack, conn->edge) ||", "", BY_HAND),
    ("miss-ack-of-unsent", LANE, "seq_after(ack, v->write_seq) || seq_after(ack, v->snd_nxt))", "0)", BY_HAND),
    ("miss-paws", LANE, "\treturn conn_paws_ok(conn, p, v, w->now);\n", "\treturn true;\n", BY_HAND),
    ("meta-stays", LANE, "\t\ttier_unnote(ctx);\n", "", BY_HAND),
    ("hash-missed-though-cached", HANDLER, " | tags_match(set, tag_of(w->h.look.hash));\n\tif", ";\n\tif", "all"),
    ("hash-missed-though-marked", HANDLER, "there = read_once(set->marks) | tags", "there = tags", "races"),
    ("hash-missed-as-string", HANDLER, "w->h.usual == FAST_KIND_GET ? SLOT_STRING : SLOT_HASH", "SLOT_STRING", "all"),
    ("hash-missed-switched-off", HANDLER, "(c->fast_off & 1U << w->h.usual)", "(c->fast_off & 1U << FAST_KIND_GET)", BY_HAND),
    ("hash-with-more-behind", HANDLER, "used && at + 2 == w->p.payload_len && at", "used && at", BY_HAND),
];

#[test]
fn mistakes_in_the_lane_make_other_runs() {
    let without = build("lane-off-again", &[OFF]);
    let mut unseen = Vec::new();
    for (name, file, find, replace, profile) in MISTAKES {
        let edit = Edit {
            file,
            find,
            replace,
        };
        let wrong = build(name, &[edit]);
        let seen = if *profile == BY_HAND {
            taken_otherwise(&wrong, &without)
        } else {
            let profile = in_turns(erb_sim::profile::find(profile).expect("a profile"));
            (1..=SEEDS_OF_MISTAKE).find_map(|seed| {
                let [one, other] =
                    [&wrong, &without].map(|library| outcome(profile, seed, library));
                difference(&one, &other)
            })
        };
        println!("{name}: {}", seen.as_deref().unwrap_or("NOT SEEN"));
        if seen.is_none() {
            unseen.push(name);
        }
    }
    assert!(unseen.is_empty(), "not seen: {unseen:?}");
}
