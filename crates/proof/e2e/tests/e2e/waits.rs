// SPDX-License-Identifier: Apache-2.0 OR MIT
//! WAIT after SETs that were answered in Redis's place: what it counts has them (`bpf/splice/order.h`, Y8). What may
//! cure a Redis that refuses them waits for nothing (Y6).

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use erb_check::net::{Broken, Conn};
use erb_check::resp;
use erb_e2e::calls::{call, expect, set};
use erb_e2e::lab::{STALL, STATE_WAIT, TestLab, wait};
use erb_e2e::process::{Owned, Still};
use erb_lab::End;
use erb_lab::servers::{CANNOT_BE_HAD, ServerProgram};
use erb_steady::{out_of_patience, skipped};

use super::master::replica;
use super::write_back::{boosted, boosted_beside_a_socket, promised};

/// The replica's port, on the client's end.
const PORT: u16 = 6393;
/// A replica that stands still is not called one for so long.
const STILL: Duration = Duration::from_millis(700);

/// A client that asks for replicas is not ended sooner, and one that asks for nothing of the kind not before this.
const HASTE: Duration = Duration::from_secs(3);
const HOLD_MAX: Duration = Duration::from_secs(5);

/// So often a log's sync is waited for.
const SYNCS: u64 = 4;

/// What Redis has refused for so long is called so.
const REFUSED_LONG: Duration = Duration::from_millis(1_300);

/// A client one of whose SETs is answered in Redis's place.
fn answered(lab: &TestLab, key: &str) -> Conn {
    let mut conn = lab.client();
    wait(STATE_WAIT, || {
        let before = lab.counters();
        set(&mut conn, key, "value");
        let now = lab.counters();
        let is_answered = now.since(&before, "ABSORBED") > 0;
        is_answered.then_some(()).ok_or(now.moved(&before))
    });
    conn
}

/// Boosted, with this server; none: it cannot be had here.
fn boosted_with(server: ServerProgram, name: &str, word: &str) -> Option<TestLab> {
    if let Err(error) = server.program() {
        let error = format!("{error:#}");
        assert!(error.contains(CANNOT_BE_HAD), "{error}");
        skipped(error);
        return None;
    }
    Some(boosted(name, &["--server", word]))
}

#[test]
fn replicas_that_wait_counts_have_what_was_answered() {
    assert_counted(&boosted("waits", &[]));
}

#[test]
fn replicas_that_wait_of_redis_8_counts_have_what_was_answered() {
    if let Some(lab) = boosted_with(ServerProgram::Redis8, "waits8", "redis8") {
        assert_counted(&lab);
    }
}

#[test]
fn replicas_that_wait_of_valkey_8_counts_have_what_was_answered() {
    if let Some(lab) = boosted_with(ServerProgram::Valkey8, "waitsv", "valkey8") {
        assert_counted(&lab);
    }
}

/// From now on a connection's SETs are Redis's: the next one that is asked while SETs are answered tells so.
fn assert_redis_own(lab: &TestLab, conn: &mut Conn, key: &str) {
    wait(STATE_WAIT, || {
        let before = lab.counters();
        set(conn, key, "value");
        let after = lab.counters();
        assert_eq!(after.since(&before, "ABSORBED"), 0, "{key} was answered");
        let is_asked = after.since(&before, "ABSORB_ASKED") == 1;
        is_asked.then_some(()).ok_or_else(|| after.moved(&before))
    });
}

fn assert_counted(lab: &TestLab) {
    let replica = replica(lab, PORT, 0);
    let address = (Ipv4Addr::LOCALHOST, PORT).into();
    let there = || Conn::connect(address, STALL).expect("the replica");
    let mut of_replica = lab.inside(End::Client, there);
    let mut conn = answered(lab, "first");
    expect(&mut conn, "WAIT 1 0", ":1\r\n");
    expect(&mut of_replica, "GET first", "$5\r\nvalue\r\n");

    // Its later writes are Redis's, and so is what it counts.
    assert_redis_own(lab, &mut conn, "second");
    expect(&mut conn, "WAIT 1 0", ":1\r\n");

    // Redis would count a replica that has nothing of it: it counts from what it knows of this client.
    let mut other = answered(lab, "third");
    let mut hasty = answered(lab, "hasty");
    let still = Still::of(replica.pid());
    set(&mut other, "fourth", "value");
    let began = Instant::now();
    let waits = spawn(move || call(&mut other, "WAIT 1 0"));
    sleep(STILL);
    assert!(!waits.is_finished(), "the replica stands still");
    // A client that was answered nothing asks Redis alone: no replica has its write in time.
    set(&mut conn, "fifth", "value");
    expect(&mut conn, "WAIT 1 100", ":0\r\n");
    // A client that would not have waited longer is told nothing that may be wrong.
    set(&mut hasty, "hasty", "value");
    let asked = Instant::now();
    let broken = hasty.call(&["WAIT", "1", "100"]);
    assert!(
        matches!(broken, Err(Broken::Eof | Broken::Reset(_))),
        "{broken:?}"
    );
    let waited = asked.elapsed();
    assert!(waited >= HASTE, "{waited:?}");
    if waited >= HOLD_MAX {
        out_of_patience(format_args!(
            "it was ended as late as any other: {waited:?}"
        ));
    }
    drop(still);
    let reply = waits.join().expect("a thread of this test panicked");
    assert_eq!(reply, ":1\r\n");
    assert!(began.elapsed() >= STILL);
    expect(&mut of_replica, "GET fourth", "$5\r\nvalue\r\n");

    // Without a replica Redis itself waits, and counts none.
    drop(replica);
    let mut admin = lab.unseen();
    wait(STATE_WAIT, || {
        let info = call(&mut admin, "INFO replication");
        info.contains("connected_slaves:0")
            .then_some(())
            .ok_or(info)
    });
    let mut last = answered(lab, "last");
    expect(&mut last, "WAIT 1 50", ":0\r\n");
    assert_nothing_is_left(&mut admin, 7);
}

