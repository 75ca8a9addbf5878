// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the bytes of a sequence come: in one segment, each command in its own, or cut in two at one place.

use fastrand::Rng;

use crate::sequence::{Said, Sequence, Step};
use crate::words::{self, PREFIX, PREFIX_BYTES};

/// Up to so many bytes a sequence is cut at every one.
pub const EVERYWHERE_BYTES: usize = 512;
/// Of the boundaries of a longer one so many are cut, evenly.
const BOUNDARIES: usize = 64;
/// And so many other places, that the seed chooses.
const ANYWHERE: usize = 16;
/// Longer ones are not sent command by command.
const APART_MAX: usize = 256;
/// Of a sequence that is cut at few places: the same ones each time.
const FEW: usize = 2;

/// Where sequences are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Cuts {
    /// At two places, the same each time.
    Few,
    /// At every byte, those that are longer than 512 bytes between commands and at some other places.
    Every,
}

/// How one play comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// What is said at once is one segment.
    Whole,
    /// Each command is a segment.
    Apart,
    /// What is said first, second, ... is cut in two behind so many bytes.
    Cut(usize, usize),
}

/// Ends of all commands but the last in what is said.
pub fn boundaries(said: &Said) -> Vec<usize> {
    let Said::Words(text) = said else {
        return Vec::new();
    };
    let mut at = 0;
    let mut ends: Vec<usize> = words::encoded(text)
        .iter()
        .map(|command| {
            at += command.len();
            at
        })
        .collect();
    ends.pop();
    ends
}

/// What is said, with the prefix put in.
pub fn bytes(said: &Said, prefix: &str) -> Vec<u8> {
    match said {
        Said::Words(text) => words::encoded(&text.replace(PREFIX, prefix)).concat(),
        Said::Bytes(text) => text.replace(PREFIX, prefix).into_bytes(),
    }
}

/// What a sequence says, step by step, under a prefix as long as every one.
fn turns(sequence: &Sequence) -> Vec<(Vec<u8>, Vec<usize>)> {
    let prefix = "p".repeat(PREFIX_BYTES);
    let said = sequence.steps.iter().filter_map(|step| match step {
        Step::Say(_, said) => Some(said),
        _ => None,
    });
    said.map(|said| {
        let said = match said {
            Said::Words(text) => Said::Words(text.replace(PREFIX, &prefix)),
            Said::Bytes(text) => Said::Bytes(text.replace(PREFIX, &prefix)),
        };
        (bytes(&said, &prefix), boundaries(&said))
    })
    .collect()
}

/// Bytes that a sequence says in all.
pub fn length(sequence: &Sequence) -> usize {
    turns(sequence).iter().map(|(bytes, _)| bytes.len()).sum()
}

/// At most `most` of them, evenly.
fn thinned<T: Copy>(all: &[T], most: usize) -> Vec<T> {
    if all.len() <= most {
        return all.to_vec();
    }
    (0..most).map(|at| all[at * all.len() / most]).collect()
}

/// All forms of a sequence.
pub fn forms(sequence: &Sequence, cuts: Cuts, seed: u64) -> Vec<Form> {
    let turns = turns(sequence);
    let mut forms = vec![Form::Whole];
    if sequence.uncut {
        return forms;
    }
    let commands: usize = turns.iter().map(|(_, ends)| ends.len()).sum();
    if (1..=APART_MAX).contains(&commands) {
        forms.push(Form::Apart);
    }
    let every: Vec<Form> = turns
        .iter()
        .enumerate()
        .flat_map(|(turn, (bytes, _))| (1..bytes.len()).map(move |at| Form::Cut(turn, at)))
        .collect();
    if cuts == Cuts::Few {
        // Neither begins where a command does.
        let inner = every.get(every.len() / 7..).unwrap_or_default();
        forms.extend(thinned(inner, FEW));
    } else if length(sequence) <= EVERYWHERE_BYTES {
        forms.extend(every);
    } else {
        let ends: Vec<Form> = turns
            .iter()
            .enumerate()
            .flat_map(|(turn, (_, ends))| ends.iter().map(move |&at| Form::Cut(turn, at)))
            .collect();
        forms.extend(thinned(&ends, BOUNDARIES));
        let mut rng = Rng::with_seed(seed);
        forms.extend((0..ANYWHERE).map(|_| every[rng.usize(..every.len())]));
    }
    forms
}

/// The segments of what is said.
pub fn parts<'a>(bytes: &'a [u8], ends: &[usize], turn: usize, form: Form) -> Vec<&'a [u8]> {
    let cut = |ends: &[usize]| {
        let mut parts = Vec::new();
        let mut from = 0;
        for &at in ends.iter().chain([&bytes.len()]) {
            let at = at.min(bytes.len());
            if at > from {
                parts.push(&bytes[from..at]);
            }
            from = at;
        }
        parts
    };
    match form {
        Form::Apart => cut(ends),
        Form::Cut(of, at) if of == turn => cut(&[at]),
        Form::Whole | Form::Cut(..) => cut(&[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::Who::A;

    #[test]
    fn a_short_sequence_is_cut_at_every_byte_and_a_long_one_between_commands() {
        let short = Sequence::new("x", "y")
            .ask(A, "GET {p}w")
            .ask(A, "PING ; PING");
        let bytes = length(&short);
        assert_eq!(bytes, 37 + 28);
        let forms = forms(&short, Cuts::Every, 1);
        // Whole, apart, and in each of two turns at all places but the ends.
        assert_eq!(forms.len(), 2 + (37 - 1) + (28 - 1));
        assert!(forms.contains(&Form::Cut(0, 36)) && forms.contains(&Form::Cut(1, 14)));
        let text = vec!["PING"; 100].join(" ; ");
        let long = super::forms(&Sequence::new("x", "y").ask(A, text), Cuts::Every, 1);
        assert_eq!(long.len(), 2 + BOUNDARIES + ANYWHERE);
        assert!(long.contains(&Form::Cut(0, 14)));
    }

    #[test]
    fn what_is_cut_is_said_whole() {
        let said = Said::Words("GET {p}w ; PING".to_owned());
        let ends = boundaries(&Said::Words("GET 0123456789abcdefw ; PING".to_owned()));
        let bytes = bytes(&said, "0123456789abcdef");
        assert_eq!(ends, [37]);
        for form in [Form::Whole, Form::Apart, Form::Cut(0, 5), Form::Cut(1, 5)] {
            let parts = parts(&bytes, &ends, 0, form);
            assert_eq!(parts.concat(), bytes, "{form:?}");
            assert!(parts.iter().all(|part| !part.is_empty()));
        }
        assert_eq!(parts(&bytes, &ends, 0, Form::Cut(0, 5)).len(), 2);
        assert_eq!(parts(&bytes, &ends, 0, Form::Apart).len(), 2);
    }
}
