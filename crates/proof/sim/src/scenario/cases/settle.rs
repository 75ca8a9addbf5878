// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One client must not take the fast path from the others: what a script closes opens when Redis's
//! reports of it are handled, and nobody loses the cache (`bpf/cache/cache.h`, C10); who only listens
//! closes nothing (`bpf/redis/admit.h`, A7).

use erb_abi as abi;
use erb_sim_tcp::flags;

use crate::ConnId;
use crate::client::resp::request;
use crate::scenario::tools::{Talk, len};
use crate::scenario::{Scenario, Setup, over_seeds};
use crate::time::{MS, SECOND};

const SET: &[u8] = b"return redis.call('set',KEYS[1],ARGV[1])";
const SWAP: &[u8] = b"return redis.call('swapdb',KEYS[1],ARGV[1])";

/// Whether a GET of a cached key is answered fast now.
fn is_fast(s: &mut Scenario, client: ConnId) -> bool {
    let fast = s.stat(abi::STAT_FAST_GET);
    s.call(client, &[b"GET", b"k"]);
    s.stat(abi::STAT_FAST_GET) > fast
}

fn becomes_fast(s: &mut Scenario, client: ConnId) {
    for _ in 0..400 {
        if is_fast(s, client) {
            return;
        }
        s.run(5 * MS);
    }
    panic!("never fast again: {}", s.counters());
}

/// A cached key, a client that is answered, and one that sends scripts.
fn setup(setup: Setup) -> (Scenario, ConnId, ConnId) {
    let mut s = Scenario::new(setup);
    s.cached(b"k", b"v");
    let client = s.fast();
    becomes_fast(&mut s, client);
    let script = s.open_on(1, None);
    s.call(script, &[b"PING"]);
    (s, client, script)
}

pub(crate) fn the_cache_is_kept() {
    let (mut s, client, script) = setup(Setup::default());
    let epoch = s.control().cache_epoch;
    let filled = s.stat(abi::STAT_FILL_INSERTED);
    s.call(script, &[b"EVAL", SET, b"1", b"other", b"w"]);
    s.run(2 * MS);
    assert_eq!(s.control().fence, 0, "closed for longer than a round trip");
    assert!(is_fast(&mut s, client), "{}", s.counters());
    s.call(script, &[b"MULTI"]);
    s.call(script, &[b"SET", b"other", b"x"]);
    s.call(script, &[b"EXEC"]);
    s.run(2 * MS);
    assert!(is_fast(&mut s, client), "{}", s.counters());
    assert_eq!(s.stat(abi::STAT_FENCE_SETTLED), 2);
    assert_eq!(s.stat(abi::STAT_FILL_INSERTED), filled, "filled anew");
    assert_eq!(s.control().cache_epoch, epoch, "the cache was emptied");
    // Of what Redis lists under no name that ERB knows, nobody can say what it changes.
    s.call(script, &[b"SWAPDB", b"2", b"3"]);
    assert_ne!(s.control().cache_epoch, epoch, "the cache was kept");
    s.finish();
}

/// The daemon has just looked, and looks again in a millisecond: the report waits while the script's
/// reply is there already.
pub(crate) fn reports_are_handled_first() {
    over_seeds(1..9, &Setup::default(), |s| {
        let mut s = s;
        s.cached(b"k", b"v");
        let client = s.fast();
        let script = s.open_on(1, None);
        s.call(script, &[b"PING"]);
        for round in 0..8 {
            becomes_fast(&mut s, client);
            let value = format!("new{round}");
            let unseen = request(&[b"SET", b"other", value.as_bytes()]);
            s.world.server.ask_unseen(&unseen);
            s.run(100_000 + round * 50_000);
            s.call(script, &[b"EVAL", SET, b"1", b"k", value.as_bytes()]);
            let reply = format!("$4\r\n{value}\r\n");
            assert_eq!(s.call(client, &[b"GET", b"k"]), reply.as_bytes());
        }
        s.settle();
        s.stop_daemon(true);
        s.call(script, &[b"EVAL", SET, b"1", b"k", b"last"]);
        assert_eq!(s.control().fence, 1, "open before anybody has heard of it");
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$4\r\nlast\r\n");
        s.stop_daemon(false);
        s.settle();
        assert_eq!(s.control().fence, 0, "never settled");
        s.finish();
    });
}

