// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The answer to a batch, in whatever pieces it comes.
//!
//! Invariants:
//! 1. Every reply is looked at: a batch is whole only if MULTI, each command and each element of EXEC said
//!    what it had to say, literally.
//! 2. A byte that is no part of an element that has come whole is not taken. Between two replies there may
//!    be a push, which is somebody else's; within EXEC's there is none.
//! 3. Nothing is copied but the text of an error.

use std::io;

use crate::resp::broken;

/// Longest line: an error with a command's first arguments in it.
const LINE_BYTES_MAX: usize = 4096;

/// What stands before the reason why EXEC did nothing (Redis src/multi.c, execCommandAbort).
const DISCARDED: &str = "EXECABORT Transaction discarded because of: ";

/// How a batch ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It was executed. These elements say errors, the others `+OK`.
    Executed(Vec<(usize, String)>),
    /// None of it was executed as a batch; why.
    Refused(String),
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// There is more to come.
    More,
    /// The next bytes are a push.
    Push,
    End(End),
}

/// Where the answer is.
#[derive(Debug)]
enum Stage {
    Multi,
    /// So many commands are still to be queued.
    Queued(usize),
    Exec,
    Element(usize),
    Script,
}

/// The answer to one batch.
#[derive(Debug)]
pub(crate) struct Answer {
    stage: Stage,
    /// Commands of the transaction, without MULTI and EXEC; of a script: writes.
    elements: usize,
    /// The first error before EXEC's reply.
    refusal: Option<String>,
    errors: Vec<(usize, String)>,
}

impl Answer {
    /// To a transaction of so many commands.
    pub(crate) const fn to_transaction(elements: usize) -> Self {
        Self::at(Stage::Multi, elements)
    }

    /// To a script with so many writes.
    pub(crate) const fn to_script(elements: usize) -> Self {
        Self::at(Stage::Script, elements)
    }

    const fn at(stage: Stage, elements: usize) -> Self {
        Self {
            stage,
            elements,
            refusal: None,
            errors: Vec::new(),
        }
    }

    /// Takes what belongs to the answer; how many bytes that was.
    ///
    /// # Errors
    /// This is no answer to a batch.
    pub(crate) fn take(&mut self, input: &[u8]) -> io::Result<(usize, Next)> {
        let mut at = 0;
        loop {
            at += self.take_usual(&input[at..]);
            let rest = &input[at..];
            if rest.first() == Some(&b'>') && !matches!(self.stage, Stage::Element(_)) {
                return Ok((at, Next::Push));
            }
            let Some(line) = line_of(rest)? else {
                return Ok((at, Next::More));
            };
            if matches!(self.stage, Stage::Script) {
                let (length, next) = self.take_script(line, rest)?;
                return Ok((at + length, next));
            }
            at += line.len() + 2;
            if let Some(end) = self.take_line(line)? {
                return Ok((at, Next::End(end)));
            }
        }
    }

    /// Takes what is nearly always said, as far as it is here.
    fn take_usual(&mut self, input: &[u8]) -> usize {
        let usual: &[u8] = match self.stage {
            Stage::Queued(_) => b"+QUEUED\r\n",
            Stage::Element(_) => b"+OK\r\n",
            _ => return 0,
        };
        let mut at = 0;
        while input[at..].starts_with(usual) {
            // The last element is what ends the answer: `take_line` sees it.
            match &mut self.stage {
                Stage::Queued(left) if *left > 1 => *left -= 1,
                Stage::Element(index) if *index + 1 < self.elements => *index += 1,
                _ => break,
            }
            at += usual.len();
        }
        at
    }

    fn take_line(&mut self, line: &[u8]) -> io::Result<Option<End>> {
        let error = line.strip_prefix(b"-").map(text);
        match self.stage {
            Stage::Multi => {
                self.expect(line, b"+OK", error)?;
                self.stage = Stage::Queued(self.elements);
            }
            Stage::Queued(left) => {
                self.expect(line, b"+QUEUED", error)?;
                self.stage = match left {
                    1 => Stage::Exec,
                    _ => Stage::Queued(left - 1),
                };
            }
            Stage::Exec => return self.take_exec(line, error),
            Stage::Element(index) => {
                match error {
                    Some(error) => self.errors.push((index, error)),
                    None if line == b"+OK" => {}
                    None => return Err(broken("an element of EXEC's reply is no reply to a SET")),
                }
                if index + 1 == self.elements {
                    let errors = std::mem::take(&mut self.errors);
                    return Ok(Some(End::Executed(errors)));
                }
                self.stage = Stage::Element(index + 1);
            }
            Stage::Script => return Err(broken("a script has no lines")),
        }
        Ok(None)
    }

    /// A reply before EXEC's. What was refused once may be followed by anything: where MULTI itself was
    /// refused, the rest was executed.
    fn expect(&mut self, line: &[u8], usual: &[u8], error: Option<String>) -> io::Result<()> {
        match error {
            Some(error) => {
                self.refusal.get_or_insert(error);
            }
            None if line == usual || (self.refusal.is_some() && line == b"+OK") => {}
            None => return Err(broken("a reply to a batch is none")),
        }
        Ok(())
    }

    fn take_exec(&mut self, line: &[u8], error: Option<String>) -> io::Result<Option<End>> {
        if let Some(error) = error {
            let why = self.refusal.take().unwrap_or(error);
            let why = why.strip_prefix(DISCARDED).unwrap_or(&why);
            return Ok(Some(End::Refused(why.to_owned())));
        }
        let count = line.strip_prefix(b"*").and_then(number);
        if count != Some(self.elements) || self.refusal.is_some() {
            return Err(broken(
                "EXEC answered another number of replies than there were commands",
            ));
        }
        self.stage = Stage::Element(0);
        Ok(None)
    }

    /// A script answers a string: a line for each write that failed.
    fn take_script(&self, line: &[u8], input: &[u8]) -> io::Result<(usize, Next)> {
        let head = line.len() + 2;
        if let Some(error) = line.strip_prefix(b"-") {
            return Ok((head, Next::End(End::Refused(text(error)))));
        }
        let odd = || broken("a reply to a script is none");
        let length = line.strip_prefix(b"$").and_then(number).ok_or_else(odd)?;
        if length > self.elements * LINE_BYTES_MAX {
            return Err(odd());
        }
        let Some(body) = input.get(head..head + length + 2) else {
            return Ok((0, Next::More));
        };
        let mut errors = Vec::new();
        for line in body[..length]
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            let blank = line.iter().position(|byte| *byte == b' ');
            let (index, error) = line.split_at(blank.ok_or_else(odd)?);
            let index = number(index).filter(|index| *index < self.elements);
            errors.push((index.ok_or_else(odd)?, text(&error[1..])));
        }
        Ok((head + length + 2, Next::End(End::Executed(errors))))
    }
}

/// The first line without its end, if it is whole.
fn line_of(input: &[u8]) -> io::Result<Option<&[u8]>> {
    let within = &input[..input.len().min(LINE_BYTES_MAX + 2)];
    let end = within.windows(2).position(|pair| pair == b"\r\n");
    if end.is_none() && input.len() >= LINE_BYTES_MAX + 2 {
        return Err(broken("a line of a reply is longer than any"));
    }
    Ok(end.map(|end| &input[..end]))
}

fn number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
