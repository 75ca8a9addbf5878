// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file of hosts: who may connect, by which secrets, and what each may do.
//!
//! Invariants:
//! 1. Nobody but its owner reads or writes it; else it is refused: `private.rs`.
//! 2. It is replaced whole, so a crash leaves the old one or the new one. Who changes it holds the lock of the file
//!    that then has its name.
//! 3. Each change by [`HostsFile::change`] has a higher generation, also in a file that is made anew. So a copy of
//!    before a change is known for an old one.
//! 4. A host's number is not given to another one.
//! 5. No error and no `Debug` has a secret in it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use erb_nvme::auth::{Secret, Secrets};
use erb_nvme::target::{Host, Role};
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{Gid, Uid, fchown, geteuid};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::private::{self, failed};

const FORMAT: u32 = 1;
/// Bytes of an NQN at most, as the standard says.
const NQN_BYTES_MAX: usize = 223;
/// Hosts that are looked through at each Connect.
const HOSTS_MAX: usize = 4096;

/// Hosts that may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostsFile {
    /// Moves with every change.
    pub generation: u64,
    /// In the order of their names.
    pub hosts: Vec<Arc<Host>>,
    next_number: u32,
}

/// A file that cannot be hosts'.
#[derive(Debug, thiserror::Error)]
pub enum NoHosts {
    /// It is no JSON, or other JSON.
    #[error("line {0}, column {1}: not as `erb node host` writes it")]
    Json(usize, usize),
    /// It is of another program.
    #[error("its format is {0}, which this program does not know")]
    Format(u32),
    /// A name cannot be.
    #[error("{0:?}: a host's name begins with `nqn.` and has up to 223 letters, digits and marks")]
    Nqn(String),
    /// A secret cannot be read, or both are the same.
    #[error("{0}: its secrets have the form DHHC-1:HH:BASE64:, and differ from each other")]
    Secret(String),
    /// A name or number is there twice.
    #[error("{0}: it, or its number, is there twice")]
    Twice(String),
    /// A number has not been given.
    #[error("{0}: its number is 0, or not below next_number")]
    Number(String),
    /// There are more.
    #[error("more than 4,096 hosts")]
    TooMany,
}

/// What the file says.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Written {
    format: u32,
    generation: u64,
    next_number: u32,
    hosts: Vec<WrittenHost>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct WrittenHost {
    nqn: String,
    number: u32,
    roles: BTreeMap<u32, WrittenRole>,
    secret: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    controller_secret: Option<String>,
}

#[derive(Clone, Copy, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum WrittenRole {
    Reader,
    Writer,
    Restorer,
    Admin,
}

impl From<WrittenRole> for Role {
    fn from(role: WrittenRole) -> Self {
        match role {
            WrittenRole::Reader => Self::Reader,
            WrittenRole::Writer => Self::Writer,
            WrittenRole::Restorer => Self::Restorer,
            WrittenRole::Admin => Self::Admin,
        }
    }
}

impl From<Role> for WrittenRole {
    fn from(role: Role) -> Self {
        match role {
            Role::Reader => Self::Reader,
            Role::Writer => Self::Writer,
            Role::Restorer => Self::Restorer,
            Role::Admin => Self::Admin,
        }
    }
}

fn is_nqn(nqn: &str) -> bool {
    let is_usual = nqn.bytes().all(|byte| byte.is_ascii_graphic());
    nqn.starts_with("nqn.") && nqn.len() <= NQN_BYTES_MAX && is_usual
}

/// Whether a subsystem can have this name: that of a host, with its parts. One without a colon, as discovery's, is the
/// standard's own.
pub(crate) fn is_subsystem_nqn(nqn: &str) -> bool {
    let parts = nqn.strip_prefix("nqn.").and_then(|it| it.split_once('.'));
    let Some(((year, month), (domain, name))) =
        parts.and_then(|(date, rest)| Some((date.split_once('-')?, rest.split_once(':')?)))
    else {
        return false;
    };
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_date = year.len() == 4 && month.len() == 2 && is_digits(year) && is_digits(month);
    let is_month = matches!(month.parse(), Ok(1..=12));
    let is_label = |label: &str| {
        let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !label.is_empty() && label.bytes().all(is_usual)
    };
    let is_domain = domain.split('.').all(is_label);
    is_nqn(nqn) && is_date && is_month && is_domain && !name.is_empty()
}

