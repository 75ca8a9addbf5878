// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose port it is: a second server on another address, addresses and ports that Redis changes
//! while it runs, payload of no connection, and payload that comes before its connection.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use erb_check::net::Conn;
use erb_e2e::calls::{bulk, expect, get, set};
use erb_e2e::lab::{STALL, STATE_WAIT, TestLab, until_there, wait};
use erb_e2e::process::Owned;
use erb_hostile::Forger;
use erb_lab::{End, netns};
use erb_steady::skipped;
use serde_json::Value;

/// Where the second server listens.
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
/// The bound on what comes by Redis's push, and some time for a busy machine.
const SOON: Duration = Duration::from_millis(1500);
/// Reads that must all be answered by the server that is asked.
const READS: u64 = 100;

fn config_set(conn: &mut Conn, key: &str, value: &str) {
    let reply = conn.call(&["CONFIG", "SET", key, value]).expect("a reply");
    let reply = String::from_utf8_lossy(&reply).into_owned();
    assert_eq!(reply, "+OK\r\n", "CONFIG SET {key} {value}");
}

/// Another redis-server on the same port of an address of its own.
fn other_server(lab: &TestLab) -> (Owned, SocketAddr) {
    let state = lab.lab().state();
    let device = &state.server.device;
    let net = format!("{OTHER}/24");
    lab.exec(End::Server, &["ip", "addr", "add", &net, "dev", device]);
    let address = SocketAddr::from((OTHER, state.redis_port));
    let mut command = lab.redis(End::Server, state.redis_port);
    let server = Owned::start(command.args(["--bind", &OTHER.to_string()]));
    until_there("redis-server", || {
        lab.inside(End::Client, || Conn::connect(address, STALL).map(drop))
            .map_err(|e| format!("{e:#}"))
    });
    (server, address)
}

