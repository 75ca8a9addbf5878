// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What versions cost: rewriting keys in a store that keeps all of them, and in one that keeps none.

use anyhow::Result;
use erb_kv::crowd::{Ask, Crowd};
use erb_node::{NEW_RETENTION, Retention};

use super::args::KvArgs;
use super::local;
use super::node::{self, Running};
use super::report::{Rounds, Row};
use super::{Bench, VALUE_BYTES, WRITERS};

/// Nothing but the newest.
pub const NOTHING: Retention = Retention {
    min_age_us: 0,
    keep_deleted_us: 0,
    min_count: 1,
};
/// What keys have before they are rewritten: the index is what a key space makes large.
const FIRST_BYTES: usize = 16;

/// Turns of both in a round, a multiple of four.
const SLICES: u64 = 16;

struct Space {
    name: &'static str,
    keys: u64,
    paper: &'static str,
}

fn spaces(args: &KvArgs) -> Vec<Space> {
    let small = Space {
        name: "small",
        keys: args.small_keys.into(),
        paper: "0 % (846 and 845 MB/s)",
    };
    let large = Space {
        name: "large",
        keys: args.large_keys.into(),
        paper: "-8.5 to -32 %",
    };
    if args.paper {
        vec![small, large]
    } else {
        vec![small]
    }
}

pub fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let args = bench.args;
    let spaces = spaces(args);
    let most = spaces.iter().map(|space| space.keys).max().unwrap_or(0);
    let bytes = KvArgs::store_bytes(args.version_values(), most);
    let folder = bench.folder.path().to_owned();
    let kept = Running::keeping(&folder, "kept", bytes, NEW_RETENTION)?;
    let none = Running::keeping(&folder, "none", bytes, NOTHING)?;
    for space in spaces {
        bench.begins(&format!(
            "rewriting {} keys with versions, and without",
            space.keys
        ))?;
        for node in [&kept, &none] {
            node.fill(space.keys, local::key, &[0x11; FIRST_BYTES])?;
        }
        one(
            bench,
            &space,
            [&mut kept.crowd(WRITERS)?, &mut none.crowd(WRITERS)?],
        )?;
    }
    Ok(())
}

fn one(bench: &mut Bench<'_>, space: &Space, crowds: [&mut Crowd; 2]) -> Result<()> {
    let puts = bench.args.puts();
    let value = vec![0x5a; VALUE_BYTES];
    let [kept, none] = crowds;
    let mut both: [Rounds; 2] = Default::default();
    // An odd step that has no factor of the number of keys in it goes through all of them.
    let key = |number: u64| local::key(number * 7919 % space.keys);
    for round in 0..u64::from(bench.args.rounds) {
        bench.interrupt.check()?;
        let ask = |number: u64| Ask::Put {
            key: key(round * puts + number),
            value: value.clone(),
        };
        let mut seconds = [0.0; 2];
        for slice in 0..SLICES {
            // In turn, and who is first has it no better: what else the machine does meets both.
            let which = usize::from([1, 2].contains(&((slice + round) % 4)));
            let crowd = if which == 0 { &mut *kept } else { &mut *none };
            let puts = (puts * 2 / SLICES).max(1);
            seconds[which] +=
                puts as f64 / node::many(crowd, puts, |number| ask(slice * puts + number))?;
        }
        let puts = (puts * 2 / SLICES).max(1) * SLICES / 2;
        for (of, seconds) in both.iter_mut().zip(seconds) {
            of.push((puts * VALUE_BYTES as u64) as f64 / 1e6 / seconds);
        }
    }
    let [kept, none] = &both;
    let what = format!(
        "rewriting {} keys ({}), 8 KiB x 40, versions kept",
        space.keys, space.name
    );
    bench.rows.push(
        Row::new(what, "MB/s", kept)
            .beside("none kept: min-count 1, min-age 0", kept, none)
            .paper(space.paper)
            .bar("<= 5 % less", |ratio| ratio >= 0.95),
    );
    Ok(())
}
