// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes the book of the documents: `cargo run -p erb-book`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

/// Makes the documents a book: HTML that needs no server.
#[derive(Debug, Parser)]
struct Args {
    /// The folder of the book; one that is there is replaced.
    #[arg(long, default_value = "target/book")]
    out: PathBuf,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."));
    let made = erb_book::make(&root.canonicalize()?, &args.out)?;
    println!(
        "{} chapters, {} pages of sources: open {}",
        made.chapters.len(),
        made.sources.len(),
        args.out.join("index.html").display()
    );
    Ok(())
}
