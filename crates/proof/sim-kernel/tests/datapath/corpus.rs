// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every input of the fuzzers' corpus, once; and the streams that the tests know, cut anywhere.

use std::fs;
use std::path::Path;

use erb_sim_kernel::fuzz::{Target, run};

#[test]
fn the_corpus_holds() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for (name, target) in Target::ALL {
        let mut inputs = 0;
        for entry in fs::read_dir(corpus.join(name)).expect("each target has a corpus") {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            run(target, &fs::read(path).unwrap());
            inputs += 1;
        }
        assert!(inputs > 0, "{name} has no corpus");
    }
}
