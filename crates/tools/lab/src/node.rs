// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lab's storage node: its store, its start, its first answer. It asks nobody for proof: nothing but the lab
//! reaches its namespace.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::lab::LabConfig;
use crate::netns;
use crate::process::{self, Process};
use crate::state::{LabState, Mode};

/// Role of the process in the state.
pub const ROLE: &str = "node";
/// The port of NVMe/TCP.
pub const PORT: u16 = 4420;
/// Written once by a format: enough for a test, and soon done.
const STORE_SIZE: &str = "256M";
/// Shards, so that what is said of several is tried.
const SHARDS: &str = "2";
/// Longest wait for the first answer.
const START_WAIT: Duration = Duration::from_secs(20);
/// Pause between two tries.
const START_PAUSE: Duration = Duration::from_millis(20);

/// What only a Redis can be told.
pub(crate) fn refuse_what_is_redis(config: &LabConfig) -> Result<()> {
    ensure!(
        config.mode == Mode::Off,
        "a node cannot be boosted: leave --mode out"
    );
    ensure!(
        config.redis_args.is_empty(),
        "a node takes no settings of Redis: leave --redis-arg and --io-threads out"
    );
    Ok(())
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

/// Makes a store, starts a node on it in the server's namespace, notes it in `state`, and waits until it answers.
pub(crate) fn start(state: &mut LabState) -> Result<()> {
    let store = state.redis_dir.join("store");
    let mut format = Command::new(&state.redis_program);
    format.args(["node", "format"]).arg(&store);
    let output = format.args(["--size", STORE_SIZE, "--shards", SHARDS, "--json"]);
    let output = output.output().context("cannot start erb")?;
    ensure!(
        output.status.success(),
        "no store can be made: {}",
        said(&output)
    );
    let log_path = state.run_dir.join("node.log");
    let mut command = netns::command(&state.server.namespace, &state.redis_program)?;
    command.args(["node", "start"]).arg(&store).args([
        "--listen",
        &format!("[::]:{PORT}"),
        "--insecure",
    ]);
    process::log_to(&mut command, &log_path)?;
    let mut child = process::detach(&mut command)
        .spawn()
        .context("cannot start erb")?;
    let explain = |error| process::with_log(error, ROLE, &log_path);
    state
        .processes
        .push(Process::describe(ROLE, child.id()).map_err(explain)?);
    state.save()?;
    wait_for_answer(state, &mut child).map_err(explain)
}

fn wait_for_answer(state: &LabState, child: &mut Child) -> Result<()> {
    let late = format!("the node did not answer within {START_WAIT:?}");
    process::await_answer(child, (START_WAIT, START_PAUSE), &late, || {
        ask(
            &state.server.namespace,
            &state.redis_program,
            state.server.ipv4.into(),
            state.redis_port,
        )
    })
}

/// Asks the node for its status from namespace `from`; an error unless it answers.
pub(crate) fn ask(from: &str, program: &Path, address: IpAddr, port: u16) -> Result<()> {
    let url = format!("nvme://{}", SocketAddr::new(address, port));
    let mut command = netns::command(from, program)?;
    let output = command
        .args(["node", "status", &url])
        .stdin(Stdio::null())
        .output()
        .context("cannot start erb")?;
    ensure!(
        output.status.success(),
        "no answer from {url}: {}",
        said(&output)
    );
    Ok(())
}
