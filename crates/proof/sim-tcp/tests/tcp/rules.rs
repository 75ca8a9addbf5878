// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Goal: each rule of Linux's TCP that a splice can stumble over. Method: hand-made segments into
//! one stack, and what it answers.

use crate::util::{MS, Net, PORT, SEC, client_addr, server_addr};
use erb_sim_tcp::{Config, EventKind, Keepalive, Segment, SockId, State, flags};

fn data(mut seg: Segment, offset: u32, bytes: &[u8]) -> Segment {
    seg.seq = seg.seq.wrapping_add(offset);
    seg.payload = bytes.to_vec();
    seg
}

#[test]
fn a_stray_syn_gets_one_challenge_ack_per_half_second() {
    let (mut net, client, server) = Net::connected();
    let mut syn = net.by_client(client);
    syn.flags = flags::SYN;
    syn.seq = syn.seq.wrapping_add(5000);
    let sent = net.poke(&syn);
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].ack, net.server.view(server).expect("open").rcv_nxt);
    assert!(net.poke(&syn).is_empty(), "rate limited");
    net.now += 501 * MS;
    assert_eq!(net.poke(&syn).len(), 1);
    assert_eq!(net.server.counters().challenge_acks, 2);
}

#[test]
fn an_acknowledgement_further_back_than_ever_acknowledged_is_challenged_and_its_data_dropped() {
    let (mut net, client, server) = Net::connected();
    net.server.send(net.now, server, &[1; 100]);
    net.run(SEC);
    let view = net.server.view(server).expect("open");
    assert_eq!(view.bytes_acked, 100);
    let mut seg = data(net.by_client(client), 0, b"x");
    seg.ack = view.snd_una.wrapping_sub(101);
    net.poke(&seg);
    assert_eq!(net.server.counters().too_old_acks, 1);
    assert_eq!(net.server.counters().challenge_acks, 1);
    assert!(net.server_reads(server).is_empty());
    seg.ack = view.snd_una.wrapping_sub(100);
    net.poke(&seg);
    assert_eq!(
        net.server_reads(server),
        b"x",
        "within the bound the data count"
    );
}

