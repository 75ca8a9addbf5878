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
    let text = findings(&doctor.findings);
    text + &match (doctor.errors, doctor.warnings) {
        (0, 0) => "all is well: `erb boost` can answer at its best\n".to_owned(),
        (0, warnings) => {
            format!("`erb boost` will work; {warnings} things make it slower or later\n")
        }
        (errors, warnings) => {
            format!("{errors} things hinder a boost, {warnings} make it slower or later\n")
        }
    }
}

/// A line for each.
pub fn findings(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let level = match finding.level {
            Level::Fine => "fine",
            Level::Warning => "warning",
            Level::Error => "ERROR",
        };
        format!("{level:<8} {:<10} {}\n", finding.subject, finding.text)
    };
    findings.iter().map(line).collect()
}
