// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The key hash of the programs: what they compute, and keys that were made to collide.

use std::collections::HashSet;

use erb_abi::{ControlPlane as _, hash_secret};
use erb_sim_kernel::{Datapath, DatapathConfig};

use erb_sim_kernel::scene::Scene;

const SETS: u32 = 4096;

fn scene(hash_seed: u64) -> Scene {
    Scene::new(DatapathConfig {
        sets: SETS,
        hash_seed,
        ..DatapathConfig::default()
    })
}

/// The set at which the programs look for a key.
fn set_of(path: &Datapath, key: &[u8]) -> u32 {
    path.fill_begin(&[key]).expect("it runs")[0].set
}

#[test]
fn programs_and_mirror_agree_on_keys_of_every_length() {
    let scene = scene(77);
    let secret = hash_secret::of_seed(77);
    let key: Vec<u8> = (0..=255_u8).map(|n| n.wrapping_mul(151)).collect();
    for length in 1..=key.len() {
        let key = &key[..length];
        let set = (secret.hash(key) & u64::from(SETS - 1)) as u32;
        assert_eq!(set_of(&scene.path, key), set, "{length} bytes");
    }
}

/// A flip of bit 63 of a word was undone by bits 63 and 31 of the next, whatever the seed: 16 keys of
/// 64 bytes in one set.
#[test]
fn keys_whose_differences_cancelled_lie_apart() {
    let keys: Vec<Vec<u8>> = (0..16)
        .map(|choice| {
            let mut key = vec![b'k'; 64];
            for pair in (0..4).filter(|pair| choice >> pair & 1 == 1) {
                key[pair * 16 + 7] ^= 0x80;
                key[pair * 16 + 15] ^= 0x80;
                key[pair * 16 + 11] ^= 0x80;
            }
            key
        })
        .collect();
    for seed in 0..20 {
        let scene = scene(seed);
        let sets: HashSet<u32> = keys.iter().map(|key| set_of(&scene.path, key)).collect();
        assert!(sets.len() > 12, "seed {seed}: {} sets", sets.len());
    }
}