pub(crate) fn swap_in_a_script() {
    over_seeds(1..9, &Setup::default(), |s| {
        let mut s = s;
        s.cached(b"k", b"v");
        let client = s.fast();
        let script = s.open_on(1, None);
        s.call(script, &[b"PING"]);
        becomes_fast(&mut s, client);
        s.call(script, &[b"EVAL", SWAP, b"1", b"0", b"1"]);
        for _ in 0..40 {
            assert_eq!(s.call(client, &[b"GET", b"k"]), b"$-1\r\n");
        }
        s.finish();
    });
}

/// Ten scripts a second, for three seconds.
pub(crate) fn scripts_without_end() {
    let (mut s, client, script) = setup(Setup::default());
    let mut fast = 0;
    for round in 0..600 {
        if round % 20 == 0 {
            let value = round.to_string();
            s.call(script, &[b"EVAL", SET, b"1", b"n", value.as_bytes()]);
        }
        fast += u32::from(is_fast(&mut s, client));
        s.run(5 * MS);
    }
    assert!(fast >= 540, "{fast} of 600: {}", s.counters());
    s.finish();
}

/// Each cut of a script's bytes: nobody is barred before the last one.
pub(crate) fn half_a_script() {
    let whole = request(&[b"EVAL", SET, b"1", b"k", b"w"]);
    for cut in [12, 20, 60, whole.len() - 1] {
        let (mut s, client, _) = setup(Setup::default());
        let mut talk = Talk::fast(&mut s);
        talk.say(&mut s, &whole[..cut]);
        for _ in 0..10 {
            assert!(is_fast(&mut s, client), "cut {cut}: {}", s.counters());
            s.run(20 * MS);
        }
        s.stop_redis(true);
        talk.say(&mut s, &whole[cut..]);
        s.run(MS);
        assert_eq!(s.control().fence, 1, "cut {cut}: no fence");
        s.stop_redis(false);
        s.run(5 * MS);
        assert_eq!(s.control().fence, 0, "cut {cut}: the fence stands");
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nw\r\n");
    }
}

/// The last argument is long: it counts as scanned when its length is known, and is on its way.
pub(crate) fn half_a_body() {
    let long = vec![b'x'; 3000];
    let whole = request(&[b"EVAL", SET, b"1", b"k", b"w", &long]);
    for gate in [false, true] {
        let whole = if gate {
            request(&[b"CONFIG", b"SET", b"maxmemory", &long])
        } else {
            whole.clone()
        };
        let (mut s, client, _) = setup(Setup::default());
        let mut talk = Talk::fast(&mut s);
        talk.say(&mut s, &whole[..1000]);
        talk.say(&mut s, &whole[1000..2000]);
        for _ in 0..10 {
            assert!(is_fast(&mut s, client), "{}", s.counters());
            s.run(20 * MS);
        }
        s.stop_redis(true);
        let shut = s.control().gate_seen;
        talk.say(&mut s, &whole[2000..]);
        s.run(MS);
        assert_eq!(s.control().fence, 1, "no fence");
        assert_eq!(s.control().gate_seen - shut, u64::from(gate));
        s.stop_redis(false);
        s.run(5 * MS);
        assert_eq!(s.control().fence, 0, "the fence stands");
        becomes_fast(&mut s, client);
        let value = if gate { b"v" } else { b"w" };
        assert_eq!(s.call(client, &[b"GET", b"k"])[4..5], *value);
    }
}

