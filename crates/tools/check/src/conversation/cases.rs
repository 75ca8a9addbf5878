// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases of the protocol and of strings, by topic. `{p}` is the case's key prefix, `{p}k` holds
//! "value" at the start.

use super::case::{Case, Mask};

/// These cases.
pub fn all() -> Vec<Case> {
    [
        syntax(),
        broken(),
        sizes(),
        segments(),
        connection(),
        listening(),
        transactions(),
        writes(),
        types(),
        databases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Odd but valid requests.
fn syntax() -> Vec<Case> {
    vec![
        Case::new("inline")
            .raw("PING\r\n", 1)
            .raw("GET {p}k\r\n", 1)
            .raw("GET {p}k\n", 1)
            .raw("  get   {p}k  \r\n", 1)
            .raw("SET {p}k \"a \\r\\n\\x00b\"\r\n", 1)
            .raw("SET {p}k 'single'\r\n", 1)
            .cmd("GET {p}k")
            .raw("GET {p}k\r\nPING\r\nGET {p}k\r\n", 3),
        Case::new("empty-lines")
            .raw("\r\n", 0)
            .cmd("GET {p}k")
            .raw("\r\n\r\n\n", 0)
            .raw("\r\nPING\r\n\r\n", 1)
            .cmd("GET {p}k"),
        Case::new("empty-arrays")
            .raw("*0\r\n", 0)
            .cmd("GET {p}k")
            .raw("*-1\r\n", 0)
            .cmd("GET {p}k")
            .raw("*0\r\n*1\r\n$4\r\nPING\r\n*-1\r\n*0\r\n", 1)
            .raw("*-7\r\n*1\r\n$4\r\nPING\r\n", 1)
            .cmd("GET {p}k"),
        Case::new("case-of-names").cmds(
            "get {p}k ; Get {p}k ; gEt {p}k ; ping ; PiNg ; set {p}k lower ; \
                GET {p}k ; incr {p}n ; InCr {p}n ; del {p}n",
        ),
        Case::new("arity").cmds(
            "GET ; GET {p}k {p}k ; SET {p}k ; SET ; PING a b ; DEL ; INCR ; \
                INCR {p}k 1 ; EXPIRE {p}k ; GET {p}k ; PING hello",
        ),
        // No name with a NUL: Redis hashes all of it but compares up to the NUL, so "GET\0" is GET in
        // about one process of 500, by that process's hash seed (server.c, dictSdsKeyCaseCompare).
        Case::new("unknown")
            .cmds("NOSUCH {p}k ; GETT {p}k ; PINGG ; CLIENT NOSUCH ; GET {p}k")
            .args(&["PING "])
            .args(&[""])
            .args(&["", "{p}k"])
            .cmd("GET {p}k"),
        // Redis skips two bytes after a bulk and one after CR without looking at them.
        Case::new("separators-unchecked")
            .raw("*1\r\n$4\r\nPINGxy*1\r\n$4\r\nPING\r\n", 2)
            .raw("*1\rx$4\ryPING\r\n", 1)
            .raw("*2\r\n$4\r\nECHOab$5\r\nhellocd", 1)
            .cmd("GET {p}k"),
        Case::new("syntax-errors").cmds(
            "SET {p}k v EX 0 ; SET {p}k v EX x ; SET {p}k v NX XX ; \
                SETEX {p}k 0 v ; SET {p}k v NOSUCH ; INCRBY {p}k x ; INCR {p}k ; \
                EXPIRE {p}k x ; GETEX {p}k EX 0 ; SETRANGE {p}k -1 x ; \
                SETRANGE {p}k 600000000 x ; GET {p}k",
        ),
        Case::new("integers").hot("{p}n").cmds(
            "SET {p}n 9223372036854775806 ; INCR {p}n ; INCR {p}n ; GET {p}n ; \
                DECR {p}n ; INCRBYFLOAT {p}n 0.5 ; GET {p}n ; INCR {p}n ; \
                SET {p}n 007 ; INCR {p}n ; SET {p}n -1 ; INCR {p}n ; \
                INCRBY {p}n -5 ; DECRBY {p}n 3 ; GET {p}n",
        ),
    ]
}

/// Requests that Redis answers with a protocol error before it closes.
fn broken() -> Vec<Case> {
    let broken = |name, bytes: &str| {
        Case::new(name)
            .cmd("GET {p}k")
            .raw(bytes, 1)
            .closed()
            .cmd("GET {p}k")
    };
    vec![
        broken("bad-bulk-length", "*2\r\n$3\r\nGET\r\n$-5\r\n"),
        broken("bad-bulk-number", "*1\r\n$x\r\n"),
        broken("bulk-leading-zero", "*1\r\n$04\r\n"),
        broken("bulk-plus-sign", "*1\r\n$+4\r\n"),
        broken("bulk-too-long", "*1\r\n$5368709120\r\n"),
        broken("no-dollar", "*2\r\n+GET\r\n"),
        broken("bad-array-number", "*x\r\n"),
        broken("array-too-long", "*2147483648\r\n"),
        broken("unbalanced-quotes", "SET {p}k \"open\r\n"),
        Case::new("good-then-broken")
            .raw("GET {p}k\r\nPING\r\n*1\r\n$y\r\n", 3)
            .closed()
            .cmd("GET {p}k"),
        Case::new("write-then-broken")
            .raw("SET {p}k new\r\n*1\r\n$y\r\n", 2)
            .closed()
            .cmd("GET {p}k"),
        Case::new("quit")
            .cmd("GET {p}k")
            .cmd("QUIT")
            .closed()
            .raw("quit\r\n", 1)
            .closed(),
    ]
}

/// Sizes at and around limits, and every byte value.
fn sizes() -> Vec<Case> {
    let mut empty_key = Case::new("empty-key").alone();
    // The empty key is the same for everybody: deleted at the end.
    empty_key = empty_key.hot("").args(&["SET", "", "v"]).args(&["GET", ""]);
    empty_key = empty_key
        .args(&["INCR", ""])
        .args(&["DEL", ""])
        .args(&["GET", ""]);

    let mut keys = Case::new("key-lengths");
    for extra in [1, 82, 239, 240, 241, 284, 532, 2032] {
        let key = [b"{p}".to_vec(), vec![b'K'; extra]].concat();
        keys = keys
            .hot(key.clone())
            .args(&[&b"SET"[..], &key, b"v"])
            .args(&[&b"GET"[..], &key]);
    }
    let mut values = Case::new("value-sizes");
    let sizes = [
        0, 1, 31, 64, 100, 128, 150, 200, 255, 256, 400, 511, 512, 513, 1000, 1400, 1448, 1460,
        2000, 2048, 4096, 16_384, 65_535, 65_536,
    ];
    for size in sizes {
        let value: Vec<u8> = (0..size).map(|i| (i * 7 + size) as u8).collect();
        values = values
            .args(&[&b"SET"[..], b"{p}k", &value])
            .cmd("GET {p}k")
            .cmd("STRLEN {p}k");
    }
    let every_byte: Vec<u8> = (0..=255).collect();
    let binary_key = [b"{p}\r\n\0\xff$-1\r\n".to_vec(), (1..60).collect()].concat();
    let binary = Case::new("binary")
        .hot(binary_key.clone())
        .args(&[&b"SET"[..], &binary_key, &every_byte])
        .args(&[&b"GET"[..], &binary_key])
        .args(&[&b"SET"[..], b"{p}k", b"+OK\r\n$-1\r\n*1\r\n"])
        .cmd("GET {p}k")
        .args(&[&b"PING"[..], &every_byte])
        .args(&[&b"DEL"[..], &binary_key]);
    vec![empty_key, keys, values, binary]
}

/// How requests lie in segments.
fn segments() -> Vec<Case> {
    let pings = ["PING"; 64].join(" ; ");
    let gets = ["GET {p}k"; 40].join(" ; ");
    vec![
        Case::new("cut-get").every_cut("GET {p}k").cmd("GET {p}k"),
        Case::new("cut-ping").every_cut("PING").cmd("PING"),
        Case::new("cut-set")
            .every_cut("SET {p}k some")
            .cmd("GET {p}k"),
        Case::new("cut-incr").every_cut("INCR {p}n").cmd("GET {p}n"),
        Case::new("many-in-one")
            .segment(&pings)
            .segment(&gets)
            .segment("GET {p}k ; SET {p}k two ; GET {p}k ; DEL {p}k ; GET {p}k ; PING")
            .segment("SET {p}k three ; GET {p}k")
            .segment("GET {p}k ; INCR {p}n ; GET {p}n ; GET {p}k ; NOSUCH ; GET {p}k")
            .segment("GET {p}k ; LPUSH {p}l a ; GET {p}l ; PING x ; GET {p}absent"),
        Case::new("whole-and-part")
            .raw("*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPI", 1)
            .raw("NG\r\n", 1)
            .raw("GET {p}k\r\nGE", 1)
            .raw("T {p}k\r\nPING\r\n", 2)
            .cmd("GET {p}k"),
    ]
}

/// Commands that change what a connection is.
fn connection() -> Vec<Case> {
    vec![
        Case::new("hello")
            .cmd("GET {p}absent")
            .masked("HELLO", Mask::HelloId)
            .masked("HELLO 3", Mask::HelloId)
            .cmds("GET {p}k ; GET {p}absent ; PING ; HGETALL {p}absent")
            .masked("HELLO 2", Mask::HelloId)
            .cmds("GET {p}absent ; HELLO 4 ; HELLO x ; GET {p}k")
            .masked("HELLO 3 SETNAME edge", Mask::HelloId)
            .cmds("CLIENT GETNAME ; GET {p}absent ; RESET ; GET {p}absent"),
        Case::new("client-commands")
            .masked("CLIENT ID", Mask::Number)
            .cmds(
                "CLIENT SETNAME edge ; CLIENT GETNAME ; CLIENT SETINFO LIB-NAME x ; \
                client setinfo LIB-VER 1 ; CLIENT MAINT_NOTIFICATIONS ON ; \
                GET {p}k ; CLIENT SETNAME {p}x ; CLIENT NO-EVICT on ; \
                CLIENT UNPAUSE ; GET {p}k",
            ),
        Case::new("reply-off")
            .cmd("GET {p}k")
            .silent("CLIENT REPLY OFF")
            .silent("SET {p}k hidden")
            .silent("GET {p}k")
            .silent("PING")
            .cmd("CLIENT REPLY ON")
            .cmd("GET {p}k"),
        Case::new("reply-skip")
            .silent("CLIENT REPLY SKIP")
            .silent("SET {p}k skipped")
            .cmd("GET {p}k")
            .raw("CLIENT REPLY SKIP\r\nGET {p}k\r\nPING\r\nGET {p}k\r\n", 2)
            .cmd("GET {p}k"),
        Case::new("auth").cmds("AUTH nothing ; AUTH default wrong ; ACL WHOAMI ; GET {p}k"),
        Case::new("handshakes")
            .raw("*2\r\n$5\r\nhello\r\n$1\r\n9\r\n", 1)
            .segment("CLIENT SETINFO LIB-NAME a ; CLIENT SETINFO LIB-VER 1 ; GET {p}k")
            .cmds("COMMAND COUNT ; COMMAND DOCS get ; SELECT 0 ; ECHO x ; GET {p}k"),
        Case::new("reset")
            .cmds("MULTI ; SET {p}k never ; RESET ; GET {p}k ; SELECT 1 ; RESET")
            .cmds("GET {p}k ; RESET ; PING"),
    ]
}

/// Connections that get what they did not ask for, or wait.
fn listening() -> Vec<Case> {
    vec![
        Case::new("subscribe")
            .cmd("SUBSCRIBE {p}ch")
            .cmds("PING ; PING x ; GET {p}k")
            .other("PUBLISH {p}ch message")
            .receive(1)
            .raw("SUBSCRIBE {p}a {p}b\r\n", 2)
            .raw("UNSUBSCRIBE {p}ch {p}a {p}b\r\n", 3)
            .cmds("PING ; GET {p}k ; PSUBSCRIBE {p}*")
            .other("PUBLISH {p}x m")
            .receive(1)
            .cmds("RESET ; PING ; GET {p}k"),
        Case::new("subscribe-resp3")
            .masked("HELLO 3", Mask::HelloId)
            .cmd("SUBSCRIBE {p}ch")
            .cmds("PING ; GET {p}k ; GET {p}k")
            .other("PUBLISH {p}ch message")
            .receive(1)
            .cmds("UNSUBSCRIBE {p}ch ; GET {p}k"),
        Case::new("tracking")
            .masked("HELLO 3", Mask::HelloId)
            .cmds("CLIENT TRACKING ON ; GET {p}k")
            .other("SET {p}k changed")
            .receive(1)
            .cmd("GET {p}k")
            .other("DEL {p}k")
            .receive(1)
            .cmds("GET {p}k ; CLIENT TRACKING OFF ; GET {p}k"),
        Case::new("monitor")
            .stopping()
            .cmd("MONITOR")
            .other("SET {p}k seen")
            .monitored(1)
            .other("DEL {p}k")
            .monitored(1),
        Case::new("blocking")
            .cmds("BLPOP {p}l 0.05 ; GET {p}k")
            .silent("BLPOP {p}l 0")
            .other("RPUSH {p}l a b")
            .receive(1)
            .cmds("LRANGE {p}l 0 -1 ; GET {p}k")
            .raw(
                "BLPOP {p}none 0.1\r\nGET {p}k\r\nSET {p}k after\r\nGET {p}k\r\n",
                4,
            )
            .silent("BRPOPLPUSH {p}none {p}k2 0")
            .other("RPUSH {p}none x")
            .receive(1)
            .cmds("WAIT 0 0 ; GET {p}k"),
    ]
}

/// MULTI, WATCH, scripts.
fn transactions() -> Vec<Case> {
    vec![
        Case::new("multi")
            .cmds("MULTI ; GET {p}k ; PING ; SET {p}k inside ; GET {p}k")
            .other("GET {p}k")
            .cmds("EXEC ; GET {p}k ; MULTI ; SET {p}k no ; DISCARD ; GET {p}k ; EXEC")
            .segment("MULTI ; SET {p}k x ; INCR {p}n ; EXEC ; GET {p}k"),
        Case::new("multi-errors").cmds(
            "MULTI ; GET ; SET {p}k no ; EXEC ; GET {p}k ; MULTI ; INCR {p}k ; \
                SET {p}k yes ; EXEC ; GET {p}k ; MULTI ; MULTI ; DISCARD ; DISCARD ; \
                WATCH ; GET {p}k",
        ),
        Case::new("watch")
            .cmds("WATCH {p}k ; GET {p}k")
            .other("SET {p}k disturbed")
            .cmds("MULTI ; SET {p}k never ; EXEC ; GET {p}k")
            .cmds("WATCH {p}k ; MULTI ; SET {p}k kept ; EXEC ; GET {p}k")
            .cmds("WATCH {p}k ; UNWATCH")
            .other("SET {p}k disturbed")
            .cmds("MULTI ; GET {p}k ; EXEC"),
        Case::new("scripts")
            .args(&[
                "EVAL",
                "return redis.call('SET',KEYS[1],ARGV[1])",
                "1",
                "{p}k",
                "evaled",
            ])
            .args(&[
                "EVAL",
                "return redis.call('SET',ARGV[1],'undeclared')",
                "0",
                "{p}k",
            ])
            .args(&["EVAL", "return redis.call('GET',KEYS[1])", "1", "{p}k"])
            .args(&["EVAL", "return {1,'a',{2},false}", "0"])
            .args(&["EVAL", "return redis.error_reply('MY error')", "0"])
            .args(&[
                "EVAL_RO",
                "return redis.call('SET',KEYS[1],'x')",
                "1",
                "{p}k",
            ])
            .cmd("EVALSHA ffffffffffffffffffffffffffffffffffffffff 0")
            .args(&["SCRIPT", "LOAD", "return redis.call('DEL',KEYS[1])"])
            .args(&["EVAL", "redis.call('DEL',KEYS[1]) return 1", "1", "{p}k"])
            .cmd("GET {p}k"),
    ]
}

/// Every way to change or remove a string.
fn writes() -> Vec<Case> {
    vec![
        Case::new("string-writes").cmds(
            "SET {p}k a ; APPEND {p}k bc ; GETSET {p}k d ; SETRANGE {p}k 3 zz ; \
                SETBIT {p}k 1 1 ; GETRANGE {p}k 0 1 ; SETNX {p}k no ; \
                SET {p}k e XX ; SET {p}k f GET ; SET {p}k g NX ; \
                SET {p}k h KEEPTTL ; MSET {p}k i {p}2 j ; MSETNX {p}k no {p}3 no ; \
                GETDEL {p}k ; GETDEL {p}k ; SETNX {p}k back ; BITOP NOT {p}k {p}2 ; \
                BITFIELD {p}k SET u8 0 65 ; GETEX {p}k ; GETEX {p}k PERSIST ; \
                SUBSTR {p}k 0 0 ; LCS {p}k {p}2 ; GET {p}k",
        ),
        Case::new("deletes").cmds(
            "DEL {p}k ; SET {p}k a ; UNLINK {p}k ; SET {p}k b ; DEL {p}k {p}2 ; \
                SET {p}k c ; EXPIRE {p}k 0 ; SET {p}k d ; EXPIRE {p}k -1 ; \
                SET {p}k e ; PEXPIREAT {p}k 1 ; SET {p}k f EXAT 1 ; SET {p}k g ; \
                GETEX {p}k EXAT 1 ; SET {p}k h ; DEL {p}none ; \
                EXISTS {p}k {p}k {p}none ; GET {p}k",
        ),
        Case::new("expiry")
            .cmds(
                "EXPIREAT {p}k 4102444800 ; EXPIRETIME {p}k ; PERSIST {p}k ; \
                PERSIST {p}k",
            )
            .cmds(
                "EXPIRE {p}k 100000 NX ; EXPIRE {p}k 200000 GT ; \
                EXPIRE {p}k 300000 LT",
            )
            .cmds(
                "SETEX {p}k 100000 long ; GET {p}k ; PSETEX {p}k 100000000 l2 ; \
                GET {p}k",
            )
            .cmd("PSETEX {p}k 1500 short")
            .sleep_ms(1600)
            .cmds("GET {p}k ; GET {p}k ; SETEX {p}k 1 again")
            .sleep_ms(1100)
            .cmds("GET {p}k ; EXISTS {p}k ; SET {p}k anew ; GET {p}k"),
    ]
}

/// Other types, commands that put them in a string's place, and what looks inside.
fn types() -> Vec<Case> {
    vec![
        Case::new("types").hot("{p}l").cmds(
            "LPUSH {p}l a ; GET {p}l ; LPUSH {p}k a ; HSET {p}k f v ; GET {p}k ; \
                SET {p}l str ; GET {p}l ; DEL {p}l ; HSET {p}l f v ; GET {p}l ; \
                INCR {p}l ; APPEND {p}l x ; TYPE {p}l ; TYPE {p}k ; SET {p}l x ; \
                GET {p}l ; SADD {p}s a ; MGET {p}k {p}s {p}l",
        ),
        Case::new("stores-into").cmds(
            "RPUSH {p}l 3 1 2 ; SORT {p}l STORE {p}k ; GET {p}k ; SET {p}k s ; \
                SADD {p}s a b ; SUNIONSTORE {p}k {p}s ; GET {p}k ; SET {p}k s ; \
                SINTERSTORE {p}k {p}s {p}none ; GET {p}k ; SET {p}k s ; \
                ZADD {p}z 1 a ; ZRANGESTORE {p}k {p}z 0 -1 ; GET {p}k ; SET {p}k s ; \
                ZUNIONSTORE {p}k 1 {p}z ; GET {p}k ; DEL {p}k ; PFADD {p}h a ; \
                PFMERGE {p}k {p}h ; GET {p}k ; SET {p}k s ; GEOADD {p}g 1 1 a ; \
                GEORADIUS {p}g 1 1 10 km STORE {p}k ; GET {p}k",
        ),
        Case::new("rename-copy").hot("{p}2").cmds(
            "SET {p}2 two ; RENAME {p}k {p}2 ; GET {p}2 ; GET {p}k ; \
                RENAME {p}none {p}2 ; SET {p}k one ; RENAMENX {p}k {p}2 ; \
                COPY {p}k {p}2 ; COPY {p}k {p}2 REPLACE ; GET {p}2 ; \
                COPY {p}2 {p}k REPLACE ; RENAME {p}k {p}k ; SMOVE {p}a {p}b m ; \
                RPUSH {p}l a ; LMOVE {p}l {p}m LEFT LEFT ; RENAME {p}m {p}k ; \
                GET {p}k",
        ),
        Case::new("object").cmds(
            "OBJECT ENCODING {p}k ; OBJECT REFCOUNT {p}k ; OBJECT FREQ {p}k ; \
                OBJECT HELP ; OBJECT ENCODING {p}none ; SET {p}k 12345 ; \
                OBJECT ENCODING {p}k ; DUMP {p}k ; TOUCH {p}k {p}none ; \
                MEMORY USAGE {p}k ; STRLEN {p}k ; GET {p}k",
        ),
        Case::new("config")
            .stopping()
            .cmds("CONFIG GET appendfsync ; CONFIG GET nosuch ; CONFIG SET nosuch 1")
            .cmds(
                "GET {p}k ; CONFIG SET lfu-log-factor 10 ; GET {p}k ; \
                SET {p}k after",
            )
            .cmds("GET {p}k ; CONFIG RESETSTAT ; GET {p}k ; SLOWLOG RESET ; GET {p}k"),
    ]
}

/// More than one database; the last ones touch everything.
fn databases() -> Vec<Case> {
    vec![
        Case::new("select")
            .cmds("SELECT 1 ; GET {p}k ; SET {p}k one ; GET {p}k ; INCR {p}n")
            .cmds(
                "SELECT 0 ; GET {p}k ; GET {p}n ; SET {p}k zero ; SELECT 1 ; \
                GET {p}k",
            )
            .segment("SELECT 0 ; GET {p}k ; SELECT 1 ; GET {p}k ; DEL {p}k ; SELECT 0")
            .cmds("GET {p}k ; SELECT 99 ; SELECT x ; SELECT ; GET {p}k"),
        Case::new("between-databases")
            .cmds("COPY {p}k {p}k DB 1 ; SET {p}k new ; COPY {p}k {p}k DB 1 REPLACE")
            .cmds("SELECT 1 ; GET {p}k ; DEL {p}k ; SELECT 0 ; MOVE {p}k 1 ; GET {p}k")
            .cmds("SELECT 1 ; GET {p}k ; MOVE {p}k 0 ; GET {p}k ; SELECT 0 ; GET {p}k"),
        Case::new("swapdb")
            .flushing()
            .cmds(
                "SELECT 1 ; SET {p}k one ; SWAPDB 0 1 ; GET {p}k ; SELECT 0 ; \
                GET {p}k",
            )
            .cmds("SWAPDB 0 1 ; GET {p}k ; SWAPDB 0 99 ; GET {p}k"),
        Case::new("flush")
            .flushing()
            .cmds("FLUSHDB ; GET {p}k ; SET {p}k a ; GET {p}k ; FLUSHALL ; GET {p}k")
            .cmds("SET {p}k b ; FLUSHALL ASYNC ; GET {p}k ; SET {p}k c ; SELECT 1")
            .cmds(
                "FLUSHDB SYNC ; SELECT 0 ; GET {p}k ; SELECT 1 ; FLUSHALL ; \
                SELECT 0",
            )
            .cmds("GET {p}k ; DBSIZE ; FLUSHALL NOSUCH"),
    ]
}
