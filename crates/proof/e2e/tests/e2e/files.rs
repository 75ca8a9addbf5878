// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb serve` as a process of its own: answer by answer beside nginx, and under hostile bytes.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use erb_e2e::lab::{STALL, STATE_WAIT, erb_bin, scaled};
use erb_lab::nginx::{self, Nginx, OpenFiles};
use erb_lab::servers::CANNOT_BE_HAD;
use erb_steady::{out_of_patience, patient, skipped, wait_until};

const FILE_BYTES: usize = 100_000;
/// Growth of `erb serve` that a load without end may cause: what allocators keep, and no more.
const GROWTH_BYTES: u64 = 8 << 20;
/// Longer than any answer takes, and the end that follows it.
const ANSWER_MAX: Duration = Duration::from_secs(14);

/// `erb serve`; killed when dropped.
struct Served {
    child: Child,
    address: SocketAddr,
}

impl Served {
    fn begin(root: &Path) -> Self {
        let address = free_address();
        let child = Command::new(erb_bin())
            .arg("serve")
            .arg(root)
            .args(["--listen", &address.to_string(), "--threads", "2"])
            .stdout(Stdio::null())
            .spawn()
            .expect("erb serve");
        let served = Self { child, address };
        wait_until(STATE_WAIT, "erb serve listens", || {
            TcpStream::connect(address).is_ok()
        });
        served
    }

    /// Its resident memory.
    fn memory_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = fs::read_to_string(path).expect("it is alive");
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let words = line.expect("VmRSS").split_whitespace().nth(1);
        words.expect("a number").parse::<u64>().expect("KiB") * 1024
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("lo");
    listener.local_addr().expect("bound")
}

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let bytes: Vec<u8> = (0..FILE_BYTES)
        .map(|at| (at * 31 + at / 997) as u8)
        .collect();
    fs::write(dir.path().join("a.bin"), bytes).expect("a file");
    fs::write(dir.path().join("b c.txt"), "text").expect("a file");
    fs::write(dir.path().join("empty"), "").expect("a file");
    fs::write(dir.path().join("index.html"), "<p>index").expect("a file");
    fs::write(dir.path().join(".hidden"), "secret").expect("a file");
    fs::create_dir(dir.path().join("sub")).expect("a folder");
    fs::write(dir.path().join("sub/index.html"), "<p>sub").expect("a file");
    dir
}

#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    /// Those that a client decides by, in small letters.
    fields: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(field, _)| field == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Asks on a connection of its own, and reads to its end.
fn ask(address: SocketAddr, method: &str, target: &str, fields: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.set_read_timeout(Some(STALL)).expect("an option");
    let head =
        format!("{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{fields}\r\n");
    stream.write_all(head.as_bytes()).expect("written");
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("an answer and the end");
    let end = all
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .expect("a head");
    let head = String::from_utf8_lossy(&all[..end]).into_owned();
    let told = [
        "content-length",
        "content-range",
        "content-type",
        "last-modified",
        "accept-ranges",
        "etag",
    ];
    let fields = head
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(": "));
    let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    let mut fields: Vec<_> = fields
        .filter(|(name, _)| told.contains(&name.as_str()))
        .collect();
    fields.sort();
    Answer {
        status: head
            .get(9..12)
            .and_then(|it| it.parse().ok())
            .expect("a status"),
        fields,
        body: all[end + 4..].to_vec(),
    }
}

/// nginx over the same folder; none if there is none within reach.
fn beside(root: &Path, dir: &Path) -> Option<(Nginx, SocketAddr)> {
    let program = nginx::program("nginx").or_else(|_| nginx::program(nginx::OF_DEBIAN));
    let program = match program {
        Ok(program) => program,
        Err(error) => {
            let error = format!("{error:#}");
            assert!(error.contains(CANNOT_BE_HAD), "{error}");
            skipped(error);
            return None;
        }
    };
    let address = free_address();
    let command = Command::new(program);
    let nginx = Nginx::start(command, dir, root, address, OpenFiles::Each).expect("nginx");
    Some((nginx, address))
}

