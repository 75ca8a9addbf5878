// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is served over HTTP, to whom, and that hostile readers keep nobody out. Over loopback.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use erb_report::Status;
use erb_watch::{CONNECTIONS_MAX, Endpoint, Error, FRESH, HEAD_BYTES_MAX, HEAD_TIME_MAX};

const LOOPBACK: &str = "127.0.0.1:0";
const TOKEN: &str = "a-token-of-some-length";
/// Far more than any answer takes.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A server whose status counts how often it was asked for, in its fence.
struct Served {
    address: SocketAddr,
    asked: Arc<AtomicU32>,
}

fn served(token: Option<&str>) -> Served {
    let token = token.map(|token| token.as_bytes().to_vec());
    let endpoint = Endpoint::bind(LOOPBACK.parse().unwrap(), token).unwrap();
    let address = endpoint.address();
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    endpoint
        .serve(move |_| {
            let fence = u64::from(count.fetch_add(1, Ordering::Relaxed)) + 1;
            Ok(Status {
                fence,
                ..Status::default()
            })
        })
        .unwrap();
    Served { address, asked }
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    let patient = erb_steady::patient(ANSWER_MAX);
    stream.set_read_timeout(Some(patient)).unwrap();
    stream
}

/// What comes until the server closes.
fn said(to: SocketAddr, request: &str) -> String {
    let mut stream = connect(to);
    // Who answers before all of it was sent may close.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    if read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
        erb_steady::out_of_patience("no answer");
    }
    String::from_utf8(answer).unwrap()
}

/// One request with these further lines.
fn get(to: SocketAddr, path: &str, lines: &str) -> String {
    said(
        to,
        &format!("GET {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n{lines}\r\n"),
    )
}

fn code(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

#[test]
fn metrics_come_in_the_text_that_is_asked_for() {
    let served = served(None);
    let plain = get(served.address, "/metrics", "");
    assert_eq!(code(&plain), "200", "{plain}");
    assert!(
        plain.contains("content-type: text/plain; version=0.0.4"),
        "{plain}"
    );
    assert!(plain.contains("\nerb_fence_commands 1\n"), "{plain}");
    let open = get(
        served.address,
        "/metrics",
        "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n",
    );
    assert!(
        open.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{open}"
    );
    assert!(open.ends_with("# EOF\n"), "{open}");
    assert_eq!(code(&get(served.address, "/", "")), "200");
    assert_eq!(code(&get(served.address, "/metrics/x", "")), "404");
}

#[test]
fn the_status_is_asked_for_once_in_a_while_however_many_read() {
    let served = served(None);
    let begin = Instant::now();
    for _ in 0..50 {
        assert_eq!(code(&get(served.address, "/metrics", "")), "200");
    }
    let most = begin.elapsed().as_millis() / FRESH.as_millis() + 1;
    assert!(u128::from(served.asked.load(Ordering::Relaxed)) <= most);
    std::thread::sleep(FRESH);
    let before = served.asked.load(Ordering::Relaxed);
    assert_eq!(code(&get(served.address, "/metrics", "")), "200");
    assert_eq!(
        served.asked.load(Ordering::Relaxed),
        before + 1,
        "an old one is not given"
    );
}

/// Each of these asks, and is gone before it is told.
#[test]
fn who_asks_and_goes_does_not_make_the_daemon_be_asked_more_often() {
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let endpoint = Endpoint::bind(LOOPBACK.parse().unwrap(), None).unwrap();
    let address = endpoint.address();
    endpoint
        .serve(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
            Ok(Status::default())
        })
        .unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let begin = Instant::now();
    for _ in 0..20 * CONNECTIONS_MAX {
        let _ = connect(address).write_all(request.as_bytes());
    }
    assert_eq!(code(&get(address, "/metrics", "")), "200");
    std::thread::sleep(FRESH);
    let most = begin.elapsed().as_millis() / FRESH.as_millis() + 1;
    let asked = u128::from(asked.load(Ordering::Relaxed));
    assert!(asked <= most, "asked {asked} times, {most} at most");
}

