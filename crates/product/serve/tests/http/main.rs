// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server over `lo`: answers as clients expect them, hostile requests, and writers beside readers.

mod client;
mod hostile;
mod strange;
mod writers;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::{Duration, Instant};

use client::{Client, FILE_BYTES, Folder, content};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// A child of one of the tests; does nothing when run by itself.
#[test]
fn child() {
    if let Ok(what) = std::env::var(strange::CHILD) {
        strange::serve_as_child(&what);
    }
}

#[test]
fn files_are_answered_whole_in_part_and_not_again() {
    let folder = Folder::serve();
    let mut client = Client::connect(&folder);
    let bytes = content(1);
    let whole = client.get("/a.bin", "");
    assert_eq!((whole.status, whole.body.len()), (200, FILE_BYTES));
    assert!(whole.body == bytes);
    assert_eq!(
        whole.field("content-type"),
        Some("application/octet-stream")
    );
    assert_eq!(whole.field("accept-ranges"), Some("bytes"));
    let etag = whole.field("etag").expect("a tag").to_owned();
    let part = client.get("/a.bin", "Range: bytes=1000-1999\r\n");
    assert_eq!(part.status, 206);
    assert!(part.body == bytes[1000..2000]);
    let told = format!("bytes 1000-1999/{FILE_BYTES}");
    assert_eq!(part.field("content-range"), Some(told.as_str()));
    let same = client.get("/a.bin", &format!("If-None-Match: {etag}\r\n"));
    assert_eq!((same.status, same.body.len()), (304, 0));
    let beyond = client.get("/a.bin", "Range: bytes=99999999-\r\n");
    assert_eq!(beyond.status, 416);
    let head = client.ask("HEAD", "/a.bin", "");
    assert_eq!(
        (head.status, head.field("content-length")),
        (200, Some("1000000"))
    );
    assert_eq!(client.get("/empty", "").body.len(), 0);
    assert_eq!(client.get("/", "").body, b"<p>index");
    assert_eq!(client.get("/", "").field("content-type"), Some("text/html"));
    assert_eq!(client.get("/sub", "").field("location"), Some("/sub/"));
    let told = client.get("/sub?x=/y", "");
    assert_eq!(told.field("location"), Some("/sub/?x=/y"));
    assert_eq!(client.get("/sub/x.txt?query", "").body, b"in a folder");
    let report = folder.stop();
    assert_eq!(
        (
            report.answers[&200],
            report.answers[&206],
            report.connections
        ),
        (6, 1, 1)
    );
    // Over lo a receiver would hold the file's own pages.
    let copied = report.sent_bytes.copied.get("kernel_copies");
    assert!(
        copied.is_some_and(|bytes| *bytes >= 1_000_000),
        "{report:?}"
    );
    assert_eq!(
        (report.sent_bytes.sendfile, report.sent_bytes.zero_copy),
        (0, 0)
    );
    assert_eq!((report.pinned_bytes, report.reset_changed), (0, 0));
}

#[test]
fn nothing_outside_of_the_folder_is_told() {
    let folder = Folder::serve();
    let outside = folder.dir.path().join("outside");
    fs::write(&outside, "secret").expect("a file");
    let root = folder.root();
    symlink(&outside, root.join("leads-out")).expect("a link");
    symlink("../outside", root.join("leads-up")).expect("a link");
    symlink("/etc", root.join("etc")).expect("a link");
    symlink("a.bin", root.join("leads-in")).expect("a link");
    fs::write(root.join(".hidden"), "secret").expect("a file");
    nix::unistd::mkfifo(&root.join("fifo"), nix::sys::stat::Mode::S_IRUSR).expect("a fifo");
    let mut client = Client::connect(&folder);
    for path in [
        "/leads-out",
        "/leads-up",
        "/etc/passwd",
        "/../outside",
        "/%2e%2e/outside",
        "/sub/../../outside",
        "/.hidden",
        "/fifo",
        "/missing",
        "/a.bin/",
        "/a.bin/x",
        "/sub%00/x",
        "//etc/passwd",
        "/sub//x.txt",
    ] {
        let mut fresh = Client::connect(&folder);
        let answer = fresh.get(path, "");
        assert_eq!(answer.status, 404, "{path}");
        assert!(
            !answer.body.windows(6).any(|part| part == b"secret"),
            "{path}"
        );
    }
    assert_eq!(client.get("/leads-in", "").body.len(), FILE_BYTES);
}