fn secrets(host: &WrittenHost) -> Option<Secrets> {
    let subsystem = host.controller_secret.as_deref();
    let secrets = Secrets {
        host: Secret::parse(&host.secret).ok()?,
        subsystem: subsystem.map(Secret::parse).transpose().ok()?,
    };
    (secrets.subsystem.as_ref() != Some(&secrets.host)).then_some(secrets)
}

fn hosts_of(written: &Written) -> std::result::Result<Vec<Arc<Host>>, NoHosts> {
    if written.hosts.len() > HOSTS_MAX {
        return Err(NoHosts::TooMany);
    }
    let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    let mut hosts = Vec::with_capacity(written.hosts.len());
    for host in &written.hosts {
        let nqn = &host.nqn;
        if !is_nqn(nqn) {
            return Err(NoHosts::Nqn(nqn.clone()));
        }
        if !names.insert(nqn) || !numbers.insert(host.number) {
            return Err(NoHosts::Twice(nqn.clone()));
        }
        if host.number == 0 || host.number >= written.next_number {
            return Err(NoHosts::Number(nqn.clone()));
        }
        let secrets = secrets(host).ok_or_else(|| NoHosts::Secret(nqn.clone()))?;
        let roles = host.roles.iter();
        hosts.push(Arc::new(Host {
            nqn: nqn.clone(),
            number: host.number,
            roles: roles.map(|(id, role)| (*id, (*role).into())).collect(),
            secrets: Some(secrets),
        }));
    }
    hosts.sort_by(|one, other| one.nqn.cmp(&other.nqn));
    Ok(hosts)
}

