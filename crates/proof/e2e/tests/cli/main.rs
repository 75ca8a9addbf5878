// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line as a user meets it: bad input gets a clear error with its exit code and
//! changes nothing; boosting, a crash, and detaching leave things as they should be.
//!
//! Each test makes namespaces of its own. Run as root.

mod broken;
mod interrupted;
mod place;
mod told;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Output;
use std::time::Duration;

use erb_e2e::lab::erb_bin;
use place::{PATIENCE, Place, assert_refused, wait_for};

fn boost_with(place: &Place, device: &str, redis: &str, more: &[&str]) -> Output {
    let mut arguments = vec!["boost", "--dev", device, "--redis", redis];
    arguments.extend(more);
    place.erb(&arguments)
}

#[test]
fn no_such_device() {
    let place = Place::with_redis();
    let output = boost_with(&place, "nosuchdev0", "127.0.0.1:6379", &[]);
    assert_refused(&output, 5, &["nosuchdev0", "ip link"]);
    place.assert_untouched();
}

#[test]
fn device_with_a_foreign_xdp_program() {
    let place = Place::with_redis();
    erb_lab::xdp_pass::attach(&place.server(), &place.device()).unwrap();
    let output = place.boost();
    assert_refused(&output, 6, &[&place.device(), "erb_lab", "id ", "native"]);
    place.assert_untouched();
}

#[test]
fn redis_not_reachable() {
    let place = Place::new();
    let output = place.boost();
    assert_refused(&output, 7, &["127.0.0.1:6379", "is it running?"]);
    place.assert_untouched();
}

#[test]
fn redis_with_a_password() {
    let place = Place::with_redis();
    place.redis(&["CONFIG", "SET", "requirepass", "secret"]);
    let output = place.boost();
    assert_refused(&output, 7, &["NOAUTH", "password"]);
    place.assert_untouched();
}

#[test]
fn redis_too_old() {
    let place = Place::with_redis();
    let redis = place.fake_redis(
        b"+hello\r\n$22\r\nredis_version:6.2.14\r\n\r\n*2\r\n$4\r\nport\r\n$4\r\n6379\r\n",
    );
    let output = boost_with(&place, &place.device(), &redis, &[]);
    assert_refused(&output, 8, &["6.2.14", "7.0"]);
    place.assert_untouched();
}

#[test]
fn no_listening_socket() {
    let place = Place::with_redis();
    let output = boost_with(
        &place,
        &place.device(),
        "127.0.0.1:6379",
        &["--port", "6380"],
    );
    assert_refused(&output, 9, &["6380", "namespace"]);
    place.assert_untouched();
}

#[test]
fn too_little_privilege() {
    let place = Place::with_redis();
    for lost in ["-bpf", "-net_admin", "-perfmon", "-sys_admin"] {
        let arguments = [
            "boost",
            "--dev",
            &place.device(),
            "--redis",
            "127.0.0.1:6379",
        ];
        let output = place.erb_by(&["setpriv", "--bounding-set", lost], &arguments);
        let name = format!("CAP_{}", lost[1..].to_uppercase());
        assert_refused(&output, 3, &["privilege", &name, "root"]);
    }
    place.assert_untouched();
}

#[test]
fn kernel_too_old() {
    let place = Place::with_redis();
    let arguments = [
        "boost",
        "--dev",
        &place.device(),
        "--redis",
        "127.0.0.1:6379",
    ];
    let output = place.erb_by(&["setarch", "--uname-2.6"], &arguments);
    assert_refused(&output, 4, &["Linux 2.6", "6.12"]);
    place.assert_untouched();
}

#[test]
fn absurd_sizes() {
    let place = Place::with_redis();
    for size in [
        "0",
        "1K",
        "many",
        "-5M",
        "1.5G",
        "900000G",
        "99999999999999999999",
    ] {
        let size = format!("--cache-size={size}");
        let output = boost_with(&place, &place.device(), "127.0.0.1:6379", &[&size]);
        assert_refused(
            &output,
            10,
            &["cache"].map(|word| if size.contains(['K', '0']) { word } else { "" }),
        );
    }
    place.assert_untouched();
}

