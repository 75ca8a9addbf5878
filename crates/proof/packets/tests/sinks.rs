// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs for each of the journal's sinks, on the kernel at hand, which has no module: both load, and which of them are
//! loaded is the sink's alone. So nothing holds the module where the daemon writes.

use std::fs;
use std::path::Path;

use erb_datapath::{
    CacheSize, JournalSink, LoadOptions, Programs, Sizes, TableSize, load, promote, stage,
};
use erb_packets::fixture::private_bpffs;
use erb_packets::frame::PORT;
use nix::sched::{CloneFlags, unshare};

const LOOPBACK: u32 = 1;

/// The pinned programs that answer writes.
fn absorbing(root: &Path) -> Vec<String> {
    let pins = fs::read_dir(root).expect("the pins").flatten();
    let names = pins.filter_map(|pin| pin.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter(|name| name.ends_with("_absorb") || name.ends_with("_keep"))
        .collect();
    names.sort();
    names
}

#[test]
fn a_sink_has_programs_of_its_own_which_give_way_to_those_of_the_other() {
    unshare(CloneFlags::CLONE_NEWNET).expect("root is needed");
    let root = private_bpffs().expect("root is needed").join("erb");
    fs::create_dir(&root).unwrap();
    let sizes = Sizes {
        cache: CacheSize::from_bytes(4 << 20, u64::MAX).unwrap(),
        table: TableSize::of(64, u64::MAX).unwrap(),
        log_rings: erb_datapath::possible_cpus().unwrap(),
    };
    let options = LoadOptions {
        sizes,
        sink: JournalSink::Kmod,
        port: PORT,
        devices: vec![LOOPBACK],
        hash: erb_abi::hash_secret::of_seed(1),
    };
    load(&root, &options).expect("without the module, too");
    assert_eq!(absorbing(&root), ["prog_erb_tc_keep", "prog_erb_xdp_keep"]);
    let all = Programs::builtin();
    for (sink, name) in [(JournalSink::Daemon, "absorb"), (JournalSink::Kmod, "keep")] {
        stage(&root, sizes, sink, &all).expect("the other sink's programs load");
        assert_eq!(absorbing(&root).len(), 4, "nothing at work changes");
        promote(&root).expect("they go to work");
        let wanted = ["tc", "xdp"].map(|tier| format!("prog_erb_{tier}_{name}"));
        assert_eq!(absorbing(&root), wanted, "the former ones hold nothing");
    }
}
