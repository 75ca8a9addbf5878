// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files of operations: a line for each, `r KEY` or `w KEY BYTES`, and behind it, in all lines or none,
//! when it is due in microseconds. Lines that are empty or begin with `#` say nothing.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};

use super::value::VALUE_BYTES_MAX;

/// Longest key. ERB answers those of 256 bytes at most; Redis takes far longer ones.
const KEY_BYTES_MAX: usize = 1024;
/// More keys than these have no number.
const KEYS_MAX: usize = 100_000_000;

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Number of the key.
    pub key: u32,
    /// Bytes that are written; none: it is read.
    pub written: Option<u32>,
}

/// A whole file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Names of the keys, in the order of their first lines.
    pub names: Vec<Box<[u8]>>,
    /// What the first write of each key writes; none if it is only read.
    pub sizes: Vec<Option<u32>>,
    /// Operations.
    pub lines: Vec<Line>,
    /// When they are due, in microseconds since the first one; none: as soon as a connection is idle.
    pub times: Option<Arc<[u64]>>,
}

impl Trace {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self> {
        let told = || format!("cannot replay {}", path.display());
        let bytes = fs::read(path).with_context(told)?;
        Self::parse(&bytes).with_context(told)
    }

    /// Reads a file's bytes; an error names the line.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut trace = Self {
            names: Vec::new(),
            sizes: Vec::new(),
            lines: Vec::new(),
            times: None,
        };
        let mut numbers = HashMap::new();
        let mut times = Vec::new();
        for (number, line) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let told = || {
                let begin = String::from_utf8_lossy(&line[..line.len().min(60)]);
                format!("line {number}, `{begin}`")
            };
            let time = trace.take(line, &mut numbers).with_context(told)?;
            times.extend(time);
            let lines = trace.lines.len();
            let timed = times.is_empty() || times.len() == lines;
            ensure!(
                timed,
                "{}: it has {} time and the lines before it have {}: give all lines one, or none",
                told(),
                if time.is_some() { "a" } else { "no" },
                if time.is_some() { "none" } else { "one" }
            );
            if let [.., before, now] = times[..] {
                ensure!(
                    before <= now,
                    "{}: its time is before {before}, that of the line before it: sort by time",
                    told()
                );
            }
        }
        ensure!(!trace.lines.is_empty(), "it has no operation");
        if let Some(&first) = times.first() {
            trace.times = Some(times.into_iter().map(|time| time - first).collect());
        }
        Ok(trace)
    }

    /// Adds the operation of a line; its time, if it has one.
    fn take<'a>(
        &mut self,
        line: &'a [u8],
        numbers: &mut HashMap<&'a [u8], u32>,
    ) -> Result<Option<u64>> {
        let mut words = line
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty());
        let write = match words.next() {
            Some(b"r") => false,
            Some(b"w") => true,
            _ => bail!("an operation is `r KEY` or `w KEY BYTES`"),
        };
        let name = words.next().context("it has no key")?;
        ensure!(
            name.len() <= KEY_BYTES_MAX,
            "its key has {} bytes; {KEY_BYTES_MAX} are the most",
            name.len()
        );
        let written = if write {
            let bytes = parse(
                words
                    .next()
                    .context("it does not say how many bytes to write")?,
            )?;
            ensure!(
                (1..=u64::from(VALUE_BYTES_MAX)).contains(&bytes),
                "{bytes} bytes cannot be written; 1 to {VALUE_BYTES_MAX} can"
            );
            Some(bytes as u32)
        } else {
            None
        };
        let time = words.next().map(parse).transpose()?;
        ensure!(words.next().is_none(), "there is more behind its time");
        let next = self.names.len();
        ensure!(next < KEYS_MAX, "there are more than {KEYS_MAX} keys");
        let key = *numbers.entry(name).or_insert(next as u32);
        if key as usize == next {
            self.names.push(name.into());
            self.sizes.push(None);
        }
        let size = &mut self.sizes[key as usize];
        *size = size.or(written);
        self.lines.push(Line { key, written });
        Ok(time)
    }
}