impl HostsFile {
    fn empty() -> Self {
        Self {
            generation: 0,
            hosts: Vec::new(),
            next_number: 1,
        }
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// It is no file of hosts.
    pub fn parse(text: &str) -> std::result::Result<Self, NoHosts> {
        // What the reader says may have a secret in it.
        let written: Written = serde_json::from_str(text)
            .map_err(|error| NoHosts::Json(error.line(), error.column()))?;
        if written.format != FORMAT {
            return Err(NoHosts::Format(written.format));
        }
        Ok(Self {
            generation: written.generation,
            hosts: hosts_of(&written)?,
            next_number: written.next_number,
        })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is no file of hosts; others than its owner may read or write it.
    pub fn read(path: &Path) -> Result<Self> {
        let text = private::text_of(&private::open(path)?, path)?;
        Self::parse(&text).map_err(no_hosts(path))
    }

    fn text(&self) -> String {
        let hosts = self.hosts.iter().map(|host| {
            let secrets = host.secrets.as_ref();
            let subsystem = secrets.and_then(|it| it.subsystem.as_ref());
            WrittenHost {
                nqn: host.nqn.clone(),
                number: host.number,
                roles: host
                    .roles
                    .iter()
                    .map(|(id, role)| (*id, (*role).into()))
                    .collect(),
                secret: secrets.map(|it| it.host.text()).unwrap_or_default(),
                controller_secret: subsystem.map(Secret::text),
            }
        });
        let written = Written {
            format: FORMAT,
            generation: self.generation,
            next_number: self.next_number,
            hosts: hosts.collect(),
        };
        let text = serde_json::to_string_pretty(&written).expect("text and numbers are JSON");
        text + "\n"
    }

    /// Changes a file, or makes one if `may_make`. Other changes wait meanwhile.
    ///
    /// # Errors
    /// It cannot be read or written; the change is none.
    pub fn change<T>(
        path: &Path,
        may_make: bool,
        change: impl Fn(&mut Self) -> Result<T>,
    ) -> Result<T> {
        // Of a link what it leads to is replaced.
        let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        loop {
            let file = match private::open(path) {
                Err(Error::SecretsFile { source, .. })
                    if may_make && source.kind() == std::io::ErrorKind::NotFound =>
                {
                    let mut hosts = Self::empty();
                    let done = change(&mut hosts)?;
                    match private::write_private(path, &hosts.next().text()) {
                        Err(Error::SecretsFile { source, .. })
                            if source.kind() == std::io::ErrorKind::AlreadyExists =>
                        {
                            // Somebody else has made it meanwhile.
                            continue;
                        }
                        made => return made.map(|()| done),
                    }
                }
                opened => opened?,
            };
            let locked = Flock::lock(file, FlockArg::LockExclusive);
            let file =
                locked.map_err(|(_, error)| failed(path, "cannot be locked")(error.into()))?;
            let own = file
                .metadata()
                .map_err(failed(path, "cannot be looked at"))?;
            let named = std::fs::metadata(path).ok();
            if named.map(|it| (it.dev(), it.ino())) != Some((own.dev(), own.ino())) {
                // It was replaced while the lock was waited for.
                continue;
            }
            let text = private::text_of(&file, path)?;
            let mut hosts = Self::parse(&text).map_err(no_hosts(path))?;
            let done = change(&mut hosts)?;
            let new = private::beside(path, &hosts.next().text())?;
            if own.uid() != geteuid().as_raw() {
                // Who reads it goes on reading it.
                let (owner, group) = (Uid::from_raw(own.uid()), Gid::from_raw(own.gid()));
                fchown(new.as_file(), Some(owner), Some(group))
                    .map_err(|error| failed(path, "cannot keep its owner")(error.into()))?;
            }
            let put = new.persist(path).map_err(|error| error.error);
            put.map_err(failed(path, "cannot be replaced"))?;
            private::sync_folder(path)?;
            return Ok(done);
        }
    }

    /// With the next generation. It is a time, so that a file which is made anew is newer than the one before.
    fn next(mut self) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_us = since.map_or(0, |it| u64::try_from(it.as_micros()).unwrap_or(0));
        self.generation = (self.generation + 1).max(now_us);
        self
    }

    fn at(&self, nqn: &str) -> Result<usize> {
        let at = self.hosts.iter().position(|host| host.nqn == nqn);
        at.ok_or_else(|| Error::UnknownHost(nqn.to_owned()))
    }

    /// Adds a host.
    ///
    /// # Errors
    /// It is there, its name cannot be, or there are too many.
    pub fn add(&mut self, nqn: &str, roles: BTreeMap<u32, Role>, secrets: Secrets) -> Result<()> {
        if self.at(nqn).is_ok() {
            return Err(Error::KnownHost(nqn.to_owned()));
        }
        if !is_nqn(nqn) {
            return Err(Error::Nqn(NoHosts::Nqn(nqn.to_owned())));
        }
        if self.hosts.len() >= HOSTS_MAX || self.next_number == u32::MAX {
            return Err(Error::Nqn(NoHosts::TooMany));
        }
        self.hosts.push(Arc::new(Host {
            nqn: nqn.to_owned(),
            number: self.next_number,
            roles,
            secrets: Some(secrets),
        }));
        self.next_number += 1;
        self.hosts.sort_by(|one, other| one.nqn.cmp(&other.nqn));
        Ok(())
    }

    /// Removes a host.
    ///
    /// # Errors
    /// It is not there.
    pub fn remove(&mut self, nqn: &str) -> Result<()> {
        let at = self.at(nqn)?;
        self.hosts.remove(at);
        Ok(())
    }

    /// Gives a host other secrets.
    ///
    /// # Errors
    /// It is not there.
    pub fn set_secrets(&mut self, nqn: &str, secrets: Secrets) -> Result<()> {
        let at = self.at(nqn)?;
        Arc::make_mut(&mut self.hosts[at]).secrets = Some(secrets);
        Ok(())
    }

    /// Gives a host other roles.
    ///
    /// # Errors
    /// It is not there.
    pub fn set_roles(&mut self, nqn: &str, roles: BTreeMap<u32, Role>) -> Result<()> {
        let at = self.at(nqn)?;
        Arc::make_mut(&mut self.hosts[at]).roles = roles;
        Ok(())
    }
}

fn no_hosts(path: &Path) -> impl FnOnce(NoHosts) -> Error + '_ {
    move |source| Error::Hosts {
        path: path.to_owned(),
        source,
    }
}