/// A script's reply of which the client acknowledges nothing.
pub(crate) fn slow_reader() {
    let (mut s, client, script) = setup(Setup::default());
    s.call(script, &[b"SET", b"big", &vec![b'x'; 100_000]]);
    becomes_fast(&mut s, client);
    let mut talk = Talk::fast(&mut s);
    talk.send(
        &mut s,
        &[b"EVAL", b"return redis.call('get',KEYS[1])", b"1", b"big"],
    );
    s.run(5 * MS);
    let heard = talk.raw.received(&mut s);
    let bytes: usize = heard.iter().map(|segment| segment.payload.len()).sum();
    assert!((1000..90_000).contains(&bytes), "{bytes} bytes have left");
    assert_eq!(s.control().fence, 0, "closed until the last byte is read");
    for _ in 0..10 {
        assert!(is_fast(&mut s, client), "{}", s.counters());
        s.run(20 * MS);
    }
}

type Command<'a> = &'a [&'a [u8]];

/// Commands of which no reply leaves, for the client does not read what is in front of them.
fn behind_unread(s: &mut Scenario, writer: ConnId, commands: &[&[&[u8]]], half: &[u8]) -> Talk {
    s.call(writer, &[b"SET", b"big", &vec![b'x'; 100_000]]);
    let mut talk = Talk::fast(s);
    talk.send(s, &[b"GET", b"big"]);
    s.run(5 * MS);
    let commands: Vec<u8> = commands.iter().flat_map(|argv| request(argv)).collect();
    for part in commands
        .chunks(1000)
        .chain([half])
        .filter(|p| !p.is_empty())
    {
        let bits = flags::ACK | flags::PSH;
        let segment = talk.raw.segment(talk.seq, talk.ack, bits, part);
        talk.raw.post(s, &segment);
        talk.seq += len(part);
    }
    s.run(40 * MS);
    let heard = talk.raw.received(s);
    let bytes: usize = heard.iter().map(|segment| segment.payload.len()).sum();
    assert!((1000..90_000).contains(&bytes), "{bytes} bytes have left");
    talk
}

/// Until the commands are known to have run, nobody reads what they change from the cache; then
/// everybody does, although no reply leaves.
pub(crate) fn behind_a_reply_that_is_not_read() {
    let script: &[&[u8]] = &[b"EVAL", SET, b"1", b"k", b"w"];
    let write: &[&[u8]] = &[b"SET", b"k", b"w"];
    let begun = &request(&[b"SET", b"other", b"value"])[..20];
    let counted = &request(&[b"HGET", b"h", &[b'f'; 100]])[..60];
    let many = vec![write; 70];
    let cases: [(&[Command], &[u8]); 8] = [
        (&[script], b""),
        (&[script], begun),
        (&[script], counted),
        (&[script, &[b"BLPOP", b"q", b"0"]], b""),
        (&[&[b"MULTI"], write, &[b"EXEC"]], b""),
        (&[write], b""),
        (&[write], begun),
        (&many, b""),
    ];
    for (commands, half) in cases {
        let (mut s, client, writer) = setup(Setup::default());
        let _talk = behind_unread(&mut s, writer, commands, half);
        assert!(
            !is_fast(&mut s, client),
            "{commands:?} holds nothing: {}",
            s.counters()
        );
        s.run(600 * MS);
        assert_eq!(s.control().fence, 0, "{commands:?}: {}", s.counters());
        if !is_fast(&mut s, client) {
            s.run(3 * SECOND); // one set, which keeps few from anything, is asked for each second
        }
        becomes_fast(&mut s, client);
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nw\r\n");
    }
}

/// What Redis has read but cannot run yet, as the command before it blocks, keeps what it holds.
pub(crate) fn behind_a_reply_and_blocked() {
    let (mut s, client, writer) = setup(Setup::default());
    let commands: [&[&[u8]]; 2] = [&[b"BLPOP", b"q", b"0"], &[b"SET", b"k", b"w"]];
    let _talk = behind_unread(&mut s, writer, &commands, b"");
    for _ in 0..20 {
        assert!(!is_fast(&mut s, client), "released before it could run");
        s.run(50 * MS);
    }
    s.unseen(&[b"RPUSH", b"q", b"x"]);
    s.run(600 * MS);
    becomes_fast(&mut s, client);
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nw\r\n");
}

/// Who has shown no password runs nothing: what nobody knows by name costs the others a round trip when
/// Redis refuses it, and the cache when it may not have.
pub(crate) fn stranger() {
    let (mut s, client, _) = setup(Setup::default());
    let unknown: &[&[u8]] = &[b"NOSUCHCOMMAND", b"k"];
    s.unseen(&[b"CONFIG", b"SET", b"requirepass", b"secret"]);
    s.run(2 * SECOND);
    s.call(client, &[b"AUTH", b"secret"]);
    becomes_fast(&mut s, client);
    let stranger = s.open_on(1, None);
    let epoch = s.control().cache_epoch;
    for round in 0..5 {
        if round == 2 {
            assert!(
                s.call(stranger, &[b"AUTH", b"guess"])
                    .starts_with(b"-WRONGPASS")
            );
        }
        assert!(s.call(stranger, unknown).starts_with(b"-"));
        s.run(10 * MS);
        assert!(is_fast(&mut s, client), "round {round}: {}", s.counters());
        // What it says to a key by name marks that key, and no longer than Redis takes to refuse it.
        let set = s.call(stranger, &[b"SET", b"strange", b"v"]);
        assert!(set.starts_with(b"-NOAUTH"), "{}", set.escape_ascii());
        s.run(10 * MS);
        assert!(is_fast(&mut s, client), "round {round}: {}", s.counters());
    }
    let many: Vec<u8> = (0..100).flat_map(|_| request(unknown)).collect();
    s.write(stranger, &many, 100);
    s.settle();
    assert!(is_fast(&mut s, client), "many at once: {}", s.counters());
    assert_eq!(s.control().cache_epoch, epoch, "the cache was emptied");
    assert!(
        s.call(stranger, &[b"AUTH", b"secret"])
            .ends_with(b"+OK\r\n")
    );
    assert!(s.call(stranger, unknown).starts_with(b"-"));
    s.settle();
    assert_ne!(s.control().cache_epoch, epoch, "the cache was kept");
    s.finish();
}

/// Who was let in before there was a password shows it by an error that is no refusal.
pub(crate) fn let_in_before() {
    let (mut s, client, _) = setup(Setup::default());
    let early = s.open_on(1, None);
    s.run(10 * MS);
    s.unseen(&[b"CONFIG", b"SET", b"requirepass", b"secret"]);
    s.run(2 * SECOND);
    s.call(client, &[b"AUTH", b"secret"]);
    becomes_fast(&mut s, client);
    let epoch = s.control().cache_epoch;
    let odd: &[&[u8]] = &[b"REPLICAOF", b"10.0.0.1", b"odd"];
    assert!(s.call(early, odd).starts_with(b"-ERR Invalid"));
    s.settle();
    assert_ne!(s.control().cache_epoch, epoch, "the cache was kept");
    s.finish();
}

pub(crate) fn daemon_dies() {
    let (mut s, client, script) = setup(Setup::default());
    s.stop_daemon(true);
    s.call(script, &[b"EVAL", SET, b"1", b"k", b"w"]);
    assert_eq!(s.control().fence, 1);
    s.world.server.kill_daemon_now();
    s.stop_daemon(false);
    s.run(SECOND);
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nw\r\n");
    s.world.server.start_daemon();
    s.run(SECOND);
    assert_eq!(s.control().fence, 0, "the fence leaked");
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nw\r\n");
    becomes_fast(&mut s, client);
    s.finish();
}

/// A subscriber from before the boost that has become a listener, and a client that is answered.
pub(crate) fn listener(setup: Setup) -> (Scenario, ConnId, ConnId) {
    let mut s = Scenario::new(Setup {
        attached: false,
        ..setup
    });
    let old = s.open_on(1, None);
    s.call(old, &[b"SUBSCRIBE", b"news"]);
    s.attach();
    s.call(old, &[b"PING"]);
    s.run(3 * SECOND);
    assert_eq!(s.stat(abi::STAT_LISTENER), 1, "{}", s.counters());
    s.cached(b"k", b"v");
    let client = s.fast();
    becomes_fast(&mut s, client);
    (s, old, client)
}

pub(crate) fn older_that_listens() {
    let (mut s, old, client) = listener(Setup::default());
    let (epoch, gate) = (s.control().cache_epoch, s.control().gate_seen);
    let fences = s.stat(abi::STAT_FENCE_TAKEN);
    for _ in 0..20 {
        s.call(old, &[b"PING"]);
        assert!(is_fast(&mut s, client), "{}", s.counters());
        s.run(100 * MS);
    }
    let rote = b"*3\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n$2\r\n42\r\n";
    s.write(old, rote, 1);
    assert!(is_fast(&mut s, client), "{}", s.counters());
    assert_eq!(s.control().cache_epoch, epoch, "the cache was emptied");
    assert_eq!(s.control().gate_seen, gate, "the gate was shut");
    assert_eq!(s.stat(abi::STAT_FENCE_TAKEN), fences, "a fence");
}

pub(crate) fn listener_that_writes() {
    let (mut s, old, client) = listener(Setup::default());
    s.call(old, &[b"UNSUBSCRIBE", b"news"]);
    s.run(2 * SECOND);
    becomes_fast(&mut s, client);
    let fences = s.stat(abi::STAT_FENCE_PROOF);
    s.stop_daemon(true);
    s.call(old, &[b"SET", b"k", b"w"]);
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nw\r\n");
    assert!(s.stat(abi::STAT_FENCE_PROOF) > fences, "no fence");
    s.stop_daemon(false);
    s.run(2 * SECOND);
    // Half a write, the rest of which looks like what a listener says.
    s.write(old, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$12\r\n", 0);
    s.run(2 * SECOND);
    s.write(old, &request(&[b"PING"]), 1);
    s.run(MS);
    assert_eq!(
        s.call(client, &[b"GET", b"k"]),
        b"$12\r\n*1\r\n$4\r\nPING\r\n"
    );
}

/// What ERB cannot read closes the fence until Redis has run what was whole: what waits behind it, for
/// the rest of a command, EXEC or somebody's push, closes nothing.
pub(crate) fn unread_and_silent() {
    let unread = b"*1\r\n$4\r\nPINGXY".to_vec();
    for behind in [
        b"*2\r\n$3\r\nGET\r\n".to_vec(),
        request(&[b"BLPOP", b"nolist", b"0"]),
        [request(&[b"MULTI"]), request(&[b"SET", b"k", b"w"])].concat(),
    ] {
        let (mut s, client, _) = setup(Setup::default());
        let mut talk = Talk::fast(&mut s);
        talk.say(&mut s, &[unread.clone(), behind].concat());
        s.run(20 * MS);
        assert!(s.stat(abi::STAT_SCAN_LOST) > 0, "it was read");
        assert!(s.stat(abi::STAT_FENCE_PROOF) > 0, "no fence");
        s.run(500 * MS);
        assert_eq!(s.control().fence, 0, "the fence stands: {}", s.counters());
        becomes_fast(&mut s, client);
        talk.say(&mut s, &request(&[b"EXEC"]));
        s.run(500 * MS);
        let value = s.call(client, &[b"GET", b"k"]);
        assert!(value == b"$1\r\nv\r\n" || value == b"$1\r\nw\r\n");
    }
}
