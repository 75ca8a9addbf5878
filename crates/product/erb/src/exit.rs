// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which error ends with which of the exit codes.

use erb_daemon::Error;
use erb_datapath::Error as DatapathError;
pub use erb_report::exit::*;
use erb_watch::Error as Watched;

/// The code of an error of the daemon or of a command that talks to it.
pub const fn code(error: &Error) -> u8 {
    match error {
        Error::Usage(_) => USAGE,
        Error::Privilege(_) => PRIVILEGE,
        Error::Kernel(_) => KERNEL,
        Error::Redis { .. } | Error::Credentials { .. } => REDIS,
        Error::RedisOld { .. } => REDIS_OLD,
        Error::Token { .. } => SECRETS_FILE,
        Error::Metrics(error) => match error {
            Watched::TokenNeeded(_) => USAGE,
            Watched::TokenShort(_) | Watched::TokenOdd => SECRETS_FILE,
            Watched::Taken(_) | Watched::Address { .. } => ADDRESS,
        },
        Error::NoListener(_) => NO_LISTENER,
        Error::AlreadyBoosted(_)
        | Error::OtherBoost(_)
        | Error::UnderWay(_)
        | Error::Stuck { .. }
        | Error::CutOff { .. }
        | Error::Detaching { .. } => ALREADY_BOOSTED,
        Error::Interrupted(number) => BY_SIGNAL + *number,
        Error::AnswersNothing(_) => ANSWERS_NOTHING,
        Error::NotBoosted(_) | Error::LeftBehind(_) => NOT_BOOSTED,
        Error::AlreadyTraced(_) => ALREADY_TRACED,
        Error::OtherBuild { .. } => OTHER_VERSION,
        Error::NoAnswer { .. } | Error::Io { .. } => FAILED,
        Error::Datapath(error) => match error {
            DatapathError::NoDevice(_) | DatapathError::Layers(_) => DEVICE,
            DatapathError::ForeignXdp(_) => FOREIGN_XDP,
            DatapathError::Size(_) => SIZE,
            DatapathError::Load { .. } | DatapathError::Attach { .. } => REFUSED,
            DatapathError::OtherVersion { .. } | DatapathError::OtherLayout { .. } => OTHER_VERSION,
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
            Error::OtherBoost("x".into()),
            Error::UnderWay("x".into()),
            Error::NotBoosted("x".into()),
            Error::LeftBehind("x".into()),
            Error::AlreadyTraced("x".into()),
            Error::Datapath(DatapathError::NoDevice(String::new())),
            Error::Datapath(DatapathError::ForeignXdp(String::new())),
            Error::Datapath(DatapathError::Size(String::new())),
        ];
        for code in errors.iter().map(code).chain([
            FAILED,
            STILL_NEEDED,
            ANSWERS_NOTHING,
            NO_TOOLS,
            ADDRESS,
            STORE_IN_USE,
            NO_STORE,
            NO_NODE,
            NODE_UNREACHABLE,
            NO_KEY,
            CONDITION,
            NODE_REFUSES,
            NOT_KNOWN,
            NOT_LET_IN,
            SECRETS_FILE,
        ]) {
            assert!(HELP.contains(&format!("\n  {code} ")), "{code}");
        }
        // Of SIGINT, as a shell would say it of a program that does not take it (POSIX.1-2017 XCU 2.8.2).
        assert_eq!(code(&Error::Interrupted(2)), 130);
        assert!(HELP.contains("\n  128+N "));
    }
}
