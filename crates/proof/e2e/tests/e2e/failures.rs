// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Feed, Redis or daemon die, stop or return: late at most by the lease, never wrong.

use std::thread::sleep;
use std::time::Duration;

use erb_check::net::{Broken, Conn};
use erb_check::resp;
use erb_e2e::calls::{bulk, call, expect, get, set};
use erb_e2e::lab::{STATE_WAIT, TestLab, erb_bin, wait};
use erb_e2e::process::signal;
use erb_lab::End;
use erb_steady::{out_of_patience, skipped};
use nix::sys::signal::Signal;

/// The lease, 100 ms, and what a busy machine adds.
const LEASE_OVER: Duration = Duration::from_millis(300);

/// A lab with a client for which `hot` is a hit.
fn hot_lab(name: &str) -> (TestLab, Conn) {
    let lab = TestLab::boosted_with(name, &["--direct"]);
    let mut conn = lab.client();
    set(&mut conn, "hot", "old");
    lab.heat(&mut conn, "hot");
    (lab, conn)
}

/// Reads and writes on a connection that ERB has translated, none of it answered fast.
fn works_without_hits(lab: &TestLab, conn: &mut Conn) {
    let before = lab.counters();
    for number in 0..200 {
        let value = number.to_string();
        set(conn, "own", &value);
        assert_eq!(get(conn, "own"), Some(value));
        assert!(get(conn, "hot").is_some());
    }
    let fast = lab.counters().since(&before, "FAST_GET");
    assert_eq!(fast, 0, "answers without a lease");
}

fn feed_id(conn: &mut Conn) -> String {
    let list = call(conn, "CLIENT LIST");
    let line = list.lines().find(|line| line.contains("name=erb-feed"));
    let line = line.unwrap_or_else(|| panic!("no feed in {list}"));
    let id = line.split(' ').find_map(|field| field.split("id=").nth(1));
    id.expect("its id").to_owned()
}

/// Redis closes who is owed more than its limit of output, with all that was answered before: the reason
/// must be told, as nothing else shows it.
#[test]
fn a_limit_of_output_below_the_list_of_clients_is_told() {
    let (lab, mut conn) = hot_lab("outlimit");
    let mut unseen = lab.unseen();
    let many: Vec<Conn> = (0..400).map(|_| lab.unseen()).collect();
    let limit = |conn: &mut Conn, limit: &str| {
        let setting = format!("normal {limit} 0 0");
        let words = ["CONFIG", "SET", "client-output-buffer-limit", &setting];
        assert_eq!(conn.call(&words).expect("a reply"), b"+OK\r\n");
    };
    let id = feed_id(&mut unseen);
    limit(&mut unseen, "81920");
    // A feed that begins anew asks for the list first, so Redis closes it.
    expect(&mut unseen, &format!("CLIENT KILL ID {id}"), ":1\r\n");
    let word = "client-output-buffer-limit normal";
    lab.wait_refusing(word, STATE_WAIT);
    let mut doctor = lab.lab().exec(End::Server, erb_bin()).expect("exec");
    doctor.args(["doctor", "--redis", &lab.address().to_string()]);
    let told = doctor.output().expect("erb doctor").stdout;
    let told = String::from_utf8_lossy(&told).into_owned();
    assert!(told.contains("is owed more than 81920 bytes"), "{told}");
    drop(many);
    limit(&mut unseen, "0");
    lab.wait_admitting();
    lab.heat(&mut conn, "hot");
}

#[test]
fn a_killed_feed_costs_a_moment_and_hides_no_write() {
    let (lab, mut conn) = hot_lab("feedkill");
    let mut unseen = lab.unseen();
    for round in 0..5 {
        let id = feed_id(&mut unseen);
        expect(&mut unseen, &format!("CLIENT KILL ID {id}"), ":1\r\n");
        let value = format!("new{round}");
        set(&mut unseen, "hot", &value);
        sleep(LEASE_OVER);
        assert_eq!(get(&mut conn, "hot"), Some(value), "round {round}");
        lab.wait_admitting();
        lab.heat(&mut conn, "hot");
    }
    assert!(lab.status().redis.feeds_made > 5);
    lab.assert_settled();
}

#[test]
fn a_restarted_redis_shows_its_own_data_only() {
    let (lab, mut conn) = hot_lab("redisnew");
    signal(lab.redis_pid(), Signal::SIGKILL);
    let broken = wait(STATE_WAIT, || match conn.call(&["GET", "hot"]) {
        Err(broken) => Ok(broken),
        Ok(reply) => Err(format!("still answered: {}", resp::show(&reply, 80))),
    });
    assert!(matches!(broken, Broken::Eof | Broken::Reset(_)), "{broken}");
    let _redis = lab.redis_again();
    let mut conn = lab.client();
    assert_eq!(get(&mut conn, "hot"), None, "the new Redis is empty");
    lab.wait_admitting();
    assert_eq!(get(&mut conn, "hot"), None, "the new Redis is empty");
    let mut conn = lab.client();
    set(&mut conn, "hot", "new");
    lab.heat(&mut conn, "hot");
    expect(&mut conn, "GET hot", &bulk("new"));
    lab.assert_settled();
}

