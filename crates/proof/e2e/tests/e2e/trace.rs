// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb trace`: each packet with its stage, verdict and every reason; and a data path that is the same
//! before, after and under it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use erb_check::net::Conn;
use erb_e2e::calls::{call, expect, get, set};
use erb_e2e::lab::{STATE_WAIT, TestLab, erb_bin, wait};
use erb_e2e::process::signal;
use erb_e2e::turn::Turn;
use erb_lab::{End, xdp_pass};
use erb_steady::{out_of_patience, too_slow};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;

/// Exit codes of `erb --help`.
const NOT_BOOSTED: i32 = 12;
const OTHER_BUILD: i32 = 15;
const ALREADY_TRACED: i32 = 17;

/// Time in which everything that was counted is written.
const WRITTEN: Duration = Duration::from_millis(200);

/// A trace at work.
pub(crate) struct Trace {
    process: Child,
    said: BufReader<ChildStderr>,
}

impl Trace {
    /// Returns when it traces.
    pub(crate) fn start(lab: &TestLab, words: &[&str]) -> Self {
        let mut trace = Self::spawn(lab, words);
        trace.hear("tracing");
        trace
    }

    /// Returns at once.
    fn spawn(lab: &TestLab, words: &[&str]) -> Self {
        let mut command = lab.lab().exec(End::Server, erb_bin()).expect("exec");
        command.arg("trace").args(words);
        command.arg("--run-dir").arg(lab.run_dir());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.stderr(Stdio::piped()).spawn().expect("erb trace");
        let said = BufReader::new(process.stderr.take().expect("its errors"));
        Self { process, said }
    }

    /// Returns when it has said this.
    fn hear(&mut self, words: &str) {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            let read = self.said.read_line(&mut line).expect("its errors");
            assert!(read > 0, "erb trace ended and did not say {words:?}");
            assert!(!line.starts_with("error"), "{line}");
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.process.id()).expect("a pid"))
    }

    /// Waits for its end; its code, what it wrote, what else it said.
    fn end(self) -> (Option<i32>, String, String) {
        let Self { process, said } = self;
        let output = process.wait_with_output().expect("its end");
        let rest: Vec<String> = said.lines().map_while(Result::ok).collect();
        let text = String::from_utf8(output.stdout).expect("text");
        (output.status.code(), text, rest.join("\n"))
    }

    /// Ends it as Ctrl-C does; its packets.
    pub(crate) fn packets(self) -> Vec<Value> {
        sleep(WRITTEN);
        signal(self.pid(), Signal::SIGINT);
        let (code, text, said) = self.end();
        assert_eq!(code, Some(0), "{said}");
        if said.contains("lost") {
            out_of_patience(format_args!("it was too slow for all packets: {said}"));
        }
        let read = |line: &str| serde_json::from_str(line).expect("a JSON object per line");
        text.lines().map(read).collect()
    }
}

pub(crate) fn has_reason(packet: &Value, name: &str) -> bool {
    let reasons = packet["reasons"].as_array().expect("reasons");
    reasons.iter().any(|reason| reason["name"] == name)
}

/// Whether one packet is all of this: command and key, stage, verdict, reason.
pub(crate) fn assert_seen(
    packets: &[Value],
    say: (&str, Option<&str>),
    stage: &str,
    what: (&str, &str),
) {
    let found = packets.iter().any(|packet| {
        packet["command"] == say.0
            && packet["key"].as_str() == say.1
            && packet["stage"] == stage
            && packet["verdict"] == what.0
            && has_reason(packet, what.1)
    });
    let texts: Vec<String> = packets.iter().map(Value::to_string).collect();
    assert!(
        found,
        "no {say:?} at {stage} that is {what:?}:\n{}",
        texts.join("\n")
    );
}

/// What the counters must say for a trace to show it.
const SHOWN: [&str; 7] = [
    "FAST_PACKET",
    "FAST_PACKET_TC",
    "FAST_GET",
    "TO_TC",
    "REFUSE_MISS",
    "REFUSE_COMMAND",
    "MARK_TAKEN",
];

