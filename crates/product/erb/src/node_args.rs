// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of `erb node`, as typed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

/// Commands of `erb node`.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Make a store in a file or block device. A file is written once from its beginning to its end.
    Format(FormatArgs),
    /// Serve a store over NVMe/TCP until SIGTERM or Ctrl-C. Says when it is ready, to systemd too.
    ///
    /// Whoever can connect may do what --role says. There are no secrets yet, so it listens on this machine's
    /// loopback addresses alone.
    Start(StartArgs),
    /// Show how the store of a running node is.
    Status(NodeStatusArgs),
    /// Recover a store without writing: whether it opens, and what is in it. No node may have it open.
    Check(CheckArgs),
    /// End the node that has a store open, and wait for its end.
    Stop(StopArgs),
}

/// Arguments of `erb node format`.
#[derive(Clone, Debug, Args)]
pub struct FormatArgs {
    /// The file or block device.
    #[arg(value_name = "FILE")]
    pub path: PathBuf,
    /// Size of the store, with K, M, G or T [default: that of what is there].
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    /// Parts that keys are dealt out to, 1 to 64: fixed for ever.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub shards: u16,
    /// Overwrite what is there.
    #[arg(long)]
    pub force: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `erb node start`.
#[derive(Clone, Debug, Args)]
pub struct StartArgs {
    /// The store's file or block device.
    #[arg(value_name = "FILE")]
    pub path: PathBuf,
    /// Address and port to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4420")]
    pub listen: SocketAddr,
    /// Name of the NVMe subsystem.
    #[arg(long, value_name = "NQN", default_value = erb_node::NQN)]
    pub nqn: String,
    /// Memory of the index, with K, M or G: 72 bytes for each key, 24 for each further version. When it is
    /// used up, writes are refused.
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub memory: String,
    /// What whoever connects may do.
    #[arg(long, value_enum, default_value_t = RoleArg::Admin)]
    pub role: RoleArg,
    /// This machine's clock is right, although the store has seen a much later or much earlier one.
    #[arg(long)]
    pub clock_ok: bool,
    /// Print JSON, one object a line.
    #[arg(long)]
    pub json: bool,
}

/// What a host may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleArg {
    /// Read values, versions and listings.
    Reader,
    /// Also put, delete, and restore single keys.
    Writer,
    /// Also roll back prefixes and everything, take snapshots, and go on when writers are refused for space.
    Restorer,
    /// Also release snapshots and change retention.
    Admin,
}

/// Arguments of `erb node status`.
#[derive(Clone, Debug, Args)]
pub struct NodeStatusArgs {
    /// The node: nvme://HOST:PORT/NQN#NAMESPACE, of which HOST alone is needed.
    #[arg(value_name = "URL", default_value = "nvme://127.0.0.1")]
    pub url: String,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `erb node check`.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// The store's file or block device.
    #[arg(value_name = "FILE")]
    pub path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `erb node stop`.
#[derive(Clone, Debug, Args)]
pub struct StopArgs {
    /// The store's file or block device.
    #[arg(value_name = "FILE")]
    pub path: PathBuf,
    /// How long to wait for its end, in seconds or as 500ms, 10s, 2m.
    #[arg(long, default_value = "10s", value_parser = crate::args::parse_wait, value_name = "TIME")]
    pub wait: Duration,
}
