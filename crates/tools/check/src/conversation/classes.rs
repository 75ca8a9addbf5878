// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases of the classes of commands: reads that may be answered in front of Redis, all that
//! writes a string or a hash, all that cannot, users, and what a connection may turn into.

use super::case::{Case, Mask};

/// These cases.
pub fn all() -> Vec<Case> {
    [
        reads(),
        large(),
        writes_of_strings(),
        writes_of_hashes(),
        of_any_key(),
        other_types(),
        users(),
        states(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// All that is answered from a cache, hits and misses and errors.
fn reads() -> Vec<Case> {
    vec![
        Case::new("reads-of-strings")
            .given("SET {p}2 two ; SET {p}n 12345 ; SET {p}e 7 EX 100000")
            .reads("MGET {p}k {p}2 {p}n ; GET {p}n ; GET {p}e")
            .cmds("MGET {p}k {p}2 {p}none ; MGET {p}k ; EXISTS {p}k {p}k {p}none")
            .cmds("STRLEN {p}k ; STRLEN {p}none ; TTL {p}k ; PTTL {p}k ; TTL {p}none")
            .cmds("PTTL {p}none ; GETRANGE {p}k 0 -1 ; GETRANGE {p}k -3 -2 ; GETRANGE {p}k 3 1")
            .cmds("GETRANGE {p}k 1 100 ; GETRANGE {p}none 0 1 ; SUBSTR {p}k 0 0 ; GETRANGE {p}k x 1")
            .cmds("mget {p}k ; exists {p}2 ; Strlen {p}n ; MGET ; TTL ; STRLEN {p}k {p}k")
            .cmds("SET {p}2 changed ; MGET {p}k {p}2 ; STRLEN {p}2 ; DEL {p}2 ; EXISTS {p}2 {p}k"),
        Case::new("reads-of-hashes")
            .given("HSET {p}h a 1 bb 22 empty none")
            .reads("HGETALL {p}h ; HGET {p}h a ; HLEN {p}h")
            .cmds("HGETALL {p}h ; HGET {p}h bb ; HGET {p}h none ; HMGET {p}h a none bb")
            .cmds("HLEN {p}h ; HEXISTS {p}h a ; HEXISTS {p}h b ; HSTRLEN {p}h empty ; HKEYS {p}h")
            .cmds("HVALS {p}h ; HGETALL {p}none ; HGET {p}k a ; GET {p}h ; STRLEN {p}h ; HGET {p}h")
            .cmds("HSET {p}h a changed ; HGET {p}h a ; HGETALL {p}h ; HDEL {p}h bb ; HMGET {p}h bb a")
            .cmds("EXISTS {p}h ; TTL {p}h ; HDEL {p}h a empty ; HGETALL {p}h ; EXISTS {p}h"),
        Case::new("reads-in-resp3")
            .given("HSET {p}h a 1 bb 22")
            .reads("HGETALL {p}h ; GET {p}none ; HGET {p}h none")
            .masked("HELLO 3", Mask::HelloId)
            .cmds("HGETALL {p}h ; HGET {p}h none ; GET {p}none ; MGET {p}k {p}none ; HGET {p}h a")
            .sleep_ms(160)
            .cmds("HGETALL {p}h ; HGET {p}h none ; GET {p}none ; MGET {p}k {p}none ; HGET {p}h a")
            .masked("HELLO 2", Mask::HelloId)
            .cmds("HGETALL {p}h ; GET {p}none ; HMGET {p}h none a"),
        Case::new("between-slower-ones").cmds(
            "GET {p}k ; LPUSH {p}l a ; GET {p}k ; LRANGE {p}l 0 -1 ; GET {p}k ; INCR {p}n ; \
                GET {p}k ; SADD {p}s x ; GET {p}k ; GET {p}k ; PING ; EVAL return(1) 0 ; GET {p}k ; \
                ECHO between ; GET {p}k ; DEL {p}l ; GET {p}k ; NOSUCH ; GET {p}k ; TYPE {p}k ; \
                GET {p}k",
        ),
    ]
}

/// Values up to 1 MB.
fn large() -> Vec<Case> {
    let value = |size: usize| -> Vec<u8> { (0..size).map(|i| (i * 31 + i / 251) as u8).collect() };
    let mut values = Case::new("values-to-1-mb");
    for size in [0, 1, 1 << 18, 1 << 20] {
        values = values
            .args(&[&b"SET"[..], b"{p}k", &value(size)])
            .cmd("GET {p}k");
    }
    vec![
        values.cmds("STRLEN {p}k ; APPEND {p}k x ; STRLEN {p}k ; SET {p}k small ; GET {p}k"),
        Case::new("reads-behind-a-large-value")
            .args(&[&b"SET"[..], b"{p}l", &value(100_000)])
            .cmds("GET {p}k ; GET {p}l ; GET {p}k ; PING ; GET {p}k"),
    ]
}

/// DUMP of a string "dumped", by Redis 7.0.
const DUMPED: &[u8] = b"\x00\x06dumped\n\x00\xdcJ\x84\xcd\x9a\x91\xec\xe2";

/// Every command that writes a string, beside those of the other cases.
fn writes_of_strings() -> Vec<Case> {
    vec![
        Case::new("numbers").given("SET {p}n 5").hot("{p}n").cmds(
            "INCR {p}n ; DECR {p}n ; INCRBY {p}n 4 ; DECRBY {p}n 2 ; INCRBYFLOAT {p}n 0.5 ; \
                GET {p}n ; INCR {p}n ; APPEND {p}n 1 ; GET {p}n",
        ),
        Case::new("several-keys")
            .given("SET {p}2 two")
            .hot("{p}2")
            .cmds(
                "MSET {p}k a {p}2 b ; MGET {p}k {p}2 ; MSETNX {p}k c {p}3 d ; RENAME {p}2 {p}k ; \
                MGET {p}k {p}2 ; COPY {p}k {p}2 ; RENAMENX {p}k {p}2 ; RENAMENX {p}k {p}4 ; \
                MGET {p}k {p}2 {p}4 ; UNLINK {p}2 {p}4 ; EXISTS {p}k {p}2",
            ),
        Case::new("restore")
            .args(&[b"RESTORE", &b"{p}k"[..], b"0", DUMPED])
            .args(&[b"RESTORE", &b"{p}k"[..], b"0", DUMPED, b"REPLACE"])
            .cmd("GET {p}k")
            .args(&[b"RESTORE", &b"{p}2"[..], b"100000000", DUMPED])
            .cmds("GET {p}2 ; RESTORE {p}k 0 broken REPLACE ; GET {p}k")
            .args(&[b"RESTORE-ASKING", &b"{p}k"[..], b"0", DUMPED, b"REPLACE"])
            .cmd("GET {p}k"),
        Case::new("bits-and-counts").cmds(
            "SETBIT {p}k 3 1 ; GETBIT {p}k 3 ; BITCOUNT {p}k ; BITPOS {p}k 1 ; \
                BITFIELD {p}k INCRBY u8 0 1 ; BITFIELD_RO {p}k GET u8 0 ; BITOP NOT {p}k {p}k ; \
                GET {p}k ; DEL {p}k ; PFADD {p}k a b ; PFCOUNT {p}k ; PFADD {p}2 c ; \
                PFMERGE {p}k {p}2 ; PFCOUNT {p}k {p}2 ; STRLEN {p}k",
        ),
        Case::new("expiries").cmds(
            "EXPIRE {p}k 100000 ; GET {p}k ; PEXPIRE {p}k 100000000 ; EXPIREAT {p}k 4102444800 ; \
                PEXPIREAT {p}k 4102444800000 ; EXPIRETIME {p}k ; PEXPIRETIME {p}k ; GET {p}k ; \
                PERSIST {p}k ; TTL {p}k ; GETEX {p}k ; GETEX {p}k EX 1000 ; SETEX {p}k 1000 v ; \
                PSETEX {p}k 1000000 w ; GET {p}k ; GETSET {p}k x ; TTL {p}k ; GETDEL {p}k ; \
                SETNX {p}k y ; SETRANGE {p}k 1 zz ; GET {p}k ; MOVE {p}k 9 ; GET {p}k",
        ),
    ]
}

/// Every command that writes a hash, and those that put others in its place.
fn writes_of_hashes() -> Vec<Case> {
    let hash = |name| {
        Case::new(name)
            .given("HSET {p}h a 1 b 2")
            .reads("HGETALL {p}h ; HGET {p}h a")
    };
    vec![
        hash("hashes").cmds(
            "HSETNX {p}h a no ; HSETNX {p}h c 3 ; HMSET {p}h a x ; HGET {p}h a ; HINCRBY {p}h b 5 ; \
                HGET {p}h b ; HINCRBYFLOAT {p}h b 0.5 ; HGETALL {p}h ; HDEL {p}h a ; HGET {p}h a ; \
                EXPIRE {p}h 100000 ; HGETALL {p}h ; RENAME {p}h {p}g ; HGETALL {p}h ; HGETALL {p}g",
        ),
        hash("stores").cmds(
            "SADD {p}s x y ; SADD {p}t x ; SINTERSTORE {p}h {p}s {p}t ; HGETALL {p}h ; \
                SUNIONSTORE {p}k {p}s {p}t ; SDIFFSTORE {p}k {p}s {p}t ; TYPE {p}k ; \
                ZADD {p}z 1 a 2 b ; ZUNIONSTORE {p}k 1 {p}z ; ZINTERSTORE {p}h 1 {p}z ; \
                ZDIFFSTORE {p}h 1 {p}z ; ZRANGESTORE {p}k {p}z 0 -1 ; TYPE {p}k ; GET {p}k ; \
                GEOADD {p}geo 1 1 m ; GEOSEARCHSTORE {p}k {p}geo FROMMEMBER m BYRADIUS 1 km ; \
                TYPE {p}k ; HGETALL {p}h",
        ),
        hash("reads-of-hashes-by-redis").cmds(
            "HSCAN {p}h 0 ; HRANDFIELD {p}none ; OBJECT ENCODING {p}h ; TYPE {p}h ; DUMP {p}none ; \
                SORT_RO {p}none ; HGETALL {p}h",
        ),
    ]
}

/// Commands that may write any key.
fn of_any_key() -> Vec<Case> {
    let sha = "bfbf458525d6a0b19200bfd6db3af481156b367b";
    vec![
        Case::new("evals")
            .args(&["EVAL", "redis.call('SET',ARGV[1],'x') return 1", "0", "{p}k"])
            .cmd("GET {p}k")
            .args(&["SCRIPT", "LOAD", "return redis.call('GET',KEYS[1])"])
            .cmds("GET {p}k ; SCRIPT FLUSH ; SCRIPT KILL ; SCRIPT DEBUG")
            .cmds(&format!("EVALSHA {sha} 1 {{p}}k ; EVALSHA_RO {sha} 1 {{p}}k ; SCRIPT EXISTS {sha}"))
            .cmd("GET {p}k"),
        Case::new("functions")
            .args(&[
                "FUNCTION",
                "LOAD",
                "REPLACE",
                "#!lua name=conversation\nredis.register_function('conversation_set', \
                 function(keys, args) return redis.call('SET', keys[1], args[1]) end)",
            ])
            .cmds("FCALL conversation_set 1 {p}k called ; GET {p}k ; FCALL_RO conversation_set 1 {p}k x")
            .cmds("FCALL nosuch 0 ; FUNCTION KILL ; GET {p}k"),
        Case::new("sorted-and-moved")
            .given("RPUSH {p}l 3 1 2 ; GEOADD {p}geo 1 1 m")
            .cmds("SORT {p}l ; SORT {p}l STORE {p}k ; GET {p}k ; SET {p}k s ; GET {p}k")
            .cmds("GEORADIUS {p}geo 1 1 1 km STORE {p}k ; GET {p}k ; SET {p}k t")
            .cmds("GEORADIUSBYMEMBER {p}geo m 1 km STORE {p}k ; TYPE {p}k ; MIGRATE x ; GET {p}k"),
        Case::new("errors-of-the-mighty").stopping().cmds(
            "SHUTDOWN ABORT ; CLUSTER INFO ; FAILOVER ABORT ; REPLICAOF x ; SLAVEOF x ; \
                REPLICAOF no ; SLAVEOF no ; CLIENT PAUSE x ; MODULE NOSUCH ; DEBUG ; PFDEBUG ; PFSELFTEST x ; SWAPDB 0 x ; FLUSHDB x ; GET {p}k",
        ),
    ]
}

/// All that cannot change a string or a hash.
fn other_types() -> Vec<Case> {
    vec![
        Case::new("lists").cmds(
            "RPUSH {p}l a b c ; LPUSH {p}l z ; LPUSHX {p}l y ; RPUSHX {p}l d ; LLEN {p}l ; \
                LINDEX {p}l 0 ; LRANGE {p}l 0 -1 ; LPOS {p}l a ; LSET {p}l 0 x ; GET {p}k ; \
                LINSERT {p}l BEFORE a q ; LREM {p}l 1 q ; LTRIM {p}l 0 3 ; LPOP {p}l ; RPOP {p}l ; \
                LMOVE {p}l {p}m LEFT RIGHT ; RPOPLPUSH {p}l {p}m ; LMPOP 1 {p}m LEFT ; GET {p}k ; \
                BLPOP {p}m 0.1 ; RPUSH {p}m 1 2 3 4 ; BRPOP {p}m 1 ; BLMOVE {p}m {p}l LEFT LEFT 1 ; \
                BLMPOP 1 1 {p}m LEFT ; BRPOPLPUSH {p}m {p}l 1 ; GET {p}k",
        ),
        Case::new("sets").cmds(
            "SADD {p}s 1 2 3 ; SADD {p}t 3 ; SCARD {p}s ; SISMEMBER {p}s 1 ; SMISMEMBER {p}s 1 9 ; \
                SMEMBERS {p}s ; SINTER {p}s {p}t ; SINTERCARD 2 {p}s {p}t ; SUNION {p}s {p}t ; \
                SDIFF {p}s {p}t ; SMOVE {p}s {p}t 1 ; SREM {p}s 2 ; SPOP {p}s ; SRANDMEMBER {p}s ; \
                SSCAN {p}t 0 ; GET {p}k",
        ),
        Case::new("sorted-sets").cmds(
            "ZADD {p}z 1 a 2 b 3 c 4 d 5 e 6 f ; ZADD {p}y 1 a ; ZCARD {p}z ; ZCOUNT {p}z 1 2 ; \
                ZLEXCOUNT {p}z - + ; ZSCORE {p}z a ; ZMSCORE {p}z a q ; ZRANK {p}z b ; ZREVRANK {p}z b ; \
                ZRANGE {p}z 0 1 ; ZREVRANGE {p}z 0 1 ; ZRANGEBYSCORE {p}z 1 2 ; GET {p}k ; \
                ZREVRANGEBYSCORE {p}z 2 1 ; ZRANGEBYLEX {p}z - [b ; ZREVRANGEBYLEX {p}z [b - ; \
                ZRANDMEMBER {p}none ; ZSCAN {p}y 0 ; ZINTER 2 {p}z {p}y ; ZINTERCARD 2 {p}z {p}y ; \
                ZUNION 2 {p}z {p}y ; ZDIFF 2 {p}z {p}y ; ZINCRBY {p}z 1 a ; ZREM {p}z b ; \
                ZPOPMIN {p}z ; ZPOPMAX {p}z ; ZMPOP 1 {p}z MIN ; BZPOPMIN {p}z 1 ; BZPOPMAX {p}y 1 ; \
                BZMPOP 1 1 {p}z MIN ; ZADD {p}z 1 a ; ZREMRANGEBYSCORE {p}z 1 1 ; \
                ZREMRANGEBYRANK {p}z 0 0 ; ZREMRANGEBYLEX {p}z - + ; GET {p}k",
        ),
        Case::new("streams").cmds(
            "XADD {p}x 1-1 f v ; XADD {p}x 2-1 f w ; XLEN {p}x ; XRANGE {p}x - + ; XREVRANGE {p}x + - ; \
                XREAD STREAMS {p}x 0 ; XGROUP CREATE {p}x g 0 ; XREADGROUP GROUP g c STREAMS {p}x 0 ; \
                XPENDING {p}x g ; XINFO STREAM {p}none ; XACK {p}x g 1-1 ; XCLAIM {p}x g c 0 9-9 ; \
                XAUTOCLAIM {p}x g c 0 0 ; XDEL {p}x 1-1 ; XTRIM {p}x MAXLEN 0 ; XSETID {p}x 5-5 ; \
                GET {p}k",
        ),
        Case::new("places").cmds(
            "GEOADD {p}g 1 1 a 2 2 b ; GEODIST {p}g a b ; GEOHASH {p}g a ; GEOPOS {p}g a ; \
                GEOSEARCH {p}g FROMMEMBER a BYRADIUS 1 km ; GEORADIUS_RO {p}g 1 1 1 km ; \
                GEORADIUSBYMEMBER_RO {p}g a 1 km ; GET {p}k",
        ),
        Case::new("without-keys").cmds(
            "ECHO x ; ROLE ; COMMAND COUNT ; WAIT 0 0 ; PUBLISH {p}c m ; SPUBLISH {p}c m ; \
                PUBSUB CHANNELS {p}* ; PUBSUB NUMPAT ; LATENCY LATEST ; MEMORY USAGE {p}none ; \
                SLOWLOG LEN x ; KEYS {p}k ; TOUCH {p}k ; DUMP {p}k ; TYPE {p}k ; SORT_RO {p}none ; \
                OBJECT REFCOUNT {p}k ; LCS {p}k {p}k ; PING ; GET {p}k",
        ),
    ]
}

/// Users with all rights, with some keys, with some commands, and none.
fn users() -> Vec<Case> {
    let user = |name, rules: &str| {
        Case::new(name)
            .given(&format!("ACL SETUSER {{p}}u on >secret {rules}"))
            .settles_ms(120)
            .finally("ACL DELUSER {p}u")
            .reads("GET {p}cold")
    };
    vec![
        user("user-of-all", "~* &* +@all").cmds(
            "GET {p}k ; AUTH {p}u wrong ; GET {p}k ; AUTH {p}u secret ; GET {p}k ; ACL WHOAMI ; \
                SET {p}k by-user ; GET {p}k ; MGET {p}k {p}cold ; AUTH default any ; GET {p}k",
        ),
        user("user-of-some-keys", "~{p}cold* +@all").stopping().cmds(
            "GET {p}k ; AUTH {p}u secret ; GET {p}k ; GET {p}cold ; MGET {p}cold {p}k ; \
                EXISTS {p}k ; SET {p}k no ; SET {p}cold yes ; GET {p}cold ; STRLEN {p}k ; GET {p}k",
        ),
        user("user-of-some-commands", "~* +get +ping +set").stopping().cmds(
            "GET {p}k ; AUTH {p}u secret ; GET {p}k ; MGET {p}k ; STRLEN {p}k ; PING ; DEL {p}k ; \
                EXISTS {p}k ; SET {p}k yes ; GET {p}k ; ECHO x ; TTL {p}k",
        ),
        user("user-who-loses-rights", "~* +@all")
            .stopping()
            .cmds("AUTH {p}u secret ; GET {p}k")
            .sleep_ms(160)
            .cmds("GET {p}k ; GET {p}k")
            .other("ACL SETUSER {p}u resetkeys ~{p}cold")
            .cmds("GET {p}k ; GET {p}cold")
            .other("ACL SETUSER {p}u ~* -get")
            .cmds("GET {p}k ; MGET {p}k"),
        user("hello-with-user", "~* +@all")
            .masked("HELLO 3 AUTH {p}u secret SETNAME x", Mask::HelloId)
            .cmds("GET {p}k ; GET {p}none ; ACL WHOAMI ; CLIENT GETNAME")
            .cmd("HELLO 3 AUTH {p}u wrong")
            .cmds("GET {p}none ; RESET ; GET {p}none"),
        Case::new("acl").stopping().cmds(
            "ACL WHOAMI ; ACL CAT nosuch ; ACL GETUSER nosuch ; GET {p}k ; ACL DELUSER {p}nobody ; \
                ACL SETUSER {p}x rubbish ; ACL SAVE ; GET {p}k ; GET {p}k",
        ),
    ]
}

/// What a connection may turn into, beside those of the other cases.
fn states() -> Vec<Case> {
    vec![
        Case::new("in-another-database")
            .given("SELECT 9 ; SET {p}k nine ; SELECT 0")
            .settles_ms(120)
            .cmds("GET {p}k ; SELECT 9 ; GET {p}k ; APPEND {p}k + ; GET {p}k ; STRLEN {p}k")
            .sleep_ms(160)
            .cmds("GET {p}k ; GET {p}k ; SELECT 9 ; GET {p}k ; SELECT 0 ; GET {p}k"),
        Case::new("stateful").cmds(
            "GET {p}k ; READONLY ; READWRITE ; ASKING ; CLIENT NO-EVICT off ; GET {p}k ; \
                CLIENT CACHING YES ; CLIENT GETREDIR ; CLIENT HELP ; CLIENT TRACKINGINFO ; GET {p}k",
        ),
        Case::new("transaction").given("SET {p}n 5").hot("{p}n").cmds(
            "WATCH {p}k ; MULTI ; GET {p}k ; INCR {p}n ; MGET {p}k {p}n ; EXEC ; GET {p}n ; UNWATCH ; \
                WATCH {p}n ; SET {p}n 1 ; MULTI ; INCR {p}n ; EXEC ; GET {p}n ; MULTI ; DISCARD ; \
                GET {p}n ; DISCARD ; EXEC ; GET {p}k",
        ),
        Case::new("watch-of-a-hot-key")
            .cmds("GET {p}k ; WATCH {p}k ; GET {p}k ; GET {p}k")
            .other("SET {p}k disturbed")
            .cmds("GET {p}k ; MULTI ; GET {p}k ; EXEC ; GET {p}k")
            .cmds("WATCH {p}k ; GET {p}k ; MULTI ; GET {p}k ; EXEC ; GET {p}k"),
        Case::new("channels").cmds(
            "SSUBSCRIBE {p}c ; SUNSUBSCRIBE {p}c ; PSUBSCRIBE {p}* ; PUNSUBSCRIBE {p}* ; \
                SUBSCRIBE {p}c ; UNSUBSCRIBE ; GET {p}k ; GET {p}k",
        ),
        Case::new("channels-of-resp3")
            .masked("HELLO 3", Mask::HelloId)
            .cmds("SUBSCRIBE {p}c ; GET {p}k")
            .other("PUBLISH {p}c m")
            .receive(1)
            .cmds("UNSUBSCRIBE {p}c ; GET {p}k")
            .sleep_ms(160)
            .cmds("GET {p}k ; GET {p}k"),
        Case::new("replies-off-and-on")
            .cmds("GET {p}k")
            .silent("CLIENT REPLY SKIP")
            .silent("SET {p}k skipped")
            .cmds("GET {p}k ; PING")
            .silent("CLIENT REPLY OFF")
            .silent("GET {p}k")
            .silent("INCR {p}n")
            .cmds("CLIENT REPLY ON ; GET {p}n ; GET {p}k ; PING"),
        Case::new("replication").cmds("REPLCONF capa eof ; GET {p}k ; GET {p}k"),
        Case::new("blocked-then-served")
            .cmd("GET {p}k")
            .silent("BLPOP {p}l 0")
            .sleep_ms(160)
            .other("RPUSH {p}l x")
            .receive(1)
            .cmds("GET {p}k ; GET {p}k"),
    ]
}
