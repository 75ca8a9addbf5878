// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A peer that is no node.

use std::io::Write;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use erb_kv::{Client, Error};

fn refused(says: &'static [u8], closes: bool) -> (Error, Duration) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        let (mut peer, _) = listener.accept().expect("a client");
        peer.write_all(says).expect("it takes it");
        if !closes {
            thread::sleep(Duration::from_secs(60));
        }
    });
    let url = format!("nvme://{address}").parse().expect("an address");
    let begun = Instant::now();
    let error = Client::connect(&url).err().expect("it is no node");
    (error, begun.elapsed())
}

#[test]
fn who_says_nothing_is_given_up_within_half_a_minute() {
    let (error, took) = refused(b"", false);
    assert!(
        error.to_string().contains("did not answer in time"),
        "{error}"
    );
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[test]
fn who_speaks_something_else_is_refused_at_once() {
    for closes in [false, true] {
        let (error, took) = refused(
            b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
            closes,
        );
        assert!(matches!(error, Error::Refused(_)), "{error}");
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}
