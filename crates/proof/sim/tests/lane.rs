// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The express lane says what the general path would say: Q1. Without it every run is the same run,
//! as long as CPUs take turns at its own waits alone: the lane has other points at which they switch.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem::offset_of;

use erb_abi::{ControlPlane as _, FAST_COMMANDS, USUAL_WRITES, cache_set, command_key_bytes, conn};
use erb_sim::mutate::source::{Edit, edited};
use erb_sim_kernel::scene::{Scene, get};
use erb_sim_kernel::{Csum, DatapathConfig, Library, Packet, Tc, Xdp, tcp_state};
use erb_wire::layout::{self, Layout};
use erb_wire::resp::command;

mod runs;

use runs::{are_the_same, build, difference, in_turns, outcome};

/// Of each profile.
const SEEDS: u64 = 6;
/// Seeds within which a mistake in the lane shows.
const SEEDS_OF_MISTAKE: u64 = 10;

/// Neither lane.
const OFF: &[Edit] = &[
    Edit {
        file: LANE,
        find: "#define LANE\t     1",
        replace: "#define LANE\t     0",
    },
    Edit {
        file: DOWN,
        find: "#define LANE_DOWN      1",
        replace: "#define LANE_DOWN      0",
    },
];

#[test]
fn runs_without_the_lane_are_the_same_runs() {
    let (with, without) = (build("lane-on", &[]), build("lane-off", OFF));
    are_the_same(&with, &without, SEEDS);
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
    ("writes are another's", writes_off),
    ("rights have moved", |scene| control(scene, |control| control.rights += 1)),
    ("the cache is closed", |scene| control(scene, |control| control.stopping = erb_abi::STOPPING_UNREAD)),
    ("something is not drained", |scene| control(scene, |control| control.order.lsn += 1)),
];

fn control(scene: &mut Scene, change: impl FnOnce(&mut erb_abi::control)) {
    // SAFETY: no program runs.
    change(unsafe { &mut *scene.path.control() });
}

/// As where `rename-command` gave their names to others.
fn writes_off(scene: &mut Scene) {
    let all = USUAL_WRITES.iter().map(|write| 1 << write.kind).sum();
    control(scene, |control| control.fast_off = all);
    for write in &USUAL_WRITES {
        let key = command_key_bytes(write.name).expect("a short name");
        let known = scene.path.command_rows().expect("a table");
        let (_, mut meaning) = known.into_iter().find(|row| row.0 == key).expect("a row");
        meaning.class = erb_abi::CMD_SETTLE;
        let set = scene.path.set_command(&key, Some(&meaning));
        set.expect("there is room");
    }
}

/// As where `rename-command` took them away.
fn hashes_off(scene: &mut Scene) {
    let hashes = FAST_COMMANDS
        .iter()
        .filter(|command| command.name.starts_with('h'));
    let all = hashes.map(|command| 1 << command.kind).sum();
    control(scene, |control| control.fast_off = all);
}

const KEY: &[u8] = b"key:000000000001";
const VALUE: &[u8] = b"value";
/// `"$5\r\nvalue\r\n"`.
const REPLY_BYTES: u32 = 11;

/// A scene with a connection that is fast, and has been answered if it is spliced.
fn begun(library: &Library, spliced: bool) -> Scene {
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
    scene
}

/// An element of a map: its name, key and value.
type Element = (String, Vec<u8>, Vec<u8>);

/// Of what connection a packet is, and how it comes.
#[derive(Clone, Copy, Debug)]
enum How {
    Plain,
    Spliced,
    /// The connection is spliced, and the checksum not made.
    Bare,
    /// Writes are answered in Redis's place.
    Absorbed,
    SplicedAbsorbed,
    /// The same, and a bit of it is another on its way.
    Corrupted,
}

impl How {
    const ALL: [Self; 6] = [
        Self::Plain,
        Self::Spliced,
        Self::Bare,
        Self::Absorbed,
        Self::SplicedAbsorbed,
        Self::Corrupted,
    ];

    fn is_spliced(self) -> bool {
        !matches!(self, Self::Plain | Self::Absorbed)
    }

    fn absorbs(self) -> bool {
        matches!(
            self,
            Self::Absorbed | Self::SplicedAbsorbed | Self::Corrupted
        )
    }
}

