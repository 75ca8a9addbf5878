// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Edited copies of the data path: built at run time, loaded beside the builtin one, and caught.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use erb_sim_kernel::{DatapathConfig, Library, Xdp};

use crate::races::SEEDS;
use erb_sim_kernel::scene::{Scene, get};

pub fn mutant(file: &str, find: &str, replace: &str) -> Library {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{file}-{}", replace.len()));
    let bpf = out.join("bpf");
    Library::copy_sources(&bpf).unwrap();
    let text = fs::read_to_string(bpf.join(file)).unwrap();
    assert_eq!(text.matches(find).count(), 1, "{find} in {file}");
    fs::write(bpf.join(file), text.replace(find, replace)).unwrap();
    Library::build(&bpf, &out).unwrap_or_else(|error| panic!("{error}"))
}

fn violation(library: &Library) -> String {
    let run = || {
        let mut scene = Scene::on(library, DatapathConfig::default());
        scene.warm();
        scene.fill(b"key", b"value");
        assert_eq!(scene.send(&get(b"key")).0, Xdp::Tx);
    };
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("a violation");
    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(text.starts_with("violation: "), "{text}");
    text
}

#[test]
fn a_leaked_socket_is_caught() {
    let library = mutant("net/sock.h", "\tbpf_sk_release(r->sk);\n", "\t(void)r;\n");
    assert!(violation(&library).contains("without releasing a socket"));
}

#[test]
fn a_helper_under_a_lock_is_caught() {
    let library = mutant(
        "splice/answer.h",
        "\tlock_take(&conn->lock);\n\tif (sock_view_again",
        "\tlock_take(&conn->lock);\n\tcount(STAT_INVARIANT);\n\tif (sock_view_again",
    );
    assert!(violation(&library).contains("bpf_map_lookup_elem is called while a lock"));
}

#[test]
fn a_lock_kept_at_the_end_is_caught() {
    let library = mutant(
        "splice/answer.h",
        "\tlock_release(&conn->lock);\n\treturn reason;",
        "\tif (!reason)\n\t\treturn reason;\n\tlock_release(&conn->lock);\n\treturn reason;",
    );
    assert!(violation(&library).contains("while"));
}

/// Set in the process that shall be stopped by the sanitizer.
const VICTIM: &str = "ERB_SIM_PATH_VICTIM";

/// Edits that reach out of a packet, of a map's value, and to a socket that was released.
const OUT_OF_BOUNDS: [(&str, &str, &str); 3] = [
    (
        "splice/entry_xdp.h",
        "\tif (!c || !w)\n",
        "\t*(volatile u8 *)(long)ctx->data_end = 1;\n\tif (!c || !w)\n",
    ),
    (
        "splice/entry_xdp.h",
        "\tif (!c || !w)\n",
        "\t*((volatile u8 *)w + sizeof(*w)) = 1;\n\tif (!c || !w)\n",
    ),
    (
        "net/sock.h",
        "\tbpf_sk_release(r->sk);\n",
        "\tbpf_sk_release(r->sk);\n\t*(volatile u32 *)&r->sk->state;\n",
    ),
];

#[test]
fn the_sanitizer_sees_what_is_out_of_bounds() {
    if !erb_sim_kernel::SANITIZED {
        erb_steady::skipped("not built with sanitizers, see crates/proof/sim-kernel/sanitize");
        return;
    }
    if let Ok(number) = std::env::var(VICTIM) {
        let (file, find, replace) = OUT_OF_BOUNDS[number.parse::<usize>().unwrap()];
        let mut scene = Scene::on(&mutant(file, find, replace), DatapathConfig::default());
        scene.send(&get(b"key"));
        return;
    }
    for number in 0..OUT_OF_BOUNDS.len() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "mutants::the_sanitizer_sees_what_is_out_of_bounds",
            ])
            .env(VICTIM, number.to_string())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{number}");
        assert!(text.contains("AddressSanitizer"), "{number}: {text}");
    }
}

/// As it once was.
#[test]
fn a_lease_that_is_read_behind_the_epoch_is_caught() {
    let library = mutant(
        "redis/get.h",
        "\tload_barrier();\n\tw->h.look.cache_epoch = read_once(c->cache_epoch);\n",
        "\tw->h.look.cache_epoch = read_once(c->cache_epoch);\n\tload_barrier();\n\
         \tlease_until_ns = read_once(c->lease_until_ns);\n",
    );
    assert!(crate::races::stale_answers(&library, SEEDS) > 0);
}
