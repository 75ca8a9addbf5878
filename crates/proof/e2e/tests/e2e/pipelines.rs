// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pipelines of SETs where the line loses or reorders, and where the server's receive queue is
//! steered to another processor: as fast as Redis alone.

use erb_check::net::Conn;
use erb_check::pipelines::{self, PipelinesArgs, Report};
use erb_check::resp;
use erb_e2e::lab::{TestLab, arguments, scaled};
use erb_lab::End;
use erb_steady::too_slow;

/// Port of a second Redis behind the same device, which ERB leaves alone.
const ALONE: u16 = 6390;
/// What is wanted is 0.9 (E-15). Which losses become timeouts is chance: turns of one side scatter from 40 to
/// 330 batches/s, so short turns can only tell the mistake (0.27 and 0.15) from none, and long ones more.
const BARS: (f64, f64) = (0.5, 0.8);
/// Runs, whose turns count together.
const TRIES: usize = 3;
/// Seconds of a turn, and turns: normal, and long.
const TURNS: ((f64, u32), (f64, u32)) = ((1.0, 5), (4.0, 15));

fn pace(lab: &TestLab, link: &str) -> Report {
    let config = ["CONFIG", "SET", "appendonly", "no"];
    lab.unseen().call(&config).expect("CONFIG SET");
    let mut alone = lab.address();
    alone.set_port(ALONE);
    let (seconds, turns) = scaled(TURNS.0, TURNS.1);
    lab.link(link);
    let words = format!(
        "--target {} --shadow {alone} --seconds {seconds} --turns {turns}",
        lab.address()
    );
    let report = lab.inside(End::Client, || {
        pipelines::execute(&arguments::<PipelinesArgs>(&words)).expect("pipelines")
    });
    lab.link_reset();
    println!("{link}: {report:?}");
    report
}

fn keeps_its_pace(lab: &TestLab, link: &str) {
    let before = lab.counters();
    let _alone = lab.redis_on(ALONE); // which has no log
    let bar = scaled(BARS.0, BARS.1);
    let mut batches_per_s = (0.0, 0.0);
    let mut reports = Vec::new();
    while reports.len() < TRIES {
        let report = pace(lab, link);
        batches_per_s.0 += report.target.batches_per_s.iter().sum::<f64>();
        batches_per_s.1 += report.shadow.batches_per_s.iter().sum::<f64>();
        reports.push(report);
        if batches_per_s.0 >= bar * batches_per_s.1 {
            break;
        }
    }
    let counters = lab.assert_settled();
    assert!(
        counters.get("AHEAD_KEPT") > before.get("AHEAD_KEPT"),
        "{link}: nothing lay beyond a hole: the test shows nothing"
    );
    assert_eq!(counters.get("AHEAD_OTHER"), 0, "an honest client");
    let ratio = batches_per_s.0 / batches_per_s.1;
    if ratio < bar {
        too_slow(format_args!("{link}: {ratio:.2} {reports:#?}"));
    }
}

#[test]
fn pipelines_are_as_fast_as_redis_alone_under_reordering() {
    let lab = TestLab::boosted_alone("reorder", &[]);
    keeps_its_pace(&lab, "delay=1ms reorder=1%");
}

#[test]
fn pipelines_are_as_fast_as_redis_alone_under_loss() {
    let lab = TestLab::boosted_alone("loss-pipe", &[]);
    keeps_its_pace(&lab, "delay=1ms loss=0.5%");
}

/// Receive packet steering: TC works on the other processor, later. Bursts of reads, slow and fast, on
/// a line that loses nothing: nothing is dropped, and none is sent again.
#[test]
fn steered_bursts_lose_nothing() {
    let lab = TestLab::boosted_with("steered", &["--direct"]);
    let device = lab.lab().state().server.device.clone();
    let queue = format!("echo 2 > /sys/class/net/{device}/queues/rx-0/rps_cpus");
    lab.exec(End::Server, &["sh", "-c", &queue]);
    let mut conn = lab.client();
    conn.call(&["SET", "hot", "value"]).expect("SET");
    lab.heat(&mut conn, "hot");
    let before = lab.counters();
    let bursts = scaled(3_000, 30_000);
    for burst in 0..bursts {
        send_apart(&mut conn, burst);
    }
    let sent_again = conn.retransmissions().expect("TCP_INFO");
    let counters = lab.assert_settled();
    for dropped in ["DROP_OUT_OF_ORDER", "DROP_RACE"] {
        assert_eq!(counters.get(dropped), before.get(dropped), "{dropped}");
    }
    let moved = |name| counters.get(name) - before.get(name);
    assert!(moved("TO_TC") > 0, "nothing was left to TC");
    assert!(
        moved("FAST_PACKET") + moved("FAST_PACKET_TC") > 0,
        "nothing was answered fast"
    );
    // An end that gets no processor for long enough makes the other one send again.
    if sent_again > 0 {
        too_slow(format_args!("{sent_again} segments were sent again"));
    }
}

/// Six segments one right behind the other; the first command is Redis's, so that what follows
/// carries the acknowledgement that TC must see.
fn send_apart(conn: &mut Conn, burst: u32) {
    let first: &[&[u8]] = &[b"ECHO", b"slow"];
    let reply = b"$4\r\nslow\r\n";
    conn.send(&resp::command(first)).expect("send");
    assert_eq!(conn.reply().expect("a reply"), reply, "burst {burst}");
    for _ in 0..6 {
        conn.send(&resp::command(&[b"GET", b"hot"])).expect("send");
    }
    for _ in 0..6 {
        let reply = conn.reply().expect("a reply");
        assert_eq!(reply, b"$5\r\nvalue\r\n", "burst {burst}");
    }
}