/// What a packet leaves behind: what becomes of it and is counted, and all maps.
fn upset(
    library: &Library,
    how: How,
    request: &[u8],
    change: fn(&mut Scene),
) -> (String, Vec<Element>) {
    let mut scene = begun(library, how.is_spliced());
    // Where keys are missed the lane knows more.
    let missed = get(b"missed");
    assert_eq!(scene.send(&missed).0, Xdp::Pass);
    assert_eq!(scene.served(missed.len(), b"$-1\r\n").0, Tc::Next);
    scene.settle();
    if how.absorbs() {
        control(&mut scene, |control| {
            control.order.watch = 1;
            control.order.absorb = 1;
        });
    }
    change(&mut scene);
    let mut packet = scene.request(request);
    if matches!(how, How::Bare) {
        let at = Layout::of(packet.bytes()).expect("a segment");
        layout::seal_bare(packet.bytes_mut(), &at);
    }
    if matches!(how, How::Corrupted) {
        let bytes = packet.bytes_mut();
        let at = bytes.len() - "r\r\n".len();
        bytes[at] ^= 1;
    }
    let verdict = scene.path.run_xdp(&mut packet);
    let mut maps = scene.path.contents();
    for (_, _, set) in maps.iter_mut().filter(|(map, ..)| *map == "erb_sets") {
        // The lane looks the key up first, the general path refuses first: who evicts may see it.
        let bits = offset_of!(cache_set, visited);
        set[bits..bits + 4].fill(0);
    }
    for (_, _, entry) in maps.iter_mut().filter(|(map, ..)| *map == "erb_conns") {
        if how.absorbs() {
            // Whole blocks are kept: behind the answer are the bytes of an earlier one, which the general path clears.
            entry[offset_of!(conn, replay)..].fill(0);
        }
    }
    let (bytes, meta) = (packet.bytes(), packet.meta());
    (format!("{verdict:?} {bytes:x?} {meta:x?}"), maps)
}

/// GET of a key that is there, reads of keys that are not, writes, and what only looks like one.
fn requests() -> Vec<Vec<u8>> {
    let hget = command(&[b"HGET", b"absent", b"field"]);
    let set = command(&[b"SET", KEY, b"other"]);
    vec![
        get(KEY),
        get(b"absent"),
        command(&[b"hgetall", b"absent"]),
        command(&[b"HGETALL", KEY]),
        [&hget[..], &get(b"absent")].concat(),
        [&hget[..hget.len() - 1], b"?"].concat(),
        command(&[b"HGET", b"absent", b""]),
        hget,
        command(&[b"HDEL", b"absent", b"field"]),
        [&set[..], &get(b"absent")].concat(),
        [&set[..set.len() - 1], b"?"].concat(),
        set,
        command(&[b"set", b"absent", &[b'x'; 100]]),
        command(&[b"SET", KEY, &[b'x'; 200]]),
        command(&[b"SET", KEY, b""]),
        command(&[b"SET", &[b'k'; 65], b"x"]),
        command(&[b"SET", KEY, b"x", b"KEEPTTL"]),
        command(&[b"HSET", KEY, b"field", b"value"]),
        command(&[b"HSET", KEY, b"field"]),
        command(&[b"HSET", KEY, b"field", b"value", b"more", b"value"]),
        command(&[b"incr", KEY]),
        command(&[b"DECR", KEY]),
    ]
}