#[test]
fn an_old_acknowledgement_does_not_move_the_window() {
    let (mut net, client, server) = Net::connected();
    net.server.send(net.now, server, &[1; 100]);
    net.run(SEC);
    let before = net.server.view(server).expect("open");
    let mut seg = data(net.by_client(client), 0, b"x");
    (seg.ack, seg.window) = (before.snd_una.wrapping_sub(5), 1);
    net.poke(&seg);
    assert_eq!(
        net.server.view(server).expect("open").snd_wnd,
        before.snd_wnd
    );
    assert_eq!(net.server.counters().old_acks, 1);
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_is_challenged_and_its_data_dropped() {
    let (mut net, client, server) = Net::connected();
    let mut seg = data(net.by_client(client), 0, b"x");
    seg.ack = seg.ack.wrapping_add(1);
    assert_eq!(net.poke(&seg).len(), 1);
    assert_eq!(net.server.counters().unsent_acks, 1);
    assert!(net.server_reads(server).is_empty());
}

#[test]
fn a_reset_counts_only_at_the_exact_number() {
    let (mut net, client, server) = Net::connected();
    let mut rst = net.by_client(client);
    rst.flags = flags::RST;
    rst.seq = rst.seq.wrapping_add(70_000_000);
    assert!(net.poke(&rst).is_empty(), "out of window: ignored");
    rst.seq = net.by_client(client).seq.wrapping_add(10);
    assert_eq!(net.poke(&rst).len(), 1, "in window: challenged");
    assert_eq!(
        net.server.view(server).expect("open").state,
        State::Established as u8
    );
    rst.seq = net.by_client(client).seq;
    assert!(net.poke(&rst).is_empty());
    assert_eq!(net.server_events(), [EventKind::Reset]);
    assert!(
        net.server
            .lookup(server_addr(), client_addr())
            .expect("the listener")
            .listen
    );
}

#[test]
fn paws_drops_old_stamps_but_not_after_a_long_silence() {
    let (mut net, client, server) = Net::connected();
    let mut seg = data(net.by_client(client), 0, b"x");
    let (val, echo) = seg.options.ts.expect("stamps");
    let recent = net.server.view(server).expect("open").ts_recent;
    seg.options.ts = Some((recent.wrapping_sub(2), echo));
    assert_eq!(net.poke(&seg).len(), 1, "dropped and answered");
    assert_eq!(net.server.counters().paws_drops, 1);
    seg.options.ts = Some((recent.wrapping_sub(1), echo));
    net.poke(&seg);
    assert_eq!(
        net.server_reads(server),
        b"x",
        "TCP_PAWS_WINDOW is one tick"
    );
    net.now += 2_200 * SEC;
    let mut late = data(net.by_client(client), 1, b"y");
    late.options.ts = Some((val.wrapping_sub(1000), echo));
    net.poke(&late);
    assert_eq!(net.server_reads(server), b"y");
}

#[test]
fn ts_recent_follows_only_segments_at_the_last_acknowledgement() {
    let (mut net, client, server) = Net::connected();
    net.now += 100 * MS;
    let early = data(net.by_client(client), 10, b"later");
    let before = net.server.view(server).expect("open").ts_recent;
    net.poke(&early);
    assert_eq!(
        net.server.view(server).expect("open").ts_recent,
        before,
        "behind a gap"
    );
    let next = data(net.by_client(client), 0, b"x");
    net.poke(&next);
    let stamp = next.options.ts.expect("stamps").0;
    assert_eq!(net.server.view(server).expect("open").ts_recent, stamp);
}

#[test]
fn duplicates_are_acknowledged_at_once_with_a_d_sack() {
    let (mut net, client, server) = Net::connected();
    let seg = data(net.by_client(client), 0, b"hello");
    net.poke(&seg);
    assert_eq!(net.server_reads(server), b"hello");
    net.server_sent();
    let sent = net.poke(&seg);
    let blocks = sent[0].options.sack.as_slice();
    assert_eq!(blocks, [(seg.seq, seg.seq.wrapping_add(5))]);
    assert!(net.server_reads(server).is_empty());
}

#[test]
fn the_first_copy_of_early_bytes_wins() {
    let (mut net, client, server) = Net::connected();
    let base = net.by_client(client);
    net.poke(&data(base.clone(), 2, b"CCDD"));
    let sent = net.poke(&data(base.clone(), 4, b"xxEE"));
    assert_eq!(
        sent[0].options.sack.as_slice()[0],
        (base.seq.wrapping_add(4), base.seq.wrapping_add(6)),
        "the overlap is reported"
    );
    net.poke(&data(base.clone(), 0, b"AAzz"));
    assert_eq!(net.server_reads(server), b"AAzzDDEE");
}

#[test]
fn an_early_segment_that_covers_others_replaces_them() {
    let (mut net, client, server) = Net::connected();
    let base = net.by_client(client);
    net.poke(&data(base.clone(), 4, b"old"));
    net.poke(&data(base.clone(), 2, b"NEWNEWNEW"));
    net.poke(&data(base.clone(), 0, b"AA"));
    assert_eq!(net.server_reads(server), b"AANEWNEWNEW");
}

#[test]
fn sack_blocks_stand_newest_first() {
    let (mut net, client, _) = Net::connected();
    let base = net.by_client(client);
    net.poke(&data(base.clone(), 10, b"aa"));
    let sent = net.poke(&data(base.clone(), 20, b"bb"));
    let at = |n: u32| base.seq.wrapping_add(n);
    assert_eq!(
        sent[0].options.sack.as_slice(),
        [(at(20), at(22)), (at(10), at(12))]
    );
}

/// Two ends, of which the server probes a silent peer.
fn kept_alive() -> (Net, SockId, SockId) {
    let keepalive = Some(Keepalive {
        time: 3 * SEC,
        interval: SEC,
        probes: 3,
    });
    let config = Config {
        keepalive,
        ..Config::default()
    };
    Net::new(Config::default(), config, 1).connect()
}

#[test]
fn keepalive_probes_below_snd_una_and_resets_a_silent_peer() {
    let (mut net, client, server) = kept_alive();
    net.run(30 * SEC);
    assert!(net.server.counters().keepalive_probes >= 5);
    let probe = net
        .log
        .iter()
        .find(|(_, o)| o.segment.src.port() == PORT)
        .expect("a probe");
    let view = net.server.view(server).expect("the client answers");
    assert_eq!(probe.1.segment.seq, view.snd_nxt.wrapping_sub(1));
    assert!(probe.1.segment.payload.is_empty());
    net.faults.loss = 1000;
    net.run(10 * SEC);
    assert!(net.server_events().contains(&EventKind::TimedOut));
    assert!(net.log.last().expect("a reset").1.segment.has(flags::RST));
    assert!(net.client.view(client).is_some());
}

#[test]
fn answers_with_old_acknowledgements_do_not_count_for_keepalive() {
    let (mut net, client, server) = kept_alive();
    net.server.send(net.now, server, &[1; 100]);
    net.run(SEC);
    for _ in 0..14 {
        net.now += 500 * MS;
        net.server.on_timer(net.now);
        net.server_sent();
        let mut old = net.by_client(client);
        old.ack = old.ack.wrapping_sub(5);
        net.poke(&old);
    }
    assert!(net.server_events().contains(&EventKind::TimedOut));
}

#[test]
fn a_closed_window_is_probed_and_its_opening_is_told() {
    let small = Config {
        rcv_buf: 8192,
        ..Config::default()
    };
    let (mut net, client, server) = Net::new(small, Config::default(), 1).connect();
    net.server.send(net.now, server, &[9; 40_000]);
    net.run(20 * SEC);
    assert!(net.server.counters().window_probes >= 3);
    assert_eq!(net.server.counters().timeouts, 0);
    let probe = &net
        .log
        .iter()
        .rev()
        .find(|(_, o)| o.segment.src.port() == PORT)
        .expect("probe")
        .1;
    let view = net.server.view(server).expect("open");
    assert_eq!(probe.segment.seq, view.snd_una.wrapping_sub(1));
    let mut got = Vec::new();
    net.client.recv(net.now, client, usize::MAX, &mut got);
    let update = net.client_sent();
    assert!(
        update[0].window > 0,
        "SWS avoidance waits for room, this is room"
    );
    net.server.input(net.now, &update[0]);
    assert!(!net.server_sent().is_empty());
}

#[test]
fn the_right_edge_never_moves_back() {
    let small = Config {
        rcv_buf: 8192,
        wscale: Some(0),
        ..Config::default()
    };
    let (mut net, client, _) = Net::new(Config::default(), small, 1).connect();
    let base = net.by_client(client);
    let mut edge = 0;
    for i in 0..8 {
        for sent in net.poke(&data(base.clone(), i * 1000, &[1; 1000])) {
            let right = sent.ack.wrapping_sub(base.seq) + u32::from(sent.window);
            assert!(right >= edge, "{right} after {edge}");
            edge = right;
        }
    }
    assert!(edge >= 8000);
}

#[test]
fn timeouts_back_off_and_give_up() {
    let config = Config {
        retries2: 5,
        ..Config::default()
    };
    let (mut net, _, server) = Net::new(Config::default(), config, 1).connect();
    net.faults.loss = 1000;
    net.server.send(net.now, server, b"lost");
    net.run(60 * SEC);
    let times: Vec<u64> = net.log.iter().map(|(at, _)| *at).collect();
    let gaps: Vec<u64> = times.windows(2).map(|w| w[1] - w[0]).collect();
    for pair in gaps[2..].windows(2) {
        assert_eq!(pair[1], 2 * pair[0], "{gaps:?}");
    }
    assert_eq!(net.server_events().last(), Some(&EventKind::TimedOut));
    assert!(net.server.counters().timeouts >= 5);
}

#[test]
fn a_hole_is_filled_without_a_timeout() {
    let (mut net, client, server) = Net::connected();
    net.server.send(net.now, server, &[1; 1448 * 6]);
    let mut sent = net.server_sent();
    sent.remove(0);
    for seg in &sent {
        net.client.input(net.now, seg);
    }
    for ack in net.client_sent() {
        net.server.input(net.now, &ack);
    }
    let again = net.server_sent();
    assert_eq!(again.len(), 1);
    assert_eq!(net.server.counters().fast_recoveries, 1);
    net.client.input(net.now, &again[0]);
    let mut got = Vec::new();
    net.client.recv(net.now, client, usize::MAX, &mut got);
    assert_eq!(got.len(), 1448 * 6);
}

#[test]
fn nagle_holds_a_second_small_segment() {
    let (mut net, _, server) = Net::connected();
    net.server.send(net.now, server, b"a");
    net.server.send(net.now, server, b"b");
    assert_eq!(net.server_sent().len(), 1);
    net.server.config_mut().nagle = false;
    net.server.send(net.now, server, b"c");
    assert_eq!(net.server_sent()[0].payload, b"bc");
}

#[test]
fn data_are_acknowledged_quickly_first_and_with_the_answer_later() {
    let (mut net, client, server) = Net::connected();
    assert_eq!(
        net.poke(&data(net.by_client(client), 0, b"x")).len(),
        1,
        "quick"
    );
    net.server.send(net.now, server, b"reply");
    net.server_sent();
    let mut seg = data(net.by_client(client), 1, b"y");
    seg.ack = seg.ack.wrapping_add(5);
    assert!(
        net.poke(&seg).is_empty(),
        "delayed: the conversation is interactive"
    );
    let due = net.server.next_timer().expect("delayed acknowledgement");
    assert!(due - net.now <= 200 * MS);
    net.now = due;
    net.server.on_timer(due);
    assert_eq!(net.server_sent().len(), 1);
}

#[test]
fn write_seq_moves_before_segments_leave() {
    let (mut net, _, server) = Net::connected();
    let before = net.server.view(server).expect("open");
    net.server.send(net.now, server, &[1; 60_000]);
    let after = net.server.view(server).expect("open");
    assert_eq!(after.write_seq.wrapping_sub(before.write_seq), 60_000);
    assert_eq!(
        after.snd_nxt.wrapping_sub(before.snd_nxt),
        10 * 1448,
        "as the window allows"
    );
    assert_eq!(net.server_sent().len(), 10);
}
