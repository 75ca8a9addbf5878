// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections come, go, vanish and return; tables follow, none is closed by mistake.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use erb_check::churn::{self, ChurnArgs};
use erb_check::crowd::{self, CrowdArgs};
use erb_check::net::{Broken, Conn};
use erb_e2e::calls::{bulk, call, expect, get, set};
use erb_e2e::lab::{STALL, STATE_WAIT, TestLab, arguments, scaled, wait};
use erb_e2e::process::raise_file_limit;
use erb_lab::{End, netns};
use erb_steady::{out_of_patience, too_slow};
use nix::unistd::Pid;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

/// Connections of the churn: normal, and in full.
const CHURN: (u64, u64) = (3_000, 100_000);
/// Places in the table, half of them for one address; and more connections than that.
const TABLE: usize = 16_384;
const CROWD: usize = 17_000;
/// A write that is not seen shows within the lease, which is half of this: a read that is sent later shows it.
const LATE_MAX: Duration = Duration::from_millis(200);
/// A pair of ports is used again within moments, were it not for a machine that does other things: an entry that
/// bars it stays for a minute.
const REUSED_MAX: Duration = Duration::from_secs(30);

/// Connections at once of several users: normal, and in full.
const CROWD_AT_ONCE: (u32, u32) = (2_000, 10_000);
/// The daemon holds a list of all clients, at most.
const DAEMON_GROWS_KIB: u64 = 32 * 1024;

#[test]
fn churn_of_all_endings_leaves_no_state_behind() {
    let lab = TestLab::boosted_with("churn", &["--direct", "--redis-arg", "tcp-keepalive=5"]);
    let connections = scaled(CHURN.0, CHURN.1);
    let mut sources = vec!["10.77.0.1".to_owned()];
    for host in 11..15u8 {
        lab.add_client_address(Ipv4Addr::new(10, 77, 0, host).into());
        sources.push(format!("10.77.0.{host}"));
    }
    let words = format!(
        "--target {} --connections {connections} --vanish-every 100 --source-addrs {}",
        lab.address(),
        sources.join(",")
    );
    let report = lab.inside(End::Client, || {
        churn::execute(&arguments::<ChurnArgs>(&words)).expect("churn")
    });
    assert!(report.passed, "{report:#?}");
    assert!(
        lab.counters().get("FAST_GET") > 0,
        "nothing was answered fast"
    );
    lab.assert_tables_empty();
    lab.assert_settled();
}

#[test]
fn a_busy_fast_client_outlives_redis_idle_timeout_and_an_idle_one_does_not() {
    let lab = TestLab::boosted_with("timeout", &["--direct", "--redis-arg", "timeout=5"]);
    let (mut busy, mut idle) = (lab.client(), lab.client());
    set(&mut busy, "hot", "v");
    lab.heat(&mut busy, "hot");
    expect(&mut idle, "GET hot", &bulk("v"));
    let before = lab.counters();
    let began = Instant::now();
    let mut reads = 0;
    while began.elapsed() < Duration::from_secs(13) {
        expect(&mut busy, "GET hot", &bulk("v"));
        reads += 1;
        sleep(Duration::from_millis(20));
    }
    let fast = lab.counters().since(&before, "FAST_GET");
    if fast * 10 <= reads * 8 {
        too_slow(format_args!(
            "{fast} of {reads} reads were fast: the test shows nothing"
        ));
    }
    assert_eq!(
        idle.fill(),
        Err(Broken::Eof),
        "Redis closes the idle client"
    );
    lab.assert_settled();
}

#[test]
fn idle_fast_connections_survive_keepalive_from_both_ends() {
    let lab = TestLab::boosted_with("keepalive", &["--direct", "--redis-arg", "tcp-keepalive=3"]);
    let (mut plain, mut probing) = (lab.client(), lab.client());
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(1))
        .with_interval(Duration::from_secs(1))
        .with_retries(3);
    SockRef::from(probing.stream())
        .set_tcp_keepalive(&keepalive)
        .expect("SO_KEEPALIVE");
    set(&mut plain, "hot", "v");
    for conn in [&mut plain, &mut probing] {
        lab.heat(conn, "hot");
    }
    sleep(Duration::from_secs(10));
    for conn in [&mut plain, &mut probing] {
        expect(conn, "GET hot", &bulk("v"));
        expect(conn, "INCR counter", &call_next());
        lab.assert_fast(conn, "hot", "still fast");
    }
    lab.assert_settled();
}

