// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dashboard over HTTP: what is served to whom, and that hostile readers get nothing else. What a
//! browser makes of it is tested end to end.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use erb_report::{ConnLine, HotKey, HotKeys, Status, shown_key};
use erb_watch::dashboard::{FILES, POLICY};
use erb_watch::declared::{METRICS, Metric};
use erb_watch::details::Detail;
use erb_watch::flows::FLOWS;
use erb_watch::{CONNECTIONS_MAX, Endpoint};
use serde_json::Value;

const TOKEN: &str = "a-token-of-some-length";
const JSON: [&str; 3] = ["/declared.json", "/now.json", "/hour.json"];
/// Far more than any answer takes.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// A status that is fully filled.
const FILLED: &str = include_str!("../../report/tests/status.json");

fn filled() -> Status {
    serde_json::from_str(FILLED).unwrap()
}

fn served(dashboard: bool, token: Option<&str>) -> SocketAddr {
    let token = token.map(|token| token.as_bytes().to_vec());
    let endpoint = Endpoint::bind("127.0.0.1:0".parse().unwrap(), token).unwrap();
    let address = endpoint.address();
    endpoint
        .with_dashboard(dashboard)
        .serve(|_| Ok(filled()))
        .unwrap();
    address
}

const DETAILS: [&str; 3] = [
    "/keys.json",
    "/connections.json",
    "/connections.json?client=10.0.0.9",
];
/// What a client may call a key, as the daemon tells it.
const HOSTILE: [&[u8]; 3] = [
    b"\x1b[2J\0\r\n",
    b"<img src=x onerror=\"window.ran=1\">",
    &[b'k'; 1 << 16],
];

fn told(detail: Detail) -> Value {
    match detail {
        Detail::Keys => {
            let key = |key: &[u8]| HotKey {
                key: shown_key(key),
                key_bytes: u32::try_from(key.len()).unwrap(),
                count: 3,
                ..HotKey::default()
            };
            let keys = HOSTILE.map(key).to_vec();
            serde_json::to_value(HotKeys {
                one_of: 61,
                samples: 9,
                keys,
            })
            .unwrap()
        }
        Detail::Connections => {
            let line = |client: &str| ConnLine {
                client: client.to_owned(),
                ..ConnLine::default()
            };
            let lines = ["10.0.0.9:1", "10.0.0.9:2", "[fe80::1]:3"].map(line);
            serde_json::to_value(lines).unwrap()
        }
    }
}

fn served_with_details(dashboard: bool, token: Option<&str>) -> SocketAddr {
    let token = token.map(|token| token.as_bytes().to_vec());
    let endpoint = Endpoint::bind("127.0.0.1:0".parse().unwrap(), token).unwrap();
    let address = endpoint.address();
    endpoint
        .with_dashboard(dashboard)
        .with_details(|detail| Ok(told(detail)))
        .serve(|_| Ok(filled()))
        .unwrap();
    address
}

#[test]
fn keys_and_connections_are_told_only_where_that_was_asked_for_and_to_whom_it_may() {
    for address in [served(true, None), served_with_details(false, None)] {
        for path in DETAILS {
            assert_eq!(code(&get(address, path, "")), "404", "{path}");
        }
    }
    let address = served_with_details(true, Some(TOKEN));
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    for path in DETAILS {
        assert_eq!(code(&get(address, path, "")), "401", "{path}");
        assert_eq!(code(&get(address, path, &bearer)), "200", "{path}");
    }
    let address = served_with_details(true, None);
    for path in DETAILS {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
        assert_eq!(code(&said(address, request.as_bytes())), "421", "{path}");
    }
    let json =
        |path: &str| -> Value { serde_json::from_str(body(&get(address, path, ""))).unwrap() };
    assert_eq!(json("/declared.json")["details"], true);
    assert_eq!(json("/connections.json")["total"], 3);
    assert_eq!(json("/connections.json?client=10.0.0.9")["total"], 2);
    assert_eq!(
        json("/connections.json?client=%5Bfe80%3A%3A1%5D%3A3")["rows"][0]["client"],
        "[fe80::1]:3"
    );
    let keys = json("/keys.json");
    assert_eq!(keys["keys"][0]["key"], r"\x1b[2J\x00\r\n");
    assert!(
        keys["keys"][2]["key"].as_str().unwrap().len() < 130,
        "{keys}"
    );
}

