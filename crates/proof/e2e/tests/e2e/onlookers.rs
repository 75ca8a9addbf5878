// SPDX-License-Identifier: Apache-2.0 OR MIT
//! While SETs are answered in Redis's place others look on: what each may see is what docs/operating/write-back.md
//! promises.
//!
//! One connection writes numbers that grow. Who passes a boosted device, be it in a script, a transaction or behind a
//! message, sees each number that was answered before it asked. Who does not, and who is told of changes, hears late:
//! how late is measured, and bounded.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use erb_check::net::Conn;
use erb_check::resp;
use erb_e2e::calls::{call, expect, get, set};
use erb_e2e::lab::{STALL, STATE_WAIT, scaled, wait};
use erb_e2e::stop::Stop;
use erb_steady::{out_of_patience, patient, too_slow};

use crate::write_back::boosted_beside_a_socket;

/// From one number to the next, and from look to look. More looks, each of which waits for a drain, would not be worth
/// answering SETs, and ERB would find that out.
const PACE: Duration = Duration::from_micros(500);
const LOOKS: Duration = Duration::from_millis(4);
/// Who writes other keys meanwhile, as fast as it goes.
const OTHERS: usize = 2;
/// Messages are published each so many numbers.
const PUBLISHED_EACH: u64 = 16;
/// What is told later than this does not come. The promise is some milliseconds, and a machine that others use,
/// too, adds to it.
const LATE_MAX: Duration = patient(Duration::from_secs(4));
/// Looks of each kind that show something.
const LOOKS_MIN: u64 = 10;

/// What was answered, and how often each kind of onlooker has looked.
#[derive(Default)]
struct Told {
    number: AtomicU64,
    looks: [AtomicU64; KINDS],
    stop: AtomicBool,
}

/// Kinds of onlookers, by their place.
const SCRIPT: usize = 0;
const TRANSACTION: usize = 1;
const MESSAGE: usize = 2;
const TRACKED: usize = 3;
const PAST: usize = 4;
const KINDS: usize = 5;

