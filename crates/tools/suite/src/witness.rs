// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sees what ERB answers on a connection.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use erb_lab::Boost;
use erb_report::Consumed;

/// Who says how much of a connection ERB has answered; tests play one.
pub trait Witness: Send + Sync {
    /// What ERB knows of this connection; none if it does not know it.
    fn look(&self, client: SocketAddr, server: SocketAddr) -> Option<Consumed>;
}

/// `erb consumed`, asked a line at a time; ends with this value.
pub struct Asked(Mutex<Conversation>);

struct Conversation {
    erb: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Asked {
    /// Of a boost that is at work.
    pub fn of(boost: &Boost) -> Result<Self> {
        let mut erb = boost.start(&["consumed"], Stdio::piped())?;
        let questions = erb.stdin.take().context("erb consumed reads nothing")?;
        let answers = erb.stdout.take().context("erb consumed prints nothing")?;
        Ok(Self(Mutex::new(Conversation {
            erb,
            questions,
            answers: BufReader::new(answers),
        })))
    }
}

impl Conversation {
    fn ask(&mut self, client: SocketAddr, server: SocketAddr) -> Result<Option<Consumed>> {
        // In one piece: a pipe wakes its reader for each.
        let question = format!("{client} {server}\n");
        self.questions.write_all(question.as_bytes())?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        Ok(serde_json::from_str(&answer)?)
    }
}

impl Witness for Asked {
    fn look(&self, client: SocketAddr, server: SocketAddr) -> Option<Consumed> {
        let mut conversation = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // An ERB that has gone knows no connection.
        conversation.ask(client, server).ok().flatten()
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.erb.kill();
        let _ = self.erb.wait();
    }
}