/// The reply of the next INCR of this test.
fn call_next() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!(":{}\r\n", NEXT.fetch_add(1, Ordering::Relaxed))
}

#[test]
fn clients_that_vanish_are_forgotten() {
    let lab = TestLab::boosted_with("vanish", &["--redis-arg", "tcp-keepalive=4"]);
    let mut survivor = lab.client();
    set(&mut survivor, "hot", "v");
    let mut gone: Vec<Conn> = (0..20).map(|_| lab.client()).collect();
    for conn in &mut gone {
        lab.heat(conn, "hot");
    }
    lab.link("loss=100%");
    for (number, conn) in gone.iter_mut().enumerate() {
        let request: &[&str] = if number % 2 == 0 {
            &["GET", "hot"]
        } else {
            &["INCR", "n"]
        };
        conn.send(&erb_check::resp::command(request)).expect("send");
    }
    gone.into_iter()
        .for_each(|conn| conn.vanish().expect("vanish"));
    lab.link_reset();
    expect(&mut survivor, "GET hot", &bulk("v"));
    drop(survivor);
    lab.assert_tables_empty();
    lab.assert_settled();
}

#[test]
fn a_half_closed_connection_gets_all_its_replies() {
    let lab = TestLab::boosted("halfclose");
    lab.link("delay=2ms");
    let mut conn = lab.client();
    set(&mut conn, "hot", "v");
    for round in 0..scaled(8, 20) {
        let mut conn = lab.client();
        lab.heat(&mut conn, "hot");
        let get = erb_check::resp::command(&["GET", "hot"]);
        let incr = erb_check::resp::command(&["INCR", "n"]);
        conn.send(&[&get[..], &incr, &get].concat()).expect("send");
        conn.send(&get).expect("send");
        conn.stream()
            .shutdown(std::net::Shutdown::Write)
            .expect("shutdown");
        let want = [
            bulk("v"),
            format!(":{}\r\n", round + 1),
            bulk("v"),
            bulk("v"),
        ]
        .concat();
        let mut got = Vec::new();
        while got.len() < want.len() {
            got.extend(conn.reply().expect("a reply"));
        }
        assert_eq!(String::from_utf8_lossy(&got), want);
        assert_eq!(conn.fill(), Err(Broken::Eof), "then the end");
    }
    lab.assert_settled();
}

/// Resident memory of a process, KiB.
fn resident_kib(pid: Pid) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.expect("VmRSS").parse().expect("a number")
}

#[test]
fn a_crowd_of_users_and_databases_is_answered_rightly_and_leaves_nothing() {
    // From one address, which gets half of the table.
    let table = ["--connections", "32768"];
    let lab = boosted_as("users10k", &table);
    let conns = scaled(CROWD_AT_ONCE.0, CROWD_AT_ONCE.1);
    let seconds = scaled(8, 60);
    let words = format!(
        "--target {} --conns {conns} --seconds {seconds}",
        lab.address()
    );
    let rss = resident_kib(lab.daemon_pid());
    let (report, most) = std::thread::scope(|scope| {
        let crowd = scope.spawn(|| {
            lab.inside(End::Client, || {
                crowd::execute(&arguments::<CrowdArgs>(&words)).expect("crowd")
            })
        });
        let mut most = (0, 0);
        while !crowd.is_finished() {
            most.0 = most.0.max(lab.status().connections.total);
            most.1 = most.1.max(resident_kib(lab.daemon_pid()));
            sleep(Duration::from_millis(200));
        }
        (crowd.join().expect("a thread of this test panicked"), most)
    });
    assert!(report.passed, "{report:#?}");
    assert!(most.0 >= conns, "only {} of {conns} were tracked", most.0);
    let grown = most.1.saturating_sub(rss);
    println!("{report:#?}\n{most:?}: the daemon grew by {grown} KiB");
    assert!(grown < DAEMON_GROWS_KIB, "the daemon grew by {grown} KiB");
    let counters = lab.counters();
    for answered in ["FAST_GET", "FAST_MGET", "FAST_STRLEN", "ADMITTED"] {
        assert!(counters.get(answered) > 0, "{answered} never");
    }
    lab.assert_tables_empty();
    lab.assert_settled();
}

