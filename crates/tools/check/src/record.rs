// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `check record`: a proxy that prints which bytes each side sends, segment by segment.
//!
//! It shows what a client library really sends at connect, failed commands included (MONITOR
//! leaves those out).

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;

use crate::{net, resp};

/// Bytes of one read that are printed.
const SHOWN_BYTES: usize = 600;

/// Arguments of `check record`.
#[derive(Debug, Clone, Args)]
pub struct RecordArgs {
    /// Address to listen on, e.g. 127.0.0.1:7001.
    #[arg(long)]
    pub listen: String,
    /// Redis to pass everything to.
    #[arg(long)]
    pub target: String,
}

/// Passes connections on until the process is ended, one JSON line per read.
///
/// # Errors
/// If an address is wrong or cannot be bound.
pub fn run(args: &RecordArgs) -> Result<()> {
    let target = net::resolve(&args.target)?;
    let listen = net::resolve(&args.listen)?;
    let listener =
        TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    let out = Arc::new(Mutex::new(std::io::stdout()));
    for (id, client) in listener.incoming().enumerate() {
        pass(client?, target, id, &out)?;
    }
    Ok(())
}

type Out = Arc<Mutex<std::io::Stdout>>;

fn pass(client: TcpStream, target: SocketAddr, id: usize, out: &Out) -> Result<()> {
    let server =
        TcpStream::connect(target).with_context(|| format!("cannot connect to {target}"))?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    let (c2, s2) = (client.try_clone()?, server.try_clone()?);
    let (o1, o2) = (Arc::clone(out), Arc::clone(out));
    std::thread::spawn(move || pump(client, server, id, "client", &o1));
    std::thread::spawn(move || pump(s2, c2, id, "server", &o2));
    Ok(())
}

fn pump(mut from: TcpStream, mut to: TcpStream, id: usize, side: &str, out: &Out) {
    let mut buf = vec![0; 64 * 1024];
    // An error of either socket ends this direction like EOF: the proxy hides nothing but that.
    while let Ok(n @ 1..) = from.read(&mut buf) {
        let sent = resp::show(&buf[..n], SHOWN_BYTES);
        if let Ok(mut out) = out.lock() {
            let _ = writeln!(
                out,
                "{}",
                json!({"conn": id, "from": side, "bytes": n, "sent": sent})
            );
        }
        if to.write_all(&buf[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
