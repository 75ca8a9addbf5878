// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands that redis.conf has renamed: what a name means is Redis's to say.

use erb_e2e::calls::{call, expect, get, set};
use erb_e2e::lab::{STATE_WAIT, TestLab, wait};

/// MGET, TYPE and FLUSHALL go by other names; EXISTS and APPEND bear the first two.
const RENAMED: [&str; 10] = [
    "--redis-arg",
    "rename-command=MGET mm",
    "--redis-arg",
    "rename-command=EXISTS mget",
    "--redis-arg",
    "rename-command=TYPE kind",
    "--redis-arg",
    "rename-command=APPEND type",
    "--redis-arg",
    "rename-command=FLUSHALL wipe",
];

#[test]
fn names_mean_what_redis_says() {
    let lab = TestLab::boosted_with("renamed", &RENAMED);
    let (mut writer, mut reader) = (lab.client(), lab.client());
    let redis = lab.status().redis;
    assert!(redis.commands > 200, "{redis:?}");
    let off = redis.fast_off.join(" ");
    assert!(off.contains("MGET (the name belongs to EXISTS"), "{off}");
    assert!(off.contains("EXISTS (Redis has no command"), "{off}");
    for name in ["mget", "exists", "type", "append", "flushall"] {
        assert!(redis.renamed.iter().any(|one| one == name), "{redis:?}");
    }
    set(&mut writer, "k", "old");
    lab.heat(&mut reader, "k");
    assert_eq!(call(&mut reader, "MGET k"), ":1\r\n");
    assert_eq!(call(&mut reader, "MM k"), "*1\r\n$3\r\nold\r\n");
    assert!(call(&mut reader, "EXISTS k").starts_with("-ERR unknown"));
    lab.heat(&mut reader, "k");
    expect(&mut writer, "TYPE k er", ":5\r\n");
    assert_eq!(get(&mut reader, "k").as_deref(), Some("older"));
    lab.heat(&mut reader, "k");
    expect(&mut writer, "WIPE", "+OK\r\n");
    assert_eq!(get(&mut reader, "k"), None);
}

#[test]
fn without_strlen_nothing_is_answered() {
    let words = [
        "--direct",
        "--redis-arg",
        "rename-command=STRLEN len",
        "--redis-arg",
    ];
    let words = [&words[..], &["rename-command=MSET strlen"]].concat();
    let mut lab = TestLab::up("renamed-strlen", &words);
    lab.use_run_dir("/run/erb/e2e-renamed-strlen");
    lab.boost(&["--dev", "s0"]);
    wait(STATE_WAIT, || {
        let status = lab.status();
        let said = status.not_serving.join(" ");
        let why = said.contains("Redis knows no STRLEN under this name");
        why.then_some(()).ok_or(said)
    });
    let mut client = lab.client();
    expect(&mut client, "STRLEN k v", "+OK\r\n");
    for _ in 0..20 {
        assert!(call(&mut client, "STRLEN k").starts_with("-ERR wrong number"));
        expect(&mut client, "LEN k", ":1\r\n");
        expect(&mut client, "GET k", "$1\r\nv\r\n");
    }
    assert_eq!(lab.counters().get("FAST_PACKET"), 0);
}
