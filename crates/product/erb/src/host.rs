// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb node host`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use erb_kv::Secrets;
use erb_node::{Error, HostsFile, Role};
use serde_json::{Value, json};

use crate::host_args::{AddArgs, HostCommand, OfHost, OnlyFile, RekeyArgs, RoleArgs, SecretArgs};
use crate::{exit, kv};

/// Runs the command.
pub fn run(command: &HostCommand) -> Result<(), Error> {
    match command {
        HostCommand::Add(args) => add(args),
        HostCommand::Remove(args) => remove(args),
        HostCommand::Rekey(args) => rekey(args),
        HostCommand::Role(args) => role(args),
        HostCommand::List(args) => list(args),
        HostCommand::Confirm(args) => confirm(args),
    }
}

fn name(role: Role) -> &'static str {
    match role {
        Role::Reader => "reader",
        Role::Writer => "writer",
        Role::Restorer => "restorer",
        Role::Admin => "admin",
    }
}

fn words(roles: &BTreeMap<u32, Role>) -> String {
    let words = roles.iter().map(|(namespace, role)| match namespace {
        1 => name(*role).to_owned(),
        namespace => format!("{namespace}={}", name(*role)),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// New secrets, or those of a file. New ones are written to a file before anybody is asked for them.
fn secrets(args: &SecretArgs) -> Result<Secrets, Error> {
    if let Some(path) = &args.from {
        return erb_node::read_secrets(path);
    }
    let secrets = erb_node::new_secrets();
    if let Some(path) = &args.out {
        erb_node::write_private(path, &secrets.text())?;
    }
    Ok(secrets)
}

/// Takes back what was written for a host that then was not changed.
fn or_take_back<T>(done: Result<T, Error>, out: Option<&PathBuf>) -> Result<T, Error> {
    if let (Err(_), Some(path)) = (&done, out) {
        // Its own error is not what went wrong.
        let _ = std::fs::remove_file(path);
    }
    done
}

/// Says what was done, and shows new secrets that no file has got.
fn show(of: &OfHost, done: &str, args: &SecretArgs, secrets: &Secrets) {
    let is_shown = args.from.is_none() && args.out.is_none();
    if of.file.json {
        let mut line = json!({ "nqn": of.nqn });
        if is_shown {
            line["secret"] = json!(secrets.host.text());
            line["controller_secret"] = match &secrets.subsystem {
                Some(secret) => json!(secret.text()),
                None => Value::Null,
            };
        }
        return shown(of, is_shown, kv::say(&line));
    }
    let where_to = match (&args.out, is_shown) {
        (Some(path), _) => format!("; {} has what the host needs", path.display()),
        (None, true) => "; its secret and the node's, shown this once:".to_owned(),
        (None, false) => String::new(),
    };
    eprintln!("{}: {done}{where_to}", of.nqn);
    if is_shown {
        shown(of, true, kv::print(secrets.text().trim_end()));
    }
}

/// Secrets are shown once: who has not got them has to know.
fn shown(of: &OfHost, has_secrets: bool, done: kv::Done) {
    if has_secrets && done.is_err() {
        eprintln!(
            "error: the secrets of {} could not be shown and are lost: `erb node host rekey` makes others",
            of.nqn
        );
        std::process::exit(i32::from(exit::FAILED));
    }
}

fn add(args: &AddArgs) -> Result<(), Error> {
    let (of, roles) = (&args.of, args.may.roles());
    let secrets = secrets(&args.secrets)?;
    let added = HostsFile::change(&of.file.path, true, |hosts| {
        hosts.add(&of.nqn, roles.clone(), secrets.clone())
    });
    or_take_back(added, args.secrets.out.as_ref())?;
    let done = format!("added as {}", words(&roles));
    show(of, &done, &args.secrets, &secrets);
    Ok(())
}

fn remove(of: &OfHost) -> Result<(), Error> {
    HostsFile::change(&of.file.path, false, |hosts| hosts.remove(&of.nqn))?;
    said(
        of,
        "removed; a running node ends its connections within a second",
    );
    Ok(())
}

fn rekey(args: &RekeyArgs) -> Result<(), Error> {
    let of = &args.of;
    let secrets = secrets(&args.secrets)?;
    let changed = HostsFile::change(&of.file.path, false, |hosts| {
        hosts.set_secrets(&of.nqn, secrets.clone())
    });
    or_take_back(changed, args.secrets.out.as_ref())?;
    show(of, "has other secrets", &args.secrets, &secrets);
    Ok(())
}

fn role(args: &RoleArgs) -> Result<(), Error> {
    let (of, roles) = (&args.of, args.may.roles());
    HostsFile::change(&of.file.path, false, |hosts| {
        hosts.set_roles(&of.nqn, roles.clone())
    })?;
    said(of, &format!("is {} now", words(&roles)));
    Ok(())
}

fn said(of: &OfHost, done: &str) {
    let _ = if of.file.json {
        kv::say(&json!({ "nqn": of.nqn }))
    } else {
        kv::print(&format!("{}: {done}", of.nqn))
    };
}

fn list(args: &OnlyFile) -> Result<(), Error> {
    let hosts = HostsFile::read(&args.path)?;
    if !args.json {
        let _ = kv::print(&format!("{:<8}{:<12}NAME", "NUMBER", "ROLE"));
    }
    for host in &hosts.hosts {
        let secrets = host.secrets.as_ref();
        let proves = secrets.is_some_and(|it| it.subsystem.is_some());
        let _ = if args.json {
            let roles = host.roles.iter();
            let roles = roles.map(|(id, role)| (id.to_string(), json!(name(*role))));
            kv::say(&json!({
                "nqn": host.nqn,
                "number": host.number,
                "roles": roles.collect::<serde_json::Map<_, _>>(),
                "node_proves_itself": proves,
            }))
        } else {
            let one_way = if proves {
                ""
            } else {
                "  (the node does not prove itself)"
            };
            kv::print(&format!(
                "{:<8}{:<12}{}{one_way}",
                host.number,
                words(&host.roles),
                host.nqn
            ))
        };
    }
    Ok(())
}

fn confirm(args: &OnlyFile) -> Result<(), Error> {
    HostsFile::change(&args.path, false, |_| Ok(()))?;
    if !args.json {
        let _ = kv::print(&format!(
            "{}: it is the newest now; `erb node host list` shows whom it lets in",
            args.path.display()
        ));
    }
    Ok(())
}
