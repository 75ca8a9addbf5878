// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A storage node that is reached from another machine: a namespace of its own, over a pair of devices.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use erb_e2e::lab::erb_bin;
use erb_e2e::turn::Turn;
use erb_lab::netns;
use erb_lab::veth::{self, VethEnd};
use erb_steady::wait_until;
use tempfile::TempDir;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const WEB: &str = "nqn.2026-11.org.example:web1";
const OPS: &str = "nqn.2026-11.org.example:ops";

/// Two machines with a cable between them; they go when it does.
struct Machines {
    server: String,
    client: String,
}

impl Machines {
    fn new() -> Self {
        let name = |end| format!("erb-node-{}-{end}", std::process::id());
        let machines = Self {
            server: name("server"),
            client: name("client"),
        };
        let end = |namespace| VethEnd {
            namespace,
            device: "n0",
            mac: None,
        };
        let (server, client) = (end(&machines.server), end(&machines.client));
        for namespace in [&machines.server, &machines.client] {
            netns::create(namespace).expect("a namespace");
        }
        veth::make(server, client, None).expect("a cable");
        for (end, address) in [(server, SERVER), (client, CLIENT)] {
            let address = (IpAddr::V4(address), 24);
            veth::configure(end, &[address], &[]).expect("an address");
        }
        machines
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for namespace in [&self.server, &self.client] {
            // A test that fails has said why.
            let _ = netns::remove(namespace);
        }
    }
}

/// A node; killed when dropped.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn on(machine: &str, folder: &TempDir, words: &str) -> Command {
    let mut command = netns::command(machine, erb_bin()).expect("a command");
    command.args(words.split(' ')).current_dir(folder.path());
    command.stdin(Stdio::null());
    command
}

fn code(mut command: Command) -> Option<i32> {
    let output = command.output().expect("erb runs");
    print!("{}", String::from_utf8_lossy(&output.stderr));
    output.status.code()
}

#[test]
fn a_node_is_reached_from_another_machine_with_a_secret_and_not_without() {
    let _turn = Turn::beside();
    // On a disk: the folder of the build.
    let folder = tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).expect("a folder");
    let machines = Machines::new();
    let server = |words: &str| on(&machines.server, &folder, words);
    let client = |host: &str, secret: &str, words: &str| {
        let mut command = on(&machines.client, &folder, words);
        command
            .env("ERB_HOST_NQN", host)
            .env("ERB_SECRET_FILE", secret);
        code(command)
    };
    assert_eq!(code(server("node format store --size 160M")), Some(0));
    let start = format!("node start store --listen {SERVER}:4420");
    assert_eq!(code(server(&start)), Some(2), "nobody would need a secret");
    let add = |nqn, role, out| format!("node host add hosts {nqn} --role {role} --out {out}");
    assert_eq!(code(server(&add(WEB, "writer", "web"))), Some(0));
    assert_eq!(code(server(&add(OPS, "restorer", "ops"))), Some(0));
    let mut node = server(&format!("{start} --hosts hosts"));
    let node = node.stdout(Stdio::piped()).spawn().expect("a node");
    let mut node = Served(node);
    let mut line = String::new();
    let out = node.0.stdout.take().expect("it is piped");
    BufReader::new(out).read_line(&mut line).expect("a line");
    assert!(line.starts_with("ready"), "{line}");

    let url = format!("nvme://{SERVER}");
    let put = format!("kv put {url} conf/a good");
    let roll_back = format!("kv rollback {url} conf/ --to 1s --yes");
    assert_eq!(code(on(&machines.client, &folder, &put)), Some(28));
    assert_eq!(client(WEB, "ops", &put), Some(28));
    assert_eq!(client(WEB, "web", &put), Some(0));
    assert_eq!(client(WEB, "web", &roll_back), Some(26));
    assert_eq!(client(OPS, "ops", &roll_back), Some(0));
    assert_eq!(
        code(server(&format!("node host remove hosts {WEB}"))),
        Some(0)
    );
    wait_until(Duration::from_secs(30), "it is not let in any more", || {
        client(WEB, "web", &put) == Some(28)
    });
    assert_eq!(client(OPS, "ops", &put), Some(0));
    // Its file is the server's, so whoever is there may end it.
    assert_eq!(code(server("node stop store")), Some(0));
    assert!(node.0.wait().expect("it has ended").success());
}
