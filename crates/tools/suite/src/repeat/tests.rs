// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The proxy between a client and a server that is played.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::patience::Patience;
use super::reads::{Read as Counts, Reads};
use super::relay::Shared;
use super::serve::serve;
use erb_report::Consumed;

use crate::witness::Witness;

const GET: &str = "*2\r\n$3\r\nGET\r\n$1\r\na\r\n";

/// ERB, as far as a witness sees it.
#[derive(Default)]
struct Erb {
    consumed: AtomicU32,
    bypass: AtomicBool,
}

impl Erb {
    fn answers(&self) {
        self.consumed.fetch_add(1, Ordering::SeqCst);
    }
}

impl Witness for Erb {
    fn look(&self, _: SocketAddr, _: SocketAddr) -> Option<Consumed> {
        Some(Consumed {
            bytes: self.consumed.load(Ordering::SeqCst),
            bypass: self.bypass.load(Ordering::SeqCst),
        })
    }
}

struct Play {
    client: TcpStream,
    shared: Arc<Shared>,
    relay: JoinHandle<()>,
    /// What the server was sent.
    server: JoinHandle<Vec<String>>,
}

impl Play {
    /// A server that answers what comes with `reply(how often it was asked before)`, and ends when that
    /// is none.
    fn start(
        witness: Option<Arc<dyn Witness>>,
        mut reply: impl FnMut(usize) -> Option<String> + Send + 'static,
    ) -> Self {
        let here = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = TcpListener::bind(here).unwrap();
        let shared = Arc::new(Shared {
            server: listener.local_addr().unwrap(),
            witness,
            reads: Reads::default(),
            patience: Patience::default(),
            leave: AtomicBool::new(false),
        });
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut all, mut bytes) = (Vec::new(), [0; 4096]);
            while let Ok(length @ 1..) = stream.read(&mut bytes) {
                all.push(String::from_utf8(bytes[..length].to_vec()).unwrap());
                match reply(all.len() - 1) {
                    Some(reply) => stream.write_all(reply.as_bytes()).unwrap(),
                    None => break,
                }
            }
            all
        });
        let proxy = TcpListener::bind(here).unwrap();
        let client = TcpStream::connect(proxy.local_addr().unwrap()).unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(120)))
            .unwrap();
        proxy.set_nonblocking(true).unwrap();
        let told = Arc::clone(&shared);
        let relay = thread::spawn(move || serve(&proxy, &told).unwrap());
        Self {
            client,
            shared,
            relay,
            server,
        }
    }

    fn say(&mut self, words: &str) {
        self.client.write_all(words.as_bytes()).unwrap();
    }

    fn hear(&mut self, wanted: &str) {
        let mut bytes = vec![0; wanted.len()];
        self.client.read_exact(&mut bytes).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), wanted);
    }

    /// The connection ends without another byte; what the server was sent, and the counts of GET.
    fn end(mut self) -> (Vec<String>, Counts) {
        // A test may have ended it already.
        let _ = self.client.shutdown(std::net::Shutdown::Write);
        let mut rest = String::new();
        self.client.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
        self.shared.leave.store(true, Ordering::Relaxed);
        self.relay.join().unwrap();
        let reads = self.shared.reads.table();
        let gets = reads.get("get").copied().unwrap_or_default();
        (self.server.join().unwrap(), gets)
    }
}

#[test]
fn a_read_is_sent_until_erb_answers_it_and_the_last_reply_is_handed_on() {
    let erb = Arc::new(Erb::default());
    let seen = Arc::clone(&erb);
    let mut play = Play::start(Some(erb), move |asked| {
        if asked == 3 {
            seen.answers();
        }
        Some(format!("$1\r\n{asked}\r\n"))
    });
    play.say(GET);
    play.hear("$1\r\n3\r\n");
    let (sent, gets) = play.end();
    assert_eq!(sent, [GET; 4]);
    assert_eq!((gets.sent, gets.fast, gets.fast_at_once), (1, 1, 0));
}

#[test]
fn where_erb_answers_nothing_a_read_is_sent_a_bounded_number_of_times() {
    let mut play = Play::start(None, |asked| Some(format!("$1\r\n{asked}\r\n")));
    play.say(GET);
    play.hear("$1\r\n8\r\n");
    let (sent, gets) = play.end();
    assert_eq!(sent, [GET; 9]);
    assert_eq!((gets.sent, gets.slow), (1, 1));
}

#[test]
fn errors_what_multi_queues_and_pipelines_are_handed_on_at_once() {
    let replies = ["-NOAUTH no\r\n", "+QUEUED\r\n", "+OK\r\n:1\r\n$1\r\na\r\n"];
    let mut play = Play::start(None, move |asked| Some(replies[asked].to_owned()));
    play.say(GET);
    play.hear(replies[0]);
    play.say(GET);
    play.hear(replies[1]);
    let pipeline = format!("SET a a\r\nINCR b\r\n{GET}");
    play.say(&pipeline);
    play.hear(replies[2]);
    let (sent, gets) = play.end();
    assert_eq!(sent, [GET, GET, &pipeline]);
    assert_eq!((gets.refused, gets.queued, gets.piped), (1, 1, 1));
}