/// Whose the listener at `address` is, as `erb status` says.
fn whose(lab: &TestLab, address: Ipv4Addr) -> String {
    let output = lab.erb(&["status", "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).expect("a status");
    let listens = status["redis"]["listens"].as_array().expect("a list");
    let found = listens
        .iter()
        .find(|one| one["address"] == address.to_string());
    found.map_or_else(String::new, |one| {
        one["whose"].as_str().unwrap_or("").to_owned()
    })
}

/// How many of `READS` reads were answered fast; each must have `value`.
fn fast_reads(lab: &TestLab, conn: &mut Conn, value: &str) -> u64 {
    let before = lab.counters();
    for _ in 0..READS {
        expect(conn, "GET k", &bulk(value));
    }
    lab.counters().since(&before, "FAST_GET")
}

/// Redis gives up all addresses but one while it runs, another server takes the next: its clients
/// get its data, and neither its reads nor its writes close anything for the others.
#[test]
fn another_server_on_another_address_answers_for_itself() {
    let lab = TestLab::boosted_with("twoservers", &["--direct"]);
    let mut ours = lab.client();
    set(&mut ours, "k", "ours");
    lab.heat(&mut ours, "k");
    config_set(&mut lab.unseen(), "bind", "10.77.0.2 127.0.0.1");
    let (_server, address) = other_server(&lab);
    let mut theirs = lab.client_to(address);
    set(&mut theirs, "k", "theirs");
    assert_eq!(fast_reads(&lab, &mut theirs, "theirs"), 0);
    wait(STATE_WAIT, || {
        let said = whose(&lab, OTHER);
        (said == "other").then_some(()).ok_or(said)
    });
    let mut ours = lab.client();
    lab.heat(&mut ours, "k");
    wait(STATE_WAIT, || {
        let before = lab.counters();
        for round in 0..20 {
            let mut theirs = lab.client_to(address);
            let value = format!("theirs{round}");
            set(&mut theirs, "k", &value);
            assert_eq!(get(&mut theirs, "k").as_deref(), Some(&*value));
            expect(&mut ours, "GET k", &bulk("ours"));
        }
        let after = lab.counters();
        let moved = after.moved(&before);
        assert!(after.since(&before, "UP_FOREIGN") >= 40, "{moved}");
        assert_eq!(after.since(&before, "GATE_SHUT"), 0, "{moved}");
        // A lease may come late.
        (after.since(&before, "FAST_GET") == 20)
            .then_some(())
            .ok_or(moved)
    });
    lab.assert_settled();
}

/// Redis moves to another port and comes back. Who is connected goes on; what clients of the other
/// port write comes by Redis's push.
#[test]
fn redis_moves_to_another_port_and_back() {
    let lab = TestLab::boosted_with("moves", &["--direct"]);
    let home = lab.lab().state().redis_port;
    let (mut reader, mut admin) = (lab.client(), lab.unseen());
    set(&mut reader, "k", "v");
    lab.heat(&mut reader, "k");
    config_set(&mut admin, "port", "6399");
    let away = SocketAddr::from((lab.address().ip(), 6399));
    let refused = lab.inside(End::Client, || Conn::connect(lab.address(), STALL).is_err());
    assert!(refused, "nobody listens on {home}");
    let mut writer = lab.client_to(away);
    for round in 0..20 {
        let value = format!("v{round}");
        set(&mut writer, "k", &value);
        wait(SOON, || {
            let found = get(&mut reader, "k");
            (found.as_deref() == Some(&*value))
                .then_some(())
                .ok_or(format!("{found:?}"))
        });
    }
    wait(STATE_WAIT, || {
        let output = lab.erb(&["status"]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.contains("6399").then_some(()).ok_or(said)
    });
    config_set(&mut admin, "port", &home.to_string());
    lab.wait_admitting();
    let mut reader = lab.client();
    set(&mut reader, "k", "home");
    lab.heat(&mut reader, "k");
    wait(STATE_WAIT, || {
        let fast = fast_reads(&lab, &mut reader, "home");
        (fast > READS / 2)
            .then_some(())
            .ok_or_else(|| format!("{fast} of {READS}"))
    });
    lab.assert_settled();
}

/// Payload on the port from a sender that has no connection closes nothing, also beside a connection
/// that has never said anything.
#[test]
fn payload_without_a_connection_closes_nothing() {
    let lab = TestLab::boosted_with("stray", &["--direct"]);
    let mut reader = lab.client();
    set(&mut reader, "k", "v");
    lab.heat(&mut reader, "k");
    let silent = lab.client();
    let SocketAddr::V4(server) = lab.address() else {
        panic!("the lab's Redis has an IPv4 address");
    };
    let victims = vec![SocketAddrV4::new(*server.ip(), 1)];
    let mut forger = lab
        .inside(End::Client, || Forger::new(server, victims, 7))
        .expect("raw socket");
    wait(STATE_WAIT, || {
        let before = lab.counters();
        for _ in 0..50 {
            forger.send_stray().expect("send");
            expect(&mut reader, "GET k", &bulk("v"));
            std::thread::sleep(Duration::from_millis(20));
        }
        let after = lab.counters();
        let moved = after.moved(&before);
        assert_eq!(after.since(&before, "SOCK_LISTEN"), 50, "{moved}");
        assert_eq!(after.since(&before, "GATE_SHUT"), 0, "{moved}");
        // A lease may come late.
        (after.since(&before, "FAST_GET") >= 45)
            .then_some(())
            .ok_or(moved)
    });
    drop(silent);
    lab.assert_settled();
}

/// A connection whose first command is in its SYN, if the kernel does Fast Open.
fn fast_open(address: SocketAddr, command: &[u8]) -> Conn {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let socket = socket.expect("socket");
    let on: libc::c_int = 1;
    // SAFETY: the value is an int that lives through the call, with its own length.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_FASTOPEN_CONNECT,
            std::ptr::from_ref(&on).cast(),
            size_of_val(&on).try_into().expect("four"),
        )
    };
    assert_eq!(set, 0, "TCP_FASTOPEN_CONNECT");
    socket.connect(&address.into()).expect("connect");
    let mut stream = TcpStream::from(socket);
    stream.write_all(command).expect("send");
    Conn::from_stream(stream, STALL).expect("connection")
}

/// Where Fast Open is forced on Redis's listener, a write in a SYN reaches Redis only when it is seen:
/// no read shows the old value after its reply.
#[test]
fn a_write_in_a_syn_is_not_hidden() {
    let lab = TestLab::boosted_with("fastopen", &["--direct"]);
    let state = lab.lab().state();
    // Cookies are not asked for, by neither end; 0x400: also on listeners that do not ask for it.
    for (namespace, value) in [
        (&state.server.namespace, "0x602"),
        (&state.client.namespace, "0x5"),
    ] {
        netns::sysctl(namespace, "ipv4/tcp_fastopen", value).expect("sysctl");
    }
    // The kernel looks at it when Redis begins to listen.
    let mut admin = lab.unseen();
    config_set(&mut admin, "port", "6399");
    config_set(&mut admin, "port", &state.redis_port.to_string());
    lab.wait_admitting();
    let mut reader = lab.client();
    set(&mut reader, "k", "v");
    lab.heat(&mut reader, "k");
    let before = lab.counters();
    for round in 0..3 {
        let value = format!("in-syn-{round}");
        let command = erb_check::resp::command(&["SET", "k", &value]);
        let mut writer = lab.inside(End::Client, || fast_open(lab.address(), &command));
        assert_eq!(writer.reply().expect("a reply"), b"+OK\r\n");
        expect(&mut reader, "GET k", &bulk(&value));
        lab.heat(&mut reader, "k");
    }
    let after = lab.counters();
    let moved = after.moved(&before);
    assert_eq!(after.since(&before, "DROP_SYN_DATA"), 3, "{moved}");
    lab.assert_settled();
}

/// What a transparent proxy answers to everything.
const PROXYS: &[u8] = b"$5\r\nPROXY\r\n";

/// A proxy that netfilter gives connections from these ports to, whatever their address; none if the
/// kernel or this system has no TPROXY.
fn transparent_proxy(lab: &TestLab, ports: &str) -> Option<()> {
    let rules = format!(
        "add table ip tp; add chain ip tp pre {{ type filter hook prerouting priority mangle; }}; \
         add rule ip tp pre tcp dport {} tcp sport {ports} tproxy to {}:7001 meta mark set 1 accept",
        lab.lab().state().redis_port,
        lab.address().ip()
    );
    let mut nft = lab.lab().exec(End::Server, "nft").expect("exec");
    match nft.arg(rules).output() {
        Ok(output) if output.status.success() => {}
        other => {
            skipped(format_args!("no TPROXY here: {other:?}"));
            return None;
        }
    }
    for words in [
        "rule add fwmark 1 lookup 100",
        "route add local default dev lo table 100",
    ] {
        let words: Vec<&str> = ["ip"].into_iter().chain(words.split(' ')).collect();
        lab.exec(End::Server, &words);
    }
    let listener = lab.inside(End::Server, || {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.set_ip_transparent_v4(true)?;
        socket.bind(&SocketAddr::from((lab.address().ip(), 7001)).into())?;
        socket.listen(16)?;
        std::io::Result::Ok(TcpListener::from(socket))
    });
    let listener = listener.expect("a transparent listener");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut request = [0; 1024];
                while stream.read(&mut request).is_ok_and(|count| count > 0) {
                    stream.write_all(PROXYS).expect("write");
                }
            });
        }
    });
    Some(())
}

/// Connections to Redis's own address and port that are a proxy's get the proxy's answers.
#[test]
fn clients_of_a_transparent_proxy_are_answered_by_it() {
    let lab = TestLab::boosted_with("tproxy", &["--direct"]);
    let mut ours = lab.client();
    set(&mut ours, "k", "ours");
    lab.heat(&mut ours, "k");
    if transparent_proxy(&lab, "20000-20100").is_none() {
        return;
    }
    for port in 20_000..20_004 {
        let mut theirs = lab.inside(End::Client, || {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
            let socket = socket.expect("socket");
            let from = SocketAddr::from((lab.lab().state().client.ipv4, port));
            socket.bind(&from.into()).expect("bind");
            socket.connect(&lab.address().into()).expect("connect");
            Conn::from_stream(TcpStream::from(socket), STALL).expect("connection")
        });
        for _ in 0..50 {
            assert_eq!(theirs.call(&["GET", "k"]).expect("a reply"), PROXYS);
            expect(&mut ours, "GET k", &bulk("ours"));
        }
    }
    lab.assert_settled();
}
