// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The peer: takes connections, judges what comes, and answers questions about it. It runs outside of the guest,
//! so that the guest's kernel sends through a card; and once inside, behind `lo`.
//!
//! Two ports are alike. The guest makes one of them silent, by dropping what comes from it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::pattern::Seen;

/// What a connection begins with: its number, its file, and whether the peer waits before it reads on.
pub const HEAD_BYTES: usize = 16;
/// Small, so that windows close soon.
const RECEIVE_BYTES: usize = 16 << 10;

/// The head of a connection.
pub fn head(connection: u64, file: u16, hold: bool) -> [u8; HEAD_BYTES] {
    let mut bytes = [0; HEAD_BYTES];
    bytes[..8].copy_from_slice(&connection.to_le_bytes());
    bytes[8..10].copy_from_slice(&file.to_le_bytes());
    bytes[10] = u8::from(hold);
    bytes
}

/// How a connection has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// Not yet.
    #[default]
    Open,
    /// In peace.
    Fin,
    /// By a reset.
    Rst,
}

#[derive(Debug, Default)]
struct Connection {
    seen: Seen,
    end: End,
    hold: bool,
}

/// All connections so far.
#[derive(Debug, Default)]
struct Book {
    connections: Mutex<HashMap<u64, Connection>>,
    changed: Condvar,
}

/// Where a peer listens.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// Questions.
    pub control: u16,
    /// Data.
    pub data: u16,
    /// Data, from the port that is made silent.
    pub silent: u16,
}

/// Begins to listen on the loopback.
pub fn start() -> Result<Ports> {
    let book = Arc::new(Book::default());
    let listen = |serve: fn(&Book, TcpStream) -> Result<()>| -> Result<u16> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket2::SockRef::from(&listener).set_recv_buffer_size(RECEIVE_BYTES)?;
        let port = listener.local_addr()?.port();
        let book = Arc::clone(&book);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let book = Arc::clone(&book);
                thread::spawn(move || serve(&book, stream));
            }
        });
        Ok(port)
    };
    Ok(Ports {
        control: listen(answer)?,
        data: listen(receive)?,
        silent: listen(receive)?,
    })
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Connection>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, number: u64, change: impl FnOnce(&mut Connection)) {
        change(self.lock().entry(number).or_default());
        self.changed.notify_all();
    }

    /// Waits until the connection is as asked; returns whether it is.
    fn wait(&self, number: u64, patience: Duration, is: impl Fn(&Connection) -> bool) -> bool {
        let until = Instant::now() + patience;
        let mut connections = self.lock();
        loop {
            if connections.get(&number).is_some_and(&is) {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let woken = self.changed.wait_timeout(connections, left);
            connections = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn receive(book: &Book, mut stream: TcpStream) -> Result<()> {
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head)?;
    let number = u64::from_le_bytes(head[..8].try_into().expect("eight bytes"));
    let file = u16::from_le_bytes([head[8], head[9]]);
    let hold = head[10] != 0;
    book.change(number, |it| it.hold = hold);
    if hold {
        book.wait(number, Duration::MAX / 4, |it| !it.hold);
    }
    let mut bytes = vec![0; 64 << 10];
    let end = loop {
        match stream.read(&mut bytes) {
            Ok(0) => break End::Fin,
            Ok(count) => book.change(number, |it| it.seen.take(file, &bytes[..count])),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break End::Rst,
        }
    };
    book.change(number, |it| it.end = end);
    Ok(())
}

/// `read N`: it reads on. `wait N MS`: until it has ended, or so long. `begun N MS`: until its head has come.
/// Each is answered by a line with what was seen.
fn answer(book: &Book, stream: TcpStream) -> Result<()> {
    let mut to = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let word = |at: usize| words.get(at).and_then(|it| it.parse::<u64>().ok());
        let (number, patience) = (word(1).unwrap_or(0), word(2).unwrap_or(0));
        let patience = Duration::from_millis(patience);
        let found = match words[0] {
            "read" => {
                book.change(number, |it| it.hold = false);
                true
            }
            "begun" => book.wait(number, patience, |_| true),
            _ => book.wait(number, patience, |it| it.end != End::Open),
        };
        let connections = book.lock();
        let none = Connection::default();
        let one = connections.get(&number).unwrap_or(&none);
        let version = |it: Option<u8>| it.map_or(0, u32::from);
        let end = match one.end {
            End::Open => 0,
            End::Fin => 1,
            End::Rst => 2,
        };
        let answer = format!(
            "{} {} {} {} {} {end}\n",
            u8::from(found),
            one.seen.bytes,
            one.seen.foreign_bytes,
            version(one.seen.version_min),
            version(one.seen.version_max),
        );
        drop(connections);
        to.write_all(answer.as_bytes())?;
    }
    Ok(())
}