/// What comes until the server closes.
fn said(to: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    let patient = erb_steady::patient(ANSWER_MAX);
    stream.set_read_timeout(Some(patient)).unwrap();
    // Who answers before all of it was sent may close.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    if read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
        erb_steady::out_of_patience("no answer");
    }
    String::from_utf8(answer).unwrap()
}

fn get(to: SocketAddr, path: &str, lines: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n{lines}\r\n");
    said(to, request.as_bytes())
}

fn code(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

#[test]
fn nothing_of_it_is_served_unless_asked_for() {
    let address = served(false, None);
    assert!(get(address, "/", "").ends_with("/metrics\n"));
    let files = FILES.iter().map(|file| file.path).filter(|it| *it != "/");
    for path in files.chain(JSON) {
        assert_eq!(code(&get(address, path, "")), "404", "{path}");
    }
}

#[test]
fn its_files_are_served_under_a_policy_that_lets_nothing_else_in() {
    let address = served(true, None);
    for file in FILES {
        let answer = get(address, file.path, "");
        assert_eq!(code(&answer), "200", "{}", file.path);
        assert_eq!(body(&answer), file.text, "{}", file.path);
        for line in [
            format!("content-type: {}", file.content_type),
            format!("content-security-policy: {POLICY}"),
            "x-content-type-options: nosniff".to_owned(),
            "cross-origin-resource-policy: same-origin".to_owned(),
            "referrer-policy: no-referrer".to_owned(),
        ] {
            assert!(
                answer.contains(&format!("\r\n{line}\r\n")),
                "{line}: {answer}"
            );
        }
        for outside in ["http:", "https:", "style=", "onclick=", "innerHTML"] {
            let text = file.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains(outside), "{}: {outside}", file.path);
        }
    }
    for part in ["'unsafe", "*", "data:"] {
        assert!(!POLICY.contains(part), "{part}");
    }
}

/// An answer is not looked for on a disk, so no path leads anywhere.
#[test]
fn paths_lead_nowhere_else() {
    let address = served(true, None);
    for path in [
        "/../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/%2e%2e/Cargo.toml",
        "/dashboard.js/../../lib.rs",
        "/page/index.html",
        "/index.html",
        "//etc/passwd",
        "/dashboard.js%00",
        "/DASHBOARD.JS",
        "/now.json/",
        "/\\..\\..\\etc\\passwd",
        "/file:///etc/passwd",
    ] {
        let answer = get(address, path, "");
        assert!(["404", "400"].contains(&code(&answer)), "{path}: {answer}");
        assert!(!answer.contains("root:"), "{path}");
    }
    // Absolute form names the same.
    let absolute = get(address, &format!("http://{address}/now.json"), "");
    assert_eq!(code(&absolute), "200");
}

#[test]
fn what_is_now_and_the_last_hour_are_json_without_clients() {
    let address = served(true, None);
    let json = |path: &str| -> Value {
        let answer = get(address, path, "");
        assert!(
            answer.contains("content-type: application/json"),
            "{answer}"
        );
        serde_json::from_str(body(&answer)).unwrap()
    };
    let now = json("/now.json");
    assert_eq!(now["values"]["erb_cache_hits_total"], 15.0);
    assert_eq!(now["values"]["erb_connections{state=\"fast\"}"], 3.0);
    assert_eq!(now["values"]["erb_lease_left_seconds"], -0.005);
    assert_eq!(now["words"]["erb_device_info"][1]["device"], "lo");
    assert_eq!(now["not_serving"][0], "detach under way");
    let held = &filled().held.clients[0];
    assert_eq!(now["held"][0]["why"], held.why.as_str());
    assert!(!now.to_string().contains(&held.client), "{now}");

    let hour = erb_steady::wait(ANSWER_MAX, || {
        let hour = json("/hour.json");
        let has_one = hour["samples"][0][0].is_u64();
        has_one
            .then_some(hour)
            .ok_or_else(|| "no sample".to_owned())
    });
    let names = hour["names"].as_array().unwrap();
    let at = names.iter().position(|name| name == "erb_cache_hits_total");
    assert_eq!(hour["samples"][0][at.unwrap() + 1], 15);
    assert_eq!(hour["run"], now["run"]);
    let seen = hour["samples"][0][0].as_u64().unwrap();
    let later = json(&format!("/hour.json?since={seen}"));
    assert!(later["samples"].as_array().unwrap().is_empty(), "{later}");
    for odd in [
        "since=-1",
        "since=99999999999999999999",
        "since",
        "%",
        "a=b&since=1",
    ] {
        assert_eq!(
            json(&format!("/hour.json?{odd}"))["samples"],
            hour["samples"]
        );
    }
}

