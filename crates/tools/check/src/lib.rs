// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Workloads and checkers that drive any Redis address and decide whether what clients saw is
//! what Redis alone could have shown them.
//!
//! # Layout
//! - [`resp`], [`net`]: bytes and sockets, shared by all.
//! - [`churn`]: very many short connections with every kind of end.
//! - [`clients`]: real client libraries and what they do at connect.
//! - [`conversation`]: planned conversations, cut everywhere, compared with a plain Redis.
//! - [`crowd`]: very many connections at once, of several users and databases.
//! - [`history`]: concurrent operations on shared keys must be linearizable.
//! - [`mixed`]: reads and writes in turn on one connection, with times.
//! - [`pair`]: the same connection to a target and to a plain Redis.
//! - [`pipelines`]: batches a second beside a plain Redis over the same line.
//! - [`shadow`]: every reply byte compared with a plain Redis.
//! - [`unseen`]: how long changes that do not pass the target stay hidden behind it.
//! - [`record`]: a proxy that prints who sends what.

pub mod churn;
pub mod clients;
pub mod conversation;
pub mod crowd;
pub mod history;
pub mod mixed;
pub mod net;
pub mod pair;
pub mod pipelines;
pub mod record;
pub mod resp;
pub mod shadow;
pub mod unseen;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// The checks, as subcommands of `erb check`.
#[derive(Debug, Clone, Subcommand)]
pub enum Check {
    /// Send the same commands to a target and a plain Redis, compare every reply byte.
    Shadow(shadow::ShadowArgs),
    /// Work on shared keys from many connections and check that the history is linearizable.
    History(history::HistoryArgs),
    /// Make very many short connections that end in every way.
    Churn(churn::ChurnArgs),
    /// Mix reads and writes on one connection, strictly one after the other.
    Mixed(mixed::MixedArgs),
    /// Change hot keys past the target in every way and time how long reads there do not show it.
    Unseen(unseen::UnseenArgs),
    /// Run real client libraries and keep their connections open.
    Clients(clients::ClientsArgs),
    /// Play conversations of every class of commands, cut everywhere, on a target and a plain Redis.
    Conversation(conversation::ConversationArgs),
    /// Hold very many connections at once, of several users and databases, that come and go.
    Crowd(crowd::CrowdArgs),
    /// Send batches of SETs to a target and a plain Redis by turns, and compare their pace.
    Pipelines(pipelines::PipelinesArgs),
    /// Pass connections to a Redis and print what each side sends.
    Record(record::RecordArgs),
}

/// Runs one check. The exit code is 0 if it passed, 1 if it found something wrong.
///
/// # Errors
/// If the check could not be carried out at all (exit code 2 is the caller's).
pub fn run(check: &Check) -> Result<ExitCode> {
    match check {
        Check::Shadow(args) => shadow::run(args),
        Check::History(args) => history::run(args),
        Check::Churn(args) => churn::run(args),
        Check::Mixed(args) => mixed::run(args),
        Check::Unseen(args) => unseen::run(args),
        Check::Clients(args) => clients::run(args),
        Check::Conversation(args) => conversation::run(args),
        Check::Crowd(args) => crowd::run(args),
        Check::Pipelines(args) => pipelines::run(args),
        Check::Record(args) => record::run(args).map(|()| ExitCode::SUCCESS),
    }
}
