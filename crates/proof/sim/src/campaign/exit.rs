// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exit codes of `erb-sim`, decided here and nowhere else.

/// Shown below `erb-sim --help`.
pub const HELP: &str = "\
Exit codes:
  0  done, and no rule was broken
  1  something else failed; the message says what
  2  arguments that cannot be used
  3  a rule was broken; the message says which run shows it
  4  a mutation was not caught
  5  a table is wrong: what cannot be reached was reached";

/// Something else failed.
pub const FAILED: u8 = 1;
/// Arguments that cannot be used.
pub const USAGE: u8 = 2;
/// A rule was broken.
pub const VIOLATION: u8 = 3;
/// A mutation was not caught.
pub const NOT_CAUGHT: u8 = 4;
/// What cannot be reached was reached.
pub const TABLE: u8 = 5;