#[test]
fn nothing_is_answered_for_a_redis_that_stands_still() {
    let (lab, mut conn) = hot_lab("redisstop");
    let redis = lab.redis_pid();
    signal(redis, Signal::SIGSTOP);
    sleep(LEASE_OVER);
    conn.send(&resp::command(&["GET", "hot"])).expect("send");
    let early = conn.rest(Duration::from_millis(500));
    signal(redis, Signal::SIGCONT);
    assert!(
        early.is_empty(),
        "answered while Redis stood still: {}",
        resp::show(&early, 80)
    );
    assert_eq!(conn.reply().expect("reply"), bulk("old").into_bytes());
    lab.wait_admitting();
    lab.heat(&mut conn, "hot");
    lab.assert_settled();
}

#[test]
fn connections_go_on_without_the_daemon_and_a_new_one_adopts_them() {
    let (lab, mut conn) = hot_lab("daemonkill");
    signal(lab.daemon_pid(), Signal::SIGKILL);
    sleep(LEASE_OVER);
    assert_eq!(lab.status().daemon, "dead");
    works_without_hits(&lab, &mut conn);
    let mut unseen = lab.unseen();
    set(&mut unseen, "hot", "new");
    expect(&mut lab.client(), "GET hot", &bulk("new"));
    let output = lab.boost(&["--dev", "s0"]);
    assert!(output.status.success(), "{output:?}");
    expect(&mut conn, "GET hot", &bulk("new"));
    lab.wait_admitting();
    expect(&mut conn, "GET hot", &bulk("new"));
    expect(&mut conn, "INCR counter", ":1\r\n");
    let mut fresh = lab.client();
    lab.heat(&mut fresh, "hot");
    expect(&mut fresh, "GET hot", &bulk("new"));
    expect(&mut conn, "GET hot", &bulk("new"));
    lab.assert_settled();
}

#[test]
fn a_daemon_that_stands_still_lets_no_old_value_live() {
    let (lab, mut conn) = hot_lab("daemonstop");
    let daemon = lab.daemon_pid();
    let mut unseen = lab.unseen();
    for round in 0..3 {
        let before = lab.counters();
        signal(daemon, Signal::SIGSTOP);
        let value = format!("new{round}");
        set(&mut unseen, "hot", &value);
        sleep(LEASE_OVER);
        let seen = get(&mut conn, "hot");
        for number in 0..50 {
            set(&mut conn, "own", &number.to_string());
        }
        signal(daemon, Signal::SIGCONT);
        assert_eq!(seen.as_ref(), Some(&value), "round {round}");
        assert_eq!(get(&mut conn, "hot"), Some(value));
        assert_eq!(lab.counters().since(&before, "INVARIANT"), 0);
        lab.wait_admitting();
        lab.heat(&mut conn, "hot");
    }
    lab.assert_settled();
}

#[test]
fn a_daemon_that_stands_still_for_long_is_ended_and_can_be_started_again() {
    let (lab, mut conn) = hot_lab("guard");
    signal(lab.daemon_pid(), Signal::SIGSTOP);
    wait(STATE_WAIT, || match lab.try_status() {
        Ok(status) if status.daemon == "dead" => Ok(()),
        Ok(status) => Err(format!("the daemon is {}", status.daemon)),
        Err(why) => Err(why),
    });
    works_without_hits(&lab, &mut conn);
    let output = lab.boost(&["--dev", "s0"]);
    assert!(output.status.success(), "{output:?}");
    lab.wait_admitting();
    lab.heat(&mut lab.client(), "hot");
    // One that works is left alone.
    let daemon = lab.daemon_pid();
    sleep(Duration::from_secs(8));
    assert_eq!(lab.daemon_pid(), daemon);
    lab.assert_settled();
}

/// Rules of netfilter in the server; false if this system has no nft or its kernel no such rule.
fn nft(lab: &TestLab, rules: &str) -> bool {
    let mut nft = lab.lab().exec(End::Server, "nft").expect("exec");
    match nft.arg(rules).output() {
        Ok(output) if output.status.success() => true,
        Ok(output) if String::from_utf8_lossy(&output.stderr).contains("syntax error") => {
            panic!("{rules}: {output:?}")
        }
        other => {
            skipped(format_args!("no rule that rejects here: {other:?}"));
            false
        }
    }
}

/// netfilter's reset bears the number of the packet that it answers, which ERB has translated.
#[test]
fn a_rule_that_rejects_ends_clients_at_once() {
    let lab = TestLab::boosted_with("reject", &["--direct"]);
    let mut conns = [lab.client(), lab.client_to(lab.address6())];
    for conn in &mut conns {
        set(conn, "hot", "value");
        lab.heat(conn, "hot");
    }
    let rules = format!(
        "add table inet rejects; \
         add chain inet rejects input {{ type filter hook input priority filter; }}; \
         add rule inet rejects input tcp dport {} reject with tcp reset",
        lab.address().port()
    );
    if !nft(&lab, &rules) {
        return;
    }
    for conn in &mut conns {
        let before = conn.retransmissions().expect("TCP_INFO");
        conn.send(b"SET hot other\r\n").expect("send");
        let ended = conn.fill();
        assert!(matches!(ended, Err(Broken::Reset(_))), "{ended:?}");
        // Not by its second attempt; a machine that does other things may make one.
        if conn.retransmissions().expect("TCP_INFO") > before {
            out_of_patience("the reset came to what was sent again");
        }
    }
    assert!(nft(&lab, "delete table inet rejects"));
    let mut conn = lab.client();
    assert_eq!(get(&mut conn, "hot").as_deref(), Some("value"));
}