#[test]
fn with_a_token_the_files_alone_are_served_without_it() {
    let address = served(true, Some(TOKEN));
    for file in FILES {
        assert_eq!(code(&get(address, file.path, "")), "200", "{}", file.path);
    }
    for path in JSON.into_iter().chain(["/metrics", "/nothing"]) {
        let answer = get(address, path, "");
        assert_eq!(code(&answer), "401", "{path}");
        assert!(!answer.contains("erb_"), "{answer}");
    }
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    for path in JSON {
        assert_eq!(code(&get(address, path, &bearer)), "200", "{path}");
    }
    let post = format!(
        "POST / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    assert_eq!(code(&said(address, post.as_bytes())), "405");
}

#[test]
fn a_page_from_elsewhere_gets_neither_files_nor_json_by_a_name_of_its_own() {
    let address = served(true, None);
    for path in FILES.iter().map(|file| file.path).chain(JSON) {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
        assert_eq!(code(&said(address, request.as_bytes())), "421", "{path}");
    }
    let cross = get(address, "/now.json", "Origin: http://evil.example\r\n");
    assert!(!cross.contains("access-control-allow"), "{cross}");
}

#[test]
fn who_asks_for_the_hour_and_does_not_read_keeps_nobody_out() {
    let address = served(true, None);
    let request = format!("GET /hour.json HTTP/1.1\r\nHost: {address}\r\n\r\n").repeat(100);
    let held: Vec<TcpStream> = (0..CONNECTIONS_MAX - 1)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            let limit = Some(Duration::from_millis(20));
            stream.set_write_timeout(limit).unwrap();
            let _ = stream.write_all(request.as_bytes());
            stream
        })
        .collect();
    assert_eq!(code(&get(address, "/now.json", "")), "200");
    drop(held);
}

/// Words of requests in any order (xorshift), so that a failure can be had again.
#[test]
fn arbitrary_requests_break_nothing() {
    let address = served(true, None);
    let words = [
        "GET ",
        "HEAD ",
        "POST ",
        "/",
        "now.json",
        "hour.json",
        "?since=",
        "18446744073709551616",
        "..",
        "%2e",
        "%",
        "\0",
        " HTTP/1.1\r\n",
        "Host: ",
        "127.0.0.1",
        "\r\n",
        "\r\n\r\n",
        "Accept: text/html",
        "Range: bytes=0-",
        "Content-Length: 9",
        "Expect: 100-continue",
        "Transfer-Encoding: chunked",
        "dashboard.js",
        "#",
        ";",
        "<script>",
    ];
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..400 {
        let mut request = String::from("GET /");
        for _ in 0..12 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            request += words[(state >> 8) as usize % words.len()];
        }
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(request.as_bytes());
    }
    assert_eq!(code(&get(address, "/now.json", "")), "200");
}

/// A name that a page asks for and that is nowhere declared would show nothing.
#[test]
fn the_page_asks_for_what_is_declared_and_draws_each_way() {
    let names: BTreeSet<String> = METRICS.iter().map(Metric::full_name).collect();
    let script: String = FILES
        .iter()
        .filter(|file| file.path.ends_with("js"))
        .map(|file| file.text)
        .collect();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let asked: BTreeSet<&str> = script
        .split(|c| !is_word(c))
        .filter(|word| word.starts_with("erb_"))
        .collect();
    assert!(asked.len() > 15, "{asked:?}");
    for name in asked {
        assert!(names.contains(name), "there is no metric {name}");
    }
    let drawn: BTreeSet<&str> = FILES[0]
        .text
        .split("data-flow=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    let ways: BTreeSet<&str> = FLOWS.iter().map(|flow| flow.id).collect();
    assert_eq!(drawn, ways);
}
