// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of `erb node host`, as typed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use erb_node::{NAMESPACE, Role};

use crate::node_args::RoleArg;

/// Commands of `erb node host`.
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// Add a host, in a new file if there is none; prints what the host needs, this once.
    ///
    /// That is its secret and, in a second line, the one by which the node proves itself. They have the form in which
    /// `nvme gen-dhchap-key` prints secrets and `nvme connect` takes them.
    Add(AddArgs),
    /// Remove a host: its connections end, and it is not let in again.
    Remove(OfHost),
    /// Give a host other secrets; prints them, this once. Its connections end.
    Rekey(RekeyArgs),
    /// Give a host other roles. Its connections end.
    Role(RoleArgs),
    /// List hosts, their numbers and roles. Secrets are not shown.
    List(OnlyFile),
    /// Say that an old copy of the file is what is meant: nodes that have seen a newer one take it then.
    Confirm(OnlyFile),
}

/// A file of hosts.
#[derive(Clone, Debug, Args)]
pub struct OnlyFile {
    /// The file of hosts.
    #[arg(value_name = "FILE")]
    pub path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// A host of a file.
#[derive(Clone, Debug, Args)]
pub struct OfHost {
    /// The file, and how to print.
    #[command(flatten)]
    pub file: OnlyFile,
    /// The host's name, which begins with `nqn.`, like nqn.2026-11.org.example:web1.
    #[arg(value_name = "NQN")]
    pub nqn: String,
}

/// From where secrets come, and where they go.
#[derive(Clone, Debug, Args)]
pub struct SecretArgs {
    /// Take the secrets from this file instead of new ones: the host's and, in a second line, the node's.
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Write what the host needs to this new file, which only its owner may read, instead of printing it.
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    pub out: Option<PathBuf>,
}

/// Arguments of `erb node host add`.
#[derive(Clone, Debug, Args)]
pub struct AddArgs {
    /// Which.
    #[command(flatten)]
    pub of: OfHost,
    /// What it may do.
    #[command(flatten)]
    pub may: MayArgs,
    /// By which secrets.
    #[command(flatten)]
    pub secrets: SecretArgs,
}

/// Arguments of `erb node host rekey`.
#[derive(Clone, Debug, Args)]
pub struct RekeyArgs {
    /// Which.
    #[command(flatten)]
    pub of: OfHost,
    /// By which secrets.
    #[command(flatten)]
    pub secrets: SecretArgs,
}

/// Arguments of `erb node host role`.
#[derive(Clone, Debug, Args)]
pub struct RoleArgs {
    /// Which.
    #[command(flatten)]
    pub of: OfHost,
    /// What it may do.
    #[command(flatten)]
    pub may: MayArgs,
}

/// What a host may do.
#[derive(Clone, Debug, Args)]
pub struct MayArgs {
    /// Its role: reader, writer, restorer or admin; with a namespace's number before it, in that one, like 2=reader.
    #[arg(long = "role", value_name = "[N=]ROLE", required = true, value_parser = parse_role)]
    pub roles: Vec<(u32, Role)>,
}

impl MayArgs {
    /// By namespace. Of two for one namespace the last.
    pub fn roles(&self) -> BTreeMap<u32, Role> {
        self.roles.iter().copied().collect()
    }
}

fn parse_role(text: &str) -> Result<(u32, Role), String> {
    let (namespace, role) = match text.split_once('=') {
        Some((namespace, role)) => (namespace.parse().ok().filter(|it| *it > 0), role),
        None => (Some(NAMESPACE), text),
    };
    let namespace = namespace.ok_or("a namespace has a number from 1 on")?;
    let role = RoleArg::from_str(role, false);
    let role = role.map_err(|_| "a role is reader, writer, restorer or admin")?;
    Ok((namespace, role.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_as_typed() {
        assert_eq!(parse_role("writer"), Ok((1, Role::Writer)));
        assert_eq!(parse_role("7=admin"), Ok((7, Role::Admin)));
        for text in ["", "Writer", "0=writer", "x=writer", "1=", "1=2=writer"] {
            assert!(parse_role(text).is_err(), "{text}");
        }
    }
}
