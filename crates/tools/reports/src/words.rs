// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands as words: how the table writes them, and as the bytes that a client sends.
//!
//! Words are separated by blanks, commands by `;`. In `'...'` a blank or a semicolon stands for itself. `\r`, `\n`, `\'`
//! and `\\` are what they are elsewhere. `{p}` is the play's own key prefix.

use erb_check::resp;

/// Stands for the play's key prefix.
pub const PREFIX: &str = "{p}";
/// Length of each play's key prefix: lengths that the table itself writes down hold for every play.
pub const PREFIX_BYTES: usize = 16;

/// Commands, each as its words.
pub fn split(text: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quoted = false;
    let mut rest = text.chars();
    while let Some(one) = rest.next() {
        match one {
            '\'' => {
                quoted = !quoted;
                // An empty word is one too.
                word.get_or_insert_default();
            }
            ' ' | ';' if !quoted => {
                let last = commands.last_mut().expect("there is one");
                last.extend(word.take());
                if one == ';' {
                    commands.push(Vec::new());
                }
            }
            '\\' => {
                let escaped = match rest.next() {
                    Some('r') => '\r',
                    Some('n') => '\n',
                    Some(itself) => itself,
                    None => '\\',
                };
                word.get_or_insert_default().push(escaped);
            }
            itself => word.get_or_insert_default().push(itself),
        }
    }
    commands.last_mut().expect("there is one").extend(word);
    commands
}

/// The bytes of each command.
pub fn encoded(text: &str) -> Vec<Vec<u8>> {
    let commands = split(text);
    commands.iter().map(|words| resp::command(words)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_split_into_their_words() {
        assert_eq!(
            split(r"MULTI ; EVAL 'return 1; x' 0 a\r\n:1 '' ; GET {p}w"),
            [
                vec!["MULTI"],
                vec!["EVAL", "return 1; x", "0", "a\r\n:1", ""],
                vec!["GET", "{p}w"]
            ]
        );
        assert_eq!(encoded("PING"), [b"*1\r\n$4\r\nPING\r\n"]);
    }
}
