// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A master with replicas is boosted while it is in use: replicas older than the boost, and new
//! ones, cost the others nothing.

use std::thread;

use erb_check::net::Conn;
use erb_check::resp;
use erb_e2e::calls::{call, expect, set};
use erb_e2e::lab::{STALL, STATE_WAIT, TestLab, scaled, wait};
use erb_e2e::process::Owned;
use erb_e2e::turn::Turn;
use erb_lab::End;
use erb_steady::too_slow;

/// The replicas' ports, on the client's end: what they say comes by the boosted device.
const OLDER_PORT: u16 = 6391;
const NEWER_PORT: u16 = 6392;
const READERS: usize = 8;
/// A key is cached once it was missed twice and the daemon has had time for it: so many passes at most, ten times
/// what a machine needs that does nothing else.
const PASSES_MAX: usize = 80;
/// Almost all reads: a few keys miss while they are filled anew.
const ALMOST_ALL: f64 = 0.98;
/// All keys fit, also `ERB_LONG`'s 100,000.
const CACHE: &str = "256M";
/// Commands in one write while keys are made.
const BATCH: usize = 500;

fn keys() -> usize {
    scaled(8_000, 100_000)
}

fn load(conn: &mut Conn) {
    let keys: Vec<usize> = (0..keys()).collect();
    for batch in keys.chunks(BATCH) {
        let bytes: Vec<u8> = batch
            .iter()
            .flat_map(|n| resp::command(&["SET", &format!("key:{n}"), &format!("value:{n}")]))
            .collect();
        conn.send(&bytes).expect("send");
        for _ in batch {
            assert_eq!(conn.reply().expect("a reply"), b"+OK\r\n");
        }
    }
}

/// A replica of the lab's Redis; it follows when this returns.
pub(super) fn replica(lab: &TestLab, port: u16, already: usize) -> Owned {
    let state = lab.lab().state();
    let master = [state.server.ipv4.to_string(), state.redis_port.to_string()];
    let mut command = lab.redis(End::Client, port);
    command.args(["--bind", "127.0.0.1", "--replicaof", &master[0], &master[1]]);
    let replica = Owned::start(&mut command);
    let mut admin = lab.unseen();
    wait(STATE_WAIT, || {
        let info = call(&mut admin, "INFO replication");
        let online = info.matches("state=online").count();
        (online == already + 1).then_some(()).ok_or(info)
    });
    replica
}

/// All readers read all their keys, one after the other; every value must be the right one.
fn pass(readers: &mut [Conn]) {
    thread::scope(|scope| {
        for (first, conn) in readers.iter_mut().enumerate() {
            scope.spawn(move || {
                for n in (first..keys()).step_by(READERS) {
                    let value = format!("value:{n}");
                    let reply = format!("${}\r\n{value}\r\n", value.len());
                    expect(conn, &format!("GET key:{n}"), &reply);
                }
            });
        }
    });
}

/// The largest share of the reads of a pass that ERB answers; passes end once it is almost all of them.
fn fast_share(lab: &TestLab) -> f64 {
    let mut readers: Vec<Conn> = (0..READERS).map(|_| lab.client()).collect();
    let mut best = 0.0_f64;
    for number in 1..=PASSES_MAX {
        let before = lab.counters();
        pass(&mut readers);
        let after = lab.counters();
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let share = after.since(&before, "FAST_GET") as f64 / keys() as f64;
        best = best.max(share);
        if best > ALMOST_ALL || number == PASSES_MAX {
            println!("pass {number}: {}", after.moved(&before));
            break;
        }
    }
    best
}

/// Boosts a master with so many replicas while clients are connected; the share of fast answers.
fn boosted_in_use(name: &str, older: bool, newer: bool) -> f64 {
    let mut lab = TestLab::up_in(
        Turn::alone(),
        name,
        &["--direct", "--redis-arg", "repl-diskless-sync-delay=0"],
    );
    lab.use_run_dir(format!("/run/erb/e2e-{name}"));
    let mut client = lab.client();
    load(&mut client);
    let first = older.then(|| replica(&lab, OLDER_PORT, 0));
    let (redis, device) = (lab.address().to_string(), &lab.lab().state().server.device);
    let output = lab.erb(&[
        "boost",
        "--redis",
        &redis,
        "--dev",
        device,
        "--cache-size",
        CACHE,
    ]);
    assert!(output.status.success(), "{output:?}");
    lab.wait_admitting();
    lab.never_aside();
    let second = newer.then(|| replica(&lab, NEWER_PORT, usize::from(older)));
    lab.wait_admitting();
    let share = fast_share(&lab);
    // What is written reaches the replicas.
    set(&mut client, "last", "word");
    for (port, _) in [(OLDER_PORT, &first), (NEWER_PORT, &second)]
        .iter()
        .filter(|(_, r)| r.is_some())
    {
        let to = std::net::SocketAddr::from(([127, 0, 0, 1], *port));
        let mut conn = lab.inside(End::Client, || Conn::connect(to, STALL).expect("connect"));
        wait(STATE_WAIT, || {
            let reply = call(&mut conn, "GET last");
            (reply == "$4\r\nword\r\n").then_some(()).ok_or(reply)
        });
    }
    lab.assert_settled();
    share
}

#[test]
fn replicas_of_a_master_that_is_boosted_in_use_cost_no_hits() {
    let replicas = [
        ("without", false, false),
        ("older", true, false),
        ("newer", false, true),
    ];
    for (name, older, newer) in replicas {
        let share = boosted_in_use(name, older, newer);
        println!("{name}: {share:.4} of the reads are fast");
        if share <= ALMOST_ALL {
            too_slow(format_args!(
                "{share:.3} of the reads are fast, replica: {name}"
            ));
        }
    }
}