fn parse(word: &[u8]) -> Result<u64> {
    let text = String::from_utf8_lossy(word);
    text.parse()
        .ok()
        .with_context(|| format!("{text} is not a number of bytes or microseconds"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(key: u32, written: Option<u32>) -> Line {
        Line { key, written }
    }

    #[test]
    fn operations_keys_and_sizes() {
        let text = "# a trace\n\nr user:1\r\n  w user:2  100\nw user:1 7\nr \u{e9}\nw user:1 8";
        let trace = Trace::parse(text.as_bytes()).unwrap();
        let lines = [
            line(0, None),
            line(1, Some(100)),
            line(0, Some(7)),
            line(2, None),
            line(0, Some(8)),
        ];
        assert_eq!(trace.lines, lines);
        assert_eq!(trace.sizes, [Some(7), Some(100), None]);
        assert_eq!(*trace.names[1], *b"user:2");
        assert_eq!(trace.times, None);
    }

    #[test]
    fn times_count_from_the_first() {
        let trace = Trace::parse(b"r a 1000\nw a 20 1000\nr b 1750\n").unwrap();
        assert_eq!(*trace.times.unwrap(), [0, 0, 750]);
        assert_eq!(trace.sizes, [Some(20), None]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, line, reason) in [
            ("r a\nx a", 2, "`r KEY`"),
            ("R a", 1, "`r KEY`"),
            ("# r\nr", 2, "no key"),
            ("r a\n\nw a", 3, "how many bytes"),
            ("w a much", 1, "much is not a number"),
            ("w a -1", 1, "-1 is not a number"),
            ("w a 0", 1, "0 bytes cannot be written"),
            ("w a 16777216", 1, "16777216 bytes"),
            ("r a soon", 1, "soon is not a number"),
            ("r a 1 2", 1, "more behind its time"),
            ("w a 100 1 2", 1, "more behind its time"),
            ("r a 1\nr a", 2, "no time and the lines before it have one"),
            ("r a\nr a 1", 2, "a time and the lines before it have none"),
            ("r a 5\nr a 4", 2, "before 5"),
        ] {
            let error = format!("{:#}", Trace::parse(text.as_bytes()).unwrap_err());
            assert!(
                error.starts_with(&format!("line {line}, ")),
                "{text:?}: {error}"
            );
            assert!(error.contains(reason), "{text:?}: {error}");
        }
        let long = [b"r ", &[b'k'; 1025][..]].concat();
        assert!(format!("{:#}", Trace::parse(&long).unwrap_err()).contains("1025 bytes"));
        for nothing in ["", "# only this\n\n"] {
            let error = Trace::parse(nothing.as_bytes()).unwrap_err();
            assert!(error.to_string().contains("no operation"), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Trace::read(Path::new("/nowhere/trace")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/trace"), "{error}");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            operations in prop::collection::vec((0u32..20, prop::option::of(1u32..1000), 0u64..50), 1..100),
            timed: bool,
        ) {
            let (mut text, mut now) = (String::new(), 0);
            for (key, written, pause) in &operations {
                now += pause;
                text += &match written {
                    None => format!("r k{key}"),
                    Some(bytes) => format!("w k{key} {bytes}"),
                };
                text += &if timed { format!(" {now}\n") } else { "\n".to_owned() };
            }
            let trace = Trace::parse(text.as_bytes()).unwrap();
            prop_assert_eq!(trace.lines.len(), operations.len());
            for (line, (key, written, _)) in trace.lines.iter().zip(&operations) {
                let name = format!("k{key}");
                prop_assert_eq!(&*trace.names[line.key as usize], name.as_bytes());
                prop_assert_eq!(line.written, *written);
            }
            prop_assert_eq!(trace.times.is_some(), timed);
        }

        #[test]
        fn anything_is_read_or_told_with_its_line(
            bytes in prop_oneof![
                any::<Vec<u8>>(),
                "([rwx] ?[ab]? ?[0-9]{0,3} ?[0-9]{0,3}\n){0,4}".prop_map(String::into_bytes),
            ],
        ) {
            if let Err(error) = Trace::parse(&bytes) {
                let told = error.to_string();
                let lines = bytes.split(|&byte| byte == b'\n').count();
                let named = (1..=lines).any(|line| told.starts_with(&format!("line {line}, ")));
                prop_assert!(named || told == "it has no operation", "{}", told);
            }
        }
    }
}
