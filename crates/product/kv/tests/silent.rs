// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A peer that is no node.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use erb_kv::{Client, Error};

/// What the client says of it when it has given up.
const SLOW: &str = "did not answer in time";
/// Far longer than the client waits.
const PATIENCE: Duration = erb_steady::patient(Duration::from_secs(30));

/// What becomes of a client whose peer says this, and then waits until the client goes, or is gone at once.
fn refused(says: &'static [u8], closes: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        let (mut peer, _) = listener.accept().expect("a client");
        peer.write_all(says).expect("it takes it");
        if !closes {
            peer.set_read_timeout(Some(PATIENCE)).expect("a socket");
            let _ = peer.read_to_end(&mut Vec::new());
        }
    });
    let url = format!("nvme://{address}").parse().expect("an address");
    let error = Client::connect(&url).err().expect("it is no node");
    assert!(matches!(error, Error::Refused(_)), "{error}");
    error.to_string()
}

#[test]
fn who_says_nothing_is_given_up() {
    // Before it goes, or the client would say that.
    let error = refused(b"", false);
    assert!(error.contains(SLOW), "{error}");
}

#[test]
fn who_speaks_something_else_is_refused_for_what_it_says() {
    for closes in [false, true] {
        let error = refused(
            b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
            closes,
        );
        assert!(!error.contains(SLOW), "{error}");
    }
}