/// The first upset that both builds take otherwise.
fn taken_otherwise(one: &Library, other: &Library) -> Option<String> {
    for how in How::ALL {
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

/// What has happened to a reply's packet, or to the connection, just before egress has it.
type Odd = (&'static str, fn(&mut Scene, &mut Packet));

/// Where TCP's header begins.
const TCP: usize = 34;

#[rustfmt::skip]
const ODD_REPLIES: &[Odd] = &[
    ("nothing", |_, _| ()),
    ("it has left before", |scene, packet| { scene.path.run_tc_egress(&mut packet.duplicate()); }),
    ("bytes are missing", |_, packet| packet.bytes_mut()[TCP + 7] ^= 64),
    ("it leaves by another device", |_, packet| { packet.ifindex += 1; packet.route += 1; }),
    ("its route names another device", |_, packet| packet.route += 1),
    ("it has no route", |_, packet| packet.route = 0),
    ("it is handed on", |_, packet| packet.ingress_ifindex = 1),
    ("it is another socket's", |_, packet| packet.cookie += 1),
    ("its sum is made", |_, packet| {
        packet.csum = Csum::None;
        let at = Layout::of(packet.bytes()).expect("a segment");
        layout::seal(packet.bytes_mut(), &at);
    }),
    ("it ends the stream", |_, packet| packet.bytes_mut()[TCP + 13] |= 1),
    ("it is pushed", |_, packet| packet.bytes_mut()[TCP + 13] |= 8),
    ("its clock went back", |_, packet| packet.bytes_mut()[TCP + 26] -= 1),
    ("it echoes an old stamp", |_, packet| packet.bytes_mut()[TCP + 30] -= 1),
    ("it leaves by another way", |_, packet| packet.bytes_mut()[5] ^= 1),
    ("it has other options", |_, packet| packet.bytes_mut()[TCP + 20] = 2),
    ("it is a piece", |_, packet| packet.bytes_mut()[20] = 0x20),
    ("its network is another", |_, packet| packet.bytes_mut()[14] = 0x46),
    ("it says another length", |_, packet| packet.bytes_mut()[17] -= 1),
    ("it is another service's", |_, packet| packet.bytes_mut()[TCP + 1] ^= 1),
    ("it is another client's", |_, packet| packet.bytes_mut()[TCP + 3] ^= 1),
    ("Redis is shut", |scene, _| control(scene, |control| control.open = 2)),
    ("modules may filter", |scene, _| control(scene, |control| control.write_through = 0)),
    ("another write has closed the gate", |scene, _| control(scene, |control| control.gate_seen += 1)),
];

/// The same behind a write.
const WRITTEN: &[&[&[u8]]] = &[
    &[b"+OK\r\n"],
    &[b"+NO\r\n"],
    &[b":1\r\n"],
    &[b":42\r\n"],
    &[b"-ERR\r\n"],
    &[b"+OK\r\n", b"+OK\r\n"],
];

/// What is replied to, beside a read: a write whose value its `+OK` may show, and another; two in a packet, one
/// behind a read, one of two keys, and one whose keys are unknown.
fn writes() -> [Vec<u8>; 6] {
    let incr = command(&[b"INCR", b"number"]);
    [
        command(&[b"SET", KEY, b"other"]),
        incr.clone(),
        [&incr[..], &incr].concat(),
        [&command(&[b"EXISTS", b"missed"])[..], &incr].concat(),
        command(&[b"DEL", b"one", b"other"]),
        command(&[b"SORT", b"list", b"STORE", b"other"]),
    ]
}

/// What comes behind one request; of the last packet each oddness is tried.
const REPLIES: &[&[&[u8]]] = &[
    &[b"$5\r\nvalue\r\n"],
    &[b"$-1\r\n"],
    &[b"$0\r\n\r\n"],
    &[b"+OK\r\n"],
    &[b"-ERR\r\n"],
    &[b"$-1\r\n", b"$-1\r\n"],
    &[b"$1\r\nx\r\n$1\r\nx\r\n"],
    &[b"*1\r\n$1\r\nx\r\n"],
    &[b"*2\r\n$-1\r\n$12\r\nabcdefghijkl\r\n"],
    &[b"%1\r\n$1\r\na\r\n$1\r\nb\r\n"],
    &[b"%2\r\n$1\r\na\r\n$1\r\nb\r\n"],
    &[b"*1\r\n$1\r\nx\r\n$-1\r\n"],
    &[b"*1\r\n:12345\r\n"],
    &[b"*1\r\n:5\r\nvalue\r\n"],
    &[b"*3\r\n$1\r\nx\r\n", b"$1\r\nx\r\n$1\r\nx\r\n"],
    &[b"*2\r\n", b"$5\r\nvalue\r\n", b"$5\r\nvalue\r\n"],
    &[b"$10\r\nval", b"$3\r\nabc\r\n"],
];

/// What a reply's last packet leaves behind, as [`upset()`] says of a request's; the maps as a hash, for all
/// are kept.
fn odd_reply(
    library: &Library,
    spliced: bool,
    asked: &[u8],
    replies: &[&[u8]],
    change: fn(&mut Scene, &mut Packet),
) -> (String, u64) {
    let mut scene = begun(library, spliced);
    assert_eq!(scene.send(asked).0, Xdp::Pass);
    let (last, before) = replies.split_last().expect("a reply");
    let mut request = asked.len();
    for reply in before {
        scene.served(request, reply);
        request = 0;
    }
    let mut packet = scene.reply(request, last);
    change(&mut scene, &mut packet);
    let verdict = scene.path.run_tc_egress(&mut packet);
    let mut hash = DefaultHasher::new();
    scene.path.contents().hash(&mut hash);
    let bytes = packet.bytes();
    (format!("{verdict:?} {bytes:x?}"), hash.finish())
}

/// A name of an odd reply, and what it leaves behind.
type Odds = (String, (String, u64));

/// What is asked, the replies, and what is odd about the last one.
type OddCase = (Vec<u8>, &'static [&'static [u8]], &'static Odd);

/// All cases. What most mistakes show in comes first: nothing
/// odd at all. Oddness is tried of all replies to a read, and of the usual one to each of two writes.
fn odd_cases() -> Vec<OddCase> {
    let missed = get(b"missed");
    let writes = writes();
    let asked = |write: &Vec<u8>| {
        WRITTEN
            .iter()
            .map(|replies| (write.clone(), *replies))
            .collect()
    };
    let of_writes: Vec<Vec<_>> = writes.iter().map(asked).collect();
    let usual: [&'static [&'static [u8]]; 2] = [&[b"+OK\r\n"], &[b":1\r\n"]];
    let usual = writes.iter().cloned().zip(usual);
    let of_reads = REPLIES.iter().map(|replies| (missed.clone(), *replies));
    let always: Vec<_> = of_reads.chain(usual).collect();
    let mut cases = Vec::new();
    for odd in ODD_REPLIES {
        let plain = odd.0 == ODD_REPLIES[0].0;
        let all = always
            .iter()
            .chain(of_writes.iter().flatten().filter(|_| plain));
        cases.extend(all.map(|(asked, replies)| (asked.clone(), *replies, odd)));
    }
    cases
}

/// All odd replies before this build.
fn odd_replies(library: &Library) -> impl Iterator<Item = Odds> + use<'_> {
    let cases = odd_cases()
        .into_iter()
        .flat_map(|case| [false, true].map(|spliced| (spliced, case.clone())));
    cases.map(|(spliced, (asked, replies, (name, change)))| {
        let said: Vec<_> = replies
            .iter()
            .map(|it| it.escape_ascii().to_string())
            .collect();
        let left = odd_reply(library, spliced, &asked, replies, *change);
        let asked = asked.escape_ascii();
        (format!("{name}, {spliced}, {asked}: {said:?}"), left)
    })
}

/// The first odd reply that this build takes otherwise.
fn reply_taken_otherwise(library: &Library, right: &[Odds]) -> Option<String> {
    let mut both = odd_replies(library).zip(right);
    let (left, _) = both.find(|(left, right)| left != *right)?;
    Some(format!("{}: {}", left.0, left.1.0))
}

#[test]
fn upset_sockets_are_treated_alike() {
    let (with, without) = (build("lane-by-hand", &[]), build("lane-off-by-hand", OFF));
    if let Some(text) = taken_otherwise(&with, &without) {
        panic!("{text}");
    }
}

#[test]
fn odd_replies_are_treated_alike() {
    let without = build("lane-down-off-by-hand", OFF);
    let right: Vec<_> = odd_replies(&without).collect();
    if let Some(text) = reply_taken_otherwise(&build("lane-down-by-hand", &[]), &right) {
        panic!("{text}");
    }
}

const LANE: &str = "splice/lane.h";
const DOWN: &str = "splice/lane_down.h";
const HANDLER: &str = "redis/usual.h";
const REPLY: &str = "redis/usual_reply.h";
const REPLIED: &str = "redis/replies.h";
const WRITE: &str = "redis/usual_write.h";
const RESP: &str = "redis/resp.h";

/// Shown by an upset socket or an odd reply, not by a profile.
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
    ("hash-with-more-behind", HANDLER, "\t}\n\treturn w->pos == w->p.payload_len;", "\t}\n\treturn true;", BY_HAND),
    ("field-empty", HANDLER, "w->pos - field <= USUAL_ARG_NONE", "w->pos - field < USUAL_ARG_NONE", BY_HAND),
    ("write-unmarked", WRITE, "\t\tmark_take(set, w->h.look.hash);\n", "\t\t;\n", BY_HAND),
    ("write-unheld", WRITE, "\tconn->h.mark_head++;\n", "", BY_HAND),
    ("write-numbered-wrong", WRITE, "request = conn->requests + 1;", "request = conn->requests;", BY_HAND),
    ("write-never-shown", WRITE, "\tthrough_commit(conn, w);\n", "", BY_HAND),
    ("write-unseen-by-cache", WRITE, "\t\tthrough_look();\n", "", BY_HAND),
    ("write-switched-off", WRITE, "(c->fast_off & 1U << w->h.usual) || ", "", BY_HAND),
    ("write-old-rights", WRITE, "read_once(c->rights) != conn->h.rights ||", "", BY_HAND),
    ("write-with-more-behind", WRITE, "\treturn w->pos == w->p.payload_len;", "\treturn true;", BY_HAND),
    ("argument-torn", WRITE, "at > PAYLOAD_BYTES || *(u16 *)(w->payload + at) != RESP_CRLF)", "at > PAYLOAD_BYTES)", BY_HAND),
    ("write-taken-first", LANE, "(writes && (!lane_taken(conn, r, &w->view, w) || order_stirs(c)))", "(0)", BY_HAND),
    ("absorbed-unasked", LANE, "lane_begin(ctx, w, c, conn, &r) || !lane_taken(conn, &r, &w->view, w)", "lane_begin(ctx, w, c, conn, &r)", BY_HAND),
    ("absorbed-sum-unread", LANE, "return lane_sum_ok(&sum) ? LANE_ABSORB : LANE_LEFT;", "return LANE_ABSORB;", BY_HAND),
    ("absorbed-sum-wrong", LANE, " + lane_halves(word);\n\t*(u16 *)(tcp + 16) = ~csum_fold(sum);\n\t*(u64 *)(at + body_at) = word;", ";\n\t*(u16 *)(tcp + 16) = ~csum_fold(sum);\n\t*(u64 *)(at + body_at) = word;", BY_HAND),
    ("absorbed-uncut", LANE, "= word;\n\treturn shrink < 0 &&", "= word;\n\treturn shrink > 0 &&", BY_HAND),
    ("absorbed-uncounted", LANE, "\tcount(STAT_FAST_PACKET);\n\tsent =", "\tsent =", BY_HAND),
    ("absorbed-copy-unmarked", LANE, "\tw->p.l4_off = six ? LANE_IP6 : LANE_IP4;\n", "", "writes-mixed"),
    ("write-before-order", LANE, "(!lane_taken(conn, r, &w->view, w) || order_stirs(c))", "!lane_taken(conn, r, &w->view, w)", BY_HAND),
];