/// Whoever asks after a change gets what is there then, however often the name was asked for before.
#[test]
fn a_name_leads_where_it_leads_now() {
    let folder = Folder::serve();
    let root = folder.root();
    let path = root.join("name");
    let mut client = Client::connect(&folder);
    for version in 0_u32..200 {
        let words = format!("version {version}");
        let other = root.join(format!("other-{version}"));
        fs::write(&other, &words).expect("a file");
        if version % 3 == 0 {
            let _ = fs::remove_file(&path);
            symlink(other.file_name().expect("a name"), &path).expect("a link");
        } else {
            fs::rename(&other, &path).expect("renamed over");
        }
        for _ in 0..4 {
            let seen = client.get("/name", "");
            assert_eq!(String::from_utf8_lossy(&seen.body), words);
        }
        let etag = client
            .get("/name", "")
            .field("etag")
            .expect("a tag")
            .to_owned();
        let same = client.get("/name", &format!("If-None-Match: {etag}\r\n"));
        assert_eq!(same.status, 304);
    }
    fs::remove_file(&path).expect("removed");
    assert_eq!(client.get("/name", "").status, 404);
    symlink("/etc/hostname", &path).expect("a link");
    assert_eq!(client.get("/name", "").status, 404);
    folder.stop();
}

#[test]
fn many_requests_in_one_packet_are_answered_in_order() {
    let folder = Folder::serve();
    let mut client = Client::connect(&folder);
    let mut sent = String::new();
    for number in 0..200 {
        let from = number * 1000;
        sent += &format!(
            "GET /a.bin HTTP/1.1\r\nHost: x\r\nRange: bytes={from}-{}\r\n\r\n",
            from + 4999
        );
    }
    // Written byte by byte at the end, so that heads are cut anywhere.
    let (many, few) = sent.as_bytes().split_at(sent.len() - 300);
    let mut stream = client.stream.try_clone().expect("a socket");
    let few = few.to_vec();
    let many = many.to_vec();
    let writer = std::thread::spawn(move || {
        stream.write_all(&many).expect("written");
        for byte in few {
            stream.write_all(&[byte]).expect("written");
        }
        stream.shutdown(std::net::Shutdown::Write).expect("ended");
    });
    let bytes = content(1);
    for number in 0..200 {
        let answer = client.answer(true).expect("an answer");
        assert_eq!(answer.status, 206, "{number}");
        assert!(
            answer.body == bytes[number * 1000..number * 1000 + 5000],
            "{number}"
        );
    }
    assert!(client.answer(true).is_none(), "the end");
    writer.join().expect("no panic");
}

#[test]
fn errors_are_told_and_end_the_connection() {
    let folder = Folder::serve();
    for (request, status) in [
        ("GARBAGE\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (
            "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nGET /",
            413,
        ),
        ("BREW / HTTP/1.1\r\nHost: x\r\n\r\n", 501),
        ("GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505),
    ] {
        let mut client = Client::connect(&folder);
        client
            .stream
            .write_all(request.as_bytes())
            .expect("written");
        let answer = client.answer(true).expect("an answer");
        assert_eq!(
            (answer.status, answer.field("connection")),
            (status, Some("close")),
            "{request}"
        );
        assert!(client.answer(true).is_none(), "{request}: the end");
    }
    let mut client = Client::connect(&folder);
    let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(20_000));
    client.stream.write_all(long.as_bytes()).expect("written");
    assert_eq!(client.answer(true).expect("an answer").status, 431);
}

/// Connections with requests that are hurt.
const HURT: u32 = 3000;

