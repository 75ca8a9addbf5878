// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs many seeds of profiles and says what went wrong: `soak [profile|all] [first] [count] [story]`.

use std::collections::BTreeMap;
use std::time::Instant;

use erb_sim::trace::Keep;
use erb_sim::{Options, PROFILES, Plan, run};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let name = args.get(1).map_or("all", String::as_str);
    let first: u64 = args.get(2).and_then(|text| text.parse().ok()).unwrap_or(1);
    let count: u64 = args.get(3).and_then(|text| text.parse().ok()).unwrap_or(10);
    let story = args.get(4).is_some();
    if !story {
        std::panic::set_hook(Box::new(|_| {}));
    }
    for profile in PROFILES.iter().filter(|p| name == "each" || p.name == name) {
        let start = Instant::now();
        let (mut packets, mut fails, mut reasons) =
            (0, BTreeMap::<&str, Vec<u64>>::new(), BTreeMap::new());
        let mut texts = BTreeMap::new();
        let mut virt = 0;
        for seed in first..first + count {
            let plan = Plan::new(profile, seed);
            let options = Options {
                keep: if story { Keep::All } else { Keep::Last },
                ..Options::default()
            };
            let outcome = run(&plan, &options);
            packets += outcome.packets;
            virt += outcome.virtual_ns;
            for (key, n) in outcome.coverage {
                *reasons.entry(key).or_insert(0) += n;
            }
            if let Some(v) = outcome.violation {
                fails.entry(v.check).or_default().push(seed);
                texts.entry(v.check).or_insert(format!("{seed}: {v}"));
                if story {
                    println!("{}", outcome.story);
                }
            } else if story && count == 1 {
                println!("{}", outcome.story);
            }
        }
        let t = start.elapsed().as_secs_f64();
        println!(
            "{}: {count} seeds, {packets} packets, {:.0} packets/s, {:.1} virtual s each, {:.1} s",
            profile.name,
            packets as f64 / t,
            virt as f64 / 1e9 / count as f64,
            t
        );
        for (check, seeds) in &fails {
            println!(
                "  {check}: {} seeds {:?}\n    {}",
                seeds.len(),
                &seeds[..seeds.len().min(12)],
                texts[check].chars().take(600).collect::<String>()
            );
        }
        if std::env::var("COVER").is_ok() {
            for ((kind, name), n) in &reasons {
                println!("    {kind} {name}: {n}");
            }
        }
    }
}