/// The same of the lane for replies; all are shown by hand.
#[rustfmt::skip]
const DOWN_MISTAKES: &[(&str, &str, &str, &str)] = &[
    ("down-seq-untranslated", DOWN, "bpf_htonl(d->seq + d->out_delta)", "bpf_htonl(d->seq)"),
    ("down-ack-untranslated", DOWN, "bpf_htonl(d->ack + d->in_delta)", "bpf_htonl(d->ack)"),
    ("down-stamps-forgotten", DOWN, "bool stamped = d->new_tsval != d->tsval || d->new_tsecr != d->tsecr;", "bool stamped = false;"),
    ("down-uncounted", DOWN, "\tconn->replies++;\n", ""),
    ("down-unscanned", DOWN, "\tconn->scan_next = d->seq + d->len;\n", ""),
    ("down-end-forgotten", DOWN, "\tconn->egress_max = seq_max(conn->egress_max, d->seq + d->len);\n", ""),
    ("down-way-forgotten", DOWN, "\tegress_way(conn, head, true);\n", ""),
    ("down-unspoken", DOWN, "\tconn->spoke |= SPOKE_SINCE;\n", ""),
    ("down-another-socket", DOWN, "return conn->cookie == d->cookie && ", "return "),
    ("down-another-device", DOWN, "conn->ifindex == d->ifindex &&", ""),
    ("down-again", DOWN, "conn->scan_next == d->seq &&", ""),
    ("down-within", DOWN, "conn->out_at == STREAM_BETWEEN &&", ""),
    ("down-unasked", DOWN, "!seq_after(conn->replies + 1, conn->requests) &&", ""),
    ("down-new-said", DOWN, " && handler_down_usual(conn, ends)", ""),
    ("down-any-reply", DOWN, "if (usual == REPLY_ODD || ", "if ("),
    ("down-sum-made", DOWN, " || !tier_csum_partial(ctx)", ""),
    ("down-below", DOWN, " || !egress_first(ctx)", ""),
    ("down-handed-on", DOWN, " || ctx->ingress_ifindex", ""),
    ("down-stream-ends", "net/packet.h", "(tcp[13] & ~TCP_PSH) == TCP_ACK", "(tcp[13] & ~(TCP_PSH | TCP_FIN)) == TCP_ACK"),
    ("down-other-length", DOWN, "*(const u16 *)(ip + 2) == bpf_htons(20 + len) &&", ""),
    ("down-half-an-aggregate", REPLY, "== len && !read_once(ow->h.left);", "== len;"),
    ("down-more-behind", REPLY, "read_once(ow->pos) == len && !read_once(ow->h.left);", "!read_once(ow->h.left);"),
    ("down-map-of-values", REPLY, "== '%' ? 2 * n : n;", "== '%' ? n : n;"),
    ("down-other-element", RESP, "\tif ((u8)word != '$')\n\t\treturn 0;\n", ""),
    ("down-mark-kept", REPLIED, "\tow->h.released = 1;\n", ""),
    ("down-mark-again", REPLIED, "\tconn->h.mark_tail++;\n\tow->h.found.done = 1;\n", "\tow->h.found.done = 1;\n"),
    ("down-unshown", REPLIED, "\tow->h.ok = reply_ok(conn, ow);\n}\n\nINLINE void handler_down_begin(", "}\n\nINLINE void handler_down_begin("),
    ("down-any-line", REPLY, "!reply_line_whole(word, len)", "0"),
    ("down-number-as-ok", REPLY, "ow->h.said_ok = (u8)word == '+';", "ow->h.said_ok = 1;"),
    ("down-later-mark", REPLY, "m->request == conn->replies + 1", "m->request"),
    ("down-some-marks", REPLY, "hold_used(conn) == 1", "hold_used(conn)"),
    ("down-undone", DOWN, "\tif (ends)\n\t\thandler_down_done(ow, c);\n", ""),
    ("down-any-length", REPLY, "return digits && len == digits + 3 + n + 2;", "return digits;"),
];

