// SPDX-License-Identifier: Apache-2.0 OR MIT
//! For tests: a Redis of a few lines, which executes what the drain says and is in a mood.

use std::collections::BTreeMap;

use crate::resp::Tree;

/// Database and key -> value and expiry.
pub(super) type Store = BTreeMap<(u16, Vec<u8>), (Vec<u8>, u64)>;

/// What a Redis says to the next transaction or script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    Well,
    /// When a command is to be queued.
    RefusesQueued(&'static str),
    /// When EXEC comes.
    RefusesExec(&'static str),
    /// Transactions, not scripts.
    Full,
    /// The script too.
    FullForAll,
}

/// Executes what the drain says.
pub(super) struct Redis {
    pub(super) store: Store,
    /// How many it has.
    pub(super) databases: u16,
    /// The connection's.
    pub(super) db: u16,
    pub(super) queue: Option<Vec<Vec<Vec<u8>>>>,
    dirty: Option<&'static str>,
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    /// Transactions that were executed.
    pub(super) executed: u32,
    /// In the last one a write failed by itself.
    pub(super) torn: bool,
}

impl Redis {
    pub(super) fn new(databases: u16) -> Self {
        Self {
            store: Store::new(),
            databases,
            db: 0,
            queue: None,
            dirty: None,
            input: Vec::new(),
            output: Vec::new(),
            executed: 0,
            torn: false,
        }
    }

    pub(super) fn hear(&mut self, bytes: &[u8], mood: Mood) {
        self.input.extend_from_slice(bytes);
        while let Some((Tree::List(words), length)) = Tree::parse(&self.input).unwrap() {
            // Values of the tests are text, so that this small reader may serve.
            let word = |word: Tree| match word {
                Tree::Text(text) => text.into_bytes(),
                other => panic!("{other:?}"),
            };
            let words: Vec<Vec<u8>> = words.into_iter().map(word).collect();
            self.input.drain(..length);
            let reply = self.reply(&words, mood);
            self.output.extend_from_slice(reply.as_bytes());
        }
    }

    fn reply(&mut self, words: &[Vec<u8>], mood: Mood) -> String {
        match (words[0].as_slice(), &mut self.queue) {
            (b"MULTI", queue) => {
                assert!(queue.replace(Vec::new()).is_none());
                self.dirty = None;
                "+OK\r\n".into()
            }
            (b"EXEC", _) => self.exec(mood),
            (b"EVAL", None) => self.eval(words, mood),
            (_, Some(queue)) => {
                queue.push(words.to_vec());
                let refused = match mood {
                    Mood::RefusesQueued(why) => Some(why),
                    Mood::Full | Mood::FullForAll if words[0] != b"SELECT" => Some("OOM no memory"),
                    _ => None,
                };
                if let Some(why) = refused {
                    self.dirty = Some(why);
                    return format!("-{why}\r\n");
                }
                "+QUEUED\r\n".into()
            }
            other => panic!("{other:?} outside of a transaction"),
        }
    }

    fn exec(&mut self, mood: Mood) -> String {
        let queue = self.queue.take().expect("MULTI");
        if self.dirty.take().is_some() {
            return "-EXECABORT Transaction discarded because of previous errors.\r\n".into();
        }
        if let Mood::RefusesExec(why) = mood {
            return format!("-EXECABORT Transaction discarded because of: {why}\r\n");
        }
        self.executed += 1;
        self.torn = false;
        let mut replies = format!("*{}\r\n", queue.len());
        for words in queue {
            match self.run(&words) {
                Ok(()) => replies += "+OK\r\n",
                Err(error) => {
                    self.torn |= words[0] == b"MSET";
                    replies += &format!("-{error}\r\n");
                }
            }
        }
        replies
    }

    fn eval(&mut self, words: &[Vec<u8>], mood: Mood) -> String {
        assert!(words[1].starts_with(b"#!lua flags=allow-oom\n") && words[2] == b"0");
        if mood == Mood::FullForAll {
            return "-OOM no memory for scripts either\r\n".into();
        }
        let mut bad = String::new();
        for (index, write) in words[3..].chunks(4).enumerate() {
            if let Err(error) = self.select(&write[0]) {
                return format!("-{error}\r\n");
            }
            let mut set = vec![b"SET".to_vec(), write[1].clone(), write[2].clone()];
            if !write[3].is_empty() {
                set.extend([b"PXAT".to_vec(), write[3].clone()]);
            }
            if let Err(error) = self.run(&set) {
                bad += &format!("{index} {error}\n");
            }
        }
        self.executed += 1;
        self.torn = false;
        format!("${}\r\n{bad}\r\n", bad.len())
    }

    fn run(&mut self, words: &[Vec<u8>]) -> Result<(), String> {
        match (words[0].as_slice(), words.len()) {
            (b"SELECT", 2) => self.select(&words[1])?,
            (b"SET", 3) => self.set(&words[1], &words[2], 0)?,
            (b"SET", 5) if words[3] == b"PXAT" => {
                self.set(&words[1], &words[2], number(&words[4]))?
            }
            (b"MSET", _) => {
                assert!(words.len() <= 201, "100 keys");
                // Redis checks an MSET before it begins.
                for pair in words[1..].chunks(2) {
                    judge(&pair[0])?;
                }
                for pair in words[1..].chunks(2) {
                    self.set(&pair[0], &pair[1], 0)?;
                }
            }
            _ => panic!("{words:?}"),
        }
        Ok(())
    }

    fn select(&mut self, db: &[u8]) -> Result<(), String> {
        let db = number(db) as u16;
        if db >= self.databases {
            return Err("ERR DB index is out of range".into());
        }
        self.db = db;
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8], expiry_ms: u64) -> Result<(), String> {
        judge(key)?;
        let place = (self.db, key.to_vec());
        self.store.insert(place, (value.to_vec(), expiry_ms));
        Ok(())
    }
}

/// Keys that begin so are refused by themselves.
pub(super) const BAD: &[u8] = b"bad";

fn judge(key: &[u8]) -> Result<(), String> {
    match key.starts_with(BAD) {
        true => Err("ERR such a key cannot be".into()),
        false => Ok(()),
    }
}

fn number(word: &[u8]) -> u64 {
    std::str::from_utf8(word).unwrap().parse().unwrap()
}
