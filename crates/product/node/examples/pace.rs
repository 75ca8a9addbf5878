// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How fast a node puts and gets values of 8 KiB, beside the same disk without it. Rounds are interleaved; quote ratios.
//!
//! `cargo run --release -p erb-node --example pace FOLDER [clients] [seconds]`

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use erb_kv::{Client, Selector, Url};
use erb_node::{Format, Node, Options, Role};

const VALUE_BYTES: usize = 8192;
const KEYS: u64 = 5000;
const ROUNDS: usize = 5;
/// What one durable write costs the disk: the smallest that it takes.
const BLOCK: usize = 4096;

/// Puts, or gets, of so many clients: how many a second.
fn pace(url: &Url, clients: u64, time: Duration, puts: bool) -> f64 {
    let done = AtomicU64::new(0);
    let begun = Instant::now();
    thread::scope(|scope| {
        for number in 0..clients {
            let done = &done;
            scope.spawn(move || {
                let mut client = Client::connect(url).expect("the node answers");
                let value = vec![number as u8; VALUE_BYTES];
                for round in 0_u64.. {
                    if begun.elapsed() > time {
                        return;
                    }
                    let key = ((number * 7919 + round) % KEYS).to_le_bytes();
                    if puts {
                        client.put(&key, &value, None).expect("put");
                    } else if let Err(error) = client.get(&key, Selector::Head) {
                        assert!(error.status().is_some(), "{error}");
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    done.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64()
}

/// Durable writes of a block, one after the other, on the same file system: how many a second.
fn raw(folder: &Path, time: Duration) -> io::Result<f64> {
    let path = folder.join("raw");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT | libc::O_DSYNC)
        .open(&path)?;
    let memory = vec![7; 2 * BLOCK];
    let from = memory.as_ptr().align_offset(BLOCK);
    let block = &memory[from..from + BLOCK];
    (0..256).try_for_each(|at| file.write_all_at(block, at * BLOCK as u64))?;
    let (begun, mut count) = (Instant::now(), 0_u64);
    while begun.elapsed() < time {
        file.write_all_at(block, count % 256 * BLOCK as u64)?;
        count += 1;
    }
    let pace = count as f64 / begun.elapsed().as_secs_f64();
    std::fs::remove_file(path).map(|()| pace)
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    let mut words = std::env::args().skip(1);
    let folder = PathBuf::from(words.next().expect("a folder on the disk to measure"));
    let clients = words.next().and_then(|it| it.parse().ok()).unwrap_or(40);
    let seconds = words.next().and_then(|it| it.parse().ok()).unwrap_or(2);
    let (path, time) = (folder.join("pace"), Duration::from_secs(seconds));
    let wanted = Format {
        path: path.clone(),
        bytes: Some(8 << 30),
        shards: 1,
        may_overwrite: true,
    };
    erb_node::format(&wanted, &mut |_, _| {}).expect("a store");
    let node = Node::open(&Options {
        path: path.clone(),
        address: "127.0.0.1:0".parse().expect("an address"),
        nqn: erb_node::NQN.to_owned(),
        memory_bytes: 1 << 30,
        role: Role::Admin,
        is_clock_sure: false,
    });
    let node = node.expect("it opens");
    let url: Url = format!("nvme://{}", node.address())
        .parse()
        .expect("an address");
    let (stop, heard) = UnixStream::pair().expect("a pair");
    let running = thread::spawn(move || node.run(heard.as_fd()));
    let mut all: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        all[0].push(raw(&folder, time).expect("raw writes"));
        all[1].push(pace(&url, 1, time, true));
        all[2].push(pace(&url, clients, time, true));
        all[3].push(pace(&url, clients, time, false));
    }
    let [raw, one, puts, gets] = all.map(median);
    println!("durable writes of 4 KiB, raw, one at a time: {raw:.0} /s");
    println!(
        "puts of 8 KiB, 1 client: {one:.0} /s, {:.2} of raw",
        one / raw
    );
    println!(
        "puts of 8 KiB, {clients} clients: {puts:.0} /s, {:.2} of raw",
        puts / raw
    );
    println!("gets of 8 KiB, {clients} clients: {gets:.0} /s");
    drop(stop);
    running
        .join()
        .expect("it does not panic")
        .expect("it ends well");
    std::fs::remove_file(path).expect("removed");
}
