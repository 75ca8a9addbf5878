// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The boosted Redis is a replica: what its master writes comes by replication, which no packet on a
//! boosted device shows.

use std::time::{Duration, Instant};

use erb_check::net::Conn;
use erb_e2e::calls::{call, expect, get, set};
use erb_e2e::lab::{STATE_WAIT, TestLab, scaled, wait};

use crate::history::assert_changes_show;

const MASTER_PORT: u16 = 6391;
/// The bound on unseen changes, and some time for a busy machine to carry replication.
const SOON: Duration = Duration::from_millis(1500);

fn follow(lab: &TestLab, admin: &mut Conn) {
    expect(
        admin,
        &format!("REPLICAOF 127.0.0.1 {MASTER_PORT}"),
        "+OK\r\n",
    );
    wait(Duration::from_secs(20), || {
        let info = call(admin, "INFO replication");
        let up = info.contains("master_link_status:up");
        up.then_some(()).ok_or(info)
    });
    lab.wait_admitting();
}

/// Reads `key` until it has `value`; how long that took.
fn appears(conn: &mut Conn, key: &str, value: Option<&str>) -> Duration {
    let since = Instant::now();
    wait(SOON, || {
        let found = get(conn, key);
        (found.as_deref() == value)
            .then_some(())
            .ok_or_else(|| format!("{key} is still {found:?}"))
    });
    since.elapsed()
}

#[test]
fn a_replica_follows_its_master() {
    let lab = TestLab::boosted_with("replica", &["--direct"]);
    let master = lab.redis_on(MASTER_PORT);
    let (mut writer, mut admin) = (lab.unseen_on(MASTER_PORT), lab.unseen());
    let mut reader = lab.client();
    set(&mut admin, "k", "replicas");
    lab.heat(&mut reader, "k");
    set(&mut writer, "k", "v");
    follow(&lab, &mut admin);
    // The full resynchronisation has taken the old value away.
    assert_eq!(get(&mut reader, "k").as_deref(), Some("v"));
    for round in 0..scaled(20, 500) {
        lab.heat(&mut reader, "k");
        let value = format!("v{round}");
        set(&mut writer, "k", &value);
        appears(&mut reader, "k", Some(&value));
    }
    // Whatever the master does to the key: a script, a transaction, an end, SWAPDB, FLUSHALL.
    let changes = [
        ("EVAL redis.call('set',KEYS[1],'lua') 1 k", Some("lua")),
        ("RENAME other k", Some("renamed")),
        ("PEXPIRE k 30", None),
        ("SET k back", Some("back")),
        ("SWAPDB 0 1", None),
        ("SWAPDB 0 1", Some("back")),
        ("FLUSHALL", None),
    ];
    for (words, value) in changes {
        set(&mut writer, "other", "renamed");
        if get(&mut reader, "k").is_some() {
            lab.heat(&mut reader, "k");
        }
        let script = "redis.call('set',KEYS[1],'lua')";
        let words: Vec<&str> = match words.strip_prefix("EVAL ") {
            Some(_) => vec!["EVAL", script, "1", "k"],
            None => words.split(' ').collect(),
        };
        let reply = writer.call(&words).expect("a reply");
        assert!(!reply.starts_with(b"-"), "{words:?}: {reply:?}");
        appears(&mut reader, "k", value);
    }
    // A client of the replica may not write, and its mark does not stay.
    set(&mut writer, "k", "v");
    appears(&mut reader, "k", Some("v"));
    assert!(call(&mut reader, "SET k mine").starts_with("-READONLY"));
    lab.heat(&mut reader, "k");
    // Promoted, it goes on at once with what it has.
    expect(&mut admin, "REPLICAOF NO ONE", "+OK\r\n");
    drop(master);
    set(&mut reader, "k", "mine");
    lab.heat(&mut reader, "k");
    assert_eq!(get(&mut reader, "k").as_deref(), Some("mine"));
    lab.assert_settled();
}

#[test]
fn changes_of_every_kind_at_the_master_show_within_the_lease() {
    let lab = TestLab::boosted_with("replicakinds", &["--direct"]);
    let _master = lab.redis_on(MASTER_PORT);
    follow(&lab, &mut lab.unseen());
    let (master, rounds) = (lab.unseen_address_of(MASTER_PORT), scaled(10, 100));
    assert_changes_show(&lab, &format!("--master {master} --rounds {rounds}"));
}

/// Redis refuses reads (-MASTERDOWN): so does ERB, at once if the command came through it, else
/// within the lease.
#[test]
fn without_its_master_a_replica_shows_no_stale_data() {
    let lab = TestLab::boosted_with("masterdown", &["--direct"]);
    let mut admin = lab.client();
    set(&mut admin, "hot", "v");
    expect(
        &mut admin,
        "CONFIG SET replica-serve-stale-data no",
        "+OK\r\n",
    );
    lab.wait_admitting();
    for unseen in [false, true] {
        let mut reader = lab.client();
        lab.heat(&mut reader, "hot");
        let mut by = if unseen { lab.unseen() } else { lab.client() };
        expect(&mut by, "REPLICAOF 127.0.0.1 1", "+OK\r\n");
        if unseen {
            std::thread::sleep(Duration::from_millis(150));
        }
        for _ in 0..50 {
            let reply = call(&mut reader, "GET hot");
            assert!(reply.starts_with("-MASTERDOWN"), "{reply:?}");
        }
        lab.wait_refusing("MASTERDOWN", STATE_WAIT);
        expect(&mut by, "REPLICAOF NO ONE", "+OK\r\n");
        lab.wait_admitting();
        lab.heat(&mut reader, "hot");
    }
    lab.assert_settled();
}
