// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of `erb kv`, as typed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::moment::Moment;

/// Commands of `erb kv`.
#[derive(Debug, Subcommand)]
pub enum KvCommand {
    /// Give a key a value; prints its version.
    Put(PutArgs),
    /// Write a key's value to standard output, byte for byte.
    Get(GetArgs),
    /// Delete a key; its history stays.
    Del(DelArgs),
    /// List keys, their versions and sizes, in the store's order.
    Ls(LsArgs),
    /// List a key's versions, newest first.
    Versions(VersionsArgs),
    /// Make one of a key's versions its value again; prints the new version.
    Restore(RestoreArgs),
    /// Take all keys with a prefix back to a moment, at once; prints an id that undoes it.
    ///
    /// Nothing is lost: what was there becomes history, and `undo` brings it back.
    Rollback(RollbackArgs),
    /// Undo a roll back. Keys that were written since are spared, unless --all.
    Undo(UndoArgs),
    /// Hold moments, so that they are kept whatever retention says.
    Snapshot {
        /// What to do.
        #[command(subcommand)]
        command: SnapshotCommand,
    },
    /// Write the keys of one moment, with their values, to a file or to standard output; or what has changed since
    /// another one.
    ///
    /// What is written meanwhile is not in it. A value that is damaged on the disk is left out and named; the exit
    /// code is 1 then.
    Export(ExportArgs),
    /// Give keys the values that an export has. It may be repeated: what is there already is not written again.
    ///
    /// An export of changes also deletes keys. It makes of what an export of its first moment has brought what there was
    /// at its last one.
    ///
    /// A file is read through first: a damaged one changes nothing. What comes by standard input is imported as it
    /// comes.
    Import(ImportArgs),
    /// Show how long versions are kept, or change that: longer at once, shorter when the min-age of now has passed.
    Retention(RetentionArgs),
    /// List what the node's scrub has found damaged on the disk since its start: keys, and places of which it is not
    /// known whose they were.
    ///
    /// The exit code is 1 if there is something. `erb kv versions` shows what a key can be restored from.
    Damaged(OnlyUrl),
}

/// Commands of `erb kv snapshot`.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Hold the present moment until it is released, or for a time; prints its version.
    Take {
        /// The node, and how to print.
        #[command(flatten)]
        node: OnlyUrl,
        /// For so long, while the node runs, like 7d [default: until it is released].
        #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
        for_time: Option<Duration>,
    },
    /// Let a moment go.
    Release {
        /// The node, and how to print.
        #[command(flatten)]
        node: OnlyUrl,
        /// The snapshot's version.
        #[arg(value_name = "VERSION")]
        version: u64,
    },
    /// List the moments that are held.
    List(OnlyUrl),
}

/// The node, and how to print.
#[derive(Clone, Debug, Args)]
pub struct OnlyUrl {
    /// The store: nvme://HOST:PORT/NQN#NAMESPACE, of which HOST alone is needed.
    #[arg(value_name = "URL")]
    pub url: String,
    /// Who asks.
    #[command(flatten)]
    pub who: Who,
    /// Print JSON. Versions are strings there.
    #[arg(long)]
    pub json: bool,
}

/// Who asks, of a node that asks for proof.
#[derive(Clone, Debug, Args)]
pub struct Who {
    /// This host's name, as the node's file of hosts has it.
    #[arg(long, value_name = "NQN", env = "ERB_HOST_NQN")]
    pub host_nqn: Option<String>,
    /// File with this host's secret; in its second line the node's, if the node has to prove itself too.
    #[arg(
        long,
        value_name = "FILE",
        env = "ERB_SECRET_FILE",
        requires = "host_nqn"
    )]
    pub secret_file: Option<PathBuf>,
}

/// A key of a node.
#[derive(Clone, Debug, Args)]
pub struct OfKey {
    /// The node.
    #[command(flatten)]
    pub node: OnlyUrl,
    /// The key, 1 to 1,024 bytes.
    #[arg(value_name = "KEY")]
    pub key: OsString,
}

/// Which version of a key.
#[derive(Clone, Debug, Args)]
#[group(multiple = false)]
pub struct Which {
    /// The one with this number.
    #[arg(long, value_name = "N")]
    pub version: Option<u64>,
    /// The one so many before the newest.
    #[arg(long, value_name = "N")]
    pub back: Option<u32>,
    /// What it was then: a version, a time like 2026-11-25T12:00:00Z, or how long ago, like 10m.
    #[arg(long, value_name = "WHEN")]
    pub as_of: Option<Moment>,
}

/// Arguments of `erb kv put`.
#[derive(Clone, Debug, Args)]
pub struct PutArgs {
    /// The key, and the node that has it.
    #[command(flatten)]
    pub of: OfKey,
    /// The value [default: what standard input has].
    #[arg(value_name = "VALUE", conflicts_with = "file")]
    pub value: Option<OsString>,
    /// The value is this file's content.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Only if the key has this version; 0: if it has no value.
    #[arg(long, value_name = "N")]
    pub if_version: Option<u64>,
}

/// Arguments of `erb kv get`.
#[derive(Clone, Debug, Args)]
pub struct GetArgs {
    /// The key, and the node that has it.
    #[command(flatten)]
    pub of: OfKey,
    /// Which version [default: the newest].
    #[command(flatten)]
    pub which: Which,
}

