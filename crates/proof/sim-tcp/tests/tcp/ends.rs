// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Goal: how connections begin and end, and everything that is no full socket, as Linux has it.
//! Method: hand-made segments into one stack, and what it answers.

use crate::util::{MS, Net, PORT, SEC, addr, client_addr, server_addr};
use erb_sim_tcp::{Config, EventKind, IcmpError, IcmpKind, Segment, State, flags};

fn data(mut seg: Segment, offset: u32, bytes: &[u8]) -> Segment {
    seg.seq = seg.seq.wrapping_add(offset);
    seg.payload = bytes.to_vec();
    seg
}

#[test]
fn a_close_with_unread_data_is_a_reset() {
    let (mut net, client, server) = Net::connected();
    net.poke(&data(net.by_client(client), 0, b"unread"));
    net.server.close(net.now, server);
    assert!(net.server_sent().last().expect("a reset").has(flags::RST));
}

#[test]
fn data_for_a_closed_owner_are_answered_by_a_reset() {
    let (mut net, client, server) = Net::connected();
    net.server.close(net.now, server);
    net.server_sent();
    assert!(net.poke(&data(net.by_client(client), 0, b"late"))[0].has(flags::RST));
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
    net.poke(&data(net.by_client(client), 0, b"waits"));
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
    let mut seg = net.by_client(client);
    seg.dst.set_port(9);
    net.server.input(net.now, &seg);
    assert_eq!(
        net.server.pop_out().expect("reset").cookie,
        erb_sim_tcp::Host::CONTROL_COOKIE
    );
}
