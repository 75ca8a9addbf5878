// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb doctor`.

use std::process::ExitCode;

use erb_daemon::doctor::{Finding, Level, Patient, examine};
use erb_daemon::{Error, Result, enter_base_mount_namespace};
use serde_json::json;

use crate::args::DoctorArgs;
use crate::{exit, show};

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Result<ExitCode> {
    // Who may not enter it sees all but which devices are boosted already.
    let _ = enter_base_mount_namespace();
    let findings = examine(&Patient {
        devices: args.dev.clone(),
        redis: args.redis.parse()?,
        credentials: args.login.source()?,
        port: args.port,
    });
    let count = |level| findings.iter().filter(|one| one.level == level).count();
    let (errors, warnings) = (count(Level::Error), count(Level::Warning));
    if args.json {
        let report = json!({ "findings": findings, "errors": errors, "warnings": warnings });
        let text = serde_json::to_string_pretty(&report)
            .map_err(|error| Error::Usage(error.to_string()))?;
        show::say(&(text + "\n"));
    } else {
        show::say(&text(&findings, errors, warnings));
    }
    Ok(ExitCode::from(code(&findings)))
}

/// That of the boost's own error, if it would be refused.
fn code(findings: &[Finding]) -> u8 {
    let first = findings.iter().find(|one| one.level == Level::Error);
    match first {
        None => 0,
        Some(one) => one.cause.as_ref().map_or(exit::ANSWERS_NOTHING, exit::code),
    }
}

fn text(findings: &[Finding], errors: usize, warnings: usize) -> String {
    let mut text = String::new();
    for Finding {
        level,
        subject,
        text: words,
        ..
    } in findings
    {
        let level = match level {
            Level::Fine => "fine",
            Level::Warning => "warning",
            Level::Error => "ERROR",
        };
        text += &format!("{level:<8} {subject:<10} {words}\n");
    }
    text + &match (errors, warnings) {
        (0, 0) => "all is well: `erb boost` can answer at its best\n".to_owned(),
        (0, _) => format!("`erb boost` will work; {warnings} things make it slower or later\n"),
        _ => format!("{errors} things hinder a boost, {warnings} make it slower or later\n"),
    }
}