#[test]
fn nothing_but_reading_is_possible() {
    let served = served(None);
    for method in [
        "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW",
    ] {
        let target = if method == "CONNECT" {
            "127.0.0.1:80"
        } else {
            "/metrics"
        };
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc",
            served.address
        );
        let answer = said(served.address, &request);
        assert_eq!(code(&answer), "405", "{method}: {answer}");
        assert!(answer.contains("allow: GET, HEAD"), "{answer}");
    }
    assert_eq!(served.asked.load(Ordering::Relaxed), 0);
    let head = said(
        served.address,
        &format!(
            "HEAD /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            served.address
        ),
    );
    assert!(code(&head) == "200" && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn a_request_names_one_host() {
    for token in [None, Some(TOKEN)] {
        let served = served(token);
        let token = token.map_or_else(String::new, |it| format!("Authorization: Bearer {it}\r\n"));
        let of = |lines: &str| {
            let request =
                format!("GET /metrics HTTP/1.1\r\n{lines}{token}Connection: close\r\n\r\n");
            said(served.address, &request)
        };
        for lines in [
            "",
            "Host: localhost\r\nHost: localhost\r\n",
            "Host: localhost\r\nhost: evil.example\r\n",
        ] {
            assert_eq!(code(&of(lines)), "400", "{lines}");
        }
        assert_eq!(code(&of("Host: localhost\r\n")), "200");
    }
}

#[test]
fn a_page_from_elsewhere_does_not_read_by_a_name_of_its_own() {
    let served = served(None);
    for host in ["evil.example", "evil.example:9279", ""] {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert_eq!(code(&said(served.address, &request)), "421", "{host}");
    }
    // HTTP/1.1 wants a Host: see above.
    let without = "GET /metrics HTTP/1.0\r\n\r\n";
    assert_eq!(code(&said(served.address, without)), "421");
    let localhost = "GET /metrics HTTP/1.1\r\nHost: localhost:9\r\nConnection: close\r\n\r\n";
    assert_eq!(code(&said(served.address, localhost)), "200");
}

#[test]
fn with_a_token_only_who_shows_it_reads() {
    let served = served(Some(TOKEN));
    let with = |value: &str| {
        get(
            served.address,
            "/metrics",
            &format!("Authorization: {value}\r\n"),
        )
    };
    for value in [
        "Bearer",
        "Bearer ",
        "Bearer a-token-of-some-lengtH",
        "Basic YTpi",
        &TOKEN[1..],
    ] {
        let answer = with(value);
        assert_eq!(code(&answer), "401", "{value}: {answer}");
        assert!(answer.contains("www-authenticate: Bearer"), "{answer}");
        assert!(!answer.contains("erb_"), "{answer}");
    }
    assert_eq!(
        code(&get(served.address, "/nothing", "")),
        "401",
        "nor what there is"
    );
    assert_eq!(served.asked.load(Ordering::Relaxed), 0);
    for scheme in ["Bearer", "bearer"] {
        assert_eq!(code(&with(&format!("{scheme} {TOKEN}"))), "200");
    }
    // Whoever has the token may call this machine as he likes.
    let named = format!(
        "GET /metrics HTTP/1.1\r\nHost: db1\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    );
    assert_eq!(code(&said(served.address, &named)), "200");
}

#[test]
fn a_daemon_that_does_not_answer_is_told_as_such() {
    let endpoint = Endpoint::bind(LOOPBACK.parse().unwrap(), None).unwrap();
    let address = endpoint.address();
    endpoint
        .serve(|_| Err::<Status, _>("the daemon does not answer".to_owned()))
        .unwrap();
    let answer = get(address, "/metrics", "");
    assert_eq!(code(&answer), "503", "{answer}");
    assert!(answer.ends_with("the daemon does not answer\n"), "{answer}");
}

#[test]
fn who_only_connects_keeps_nobody_out() {
    let served = served(None);
    let idle: Vec<TcpStream> = (0..CONNECTIONS_MAX * 3)
        .map(|_| connect(served.address))
        .collect();
    let mut slow: Vec<TcpStream> = (0..CONNECTIONS_MAX)
        .map(|_| connect(served.address))
        .collect();
    for stream in &mut slow {
        let _ = stream.write_all(b"GET /metrics HT");
    }
    let begin = Instant::now();
    assert_eq!(code(&get(served.address, "/metrics", "")), "200");
    // By then connections without a head are closed for that.
    if begin.elapsed() >= HEAD_TIME_MAX {
        erb_steady::out_of_patience(format_args!("answered after {:?}", begin.elapsed()));
    }
    // The oldest have lost their places.
    let mut first = &idle[0];
    let is_closed = match first.read(&mut [0; 1]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    };
    assert!(is_closed);
}

#[test]
fn who_asks_and_does_not_read_keeps_nobody_out() {
    let served = served(None);
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\n\r\n", served.address).repeat(200);
    let held: Vec<TcpStream> = (0..CONNECTIONS_MAX - 1)
        .map(|_| {
            let mut stream = connect(served.address);
            stream
                .set_write_timeout(Some(Duration::from_millis(50)))
                .unwrap();
            let _ = stream.write_all(request.as_bytes());
            stream
        })
        .collect();
    assert_eq!(code(&get(served.address, "/metrics", "")), "200");
    drop(held);
}

#[test]
fn rubbish_and_endless_heads_end_their_own_connection_alone() {
    let served = served(None);
    let endless = format!(
        "GET /metrics HTTP/1.1\r\nX: {}",
        "x".repeat(4 * HEAD_BYTES_MAX)
    );
    let many = format!("GET /metrics HTTP/1.1\r\n{}", "A: b\r\n".repeat(4_000));
    let name = format!("GET /{} HTTP/1.1\r\n", "%00".repeat(HEAD_BYTES_MAX));
    let rubbish = [
        "\0\0\0\0\r\n\r\n",
        "\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "*1\r\n$4\r\nPING\r\n",
    ];
    for request in rubbish
        .into_iter()
        .chain([endless.as_str(), many.as_str(), name.as_str()])
    {
        let answer = said(served.address, &format!("{request}\r\n\r\n"));
        assert!(!answer.contains("erb_"), "{answer}");
    }
    assert_eq!(code(&get(served.address, "/metrics", "")), "200");
}

/// Bytes of a small generator (xorshift), so that a failure can be had again.
#[test]
fn arbitrary_bytes_break_nothing() {
    let served = served(None);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Half of them such as heads are made of.
        let printed = b"GETHOSTmetrics/ :\r\n\r\nHTTP/1.1,;=\"%0";
        let chosen = printed[(state >> 8) as usize % printed.len()];
        if state & 1 == 0 { chosen } else { state as u8 }
    };
    for _ in 0..400 {
        let length = usize::from(byte()) + 1;
        let bytes: Vec<u8> = (0..length).map(|_| byte()).collect();
        let mut stream = connect(served.address);
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
        let _ = stream.write_all(&bytes);
    }
    assert_eq!(code(&get(served.address, "/metrics", "")), "200");
}

#[test]
fn an_address_that_is_taken_is_waited_for_or_refused() {
    let first = Endpoint::bind(LOOPBACK.parse().unwrap(), None).unwrap();
    let address = first.address();
    let second = Endpoint::bind(address, None).unwrap();
    assert!(matches!(second.must_be_bound(), Err(Error::Taken(taken)) if taken == address));
    second.serve(|_| Ok(Status::default())).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    drop(first);
    erb_steady::wait_until(ANSWER_MAX, "it is taken", || {
        TcpStream::connect(address).is_ok()
    });
    assert_eq!(code(&get(address, "/metrics", "")), "200");
}

/// Those of the process stay; a thread has its own (capabilities(7)).
#[test]
fn whoever_reads_requests_has_no_capabilities() {
    let served = served(None);
    assert_eq!(code(&get(served.address, "/metrics", "")), "200");
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let threads: Vec<_> = threads.map(|thread| thread.unwrap().path()).collect();
    let names = |path: &&std::path::PathBuf| read(path.join("comm")).trim() == "erb-watch";
    let mut found = 0;
    for thread in threads.iter().filter(names) {
        let status = read(thread.join("status"));
        // A thread of another test may have ended since, or only begun.
        let Some(effective) = status.lines().find(|line| line.starts_with("CapEff:")) else {
            continue;
        };
        found += usize::from(effective.ends_with("\t0000000000000000"));
    }
    assert!(found > 0, "of {} threads", threads.len());
}