#[test]
fn hostile_bytes_end_nothing_but_their_connection() {
    let folder = Folder::serve();
    // The smoke sends the same each time.
    let seed = erb_steady::scaled(1, rand::random());
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let good =
        b"GET /a.bin HTTP/1.1\r\nHost: x\r\nRange: bytes=0-99\r\nIf-None-Match: \"x\"\r\n\r\n";
    for _ in 0..erb_steady::scaled(HURT, 50 * HURT) {
        let mut client = Client::connect(&folder);
        let mut bytes: Vec<u8> = good.repeat(random.random_range(1..4));
        for _ in 0..random.random_range(0..8) {
            if bytes.len() < 2 {
                break;
            }
            let at = random.random_range(0..bytes.len());
            match random.random_range(0..4) {
                0 => bytes[at] = random.random(),
                1 => drop(bytes.drain(at..(at + 5).min(bytes.len()))),
                2 => bytes.insert(at, b"\r\n :/%\0-"[random.random_range(0..8)]),
                _ => bytes.truncate(at + 1),
            }
        }
        let _ = client.stream.write_all(&bytes);
        let _ = client.stream.shutdown(std::net::Shutdown::Write);
        let mut said = Vec::new();
        let _ = client.stream.read_to_end(&mut said);
        assert!(
            said.is_empty() || said.starts_with(b"HTTP/1.1 "),
            "{:?}",
            String::from_utf8_lossy(&said)
        );
    }
    assert_eq!(
        Client::connect(&folder).get("/a.bin", "").status,
        200,
        "it still serves"
    );
    let report = folder.stop();
    println!("{:?}", report.answers);
    // Most are hurt, and some are not: all of the server was reached.
    let whole = report.answers.get(&206).copied().unwrap_or_default();
    let bad = report.answers.get(&400).copied().unwrap_or_default();
    assert!(whole > 1 && bad > 1, "{:?}", report.answers);
}

/// A video that is jumped about in, and a page that is loaded again.
#[test]
fn a_browser_is_answered_as_it_expects() {
    const FIELDS: &str = "User-Agent: Mozilla/5.0\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\
        Connection: keep-alive\r\nSec-Fetch-Mode: no-cors\r\nCookie: a=b; c=d\r\n";
    let folder = Folder::serve();
    let bytes = content(1);
    let path = folder.root().join("film.mp4");
    fs::write(&path, &bytes).expect("a file");
    let mut client = Client::connect(&folder);
    let mut ask = |fields: String| client.get("/film.mp4", &format!("{FIELDS}{fields}"));
    let first = ask("Range: bytes=0-\r\n".to_owned());
    assert_eq!(
        (first.status, first.field("content-type")),
        (206, Some("video/mp4"))
    );
    assert_eq!(first.field("content-encoding"), None);
    let all = format!("bytes 0-{}/{FILE_BYTES}", FILE_BYTES - 1);
    assert_eq!(first.field("content-range"), Some(&*all));
    let [etag, date] =
        ["etag", "last-modified"].map(|it| first.field(it).expect("told").to_owned());
    for at in [999_999, 65_536, 1] {
        let part = ask(format!("Range: bytes={at}-\r\nIf-Range: {etag}\r\n"));
        assert_eq!(part.status, 206);
        assert!(part.body == bytes[at..]);
    }
    for fields in [
        format!("If-None-Match: {etag}\r\nIf-Modified-Since: {date}\r\n"),
        format!("If-None-Match: W/{etag}\r\nCache-Control: max-age=0\r\n"),
        format!("If-Modified-Since: {date}\r\n"),
    ] {
        let same = ask(fields);
        assert_eq!((same.status, same.field("etag")), (304, Some(&*etag)));
        assert_eq!(same.field("content-length"), None);
    }
    // The same length, and somebody has set the time back: it is another version all the same.
    let modified = fs::metadata(&path)
        .and_then(|it| it.modified())
        .expect("facts");
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("open");
    std::os::unix::fs::FileExt::write_all_at(&file, b"another", 0).expect("written");
    file.set_modified(modified).expect("set back");
    drop(file);
    let whole = ask(format!("Range: bytes=7-\r\nIf-Range: {etag}\r\n"));
    assert_eq!((whole.status, whole.body.len()), (200, FILE_BYTES));
    assert!(whole.body.starts_with(b"another"));
    assert_eq!(ask(format!("If-None-Match: {etag}\r\n")).status, 200);
}