/// Connections that are not seen are counted each few seconds, if they are many.
const COUNTED_WITHIN: Duration = Duration::from_secs(20);

/// The address of another client.
const SECOND: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 9));

fn client_from_second(lab: &TestLab) -> Conn {
    lab.inside(End::Client, || {
        Conn::connect_from(lab.address(), Some(SECOND), STALL).expect("connect")
    })
}

/// A lab whose Redis takes many clients, boosted with these words.
fn boosted_as(name: &str, words: &[&str]) -> TestLab {
    let lab = TestLab::up(name, &["--direct", "--redis-arg", "maxclients=20000"]);
    let output = lab.boost(&[&["--dev", "s0"], words].concat());
    assert!(output.status.success(), "{output:?}");
    lab.wait_admitting();
    lab.never_aside(); // a crowd only writes
    lab
}

/// Waits until a value shows; asked for on a connection whose answers may be late.
fn shows(conn: &mut Conn, key: &str, value: &str) {
    let began = Instant::now();
    loop {
        let sent = began.elapsed();
        if get(conn, key).as_deref() == Some(value) {
            return;
        }
        assert!(
            sent < LATE_MAX,
            "{key} is not {value} in a read {sent:?} later"
        );
    }
}

/// Fast answers to so many GETs of one connection.
fn fast_gets(lab: &TestLab, conn: &mut Conn, count: u64) -> u64 {
    let before = lab.counters();
    for _ in 0..count {
        assert!(get(conn, "hot").is_some());
    }
    lab.counters().since(&before, "FAST_GET")
}

#[test]
fn beyond_the_connection_limit_nobody_else_is_slower_and_it_recovers() {
    raise_file_limit();
    let lab = boosted_as("crowd", &["--connections", &TABLE.to_string()]);
    lab.add_client_address(SECOND);
    let mut other = client_from_second(&lab);
    set(&mut other, "hot", "v");
    lab.heat(&mut other, "hot");
    let mut crowd = Vec::with_capacity(CROWD);
    for number in 0..CROWD {
        let mut conn = lab.client();
        let set = format!("SET crowd:{} {number}", number % 100);
        expect(&mut conn, &set, "+OK\r\n");
        crowd.push(conn);
    }
    let counters = lab.counters();
    let refused = counters.get("CONN_SHARE_FULL");
    assert!(refused > 0, "no share: {}", counters.text("CONN"));
    wait(STATE_WAIT, || {
        let fast = fast_gets(&lab, &mut other, 1000);
        let good = (fast >= 950).then_some(());
        good.ok_or_else(|| format!("{fast} of 1,000 beside the crowd"))
    });
    let last = crowd.len() - 1;
    for round in 0..50 {
        let value = round.to_string();
        set(&mut crowd[last], "hot", &value);
        let own = get(&mut crowd[last], "hot");
        assert_eq!(own.as_deref(), Some(value.as_str()), "its own write");
        shows(&mut crowd[round], "hot", &value);
        shows(&mut other, "hot", &value);
    }
    // Who comes now from another address finds room.
    let mut late = client_from_second(&lab);
    lab.heat(&mut late, "hot");
    wait(COUNTED_WITHIN, || {
        let status = lab.try_status()?;
        let said = status
            .notes
            .iter()
            .any(|note| note.contains("has its share"));
        let all = status.connections.unseen as usize >= CROWD - TABLE / 2;
        (said && all)
            .then_some(())
            .ok_or_else(|| format!("{:?}", status.notes))
    });
    drop((crowd, other, late));
    lab.assert_tables_empty();
    let mut conn = client_from_second(&lab);
    lab.heat(&mut conn, "hot");
    lab.assert_settled();
}

