// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a request gets of a file: all of it, a part, or word that it has not changed. Pure; RFC 9110, 13 and 14.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::request::{Method, Request};

/// What tells one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// Device and inode.
    pub file: (u64, u64),
    /// Bytes.
    pub length_bytes: u64,
    /// Time of the last change of its bytes, since 1970.
    pub modified_ns: i128,
    /// Time of the last change of anything, since 1970.
    pub changed_ns: i128,
}

impl Version {
    /// Its entity tag. Strong: bytes that differ differ in one of these, or the body is not sent as whole. The time
    /// of the last change of anything is in it, because anybody may set that of the bytes back.
    #[must_use]
    pub fn etag(&self) -> String {
        format!(
            "\"{:x}-{:x}-{:x}-{:x}\"",
            self.file.1, self.length_bytes, self.modified_ns, self.changed_ns
        )
    }

    /// When it was changed, in whole seconds as HTTP has them.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        let seconds = u64::try_from(self.modified_ns / 1_000_000_000).unwrap_or(0);
        // What the date of HTTP cannot say (year 9999) is none.
        UNIX_EPOCH + Duration::from_secs(seconds.min(253_402_300_799))
    }
}

/// What is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// 200: all of it.
    Whole,
    /// 206: these bytes, the end not included.
    Part(u64, u64),
    /// 304.
    NotModified,
    /// 412.
    Failed,
    /// 416.
    Unsatisfiable,
}

/// Decides, in the order of RFC 9110, 13.2.2.
#[must_use]
pub fn outcome(request: &Request, version: &Version) -> Outcome {
    if request.is_plain() {
        return Outcome::Whole;
    }
    let etag = version.etag();
    let before = |date: &Option<String>| {
        date.as_deref()
            .and_then(|date| httpdate::parse_http_date(date).ok())
    };
    if let Some(tags) = &request.if_match {
        if !lists(tags, &etag, false) {
            return Outcome::Failed;
        }
    } else if before(&request.if_unmodified_since).is_some_and(|date| version.modified() > date) {
        return Outcome::Failed;
    }
    if let Some(tags) = &request.if_none_match {
        if lists(tags, &etag, true) {
            return Outcome::NotModified;
        }
    } else if before(&request.if_modified_since).is_some_and(|date| version.modified() <= date) {
        return Outcome::NotModified;
    }
    match &request.range {
        // Of an empty file nobody has a part, and clients that always ask for one want it whole.
        Some(range)
            if request.method == Method::Get
                && version.length_bytes > 0
                && same(request.if_range.as_deref(), &etag, version) =>
        {
            part(range, version.length_bytes)
        }
        _ => Outcome::Whole,
    }
}

/// Whether a list of entity tags has this one; `*` alone has any. A tag may have commas in it, and ours has none.
fn lists(tags: &str, etag: &str, weakly: bool) -> bool {
    let mut rest = tags.trim();
    if rest == "*" {
        return true;
    }
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let strong = rest.strip_prefix("W/");
        let is_weak = strong.is_some();
        // What is no tag ends the list: what stands behind it cannot be told.
        let Some(quoted) = strong.unwrap_or(rest).strip_prefix('"') else {
            return false;
        };
        let Some((tag, behind)) = quoted.split_once('"') else {
            return false;
        };
        if (weakly || !is_weak) && etag.trim_matches('"') == tag {
            return true;
        }
        rest = behind;
    }
}

/// Whether the client's part is of this version. A date must be the very one that was told.
fn same(if_range: Option<&str>, etag: &str, version: &Version) -> bool {
    match if_range {
        None => true,
        Some(tag) if tag.starts_with('"') => tag == etag,
        Some(date) => httpdate::parse_http_date(date).is_ok_and(|date| date == version.modified()),
    }
}

/// A single range (RFC 9110, 14.1.2 and 14.2). Several are answered by the whole file, as 14.2 allows; so is what is
/// no range. Read here, as no crate does: lists have empty members (5.6.1.2), and numbers any length.
fn part(range: &str, length_bytes: u64) -> Outcome {
    let set = match range.split_once('=') {
        Some((unit, set)) if unit.eq_ignore_ascii_case("bytes") => set,
        _ => return Outcome::Whole,
    };
    let mut specs = set
        .split(',')
        .map(str::trim)
        .filter(|spec| !spec.is_empty());
    let (Some(spec), None) = (specs.next(), specs.next()) else {
        return Outcome::Whole;
    };
    let Some((first, last)) = spec.split_once('-') else {
        return Outcome::Whole;
    };
    let (begin, end) = match (first, last) {
        ("", count) => match number(count) {
            Some(count) => (length_bytes.saturating_sub(count), length_bytes),
            None => return Outcome::Whole,
        },
        (first, "") => match number(first) {
            Some(begin) => (begin, length_bytes),
            None => return Outcome::Whole,
        },
        (first, last) => match (number(first), number(last)) {
            (Some(begin), Some(last)) if begin <= last => {
                (begin, last.saturating_add(1).min(length_bytes))
            }
            // Backwards is no range at all (14.1.1).
            _ => return Outcome::Whole,
        },
    };
    if begin < end {
        Outcome::Part(begin, end)
    } else {
        Outcome::Unsatisfiable
    }
}

