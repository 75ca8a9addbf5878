// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The commands of the model with Redis's arity, flags and key positions.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::client::Argv;
use crate::server::Redis;
use crate::types::ClientId;
use crate::{
    acl, admin, blocking, client_commands, collections, connection, describe, expire, field_expiry,
    info, keys, multi, pubsub, script, strings,
};

/// Executes a command.
pub(crate) type Handler = fn(&mut Redis, ClientId, &Argv);

/// One command.
pub(crate) struct Command {
    /// `config|get` for sub-commands.
    pub(crate) name: &'static str,
    /// Exact number of arguments, or at least so many if negative.
    pub(crate) arity: i32,
    /// w write, m denyoom, r readonly, s noscript, l loading, n no auth, a admin, M not in MULTI,
    /// p pubsub, F fast, x skip monitor, P may replicate.
    pub(crate) flags: &'static str,
    /// First key, last key, step.
    pub(crate) keys: (i32, i32, i32),
    pub(crate) run: Handler,
}

impl Command {
    pub(crate) fn has(&self, flag: char) -> bool {
        self.flags.contains(flag)
    }

    pub(crate) fn takes(&self, count: usize) -> bool {
        let wanted = usize::try_from(self.arity.unsigned_abs()).unwrap_or(usize::MAX);
        if self.arity < 0 {
            count >= wanted
        } else {
            count == wanted
        }
    }

    /// Places of the keys among `count` arguments.
    pub(crate) fn key_places(&self, count: usize) -> Vec<usize> {
        let (first, last, step) = self.keys;
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        let last = if last < 0 { count + last } else { last };
        if first == 0 {
            return Vec::new();
        }
        (first..=last)
            .step_by(usize::try_from(step).unwrap_or(1))
            .filter_map(|place| usize::try_from(place).ok())
            .collect()
    }
}

const fn command(
    name: &'static str,
    arity: i32,
    flags: &'static str,
    keys: (i32, i32, i32),
    run: Handler,
) -> Command {
    Command {
        name,
        arity,
        flags,
        keys,
        run,
    }
}