#[test]
fn arguments_that_cannot_be_used() {
    let place = Place::with_redis();
    let output = boost_with(&place, &place.device(), "nowhere", &[]);
    assert_refused(&output, 2, &["nowhere", "HOST:PORT"]);
    let output = boost_with(
        &place,
        &place.device(),
        "127.0.0.1:6379",
        &["--dev", &place.device()],
    );
    assert_refused(&output, 2, &["twice"]);
    place.assert_untouched();
}

#[test]
fn a_reader_that_has_gone_is_no_panic() {
    for arguments in [
        &["lab", "down", "--name", "none-of-this-name"][..],
        &["lab", "down", "--json", "--name", "none-of-this-name"],
        &["doctor"],
    ] {
        let (reader, writer) = nix::unistd::pipe().unwrap();
        drop(reader);
        let mut command = std::process::Command::new(erb_bin());
        let output = command.args(arguments).stdout(writer).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
        assert!(output.status.code().is_some(), "{output:?}");
    }
}

#[test]
fn tools_need_the_program_beside_this_one() {
    let folder = std::env::temp_dir().join(format!("erb-cli-alone-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let alone = folder.join("erb");
    std::fs::copy(erb_bin(), &alone).unwrap();
    let run = |words: &[&str]| std::process::Command::new(&alone).args(words).output();
    let outputs = [run(&["lab", "status"]), run(&["check", "--help"])];
    std::fs::remove_dir_all(&folder).unwrap();
    for output in outputs {
        assert_refused(&output.unwrap(), 18, &["erb-lab", "cargo build"]);
    }
}

#[test]
fn nothing_boosted() {
    let place = Place::new();
    assert_refused(&place.erb(&["status"]), 12, &["nothing is boosted"]);
    assert_refused(&place.erb(&["detach"]), 12, &["nothing is boosted"]);
    place.assert_untouched();
}

#[test]
fn already_boosted() {
    let place = Place::with_redis();
    place.boosted();
    assert_refused(&place.boost(), 11, &["already boosted", "erb detach"]);
    // By another run directory: Redis tells.
    let other = place.folder.join("other");
    let device = place.device();
    let words = ["boost", "--dev", &device, "--redis", "127.0.0.1:6379"];
    let output = place.erb_at(&place.server(), &other, &[], &words);
    assert_refused(&output, 11, &["boosted already", "erb detach --run-dir"]);
    assert!(!other.exists());
    wait_for("the first goes on", || place.status()["serving"] == true);
}

#[test]
fn boost_answers_and_detach_leaves_nothing() {
    let place = Place::with_redis();
    place.boosted();
    assert_eq!(place.redis_outside(&["SET", "key", "value"]), "OK");
    // One connection, because each first command goes up: four GETs, the key is filled meanwhile.
    let options = ["-r", "40", "-i", "0.02", "GET", "key"];
    wait_for("most of them answered", || {
        let before = count(&place, "FAST_GET");
        let said = place.redis_outside(&options);
        assert_eq!(said.lines().filter(|line| *line == "value").count(), 40);
        let is_ratio = place.status()["hit_ratio"].as_f64().unwrap() > 0.5;
        is_ratio && count(&place, "FAST_GET") - before >= 20
    });
    assert_eq!(count(&place, "INVARIANT"), 0);
    let status = place.status();
    assert_eq!(status["devices"][0]["mode"], "native");
    assert_eq!(
        status["egress_devices"].as_array().unwrap().len(),
        2,
        "lo is covered too"
    );
    let output = place.erb(&["detach"]);
    assert!(output.status.success(), "{output:?}");
    place.assert_untouched();
}

#[test]
fn a_crash_leaves_the_programs_and_the_next_boost_adopts_them() {
    let place = Place::with_redis();
    place.boosted();
    place.crash();
    assert_eq!(place.redis_outside(&["SET", "key", "value"]), "OK");
    assert_eq!(place.redis_outside(&["GET", "key"]), "value");
    let output = place.boost();
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("adopted"),
        "{output:?}"
    );
    wait_for("serving again", || place.status()["serving"] == true);
    place.crash();
    let output = place.erb(&["detach"]);
    assert!(output.status.success(), "{output:?}");
    place.assert_untouched();
}

#[test]
fn a_boost_that_cannot_settle_is_taken_back() {
    let place = Place::with_redis();
    let log = place.folder.join("no/such/folder/log");
    let log = log.to_str().unwrap();
    let output = boost_with(&place, &place.device(), "127.0.0.1:6379", &["--log", log]);
    assert_refused(&output, 1, &[log]);
    place.assert_untouched();
}

#[test]
fn the_daemon_leaves_with_its_last_device() {
    let place = Place::with_redis();
    place.boosted();
    place.delete_device();
    wait_for("the daemon to leave", || !place.run_dir().exists());
    place.assert_untouched();
}

/// A connection through ERB that has been answered by it.
fn translated_connection(place: &Place) -> TcpStream {
    let mut stream = erb_lab::netns::run_in(&place.client(), || {
        Ok(TcpStream::connect("10.98.0.1:6379")?)
    })
    .unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for _ in 0..3 {
        assert_eq!(ping(&mut stream).unwrap(), b"+PONG\r\n");
        std::thread::sleep(Duration::from_millis(20));
    }
    wait_for("a translated connection", || {
        ping(&mut stream).unwrap();
        place.status()["connections"]["translated"] == 1
    });
    stream
}

fn ping(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    stream.write_all(b"PING\r\n")?;
    stream.write_all(b"*1\r\n$4\r\nPING\r\n")?;
    let mut replies = [0; 14];
    stream.read_exact(&mut replies)?;
    Ok(replies[7..].to_vec())
}

fn connect(place: &Place) -> TcpStream {
    let connect = || Ok(TcpStream::connect("10.98.0.1:6379")?);
    let stream = erb_lab::netns::run_in(&place.client(), connect).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn count(place: &Place, name: &str) -> u64 {
    let status = place.status();
    let all = status["counters"].as_array().unwrap();
    all.iter().find(|counter| counter["name"] == name).unwrap()["count"]
        .as_u64()
        .unwrap()
}

/// Sends one command and reads the reply, which must be this one.
fn tell(stream: &mut TcpStream, command: &str, reply: &str) {
    stream.write_all(command.as_bytes()).unwrap();
    let mut got = vec![0; reply.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), reply, "{command}");
}

#[test]
fn fences_of_uncountable_replies_are_released_by_proof() {
    let place = Place::with_redis();
    let mut older = connect(&place);
    tell(&mut older, "SET before 1\r\n", "+OK\r\n");
    place.boosted();
    let open = || wait_for("an open fence", || place.status()["fence"] == 0);
    tell(&mut older, "SET key 1\r\n", "+OK\r\n");
    assert!(
        count(&place, "FENCE_TAKEN") > 0,
        "a connection older than ERB takes the fence"
    );
    open();
    let mut silent = connect(&place);
    tell(&mut silent, "PING\r\n", "+PONG\r\n");
    let before = count(&place, "FENCE_TAKEN");
    silent
        .write_all(b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$3\r\nOFF\r\n")
        .unwrap();
    silent.write_all(b"SET key 2\r\n").unwrap();
    wait_for("the silent write", || place.redis(&["GET", "key"]) == "2");
    assert!(
        count(&place, "FENCE_TAKEN") > before,
        "its replies never come"
    );
    open();
    assert_eq!(place.redis_outside(&["GET", "key"]), "2");
    let blocked_in = |command: &str| {
        wait_for("the blocked client", || {
            let list = place.redis(&["CLIENT", "LIST"]);
            let mut lines = list.lines();
            lines.any(|line| line.contains("flags=b") && line.contains(command))
        });
    };
    // What waits may be a write: nothing is proved.
    place.redis(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    silent.write_all(b"SET key 3\r\n").unwrap();
    blocked_in("cmd=set");
    std::thread::sleep(Duration::from_millis(500));
    assert_ne!(place.status()["fence"], 0, "it is blocked");
    place.redis(&["CLIENT", "UNPAUSE"]);
    open();
    // What waits changes no string: what was sent before it has run.
    silent.write_all(b"SET key 4\r\nBLPOP list 0\r\n").unwrap();
    blocked_in("cmd=blpop");
    open();
    assert_eq!(place.redis_outside(&["GET", "key"]), "4");
    assert_eq!(count(&place, "INVARIANT"), 0);
}

#[test]
fn changes_that_no_packet_shows_reach_the_cache() {
    let place = Place::with_redis();
    place.redis(&["SET", "key", "1"]);
    place.boosted();
    let mut stream = connect(&place);
    tell(&mut stream, "PING\r\n", "+PONG\r\n");
    let get = "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n";
    let mut hit = |reply: &str| {
        let before = count(&place, "FAST_GET");
        wait_for("a hit", || {
            tell(&mut stream, get, reply);
            count(&place, "FAST_GET") > before
        });
    };
    hit("$1\r\n1\r\n");
    place.redis(&["SET", "key", "2"]);
    std::thread::sleep(Duration::from_millis(100));
    hit("$1\r\n2\r\n");
    // FLUSHALL pushes, SWAPDB does not: it is seen in the statistics, which are read for each lease.
    for command in [
        ["FLUSHALL", "SYNC"].as_slice(),
        ["SWAPDB", "0", "1"].as_slice(),
    ] {
        let before = count(&place, "CACHE_CLEARED");
        place.redis(command);
        wait_for("an empty cache", || count(&place, "CACHE_CLEARED") > before);
        place.redis(&["SET", "key", "3"]);
        std::thread::sleep(Duration::from_millis(100));
        hit("$1\r\n3\r\n");
    }
}

#[test]
fn entries_go_with_their_connections() {
    let place = Place::with_redis();
    place.boosted();
    let mut streams: Vec<TcpStream> = (0..20).map(|_| connect(&place)).collect();
    for stream in &mut streams {
        tell(stream, "PING\r\n", "+PONG\r\n");
    }
    assert_eq!(place.status()["connections"]["total"], 20);
    drop(streams);
    wait_for("an empty table", || {
        place.status()["connections"]["total"] == 0
    });
}

#[test]
fn detach_waits_for_connections_that_need_translation() {
    let place = Place::with_redis();
    place.boosted();
    let mut stream = translated_connection(&place);
    let output = place.erb(&["detach", "--wait", "300ms"]);
    assert_eq!(output.status.code(), Some(14), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("1 connections"),
        "{output:?}"
    );
    assert_eq!(place.status()["daemon"], "detaching");
    assert_eq!(ping(&mut stream).unwrap(), b"+PONG\r\n", "still translated");
    drop(stream);
    wait_for("the daemon to leave", || !place.run_dir().exists());
    place.assert_untouched();
}

#[test]
fn detach_by_force_resets_them() {
    for crashed in [false, true] {
        let place = Place::with_redis();
        place.boosted();
        let mut stream = translated_connection(&place);
        if crashed {
            place.crash();
        }
        let output = place.erb(&["detach", "--force"]);
        assert!(output.status.success(), "{output:?}");
        assert!(ping(&mut stream).is_err(), "the client must see a reset");
        assert_eq!(place.redis(&["PING"]), "PONG", "Redis lives on");
        place.assert_untouched();
    }
}

#[test]
fn serving_follows_redis() {
    let mut place = Place::with_redis();
    place.boosted();
    let serving = |place: &Place, wanted: bool, word: &str| {
        wait_for(word, || {
            let status = place.status();
            status["serving"] == wanted && status["not_serving"].to_string().contains(word)
        });
    };
    // Through ERB the gate shuts at once and opens again without waiting for the next second.
    place.redis_outside(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    place.redis_outside(&["REPLICAOF", "127.0.0.1", "1"]);
    serving(&place, false, "MASTERDOWN");
    place.redis_outside(&["REPLICAOF", "NO", "ONE"]);
    serving(&place, true, "");
    place.stop_redis();
    serving(&place, false, "Redis");
    assert_eq!(place.status()["lease_left_ms"], 0);
    place.start_redis();
    serving(&place, true, "");
    assert_eq!(place.status()["redis"]["feeds_made"], 2);
}

#[test]
fn the_lease_ends_with_a_silent_redis() {
    let place = Place::with_redis();
    place.boosted();
    wait_for("a lease", || {
        place.status()["lease_left_ms"].as_i64().unwrap() > 0
    });
    place.freeze_redis(true);
    wait_for("the end of the lease", || {
        place.status()["lease_left_ms"].as_i64().unwrap() < 0
    });
    place.freeze_redis(false);
    wait_for("a new lease", || {
        place.status()["lease_left_ms"].as_i64().unwrap() > 0
    });
}

#[test]
fn a_trace_that_cannot_begin_says_why() {
    let place = Place::with_redis();
    assert_refused(&place.erb(&["trace"]), 12, &["nothing is boosted"]);
    for (words, said) in [
        (["--client", "nowhere"], ["nowhere", "10.0.0.7:40312"]),
        (
            ["--client", "10.0.0.7:0"],
            ["10.0.0.7:0", "[fd00::7]:40312"],
        ),
        (["--key", "\"\\x1\""], ["--key", "hexadecimal"]),
    ] {
        let output = place.erb(&["trace", words[0], words[1]]);
        assert_refused(&output, 2, &said);
    }
    let long = "k".repeat(257);
    let output = place.erb(&["trace", "--key", &long]);
    assert_refused(&output, 2, &["257", "256", "--client"]);
    for words in [
        ["--limit", "0"],
        ["--seconds", "soon"],
        ["--explain", "--json"],
    ] {
        let output = place.erb(&["trace", words[0], words[1]]);
        assert_refused(&output, 2, &[words[0]]);
    }
    let output = place.erb_by(&["setpriv", "--bounding-set", "-bpf"], &["trace"]);
    assert_refused(&output, 3, &["CAP_BPF", "root"]);
    let output = place.erb_by(&["setarch", "--uname-2.6"], &["trace"]);
    assert_refused(&output, 4, &["Linux 2.6", "6.12"]);
    place.assert_untouched();
}

#[test]
fn a_trace_shows_packets_and_leaves_no_trace() {
    let place = Place::with_redis();
    place.boosted();
    let waits = ["trace", "--seconds", "1"];
    let output = place.erb(&waits);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(place.status()["programs"]["traced"], false);
    assert_eq!(place.status()["programs"]["whole"], true);
    // A dead daemon is no hindrance; it is told.
    place.crash();
    let output = place.erb(&waits);
    assert!(output.status.success(), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("the daemon is dead"),
        "{output:?}"
    );
    let output = place.erb(&["detach"]);
    assert!(output.status.success(), "{output:?}");
    place.assert_untouched();
}

/// Two namespaces with a boost each, in the default places: without `--run-dir` each command means that
/// of its own namespace.
#[test]
fn the_boost_of_the_own_namespace_is_meant() {
    let places = [Place::with_redis(), Place::with_redis()];
    for place in &places {
        let device = place.device();
        let words = ["boost", "--dev", &device, "--redis", "127.0.0.1:6379"];
        let output = place.erb_by_default(&[&words[..], &["--cache-size", "4M"]].concat());
        assert!(output.status.success(), "{output:?}");
    }
    for (place, other) in [(&places[0], &places[1]), (&places[1], &places[0])] {
        let output = place.erb_by_default(&["status", "--json"]);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(status.to_string().contains(&place.device()), "{status}");
        assert!(!status.to_string().contains(&other.device()), "{status}");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains(&other.device()), "{told}");
        let doctor = place.erb_by_default(&[
            "doctor",
            "--dev",
            &place.device(),
            "--redis",
            "127.0.0.1:6379",
        ]);
        let said = String::from_utf8_lossy(&doctor.stdout);
        assert!(said.contains("boosted already"), "{said}");
        assert!(said.contains("firewall"), "{said}");
    }
    for place in &places {
        let output = place.erb_by_default(&["detach"]);
        assert!(output.status.success(), "{output:?}");
        place.assert_untouched();
    }
}
