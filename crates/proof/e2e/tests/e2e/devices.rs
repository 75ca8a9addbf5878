// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several devices: routes that move while connections live, a bridge, what is refused; and what a route
//! that is taken away means for a client that is answered.

use std::time::{Duration, Instant};

use erb_check::net::Conn;
use erb_e2e::calls::{bulk, expect, set};
use erb_e2e::lab::{STATE_WAIT, TestLab, wait};
use erb_lab::{End, xdp_pass};
use erb_steady::{out_of_patience, patient, too_slow};

/// Longer than all fast replies before it: whatever is missing at its begin shows.
const LONG: usize = 120;

/// A lab with Redis alone and a second pair of devices beside s0 and c0: s1 (10.78.0.2) and c1
/// (10.78.0.1).
pub(crate) fn two_uplinks(name: &str) -> TestLab {
    let mut lab = TestLab::up(name, &["--direct", "--redis-arg", "unixsocket=redis.sock"]);
    lab.use_run_dir(format!("/run/erb/e2e-{name}"));
    let state = lab.lab().state();
    let (server, client) = (&state.server.namespace, &state.client.namespace);
    let words = format!("ip link add s1 type veth peer name c1 netns {client}");
    ip(&lab, End::Server, &words);
    for (end, device, address) in [
        (End::Server, "s1", "10.78.0.2/24"),
        (End::Client, "c1", "10.78.0.1/24"),
    ] {
        ip(&lab, end, &format!("ip addr add {address} dev {device}"));
        ip(&lab, end, &format!("ip link set {device} up"));
    }
    // What a boosted veth sends reaches an end that polls.
    xdp_pass::attach(client, "c1").expect("attach");
    for (namespace, devices) in [(server, ["all", "s0", "s1"]), (client, ["all", "c0", "c1"])] {
        for device in devices {
            let key = format!("ipv4/conf/{device}/rp_filter");
            erb_lab::netns::sysctl(namespace, &key, "0").expect("sysctl");
        }
    }
    lab
}

fn ip(lab: &TestLab, end: End, words: &str) {
    lab.exec(end, &words.split_whitespace().collect::<Vec<_>>());
}

fn boost(lab: &TestLab, devices: &[&str]) {
    let words: Vec<&str> = devices.iter().flat_map(|name| ["--dev", name]).collect();
    let output = lab.boost(&words);
    assert!(output.status.success(), "{output:?}");
    lab.wait_admitting();
}

/// Replies to the client's address go out by this device; none: by s0, as at first.
fn replies_by(lab: &TestLab, way: Option<&str>) {
    match way {
        Some("s1") => ip(
            lab,
            End::Server,
            "ip route replace 10.77.0.1/32 via 10.78.0.1 dev s1 src 10.77.0.2",
        ),
        Some(other) => ip(
            lab,
            End::Server,
            &format!("ip route replace 10.77.0.1/32 via 10.79.0.1 dev {other} src 10.77.0.2"),
        ),
        None => ip(lab, End::Server, "ip route del 10.77.0.1/32"),
    }
}

/// The client's packets go out by c1, or by c0 again.
fn requests_by_c1(lab: &TestLab, moved: bool) {
    if moved {
        let words = "ip route replace 10.77.0.2/32 via 10.78.0.2 dev c1 src 10.77.0.1";
        ip(lab, End::Client, words);
    } else {
        ip(lab, End::Client, "ip route del 10.77.0.2/32");
    }
}

/// A connection on which three PINGs were answered fast.
fn spliced(lab: &TestLab) -> Conn {
    let mut conn = lab.client();
    expect(&mut conn, "PING", "+PONG\r\n");
    wait(STATE_WAIT, || {
        let before = lab.counters();
        for _ in 0..3 {
            expect(&mut conn, "PING", "+PONG\r\n");
        }
        let after = lab.counters();
        let all = after.since(&before, "FAST_PING") == 3;
        all.then_some(()).ok_or_else(|| after.moved(&before))
    });
    conn
}

/// Right bytes; and how many of ten PINGs were answered fast after them.
fn talks(lab: &TestLab, conn: &mut Conn) -> u64 {
    for letter in ["a", "b", "c"] {
        let text = letter.repeat(LONG);
        expect(conn, &format!("ECHO {text}"), &bulk(&text));
    }
    let before = lab.counters();
    for _ in 0..10 {
        expect(conn, "PING", "+PONG\r\n");
    }
    lab.counters().since(&before, "FAST_PING")
}

/// The same, until all ten are answered fast: a lease may come late.
fn talks_fast(lab: &TestLab, conn: &mut Conn, what: &str) {
    wait(STATE_WAIT, || {
        let fast = talks(lab, conn);
        (fast == 10)
            .then_some(())
            .ok_or_else(|| format!("{what}: {fast} of 10"))
    });
}