static TABLE: &[Command] = &[
    command("get", 2, "rF", (1, 1, 1), strings::get),
    command("set", -3, "wm", (1, 1, 1), strings::set),
    command("setnx", 3, "wmF", (1, 1, 1), strings::setnx),
    command("setex", 4, "wm", (1, 1, 1), strings::setex),
    command("psetex", 4, "wm", (1, 1, 1), strings::psetex),
    command("mset", -3, "wm", (1, -1, 2), strings::mset),
    command("msetnx", -3, "wm", (1, -1, 2), strings::msetnx),
    command("mget", -2, "rF", (1, -1, 1), strings::mget),
    command("getset", 3, "wmF", (1, 1, 1), strings::getset),
    command("getdel", 2, "wF", (1, 1, 1), strings::getdel),
    command("getex", -2, "wF", (1, 1, 1), strings::getex),
    command("append", 3, "wmF", (1, 1, 1), strings::append),
    command("setrange", 4, "wm", (1, 1, 1), strings::setrange),
    command("getrange", 4, "r", (1, 1, 1), strings::getrange),
    command("substr", 4, "r", (1, 1, 1), strings::getrange),
    command("strlen", 2, "rF", (1, 1, 1), strings::strlen),
    command("incr", 2, "wmF", (1, 1, 1), strings::incr),
    command("incrby", 3, "wmF", (1, 1, 1), strings::incrby),
    command("decr", 2, "wmF", (1, 1, 1), strings::decr),
    command("decrby", 3, "wmF", (1, 1, 1), strings::decrby),
    command("incrbyfloat", 3, "wmF", (1, 1, 1), strings::incrbyfloat),
    command("setbit", 4, "wm", (1, 1, 1), strings::setbit),
    command("getbit", 3, "rF", (1, 1, 1), strings::getbit),
    command("del", -2, "w", (1, -1, 1), keys::del),
    command("unlink", -2, "wF", (1, -1, 1), keys::del),
    command("exists", -2, "rF", (1, -1, 1), keys::exists),
    command("touch", -2, "rF", (1, -1, 1), keys::exists),
    command("type", 2, "rF", (1, 1, 1), keys::type_of),
    command("expire", -3, "wF", (1, 1, 1), expire::expire),
    command("pexpire", -3, "wF", (1, 1, 1), expire::pexpire),
    command("expireat", -3, "wF", (1, 1, 1), expire::expireat),
    command("pexpireat", -3, "wF", (1, 1, 1), expire::pexpireat),
    command("persist", 2, "wF", (1, 1, 1), expire::persist),
    command("ttl", 2, "rF", (1, 1, 1), expire::ttl),
    command("pttl", 2, "rF", (1, 1, 1), expire::pttl),
    command("expiretime", 2, "rF", (1, 1, 1), expire::expiretime),
    command("pexpiretime", 2, "rF", (1, 1, 1), expire::pexpiretime),
    command("rename", 3, "w", (1, 2, 1), keys::rename),
    command("renamenx", 3, "wF", (1, 2, 1), keys::renamenx),
    command("copy", -3, "wm", (1, 2, 1), keys::copy),
    command("keys", 2, "r", (0, 0, 0), keys::keys),
    command("flushall", -1, "w", (0, 0, 0), keys::flushall),
    command("flushdb", -1, "w", (0, 0, 0), keys::flushdb),
    command("dbsize", 1, "rF", (0, 0, 0), keys::dbsize),
    command("swapdb", 3, "wF", (0, 0, 0), keys::swapdb),
    command("select", 2, "lF", (0, 0, 0), keys::select),
    command("move", 3, "wF", (1, 1, 1), keys::move_key),
    command("lpush", -3, "wmF", (1, 1, 1), collections::lpush),
    command("rpush", -3, "wmF", (1, 1, 1), collections::rpush),
    command("lpop", -2, "wF", (1, 1, 1), collections::lpop),
    command("rpop", -2, "wF", (1, 1, 1), collections::rpop),
    command("lrange", 4, "r", (1, 1, 1), collections::lrange),
    command("llen", 2, "rF", (1, 1, 1), collections::llen),
    command("blpop", -3, "ws", (1, -2, 1), blocking::blpop),
    command("rpoplpush", 3, "wm", (1, 2, 1), blocking::rpoplpush),
    command("brpoplpush", 4, "wms", (1, 2, 1), blocking::brpoplpush),
    command("hset", -4, "wmF", (1, 1, 1), collections::hset),
    command("hget", 3, "rF", (1, 1, 1), collections::hget),
    command("hgetall", 2, "r", (1, 1, 1), collections::hgetall),
    command("hdel", -3, "wF", (1, 1, 1), collections::hdel),
    command("hincrby", 4, "wmF", (1, 1, 1), collections::hincrby),
    command("hlen", 2, "rF", (1, 1, 1), collections::hlen),
    command("hmget", -3, "rF", (1, 1, 1), collections::hmget),
    command("hexists", 3, "rF", (1, 1, 1), collections::hexists),
    command("hstrlen", 3, "rF", (1, 1, 1), collections::hstrlen),
    command("hrandfield", -2, "r", (1, 1, 1), collections::hrandfield),
    command("hpexpire", -6, "wF", (1, 1, 1), field_expiry::hpexpire),
    command("hkeys", 2, "r", (1, 1, 1), collections::hkeys),
    command("hvals", 2, "r", (1, 1, 1), collections::hvals),
    command("sadd", -3, "wmF", (1, 1, 1), collections::sadd),
    command("srem", -3, "wF", (1, 1, 1), collections::srem),
    command("smembers", 2, "r", (1, 1, 1), collections::smembers),
    command("scard", 2, "rF", (1, 1, 1), collections::scard),
    command("sismember", 3, "rF", (1, 1, 1), collections::sismember),
    command("ping", -1, "F", (0, 0, 0), connection::ping),
    command("echo", 2, "lF", (0, 0, 0), connection::echo),
    command("hello", -1, "slFn", (0, 0, 0), connection::hello),
    command("auth", -2, "slFn", (0, 0, 0), connection::auth),
    command("reset", 1, "slFn", (0, 0, 0), connection::reset),
    command("client", -2, "", (0, 0, 0), admin::container),
    command("client|reply", 3, "sl", (0, 0, 0), client_commands::reply),
    command(
        "client|unpause",
        2,
        "asl",
        (0, 0, 0),
        client_commands::unpause,
    ),
    command(
        "client|unblock",
        -3,
        "asl",
        (0, 0, 0),
        client_commands::unblock,
    ),
    command("client|info", 2, "sl", (0, 0, 0), client_commands::info),
    command("client|kill", -3, "asl", (0, 0, 0), client_commands::kill),
    command(
        "client|getname",
        2,
        "sl",
        (0, 0, 0),
        client_commands::getname,
    ),
    command("client|id", 2, "sl", (0, 0, 0), client_commands::id),
    command(
        "client|tracking",
        -3,
        "sl",
        (0, 0, 0),
        client_commands::tracking,
    ),
    command("client|list", -2, "asl", (0, 0, 0), client_commands::list),
    command(
        "client|setname",
        3,
        "sl",
        (0, 0, 0),
        client_commands::setname,
    ),
    command(
        "client|no-evict",
        3,
        "asl",
        (0, 0, 0),
        client_commands::no_evict,
    ),
    command("client|pause", -3, "asl", (0, 0, 0), client_commands::pause),
    command("multi", 1, "slF", (0, 0, 0), multi::multi),
    command("exec", 1, "sl", (0, 0, 0), multi::exec),
    command("discard", 1, "slF", (0, 0, 0), multi::discard),
    command("watch", -2, "slF", (1, -1, 1), multi::watch),
    command("unwatch", 1, "slF", (0, 0, 0), multi::unwatch),
    command("subscribe", -2, "psl", (0, 0, 0), pubsub::subscribe),
    command("psubscribe", -2, "psl", (0, 0, 0), pubsub::psubscribe),
    command("unsubscribe", -1, "psl", (0, 0, 0), pubsub::unsubscribe),
    command("punsubscribe", -1, "psl", (0, 0, 0), pubsub::punsubscribe),
    command("publish", 3, "plFP", (0, 0, 0), pubsub::publish),
    command("monitor", 1, "asl", (0, 0, 0), pubsub::monitor),
    command("eval", -3, "sxP", (0, 0, 0), script::eval),
    command("function", -2, "", (0, 0, 0), admin::container),
    command("function|list", -2, "s", (0, 0, 0), script::function_list),
    command("config", -2, "", (0, 0, 0), admin::container),
    command("config|get", -3, "asl", (0, 0, 0), admin::config_get),
    command("config|set", -4, "asl", (0, 0, 0), admin::config_set),
    command(
        "config|resetstat",
        2,
        "asl",
        (0, 0, 0),
        admin::config_resetstat,
    ),
    command("acl", -2, "", (0, 0, 0), admin::container),
    command("acl|setuser", -3, "asl", (0, 0, 0), acl::setuser),
    command("acl|deluser", -3, "asl", (0, 0, 0), acl::deluser),
    command("acl|whoami", 2, "sl", (0, 0, 0), acl::whoami),
    command("acl|list", 2, "asl", (0, 0, 0), acl::list),
    command("info", -1, "l", (0, 0, 0), info::info),
    command("debug", -2, "asl", (0, 0, 0), admin::debug),
    command("command", -1, "l", (0, 0, 0), describe::command),
    command("command|docs", -2, "l", (0, 0, 0), describe::docs),
    command("command|count", 2, "l", (0, 0, 0), describe::count),
    command("command|info", -2, "l", (0, 0, 0), describe::info),
    command("command|list", -2, "l", (0, 0, 0), describe::list),
    command("wait", 3, "s", (0, 0, 0), admin::wait),
    command("bgsave", -1, "as", (0, 0, 0), admin::bgsave),
    command("shutdown", -1, "aslM", (0, 0, 0), admin::shutdown),
    command("replicaof", 3, "as", (0, 0, 0), admin::replicaof),
    command("slaveof", 3, "as", (0, 0, 0), admin::replicaof),
    command("time", 1, "lF", (0, 0, 0), admin::time),
    command("lastsave", 1, "lF", (0, 0, 0), admin::lastsave),
    command("role", 1, "slF", (0, 0, 0), admin::role),
    command("memory", -2, "", (0, 0, 0), admin::container),
    command("memory|usage", -3, "r", (2, 2, 1), keys::memory_usage),
    command("object", -2, "", (0, 0, 0), admin::container),
    command(
        "object|encoding",
        3,
        "r",
        (2, 2, 1),
        collections::object_encoding,
    ),
    command("object|refcount", 3, "r", (2, 2, 1), keys::object_refcount),
];

/// Looks a command up by its name in lower case; sub-commands as `config|get`.
pub(crate) fn find(name: &str) -> Option<&'static Command> {
    static INDEX: OnceLock<HashMap<&str, &Command>> = OnceLock::new();
    INDEX
        .get_or_init(|| {
            TABLE
                .iter()
                .map(|command| (command.name, command))
                .collect()
        })
        .get(name)
        .copied()
}

/// All commands of the model; sub-commands too.
pub(crate) fn all() -> impl Iterator<Item = &'static Command> {
    TABLE.iter()
}

/// Names of all commands of the model; sub-commands as `config|get`.
pub fn command_names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|command| command.name)
}
