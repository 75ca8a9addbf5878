// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that mean harm: hidden requests, floods, silence.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::client::{Client, FILE_BYTES, Folder, PATIENCE};
use crate::writers::Over;

/// What two servers could read in two ways is refused, and nothing behind it is read as a request.
#[test]
fn a_request_inside_of_another_is_never_answered() {
    let folder = Folder::serve();
    let inner = "GET /a.bin HTTP/1.1\r\nHost: x\r\n\r\n";
    for fields in [
        "Content-Length: 35",
        "Content-Length: 0\r\nContent-Length: 35",
        "Content-Length: 0, 35",
        "Content-Length: +0",
        "Content-Length: 0x0",
        "Content-Length: 18446744073709551616",
        "Content-Length:",
        "Content-Length : 0",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding:\x0bchunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 0",
        "transfer-encoding: xchunked",
        "X: y\r\n Transfer-Encoding: chunked",
        "X: y\rTransfer-Encoding: chunked",
        "X: y\0",
        "Host: second",
        "X",
        ": empty",
    ] {
        let mut client = Client::connect(&folder);
        let request = format!("GET / HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n{inner}");
        client
            .stream
            .write_all(request.as_bytes())
            .expect("written");
        let answer = client.answer(true).expect("an answer");
        assert!(
            matches!(answer.status, 400 | 413),
            "{fields:?}: {}",
            answer.status
        );
        assert!(client.answer(true).is_none(), "{fields:?}: a second answer");
    }
    // A body that is none is the one thing that may be said.
    let mut client = Client::connect(&folder);
    assert_eq!(client.get("/", "Content-Length: 0\r\n").status, 200);
    assert_eq!(client.get("/", "").status, 200);
}

/// An ordinary client is answered while `flood` is at work, and before it ends: it ends when this one was.
fn is_served_beside(folder: &Folder, flood: impl Fn(&AtomicBool) + Sync) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for _ in 0..2 {
            scope.spawn(|| flood(&over));
        }
        std::thread::sleep(Duration::from_millis(200));
        for _ in 0..10 {
            let answer = Client::connect(folder).get("/sub/x.txt", "");
            assert_eq!(answer.status, 200);
        }
    });
}

#[test]
fn who_asks_without_an_end_holds_up_nobody() {
    let folder = Folder::serve_threads(1);
    let asks = b"HEAD /missing HTTP/1.1\r\nHost: x\r\n\r\n".repeat(500);
    is_served_beside(&folder, |over| {
        let client = Client::connect(&folder);
        let mut reads = client.stream.try_clone().expect("a socket");
        let mut writes = client.stream;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut chunk = vec![0; 1 << 20];
                while reads.read(&mut chunk).is_ok_and(|count| count > 0) {}
            });
            while !over.load(Relaxed) && writes.write_all(&asks).is_ok() {}
            let _ = writes.shutdown(Shutdown::Both);
        });
    });
    folder.stop();
}

#[test]
fn who_sends_without_an_end_behind_an_error_holds_up_nobody_and_is_closed() {
    let folder = Folder::serve_threads(1);
    let rubbish = vec![b'x'; 1 << 20];
    is_served_beside(&folder, |over| {
        // Each goes on until it is closed, also when the others have been served.
        while !over.load(Relaxed) {
            let mut client = Client::connect(&folder);
            let begin = Instant::now();
            let _ = client.stream.write_all(b"POST / HTTP/1.1\r\n\r\n");
            let mut is_open = true;
            while is_open {
                is_open = client.stream.write_all(&rubbish).is_ok();
                if begin.elapsed() > PATIENCE {
                    erb_steady::out_of_patience("never closed");
                }
            }
        }
    });
    folder.stop();
}

/// A byte now and then, half a head and no more, nothing at all: each ends, and the times run at once.
#[test]
fn who_dribbles_a_head_is_told_so_and_closed() {
    let folder = Folder::serve();
    let mut dribbles = Client::connect(&folder);
    let mut silent = Client::connect(&folder);
    silent.stream.write_all(b"GET / HT").expect("written");
    let mut gone = Client::connect(&folder);
    gone.stream.write_all(b"GET / HT").expect("written");
    gone.stream.shutdown(Shutdown::Write).expect("ended");
    assert!(gone.answer(true).is_none(), "half a head has no answer");
    let begin = Instant::now();
    let pause = Duration::from_millis(100);
    dribbles.stream.set_read_timeout(Some(pause)).expect("ours");
    for byte in b"GET /a.bin HTTP/1.1\r\nX: ".iter().cycle() {
        // Until it is told something: to go on may bring a reset, and the answer would be lost.
        let told = dribbles.stream.peek(&mut [0; 1]);
        if told.is_ok() || dribbles.stream.write_all(&[*byte]).is_err() {
            break;
        }
        if begin.elapsed() > PATIENCE {
            erb_steady::out_of_patience("it dribbles on");
        }
    }
    let patient = dribbles.stream.set_read_timeout(Some(PATIENCE));
    patient.expect("ours");
    let answers = [dribbles.answer(true), silent.answer(true)];
    let statuses = answers.map(|answer| answer.map(|answer| answer.status));
    assert_eq!(statuses, [Some(408), Some(408)]);
    // Ten seconds are given to a head, and the last one has begun since.
    assert!(begin.elapsed() > Duration::from_secs(9), "too early");
    folder.stop();
}

#[test]
fn thousands_that_only_connect_let_others_be_served() {
    let folder = Folder::serve();
    let crowd: Vec<Client> = (0..900).map(|_| Client::connect(&folder)).collect();
    for _ in 0..20 {
        let answer = Client::connect(&folder).get("/a.bin", "");
        assert_eq!(answer.body.len(), FILE_BYTES);
    }
    drop(crowd);
    let report = folder.stop();
    assert_eq!((report.refused, report.connections), (0, 920));
}

/// The whole body comes, however early the client has ended its own side.
#[test]
fn who_ends_its_side_first_gets_all_that_was_asked_for() {
    let folder = Folder::serve();
    let mut client = Client::connect_taking(&folder, 16_384);
    client
        .stream
        .write_all(
            b"GET /a.bin HTTP/1.1\r\nHost: x\r\n\r\nGET /sub/x.txt HTTP/1.1\r\nHost: x\r\n\r\n",
        )
        .expect("written");
    client.stream.shutdown(Shutdown::Write).expect("ended");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(client.answer(true).expect("whole").body.len(), FILE_BYTES);
    assert_eq!(client.answer(true).expect("whole").body, b"in a folder");
    assert!(client.answer(true).is_none(), "the end");
}
