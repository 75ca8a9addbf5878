// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cut as commands: a transaction of MSETs, and of SETs where keys expire; or one script.
//!
//! Invariants:
//! 1. A batch is whole or not at all in Redis's data: one MULTI with its EXEC, or one EVAL.
//! 2. A database is selected before each write of it, within the same batch.

use bytes::BytesMut;

use super::cut::Cut;

/// Keys of an MSET. More save nothing that can be measured; an error of one names as few as this.
const MSET_KEYS: usize = 100;

/// Longest line before an argument: its mark, 20 digits, the line's end.
const LINE_MAX: usize = 23;

/// The writes of a batch as one script. Within MULTI Redis refuses them when its memory is full, and
/// scripts are asked by this flag (Redis 7). What fails alone comes back by its number, a line each.
const SCRIPT: &[u8] = b"#!lua flags=allow-oom
local db, bad = nil, ''
for i = 1, #ARGV, 4 do
  if ARGV[i] ~= db then
    db = ARGV[i]
    redis.call('SELECT', db)
  end
  local reply
  if ARGV[i + 3] == '' then
    reply = redis.pcall('SET', ARGV[i + 1], ARGV[i + 2])
  else
    reply = redis.pcall('SET', ARGV[i + 1], ARGV[i + 2], 'PXAT', ARGV[i + 3])
  end
  if reply.err then
    bad = bad .. string.format('%d', (i - 1) / 4) .. ' ' .. reply.err .. '\\n'
  end
end
return bad";

/// How a batch is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// MSETs, and SETs of what expires.
    Together,
    /// A SET for each key, so that one that fails fails alone.
    Singly,
    /// [`SCRIPT`].
    Script,
}

/// Keys that one command of a transaction writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    /// In [`Batch::order`].
    pub(crate) first: usize,
    /// 0: it is a SELECT.
    pub(crate) count: usize,
}

/// What was said, so that the answer can be understood.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) form: Form,
    /// Indexes of the cut's keys: by database, then those without expiry first.
    pub(crate) order: Vec<u32>,
    /// The transaction's commands; of a script one for each key.
    pub(crate) elements: Vec<Element>,
    /// Databases that a script selects, one after the other.
    selects: u64,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            form: Form::Together,
            order: Vec::new(),
            elements: Vec::new(),
            selects: 0,
        }
    }
}

impl Batch {
    /// Appends the commands of a cut.
    pub(crate) fn say(&mut self, cut: &Cut, form: Form, output: &mut BytesMut) {
        self.form = form;
        self.elements.clear();
        self.order.clear();
        self.order.extend(0..cut.keys() as u32);
        let class = |index: u32| {
            let record = cut.record(index);
            (record.db, record.expiry_ms != 0)
        };
        // Mostly all are of one class, which needs no sorting.
        if !self.order.is_sorted_by_key(|index| class(*index)) {
            self.order.sort_by_key(|index| class(*index));
        }
        let mut say = Say { output };
        if form == Form::Script {
            self.say_script(cut, &mut say);
            return;
        }
        say.command(&[b"MULTI"]);
        let mut first = 0;
        while first < self.order.len() {
            let (db, expires) = class(self.order[first]);
            let is_new = first == 0 || class(self.order[first - 1]).0 != db;
            if is_new {
                say.words(2);
                say.word(b"SELECT");
                say.number(u64::from(db));
                self.elements.push(Element { first, count: 0 });
            }
            let most = if expires || form == Form::Singly {
                1
            } else {
                MSET_KEYS
            };
            let rest = self.order[first..].iter().take(most);
            let count = rest
                .take_while(|index| class(**index) == (db, expires))
                .count();
            let element = Element { first, count };
            self.say_element(cut, element, &mut say);
            self.elements.push(element);
            first += count;
        }
        say.command(&[b"EXEC"]);
    }

    fn say_element(&self, cut: &Cut, element: Element, say: &mut Say<'_>) {
        let keys = &self.order[element.first..element.first + element.count];
        let expiry_ms = cut.record(keys[0]).expiry_ms;
        say.words(1 + 2 * keys.len() + if expiry_ms == 0 { 0 } else { 2 });
        say.word(if keys.len() == 1 { b"SET" } else { b"MSET" });
        for key in keys {
            say.word(cut.key(*key));
            say.word(cut.value(*key));
        }
        if expiry_ms != 0 {
            say.word(b"PXAT");
            say.number(expiry_ms);
        }
    }

    fn say_script(&mut self, cut: &Cut, say: &mut Say<'_>) {
        say.words(3 + 4 * self.order.len());
        say.word(b"EVAL");
        say.word(SCRIPT);
        say.number(0);
        let mut selected = None;
        self.selects = 0;
        for (first, index) in self.order.iter().enumerate() {
            self.elements.push(Element { first, count: 1 });
            let record = cut.record(*index);
            self.selects += u64::from(selected.replace(record.db) != Some(record.db));
            say.number(u64::from(record.db));
            say.word(cut.key(*index));
            say.word(cut.value(*index));
            match record.expiry_ms {
                0 => say.word(b""),
                expiry_ms => say.number(expiry_ms),
            }
        }
    }

    /// Its commands by name, as Redis counts them: those of a script, too.
    pub(crate) fn commands(&self, mut count: impl FnMut(&'static str, u64)) {
        let many = |is: &dyn Fn(&Element) -> bool| {
            self.elements.iter().filter(|element| is(element)).count() as u64
        };
        count("set", many(&|element| element.count == 1));
        count("mset", many(&|element| element.count > 1));
        if self.form == Form::Script {
            count("eval", 1);
            count("select", self.selects);
        } else {
            count("multi", 1);
            count("exec", 1);
            count("select", many(&|element| element.count == 0));
        }
    }

    /// The keys that a command writes.
    pub(crate) fn keys_of(&self, element: usize) -> &[u32] {
        let element = self.elements[element];
        &self.order[element.first..element.first + element.count]
    }
}

/// Writes RESP.
struct Say<'a> {
    output: &'a mut BytesMut,
}

impl Say<'_> {
    fn line(&mut self, mark: u8, number: usize) {
        let mut line = [0; LINE_MAX];
        let (mut at, mut rest) = (LINE_MAX - 2, number);
        line[at..].copy_from_slice(b"\r\n");
        loop {
            at -= 1;
            line[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        at -= 1;
        line[at] = mark;
        self.output.extend_from_slice(&line[at..]);
    }

    fn words(&mut self, count: usize) {
        self.line(b'*', count);
    }

    fn word(&mut self, word: &[u8]) {
        self.line(b'$', word.len());
        self.output.extend_from_slice(word);
        self.output.extend_from_slice(b"\r\n");
    }

    fn number(&mut self, number: u64) {
        self.word(number.to_string().as_bytes());
    }

    fn command(&mut self, words: &[&[u8]]) {
        self.words(words.len());
        for word in words {
            self.word(word);
        }
    }
}