/// What clients send, with `ETAG` and `DATE` for what the server has told, and how the two may differ: the
/// status of nginx, ours, and why.
type Case = (&'static str, &'static str, Option<(u16, u16, &'static str)>);

const CASES: &[Case] = &[
    ("/a.bin", "", None),
    ("/empty", "", None),
    ("/", "", None),
    ("/sub/", "", None),
    ("/b%20c.txt", "", None),
    ("/a.bin?query=1", "", None),
    // curl: --range, --continue-at, --etag-compare, --time-cond.
    ("/a.bin", "Range: bytes=500-999\r\n", None),
    ("/a.bin", "Range: bytes=40000-\r\n", None),
    ("/a.bin", "Range: bytes=-7\r\n", None),
    ("/a.bin", "If-None-Match: ETAG\r\n", None),
    ("/a.bin", "If-Modified-Since: DATE\r\n", None),
    ("/a.bin", "If-Unmodified-Since: DATE\r\n", None),
    // Browsers: a page that is loaded again, a film that is begun, a download that is taken up.
    (
        "/a.bin",
        "If-None-Match: ETAG\r\nIf-Modified-Since: DATE\r\n",
        None,
    ),
    (
        "/a.bin",
        "If-None-Match: \"other\"\r\nIf-Modified-Since: DATE\r\n",
        None,
    ),
    ("/a.bin", "Range: bytes=0-\r\n", None),
    ("/a.bin", "Range: bytes=0-1\r\n", None),
    ("/a.bin", "Range: bytes=40000-\r\nIf-Range: ETAG\r\n", None),
    ("/a.bin", "Range: bytes=40000-\r\nIf-Range: DATE\r\n", None),
    (
        "/a.bin",
        "Range: bytes=40000-\r\nIf-Range: \"other\"\r\n",
        None,
    ),
    (
        "/a.bin",
        "Range: bytes=40000-\r\nIf-None-Match: ETAG\r\n",
        None,
    ),
    (
        "/a.bin",
        "Cache-Control: no-cache\r\nAccept-Encoding: gzip, br\r\n",
        None,
    ),
    // Edges.
    ("/a.bin", "Range: bytes=99999-99999\r\n", None),
    ("/a.bin", "Range: bytes=100000-\r\n", None),
    ("/a.bin", "Range: bytes=0-999999999\r\n", None),
    ("/a.bin", "Range: bytes=-999999999\r\n", None),
    ("/a.bin", "Range: bytes=-0\r\n", None),
    ("/a.bin", "Range: lines=1-2\r\n", None),
    ("/empty", "Range: bytes=0-0\r\n", None),
    ("/a.bin", "If-Match: *\r\n", None),
    ("/a.bin", "If-Match: ETAG\r\n", None),
    ("/a.bin", "If-Match: \"other\"\r\n", None),
    ("/a.bin", "If-None-Match: *\r\n", None),
    ("/a.bin", "If-None-Match: W/ETAG\r\n", None),
    ("/missing", "", None),
    ("/sub", "", None),
    (
        "/../a.bin",
        "",
        Some((400, 404, "both refuse to leave the folder")),
    ),
    // Where we differ, and mean to.
    (
        "/a.bin",
        "Range: bytes=0-1,5-6\r\n",
        Some((
            206,
            200,
            "several ranges: RFC 9110, 14.2 lets a server send all",
        )),
    ),
    (
        "/a.bin",
        "Range: bytes=5-2\r\n",
        Some((416, 200, "backwards is no range: RFC 9110, 14.1.1")),
    ),
    (
        "/a.bin",
        "Range: bytes=a-b\r\n",
        Some((416, 200, "what cannot be read is left out of account")),
    ),
    (
        "/a.bin",
        "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT\r\n",
        Some((200, 304, "nginx wants the very date")),
    ),
    (
        "/.hidden",
        "",
        Some((200, 404, "names that begin with a dot are not served")),
    ),
    ("//a.bin", "", Some((200, 404, "one name for a file"))),
];

#[test]
fn answers_are_those_of_nginx_or_differ_for_a_reason() {
    let (dir, own) = (folder(), tempfile::tempdir().expect("a folder"));
    let Some((_nginx, theirs)) = beside(dir.path(), own.path()) else {
        return;
    };
    let served = Served::begin(dir.path());
    let told = [theirs, served.address].map(|address| ask(address, "GET", "/a.bin", ""));
    assert_eq!(
        told[0].field("last-modified"),
        told[1].field("last-modified")
    );
    let written = |fields: &str, index: usize| {
        let field = |name| told[index].field(name).expect("told").to_owned();
        fields
            .replace("ETAG", &field("etag"))
            .replace("DATE", &field("last-modified"))
    };
    for (target, fields, differs) in CASES {
        for method in ["GET", "HEAD"] {
            let of = |address, index| ask(address, method, target, &written(fields, index));
            let (theirs, ours) = (of(theirs, 0), of(served.address, 1));
            let what = format!("{method} {target} {fields:?}");
            if let Some((nginx, erb, why)) = differs {
                if method == "GET" {
                    assert_eq!(
                        (theirs.status, ours.status),
                        (*nginx, *erb),
                        "{what}: {why}"
                    );
                }
                continue;
            }
            // To HEAD a range means nothing (RFC 9110, 14.2); nginx answers as to GET.
            if method == "HEAD" && fields.contains("Range:") && theirs.status != ours.status {
                assert!(
                    [206, 416].contains(&theirs.status) && ours.status == 200,
                    "{what}"
                );
                continue;
            }
            assert_same(&theirs, &ours, &what);
        }
    }
    random_ranges(theirs, served.address);
}

/// All but the words of errors, and what an entity tag is made of.
fn assert_same(theirs: &Answer, ours: &Answer, what: &str) {
    assert_eq!(theirs.status, ours.status, "{what}");
    if theirs.status >= 300 && theirs.status != 304 {
        if theirs.status == 416 {
            assert_eq!(
                theirs.field("content-range"),
                ours.field("content-range"),
                "{what}"
            );
        }
        return;
    }
    assert!(theirs.body == ours.body, "{what}: the bodies differ");
    for name in ["content-length", "content-range", "last-modified"] {
        assert_eq!(theirs.field(name), ours.field(name), "{what}: {name}");
    }
    assert_eq!(
        theirs.field("etag").is_some(),
        ours.field("etag").is_some(),
        "{what}"
    );
    if theirs.status == 200 {
        assert_eq!(
            theirs.field("content-type"),
            ours.field("content-type"),
            "{what}"
        );
        assert_eq!(
            theirs.field("accept-ranges"),
            ours.field("accept-ranges"),
            "{what}"
        );
    }
}

/// Single ranges that RFC 9110 gives a meaning: the same bytes from both.
fn random_ranges(theirs: SocketAddr, ours: SocketAddr) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..scaled(300, 20_000) {
        let first = random.usize(..FILE_BYTES + 1000);
        let range = match random.u8(..3) {
            0 => format!("{first}-"),
            1 => format!("-{}", first + 1),
            _ => format!("{first}-{}", first + random.usize(..FILE_BYTES)),
        };
        let fields = format!("Range: bytes={range}\r\n");
        let of = |address| ask(address, "GET", "/a.bin", &fields);
        assert_same(&of(theirs), &of(ours), &fields);
    }
}

/// Requests that were cut, repeated and changed anywhere, also by a client that goes on without reading.
#[test]
fn hostile_bytes_hang_nothing_and_leave_no_memory_behind() {
    let dir = folder();
    let served = Served::begin(dir.path());
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let rounds = scaled(30, 3000);
    let mut before = 0;
    for round in 0..rounds {
        for _ in 0..500 {
            hostile(served.address, &mut random);
        }
        let begin = Instant::now();
        assert_eq!(
            ask(served.address, "GET", "/a.bin", "").body.len(),
            FILE_BYTES
        );
        if begin.elapsed() > patient(ANSWER_MAX) {
            out_of_patience(format_args!(
                "round {round}: an honest client waited {:?}",
                begin.elapsed()
            ));
        }
        // The first rounds fill what is bounded.
        if round == rounds / 3 {
            before = served.memory_bytes();
        }
    }
    let after = served.memory_bytes();
    println!("{before} bytes, then {after}");
    assert!(
        after < before + GROWTH_BYTES,
        "{before} bytes, then {after}"
    );
}

fn hostile(address: SocketAddr, random: &mut fastrand::Rng) {
    const GOOD: &[&str] = &[
        "GET /a.bin HTTP/1.1\r\nHost: x\r\nRange: bytes=0-99\r\nIf-None-Match: \"x\"\r\n\r\n",
        "GET /%61.bin HTTP/1.1\r\nHost: x\r\nIf-Range: \"x\"\r\nRange: bytes=-5\r\n\r\n",
        "HEAD http://x/sub/../a.bin?q HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ];
    let good = GOOD[random.usize(..GOOD.len())].as_bytes();
    let mut bytes = good.repeat(random.usize(1..40));
    for _ in 0..random.usize(..8) {
        let at = random.usize(..bytes.len());
        match random.u8(..5) {
            0 => bytes[at] = random.u8(..),
            1 => drop(bytes.drain(at..(at + 5).min(bytes.len()))),
            2 => bytes.insert(at, b"\r\n :/%\0-,="[random.usize(..10)]),
            3 => bytes
                .splice(at..at, vec![b'9'; random.usize(..3000)])
                .for_each(drop),
            _ => bytes.truncate(at + 1),
        }
        if bytes.is_empty() {
            bytes.push(0);
        }
    }
    let mut stream = TcpStream::connect(address).expect("it still accepts");
    stream.set_read_timeout(Some(STALL)).expect("an option");
    stream.set_write_timeout(Some(STALL)).expect("an option");
    let _ = stream.write_all(&bytes);
    match random.u8(..4) {
        // It goes away: with what was answered unread, or a head half said.
        0 => {}
        _ => {
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut said = Vec::new();
            let begin = Instant::now();
            let ended = stream.read_to_end(&mut said);
            let text = String::from_utf8_lossy(&bytes);
            let hangs = ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
            assert!(!hangs, "it hangs after {text}");
            if begin.elapsed() > patient(ANSWER_MAX) {
                out_of_patience(format_args!("an end after {:?}: {text}", begin.elapsed()));
            }
            assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 "), "{text}");
        }
    }
}
