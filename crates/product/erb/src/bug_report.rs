// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb report`: what somebody who helps wants to know first, as one JSON object to be attached to a
//! report of a fault.
//!
//! Invariants:
//! 1. There is no key, value, password or token in it: status, findings and log have none.
//! 2. Addresses but those of loopback are replaced, the same one by the same name, unless asked for.
//! 3. What cannot be had is said in its place; the rest is there.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;

use erb_daemon::doctor::{Patient, examine};
use erb_daemon::{CredentialSource, Result, RunDir, enter_base_mount_namespace};
use erb_datapath::Programs;
use serde_json::{Value, json};

use crate::watch_args::BugReportArgs;
use crate::{detach, show, status};

/// Of the log's end.
const LOG_BYTES_MAX: u64 = 64 << 10;

/// Runs the command.
pub fn run(args: &BugReportArgs) -> Result<ExitCode> {
    // Who may not enter it says so below.
    let _ = enter_base_mount_namespace();
    let boost = match detach::run_dir(&args.which) {
        Ok(run_dir) => boost(&run_dir),
        Err(error) => json!({ "error": error.to_string() }),
    };
    let mut report = json!({
        "erb": {
            "version": env!("CARGO_PKG_VERSION"),
            "build": Programs::builtin().build(),
        },
        "machine": machine(),
        "boost": boost,
    });
    if !args.addresses {
        Names::default().hide(&mut report);
    }
    show::json(&report)?;
    Ok(ExitCode::SUCCESS)
}

/// Kernel, system and size.
fn machine() -> Value {
    let system = read(Path::new("/etc/os-release")).lines().find_map(|line| {
        let name = line.strip_prefix("PRETTY_NAME=")?;
        Some(name.trim_matches('"').to_owned())
    });
    let memory = read(Path::new("/proc/meminfo"))
        .lines()
        .next()
        .map(str::to_owned);
    let processor = read(Path::new("/proc/cpuinfo")).lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == "model name").then(|| value.trim().to_owned())
    });
    json!({
        "kernel": read(Path::new("/proc/sys/kernel/osrelease")).trim(),
        "architecture": std::env::consts::ARCH,
        "system": system,
        "processors": std::thread::available_parallelism().ok(),
        "processor": processor,
        "memory": memory,
        "btf": Path::new("/sys/kernel/btf/vmlinux").exists(),
        "jit": read(Path::new("/proc/sys/net/core/bpf_jit_enable")).trim(),
    })
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// What is at work, what its daemon has logged, and what a doctor says of its devices and its Redis.
fn boost(run_dir: &RunDir) -> Value {
    let (status, doctor) = match status::read(run_dir) {
        Ok(status) => {
            let devices = status.devices.iter().map(|it| it.device.name.clone());
            let findings = status.redis.address.parse().map(|redis| {
                let credentials = CredentialSource::new(None, None).unwrap_or_default();
                let port = Some(status.redis.port).filter(|port| *port > 0);
                examine(&Patient {
                    devices: devices.collect(),
                    redis,
                    credentials,
                    port,
                    journal_folder: None,
                })
                .told
            });
            let findings =
                findings.map_or_else(|error| json!(error.to_string()), |told| json!(told));
            (json!(status), findings)
        }
        Err(error) => (json!({ "error": error.to_string() }), Value::Null),
    };
    json!({ "status": status, "doctor": doctor, "log": log(&run_dir.log()) })
}

/// The end of a log, from the begin of a line on.
fn log(path: &Path) -> Value {
    let tail = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES_MAX)))?;
        let mut bytes = Vec::new();
        file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
        let begin = bytes
            .iter()
            .position(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        Ok(if length > LOG_BYTES_MAX {
            bytes.split_off(begin)
        } else {
            bytes
        })
    };
    match tail() {
        Ok(bytes) => String::from_utf8_lossy(&bytes).lines().collect(),
        Err(error) => json!(format!(
            "cannot be read: {error}; --log names another place"
        )),
    }
}

/// Names in the place of addresses.
#[derive(Default)]
struct Names(HashMap<IpAddr, usize>);

