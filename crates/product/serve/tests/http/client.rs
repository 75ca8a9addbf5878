// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A folder that is served, and a client that compares.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dax_send::Options;
use erb_report::Serve;
use erb_serve::{Config, Server};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

pub const FILE_BYTES: usize = 1_000_000;
/// Far longer than any answer takes.
pub const PATIENCE: Duration = erb_steady::patient(Duration::from_secs(30));

pub fn content(seed: u8) -> Vec<u8> {
    (0..FILE_BYTES)
        .map(|at| (at * 31 + at / 997) as u8 ^ seed)
        .collect()
}

/// A folder with files, served from the begin to the end of a test.
pub struct Folder {
    pub dir: TempDir,
    server: Server,
}

impl Folder {
    pub fn serve() -> Self {
        Self::serve_with(Options::default())
    }

    pub fn serve_with(send: Options) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let root = dir.path().join("root");
        Self::fill(&root);
        Self::start(dir, &root, 2, send)
    }

    pub fn serve_threads(threads: usize) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let root = dir.path().join("root");
        Self::fill(&root);
        Self::start(dir, &root, threads, Options::default())
    }

    /// A folder that is there.
    pub fn serve_root(root: &Path, send: Options) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        Self::start(dir, root, 2, send)
    }

    /// The usual files.
    pub fn fill(root: &Path) {
        fs::create_dir_all(root.join("sub")).expect("a folder");
        fs::write(root.join("a.bin"), content(1)).expect("a file");
        fs::write(root.join("empty"), "").expect("a file");
        fs::write(root.join("index.html"), "<p>index").expect("a file");
        fs::write(root.join("sub/x.txt"), "in a folder").expect("a file");
    }

    fn start(dir: TempDir, root: &Path, threads: usize, send: Options) -> Self {
        let config = Config {
            root: root.to_owned(),
            address: "127.0.0.1:0".parse().expect("an address"),
            threads,
            connections_max: 1000,
            index: "index.html".to_owned(),
            send,
            guard: None,
        };
        let server = Server::start(&config).expect("it serves");
        Self { dir, server }
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub fn stop(self) -> Serve {
        self.server.stop().expect("no thread has failed")
    }
}

/// An answer as it came.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1);
        lines.find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

pub struct Client {
    pub stream: TcpStream,
    waiting: Vec<u8>,
}

impl Client {
    pub fn connect(folder: &Folder) -> Self {
        Self::at(folder.address())
    }

    pub fn at(address: SocketAddr) -> Self {
        Self::of(TcpStream::connect(address).expect("connected"))
    }

    /// With so little room that a body does not fit into the kernels' buffers.
    pub fn connect_taking(folder: &Folder, receive_bytes: usize) -> Self {
        Self::at_taking(folder.address(), receive_bytes)
    }

    pub fn at_taking(address: SocketAddr, receive_bytes: usize) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket
            .set_recv_buffer_size(receive_bytes)
            .expect("an option");
        socket.connect(&address.into()).expect("connected");
        Self::of(socket.into())
    }

    fn of(stream: TcpStream) -> Self {
        stream
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
            .expect("options");
        Self {
            stream,
            waiting: Vec::new(),
        }
    }

    pub fn get(&mut self, path: &str, fields: &str) -> Answer {
        self.ask("GET", path, fields)
    }

    pub fn ask(&mut self, method: &str, path: &str, fields: &str) -> Answer {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n");
        self.stream.write_all(request.as_bytes()).expect("written");
        self.answer(method == "GET").expect("an answer")
    }

    /// Waits until an answer has begun, or the connection has ended: then the request was taken.
    pub fn await_begin(&self) {
        if let Err(error) = self.stream.peek(&mut [0; 1]) {
            assert_came(&error);
        }
    }

    /// The next answer; none: the connection ended or was reset before its last byte.
    pub fn answer(&mut self, with_body: bool) -> Option<Answer> {
        let mut chunk = vec![0; 65_536];
        let end = loop {
            if let Some(at) = self.waiting.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            match self.read(&mut chunk) {
                0 => return None,
                count => self.waiting.extend_from_slice(&chunk[..count]),
            }
        };
        let head = String::from_utf8(self.waiting.drain(..end).collect()).expect("ASCII");
        let status = head.get(9..12)?.parse().ok()?;
        let mut answer = Answer {
            status,
            head,
            body: Vec::new(),
        };
        let length = answer
            .field("content-length")
            .map_or(0, |it| it.parse().expect("a number"));
        if with_body && status != 304 {
            while self.waiting.len() < length {
                match self.read(&mut chunk) {
                    0 => return None,
                    count => self.waiting.extend_from_slice(&chunk[..count]),
                }
            }
            answer.body = self.waiting.drain(..length).collect();
        }
        Some(answer)
    }

    /// Bytes that came; none: the connection has ended.
    fn read(&mut self, to: &mut [u8]) -> usize {
        self.stream.read(to).unwrap_or_else(|error| {
            assert_came(&error);
            0
        })
    }
}

/// A connection that was reset is an end. One that is silent is neither an end nor an answer.
fn assert_came(error: &std::io::Error) {
    if error.kind() == std::io::ErrorKind::WouldBlock {
        erb_steady::out_of_patience(format_args!("nothing came within {PATIENCE:?}"));
    }
}
