// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb doctor`.

use std::process::ExitCode;

use erb_daemon::doctor::{Findings, Patient, examine};
use erb_daemon::{Result, enter_base_mount_namespace};
use erb_report::{Doctor, Finding, Level};

use crate::args::DoctorArgs;
use crate::{exit, show};

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Result<ExitCode> {
    if let Some(file) = &args.file {
        return crate::doctor_file::run(file, &args.dev, args.json);
    }
    // Who may not enter it sees all but which devices are boosted already.
    let _ = enter_base_mount_namespace();
    let findings = examine(&Patient {
        devices: args.dev.clone(),
        redis: args.redis.parse()?,
        credentials: args.login.source()?,
        port: args.port,
        journal_folder: args.journal_dir.clone(),
    });
    let code = code(&findings);
    let doctor = Doctor {
        errors: findings.count(Level::Error),
        unknown: findings.count(Level::Unknown),
        warnings: findings.count(Level::Warning),
        findings: findings.told,
    };
    if args.json {
        show::json(&doctor)?;
    } else {
        show::say(&text(&doctor));
    }
    Ok(ExitCode::from(code))
}

/// That of the boost's own error, if it would be refused.
fn code(findings: &Findings) -> u8 {
    match &findings.cause {
        Some(error) => exit::code(error),
        None if findings.count(Level::Error) > 0 => exit::ANSWERS_NOTHING,
        None => 0,
    }
}

fn text(doctor: &Doctor) -> String {
    let sum = match (doctor.errors, doctor.warnings) {
        (0, 0) if doctor.unknown > 0 => "nothing that is known hinders or slows a boost".to_owned(),
        (0, 0) => "all is well: `erb boost` can answer at its best".to_owned(),
        (0, warnings) => {
            format!("`erb boost` will work; {warnings} things make it slower or later")
        }
        (errors, warnings) => {
            format!("{errors} things hinder a boost, {warnings} make it slower or later")
        }
    };
    let unknown = match doctor.unknown {
        0 => String::new(),
        1 => "; one thing could not be looked at".to_owned(),
        count => format!("; {count} things could not be looked at"),
    };
    format!("{}{sum}{unknown}\n", findings(&doctor.findings))
}

/// A line for each.
pub fn findings(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let level = match finding.level {
            Level::Fine => "fine",
            Level::Unknown => "unknown",
            Level::Warning => "warning",
            Level::Error => "ERROR",
        };
        format!("{level:<8} {:<10} {}\n", finding.subject, finding.text)
    };
    findings.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_looked_at_is_neither_fine_nor_left_out_of_the_sum() {
        let sum = |errors, warnings, unknown| {
            let doctor = Doctor {
                errors,
                findings: Vec::new(),
                unknown,
                warnings,
            };
            text(&doctor)
        };
        assert!(sum(0, 0, 0).starts_with("all is well"));
        for (errors, warnings, unknown, words) in [
            (
                0,
                0,
                1,
                "known hinders or slows a boost; one thing could not",
            ),
            (
                0,
                2,
                1,
                "2 things make it slower or later; one thing could not",
            ),
            (
                1,
                0,
                3,
                "1 things hinder a boost, 0 make it slower or later; 3 things could not",
            ),
        ] {
            let said = sum(errors, warnings, unknown);
            assert!(
                said.contains(words) && !said.contains("all is well"),
                "{said}"
            );
        }
        let finding = Finding {
            level: Level::Unknown,
            subject: "firewall".to_owned(),
            text: "not looked at".to_owned(),
        };
        assert!(findings(&[finding]).starts_with("unknown  firewall   not"));
    }
}
