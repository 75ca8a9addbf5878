// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The other end of the control socket.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use serde::de::DeserializeOwned;

use crate::rundir::RunDir;
use crate::server::Request;
use crate::{Error, Result};

/// Time the daemon has for an answer; a fill of many keys takes longest.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// A daemon that has not answered by then may be one that never will.
const PATIENCE_MS: u16 = 1_000;

/// Sends one request to the daemon and returns its answer.
///
/// # Errors
/// [`Error::NotBoosted`] if no daemon listens, [`Error::NoAnswer`] if it does not answer, [`Error::Stuck`] if it was
/// killed and cannot end.
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
        _ => Error::NotBoosted(run_dir.path().to_path_buf()),
    })?;
    let mut line = serde_json::to_vec(request).map_err(|error| no_answer(error.to_string()))?;
    line.push(b'\n');
    stream
        .set_read_timeout(Some(limit))
        .and_then(|()| stream.write_all(&line))
        .map_err(|error| no_answer(format!("does not listen: {error}")))?;
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
    if answer.is_empty() && !run_dir.is_locked() {
        return Err(Error::NotBoosted(run_dir.path().to_path_buf()));
    }
    read.map_err(|error| no_answer(format!("does not answer: {error}")))?;
    serde_json::from_str(&answer)
        .map_err(|error| no_answer(format!("answered something else ({error}): {answer}")))
}
