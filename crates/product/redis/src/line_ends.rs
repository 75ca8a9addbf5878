// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether an error of this Redis is one line, whatever it repeats of its command's arguments.
//!
//! Redis cleans line ends out of errors and statuses since 7.4.8, 8.0.6, 8.2.5 and 8.4.2; distributions have that in older
//! versions, and Valkey 8.1.1 does not. So the version tells nothing, and each feed asks: by a command that changes nothing
//! and whose error was the last to be cleaned. Where that cannot be known replies are not believed to be cleaned
//! (`bpf/redis/scan_reply.h`, R4).

use crate::rights::lacks_right;

/// What is asked by; it must be Redis's own.
pub(crate) const COMMAND: &str = "function";

/// FUNCTION LIST with an argument that it does not know.
pub(crate) const QUESTION: [&[u8]; 3] = [b"FUNCTION", b"LIST", b"erb\r\n+line"];

/// How the error to it begins, in lower case.
const BEGIN: &str = "err unknown argument erb";
/// What of it is a status of its own if the line ends were left in it.
const REST: &str = "+line";

/// What the error to [`QUESTION`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineEnds {
    /// It is one line.
    Cleaned,
    /// [`REST`] comes as a reply of its own.
    Repeated,
    /// Another error: the command is not known, or not allowed.
    Untold,
}

/// What this error, without its mark, tells; none: Redis refuses most commands now, and is to be asked again.
pub(crate) fn of(error: &str) -> Option<LineEnds> {
    let text = error.to_ascii_lowercase();
    match text.strip_prefix(BEGIN) {
        Some("") => Some(LineEnds::Repeated),
        Some(rest) if rest.trim_start() == REST => Some(LineEnds::Cleaned),
        _ => (text.starts_with("err ") || lacks_right(error)).then_some(LineEnds::Untold),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_one_line_has_all_of_the_argument() {
        for (error, told) in [
            ("ERR Unknown argument erb  +line", Some(LineEnds::Cleaned)),
            ("ERR Unknown argument erb", Some(LineEnds::Repeated)),
            ("ERR Unknown argument erb  +lines", Some(LineEnds::Untold)),
            (
                "ERR unknown command 'FUNCTION', with args: 'LIST' 'erb  +line' ",
                Some(LineEnds::Untold),
            ),
            (
                "NOPERM User feed has no permissions to run 'function|list'",
                Some(LineEnds::Untold),
            ),
            ("LOADING Redis is loading the dataset in memory", None),
            ("BUSY Redis is busy running a script.", None),
        ] {
            assert_eq!(of(error), told, "{error}");
        }
    }
}