#[test]
fn a_push_between_tries_reaches_the_client_before_the_reply() {
    let mut play = Play::start(None, |asked| {
        let push = if asked == 1 { ">1\r\n+hello\r\n" } else { "" };
        Some(format!("{push}$1\r\n{asked}\r\n"))
    });
    play.say(GET);
    play.hear(">1\r\n+hello\r\n$1\r\n8\r\n");
    play.end();
}

#[test]
fn a_server_that_goes_between_tries_has_answered() {
    let mut play = Play::start(None, |asked| {
        (asked < 2).then(|| format!("$1\r\n{asked}\r\n"))
    });
    play.say(GET);
    play.hear("$1\r\n1\r\n");
    let (sent, gets) = play.end();
    assert_eq!(sent, [GET; 3]);
    assert_eq!((gets.sent, gets.slow), (1, 1));
}

#[test]
fn behind_a_subscription_nothing_is_looked_at() {
    let replies = [
        "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
        "what it likes",
    ];
    let mut play = Play::start(None, move |asked| Some(replies[asked].to_owned()));
    play.say("SUBSCRIBE a\r\n");
    play.hear(replies[0]);
    play.say(GET);
    play.hear(replies[1]);
    let (sent, gets) = play.end();
    assert_eq!(sent.concat(), format!("SUBSCRIBE a\r\n{GET}"));
    assert_eq!(gets.sent, 0);
}

#[test]
fn a_read_has_an_effect_while_tracking_is_on() {
    let mut play = Play::start(None, |asked| Some(format!("+{asked}\r\n")));
    play.say("CLIENT TRACKING ON\r\n");
    play.hear("+0\r\n");
    play.say(GET);
    play.hear("+1\r\n");
    play.say("CLIENT TRACKING OFF\r\n");
    play.hear("+2\r\n");
    play.say(GET);
    play.hear("+11\r\n");
    let (_, gets) = play.end();
    assert_eq!((gets.tracked, gets.slow), (1, 1));
}

#[test]
fn a_read_waits_until_erb_knows_the_connection() {
    let erb = Arc::new(Erb::default());
    erb.bypass.store(true, Ordering::SeqCst);
    let seen = Arc::clone(&erb);
    let mut play = Play::start(Some(Arc::clone(&erb) as Arc<dyn Witness>), move |_| {
        assert!(!seen.bypass.load(Ordering::SeqCst), "asked too early");
        seen.answers();
        Some("$1\r\na\r\n".to_owned())
    });
    play.say(GET);
    thread::sleep(Duration::from_millis(50));
    erb.bypass.store(false, Ordering::SeqCst);
    play.hear("$1\r\na\r\n");
    let (sent, gets) = play.end();
    assert_eq!(sent, [GET]);
    assert_eq!((gets.sent, gets.fast_at_once), (1, 1));
}

#[test]
fn a_connection_that_erb_never_knows_is_waited_for_once() {
    let erb = Arc::new(Erb::default());
    erb.bypass.store(true, Ordering::SeqCst);
    let mut play = Play::start(Some(erb), |_| Some("$-1\r\n".to_owned()));
    let start = Instant::now();
    play.say(GET);
    play.hear("$-1\r\n");
    let first = start.elapsed();
    let start = Instant::now();
    play.say(GET);
    play.hear("$-1\r\n");
    let second = start.elapsed();
    let (_, gets) = play.end();
    assert_eq!((gets.sent, gets.beyond), (2, 2));
    if first <= 2 * second {
        erb_steady::too_slow(format_args!("{first:?}, then {second:?}"));
    }
}

#[test]
fn in_multi_and_at_the_end_nothing_is_kept_back() {
    let erb = Arc::new(Erb::default());
    erb.bypass.store(true, Ordering::SeqCst);
    let mut play = Play::start(Some(erb), |asked| {
        Some(["+OK\r\n", "+QUEUED\r\n", "*0\r\n", "$1\r\na\r\n"][asked].to_owned())
    });
    let start = Instant::now();
    for (words, reply) in [
        ("MULTI\r\n", "+OK\r\n"),
        (GET, "+QUEUED\r\n"),
        ("EXEC\r\n", "*0\r\n"),
    ] {
        play.say(words);
        play.hear(reply);
    }
    play.say(GET);
    thread::sleep(Duration::from_millis(20));
    play.client.shutdown(std::net::Shutdown::Write).unwrap();
    play.hear("$1\r\na\r\n");
    let took = start.elapsed();
    let (_, gets) = play.end();
    assert_eq!((gets.queued, gets.slow), (1, 1));
    // A single read that was kept back would take longer.
    if took >= Duration::from_millis(500) {
        erb_steady::out_of_patience(format_args!("{took:?}"));
    }
}

#[test]
fn what_erb_cannot_have_is_asked_for_twice_and_told_apart() {
    let mut play = Play::start(None, |_| Some("$-1\r\n".to_owned()));
    play.say(GET);
    play.hear("$-1\r\n");
    let (sent, gets) = play.end();
    assert_eq!(sent, [GET; 2]);
    assert_eq!((gets.sent, gets.beyond, gets.open()), (1, 1, 0));
}
