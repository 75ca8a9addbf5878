// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients against servers of a few lines.

use std::net::TcpListener;
use std::thread;

use erb_steady::{too_slow, wait_until};

use super::*;

/// Asks one request over and over, and wants one reply.
struct Echo {
    request: Vec<u8>,
    reply: Vec<u8>,
    left: u64,
}

impl Echo {
    fn of(request: &[u8]) -> Self {
        Self {
            request: request.to_vec(),
            reply: b"+OK\r\n".to_vec(),
            left: u64::MAX,
        }
    }
}

impl Traffic for Echo {
    type Asked = ();
    const OPERATIONS: usize = 1;

    fn ask(&mut self, (): &mut (), request: &mut Vec<u8>) -> Result<bool> {
        request.clone_from(&self.request);
        let more = self.left > 0;
        self.left = self.left.saturating_sub(1);
        Ok(more)
    }

    fn hear(&mut self, (): &mut (), reply: &[u8], _: &mut Vec<u8>) -> Result<Heard> {
        ensure!(self.reply.starts_with(reply), "{reply:?}");
        Ok(if reply.len() < self.reply.len() {
            Heard::Part
        } else {
            Heard::Done(0)
        })
    }
}

/// A server that reads requests of so many bytes and answers each by `answer`.
fn server(
    request_bytes: usize,
    answer: impl Fn(&mut TcpStream) -> std::io::Result<()> + Clone + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), answer.clone());
            thread::spawn(move || {
                let mut request = vec![0; request_bytes];
                while stream.read_exact(&mut request).is_ok() && answer(&mut stream).is_ok() {}
            });
        }
    });
    address
}

fn drive(address: SocketAddr, conns: u32, pace: Pace, ms: u64) -> Result<(Load<Echo>, Tally)> {
    let mut load = Load::connect(address, conns, Echo::of(b"PING\r\n"), pace)?;
    let tally = load.drive(Duration::from_millis(ms), &Interrupt::watch()?)?;
    Ok((load, tally))
}

/// What it takes to answer.
const SLOW: Duration = Duration::from_millis(5);

fn slow_server() -> SocketAddr {
    server(6, |stream| {
        thread::sleep(SLOW);
        stream.write_all(b"+OK\r\n")
    })
}

fn p50(tally: &Tally) -> Duration {
    Duration::from_nanos(tally.latencies[0].value_at_quantile(0.5))
}

#[test]
fn who_waits_for_the_server_before_asking_again_does_not_see_its_delay() {
    let (_, closed) = drive(slow_server(), 1, Pace::Closed, 400).unwrap();
    assert_eq!((closed.late_for_server, closed.own_delay.len()), (0, 0));
    let (_, open) = drive(slow_server(), 1, Pace::even(400.0, 0, 1), 400).unwrap();
    if 2 * p50(&closed) > p50(&open) {
        too_slow(format_args!("{:?} and {:?}", p50(&closed), p50(&open)));
    }
}

#[test]
fn a_rate_that_a_slow_server_cannot_serve_shows_as_latency_and_as_unsent() {
    // Twice as many as one connection gets answered: after 400 ms half are 200 ms late.
    let pace = Pace::even(400.0, 0, 1);
    let (mut load, tally) = drive(slow_server(), 1, pace, 400).unwrap();
    assert!(p50(&tally) > 12 * SLOW, "{:?}", p50(&tally));
    assert!(tally.operations() <= 81, "{}", tally.operations());
    assert!(load.unsent() >= 79, "{} unsent", load.unsent());
    assert_eq!(tally.operations() + load.unsent(), 160);
    assert!(tally.late_for_server > tally.operations() / 2, "{tally:?}");
    // What was not sent is sent in the next drive, as late as it then is.
    let later = load.drive(Duration::from_millis(50), &Interrupt::watch().unwrap());
    assert!(p50(&later.unwrap()) > 30 * SLOW);
    load.skip_unsent();
    assert_eq!(load.unsent(), 0);
}

#[test]
fn one_pause_of_the_server_shows_in_all_that_was_due_meanwhile() {
    let first = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let address = server(6, move |stream| {
        if first.swap(false, std::sync::atomic::Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(200));
        }
        stream.write_all(b"+OK\r\n")
    });
    let (load, tally) = drive(address, 1, Pace::even(500.0, 0, 1), 400).unwrap();
    assert_eq!(tally.operations() + load.unsent(), 200);
    // Of 200 operations 100 were due in the pause, and waited from 0 to 200 ms.
    let p75 = Duration::from_nanos(tally.latencies[0].value_at_quantile(0.75));
    assert!(p75 > Duration::from_millis(80), "{p75:?}");
}

#[test]
fn a_rate_is_kept_where_the_server_keeps_up() {
    let address = server(6, |stream| stream.write_all(b"+OK\r\n"));
    let (load, tally) = drive(address, 20, Pace::even(2000.0, 0, 1), 300).unwrap();
    // The last ones may be due too close to the end.
    assert_eq!(tally.operations() + load.unsent(), 600);
    assert_eq!(tally.own_delay.len(), tally.operations());
    if load.unsent() >= 300 {
        too_slow(format_args!("{} unsent", load.unsent()));
    }
}

#[test]
fn what_ends_is_asked_once() {
    let address = server(6, |stream| stream.write_all(b"+OK\r\n"));
    let paces = [
        Pace::Closed,
        Pace::even(1e5, 0, 1),
        Pace::Times {
            all: vec![7; 10].into(),
            first: 0,
            clients: 1,
        },
    ];
    for pace in paces {
        let traffic = Echo {
            left: 10,
            ..Echo::of(b"PING\r\n")
        };
        let mut load = Load::connect(address, 3, traffic, pace).unwrap();
        let tally = load.drive(Duration::from_secs(3600), &Interrupt::watch().unwrap());
        assert_eq!(tally.unwrap().operations(), 10);
        assert!(load.exhausted());
        assert_eq!(load.unsent(), 0);
    }
}

#[test]
fn replies_in_parts_and_requests_larger_than_a_socket_takes_are_whole() {
    const BYTES: usize = 8 << 20;
    let address = server(BYTES, |stream| {
        stream.set_nodelay(true)?;
        for part in [&b"+"[..], b"OK", b"\r\n"] {
            stream.write_all(part)?;
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    });
    let traffic = Echo::of(&vec![b'x'; BYTES]);
    let mut load = Load::connect(address, 2, traffic, Pace::Closed).unwrap();
    let mut whole = 0;
    wait_until(Duration::from_secs(30), "two are answered", || {
        let tally = load.drive(Duration::from_millis(200), &Interrupt::watch().unwrap());
        whole += tally.unwrap().operations();
        whole >= 2
    });
}

#[test]
fn wrong_replies_and_closed_connections_are_errors() {
    for (reply, word) in [
        (&b"+NO\r\n"[..], "a wrong reply"),
        (b"+OK\r\n+", "a wrong reply"),
    ] {
        let address = server(6, move |stream| stream.write_all(reply));
        let error = format!("{:#}", drive(address, 1, Pace::Closed, 50).err().unwrap());
        assert!(error.contains(word), "{error}");
    }
    let address = server(6, |_| Err(ErrorKind::Other.into()));
    let error = drive(address, 1, Pace::Closed, 50).err().unwrap();
    assert!(error.to_string().contains("connection 0"), "{error}");
}

#[test]
fn a_server_that_never_answers_is_an_error() {
    let address = server(6, |_| Ok(()));
    let error = drive(address, 3, Pace::Closed, 50).err().unwrap();
    assert!(
        error.to_string().contains("3 connections got no reply"),
        "{error}"
    );
}
