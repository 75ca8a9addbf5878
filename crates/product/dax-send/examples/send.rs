// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends a file to whoever connects: `cargo run -p dax-send --example send -- FILE 0.0.0.0:9000`, and there
//! `nc HOST 9000 >copy`. Says how each byte was sent.

use std::error::Error;
use std::fs::File;
use std::net::TcpListener;
use std::sync::Arc;

use dax_send::{MappedFile, Options, Reason, Sender};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let (Some(path), Some(address)) = (words.next(), words.next()) else {
        return Err("usage: send FILE ADDRESS:PORT".into());
    };
    let file = Arc::new(MappedFile::new(File::open(&path)?)?);
    let sender = Sender::new(Options::default());
    if let Some(lack) = sender.lacks() {
        eprintln!("{lack}");
    }
    let listener = TcpListener::bind(address)?;
    loop {
        let (stream, peer) = listener.accept()?;
        let mut connection = sender.connection(stream)?;
        connection.queue(&file, 0..file.length_bytes());
        match connection.finish() {
            Ok(()) => println!("{peer}: {} bytes", file.length_bytes()),
            Err(error) => println!("{peer}: {error}"),
        }
        let counts = sender.counts();
        println!("  zero-copy {}", counts.zero_copy_bytes);
        println!("  copied by the kernel {}", counts.kernel_copied_bytes);
        println!("  sendfile {}", counts.sendfile_bytes);
        for (reason, bytes) in Reason::ALL.iter().zip(counts.copied_bytes) {
            println!("  copied, {}: {bytes}", reason.name());
        }
    }
}
