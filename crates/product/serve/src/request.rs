// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A request's head, read from bytes. Pure.

use httparse::{EMPTY_HEADER, Header, Status};
use percent_encoding::percent_decode;

/// Bytes of a head. Browsers stay below 8 KiB, cookies included.
pub const HEAD_BYTES_MAX: usize = 16 << 10;
/// Fields of a head.
const FIELDS_MAX: usize = 100;

/// What a request may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Head and body.
    Get,
    /// Head alone.
    Head,
}

/// A request that can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it asks for.
    pub method: Method,
    /// Path below the served folder: decoded, without the first slash, without query.
    pub path: Vec<u8>,
    /// The path as the client wrote it, for redirections.
    pub written: String,
    /// What stands behind it, with its `?`; or nothing.
    pub query: String,
    /// The connection stays open behind the answer.
    pub keep_alive: bool,
    /// `Range`, if there is exactly one.
    pub range: Option<String>,
    /// `If-Range`.
    pub if_range: Option<String>,
    /// `If-Match`, several fields joined.
    pub if_match: Option<String>,
    /// `If-None-Match`, several fields joined.
    pub if_none_match: Option<String>,
    /// `If-Modified-Since`.
    pub if_modified_since: Option<String>,
    /// `If-Unmodified-Since`.
    pub if_unmodified_since: Option<String>,
}

impl Request {
    /// Whether it asks for a file as it is: no range, no condition.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.range.is_none()
            && self.if_match.is_none()
            && self.if_none_match.is_none()
            && self.if_modified_since.is_none()
            && self.if_unmodified_since.is_none()
    }
}

/// Why a head gets an error; the connection ends behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// 400: no HTTP, or what RFC 9112 tells servers to refuse.
    Request,
    /// 404: no such path can be.
    Path,
    /// 405: a method for other resources than files.
    Method,
    /// 413: a body, which no file takes.
    Body,
    /// 431: the head is too long.
    Long,
    /// 501: a method that nobody knows.
    Unknown,
    /// 505: another major version.
    Version,
}

/// Reads the first head of `bytes`: the request and the length of the head. None: it is not whole yet.
///
/// # Errors
/// See [`Bad`].
pub fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, Bad> {
    let mut fields = [EMPTY_HEADER; FIELDS_MAX];
    let mut head = httparse::Request::new(&mut fields);
    let limited = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
    let length = match head.parse(limited) {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) if bytes.len() >= HEAD_BYTES_MAX => return Err(Bad::Long),
        Ok(Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(Bad::Long),
        // The library calls anything else at the version's place a version.
        Err(httparse::Error::Version) if names_version(limited) => return Err(Bad::Version),
        Err(_) => return Err(Bad::Request),
    };
    let method = match head.method.unwrap_or_default() {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" | "PUT" | "DELETE" | "PATCH" | "OPTIONS" | "TRACE" | "CONNECT" => {
            return Err(Bad::Method);
        }
        _ => return Err(Bad::Unknown),
    };
    let fields = Fields(head.headers);
    let is_1_1 = head.version == Some(1);
    let hosts = fields.all("host").count();
    // RFC 9112, 3.2: 400 to a request of HTTP/1.1 without Host, and to any with two.
    let are_hosts = fields.all("host").all(is_host);
    if hosts > 1 || is_1_1 && hosts == 0 || !are_hosts {
        return Err(Bad::Request);
    }
    fields.no_body()?;
    let (written, query) = target(head.path.unwrap_or_default())?;
    let request = Request {
        method,
        path: path(written)?,
        written: written.to_owned(),
        query: query.to_owned(),
        keep_alive: fields.keep_alive(is_1_1),
        range: fields.one("range"),
        if_range: fields.one("if-range"),
        if_match: fields.list("if-match"),
        if_none_match: fields.list("if-none-match"),
        if_modified_since: fields.one("if-modified-since"),
        if_unmodified_since: fields.one("if-unmodified-since"),
    };
    Ok(Some((request, length)))
}