fn routes_move(name: &str, boosted: &[&str]) {
    let lab = two_uplinks(name);
    boost(&lab, boosted);
    let both = boosted.len() == 2;
    let mut conn = spliced(&lab);
    replies_by(&lab, Some("s1"));
    assert_eq!(talks(&lab, &mut conn), 0, "replies leave by s1");
    requests_by_c1(&lab, true);
    if both {
        talks_fast(&lab, &mut conn, "both ways by s1");
    } else {
        assert_eq!(talks(&lab, &mut conn), 0, "both ways by s1");
    }
    replies_by(&lab, None);
    assert_eq!(talks(&lab, &mut conn), 0, "replies leave by s0");
    requests_by_c1(&lab, false);
    talks_fast(&lab, &mut conn, "as at first");
    drop(conn);
    lab.assert_settled();
}

#[test]
fn routes_move_between_boosted_devices() {
    routes_move("uplinks", &["s0", "s1"]);
}

#[test]
fn routes_move_to_a_device_that_is_not_boosted() {
    routes_move("elsewhere", &["s0"]);
}

/// Replies move into a tunnel over the other device: there they are no TCP any more.
#[test]
fn routes_move_into_a_tunnel() {
    let lab = two_uplinks("tunnel");
    boost(&lab, &["s0"]);
    let mut conn = spliced(&lab);
    for (end, own, peer, address) in [
        (End::Server, "10.78.0.2", "10.78.0.1", "10.79.0.2/24"),
        (End::Client, "10.78.0.1", "10.78.0.2", "10.79.0.1/24"),
    ] {
        let words =
            format!("ip link add vx0 type vxlan id 5 local {own} remote {peer} dstport 4789");
        ip(&lab, end, &words);
        ip(&lab, end, &format!("ip addr add {address} dev vx0"));
        ip(&lab, end, "ip link set vx0 up");
    }
    // The programs are on it before its route is.
    covered(&lab, "vx0");
    replies_by(&lab, Some("vx0"));
    assert_eq!(talks(&lab, &mut conn), 0);
    replies_by(&lab, None);
    talks_fast(&lab, &mut conn, "as at first");
    drop(conn);
    lab.assert_settled();
}

/// s0 becomes a bridge's port; either may be boosted, both may not.
#[test]
fn a_bridge_and_its_port() {
    for device in ["s0", "br0"] {
        let lab = two_uplinks("bridge");
        for words in [
            "ip link add br0 type bridge",
            "ip addr flush dev s0",
            "ip link set s0 master br0",
            "ip addr add 10.77.0.2/24 dev br0",
            "ip link set br0 up",
        ] {
            ip(&lab, End::Server, words);
        }
        let both = lab.boost(&["--dev", "s0", "--dev", "br0"]);
        assert_eq!(both.status.code(), Some(5), "{both:?}");
        let said = String::from_utf8_lossy(&both.stderr);
        assert!(said.contains("br0 lies above s0"), "{said}");
        boost(&lab, &[device]);
        let mut conn = spliced(&lab);
        talks_fast(&lab, &mut conn, device);
        talks_fast(&lab, &mut conn, device);
        drop(conn);
        lab.assert_settled();
    }
}

