// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the power test has in the guest: it starts and kills the node, and carries bytes from the guest's card to the
//! node, which listens on the loopback. Each line from the host is a command, each line back says what came of it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

/// Where the guest hears the host's commands.
pub const COMMANDS: u16 = 5001;
/// What comes here goes to the node.
pub const CARRIED: u16 = 5000;
const NODE: &str = "127.0.0.1:4420";

/// Arguments.
#[derive(Debug, Args)]
pub struct Inside {
    /// The program under test.
    erb: PathBuf,
}

struct Guest {
    erb: PathBuf,
    node: Option<Child>,
}

/// Serves the host until the power goes.
pub fn run(args: &Inside) -> Result<()> {
    let carried = TcpListener::bind(("0.0.0.0", CARRIED))?;
    thread::spawn(move || {
        for stream in carried.incoming().flatten() {
            thread::spawn(move || carry(stream));
        }
    });
    let mut guest = Guest {
        erb: args.erb.clone(),
        node: None,
    };
    let commands = TcpListener::bind(("0.0.0.0", COMMANDS))?;
    println!("guest: ready");
    for mut stream in commands.incoming().flatten() {
        let lines = BufReader::new(stream.try_clone()?).lines();
        for line in lines.map_while(io::Result::ok) {
            let said = match guest.obey(&line) {
                Ok(()) => "done".to_owned(),
                Err(error) => format!("failed: {error:#}"),
            };
            if writeln!(stream, "{said}").is_err() {
                break;
            }
        }
    }
    Ok(())
}

impl Guest {
    fn obey(&mut self, line: &str) -> Result<()> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["format", path, ref more @ ..] => {
                let mut command = Command::new(&self.erb);
                command.args(["node", "format", path, "--shards", "2", "--json"]);
                ended_well(command.args(more))
            }
            ["start", path] => self.start(path),
            ["kill"] => self.kill(),
            ["check", path] => ended_well(Command::new(&self.erb).args(["node", "check", path])),
            ["run", program, ref arguments @ ..] => {
                ended_well(Command::new(program).args(arguments))
            }
            _ => bail!("no such command: {line}"),
        }
    }

    fn start(&mut self, path: &str) -> Result<()> {
        ensure!(self.node.is_none(), "a node runs");
        let mut command = Command::new(&self.erb);
        command.args(["node", "start", path, "--json"]);
        let log = File::create("/run/node.log")?;
        let mut node = command.stdout(Stdio::piped()).stderr(log).spawn()?;
        let mut line = String::new();
        BufReader::new(node.stdout.take().context("its output")?).read_line(&mut line)?;
        if !line.contains("\"url\"") {
            let _ = node.wait();
            bail!("{line}{}", std::fs::read_to_string("/run/node.log")?);
        }
        self.node = Some(node);
        Ok(())
    }

    fn kill(&mut self) -> Result<()> {
        let mut node = self.node.take().context("no node runs")?;
        // It ends when the kernel has ended its writes.
        node.kill()?;
        node.wait()?;
        Ok(())
    }
}

fn ended_well(command: &mut Command) -> Result<()> {
    let output = command.output().context("it does not start")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{command:?}: {}: {said}",
        output.status
    );
    Ok(())
}

/// Both ways, until both have ended.
fn carry(host: TcpStream) -> io::Result<()> {
    let node = TcpStream::connect(NODE)?;
    for stream in [&host, &node] {
        stream.set_nodelay(true)?;
    }
    let (from, to) = (host.try_clone()?, node.try_clone()?);
    let back = thread::spawn(move || copy(node, host));
    copy(from, to);
    let _ = back.join();
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    // Whoever ends, both hear of it.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