const fn edit(file: &'static str, find: &'static str, replace: &'static str) -> Edit {
    Edit {
        file,
        find,
        replace,
    }
}

/// Told at once, and not by the slow tests below.
#[test]
fn each_mistake_in_the_lane_has_its_place() {
    let down = DOWN_MISTAKES.iter();
    let down = down.map(|(_, file, find, replace)| edit(file, find, replace));
    let all = MISTAKES.iter();
    let all = all.map(|(_, file, find, replace, _)| edit(file, find, replace));
    all.chain(down)
        .for_each(|edit| drop(edited(&[edit]).expect("a text that is there once")));
}

#[test]
fn mistakes_in_the_lane_for_replies_are_seen() {
    let without = build("lane-down-off-again", OFF);
    let right: Vec<_> = odd_replies(&without).collect();
    let mut unseen = Vec::new();
    for (name, file, find, replace) in DOWN_MISTAKES {
        let wrong = build(name, &[edit(file, find, replace)]);
        let seen = reply_taken_otherwise(&wrong, &right);
        println!("{name}: {}", seen.as_deref().unwrap_or("NOT SEEN"));
        if seen.is_none() {
            unseen.push(name);
        }
    }
    assert!(unseen.is_empty(), "not seen: {unseen:?}");
}

#[test]
fn mistakes_in_the_lane_make_other_runs() {
    let without = build("lane-off-again", OFF);
    let mut unseen = Vec::new();
    for (name, file, find, replace, profile) in MISTAKES {
        let wrong = build(name, &[edit(file, find, replace)]);
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