impl Told {
    fn now(&self) -> u64 {
        self.number.load(Ordering::SeqCst)
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn looked(&self, kind: usize) {
        self.looks[kind].fetch_add(1, Ordering::Relaxed);
    }

    fn looks(&self) -> [u64; KINDS] {
        std::array::from_fn(|kind| self.looks[kind].load(Ordering::Relaxed))
    }
}

/// The number in a bulk string; 0: there is none, as of a key that is not there.
fn number(text: Option<&str>) -> u64 {
    let text = text.filter(|text| !text.is_empty());
    text.map_or(0, |text| text.parse().expect("a number"))
}

/// Writes; each sixteenth number is published after its SET.
fn writes(mut conn: Conn, told: &Told) {
    let mut next = 0;
    while told.goes_on() {
        next += 1;
        set(&mut conn, "k", &next.to_string());
        told.number.store(next, Ordering::SeqCst);
        if next % PUBLISHED_EACH == 0 {
            call(&mut conn, &format!("PUBLISH news {next}"));
        }
        sleep(PACE);
    }
}

/// Writes other keys. Returns how often.
fn writes_others(mut conn: Conn, name: usize, told: &Told) -> u64 {
    let mut count = 0;
    while told.goes_on() {
        count += 1;
        set(&mut conn, &format!("other{name}:{}", count % 100), "value");
    }
    count
}

/// By a script.
fn in_script(mut conn: Conn, told: &Told) {
    while told.goes_on() {
        let before = told.now();
        let script = ["EVAL", "return redis.call('GET', KEYS[1])", "1", "k"];
        let reply = conn.call(&script).expect("EVAL");
        let text = String::from_utf8(reply).expect("text");
        let seen = number(text.split("\r\n").nth(1));
        assert!(seen >= before, "a script saw {seen} after {before}");
        told.looked(SCRIPT);
        sleep(LOOKS);
    }
}

/// By WATCH, GET, MULTI, GET, EXEC: what it executes is what it has watched, or nothing.
fn in_transaction(mut conn: Conn, told: &Told) {
    while told.goes_on() {
        sleep(LOOKS);
        let before = told.now();
        expect(&mut conn, "WATCH k", "+OK\r\n");
        let watched = number(get(&mut conn, "k").as_deref());
        assert!(watched >= before, "GET saw {watched} after {before}");
        expect(&mut conn, "MULTI", "+OK\r\n");
        expect(&mut conn, "GET k", "+QUEUED\r\n");
        let reply = call(&mut conn, "EXEC");
        if reply == "*-1\r\n" {
            continue; // it was written in between
        }
        let seen = number(reply.split("\r\n").nth(2));
        assert_eq!(seen, watched, "{reply:?}");
        told.looked(TRANSACTION);
    }
}

/// What a connection is told next; none: the test ends by a failure, and nothing comes any more.
fn one_more(conn: &mut Conn, told: &Told) -> Option<Vec<u8>> {
    let more = conn.reply();
    assert!(more.is_ok() || !told.goes_on(), "{more:?}");
    more.ok()
}

/// After each message it reads what was written before that.
fn after_messages(mut hears: Conn, mut conn: Conn, told: &Told) {
    hears
        .send(&resp::command(&["SUBSCRIBE", "news"]))
        .expect("send");
    hears.reply().expect("subscribed");
    while told.goes_on() {
        let Some(message) = one_more(&mut hears, told) else {
            return;
        };
        let message = String::from_utf8(message).expect("text");
        let published = number(message.split("\r\n").nth(6));
        let seen = number(get(&mut conn, "k").as_deref());
        assert!(seen >= published, "{seen} after the message {published}");
        told.looked(MESSAGE);
    }
}

/// With CLIENT TRACKING it is told of each change of what it has read, late. Returns how late at most.
fn told_of_changes(mut conn: Conn, told: &Told) -> Duration {
    conn.call(&["HELLO", "3"]).expect("HELLO");
    expect(&mut conn, "CLIENT TRACKING ON", "+OK\r\n");
    let mut late = Duration::ZERO;
    while told.goes_on() {
        sleep(LOOKS);
        let before = told.now();
        // In a script: so it is Redis that is asked, and remembers that it was.
        let script = ["EVAL_RO", "return redis.call('GET', KEYS[1])", "1", "k"];
        conn.send(&resp::command(&script)).expect("send");
        let mut reply = conn.reply().expect("a reply");
        let mut is_told = false;
        if reply.starts_with(b">") {
            is_told = true; // of what it had read before
            reply = conn.reply().expect("a reply");
        }
        let text = String::from_utf8(reply).expect("text");
        let seen = number(text.split("\r\n").nth(1));
        assert!(seen >= before, "it saw {seen} after {before}");
        if is_told {
            continue;
        }
        while told.now() == seen && told.goes_on() {
            std::thread::yield_now();
        }
        let changed = Instant::now();
        if !told.goes_on() {
            break;
        }
        let Some(push) = one_more(&mut conn, told) else {
            break;
        };
        assert!(push.starts_with(b">2\r\n$10\r\ninvalidate"), "{push:?}");
        late = late.max(changed.elapsed());
        told.looked(TRACKED);
    }
    late
}

/// Over the unix socket, past all devices: it sees what is drained. Returns how late at most.
fn past_devices(socket: &Path, told: &Told) -> Duration {
    let mut stream = UnixStream::connect(socket).expect("redis");
    stream.set_read_timeout(Some(STALL)).expect("an option");
    let mut buffer = [0; 64];
    let (mut late, mut last) = (Duration::ZERO, 0);
    while told.goes_on() {
        let (before, since) = (told.now(), Instant::now());
        loop {
            stream
                .write_all(&resp::command(&["GET", "k"]))
                .expect("send");
            let n = stream.read(&mut buffer).expect("a reply");
            let text = std::str::from_utf8(&buffer[..n]).expect("text");
            let seen = number(text.split("\r\n").nth(1));
            assert!(seen >= last, "it went back from {last} to {seen}");
            last = seen;
            told.looked(PAST);
            if seen >= before {
                break;
            }
            if since.elapsed() > LATE_MAX {
                out_of_patience(format_args!("{seen}, and {before} was answered long ago"));
            }
        }
        late = late.max(since.elapsed());
        sleep(LOOKS / 4);
    }
    late
}

#[test]
fn who_looks_on_sees_what_is_promised() {
    let lab = boosted_beside_a_socket("onlook");
    let socket = lab.lab().state().redis_dir.join("redis.sock");
    let told = Told::default();
    let mut clients: Vec<Conn> = (0..6 + OTHERS).map(|_| lab.client()).collect();
    let mut client = || clients.pop().expect("enough were made");
    let others = scope(|threads| {
        let told = &told;
        let end = Stop(&told.stop);
        let writer = client();
        let script = client();
        threads.spawn(move || in_script(script, told));
        let transaction = client();
        threads.spawn(move || in_transaction(transaction, told));
        let (hears, reads) = (client(), client());
        threads.spawn(move || after_messages(hears, reads, told));
        let tracked = client();
        let tracked = threads.spawn(move || told_of_changes(tracked, told));
        let past = threads.spawn(|| past_devices(&socket, told));
        let writer = threads.spawn(move || writes(writer, told));
        let others: Vec<_> = (0..OTHERS)
            .map(|name| {
                let conn = client();
                threads.spawn(move || writes_others(conn, name, told))
            })
            .collect();
        sleep(scaled(Duration::from_secs(4), Duration::from_secs(60)));
        wait(STATE_WAIT, || {
            let looks = told.looks();
            let all = looks.iter().all(|count| *count > LOOKS_MIN);
            all.then_some(()).ok_or_else(|| format!("{looks:?} looks"))
        });
        drop(end);
        // What waits for a message or a change has one more.
        writer.join().expect("a thread of this test panicked");
        let mut last = lab.client();
        set(&mut last, "k", &(told.now() + 1).to_string());
        call(&mut last, &format!("PUBLISH news {}", told.now()));
        let late = [tracked, past].map(|one| one.join().expect("a thread of this test panicked"));
        println!(
            "{} numbers; looks by script, transaction, message, of changes that were told, past the devices: {:?}; \
             the last two at most {late:?} late",
            told.now(),
            told.looks()
        );
        if late.iter().any(|late| *late > LATE_MAX) {
            out_of_patience(format_args!("{late:?} late"));
        }
        let ends = others.into_iter().map(|one| one.join());
        ends.map(|end| end.expect("a thread of this test panicked"))
            .sum::<u64>()
    });
    let absorbed = lab.counters().get("ABSORBED");
    let sets = others + told.now();
    println!("{absorbed} of {sets} SETs answered");
    lab.assert_settled();
    if absorbed <= sets / 2 {
        too_slow(format_args!("{absorbed} of {sets} SETs answered"));
    }
}
