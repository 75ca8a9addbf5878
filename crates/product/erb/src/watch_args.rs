// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of what only looks and tells: `erb top`, `erb report`, `erb man`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::args::Which;
use crate::top_model::List;

/// Arguments of `erb top`.
#[derive(Clone, Debug, Args)]
pub struct TopArgs {
    /// Which boost.
    #[command(flatten)]
    pub which: Which,
    /// Time between looks, 250ms to 1m.
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub every: Duration,
    /// What is listed first. Keys are sampled only while somebody looks at them.
    #[arg(long, value_enum, default_value_t = List::Outcomes)]
    pub list: List,
    /// Print frames as text instead; the first after two looks.
    #[arg(long)]
    pub batch: bool,
    /// Frames to print [default: until Ctrl-C].
    #[arg(long, value_name = "N", requires = "batch")]
    pub count: Option<u64>,
}

/// Arguments of `erb report`.
#[derive(Clone, Debug, Args)]
pub struct BugReportArgs {
    /// Which boost.
    #[command(flatten)]
    pub which: Which,
    /// Leave addresses as they are; else each but loopback's becomes a name.
    #[arg(long)]
    pub addresses: bool,
}

/// Arguments of `erb man`.
#[derive(Clone, Debug, Args)]
pub struct ManArgs {
    /// Folder to write them to; /usr/local/share/man/man1, say. It is made if it is not there.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}
