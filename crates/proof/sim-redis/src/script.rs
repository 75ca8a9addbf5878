// SPDX-License-Identifier: Apache-2.0 OR MIT
//! EVAL of the few scripts that the model knows by their text.

use crate::client::{Argv, Client};
use crate::dispatch::{bytes, find_command};
use crate::resp::parse_i64;
use crate::server::Redis;
use crate::types::{ClientId, Peer};

/// Text, its digest, the command, whether it takes ARGV[1].
const SCRIPTS: [(&str, &str, &str, bool); 4] = [
    (
        "return redis.call('set',KEYS[1],ARGV[1])",
        "c686f316aaf1eb01d5a4de1b0b63cd233010e63d",
        "set",
        true,
    ),
    (
        "return redis.call('get',KEYS[1])",
        "fd758d1589d044dd850a6f05d52f2eefd27f033f",
        "get",
        false,
    ),
    (
        "return redis.call('incr',KEYS[1])",
        "6f5ade10a69975e903c6d07b10ea44c6382381a5",
        "incr",
        false,
    ),
    (
        "return redis.call('swapdb',KEYS[1],ARGV[1])",
        "24a9cf73f217b16dfa346d8fa6e159b552225437",
        "swapdb",
        true,
    ),
];

/// The client in whose name scripts and the log's replay run.
pub(crate) const NOBODY: ClientId = 0;

impl Redis {
    /// Makes the client that runs scripts and the log.
    pub(crate) fn make_nobody(&mut self, db: u32) {
        let mut client = Client::new(NOBODY, Peer::Unix(String::new()), self.now_ns);
        client.db = db;
        self.clients.insert(NOBODY, client);
    }
}

pub(crate) fn eval(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(count) = redis.integer_or_reply(id, &argv[2]) else {
        return;
    };
    let given = i64::try_from(argv.len() - 3).unwrap_or(i64::MAX);
    if count > given {
        let text = "ERR Number of keys can't be greater than number of args";
        return redis.client(id).add_error(text);
    }
    if count < 0 {
        return redis
            .client(id)
            .add_error("ERR Number of keys can't be negative");
    }
    let known = SCRIPTS
        .iter()
        .find(|(text, ..)| text.as_bytes() == &*argv[1]);
    let Some((_, digest, command, takes_value)) = known else {
        return redis
            .client(id)
            .add_error("ERR this model knows no such script");
    };
    let keys = usize::try_from(parse_i64(&argv[2]).unwrap_or(0)).unwrap_or(0);
    let mut inner = vec![bytes(command)];
    inner.extend(argv.get(3).filter(|_| keys > 0).cloned());
    if *takes_value {
        inner.extend(argv.get(3 + keys).cloned());
    }
    let wanted = if *takes_value { 3 } else { 2 };
    let Some(found) = find_command(&inner).filter(|_| keys > 0 && inner.len() == wanted) else {
        return redis.client(id).add_error(&format!(
            "ERR Lua redis lib command arguments must be strings or integers script: {digest}, on \
             @user_script:1."
        ));
    };
    let db = redis.client(id).db;
    redis.make_nobody(db);
    redis.call(NOBODY, found, &inner);
    let reply = redis
        .clients
        .remove(&NOBODY)
        .map(|client| client.out)
        .unwrap_or_default();
    let client = redis.client(id);
    match &reply[..] {
        b"$-1\r\n" => client.add_null(),
        [b'-', ..] => {
            let mut text = reply[1..reply.len() - 2].to_vec();
            text.extend(format!(" script: {digest}, on @user_script:1.").bytes());
            client.add_error_bytes(&text);
        }
        _ => client.put(&reply),
    }
}

/// There are none; of its arguments none is known.
pub(crate) fn function_list(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let keeps = redis.config.line_ends;
    let client = redis.client(id);
    let Some(argument) = argv.get(2) else {
        return client.add_array(0);
    };
    let text = [b"ERR Unknown argument ", &argument[..]].concat();
    if keeps {
        client.add_error_lines(&text);
    } else {
        client.add_error_bytes(&text);
    }
}
