// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Goal: each rule of Linux's TCP that a splice can stumble over. Method: hand-made segments into
//! one stack, and what it answers.

mod util;

use erb_sim_tcp::{Config, EventKind, IcmpError, IcmpKind, Keepalive, Segment, State, flags};
use util::{MS, Net, PORT, SEC, addr, client_addr, server_addr};

fn data(mut seg: Segment, offset: u32, bytes: &[u8]) -> Segment {
    seg.seq = seg.seq.wrapping_add(offset);
    seg.payload = bytes.to_vec();
    seg
}

#[test]
fn a_stray_syn_gets_one_challenge_ack_per_half_second() {
    let (mut net, client, server) = Net::connected();
    let mut syn = net.from_client(client);
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
    let mut seg = data(net.from_client(client), 0, b"x");
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
    let mut seg = data(net.from_client(client), 0, b"x");
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
    let mut seg = data(net.from_client(client), 0, b"x");
    seg.ack = seg.ack.wrapping_add(1);
    assert_eq!(net.poke(&seg).len(), 1);
    assert_eq!(net.server.counters().unsent_acks, 1);
    assert!(net.server_reads(server).is_empty());
}

#[test]
fn a_reset_counts_only_at_the_exact_number() {
    let (mut net, client, server) = Net::connected();
    let mut rst = net.from_client(client);
    rst.flags = flags::RST;
    rst.seq = rst.seq.wrapping_add(70_000_000);
    assert!(net.poke(&rst).is_empty(), "out of window: ignored");
    rst.seq = net.from_client(client).seq.wrapping_add(10);
    assert_eq!(net.poke(&rst).len(), 1, "in window: challenged");
    assert_eq!(
        net.server.view(server).expect("open").state,
        State::Established as u8
    );
    rst.seq = net.from_client(client).seq;
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
    let mut seg = data(net.from_client(client), 0, b"x");
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
    let mut late = data(net.from_client(client), 1, b"y");
    late.options.ts = Some((val.wrapping_sub(1000), echo));
    net.poke(&late);
    assert_eq!(net.server_reads(server), b"y");
}

#[test]
fn ts_recent_follows_only_segments_at_the_last_acknowledgement() {
    let (mut net, client, server) = Net::connected();
    net.now += 100 * MS;
    let early = data(net.from_client(client), 10, b"later");
    let before = net.server.view(server).expect("open").ts_recent;
    net.poke(&early);
    assert_eq!(
        net.server.view(server).expect("open").ts_recent,
        before,
        "behind a gap"
    );
    let next = data(net.from_client(client), 0, b"x");
    net.poke(&next);
    let stamp = next.options.ts.expect("stamps").0;
    assert_eq!(net.server.view(server).expect("open").ts_recent, stamp);
}

#[test]
fn duplicates_are_acknowledged_at_once_with_a_d_sack() {
    let (mut net, client, server) = Net::connected();
    let seg = data(net.from_client(client), 0, b"hello");
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
    let base = net.from_client(client);
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
    let base = net.from_client(client);
    net.poke(&data(base.clone(), 4, b"old"));
    net.poke(&data(base.clone(), 2, b"NEWNEWNEW"));
    net.poke(&data(base.clone(), 0, b"AA"));
    assert_eq!(net.server_reads(server), b"AANEWNEWNEW");
}

#[test]
fn sack_blocks_stand_newest_first() {
    let (mut net, client, _) = Net::connected();
    let base = net.from_client(client);
    net.poke(&data(base.clone(), 10, b"aa"));
    let sent = net.poke(&data(base.clone(), 20, b"bb"));
    let at = |n: u32| base.seq.wrapping_add(n);
    assert_eq!(
        sent[0].options.sack.as_slice(),
        [(at(20), at(22)), (at(10), at(12))]
    );
}

