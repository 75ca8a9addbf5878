// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Words of `erb journal`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::args::{LoginArgs, absolute_text};

/// What is kept of SETs that wait for Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum JournalMode {
    /// Nothing: what waits is lost with the machine's power.
    None,
    /// What has waited for half a second, and all that waits while Redis is away.
    Late,
    /// Every SET that is answered, synced each second, for some seconds behind its drain.
    All,
}

/// Who writes the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SinkArg {
    /// The daemon, beside the drain.
    Daemon,
    /// The kernel module erb_io, to which the programs hand each SET: with --journal all. Nobody has measured yet what
    /// that is worth.
    Kmod,
}

/// Options of `erb boost` for it.
#[derive(Clone, Debug, Args)]
pub struct KeptArgs {
    /// With --mode write-back: what is kept on a disk of SETs that were answered and are not in Redis, for the case
    /// that the machine loses its power [default: late where there is /var/lib/erb or a --journal-dir, else none].
    #[arg(long, value_enum)]
    pub journal: Option<JournalMode>,
    /// Folder of that journal; one boost has it [default: /var/lib/erb/journal/IF-PORT].
    #[arg(long, value_name = "DIR", value_parser = absolute_text())]
    pub journal_dir: Option<PathBuf>,
    /// Who writes it.
    #[arg(long, value_enum, default_value_t = SinkArg::Daemon)]
    pub journal_sink: SinkArg,
}

/// What `erb journal` does.
#[derive(Debug, Subcommand)]
pub enum JournalCommand {
    /// Say whether every segment is whole, or where it ends and why, and which LSNs between them are in none. Changes
    /// nothing.
    Check(PlaceArgs),
    /// List the records: LSN, database, key, value, expiry. Changes nothing.
    Show(ShowArgs),
    /// Bring the records to Redis: of each key the last one, WHATEVER REDIS HAS THERE BY NOW.
    ///
    /// They are older than what was written since, and what Redis has of a key may be newer. `erb journal show` tells
    /// what would be written. The segments stay: `erb journal discard` deletes them. What a boost at work has is left
    /// alone, for it brings that to Redis by itself.
    Apply(ApplyArgs),
    /// Delete the segments, for good. Those of a boost at work stay.
    Discard(DiscardArgs),
}

/// Which journal.
#[derive(Clone, Debug, Args)]
pub struct PlaceArgs {
    /// Folder of the journal, or one of its segments, or a file of `erb detach --undrained-to`.
    #[arg(value_name = "DIR")]
    pub path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `erb journal show`.
#[derive(Clone, Debug, Args)]
pub struct ShowArgs {
    /// Which journal.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Tell of values their length alone.
    #[arg(long)]
    pub no_values: bool,
}

/// Arguments of `erb journal apply`.
#[derive(Clone, Debug, Args)]
pub struct ApplyArgs {
    /// Folder of the journal, or one of its segments, or a file of `erb detach --undrained-to`.
    #[arg(value_name = "DIR")]
    pub path: PathBuf,
    /// Redis's address: HOST:PORT or unix:PATH.
    #[arg(long, value_name = "ADDR")]
    pub redis: String,
    /// As whom to authenticate.
    #[command(flatten)]
    pub login: LoginArgs,
    /// Write nothing: count the keys, and ask Redis which of them it would refuse.
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
}

/// Arguments of `erb journal discard`.
#[derive(Clone, Debug, Args)]
pub struct DiscardArgs {
    /// Folder of the journal, or one of its segments, or a file of `erb detach --undrained-to`.
    #[arg(value_name = "DIR")]
    pub path: PathBuf,
    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
}
