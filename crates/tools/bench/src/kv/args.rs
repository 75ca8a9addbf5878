// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of `erb bench kv`.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use super::{VALUE_BYTES, WRITERS};

/// What is measured.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// Durable puts.
    Durable,
    /// Bytes that puts write, by how many are under way.
    Amplified,
    /// Gets from flash.
    Flash,
    /// What versions cost.
    Versions,
    /// What collecting costs.
    Collected,
    /// Roll backs, of `--paper`.
    Rolled,
}

/// `erb bench kv`.
#[derive(Args, Debug, Clone)]
pub struct KvArgs {
    /// A folder on the disk to measure. What is made there is gone afterwards.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// All experiments of the VNetKV paper too: versions against none in a large key space, versions back, roll backs.
    #[arg(long)]
    pub paper: bool,
    /// Only this experiment.
    #[arg(long, value_name = "NAME", value_enum)]
    pub only: Option<Experiment>,
    /// Rounds, in each of which everything that is compared runs once.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Puts of each of 40 connections in a round, values of 8 KiB; other work of a round has its size by it.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub pairs: u32,
    /// Keys of the small key space.
    #[arg(long, default_value_t = 5000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub small_keys: u32,
    /// Keys of the large key space.
    #[arg(long, default_value_t = 400_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub large_keys: u32,
    /// Keys that are rolled back at once, with values of 8 KiB, and beside them a tenth as many.
    #[arg(long, default_value_t = 50_000, value_name = "N", value_parser = clap::value_parser!(u32).range(10..))]
    pub roll_back_keys: u32,
    /// MiB of the store that is overwritten while it is 80 % full.
    #[arg(long, default_value_t = 508, value_name = "MIB", value_parser = clap::value_parser!(u32).range(100..=4096))]
    pub full_mib: u32,
    /// How often they are rolled back.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=100_000))]
    pub times: u32,
    /// RocksDB's db_bench: a program; `debian`: Debian's, unpacked beside this program and not installed; `none`
    /// [default: the installed one, else Debian's].
    #[arg(long, value_name = "PROGRAM")]
    pub db_bench: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

const MIB: u64 = 1 << 20;

impl KvArgs {
    /// Whether an experiment is asked for.
    pub(super) fn runs(&self, experiment: Experiment) -> bool {
        self.only.map_or_else(
            || self.paper || experiment != Experiment::Rolled,
            |only| only == experiment,
        )
    }

    pub(super) fn check(&self) -> Result<()> {
        ensure!(
            self.folder.is_dir(),
            "{}: no folder is there",
            self.folder.display()
        );
        Ok(())
    }

    /// Bytes of the store that is overwritten while it is full.
    pub(super) fn full_bytes(&self) -> u64 {
        u64::from(self.full_mib) * MIB
    }

    /// Puts of 8 KiB in a round.
    pub(super) fn puts(&self) -> u64 {
        u64::from(self.pairs) * WRITERS as u64
    }

    /// Bytes of a store that takes so many values and keys beside each other, with room to spare.
    pub(super) fn store_bytes(values: u64, keys: u64) -> u64 {
        let bytes = values * (VALUE_BYTES as u64 + 128) + keys * 256;
        (bytes + bytes / 3 + 160 * MIB).next_multiple_of(MIB)
    }

    /// Values that each of two stores takes for the comparison of versions with none.
    pub(super) fn version_values(&self) -> u64 {
        let spaces = if self.paper { 2 } else { 1 };
        u64::from(self.rounds) * self.puts() * spaces
    }

    /// Bytes of disk at the same time, at most.
    pub(super) fn needed_bytes(&self) -> u64 {
        let rounds = u64::from(self.rounds);
        let fill = Self::store_bytes((rounds + 1) * self.puts(), 0);
        let both = 2 * Self::store_bytes(self.version_values(), u64::from(self.large_keys));
        let rolled = Self::store_bytes(u64::from(self.roll_back_keys) * 25 / 10, 0);
        let collected = super::collected::needed_bytes(self);
        let amplified = super::amplified::needed_bytes(self);
        let most = fill.max(both).max(collected).max(amplified);
        let most = most.max(if self.runs(Experiment::Rolled) {
            rolled
        } else {
            0
        });
        most + 4 * self.puts() * VALUE_BYTES as u64 + 512 * MIB
    }
}