/// Arguments of `erb kv del`.
#[derive(Clone, Debug, Args)]
pub struct DelArgs {
    /// The key, and the node that has it.
    #[command(flatten)]
    pub of: OfKey,
    /// Only if the key has this version.
    #[arg(long, value_name = "N")]
    pub if_version: Option<u64>,
}

/// Arguments of `erb kv ls`.
#[derive(Clone, Debug, Args)]
pub struct LsArgs {
    /// The node.
    #[command(flatten)]
    pub node: OnlyUrl,
    /// What keys begin with [default: all].
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub prefix: OsString,
    /// What there was then: a version, a time, or how long ago.
    #[arg(long, value_name = "WHEN")]
    pub as_of: Option<Moment>,
    /// Only what has changed since then.
    #[arg(long, value_name = "WHEN")]
    pub changed_since: Option<Moment>,
    /// Also keys that were deleted since then.
    #[arg(long, requires = "changed_since")]
    pub deleted: bool,
}

/// Arguments of `erb kv versions`.
#[derive(Clone, Debug, Args)]
pub struct VersionsArgs {
    /// The key, and the node that has it.
    #[command(flatten)]
    pub of: OfKey,
}

/// Arguments of `erb kv restore`.
#[derive(Clone, Debug, Args)]
pub struct RestoreArgs {
    /// The key, and the node that has it.
    #[command(flatten)]
    pub of: OfKey,
    /// Which version.
    #[command(flatten)]
    pub which: Which,
}

/// Whether anything is done, and whether somebody is asked first.
#[derive(Clone, Copy, Debug, Args)]
pub struct Caution {
    /// Only count the keys that would change.
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
}

/// Arguments of `erb kv rollback`.
#[derive(Clone, Debug, Args)]
pub struct RollbackArgs {
    /// The node.
    #[command(flatten)]
    pub node: OnlyUrl,
    /// What keys begin with [default: all].
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub prefix: OsString,
    /// To what there was then: a version, a time like 2026-11-25T12:00:00Z, or how long ago, like 10m.
    #[arg(long, value_name = "WHEN", required_unless_present = "back")]
    pub to: Option<Moment>,
    /// Each key to what it was so many versions before; fewer than retention's min-count.
    #[arg(long, value_name = "N", conflicts_with = "to")]
    pub back: Option<u32>,
    /// Spare keys that were written since then.
    #[arg(long, value_name = "WHEN")]
    pub unless_written_since: Option<Moment>,
    /// Whether and how.
    #[command(flatten)]
    pub caution: Caution,
}

/// Arguments of `erb kv undo`.
#[derive(Clone, Debug, Args)]
pub struct UndoArgs {
    /// The node.
    #[command(flatten)]
    pub node: OnlyUrl,
    /// What the roll back has printed.
    #[arg(value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
    pub id: u64,
    /// The roll back's prefix, to be sure that it is the one that is meant [default: whichever it was].
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub prefix: OsString,
    /// Also keys that were written since.
    #[arg(long)]
    pub all: bool,
    /// Whether and how.
    #[command(flatten)]
    pub caution: Caution,
}

/// Arguments of `erb kv retention`.
#[derive(Clone, Debug, Args)]
pub struct RetentionArgs {
    /// The node.
    #[command(flatten)]
    pub node: OnlyUrl,
    /// Keep a version for so long after it was overwritten, like 30days.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub min_age: Option<Duration>,
    /// Keep a deleted key for so long.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub keep_deleted: Option<Duration>,
    /// Keep so many of each key's newest versions.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub min_count: Option<u32>,
    /// Lock it for so long, while the node runs: until then nobody can keep less, or release a snapshot. Nobody can take
    /// that back.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub lock_for: Option<Duration>,
    /// Lock without asking.
    #[arg(long, requires = "lock_for")]
    pub yes: bool,
}

/// Arguments of `erb kv export`.
#[derive(Clone, Debug, Args)]
pub struct ExportArgs {
    /// The node. With --json what was done is told as an object: on standard output, or if the export goes there on
    /// standard error.
    #[command(flatten)]
    pub node: OnlyUrl,
    /// What keys begin with [default: all].
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub prefix: OsString,
    /// The file [default: standard output]. It is there once it is whole, and durable.
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
    /// A file of that name may be replaced.
    #[arg(long, requires = "to")]
    pub force: bool,
    /// What there was then: a version, a time, or how long ago.
    #[arg(long, value_name = "WHEN")]
    pub as_of: Option<Moment>,
    /// Only what has changed since then, deleted keys too: what an export of that moment lacks. Its version was told
    /// when it was made.
    #[arg(long, value_name = "WHEN")]
    pub since: Option<Moment>,
}

/// Arguments of `erb kv import`.
#[derive(Clone, Debug, Args)]
pub struct ImportArgs {
    /// The node.
    #[command(flatten)]
    pub node: OnlyUrl,
    /// The file [default: standard input].
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Only read it through, and tell what is in it. The node is not asked.
    #[arg(long)]
    pub dry_run: bool,
    /// Of a damaged file import what can be read.
    #[arg(long)]
    pub damaged: bool,
}