/// Asks until all of that has happened, which it does at once where no lease comes late. Returns a key that was missed.
fn answered_in_both_tiers(lab: &TestLab, conn: &mut Conn) -> String {
    let mut number = 0;
    wait(STATE_WAIT, || {
        number += 1;
        let absent = format!("absent{number}");
        set(conn, "seen", "value");
        lab.heat(conn, "seen");
        let before = lab.counters();
        for _ in 0..20 {
            // The acknowledgement of the slow reply comes with the next request: the TC tier's.
            get(conn, &absent);
            get(conn, "seen");
            get(conn, "seen");
        }
        set(conn, "seen", "other");
        call(conn, "ECHO hello");
        let after = lab.counters();
        let all = SHOWN.iter().all(|name| after.since(&before, name) > 0);
        all.then_some(absent).ok_or_else(|| after.moved(&before))
    })
}

/// Waits until nothing is under way: an acknowledgement may come 40 ms late, and later where others have the processor.
fn quiet(lab: &TestLab) {
    wait(STATE_WAIT, || {
        let before = lab.counters();
        sleep(WRITTEN);
        let after = lab.counters();
        let still = TOLD.iter().all(|name| after.since(&before, name) == 0);
        still.then_some(()).ok_or_else(|| after.moved(&before))
    });
}

#[test]
fn packets_are_shown_with_stage_verdict_and_every_reason() {
    let lab = TestLab::boosted("trace");
    let mut conn = lab.client();
    set(&mut conn, "seen", "value");
    lab.heat(&mut conn, "seen");
    let trace = Trace::start(&lab, &["--json"]);
    lab.heat(&mut conn, "seen");
    let before = lab.counters();
    let absent = answered_in_both_tiers(&lab, &mut conn);
    expect(&mut conn, "AUTH default secret-word", "+OK\r\n");
    let after = lab.counters();
    let packets = trace.packets();
    let seen = |say, stage, what| assert_seen(&packets, say, stage, what);
    let hit = ("GET", Some("seen"));
    seen(hit, "XDP", ("answered", "FAST_GET"));
    seen(hit, "XDP", ("to TC", "TO_TC"));
    seen(hit, "TC ingress", ("answered", "FAST_PACKET_TC"));
    let missed = ("up translated", "REFUSE_MISS");
    seen(("GET", Some(&absent)), "XDP", missed);
    let write = ("SET", Some("seen"));
    seen(write, "XDP", ("up translated", "REFUSE_COMMAND"));
    seen(write, "XDP", ("up translated", "MARK_TAKEN"));
    seen(("ECHO", None), "XDP", ("up translated", "REFUSE_COMMAND"));
    assert!(packets.iter().any(|packet| {
        packet["stage"] == "TC egress"
            && packet["direction"] == "out"
            && packet["verdict"] == "out translated"
            && has_reason(packet, "MARK_RELEASED")
    }));
    assert!(
        !packets.iter().any(|one| one.to_string().contains("secret")),
        "no argument but a key is told"
    );
    // Every reason of every packet: what the packets say adds up to what was counted.
    let mut told: BTreeMap<&str, u64> = BTreeMap::new();
    for packet in &packets {
        for reason in packet["reasons"].as_array().expect("reasons") {
            let name = reason["name"].as_str().expect("a name");
            *told.entry(name).or_default() += reason["count"].as_u64().expect("a count");
        }
    }
    for name in ["FAST_PACKET_TC", "TO_TC", "REFUSE_MISS", "REFUSE_COMMAND"] {
        let counted = after.since(&before, name);
        let told = told.get(name).copied().unwrap_or_default();
        // Warming up was traced too, but met none or few of these.
        assert!(told >= counted && counted > 0, "{name}: {told} {counted}");
    }
    assert_eq!(told.get("INVARIANT"), None);
    lab.assert_settled();
}

/// What a trace tells of each time that it is counted.
const TOLD: [&str; 16] = [
    "FAST_PACKET",
    "FAST_PACKET_TC",
    "FAST_GET",
    "TO_TC",
    "UP_TRANSLATED",
    "REFUSE_MISS",
    "REFUSE_COMMAND",
    "REFUSE_MARKED",
    "REFUSE_LEASE",
    "PURE_ACK_UP",
    "PURE_ACK_DROPPED",
    "EGRESS_PLAIN",
    "EGRESS_TRANSLATED",
    "EGRESS_CLONE",
    "MARK_TAKEN",
    "MARK_RELEASED",
];

