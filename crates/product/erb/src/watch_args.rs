// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of what only looks and tells: `erb status`, `erb top`, `erb report`, `erb man`; and where a server is watched.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use erb_daemon::MetricsConfig;
use erb_watch::{Asker, Watched};

use crate::args::{Which, absolute};
use crate::top_model::List;

/// Where a boost, a storage node, or a file server is watched.
#[derive(Clone, Debug, Default, Args)]
pub struct WatchedArgs {
    /// Serve metrics for Prometheus over HTTP at this address, under /metrics; 127.0.0.1:9279, say.
    /// Beyond loopback that needs --metrics-token-file [default: nowhere].
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,
    /// File whose first line readers of metrics have to show (`Authorization: Bearer`); 16 bytes or
    /// more, readable by its owner and group alone.
    #[arg(long, value_name = "FILE", value_parser = absolute(), requires = "metrics")]
    pub metrics_token_file: Option<PathBuf>,
    /// Serve a dashboard for browsers at the address of --metrics, under /.
    #[arg(long, requires = "metrics")]
    pub dashboard: bool,
}

/// What is watched once it is served: its address is taken already.
pub struct Watching(erb_watch::Endpoint);

impl WatchedArgs {
    /// What is asked for, if anything is. details: keys and connections, too.
    pub fn config(&self, details: bool) -> Option<MetricsConfig> {
        self.metrics.map(|address| MetricsConfig {
            address,
            token_file: self.metrics_token_file.clone(),
            dashboard: self.dashboard,
            details,
        })
    }

    /// Takes the address, if one is given.
    ///
    /// # Errors
    /// It is taken, or needs a token.
    pub fn bind(&self) -> erb_daemon::Result<Option<Watching>> {
        let Some(endpoint) = self
            .config(false)
            .as_ref()
            .map(MetricsConfig::bind)
            .transpose()?
        else {
            return Ok(None);
        };
        endpoint
            .must_be_bound()
            .map_err(erb_daemon::Error::Metrics)?;
        Ok(Some(Watching(endpoint)))
    }
}

impl Watching {
    /// Says where, unless programs read what is said.
    pub fn tell(&self, args: &WatchedArgs, is_json: bool) {
        let page = if args.dashboard {
            ", a dashboard under /"
        } else {
            ""
        };
        if !is_json {
            eprintln!("metrics: http://{}/metrics{page}", self.0.address());
        }
    }

    /// Serves it from a thread of its own.
    ///
    /// # Errors
    /// The kernel gives no thread.
    pub fn serve<W: Watched>(
        self,
        status: impl Fn(Asker) -> Result<W, String> + Send + Sync + 'static,
    ) -> io::Result<()> {
        self.0.serve(status)
    }
}

/// Arguments of `erb status`.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// Which boost.
    #[command(flatten)]
    pub which: Which,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// List the tracked connections instead, each with why it is not answered, and how many there are of each reason.
    #[arg(long)]
    pub conns: bool,
    /// List commands by name instead: how many ERB answered, how many went to Redis.
    #[arg(long, conflicts_with = "conns")]
    pub commands: bool,
}

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
