// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A Redis that is started again with fewer databases than the one in whose place SETs were answered.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use erb_e2e::calls::expect;
use erb_e2e::lab::{STATE_WAIT, TestLab, wait};
use erb_e2e::process::{Owned, kill_whole};
use erb_lab::End;

use super::write_back::{boosted_beside_a_socket, promised_in};

/// What the lab's Redis has, as nothing else is configured.
const MANY: &str = "16";
/// Fewer than the test's SETs need.
const FEW: &str = "4";
/// The database of those.
const NINE: &str = "9";

/// Redis again, with its log and so many databases.
fn restarted(lab: &TestLab, databases: &str) -> Owned {
    let mut command = lab.redis(End::Server, lab.address().port());
    command.arg("--dir").arg(&lab.lab().state().redis_dir);
    command.args(["--unixsocket", "redis.sock", "--appendonly", "yes"]);
    Owned::start(command.args(["--databases", databases]))
}

/// What Redis says past all devices, where nothing waits: as many lines as it is asked commands.
fn says(lab: &TestLab, commands: &[&str]) -> Vec<String> {
    let socket = lab.lab().state().redis_dir.join("redis.sock");
    let stream = UnixStream::connect(socket).expect("redis");
    let asked: String = commands.iter().map(|one| format!("{one}\r\n")).collect();
    (&stream).write_all(asked.as_bytes()).expect("send");
    let lines = BufReader::new(stream).lines().take(commands.len());
    lines.map(|line| line.expect("a reply")).collect()
}

#[test]
fn a_write_of_a_database_that_redis_has_no_more_waits_and_goes_into_no_other() {
    let lab = boosted_beside_a_socket("wbdbs");
    let mut conn = lab.client();
    expect(&mut conn, "CONFIG SET appendonly yes", "+OK\r\n");
    expect(&mut conn, "SET k v0", "+OK\r\n");
    let (still, _conn) = promised_in(&lab, NINE, &[("k", "nine")], |_| ());
    kill_whole(lab.redis_pid());
    drop(still);

    let few = restarted(&lab, FEW);
    wait(STATE_WAIT, || {
        let writes = lab.try_status()?.writes;
        let mut told = writes.conditions.iter().filter(|one| !one.met);
        let is_told = told.any(|one| {
            one.condition == "drain"
                && one.why.contains("database 9")
                && one.why.contains("databases 10")
        });
        (is_told && !writes.open && writes.waiting == 1)
            .then_some(())
            .ok_or(format!("{writes:?}"))
    });
    // What Redis had of database 9 its own loader has put into another one; `nine` is in none.
    let asked = ["STRLEN k", "SELECT 1", "EXISTS k", "SELECT 3", "EXISTS k"];
    assert_eq!(says(&lab, &asked), [":1", "+OK", ":0", "+OK", ":0"]);

    drop(few);
    let _many = restarted(&lab, MANY);
    wait(STATE_WAIT, || {
        let writes = lab.try_status()?.writes;
        let good = writes.open && writes.waiting == 0;
        good.then_some(()).ok_or(format!("{writes:?}"))
    });
    let asked = ["STRLEN k", "SELECT 9", "STRLEN k"];
    assert_eq!(says(&lab, &asked), [":2", "+OK", ":4"]);
    lab.assert_settled();
}