#[test]
fn curl_is_served() {
    if Command::new("curl").arg("--version").output().is_err() {
        erb_steady::set_up_failed("curl is missing: scripts/setup.sh installs it");
    }
    let folder = Folder::serve();
    let url = format!("http://{}/a.bin", folder.address());
    let curl = |words: &[&str]| {
        let output = Command::new("curl")
            .args(["-sS", "--max-time", "120"])
            .args(words)
            .output()
            .expect("curl");
        assert!(
            output.status.success(),
            "{words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        output.stdout
    };
    assert!(curl(&[&url]) == content(1));
    assert!(curl(&["-r", "500-999", &url]) == content(1)[500..1000]);
    assert!(curl(&["-r", "-7", &url]) == content(1)[FILE_BYTES - 7..]);
    // A download that was broken off goes on where it was.
    let half = folder.dir.path().join("half");
    fs::write(&half, &content(1)[..400_000]).expect("a file");
    let place = half.to_str().expect("a path");
    curl(&["-C", "-", "-o", place, &url]);
    assert!(fs::read(&half).expect("whole") == content(1));
    let etag = folder.dir.path().join("etag");
    let etag = etag.to_str().expect("a path");
    curl(&["--etag-save", etag, "-o", "/dev/null", &url]);
    let again = curl(&["--etag-compare", etag, "-w", "%{http_code}", &url]);
    assert_eq!(again, b"304");
    assert_eq!(
        curl(&[
            "-w",
            "%{http_code}",
            "-z",
            "1 Jan 2037",
            "-o",
            "/dev/null",
            &url
        ]),
        b"304"
    );
}

#[test]
fn a_writer_waits_for_a_body_and_not_for_ever() {
    let folder = Folder::serve();
    let path = folder.root().join("big");
    fs::write(&path, vec![b'a'; 50 << 20]).expect("a file");
    let mut slow = Client::connect(&folder);
    slow.stream
        .write_all(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
        .expect("written");
    slow.await_begin();
    let begin = Instant::now();
    let writer = std::thread::spawn(move || {
        let file = fs::OpenOptions::new().write(true).open(path);
        (file.is_ok(), begin.elapsed())
    });
    let seen = slow.answer(true).expect("whole");
    assert!(seen.body.len() == 50 << 20 && seen.body.iter().all(|byte| *byte == b'a'));
    let (opened, waited) = writer.join().expect("no panic");
    assert!(opened, "{waited:?}");
    // After 45 s the kernel lets it in, whatever the server does.
    if waited > Duration::from_secs(30) {
        erb_steady::out_of_patience(format_args!("the writer waited for {waited:?}"));
    }
}

/// Takes little at a time, and never stops for as long as the deadline.
#[test]
fn a_slow_client_gets_all_of_it_and_a_silent_one_a_reset() {
    let deadline = Duration::from_secs(2);
    let folder = Folder::serve_with(dax_send::Options {
        deadline,
        ..dax_send::Options::default()
    });
    let bytes = vec![7; 8 << 20];
    fs::write(folder.root().join("long"), &bytes).expect("a file");
    let mut slow = Client::connect_taking(&folder, 16_384);
    let mut silent = Client::connect_taking(&folder, 16_384);
    for client in [&mut slow, &mut silent] {
        let request = b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n";
        client.stream.write_all(request).expect("written");
    }
    let begin = Instant::now();
    let mut seen = Vec::new();
    let mut chunk = vec![0; 65_536];
    let (mut before, mut longest) = (Instant::now(), Duration::ZERO);
    while seen.len() < bytes.len() {
        std::thread::sleep(Duration::from_millis(10));
        let read = slow.stream.read(&mut chunk);
        longest = longest.max(before.elapsed());
        before = Instant::now();
        if read.is_err() && longest > deadline / 2 {
            erb_steady::out_of_patience(format_args!("nothing was taken for {longest:?}"));
        }
        let count = read.expect("no reset");
        assert!(count > 0, "{} bytes came", seen.len());
        seen.extend_from_slice(&chunk[..count]);
    }
    let took = begin.elapsed();
    assert!(took > 2 * deadline, "{took:?}: too quick to tell");
    assert!(silent.answer(true).is_none(), "reset");
    assert_eq!(folder.stop().reset_slow, 1);
}