/// Redis closes each connection, so its socket waits for a minute; the table must not.
#[test]
fn connections_that_quit_do_not_fill_the_table() {
    let lab = boosted_as("quit", &["--connections", "256"]);
    for _ in 0..scaled(400, 10_000) {
        let mut conn = lab.client();
        expect(&mut conn, "SET churn v", "+OK\r\n");
        expect(&mut conn, "QUIT", "+OK\r\n");
        assert_eq!(conn.fill(), Err(Broken::Eof));
        sleep(Duration::from_millis(20));
    }
    let counters = lab.counters();
    for name in ["CONN_TABLE_FULL", "CONN_SHARE_FULL"] {
        assert_eq!(counters.get(name), 0, "{}", counters.text("CONN"));
    }
    let mut conn = lab.client();
    set(&mut conn, "hot", "v");
    lab.heat(&mut conn, "hot");
    lab.assert_settled();
}

/// Who ends a connection first.
#[derive(Clone, Copy, Debug)]
enum EndsFirst {
    ClientResets,
    ServerCloses,
    ClientCloses,
}

fn connect_from_port(lab: &TestLab, port: u16) -> Conn {
    let (from, to) = (
        SocketAddr::from((Ipv4Addr::new(10, 77, 0, 1), port)),
        lab.address(),
    );
    // On a busy machine the client's former socket still awaits the acknowledgement of its FIN.
    lab.inside(End::Client, || {
        wait(STALL, || {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
            socket.set_reuse_address(true).expect("SO_REUSEADDR");
            socket.bind(&from.into()).expect("bind");
            match socket.connect_timeout(&to.into(), STALL) {
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                    return Err(format!("connect from port {port}: {error}"));
                }
                connected => {
                    connected.unwrap_or_else(|error| panic!("connect from port {port}: {error}"))
                }
            }
            Ok(Conn::from_stream(TcpStream::from(socket), STALL).expect("connection"))
        })
    })
}

fn reuses_its_port(lab: &TestLab, port: u16, order: EndsFirst) {
    for round in 0..scaled(12, 40) {
        let began = Instant::now();
        let mut conn = connect_from_port(lab, port);
        let value = format!("{order:?}:{round}");
        set(&mut conn, "own", &value);
        for _ in 0..30 {
            assert_eq!(get(&mut conn, "hot").as_deref(), Some("v"));
        }
        assert_eq!(get(&mut conn, "own"), Some(value));
        let took = began.elapsed();
        if took > REUSED_MAX {
            out_of_patience(format_args!("{order:?} {round}: {took:?}"));
        }
        match order {
            EndsFirst::ClientResets => conn.reset_on_close().expect("SO_LINGER"),
            EndsFirst::ServerCloses => {
                expect(&mut conn, "QUIT", "+OK\r\n");
                assert_eq!(conn.fill(), Err(Broken::Eof));
            }
            EndsFirst::ClientCloses => {
                conn.stream()
                    .shutdown(std::net::Shutdown::Write)
                    .expect("shutdown");
                assert_eq!(conn.fill(), Err(Broken::Eof));
                sleep(Duration::from_millis(20));
            }
        }
    }
}

#[test]
fn an_address_pair_can_be_used_again_at_once() {
    let lab = TestLab::boosted_with("reuse", &["--direct"]);
    let client = &lab.lab().state().client.namespace;
    // The client's own TIME_WAIT would hold the port for a minute.
    netns::sysctl(client, "ipv4/tcp_tw_reuse", "1").expect("tcp_tw_reuse");
    let at_once = netns::sysctl(client, "ipv4/tcp_tw_reuse_delay", "1").is_ok();
    let mut conn = lab.client();
    set(&mut conn, "hot", "v");
    lab.heat(&mut conn, "hot");
    let before = lab.counters();
    reuses_its_port(&lab, 20_001, EndsFirst::ClientResets);
    reuses_its_port(&lab, 20_002, EndsFirst::ServerCloses);
    if at_once {
        reuses_its_port(&lab, 20_003, EndsFirst::ClientCloses);
    }
    let fast = lab.counters().since(&before, "FAST_GET");
    assert!(
        fast > scaled(200, 500),
        "only {fast} hits: little was translated"
    );
    expect(&mut conn, "GET hot", &bulk("v"));
    assert!(call(&mut conn, "PING").starts_with("+PONG"));
    lab.assert_settled();
}
