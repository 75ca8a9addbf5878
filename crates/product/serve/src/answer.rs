// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Heads of answers, and the small bodies of errors. Pure.

use std::fmt::Write as _;
use std::time::SystemTime;

use crate::conditions::Version;

/// A head that is being written.
pub struct Head(String);

impl Head {
    /// Begins with status, date and whether the connection stays open.
    pub fn new(status: u16, date: &str, keep_alive: bool) -> Self {
        let mut text = String::with_capacity(384);
        let _ = write!(
            text,
            "HTTP/1.1 {status} {}\r\nServer: erb\r\nDate: {date}\r\n",
            reason(status)
        );
        if !keep_alive {
            text.push_str("Connection: close\r\n");
        }
        Self(text)
    }

    /// Adds a field.
    pub fn field(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        let _ = write!(self.0, "{name}: {value}\r\n");
        self
    }

    /// Adds fields as [`version_fields`] has written them.
    pub fn fields(mut self, written: &str) -> Self {
        self.0.push_str(written);
        self
    }

    /// The head's bytes.
    pub fn end(mut self) -> Vec<u8> {
        self.0.push_str("\r\n");
        self.0.into_bytes()
    }
}

/// What a client needs to ask for this version again.
pub fn version_fields(version: &Version) -> String {
    format!(
        "ETag: {}\r\nLast-Modified: {}\r\nAccept-Ranges: bytes\r\n",
        version.etag(),
        httpdate::fmt_http_date(version.modified())
    )
}

/// An answer that consists of its status.
pub fn plain(
    status: u16,
    date: &str,
    keep_alive: bool,
    with_body: bool,
    extra: Option<(&str, &str)>,
) -> Vec<u8> {
    let body = format!("{status} {}\n", reason(status));
    let mut head = Head::new(status, date, keep_alive)
        .field("Content-Type", "text/plain; charset=utf-8")
        .field("Content-Length", body.len());
    if let Some((name, value)) = extra {
        head = head.field(name, value);
    }
    let mut bytes = head.end();
    if with_body {
        bytes.extend_from_slice(body.as_bytes());
    }
    bytes
}

/// The statuses that are answered, with their words.
pub const STATUSES: [(u16, &str); 17] = [
    (200, "OK"),
    (206, "Partial Content"),
    (301, "Moved Permanently"),
    (304, "Not Modified"),
    (400, "Bad Request"),
    (403, "Forbidden"),
    (404, "Not Found"),
    (405, "Method Not Allowed"),
    (408, "Request Timeout"),
    (412, "Precondition Failed"),
    (413, "Content Too Large"),
    (416, "Range Not Satisfiable"),
    (431, "Request Header Fields Too Large"),
    (500, "Internal Server Error"),
    (501, "Not Implemented"),
    (503, "Service Unavailable"),
    (505, "HTTP Version Not Supported"),
];

fn reason(status: u16) -> &'static str {
    STATUSES
        .iter()
        .find(|(number, _)| *number == status)
        .map_or("", |(_, words)| words)
}

/// The present date as HTTP writes it, made once a second.
#[derive(Debug, Default)]
pub struct Date {
    second: u64,
    text: String,
}

impl Date {
    pub fn now(&mut self) -> &str {
        let now = SystemTime::now();
        let since = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        if since.as_secs() != self.second || self.text.is_empty() {
            self.second = since.as_secs();
            self.text = httpdate::fmt_http_date(now);
        }
        &self.text
    }
}
