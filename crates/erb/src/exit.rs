// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exit codes, decided here and nowhere else.

use erb_daemon::Error;
use erb_datapath::Error as DatapathError;

/// Shown below `erb --help`.
pub const HELP: &str = "\
Exit codes:
  0   done
  1   something else failed; the message says what
  2   arguments that cannot be used
  3   too little privilege
  4   kernel too old or without BTF
  5   no such device, or one that cannot be boosted
  6   the device has an XDP program already
  7   Redis cannot be reached or refuses the daemon's user, or its password file cannot be used
  8   Redis is older than 7.0
  9   nothing listens on Redis's port in this network namespace
  10  a size that cannot be used
  11  already boosted, or a detach is under way
  12  nothing is boosted
  13  the kernel refused a program
  14  detach: connections still need translation; the daemon leaves with the last one
  15  what is at work is of another version or build of ERB
  16  doctor: a boost would be made, but answer nothing
  17  trace: somebody else traces already";

/// Something else failed.
pub const FAILED: u8 = 1;
/// Doctor: nothing would be answered.
pub const ANSWERS_NOTHING: u8 = 16;
/// There is no boost, or not any more.
pub const NOT_BOOSTED: u8 = 12;
/// Detach: connections still need translation.
pub const STILL_NEEDED: u8 = 14;

/// The code of an error of the daemon or of a command that talks to it.
pub const fn code(error: &Error) -> u8 {
    match error {
        Error::Usage(_) => 2,
        Error::Privilege(_) => 3,
        Error::Kernel(_) => 4,
        Error::Redis { .. } | Error::Credentials { .. } => 7,
        Error::RedisOld { .. } => 8,
        Error::NoListener(_) => 9,
        Error::AlreadyBoosted(_) | Error::Detaching { .. } => 11,
        Error::NotBoosted(_) | Error::LeftBehind(_) => NOT_BOOSTED,
        Error::AlreadyTraced(_) => 17,
        Error::OtherBuild { .. } => 15,
        Error::NoAnswer { .. } | Error::Io { .. } => FAILED,
        Error::Datapath(error) => match error {
            DatapathError::NoDevice(_) | DatapathError::Layers(_) => 5,
            DatapathError::ForeignXdp(_) => 6,
            DatapathError::Size(_) => 10,
            DatapathError::Load { .. } | DatapathError::Attach { .. } => 13,
            DatapathError::OtherVersion { .. } | DatapathError::OtherLayout { .. } => 15,
            DatapathError::Pin { .. }
            | DatapathError::Run { .. }
            | DatapathError::Map { .. }
            | DatapathError::System { .. } => FAILED,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_documented() {
        let errors = [
            Error::Usage(String::new()),
            Error::Privilege(String::new()),
            Error::Kernel(String::new()),
            Error::NoListener(1),
            Error::AlreadyBoosted("x".into()),
            Error::NotBoosted("x".into()),
            Error::LeftBehind("x".into()),
            Error::AlreadyTraced("x".into()),
            Error::Datapath(DatapathError::NoDevice(String::new())),
            Error::Datapath(DatapathError::ForeignXdp(String::new())),
            Error::Datapath(DatapathError::Size(String::new())),
        ];
        for code in errors
            .iter()
            .map(code)
            .chain([FAILED, STILL_NEEDED, ANSWERS_NOTHING])
        {
            assert!(HELP.contains(&format!("\n  {code} ")), "{code}");
        }
    }
}
