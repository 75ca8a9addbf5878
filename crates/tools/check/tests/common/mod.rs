// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Redis servers of the test's own, and a proxy that lies on purpose.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use erb_check::net::Conn;
use erb_check::resp;

/// Longest silence, and longest start of a server: far beyond what a slow machine needs.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Linux's shortest retransmission time-out.
const RETRANSMISSION: Duration = Duration::from_millis(200);
/// Tries to start a server, each on another free port.
const START_TRIES: u32 = 5;

/// A redis-server on loopback, IPv4 and IPv6; ended with the test.
pub struct Redis {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Redis {
    pub fn start() -> Self {
        (0..START_TRIES)
            .find_map(|_| Self::try_start())
            .unwrap_or_else(|| erb_steady::set_up_failed("no redis-server could be started"))
    }

    fn try_start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let dir = tempfile::tempdir().unwrap();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "-::1"])
            .args([
                "--protected-mode",
                "no",
                "--save",
                "",
                "--appendonly",
                "no",
                "--dir",
            ])
            .arg(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                erb_steady::set_up_failed(format_args!(
                    "redis-server is missing ({error}): scripts/setup.sh installs it"
                ))
            });
        let mut redis = Self {
            child,
            port,
            _dir: dir,
        };
        let until = Instant::now() + TIMEOUT;
        while Instant::now() < until && matches!(redis.child.try_wait(), Ok(None)) {
            if Conn::connect(redis.socket_addr(), TIMEOUT)
                .is_ok_and(|mut c| c.call(&["PING"]).is_ok_and(|r| r == b"+PONG\r\n"))
            {
                return Some(redis);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    pub fn socket_addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub fn addr(&self) -> String {
        self.socket_addr().to_string()
    }

    pub fn addr6(&self) -> String {
        format!("[::1]:{}", self.port)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the proxy does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// Nothing.
    None,
    /// Every so many GETs of a key one is answered with the first reply that key ever had.
    StaleGet(u64),
    /// The same of HGETALL.
    StaleHash(u64),
    /// Every so many GETs one byte of a value is flipped.
    FlippedByte(u64),
    /// After so many requests of a connection it says nothing more.
    Silence(u64),
    /// After so many requests of a connection it is closed.
    Close(u64),
    /// Nothing, but every so many requests of a connection take as long as a retransmission.
    Slow(u64),
    /// Every so many requests a reply is sent twice.
    Twice(u64),
}

type FirstReplies = HashMap<Vec<u8>, (Vec<u8>, u64)>;

struct Proxy {
    redis: SocketAddr,
    lie: Lie,
    /// First reply that each key ever had, and how often it was read.
    first: Mutex<FirstReplies>,
    gets: AtomicU64,
}

/// Starts a proxy in front of `redis`; it lives as long as the test's process.
pub fn lying_proxy(redis: &Redis, lie: Lie) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let proxy = Arc::new(Proxy {
        redis: redis.socket_addr(),
        lie,
        first: Mutex::default(),
        gets: AtomicU64::new(0),
    });
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let proxy = Arc::clone(&proxy);
            std::thread::spawn(move || proxy.serve(client));
        }
    });
    addr
}

impl Proxy {
    fn serve(&self, client: TcpStream) {
        let mut client = Conn::from_stream(client, TIMEOUT).unwrap();
        let Ok(mut redis) = Conn::connect(self.redis, TIMEOUT) else {
            return;
        };
        let mut requests = 0;
        // Ends with the client, or with the server at the end of the test.
        while let Ok(request) = client.reply() {
            requests += 1;
            match self.lie {
                Lie::Close(n) if requests > n => return,
                Lie::Silence(n) if requests > n => continue,
                Lie::Slow(n) if requests % n == 0 => std::thread::sleep(RETRANSMISSION),
                _ => {}
            }
            if redis.send(&request).is_err() {
                return;
            }
            let Ok(mut reply) = redis.reply() else { return };
            if let Some(key) = self.lied_about(&request) {
                self.twist(key, &mut reply);
            }
            let quit = request == resp::command(&["QUIT"]);
            let twice = matches!(self.lie, Lie::Twice(n) if requests % n == 0);
            for _ in 0..=u8::from(twice) {
                if client.send(&reply).is_err() {
                    return;
                }
            }
            if quit {
                return;
            }
        }
    }

    /// What tells the key of a request about which lies are told.
    fn lied_about(&self, request: &[u8]) -> Option<Vec<u8>> {
        match self.lie {
            Lie::StaleHash(_) => {
                let of_hash = request.starts_with(b"*2\r\n$7\r\nHGETALL\r\n");
                of_hash.then(|| request.to_vec())
            }
            _ => get_key(request),
        }
    }

    fn twist(&self, key: Vec<u8>, reply: &mut Vec<u8>) {
        match self.lie {
            Lie::StaleGet(n) | Lie::StaleHash(n) => {
                let mut first = self.first.lock().unwrap();
                let (old, reads) = first.entry(key).or_insert_with(|| (reply.clone(), 0));
                *reads += 1;
                if *reads % n == 0 {
                    reply.clone_from(old);
                }
            }
            Lie::FlippedByte(n) => {
                let gets = self.gets.fetch_add(1, Ordering::Relaxed) + 1;
                let value = reply.len().saturating_sub(3);
                if gets % n == 0 && reply[0] == b'$' && reply.len() > 8 {
                    reply[value] ^= 1;
                }
            }
            _ => {}
        }
    }
}

/// The key, if the request is a GET.
pub fn get_key(request: &[u8]) -> Option<Vec<u8>> {
    let head = b"*2\r\n$3\r\n";
    let rest = request.strip_prefix(head)?;
    if !rest[..3].eq_ignore_ascii_case(b"GET") {
        return None;
    }
    match resp::Reply::parse(&rest[5..]) {
        resp::Reply::Bulk(key) => Some(key.to_vec()),
        _ => None,
    }
}