impl Names {
    /// In all texts of a value.
    fn hide(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.hidden(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.hide(value)),
            Value::Object(fields) => fields.values_mut().for_each(|value| self.hide(value)),
            _ => {}
        }
    }

    fn hidden(&mut self, text: &str) -> String {
        let may_be = |c: char| c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '[' | ']');
        let (mut hidden, mut rest) = (String::new(), text);
        while let Some(begin) = rest.find(may_be) {
            let (before, from) = rest.split_at(begin);
            let (word, after) = from.split_at(from.find(|c| !may_be(c)).unwrap_or(from.len()));
            hidden.push_str(before);
            hidden.push_str(&self.word(word));
            rest = after;
        }
        hidden + rest
    }

    /// A word that may be an address, with a port, or with what is not its own around it: the bracket before a
    /// zone, a colon or a full stop.
    fn word(&mut self, word: &str) -> String {
        if let Ok(address) = word.parse::<SocketAddr>() {
            return format!("{}:{}", self.name(address.ip()), address.port());
        }
        let around = |c: char| matches!(c, '[' | ']' | '.' | ':');
        let ends = |of: &str| [of.trim_end_matches(around).len(), of.len()];
        let begins = |of: &str| [0, of.len() - of.trim_start_matches(around).len()];
        for begin in begins(word) {
            for end in ends(word) {
                let inner = word.get(begin..end).unwrap_or_default();
                let named = match (inner.parse::<SocketAddr>(), inner.parse::<IpAddr>()) {
                    (Ok(address), _) => format!("{}:{}", self.name(address.ip()), address.port()),
                    (_, Ok(address)) => self.name(address),
                    _ => continue,
                };
                return format!("{}{named}{}", &word[..begin], &word[end..]);
            }
        }
        word.to_owned()
    }

    fn name(&mut self, address: IpAddr) -> String {
        let plain = address.to_canonical();
        if plain.is_loopback() || plain.is_unspecified() {
            return address.to_string();
        }
        let next = self.0.len() + 1;
        format!("address-{}", self.0.entry(plain).or_insert(next))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn addresses_are_hidden_and_stay_the_same_ones() {
        let mut names = Names::default();
        for (text, hidden) in [
            ("10.0.0.2:40000 holds", "address-1:40000 holds"),
            ("by 10.0.0.2.", "by address-1."),
            ("[fd00::1]:6379, fd00::1", "address-2:6379, address-2"),
            ("::ffff:10.0.0.2", "address-1"),
            ("[::ffff:10.0.0.3]:1", "address-3:1"),
            (
                "127.0.0.1:6379 and ::1 and 0.0.0.0",
                "127.0.0.1:6379 and ::1 and 0.0.0.0",
            ),
            (
                "Redis 7.0.15, 12:30:01, build ee9d004626f719f6",
                "Redis 7.0.15, 12:30:01, build ee9d004626f719f6",
            ),
            ("{\"addr\":\"192.168.1.7\"}", "{\"addr\":\"address-4\"}"),
            ("[fe80::77%s0]:6379", "[address-5%s0]:6379"),
            (
                "fe80::77%eth0.100 user:10.0.0.2@h",
                "address-5%eth0.100 user:address-1@h",
            ),
            ("[fd00::1]", "[address-2]"),
            ("", ""),
        ] {
            assert_eq!(names.hidden(text), hidden);
        }
        let mut value = json!({ "clients": [{ "client": "10.0.0.2:1" }], "count": 3 });
        names.hide(&mut value);
        assert_eq!(
            value,
            json!({ "clients": [{ "client": "address-1:1" }], "count": 3 })
        );
    }

    #[test]
    fn a_log_has_its_end_from_a_line_s_begin_on() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "first").unwrap();
        assert_eq!(log(file.path()), json!(["first"]));
        for number in 0..20_000 {
            writeln!(file, "line {number}").unwrap();
        }
        let found = log(file.path());
        let lines = found.as_array().unwrap();
        assert!(lines.len() > 1_000 && lines.len() < 20_000);
        assert_eq!(lines.last().unwrap(), "line 19999");
        assert!(
            lines
                .iter()
                .all(|line| line.as_str().unwrap().starts_with("line "))
        );
        assert!(
            log(Path::new("/nothing"))
                .as_str()
                .unwrap()
                .contains("cannot be read")
        );
    }
}
