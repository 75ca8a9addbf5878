// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was answered is named once (`erb_touched`): for a Redis that evicts by use.

use std::collections::BTreeSet;

use erb_abi::{self as abi, ControlPlane as _};
use erb_packets::fixture::{self, Bench};
use erb_packets::scene::{Scene, V4, XDP_TX};

use crate::get;

/// Everything that was answered since the last call.
fn touched(bench: &Bench) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let mut from = 0;
    for _ in 0..100_000 {
        let found = bench.dp.touched(from).expect("erb_touched");
        assert!(found.keys.len() <= abi::FILL_BATCH as usize);
        for (db, key) in found.keys {
            assert_eq!(db, 0);
            let key = String::from_utf8(key).expect("a key of this test");
            assert!(keys.insert(key.clone()), "{key} twice");
        }
        from = found.next_set;
        if from == 0 {
            return keys;
        }
    }
    panic!("the walk does not end");
}

#[test]
fn what_was_answered_is_named_once() {
    fixture::with(|bench| {
        touched(bench);
        let long = "k".repeat(abi::KEY_BYTES_MAX as usize);
        let mut names: Vec<String> = (0..100).map(|number| format!("key{number}")).collect();
        names.push(long);
        for (number, name) in names.iter().enumerate() {
            // Of small and of larger slots; the frame has room for each reply.
            let value = vec![b'v'; [1, 60, 130, 180][number % 4]];
            bench.fill(name.as_bytes(), &value, 0);
        }
        assert!(touched(bench).is_empty(), "filled is not answered");
        let mut scene = Scene::connect(bench, V4);
        scene.make_spliced();
        let mut answered = BTreeSet::new();
        for name in names.iter().rev().step_by(2) {
            let request = scene.segment(&get(name));
            let outcome = scene.up(&request);
            assert_eq!(outcome.verdict, XDP_TX, "{name}");
            scene.take_answer(&outcome);
            answered.insert(name.clone());
        }
        scene.bench.fill_absent(b"absent");
        let request = scene.segment(&get("absent"));
        let outcome = scene.up(&request);
        assert_eq!(outcome.verdict, XDP_TX, "there is nothing to name");
        scene.take_answer(&outcome);
        let found = touched(scene.bench);
        let again = touched(scene.bench);
        assert!(answered.len() > abi::FILL_BATCH as usize, "{answered:?}");
        assert_eq!(found, answered);
        assert_eq!(again, BTreeSet::new());
    });
}
