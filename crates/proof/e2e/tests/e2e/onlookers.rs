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
use erb_e2e::lab::scaled;
use erb_e2e::stop::Stop;

use crate::write_back::boosted_beside_a_socket;

/// From one number to the next, and from look to look. More looks, each of which waits for a drain, would not be worth
/// answering SETs, and ERB would find that out.
const PACE: Duration = Duration::from_micros(500);
const LOOKS: Duration = Duration::from_millis(4);
/// Who writes other keys meanwhile, as fast as it goes.
const OTHERS: usize = 2;
/// Messages are published each so many numbers.
const PUBLISHED_EACH: u64 = 16;
/// Nobody is later than this on a machine that others use, too. The promise is some milliseconds.
const LATE_MAX: Duration = Duration::from_secs(2);

/// What was answered, and when what was last looked for was.
#[derive(Default)]
struct Told {
    number: AtomicU64,
    stop: AtomicBool,
}

impl Told {
    fn now(&self) -> u64 {
        self.number.load(Ordering::SeqCst)
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

/// The number in a bulk string; 0: there is none, as of a key that is not there.
fn number(text: Option<&str>) -> u64 {
    let text = text.filter(|text| !text.is_empty());
    text.map_or(0, |text| text.parse().expect("a number"))
}

/// Writes; each sixteenth number is published behind its SET.
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
fn in_script(mut conn: Conn, told: &Told) -> u64 {
    let mut looks = 0;
    while told.goes_on() {
        let before = told.now();
        let script = ["EVAL", "return redis.call('GET', KEYS[1])", "1", "k"];
        let reply = conn.call(&script).expect("EVAL");
        let text = String::from_utf8(reply).expect("text");
        let seen = number(text.split("\r\n").nth(1));
        assert!(seen >= before, "a script saw {seen} behind {before}");
        looks += 1;
        sleep(LOOKS);
    }
    looks
}

/// By WATCH, GET, MULTI, GET, EXEC: what it executes is what it has watched, or nothing.
fn in_transaction(mut conn: Conn, told: &Told) -> u64 {
    let mut done = 0;
    while told.goes_on() {
        sleep(LOOKS);
        let before = told.now();
        expect(&mut conn, "WATCH k", "+OK\r\n");
        let watched = number(get(&mut conn, "k").as_deref());
        assert!(watched >= before, "GET saw {watched} behind {before}");
        expect(&mut conn, "MULTI", "+OK\r\n");
        expect(&mut conn, "GET k", "+QUEUED\r\n");
        let reply = call(&mut conn, "EXEC");
        if reply == "*-1\r\n" {
            continue; // it was written in between
        }
        let seen = number(reply.split("\r\n").nth(2));
        assert_eq!(seen, watched, "{reply:?}");
        done += 1;
    }
    done
}

/// Behind each message it reads what was written before that.
fn behind_messages(mut hears: Conn, mut conn: Conn, told: &Told) -> u64 {
    hears
        .send(&resp::command(&["SUBSCRIBE", "news"]))
        .expect("send");
    hears.reply().expect("subscribed");
    let mut heard = 0;
    while told.goes_on() {
        let message = String::from_utf8(hears.reply().expect("a message")).expect("text");
        let published = number(message.split("\r\n").nth(6));
        let seen = number(get(&mut conn, "k").as_deref());
        assert!(seen >= published, "{seen} behind the message {published}");
        heard += 1;
    }
    heard
}

/// With CLIENT TRACKING it is told of each change of what it has read, late. Returns how late at most.
fn told_of_changes(mut conn: Conn, told: &Told) -> (u64, Duration) {
    conn.call(&["HELLO", "3"]).expect("HELLO");
    expect(&mut conn, "CLIENT TRACKING ON", "+OK\r\n");
    let (mut changes, mut late) = (0, Duration::ZERO);
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
        assert!(seen >= before, "it saw {seen} behind {before}");
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
        let push = conn.reply().expect("it is told");
        assert!(push.starts_with(b">2\r\n$10\r\ninvalidate"), "{push:?}");
        late = late.max(changed.elapsed());
        changes += 1;
    }
    (changes, late)
}

/// Over the unix socket, past all devices: it sees what is drained. Returns how late at most.
fn past_devices(socket: &Path, told: &Told) -> (u64, Duration) {
    let mut stream = UnixStream::connect(socket).expect("redis");
    let mut buffer = [0; 64];
    let (mut looks, mut late, mut last) = (0, Duration::ZERO, 0);
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
            looks += 1;
            if seen >= before {
                break;
            }
            assert!(since.elapsed() < LATE_MAX, "{seen} behind {before}");
        }
        late = late.max(since.elapsed());
        sleep(LOOKS / 4);
    }
    (looks, late)
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
        let script = threads.spawn(move || in_script(script, told));
        let transaction = client();
        let transaction = threads.spawn(move || in_transaction(transaction, told));
        let (hears, reads) = (client(), client());
        let messages = threads.spawn(move || behind_messages(hears, reads, told));
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
        drop(end);
        // Whoever waits for a message or a change has one more.
        writer.join().expect("the writer");
        let mut last = lab.client();
        set(&mut last, "k", &(told.now() + 1).to_string());
        call(&mut last, &format!("PUBLISH news {}", told.now()));
        let looks = [script, transaction, messages].map(|one| one.join().expect("an onlooker"));
        let (changes, told_late) = tracked.join().expect("who is told");
        let (past_looks, past_late) = past.join().expect("who is past");
        println!(
            "{} numbers; looks by script, transaction, message: {looks:?}; {changes} changes told, at most {told_late:?} late; \
             {past_looks} looks past the devices, at most {past_late:?} late",
            told.now()
        );
        assert!(looks.iter().all(|count| *count > 10), "{looks:?}");
        assert!(changes > 10 && past_looks > 10, "{changes}, {past_looks}");
        assert!(told_late < LATE_MAX && past_late < LATE_MAX);
        let ends = others.into_iter().map(|one| one.join());
        ends.map(|end| end.expect("a writer")).sum::<u64>()
    });
    let absorbed = lab.counters().get("ABSORBED");
    let sets = others + told.now();
    println!("{absorbed} of {sets} SETs answered");
    assert!(absorbed > sets / 2, "{absorbed} of {sets}");
    lab.assert_settled();
}
