// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The express lane says what the general path would say: Q1. Without it every run is the same run,
//! as long as CPUs take turns at its own waits alone: the lane has other points at which they switch.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem::offset_of;

use erb_abi::{ControlPlane as _, FAST_COMMANDS, USUAL_WRITES, cache_set, command_key_bytes, conn};
use erb_sim::mutate::source::Edit;
use erb_sim_kernel::scene::{Scene, get};
use erb_sim_kernel::{Csum, DatapathConfig, Library, Packet, Tc, Xdp, tcp_state};
use erb_wire::layout::{self, Layout};
use erb_wire::resp::command;

use crate::runs::{are_the_same, build};

/// Of each profile.
const SEEDS: u64 = 6;
pub const LANE: &str = "splice/lane.h";
pub const DOWN: &str = "splice/lane_down.h";

/// Neither lane.
pub const OFF: &[Edit] = &[
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
pub fn taken_otherwise(one: &Library, other: &Library) -> Option<String> {
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
pub type Odds = (String, (String, u64));

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
pub fn odd_replies(library: &Library) -> impl Iterator<Item = Odds> + use<'_> {
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
pub fn reply_taken_otherwise(library: &Library, right: &[Odds]) -> Option<String> {
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