#[test]
fn what_is_told_adds_up_to_what_is_counted() {
    let lab = TestLab::boosted("tracesum");
    let mut conn = lab.client();
    set(&mut conn, "seen", "value");
    lab.heat(&mut conn, "seen");
    quiet(&lab);
    let trace = Trace::start(&lab, &["--json"]);
    let before = lab.counters();
    for _ in 0..200 {
        get(&mut conn, "absent");
        get(&mut conn, "seen");
        get(&mut conn, "seen");
        set(&mut conn, "other", "1");
    }
    quiet(&lab);
    let after = lab.counters();
    let mut told: BTreeMap<String, u64> = BTreeMap::new();
    for packet in trace.packets() {
        for reason in packet["reasons"].as_array().expect("reasons") {
            let name = reason["name"].as_str().expect("a name").to_owned();
            *told.entry(name).or_default() += reason["count"].as_u64().expect("a count");
        }
    }
    for name in TOLD {
        let told = told.get(name).copied().unwrap_or_default();
        assert_eq!(told, after.since(&before, name), "{name}");
    }
    assert!(told["FAST_PACKET_TC"] > 0 && told["EGRESS_CLONE"] > 0);
}

#[test]
fn one_key_one_client_a_number_of_packets() {
    let lab = TestLab::boosted("tracekey");
    let mut conn = lab.client();
    let trace = Trace::start(&lab, &["--json", "--key", "\"a b\""]);
    for key in ["other", "a", "b"] {
        get(&mut conn, key);
    }
    conn.call(&["GET", "a b"]).expect("reply");
    conn.call(&["MSET", "x", "1", "a b", "2"]).expect("reply");
    let packets = trace.packets();
    let commands: Vec<&str> = packets
        .iter()
        .map(|packet| packet["command"].as_str().expect("a command"))
        .collect();
    assert_eq!(commands, ["GET", "MSET"]);
    assert_eq!(packets[0]["key"], "\"a b\"");
    let client = lab.lab().state().client.ipv4.to_string();
    let mut other = lab.client_to(lab.address6());
    let mut number = 0;
    // Where a lease comes late that is the reason.
    wait(STATE_WAIT, || {
        number += 1;
        let trace = Trace::start(&lab, &["--client", &client, "--limit", "3", "--explain"]);
        get(&mut other, "by-v6");
        for _ in 0..3 {
            get(&mut conn, &format!("by-v4-{number}"));
        }
        let (code, text, said) = trace.end();
        assert_eq!(code, Some(0), "{said}");
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with(' ')).collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines.iter().all(|line| line.contains(&client)), "{text}");
        let why = "    REFUSE_MISS            key not in the cache\n";
        text.contains(why).then_some(()).ok_or(text)
    });
}

/// No trace is at work, and the programs are ERB's own.
fn assert_as_before(lab: &TestLab) {
    wait(STATE_WAIT, || {
        let programs = lab.try_status()?.programs;
        if programs.whole && !programs.traced {
            Ok(())
        } else {
            Err(format!("{programs:?}"))
        }
    });
    let name = "trace_";
    let listed = lab.exec(End::Server, &["bpftool", "prog", "list"]);
    assert!(!listed.contains(name), "{listed}");
}

#[test]
fn a_trace_that_is_killed_leaves_nothing() {
    let lab = TestLab::boosted_alone("tracekill", &[]);
    let mut conn = lab.client();
    set(&mut conn, "seen", "value");
    for round in 0..3 {
        let mut trace = Trace::start(&lab, &[]);
        assert!(lab.status().programs.traced && lab.status().programs.whole);
        let second = lab.erb(&["trace", "--seconds", "1"]);
        assert_eq!(second.status.code(), Some(ALREADY_TRACED), "{second:?}");
        lab.heat(&mut conn, "seen");
        signal(trace.pid(), Signal::SIGKILL);
        trace.process.wait().expect("its end");
        if round == 0 {
            // The next one waits until the guard of the killed one is done.
            let next = lab.erb(&["trace", "--seconds", "1"]);
            assert_eq!(next.status.code(), Some(0), "{next:?}");
        }
        assert_as_before(&lab);
        lab.heat(&mut conn, "seen");
    }
    lab.assert_settled();
}

