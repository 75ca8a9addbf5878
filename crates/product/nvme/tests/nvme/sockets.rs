// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The smallest server and client: one thread each, real sockets over loopback.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use erb_nvme::backend::Condition;
use erb_nvme::client::{Call, Connection, Event, Reply, Settings, calls};
use erb_nvme::pdu::Digests;
use erb_nvme::status::Status;
use erb_nvme::target::{ANY_CONTROLLER, ConnectionId, Proof, Target};

use crate::dice::Dice;
use crate::fake::Fake;
use crate::world::{ALICE, config, secrets, settings};

const NAP: Duration = Duration::from_micros(100);
const READ_BYTES: usize = 64 << 10;

/// For both ends time passes so much slower than it does: an end that a slow machine holds up is in time all the same.
const SLOWER: u128 = 20;
const PATIENCE: Duration = Duration::from_secs(30);

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros() / SLOWER).expect("a short test")
}

/// Bytes that came; nothing: the peer is gone.
fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> Option<usize> {
    match stream.read(buffer) {
        Ok(0) => None,
        Ok(count) => Some(count),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Some(0),
        Err(_) => None,
    }
}

/// Bytes that went.
fn write(stream: &mut TcpStream, bytes: &[u8]) -> usize {
    match stream.write(bytes) {
        Ok(count) => count,
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        Err(_) => bytes.len(),
    }
}

struct Server {
    target: Target<Fake>,
    streams: BTreeMap<ConnectionId, (TcpStream, Vec<u8>)>,
    begun: Instant,
}

impl Server {
    fn turn(&mut self, listener: &TcpListener) {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).expect("a socket");
            // As if it came from elsewhere: proof is asked.
            if let Some(id) = self.target.open(false, micros(self.begun)) {
                self.streams.insert(id, (stream, Vec::new()));
            }
        }
        let mut gone = Vec::new();
        let mut buffer = vec![0; READ_BYTES];
        for (id, (stream, kept)) in &mut self.streams {
            let now_us = micros(self.begun);
            if kept.is_empty() && self.target.wants_bytes(*id, now_us) {
                match read(stream, &mut buffer) {
                    Some(count) => kept.extend_from_slice(&buffer[..count]),
                    None => gone.push(*id),
                }
            }
            let taken = self.target.receive(*id, kept, now_us);
            kept.drain(..taken);
            while !self.target.output(*id).is_empty() {
                let count = write(stream, self.target.output(*id));
                if count == 0 {
                    break;
                }
                self.target.sent(*id, count, now_us);
            }
        }
        let now_us = micros(self.begun);
        while let Some((id, job)) = self.target.next_job() {
            let computed = job.run();
            self.target.computed(id, computed);
        }
        self.target.turn(now_us);
        gone.extend(self.target.over(now_us).into_iter().map(|(id, _)| id));
        for id in gone {
            self.target.close(id, now_us);
            self.streams.remove(&id);
        }
    }
}

struct Client {
    connection: Connection,
    stream: TcpStream,
    begun: Instant,
}

impl Client {
    fn connect(address: SocketAddr, settings: Settings) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nonblocking(true).expect("a socket");
        let connection = Connection::new(settings, Box::new(Dice::new(3)), 0);
        let mut client = Self {
            connection,
            stream,
            begun: Instant::now(),
        };
        client.wait(|event| matches!(event, Event::Up).then_some(()));
        client
    }

    /// Goes on until an event is the one that is waited for.
    fn wait<T>(&mut self, wanted: impl Fn(Event) -> Option<T>) -> T {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let now_us = micros(self.begun);
            if self.begun.elapsed() > erb_steady::patient(PATIENCE) {
                erb_steady::out_of_patience("no answer");
            }
            while let Some(event) = self.connection.event() {
                match event {
                    Event::Compute(job) => self.connection.computed(&job.run(), now_us),
                    Event::Ended(ended) => panic!("{ended}"),
                    event => {
                        if let Some(found) = wanted(event) {
                            return found;
                        }
                    }
                }
            }
            let sent = write(&mut self.stream, self.connection.output());
            self.connection.sent(sent);
            let came = read(&mut self.stream, &mut buffer).expect("the server is there");
            self.connection.receive(&buffer[..came], now_us);
            self.connection.tick(now_us);
            if sent == 0 && came == 0 {
                thread::sleep(NAP);
            }
        }
    }

    fn call(&mut self, call: Call) -> Reply {
        let now_us = micros(self.begun);
        let id = self.connection.call(call, now_us).expect("taken");
        self.wait(|event| match event {
            Event::Done(done, reply) if done == id => Some(reply),
            _ => None,
        })
    }
}

#[test]
fn a_client_and_a_server_speak_over_real_sockets() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("an address");
    let is_over = Arc::new(AtomicBool::new(false));
    let sees = Arc::clone(&is_over);
    let server = thread::spawn(move || {
        let mut config = config(Default::default());
        config.proof = Proof::Always;
        let mut server = Server {
            target: Target::new(config, Fake::default(), Box::new(Dice::new(4))),
            streams: BTreeMap::new(),
            begun: Instant::now(),
        };
        while !sees.load(Ordering::Relaxed) {
            server.turn(&listener);
            thread::sleep(NAP);
        }
    });
    let mut wanted = settings(ALICE, 0, ANY_CONTROLLER);
    wanted.secrets = Some(secrets());
    wanted.digests = Digests {
        header: true,
        data: true,
    };
    let admin = Client::connect(address, wanted.clone());
    wanted.queue = 1;
    wanted.controller = admin.connection.controller();
    let mut io = Client::connect(address, wanted);
    let value = Dice::new(5).bytes(1 << 20);
    let stored = io.call(calls::store(1, b"key", value.clone(), Condition::Absent));
    assert_eq!(stored.status, Status::OK);
    let found = io.call(calls::retrieve(1, b"key", 1 << 20));
    assert_eq!((found.result, found.data == value), (1 << 20, true));
    assert!(io.call(calls::delete(1, b"key")).status.is_ok());
    assert_eq!(io.call(calls::exist(1, b"key")).status, Status::ABSENT);
    is_over.store(true, Ordering::Relaxed);
    server.join().expect("the server ends");
}