/// Of what the daemon did to find out, Redis has nothing.
fn assert_nothing_is_left(admin: &mut Conn, keys: u32) {
    expect(admin, "DBSIZE", &format!(":{keys}\r\n"));
    expect(admin, "KEYS *erb*", "*0\r\n");
}

/// A client that asks is answered when Redis's log has what was answered to it, synced, and not before. `waits`: this
/// server itself has it wait for that; Valkey 8.1 says at once that it is so.
fn assert_synced(lab: &TestLab, waits: bool) {
    let mut admin = lab.unseen();
    let conns: Vec<Conn> = (0..SYNCS)
        .map(|number| answered(lab, &format!("log{number}")))
        .collect();
    let began = Instant::now();
    for (number, mut conn) in conns.into_iter().enumerate() {
        set(&mut conn, &format!("log{number}"), "another");
        expect(&mut conn, "WAITAOF 1 0 0", "*2\r\n:1\r\n:0\r\n");
        // From then on Redis has this connection's SETs itself.
        assert_redis_own(lab, &mut conn, &format!("own{number}"));
    }
    // It syncs once a second: between so many of these lie so many seconds, but for the first and a part of one.
    assert!(
        !waits || began.elapsed() >= Duration::from_secs(SYNCS - 2),
        "{:?}",
        began.elapsed()
    );
    assert_nothing_is_left(&mut admin, 2 * u32::try_from(SYNCS).expect("few"));
    // A replica's log, too.
    let mut replica = lab.redis(End::Client, PORT);
    let master = lab.address();
    let words = [master.ip().to_string(), master.port().to_string()];
    replica.args(["--bind", "127.0.0.1", "--appendonly", "yes"]);
    let _replica = Owned::start(replica.args(["--replicaof", &words[0], &words[1]]));
    wait(STATE_WAIT, || {
        let info = call(&mut admin, "INFO replication");
        info.contains("state=online").then_some(()).ok_or(info)
    });
    let mut conn = answered(lab, "both");
    expect(&mut conn, "WAITAOF 1 1 0", "*2\r\n:1\r\n:1\r\n");
    // With `appendfsync no` Redis never tells that it has synced: no client is kept waiting for that.
    expect(&mut admin, "CONFIG SET appendfsync no", "+OK\r\n");
    let mut conn = answered(lab, "never");
    expect(&mut conn, "WAIT 1 0", ":1\r\n");
    // Without a log Redis says so itself.
    expect(&mut admin, "CONFIG SET appendonly no", "+OK\r\n");
    let mut conn = answered(lab, "none");
    let reply = call(&mut conn, "WAITAOF 1 0 0");
    assert!(reply.starts_with("-ERR WAITAOF"), "{reply}");
    lab.assert_settled();
}

#[test]
fn a_log_that_waitaof_of_redis_8_counts_has_what_was_answered() {
    if let Some(lab) = boosted_with(ServerProgram::Redis8, "waitaof8", "redis8") {
        assert_synced(&lab, true);
    }
}

#[test]
fn a_log_that_waitaof_of_valkey_8_counts_has_what_was_answered() {
    if let Some(lab) = boosted_with(ServerProgram::Valkey8, "waitaofv", "valkey8") {
        assert_synced(&lab, false);
    }
}

/// Redis refuses what was answered: what may be the cure goes by, all else waits.
#[test]
fn a_redis_that_refuses_what_was_answered_can_be_cured() {
    let lab = boosted_beside_a_socket("cured");
    let mut others: Vec<Conn> = (0..2).map(|_| lab.client()).collect();
    let [beside, waiting] = &mut others[..] else {
        unreachable!("two were made")
    };
    expect(beside, "PING", "+PONG\r\n");
    expect(waiting, "PING", "+PONG\r\n");
    // What no device shows makes Redis refuse what was promised: --allow-unseen has that price.
    let socket = lab.lab().state().redis_dir.join("redis.sock");
    let admin = UnixStream::connect(socket).expect("redis");
    let wants_replicas = |count| {
        let words = ["CONFIG", "SET", "min-replicas-to-write", count];
        (&admin).write_all(&resp::command(&words)).expect("send");
    };
    // It comes to Redis before what is promised does.
    let (still, _conn) = promised(&lab, &[("key", "promised")], |undo| {
        wants_replicas(if undo { "0" } else { "1" });
    });
    drop(still);
    wait(STATE_WAIT, || {
        let writes = lab.try_status()?.writes;
        let refused = writes
            .conditions
            .iter()
            .any(|one| one.why.contains("NOREPLICAS"));
        refused.then_some(()).ok_or(format!("{writes:?}"))
    });
    assert_eq!(lab.status().writes.waiting, 1);
    sleep(REFUSED_LONG);
    let held = lab.counters();
    expect(beside, "BGSAVE", "+Background saving started\r\n");
    waiting
        .send(&resp::command(&["INCR", "number"]))
        .expect("send");
    wait(STATE_WAIT, || {
        let now = lab.counters();
        (now.since(&held, "HELD") > 0)
            .then_some(())
            .ok_or(now.moved(&held))
    });
    expect(beside, "CONFIG SET min-replicas-to-write 0", "+OK\r\n");
    assert_eq!(waiting.reply().expect("a reply"), b":1\r\n");
    expect(&mut lab.unseen(), "GET key", "$8\r\npromised\r\n");
}