/// Digits alone. What no file's length can be is behind the end of all of them.
fn number(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: Version = Version {
        file: (1, 0xabc),
        length_bytes: 1000,
        modified_ns: 1_700_000_000_500_000_000,
        changed_ns: 0,
    };
    const DATE: &str = "Tue, 14 Nov 2023 22:13:20 GMT";

    fn asked(fields: &str) -> Outcome {
        let head = format!("GET / HTTP/1.1\r\nHost: x\r\n{fields}\r\n");
        let (request, _) = crate::request::parse(head.as_bytes())
            .expect("good")
            .expect("whole");
        outcome(&request, &VERSION)
    }

    #[test]
    fn ranges() {
        for (range, wanted) in [
            ("bytes=0-0", Outcome::Part(0, 1)),
            ("bytes=10-19", Outcome::Part(10, 20)),
            ("bytes=990-", Outcome::Part(990, 1000)),
            ("bytes=-10", Outcome::Part(990, 1000)),
            ("bytes=-5000", Outcome::Part(0, 1000)),
            ("bytes=-0", Outcome::Unsatisfiable),
            ("bytes=0-99999", Outcome::Part(0, 1000)),
            ("bytes=999-999", Outcome::Part(999, 1000)),
            ("bytes=1000-", Outcome::Unsatisfiable),
            ("bytes=18446744073709551615-", Outcome::Unsatisfiable),
            ("bytes=18446744073709551616-", Outcome::Unsatisfiable),
            (
                "bytes=18446744073709551616-18446744073709551617",
                Outcome::Unsatisfiable,
            ),
            ("bytes=0-18446744073709551616", Outcome::Part(0, 1000)),
            ("bytes=-18446744073709551616", Outcome::Part(0, 1000)),
            ("Bytes=0-0", Outcome::Part(0, 1)),
            ("bytes=0001-0002", Outcome::Part(1, 3)),
            ("bytes=, 1-2 ,,", Outcome::Part(1, 3)),
            ("bytes=+1-2", Outcome::Whole),
            ("bytes=1-2;x", Outcome::Whole),
            ("bytes=1--2", Outcome::Whole),
            ("bytes =1-2", Outcome::Whole),
            ("bytes=0-1,5-6", Outcome::Whole),
            ("lines=0-1", Outcome::Whole),
            ("bytes=a-b", Outcome::Whole),
            ("bytes=-", Outcome::Whole),
            ("bytes=5-2", Outcome::Whole),
            ("bytes=0-18446744073709551615", Outcome::Part(0, 1000)),
            ("bytes=", Outcome::Whole),
        ] {
            assert_eq!(asked(&format!("Range: {range}\r\n")), wanted, "{range}");
        }
        let empty = Version {
            length_bytes: 0,
            ..VERSION
        };
        let head = b"GET / HTTP/1.1\r\nHost: x\r\nRange: bytes=0-0\r\n\r\n";
        let (request, _) = crate::request::parse(head).expect("good").expect("whole");
        assert_eq!(outcome(&request, &empty), Outcome::Whole);
    }

    #[test]
    fn conditions() {
        let etag = VERSION.etag();
        for (fields, wanted) in [
            (format!("If-None-Match: {etag}"), Outcome::NotModified),
            (
                format!("If-None-Match: \"x\", W/{etag}"),
                Outcome::NotModified,
            ),
            ("If-None-Match: *".into(), Outcome::NotModified),
            // A comma, a star or our tag within another tag is that tag's.
            ("If-None-Match: \"x,*,y\"".into(), Outcome::Whole),
            ("If-Match: \"x,*,y\"".into(), Outcome::Failed),
            ("If-Match: \"x\", *".into(), Outcome::Failed),
            (
                format!("If-None-Match: \"a,b\", ,{etag}"),
                Outcome::NotModified,
            ),
            (format!("If-Match: W/{etag}, {etag}"), Outcome::Whole),
            (
                format!("If-None-Match: {}", etag.trim_matches('"')),
                Outcome::Whole,
            ),
            ("If-None-Match: \"x\"".into(), Outcome::Whole),
            // The tag decides where there are both.
            (
                format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {DATE}"),
                Outcome::Whole,
            ),
            (format!("If-Modified-Since: {DATE}"), Outcome::NotModified),
            (
                "If-Modified-Since: Tue, 14 Nov 2023 22:13:19 GMT".into(),
                Outcome::Whole,
            ),
            ("If-Modified-Since: yesterday".into(), Outcome::Whole),
            (format!("If-Match: {etag}"), Outcome::Whole),
            (format!("If-Match: W/{etag}"), Outcome::Failed),
            (
                "If-Unmodified-Since: Tue, 14 Nov 2023 22:13:19 GMT".into(),
                Outcome::Failed,
            ),
            (
                format!("Range: bytes=1-2\r\nIf-Range: {etag}"),
                Outcome::Part(1, 3),
            ),
            ("Range: bytes=1-2\r\nIf-Range: \"x\"".into(), Outcome::Whole),
            (
                format!("Range: bytes=1-2\r\nIf-Range: W/{etag}"),
                Outcome::Whole,
            ),
            (
                format!("Range: bytes=1-2\r\nIf-Range: {DATE}"),
                Outcome::Part(1, 3),
            ),
            (
                format!("Range: bytes=1-2\r\nIf-None-Match: {etag}"),
                Outcome::NotModified,
            ),
        ] {
            assert_eq!(asked(&format!("{fields}\r\n")), wanted, "{fields}");
        }
    }
}
