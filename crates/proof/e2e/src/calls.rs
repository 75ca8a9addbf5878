// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands and replies in short.

use erb_check::net::Conn;
use erb_check::resp;

/// Sends one command, words separated by blanks, and returns its reply as text.
///
/// # Panics
/// If the connection breaks.
pub fn call(conn: &mut Conn, words: &str) -> String {
    let words: Vec<&str> = words.split_whitespace().collect();
    let reply = conn
        .call(&words)
        .unwrap_or_else(|broken| panic!("{words:?}: {broken}"));
    String::from_utf8_lossy(&reply).into_owned()
}

/// As [`call`], and the reply must be this one.
///
/// # Panics
/// If it is another.
pub fn expect(conn: &mut Conn, words: &str, reply: &str) {
    let got = call(conn, words);
    assert_eq!(got, reply, "reply to {words:?}");
}

/// Several commands in one segment, words as in [`call`], commands separated by semicolons; the
/// replies as one text.
///
/// # Panics
/// If the connection breaks.
pub fn pipeline(conn: &mut Conn, commands: &str) -> String {
    let mut count = 0;
    let bytes: Vec<u8> = commands
        .split(';')
        .flat_map(|words| {
            count += 1;
            resp::command(&words.split_whitespace().collect::<Vec<_>>())
        })
        .collect();
    conn.send(&bytes)
        .unwrap_or_else(|broken| panic!("{commands:?}: {broken}"));
    let replies = (0..count).map(|_| {
        let reply = conn.reply();
        String::from_utf8_lossy(&reply.unwrap_or_else(|broken| panic!("{commands:?}: {broken}")))
            .into_owned()
    });
    replies.collect()
}

/// GET; `None` if there is no such key.
///
/// # Panics
/// If the reply is neither a bulk string nor null.
pub fn get(conn: &mut Conn, key: &str) -> Option<String> {
    let reply = call(conn, &format!("GET {key}"));
    if reply == "$-1\r\n" || reply == "_\r\n" {
        return None;
    }
    let body = reply
        .strip_prefix('$')
        .and_then(|rest| rest.split_once("\r\n"));
    let value = body.and_then(|(_, value)| value.strip_suffix("\r\n"));
    Some(
        value
            .unwrap_or_else(|| panic!("GET {key}: {reply:?}"))
            .to_owned(),
    )
}

/// SET that must be answered +OK.
///
/// # Panics
/// If it is not.
pub fn set(conn: &mut Conn, key: &str, value: &str) {
    expect(conn, &format!("SET {key} {value}"), "+OK\r\n");
}

pub use erb_wire::resp::bulk_text as bulk;
