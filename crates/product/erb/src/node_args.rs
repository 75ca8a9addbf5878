// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of `erb node`, as typed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use erb_node::Role;

use crate::host_args::HostCommand;
use crate::kv_args::Who;
use crate::watch_args::WatchedArgs;

/// Commands of `erb node`.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Make a store in a file or block device. A file is written once from its beginning to its end.
    Format(FormatArgs),
    /// Serve a store over NVMe/TCP until SIGTERM or Ctrl-C. Says when it is ready, to systemd too.
    ///
    /// With --hosts the hosts of that file may connect, from everywhere. Each proves that it knows its secret, and may
    /// do what its role says. Without it whoever is on this machine may do what --role says, and nobody else can
    /// connect.
    Start(StartArgs),
    /// Say which hosts may connect, by which secrets, and what each may do.
    ///
    /// A running node reads the file twice a second. Connections of hosts that were removed, or have another secret
    /// or role, end.
    Host {
        /// What to do.
        #[command(subcommand)]
        command: HostCommand,
    },
    /// Show how the store of a running node is.
    Status(NodeStatusArgs),
    /// Recover a store without writing: whether it opens, and what is in it. No node may have it open.
    Check(CheckArgs),
    /// Make a store larger, in a file or a block device that has become larger. A node may serve it meanwhile.
    ///
    /// It may be cut off anywhere and repeated: the store is as it was, or as it should become.
    Grow(GrowArgs),
    /// End the node that has a store open, and wait for its end. A check or a growth of a store at rest goes on.
    Stop(StopArgs),
}

/// Arguments of `erb node grow`.
#[derive(Clone, Debug, Args)]
pub struct GrowArgs {
    /// The store's file or block device.
    #[arg(value_name = "FILE")]
    pub path: PathBuf,
    /// Size that it shall have, with K, M, G or T [default: that of what is there].
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
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
    /// Keep a version for so long after it was overwritten, like 30days [default: a week].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub min_age: Option<Duration>,
    /// Keep a deleted key for so long [default: 30 days].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub keep_deleted: Option<Duration>,
    /// Keep so many of each key's newest versions [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub min_count: Option<u32>,
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
    /// Name of the NVMe subsystem: nqn.YYYY-MM.DOMAIN:NAME, the domain written backwards.
    #[arg(long, value_name = "NQN", default_value = erb_node::NQN)]
    pub nqn: String,
    /// Memory of the index, with K, M or G: 72 bytes for each key, 24 for each further version. When it is
    /// used up, writes are refused.
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub memory: String,
    /// Memory of values that were read or written lately, with K, M or G. A get of one needs no disk. 0: none.
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub value_cache: String,
    /// The hosts that may connect, as `erb node host` has written them. Only its owner may read or write the file.
    #[arg(long, value_name = "FILE")]
    pub hosts: Option<PathBuf>,
    /// What whoever connects may do, without --hosts.
    #[arg(long, value_enum, default_value_t = RoleArg::Admin, conflicts_with = "hosts")]
    pub role: RoleArg,
    /// Let everybody in who can reach the address, from other machines too, without any proof.
    #[arg(long, conflicts_with = "hosts")]
    pub insecure: bool,
    /// This machine's clock is right, although the store has seen a much later or much earlier one.
    #[arg(long)]
    pub clock_ok: bool,
    /// Where it is watched.
    #[command(flatten)]
    pub watched: WatchedArgs,
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

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Self {
        match role {
            RoleArg::Reader => Self::Reader,
            RoleArg::Writer => Self::Writer,
            RoleArg::Restorer => Self::Restorer,
            RoleArg::Admin => Self::Admin,
        }
    }
}

/// Arguments of `erb node status`.
#[derive(Clone, Debug, Args)]
pub struct NodeStatusArgs {
    /// The node: nvme://HOST:PORT/NQN#NAMESPACE, of which HOST alone is needed.
    #[arg(value_name = "URL", default_value = "nvme://127.0.0.1")]
    pub url: String,
    /// Who asks.
    #[command(flatten)]
    pub who: Who,
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
    /// Say what a store that does not open has without what cannot be read of it, and what is lost by that. Nothing is
    /// written without --yes.
    #[arg(long)]
    pub repair: bool,
    /// With --repair: make it a store that opens.
    #[arg(long, requires = "repair")]
    pub yes: bool,
    /// With --yes: the machine's clock is right, whatever the store has seen.
    #[arg(long, requires = "yes")]
    pub clock_ok: bool,
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
    #[arg(long, default_value = "10s", value_parser = crate::times::parse_wait, value_name = "TIME")]
    pub wait: Duration,
}
