// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Something was answered in Redis's place while Redis stood still; then the daemon dies, or Redis, or both, and they come
//! back in either order. Whatever asks only whether the server is there is answered as by Redis alone.

use std::time::Duration;

use erb_check::net::Conn;
use erb_check::resp;
use erb_e2e::lab::{STALL, STATE_WAIT, TestLab, wait};
use erb_e2e::process::{Owned, kill_whole};
use erb_lab::End;
use nix::sys::signal::{Signal, kill};

use super::write_back::{AGAIN, boosted, promised, ready};

/// What waits for a drain is not answered by then.
const HELD: Duration = Duration::from_millis(400);

/// Redis again, with its log.
fn redis_again(lab: &TestLab) -> Owned {
    let mut command = lab.redis(End::Server, lab.address().port());
    command.arg("--dir").arg(&lab.lab().state().redis_dir);
    Owned::start(command.args(["--appendonly", "yes"]))
}

/// A boosted lab in which Redis stood still, and has `owed` to get as `k`; the daemon, Redis or both are dead.
fn crashed(name: &str, daemon: bool, redis: bool) -> TestLab {
    let lab = boosted(name, &["--direct", "--redis-arg", "appendonly=yes"]);
    let (still, _conn) = promised(&lab, &[("k", "owed")], |_| ());
    if daemon {
        kill(lab.daemon_pid(), Signal::SIGKILL).expect("the daemon");
        wait(STATE_WAIT, || match lab.try_status()?.daemon.as_str() {
            "dead" => Ok(()),
            other => Err(other.to_owned()),
        });
    }
    if redis {
        kill_whole(lab.redis_pid());
    }
    drop(still);
    lab
}

/// As soon as Redis takes connections, each that comes by a boosted device is told whether it is there, and so is one that
/// was there before.
fn probes_are_answered(lab: &TestLab) {
    let connected = || {
        let client = lab.inside(End::Client, || Conn::connect(lab.address(), STALL));
        client.map_err(|error| error.to_string())
    };
    let mut first = wait(STATE_WAIT, connected);
    for _ in 0..2 {
        for words in [
            &["PING"][..],
            &["PING", "x"],
            &["INFO", "server"],
            &["CONFIG", "GET", "port"],
        ] {
            let mut client = connected().expect("Redis takes connections");
            for client in [&mut first, &mut client] {
                let reply = client.call(words).expect("an answer");
                let is_told =
                    matches!(reply[0], b'+' | b'$' | b'*') || reply.starts_with(b"-LOADING");
                assert!(is_told, "{words:?}: {}", reply.escape_ascii());
            }
        }
    }
}

/// What reads and writes waits.
fn writes_wait(lab: &TestLab) {
    let mut client = lab.client();
    client.send(&resp::command(&["INCR", "n"])).expect("send");
    client
        .stream()
        .set_read_timeout(Some(HELD))
        .expect("an option");
    let mut byte = [0];
    let read = std::io::Read::read(&mut client.stream(), &mut byte);
    assert!(
        read.is_err(),
        "it was answered before what was answered earlier"
    );
}

/// All is as if nothing had been.
fn recovered(lab: &TestLab) {
    ready(lab);
    let get = ["EVAL", "return redis.call('GET',KEYS[1])", "1", "k"];
    let reply = lab.unseen().call(&get).expect("EVAL");
    assert_eq!(reply, b"$4\r\nowed\r\n");
    lab.assert_settled();
}

#[test]
fn probes_are_answered_while_the_daemon_is_away() {
    let lab = crashed("crashd", true, false);
    probes_are_answered(&lab);
    writes_wait(&lab);
    assert!(lab.boost(&AGAIN).status.success());
    recovered(&lab);
}

#[test]
fn probes_are_answered_by_a_redis_that_comes_back() {
    let lab = crashed("crashr", false, true);
    let _redis = redis_again(&lab);
    probes_are_answered(&lab);
    recovered(&lab);
}

#[test]
fn probes_are_answered_by_a_redis_that_comes_back_before_the_daemon() {
    let lab = crashed("crashrd", true, true);
    let _redis = redis_again(&lab);
    probes_are_answered(&lab);
    writes_wait(&lab);
    assert!(lab.boost(&AGAIN).status.success());
    recovered(&lab);
}

#[test]
fn a_boost_without_redis_says_so_and_the_next_one_brings_what_is_owed() {
    let lab = crashed("crashdr", true, true);
    let output = lab.boost(&AGAIN);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let _redis = redis_again(&lab);
    probes_are_answered(&lab);
    assert!(lab.boost(&AGAIN).status.success());
    recovered(&lab);
}