#[test]
fn a_replacement_and_a_detach_go_their_way_under_a_trace() {
    let mut lab = TestLab::up_in(Turn::alone(), "tracerepl", &["--direct"]);
    lab.use_run_dir("/run/erb/e2e-tracerepl");
    // By name, so that XDP stays when the other end has no program any more.
    let words = ["--dev", "s0", "--tier", "xdp"];
    let output = lab.boost(&words);
    assert!(output.status.success(), "{output:?}");
    lab.wait_admitting();
    let mut conn = lab.client();
    set(&mut conn, "seen", "value");
    let mut trace = Trace::start(&lab, &["--json"]);
    // A new daemon adopts what is there and puts its programs to work: the trace goes on with them.
    signal(lab.daemon_pid(), Signal::SIGKILL);
    wait(STATE_WAIT, || match lab.status().daemon.as_str() {
        "dead" => Ok(()),
        other => Err(other.to_owned()),
    });
    let output = lab.boost(&words);
    assert!(output.status.success(), "{output:?}");
    lab.wait_admitting();
    trace.hear("were replaced");
    lab.heat(&mut conn, "seen");
    let packets = trace.packets();
    assert_seen(
        &packets,
        ("GET", Some("seen")),
        "XDP",
        ("answered", "FAST_GET"),
    );
    // What XDP sends is lost where the other end has no program: the timer sends it again.
    lab.exec(End::Client, &["ip", "link", "set", "c0", "xdp", "off"]);
    wait(STATE_WAIT, || {
        let trace = Trace::start(&lab, &["--json"]);
        // The lease may be over for moments: it goes on until XDP has answered.
        lab.heat(&mut conn, "seen");
        let packets = trace.packets();
        let found = packets.iter().any(|packet| {
            packet["stage"] == "timer"
                && packet["direction"] == "out"
                && packet["verdict"] == "sent again"
                && has_reason(packet, "REPLAY_TIMEOUT")
        });
        found.then_some(()).ok_or_else(|| format!("{packets:#?}"))
    });
    let client = &lab.lab().state().client;
    xdp_pass::attach(&client.namespace, &client.device).expect("the program again");
    // Programs of another build cannot be traced: it ends, and they stay at work.
    let trace = Trace::start(&lab, &[]);
    let output = lab.boost(&["--dev", "s0", "--programs", env!("ERB_OTHER_PROGRAMS")]);
    assert!(output.status.success(), "{output:?}");
    let (code, _, said) = trace.end();
    assert_eq!(code, Some(OTHER_BUILD), "{said}");
    assert!(said.contains("another build"), "{said}");
    lab.heat(&mut conn, "seen");
    assert_as_before(&lab);
    let output = lab.boost(&["--dev", "s0"]);
    assert!(output.status.success(), "{output:?}");
    let trace = Trace::start(&lab, &[]);
    drop(conn);
    let output = lab.erb(&["detach", "--force"]);
    assert!(output.status.success(), "{output:?}");
    let (code, _, said) = trace.end();
    assert_eq!(code, Some(NOT_BOOSTED), "{said}");
    assert!(said.contains("detached"), "{said}");
    assert!(!lab.run_dir().exists());
}

/// The seconds that are asked for are those in which packets are shown, and loading is told.
#[test]
fn a_trace_says_that_it_loads_and_counts_from_the_first_packet() {
    const SECONDS: u64 = 2;
    let lab = TestLab::boosted("traceloads");
    let mut conn = lab.client();
    let mut trace = Trace::spawn(&lab, &["--json", "--seconds", &SECONDS.to_string()]);
    let began = Instant::now();
    trace.hear("loading");
    let told = began.elapsed();
    trace.hear("tracing");
    let loaded = began.elapsed();
    println!("told after {told:?}, loaded after {loaded:?}");
    if told > loaded / 2 {
        too_slow(format_args!("told after {told:?} of {loaded:?}"));
    }
    let traces = Instant::now();
    while traces.elapsed() < Duration::from_millis(SECONDS * 1_000 / 4) {
        expect(&mut conn, "PING", "+PONG\r\n");
        sleep(Duration::from_millis(20));
    }
    let (code, text, said) = trace.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(text.lines().count() >= 5, "{text}\n{said}");
}
