// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The forwarder: the process in the middle namespace that carries frames both ways.
//!
//! One thread owns sockets, pipes and counters; a second one takes requests from the control
//! socket and hands them over through a channel and an eventfd, so that a slow or dead control
//! client never holds up a frame.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};

use crate::control::{ANSWER_WAIT, Answer, LinkReport, Request, receive, send};
use crate::fault::{Direction, Pipe};
use crate::packet::{Batch, PacketSocket};
use crate::settings::LinkSettings;

/// Tries to send into a full queue before the frame is given up: with the pause below about one
/// second, in which any receiver that is alive makes room.
const SEND_TRIES: u32 = 20_000;
/// Pause between two tries: lets the receiver's softirq or thread have the processor.
const SEND_PAUSE: Duration = Duration::from_micros(50);
/// Batches taken from one side before the other has its turn and the control socket is looked at.
const BATCHES_PER_TURN: usize = 4;

/// A request with the way back to the one who asked.
struct Ask {
    request: Request,
    answer: Sender<Answer>,
}

/// One direction: from where, through which pipe, to where.
struct Way<'a> {
    from: &'a PacketSocket,
    to: &'a PacketSocket,
    pipe: Pipe,
    out: Vec<Vec<u8>>,
}

/// Forwards between two devices of the calling process's namespace until it is killed.
pub fn run(client_device: &str, server_device: &str, control_socket: &Path) -> Result<()> {
    let client = PacketSocket::open(client_device)?;
    let server = PacketSocket::open(server_device)?;
    // Delays of a millisecond shall not be rounded by the default slack of 50 us.
    nix::sys::prctl::set_timerslack(1).context("prctl PR_SET_TIMERSLACK")?;
    let listener = UnixListener::bind(control_socket)
        .with_context(|| format!("cannot listen on {}", control_socket.display()))?;
    let wake = Arc::new(EventFd::from_flags(
        EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC,
    )?);
    let (sender, requests) = channel();
    let waker = Arc::clone(&wake);
    thread::spawn(move || serve_control(&listener, &sender, &waker));
    let way = |from, to, direction| Way {
        from,
        to,
        pipe: Pipe::new(direction),
        out: Vec::new(),
    };
    let mut ways = [
        way(&client, &server, Direction::ToServer),
        way(&server, &client, Direction::ToClient),
    ];
    let mut settings = LinkSettings::default();
    let mut batch = Batch::new();
    loop {
        wait(&ways, &wake)?;
        if wake.read().is_ok() {
            answer_all(&requests, &mut settings, &mut ways)?;
        }
        for way in &mut ways {
            way.turn(&mut batch)?;
        }
    }
}

/// Sleeps until a frame, a request or a due time is there.
fn wait(ways: &[Way<'_>; 2], wake: &EventFd) -> Result<()> {
    let due = ways.iter().filter_map(|way| way.pipe.next_due_ns()).min();
    let timeout = match due {
        Some(due) => Some(TimeSpec::from(Duration::from_nanos(
            due.saturating_sub(now_ns()?),
        ))),
        None => None,
    };
    let mut fds = [
        PollFd::new(ways[0].from.as_fd(), PollFlags::POLLIN),
        PollFd::new(ways[1].from.as_fd(), PollFlags::POLLIN),
        PollFd::new(wake.as_fd(), PollFlags::POLLIN),
    ];
    match ppoll(&mut fds, timeout, None) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error).context("ppoll"),
    }
}

fn now_ns() -> Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).context("clock_gettime")?;
    Ok(Duration::from(now).as_nanos() as u64)
}

impl Way<'_> {
    /// Takes what is there, within bounds, and sends what is due.
    fn turn(&mut self, batch: &mut Batch) -> Result<()> {
        for _ in 0..BATCHES_PER_TURN {
            if self.from.receive(batch)? == 0 {
                break;
            }
            self.pipe.counters.failed += batch.oversized;
            self.carry(batch)?;
        }
        if self.pipe.next_due_ns().is_some() {
            self.pipe.due(now_ns()?, &mut self.out);
            self.flush();
        }
        Ok(())
    }

    fn carry(&mut self, batch: &Batch) -> Result<()> {
        if self.pipe.is_transparent() {
            let frames: Vec<&[u8]> = batch.frames().collect();
            self.pipe.skip(frames.len() as u64);
            self.send(&frames);
            return Ok(());
        }
        let now = now_ns()?;
        for frame in batch.frames() {
            // Before the frame, so that one whose time has come is not overtaken by it.
            self.pipe.due(now, &mut self.out);
            self.pipe.input(frame, now, &mut self.out);
        }
        self.flush();
        Ok(())
    }

    fn flush(&mut self) {
        let out = std::mem::take(&mut self.out);
        let frames: Vec<&[u8]> = out.iter().map(Vec::as_slice).collect();
        self.send(&frames);
    }

    fn send(&mut self, frames: &[&[u8]]) {
        let refused = self
            .to
            .send(frames, SEND_TRIES, || thread::sleep(SEND_PAUSE));
        self.pipe.counters.failed += refused;
        self.pipe.counters.forwarded += frames.len() as u64 - refused;
    }
}

/// Does what was asked since the last time.
fn answer_all(
    requests: &Receiver<Ask>,
    settings: &mut LinkSettings,
    ways: &mut [Way<'_>; 2],
) -> Result<()> {
    while let Ok(ask) = requests.try_recv() {
        let answer = match change(ask.request, *settings) {
            Ok((new, restart)) => {
                *settings = new;
                for way in ways.iter_mut() {
                    way.pipe.set(new, restart);
                    way.pipe.counters.missed += way.from.missed()?;
                    if ask.request == Request::Reset {
                        way.pipe.counters = Default::default();
                    }
                }
                Answer::Ok(LinkReport {
                    settings: new,
                    to_server: ways[0].pipe.counters,
                    to_client: ways[1].pipe.counters,
                })
            }
            Err(reason) => Answer::Error(reason),
        };
        // The one who asked may have gone; that is its own business.
        let _ = ask.answer.send(answer);
    }
    Ok(())
}

/// The settings after a request, and whether frames are counted from 0 again.
fn change(request: Request, present: LinkSettings) -> Result<(LinkSettings, bool), String> {
    match request {
        Request::Get => Ok((present, false)),
        Request::Reset => Ok((LinkSettings::default(), true)),
        Request::Set(change) => {
            let new = change.apply(present).map_err(|error| error.to_string())?;
            Ok((new, change.seed.is_some()))
        }
    }
}

/// Serves control connections one after the other.
fn serve_control(listener: &UnixListener, requests: &Sender<Ask>, wake: &EventFd) {
    for stream in listener.incoming() {
        let served = match stream {
            Ok(stream) => serve_one(&stream, requests, wake),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = served {
            eprintln!("control connection: {error:#}");
        }
    }
}

fn serve_one(stream: &UnixStream, requests: &Sender<Ask>, wake: &EventFd) -> Result<()> {
    stream.set_read_timeout(Some(ANSWER_WAIT))?;
    stream.set_write_timeout(Some(ANSWER_WAIT))?;
    let answer = match receive(stream) {
        Ok(request) => {
            let (answer, answered) = channel();
            requests
                .send(Ask { request, answer })
                .context("the forwarder has ended")?;
            wake.write(1).context("cannot wake the forwarder")?;
            answered
                .recv_timeout(ANSWER_WAIT)
                .context("the forwarder does not answer")?
        }
        Err(error) => Answer::Error(format!("{error:#}")),
    };
    send(stream, &answer)
}