struct Fields<'a>(&'a [Header<'a>]);

impl<'a> Fields<'a> {
    fn all(&self, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
        let fields = self.0.iter();
        let named = fields.filter(move |field| field.name.eq_ignore_ascii_case(name));
        named.map(|field| field.value)
    }

    /// The value of a field that comes once; of one that comes twice nobody knows which is meant.
    fn one(&self, name: &'static str) -> Option<String> {
        let mut all = self.all(name);
        let value = all.next().filter(|_| all.next().is_none())?;
        Some(std::str::from_utf8(value).ok()?.trim().to_owned())
    }

    fn list(&self, name: &'static str) -> Option<String> {
        let values: Vec<&str> = self
            .all(name)
            .filter_map(|value| std::str::from_utf8(value).ok())
            .collect();
        (!values.is_empty()).then(|| values.join(","))
    }

    fn has_word(&self, name: &'static str, word: &str) -> bool {
        let list = self.list(name).unwrap_or_default();
        list.split(',')
            .any(|one| one.trim().eq_ignore_ascii_case(word))
    }

    fn keep_alive(&self, is_1_1: bool) -> bool {
        !self.has_word("connection", "close")
            && (is_1_1 || self.has_word("connection", "keep-alive"))
    }

    /// What follows the head must be the next request. Whoever smuggles one in a body is refused here.
    fn no_body(&self) -> Result<(), Bad> {
        if self.all("transfer-encoding").next().is_some() {
            return Err(Bad::Body);
        }
        match self
            .all("content-length")
            .map(<[u8]>::trim_ascii)
            .collect::<Vec<_>>()[..]
        {
            [] => Ok(()),
            [one] if one.iter().all(|digit| *digit == b'0') && !one.is_empty() => Ok(()),
            [one] if one.iter().all(u8::is_ascii_digit) && !one.is_empty() => Err(Bad::Body),
            _ => Err(Bad::Request),
        }
    }
}

/// Path and query of a target: `/path?query`, or `http://host/path?query` as proxies are asked.
fn target(target: &str) -> Result<(&str, &str), Bad> {
    let target = target.split('#').next().unwrap_or_default();
    let (target, query) = target.split_at(target.find('?').unwrap_or(target.len()));
    let rest = match target.split_once("://") {
        Some((scheme, rest))
            if scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https") =>
        {
            rest.find('/').map_or("/", |slash| &rest[slash..])
        }
        _ => target,
    };
    if rest.starts_with('/') {
        Ok((rest, query))
    } else {
        Err(Bad::Request)
    }
}

/// Whether the first line ends with a version of HTTP, or has not ended.
fn names_version(head: &[u8]) -> bool {
    let head = head.trim_ascii_start();
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.trim_ascii_end().split(|byte| *byte == b' ');
    let is_version = |word: &[u8]| word.starts_with(b"HTTP/");
    words.nth(2).is_some_and(is_version) && words.next().is_none()
}

/// Whether it can name a host, with a port or not. None at all is a name (RFC 9110, 7.2).
fn is_host(value: &[u8]) -> bool {
    let is_of_one =
        |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(byte);
    value.trim_ascii().iter().all(is_of_one)
}

/// Decodes a path. Names that begin with a dot are not served (`.git`, `.htpasswd`) but for `.well-known`
/// (RFC 8615); that also refuses `..`, before the kernel would.
fn path(written: &str) -> Result<Vec<u8>, Bad> {
    let decoded: Vec<u8> = percent_decode(written.as_bytes()).collect();
    let names = decoded[1..].split(|byte| *byte == b'/');
    let names: Vec<&[u8]> = names.collect();
    let last = names.len() - 1;
    for (index, name) in names.iter().enumerate() {
        let hidden = name.starts_with(b".") && *name != b".well-known";
        // An empty name in the middle would make two addresses of one file.
        if hidden || name.contains(&0) || name.is_empty() && index < last {
            return Err(Bad::Path);
        }
    }
    Ok(decoded[1..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(target: &str, fields: &str) -> Result<Option<(Request, usize)>, Bad> {
        parse(format!("GET {target} HTTP/1.1\r\nHost: x\r\n{fields}\r\n").as_bytes())
    }

    fn path_of(target: &str) -> Result<String, Bad> {
        let (request, _) = get(target, "")?.expect("whole");
        Ok(String::from_utf8_lossy(&request.path).into_owned())
    }

    #[test]
    fn paths() {
        for (target, path) in [
            ("/", ""),
            ("/a/b.txt", "a/b.txt"),
            ("/a/", "a/"),
            ("/a%20b%2fc?x=/../y", "a b/c"),
            ("http://x/y?z", "y"),
            ("http://x", ""),
            ("http://x?/a", ""),
            ("/a?http://x/b", "a"),
            ("/.well-known/x", ".well-known/x"),
            ("/a..b/...c", "no"),
        ] {
            let found = path_of(target);
            if path == "no" {
                assert_eq!(found, Err(Bad::Path), "{target}");
            } else {
                assert_eq!(found.as_deref(), Ok(path), "{target}");
            }
        }
        for target in [
            "/../x",
            "/a/../../x",
            "/%2e%2e/x",
            "/a/%2e%2e%2fx",
            "/.git/config",
            "/a//b",
            "//etc",
            "/a%00b",
            "/./x",
        ] {
            assert_eq!(path_of(target), Err(Bad::Path), "{target}");
        }
        assert_eq!(path_of("*"), Err(Bad::Request));
        assert_eq!(path_of("x"), Err(Bad::Request));
    }

    #[test]
    fn heads_that_are_refused() {
        let cases: [(&str, Bad); 12] = [
            ("GET / HTTP/1.1\r\n\r\n", Bad::Request),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", Bad::Request),
            ("POST / HTTP/1.1\r\nHost: a\r\n\r\n", Bad::Method),
            ("BREW / HTTP/1.1\r\nHost: a\r\n\r\n", Bad::Unknown),
            ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", Bad::Version),
            ("GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", Bad::Request),
            ("GET / HTTP/1.1\r\nHost: a b/c\r\n\r\n", Bad::Request),
            ("GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", Bad::Request),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n",
                Bad::Body,
            ),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
                Bad::Request,
            ),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
                Bad::Body,
            ),
            ("\x16\x03\x01\x02\x00\x01", Bad::Request),
        ];
        for (head, bad) in cases {
            assert_eq!(parse(head.as_bytes()), Err(bad), "{head}");
        }
        let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(HEAD_BYTES_MAX));
        assert_eq!(parse(long.as_bytes()), Err(Bad::Long));
        assert_eq!(get("/", &"X: y\r\n".repeat(FIELDS_MAX)), Err(Bad::Long));
    }

    #[test]
    fn what_is_as_good_as_nothing_is_no_error() {
        for field in ["Content-Length: 0\r\n", "Content-Length: 00\r\n"] {
            assert!(get("/", field).is_ok(), "{field}");
        }
        for host in ["", "[::1]:80", "a.b:1", "xn--a_b"] {
            let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert!(parse(head.as_bytes()).is_ok(), "{host}");
        }
    }

    #[test]
    fn connections_stay_as_http_says() {
        let stays = |version: &str, field: &str| {
            let head = format!("GET / HTTP/{version}\r\nHost: x\r\n{field}\r\n");
            parse(head.as_bytes())
                .expect("good")
                .expect("whole")
                .0
                .keep_alive
        };
        assert!(stays("1.1", "") && stays("1.0", "Connection: Keep-Alive\r\n"));
        assert!(!stays("1.0", "") && !stays("1.1", "connection: foo, CLOSE\r\n"));
    }

    #[test]
    fn a_head_is_whole_with_its_last_byte_and_the_next_one_waits() {
        let head = b"HEAD /a HTTP/1.1\r\nHost: x\r\nRange: bytes=0-1\r\n\r\n";
        for end in 0..head.len() {
            assert_eq!(parse(&head[..end]), Ok(None), "{end}");
        }
        let two = [&head[..], b"GET"].concat();
        let (request, length) = parse(&two).expect("good").expect("whole");
        assert_eq!((request.method, length), (Method::Head, head.len()));
        assert_eq!(request.range.as_deref(), Some("bytes=0-1"));
    }
}