/// A client whose route back is a black hole is answered until a command of its goes up, as each
/// connection's does, and no longer: that one is never answered.
#[test]
fn a_client_without_a_route_is_soon_not_answered() {
    const TIMEOUT_S: u64 = 6;
    let lab = two_uplinks("blackhole");
    boost(&lab, &["s0"]);
    let mut conn = spliced(&lab);
    // The heartbeat is a third of it.
    expect(
        &mut lab.unseen(),
        &format!("CONFIG SET timeout {TIMEOUT_S}"),
        "+OK\r\n",
    );
    expect(&mut conn, "PING", "+PONG\r\n");
    std::thread::sleep(Duration::from_millis(1500)); // the daemon reads it once a second
    expect(&mut conn, "PING", "+PONG\r\n");
    ip(&lab, End::Server, "ip route add blackhole 10.77.0.1/32");
    let began = Instant::now();
    let mut answered = 0;
    let silent_after = loop {
        let before = lab.counters();
        conn.send(b"*1\r\n$4\r\nPING\r\n").expect("send");
        conn.rest(Duration::from_millis(300));
        if lab.counters().since(&before, "FAST_PING") == 0 {
            break began.elapsed();
        }
        answered += 1;
        if began.elapsed() > patient(Duration::from_secs(TIMEOUT_S / 3 + 1)) {
            out_of_patience(format_args!("still answered, {answered} times"));
        }
    };
    println!("answered {answered} times, silent after {silent_after:?}");
    if answered == 0 {
        out_of_patience("the lease was over just then: nothing is shown");
    }
    let before = lab.counters();
    for _ in 0..20 {
        conn.send(b"*1\r\n$4\r\nPING\r\n").expect("send");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(lab.counters().since(&before, "FAST_PING"), 0);
    ip(&lab, End::Server, "ip route del blackhole 10.77.0.1/32");
}

/// Waits until a device that is not boosted has both programs; how long that took.
fn covered(lab: &TestLab, device: &str) -> Duration {
    let path = format!("/sys/class/net/{device}/ifindex");
    let index = lab.exec(End::Server, &["cat", &path]);
    let pins = lab.run_dir().join("bpf");
    let began = Instant::now();
    for link in ["egress", "elsewhere"] {
        let pin = pins.join(format!("link_{link}_{}", index.trim()));
        wait(STATE_WAIT, || {
            let found = pin.exists();
            found.then_some(()).ok_or_else(|| format!("no {pin:?}"))
        });
    }
    began.elapsed()
}

/// A device that appears is covered when the kernel tells of it, not at the daemon's next second: then four in
/// a row would hardly be covered so soon.
#[test]
fn new_devices_are_covered_at_once() {
    const SOON: Duration = Duration::from_millis(300);
    const TRIES: u32 = 4;
    let lab = two_uplinks("appears");
    boost(&lab, &["s0"]);
    let mut took = Vec::new();
    for number in 0..4 * TRIES {
        let device = format!("n{number}");
        let words = format!("ip link add {device} type veth peer name p{number}");
        ip(&lab, End::Server, &words);
        took.push(covered(&lab, &device));
        if took.len() == 4 {
            if took.iter().all(|took| *took < SOON) {
                return;
            }
            took.clear();
        }
    }
    too_slow(format_args!("never four in a row within {SOON:?}"));
}

/// Nobody tells the kernel, which sends nothing: what does not pass any more is sent in pieces, and
/// longer answers are Redis's from then on.
#[test]
fn a_lower_mtu_hangs_no_answered_connection() {
    let lab = two_uplinks("mtu");
    boost(&lab, &["s0"]);
    let value = "v".repeat(1200);
    let mut conn = lab.client();
    set(&mut conn, "k", &value);
    lab.heat(&mut conn, "k");
    for (end, device) in [(End::Server, "s0"), (End::Client, "c0")] {
        ip(&lab, end, &format!("ip link set {device} mtu 900"));
    }
    let began = Instant::now();
    for _ in 0..20 {
        expect(&mut conn, "GET k", &bulk(&value));
    }
    let took = began.elapsed();
    println!("20 answers took {took:?}");
    if took > Duration::from_secs(100) {
        out_of_patience(format_args!("20 answers took {took:?}"));
    }
    lab.assert_settled();
}

/// Somebody asks, or wants to detach, before the daemon has found out by itself that its device has gone: it does so by
/// that, and lives.
#[test]
fn whoever_asks_while_the_device_goes_ends_no_daemon() {
    let asks: [&[&str]; 3] = [
        &["status"],
        &["status", "--json"],
        &["detach", "--wait", "0"],
    ];
    let mut lab = two_uplinks("goes");
    for (number, ask) in asks.into_iter().enumerate() {
        lab.use_run_dir(format!("/run/erb/e2e-goes-{number}"));
        boost(&lab, &["s0"]);
        let conn = spliced(&lab);
        let pid = lab.status().pid;
        ip(&lab, End::Server, "ip link del s0");
        for _ in 0..3 {
            let output = lab.erb(ask);
            println!("{ask:?}: {:?}", output.status);
        }
        let said = lab.status();
        assert_eq!((said.daemon.as_str(), said.pid), ("detaching", pid));
        drop(conn);
        lab.erb(&["detach", "--force"]);
        s0_is_made_anew(&lab);
    }
}

/// s0 and c0, with their addresses, once they are gone.
fn s0_is_made_anew(lab: &TestLab) {
    let client = &lab.lab().state().client.namespace;
    ip(
        lab,
        End::Server,
        &format!("ip link add s0 type veth peer name c0 netns {client}"),
    );
    for (end, device, address) in [
        (End::Server, "s0", "10.77.0.2/24"),
        (End::Client, "c0", "10.77.0.1/24"),
    ] {
        ip(lab, end, &format!("ip addr add {address} dev {device}"));
        ip(lab, end, &format!("ip link set {device} up"));
    }
}

/// The only boosted device is taken away and comes back as another: answered connections go on.
#[test]
fn the_boosted_device_is_made_anew() {
    let lab = two_uplinks("remade");
    boost(&lab, &["s0"]);
    let mut conn = spliced(&lab);
    ip(&lab, End::Server, "ip link del s0");
    s0_is_made_anew(&lab);
    for letter in ["a", "b", "c"] {
        let text = letter.repeat(LONG);
        expect(&mut conn, &format!("ECHO {text}"), &bulk(&text));
    }
    let said = lab.erb(&["status"]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("detach under way"), "{said}");
    drop(conn);
    wait(Duration::from_secs(90), || {
        let gone = !lab.erb(&["status"]).status.success();
        gone.then_some(())
            .ok_or("the boost stays")
            .map_err(str::to_owned)
    });
}