#[test]
fn keepalive_probes_below_snd_una_and_resets_a_silent_peer() {
    let keepalive = Some(Keepalive {
        time: 3 * SEC,
        interval: SEC,
        probes: 3,
    });
    let config = Config {
        keepalive,
        ..Config::default()
    };
    let (mut net, client, server) = Net::new(Config::default(), config, 1).connect();
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
    let keepalive = Some(Keepalive {
        time: 3 * SEC,
        interval: SEC,
        probes: 3,
    });
    let config = Config {
        keepalive,
        ..Config::default()
    };
    let (mut net, client, server) = Net::new(Config::default(), config, 1).connect();
    net.server.send(net.now, server, &[1; 100]);
    net.run(SEC);
    for _ in 0..14 {
        net.now += 500 * MS;
        net.server.on_timer(net.now);
        net.server_sent();
        let mut old = net.from_client(client);
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
    let base = net.from_client(client);
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
        net.poke(&data(net.from_client(client), 0, b"x")).len(),
        1,
        "quick"
    );
    net.server.send(net.now, server, b"reply");
    net.server_sent();
    let mut seg = data(net.from_client(client), 1, b"y");
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

#[test]
fn a_close_with_unread_data_is_a_reset() {
    let (mut net, client, server) = Net::connected();
    net.poke(&data(net.from_client(client), 0, b"unread"));
    net.server.close(net.now, server);
    assert!(net.server_sent().last().expect("a reset").has(flags::RST));
}

#[test]
fn data_for_a_closed_owner_are_answered_by_a_reset() {
    let (mut net, client, server) = Net::connected();
    net.server.close(net.now, server);
    net.server_sent();
    assert!(net.poke(&data(net.from_client(client), 0, b"late"))[0].has(flags::RST));
}

#[test]
fn a_fin_is_sent_again_in_last_ack() {
    let (mut net, client, server) = Net::connected();
    net.client.shutdown_write(net.now, client);
    net.run(10 * MS);
    net.faults.loss = 1000;
    net.log.clear();
    net.server.close(net.now, server);
    net.run(3 * SEC);
    let look = net
        .server
        .lookup(server_addr(), client_addr())
        .expect("still there");
    assert_eq!(look.state, State::LastAck);
    let fins = net
        .log
        .iter()
        .filter(|(_, o)| o.segment.has(flags::FIN))
        .count();
    assert!(fins >= 3, "{fins}");
}

#[test]
fn half_close_lets_the_other_stream_go_on() {
    let (mut net, client, server) = Net::connected();
    net.client.shutdown_write(net.now, client);
    net.run(10 * MS);
    assert!(net.server_events().contains(&EventKind::PeerClosed));
    net.server.send(net.now, server, b"still here");
    net.run(10 * MS);
    let mut got = Vec::new();
    net.client.recv(net.now, client, usize::MAX, &mut got);
    assert_eq!(got, b"still here");
}

#[test]
fn cookies_pass_from_request_to_connection_to_time_wait() {
    let mut net = Net::plain();
    net.client
        .connect(net.now, client_addr(), server_addr())
        .expect("free");
    let syn = net.client_sent().remove(0);
    let syn_ack = net.poke(&syn).remove(0);
    let request = net
        .server
        .lookup(server_addr(), client_addr())
        .expect("a request");
    assert_eq!(request.state, State::NewSynRecv);
    assert_eq!((request.rcv_isn, request.snt_isn), (syn.seq, syn_ack.seq));
    net.client.input(net.now, &syn_ack);
    let mut ack = net.client_sent().remove(0);
    ack.payload = b"early".to_vec();
    net.poke(&ack);
    let full = net
        .server
        .lookup(server_addr(), client_addr())
        .expect("a connection");
    assert_eq!(
        (full.state, full.cookie),
        (State::Established, request.cookie)
    );
    let id = net.server.accept(PORT).expect("a connection");
    assert_eq!(net.server_reads(id), b"early");
    net.server.close(net.now, id);
    let fin = net.server_sent().pop().expect("a FIN");
    ack.seq = ack.end_seq();
    (ack.ack, ack.flags, ack.payload) = (fin.end_seq(), flags::ACK | flags::FIN, Vec::new());
    net.poke(&ack);
    let rest = net
        .server
        .lookup(server_addr(), client_addr())
        .expect("TIME_WAIT");
    assert_eq!((rest.state, rest.cookie), (State::TimeWait, request.cookie));
    assert_eq!(rest.id, None);
    time_wait_answers_and_is_reused(net, ack);
}

fn time_wait_answers_and_is_reused(mut net: Net, fin: Segment) {
    let answer = net.poke(&fin);
    assert_eq!(answer[0].ack, fin.end_seq(), "an old FIN is acknowledged");
    let mut syn = Segment::new(client_addr(), server_addr());
    syn.flags = flags::SYN;
    syn.seq = fin.end_seq().wrapping_add(1);
    syn.options.ts = fin.options.ts.map(|ts| (ts.0 + 1, 0));
    let syn_ack = net.poke(&syn).remove(0);
    assert!(syn_ack.has(flags::SYN | flags::ACK));
    assert_eq!(syn_ack.seq, fin.ack.wrapping_add(65_537));
    assert_eq!(net.server.counters().time_wait_reused, 1);
}

#[test]
fn a_request_answers_wrong_acknowledgements_by_a_reset_and_stays() {
    let mut net = Net::plain();
    net.client
        .connect(net.now, client_addr(), server_addr())
        .expect("free");
    let syn = net.client_sent().remove(0);
    let syn_ack = net.poke(&syn).remove(0);
    let mut ack = Segment::new(client_addr(), server_addr());
    (ack.seq, ack.ack, ack.flags) = (syn.seq.wrapping_add(1), syn_ack.seq, flags::ACK);
    ack.options.ts = syn.options.ts;
    assert!(net.poke(&ack)[0].has(flags::RST));
    let look = net
        .server
        .lookup(server_addr(), client_addr())
        .expect("the request");
    assert_eq!(look.state, State::NewSynRecv);
    net.now += SEC;
    net.server.on_timer(net.now);
    assert_eq!(
        net.server_sent()[0].seq,
        syn_ack.seq,
        "SYN-ACK again after a second"
    );
}

#[test]
fn a_full_queue_answers_by_cookies_that_keep_the_options() {
    let server = Config {
        syncookies: 2,
        ..Config::default()
    };
    let mut net = Net::new(Config::default(), server, 5);
    let client = net
        .client
        .connect(net.now, client_addr(), server_addr())
        .expect("free");
    let syn = net.client_sent().remove(0);
    let syn_ack = net.poke(&syn).remove(0);
    assert!(
        net.server
            .lookup(server_addr(), client_addr())
            .expect("the listener")
            .listen
    );
    net.client.input(net.now, &syn_ack);
    let ack = net.client_sent().remove(0);
    let mut forged = ack.clone();
    forged.ack = forged.ack.wrapping_add(8);
    assert!(net.poke(&forged)[0].has(flags::RST));
    net.poke(&ack);
    let id = net.server.accept(PORT).expect("a connection");
    let (ours, theirs) = (net.server.view(id).expect("open"), net.client.view(client));
    assert_eq!(ours.snd_wscale, theirs.expect("open").rcv_wscale);
    assert!(ours.sack_ok && ours.tstamp_ok);
    assert_eq!(ours.mss_cache, 1448);
}

#[test]
fn packet_too_big_cuts_what_is_in_flight() {
    let (mut net, client, server) = Net::connected();
    net.server.send(net.now, server, &[3; 4000]);
    let sent = net.server_sent();
    let error = |seq| IcmpError {
        from: addr(9, 0).ip(),
        kind: IcmpKind::TooBig(1000),
        src: server_addr(),
        dst: client_addr(),
        seq,
        vlan: None,
    };
    net.server
        .input_icmp(net.now, &error(sent[0].seq.wrapping_add(100_000)));
    assert_eq!(net.server.counters().icmp_out_of_window, 1);
    assert!(net.server_sent().is_empty());
    net.server.input_icmp(net.now, &error(sent[0].seq));
    assert_eq!(net.server.view(server).expect("open").mss_cache, 1000 - 52);
    let again = net.server_sent();
    assert!(!again.is_empty() && again.iter().all(|s| s.payload.len() <= 948));
    for seg in again {
        net.client.input(net.now, &seg);
    }
    net.run(5 * SEC);
    let mut got = Vec::new();
    net.client.recv(net.now, client, usize::MAX, &mut got);
    assert_eq!(got, [3; 4000]);
}

#[test]
fn no_socket_answers_by_a_reset_with_the_peers_own_number() {
    let mut net = Net::plain();
    let mut seg = Segment::new(client_addr(), addr(2, 9));
    (seg.seq, seg.ack, seg.flags) = (5, 77, flags::ACK);
    let sent = net.poke(&seg);
    assert!(sent[0].flags == flags::RST && sent[0].seq == 77);
    seg.flags = flags::SYN;
    let sent = net.poke(&seg);
    assert!(sent[0].flags == flags::RST | flags::ACK && sent[0].ack == 6);
}

#[test]
fn a_refused_connection_is_reported() {
    let mut net = Net::plain();
    net.server.unlisten(net.now, PORT);
    net.client
        .connect(net.now, client_addr(), server_addr())
        .expect("free");
    net.run(10 * MS);
    assert_eq!(net.client_events(), [EventKind::Reset]);
}

#[test]
fn a_vanished_peer_is_noticed_by_its_reset() {
    let (mut net, client, _) = Net::connected();
    net.server = erb_sim_tcp::Host::new(Config::default(), 9);
    net.client.send(net.now, client, b"anybody?");
    net.run(10 * MS);
    assert_eq!(net.client_events(), [EventKind::Reset]);
}

#[test]
fn a_held_socket_takes_its_input_at_release() {
    let (mut net, client, server) = Net::connected();
    net.server.hold(server);
    net.poke(&data(net.from_client(client), 0, b"waits"));
    assert!(net.server_reads(server).is_empty());
    net.server.release(net.now, server);
    assert_eq!(net.server_reads(server), b"waits");
}

#[test]
fn offload_hands_down_one_long_segment() {
    let config = Config {
        gso_segs: 44,
        ..Config::default()
    };
    let (mut net, _, server) = Net::new(Config::default(), config, 1).connect();
    net.server.send(net.now, server, &[1; 10_000]);
    let out = net.server.pop_out().expect("a segment");
    assert_eq!((out.segment.payload.len(), out.gso_size), (10_000, 1448));
    assert_eq!(out.segment.split(1448).len(), 7);
}

#[test]
fn what_leaves_carries_the_cookie_of_its_socket() {
    let (mut net, client, server) = Net::connected();
    net.server.send(net.now, server, b"x");
    let cookie = net.server.view(server).expect("open").cookie;
    assert_eq!(net.server.pop_out().expect("data").cookie, cookie);
    let mut seg = net.from_client(client);
    seg.dst.set_port(9);
    net.server.input(net.now, &seg);
    assert_eq!(
        net.server.pop_out().expect("reset").cookie,
        erb_sim_tcp::Host::CONTROL_COOKIE
    );
}
