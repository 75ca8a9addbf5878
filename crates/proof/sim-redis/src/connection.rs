// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PING, ECHO, HELLO, AUTH, RESET.

use crate::cast::Signed;
use crate::client::Argv;
use crate::dispatch::{bytes, lower};
use crate::resp::parse_i64;
use crate::server::Redis;
use crate::types::{Bytes, ClientId};

const WRONGPASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";

pub(crate) fn ping(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if argv.len() > 2 {
        return redis.add_arity_error(id);
    }
    let client = redis.client(id);
    if client.in_pubsub() && client.resp == 2 {
        client.add_array(2);
        client.add_bulk(b"pong");
        return client.add_bulk(argv.get(1).map_or(&b""[..], |text| text));
    }
    match argv.get(1) {
        Some(text) => client.add_bulk(text),
        None => client.add_status("PONG"),
    }
}

pub(crate) fn echo(redis: &mut Redis, id: ClientId, argv: &Argv) {
    redis.client(id).add_bulk(&argv[1]);
}

impl Redis {
    /// Checks user and password.
    fn authenticate(&mut self, id: ClientId, user: &[u8], password: &[u8]) -> bool {
        let right = self.credentials_are_right(user, password);
        if right {
            let client = self.client(id);
            client.authenticated = true;
            client.user = String::from_utf8_lossy(user).into_owned();
        } else {
            self.client(id).add_error(WRONGPASS);
        }
        right
    }

    /// Names are printable and without blanks; None: the error is answered.
    pub(crate) fn set_name(&mut self, id: ClientId, name: &Bytes) -> bool {
        if name.iter().any(|byte| !(b'!'..=b'~').contains(byte)) {
            let text = "ERR Client names cannot contain spaces, newlines or special characters.";
            self.client(id).add_error(text);
            return false;
        }
        self.client(id).name = name.clone();
        true
    }
}

pub(crate) fn auth(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if argv.len() > 3 {
        return redis.client(id).add_error(crate::strings::SYNTAX);
    }
    if argv.len() == 2 && redis.default_user().no_password {
        return redis.client(id).add_error(
            "ERR AUTH <password> called without any password configured for the default user. Are \
             you sure your configuration is correct?",
        );
    }
    let user = if argv.len() == 2 {
        bytes("default")
    } else {
        argv[1].clone()
    };
    if redis.authenticate(id, &user, &argv[argv.len() - 1]) {
        redis.client(id).add_ok();
    }
}

pub(crate) fn hello(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let mut version = None;
    if let Some(text) = argv.get(1) {
        let Some(number) = parse_i64(text) else {
            let text = "ERR Protocol version is not an integer or out of range";
            return redis.client(id).add_error(text);
        };
        if !(2..=3).contains(&number) {
            return redis
                .client(id)
                .add_error("NOPROTO unsupported protocol version");
        }
        version = u8::try_from(number).ok();
    }
    let mut at = 2;
    while at < argv.len() {
        let more = argv.len() - 1 - at;
        match lower(&argv[at]).as_str() {
            "auth" if more >= 2 => {
                if !redis.authenticate(id, &argv[at + 1], &argv[at + 2]) {
                    return;
                }
                at += 2;
            }
            "setname" if more >= 1 => {
                if !redis.set_name(id, &argv[at + 1]) {
                    return;
                }
                at += 1;
            }
            _ => {
                let option = String::from_utf8_lossy(&argv[at]).into_owned();
                let text = format!("ERR Syntax error in HELLO option '{option}'");
                return redis.client(id).add_error(&text);
            }
        }
        at += 1;
    }
    if !redis.client(id).authenticated {
        return redis.client(id).add_error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
             <proto> AUTH <user> <pass> option can be used to authenticate the client and select the \
             RESP protocol version at the same time",
        );
    }
    let role = if redis.replica { "replica" } else { "master" };
    let client = redis.client(id);
    client.resp = version.unwrap_or(client.resp);
    client.add_map(7);
    client.add_bulk(b"server");
    client.add_bulk(b"redis");
    client.add_bulk(b"version");
    client.add_bulk(b"7.0.15");
    client.add_bulk(b"proto");
    let resp = client.resp;
    client.add_int(i64::from(resp));
    client.add_bulk(b"id");
    client.add_int(id.signed());
    client.add_bulk(b"mode");
    client.add_bulk(b"standalone");
    client.add_bulk(b"role");
    client.add_bulk(role.as_bytes());
    client.add_bulk(b"modules");
    client.add_array(0);
}

pub(crate) fn reset(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    crate::multi::discard_transaction(redis, id);
    redis.disable_tracking(id);
    let is_free = redis.default_user().is_free();
    let client = redis.client(id);
    client.monitor = false;
    client.db = 0;
    client.resp = 2;
    client.channels.clear();
    client.patterns.clear();
    client.authenticated = is_free;
    crate::acl::DEFAULT.clone_into(&mut client.user);
    client.name = bytes("");
    client.muted.off = false;
    client.muted.skip = false;
    client.muted.skip_next = false;
    client.add_status("RESET");
}
