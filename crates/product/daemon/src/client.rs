// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The other end of the control socket.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use serde::de::DeserializeOwned;

use crate::rundir::RunDir;
use crate::server::Request;
use crate::{Error, Result};

/// Time the daemon has for an answer; a fill of many keys takes longest.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// A daemon that has not answered by then may be one that never will.
const PATIENCE_MS: u16 = 1_000;

/// A process that ends closes its files one by one: its lock may be let go this much later than its socket.
const ENDING_MAX: Duration = Duration::from_secs(1);
const ENDING_LOOK: Duration = Duration::from_millis(20);

/// Sends one request to the daemon and returns its answer.
///
/// # Errors
/// [`Error::NotBoosted`] if no daemon listens, [`Error::UnderWay`] if one begins, [`Error::NoAnswer`] if it does not answer,
/// [`Error::Stuck`] if it was killed and cannot end.
pub fn request<T: DeserializeOwned>(run_dir: &RunDir, request: &Request) -> Result<T> {
    request_within(run_dir, request, ANSWER_MAX)
}

/// As [`request()`], with a time of one's own.
pub(crate) fn request_within<T: DeserializeOwned>(
    run_dir: &RunDir,
    request: &Request,
    limit: Duration,
) -> Result<T> {
    let no_answer = |reason: String| Error::NoAnswer {
        run_dir: run_dir.path().to_path_buf(),
        reason,
    };
    let mut stream = UnixStream::connect(run_dir.socket()).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => run_dir.not_permitted(),
        ErrorKind::WouldBlock => no_answer("has too much to do to take a request".to_owned()),
        _ => run_dir.unreached(),
    })?;
    let mut line = serde_json::to_vec(request).map_err(|error| no_answer(error.to_string()))?;
    line.push(b'\n');
    let sent = stream
        .set_read_timeout(Some(limit))
        .and_then(|()| stream.write_all(&line));
    if let Err(error) = sent {
        if is_closed(error.kind()) && ends(run_dir) {
            return Err(Error::NotBoosted(run_dir.path().to_path_buf()));
        }
        return Err(no_answer(format!("does not listen: {error}")));
    }
    // Who was killed and cannot end has his socket still.
    let answers = poll(
        &mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)],
        PATIENCE_MS,
    );
    if answers == Ok(0) {
        if let stuck @ Error::Stuck { .. } = run_dir.taken() {
            return Err(stuck);
        }
    }
    let mut answer = String::new();
    let read = BufReader::new(stream).read_line(&mut answer);
    // A daemon that ended with the request in its hands is as good as none.
    let closed = read
        .as_ref()
        .map_or_else(|error| is_closed(error.kind()), |_| answer.is_empty());
    if closed && ends(run_dir) {
        return Err(Error::NotBoosted(run_dir.path().to_path_buf()));
    }
    read.map_err(|error| no_answer(format!("does not answer: {error}")))?;
    serde_json::from_str(&answer)
        .map_err(|error| no_answer(format!("answered something else ({error}): {answer}")))
}

/// The other end has closed: what was in its queue is reset, what it had accepted may be.
fn is_closed(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// Whoever closed the socket lets the lock go as well.
fn ends(run_dir: &RunDir) -> bool {
    let until = Instant::now() + ENDING_MAX;
    while run_dir.is_locked() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(ENDING_LOOK);
    }
    true
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc;
    use std::thread;

    use nix::fcntl::{Flock, FlockArg};
    use nix::poll::PollTimeout;

    use super::*;

    /// A daemon that never accepts, ends 20 ms after a client came, and holds its lock for `longer`, or until the
    /// client has its answer.
    fn ask_who_ends(longer: Option<Duration>) -> Error {
        let folder = tempfile::tempdir().expect("a folder");
        let run_dir = RunDir::new(folder.path());
        let lock = std::fs::File::create(folder.path().join("lock")).expect("a file");
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).expect("a lock");
        let listener = UnixListener::bind(run_dir.socket()).expect("a socket");
        let (answered, is_answered) = mpsc::channel::<()>();
        let ends = thread::spawn(move || {
            let mut waits = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
            poll(&mut waits, PollTimeout::NONE).expect("a client");
            thread::sleep(Duration::from_millis(20));
            let closes = Instant::now();
            drop(listener);
            match longer {
                Some(longer) => thread::sleep(longer),
                None => assert!(is_answered.recv().is_err(), "it is dropped"),
            }
            drop(lock);
            closes.elapsed()
        });
        let said = request_within::<()>(&run_dir, &Request::Status, ANSWER_MAX).unwrap_err();
        drop(answered);
        let held = ends.join().expect("its end");
        if longer.is_some() && held >= ENDING_MAX {
            erb_steady::out_of_patience(format_args!("the lock was held for {held:?}"));
        }
        said
    }

    #[test]
    fn who_was_killed_with_requests_in_his_queue_is_gone() {
        let said = ask_who_ends(Some(Duration::from_millis(50)));
        assert!(matches!(said, Error::NotBoosted(_)), "{said}");
    }

    #[test]
    fn who_closes_and_stays_does_not_answer() {
        let said = ask_who_ends(None);
        assert!(matches!(said, Error::NoAnswer { .. }), "{said}");
    }
}
