// SPDX-License-Identifier: Apache-2.0 OR MIT
//! COMMAND LIST and COMMAND INFO, as Redis answers them in RESP3.

use erb_abi::Keys;

use crate::resp::{Frame, Tree, error, text};

/// A command as COMMAND INFO tells of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Listed {
    /// The name under which it was declared, whatever it is called now.
    pub(super) name: String,
    /// Exact number of arguments, the name included, or the least if negative.
    pub(super) arity: i64,
    /// Flags and ACL categories.
    words: Vec<String>,
    specs: Vec<Spec>,
}

/// A key specification: which keys, and whether they are written. Keys that cannot be told from the
/// arguments are `None`.
#[derive(Clone, Copy, Debug)]
struct Spec {
    written: bool,
    keys: Option<Keys>,
}

impl Listed {
    /// Whether it has this flag or category.
    pub(super) fn has(&self, word: &str) -> bool {
        self.words.iter().any(|own| own == word)
    }

    /// Whether all counts of arguments from `least` to `most`, the name included, are right.
    pub(super) const fn takes(&self, least: i64, most: i64) -> bool {
        if self.arity < 0 {
            least >= -self.arity
        } else {
            least == self.arity && most == self.arity
        }
    }

    /// The keys that it writes: `None` if they cannot be told, `Some(None)` if there are none.
    #[allow(clippy::option_option, reason = "three answers, said in one line")]
    pub(super) fn written(&self) -> Option<Option<Keys>> {
        let specs: Vec<&Spec> = self.specs.iter().filter(|spec| spec.written).collect();
        if specs.is_empty() && self.has("write") {
            return None;
        }
        let mut keys = Vec::new();
        for spec in specs {
            keys.push(spec.keys?);
        }
        match keys.as_slice() {
            [] => Some(None),
            [one] => Some(Some(*one)),
            several => joined(several).map(Some),
        }
    }
}

/// Single keys at even distances, as one range.
fn joined(several: &[Keys]) -> Option<Keys> {
    let single = |keys: &Keys| keys.keynum == 0 && i32::from(keys.first) == keys.last;
    if !several.iter().all(single) {
        return None;
    }
    let mut places: Vec<u16> = several.iter().map(|keys| keys.first).collect();
    places.sort_unstable();
    let step = places[1].checked_sub(places[0]).filter(|step| *step > 0)?;
    let even = places.windows(2).all(|pair| pair[1] - pair[0] == step);
    even.then(|| Keys {
        first: places[0],
        last: i32::from(places[places.len() - 1]),
        step,
        keynum: 0,
    })
}

/// Elements of an array or a set.
fn items(tree: &Tree) -> &[Tree] {
    match tree {
        Tree::List(list) => list,
        _ => &[],
    }
}

fn word(tree: &Tree) -> Option<String> {
    match tree {
        Tree::Text(text) => Some(text.to_lowercase()),
        _ => None,
    }
}

fn words(tree: &Tree) -> Vec<String> {
    items(tree).iter().filter_map(word).collect()
}

/// The value under a name of a map.
fn field<'a>(tree: &'a Tree, name: &str) -> Option<&'a Tree> {
    let Tree::Map(pairs) = tree else {
        return None;
    };
    let found = pairs
        .iter()
        .find(|(key, _)| matches!(key, Tree::Text(text) if text == name));
    found.map(|(_, value)| value)
}

fn number(tree: &Tree, name: &str) -> Option<i64> {
    match field(tree, name)? {
        Tree::Number(number) => Some(*number),
        _ => None,
    }
}

/// Names of COMMAND LIST without sub-commands; a name may be there twice.
pub(crate) fn names(frame: &Frame) -> Result<Vec<String>, String> {
    if let Some(text) = error(frame) {
        return Err(format!("Redis answers COMMAND LIST with {text:?}"));
    }
    let words: Vec<&Frame> = match frame {
        Frame::Array { data, .. } => data.iter().collect(),
        Frame::Set { data, .. } => data.iter().collect(),
        _ => return Err("Redis answers COMMAND LIST with no list".to_owned()),
    };
    let mut names: Vec<String> = words
        .into_iter()
        .filter_map(text)
        .map(|name| String::from_utf8_lossy(name).to_lowercase())
        .collect();
    names.retain(|name| !name.contains('|'));
    Ok(names)
}

/// The answer to COMMAND INFO: one for each name asked for, none where there is no such command.
pub(super) fn infos(tree: &Tree) -> Result<Vec<Option<Listed>>, String> {
    items(tree).iter().map(info).collect()
}

fn info(tree: &Tree) -> Result<Option<Listed>, String> {
    let fields = items(tree);
    if fields.is_empty() {
        return Ok(None);
    }
    let [
        name,
        Tree::Number(arity),
        flags,
        _,
        _,
        _,
        categories,
        _,
        specs,
        ..,
    ] = fields
    else {
        return Err(format!(
            "Redis answers COMMAND INFO with {} fields",
            fields.len()
        ));
    };
    let mut all = words(flags);
    all.extend(words(categories));
    Ok(Some(Listed {
        name: word(name).unwrap_or_default(),
        arity: *arity,
        words: all,
        specs: items(specs).iter().filter_map(spec).collect(),
    }))
}

/// A specification; none if it is about no key.
fn spec(tree: &Tree) -> Option<Spec> {
    let flags = field(tree, "flags").map(words).unwrap_or_default();
    let has = |word: &str| flags.iter().any(|flag| flag == word);
    if has("not_key") {
        return None;
    }
    let keys = if has("incomplete") { None } else { place(tree) };
    // What is not said to be only read is written.
    let written = !has("ro");
    Some(Spec { written, keys })
}

/// Where the keys of a specification are, if their places are fixed or counted.
fn place(tree: &Tree) -> Option<Keys> {
    let begin = field(tree, "begin_search")?;
    let find = field(tree, "find_keys")?;
    if word(field(begin, "type")?)? != "index" {
        return None;
    }
    let index = number(field(begin, "spec")?, "index").filter(|index| *index > 0)?;
    let how = field(find, "spec")?;
    let step = u16::try_from(number(how, "keystep")?).ok()?;
    if step == 0 {
        return None;
    }
    match word(field(find, "type")?)?.as_str() {
        "range" => {
            // A limit halves the range, or the like: nobody writes such keys.
            let last = number(how, "lastkey").filter(|_| number(how, "limit") < Some(2))?;
            Some(Keys {
                first: u16::try_from(index).ok()?,
                last: i32::try_from(if last < 0 { last } else { index + last }).ok()?,
                step,
                keynum: 0,
            })
        }
        "keynum" => {
            let keynum = index + number(how, "keynumidx")?;
            let first = index + number(how, "firstkey")?;
            Some(Keys {
                first: u16::try_from(first).ok().filter(|_| first > keynum)?,
                last: 0,
                step,
                keynum: u16::try_from(keynum).ok().filter(|keynum| *keynum > 0)?,
            })
        }
        _ => None,
    }
}
