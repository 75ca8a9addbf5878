// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb doctor --file`: would this file be sent without a copy, and what is in the way. Changes nothing.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;

use dax_send::{MappedFile, Options, ReadLease, Sender, has_packet_sockets};
use erb_daemon::mounts::{self, Mount};
use erb_daemon::{Error, Result};
use erb_datapath::{Device, driver, sends_in_place};
use erb_report::shell::quoted;
use erb_report::{Doctor, Finding, Level};
use nix::fcntl::OFlag;

use crate::{doctor, exit, show};

/// From here on `truncate` and `unlink` wait for DAX pages that are under way (dax: Fix page refcounts).
const FREES_WAIT: (u32, u32) = (6, 15);
/// `MSG_ZEROCOPY` for TCP.
const ZERO_COPY: (u32, u32) = (4, 14);
/// What the default deadline needs, with room.
const LEASE_SECONDS_MIN: u64 = 30;
/// File systems whose files the kernel writes as they are read: no page cache holds them.
const MADE_UP: [&str; 8] = [
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "tracefs",
    "debugfs",
    "configfs",
    "securityfs",
];
/// Drivers whose other end is a kernel that copies.
const LOCAL_DRIVERS: [&str; 5] = ["veth", "tun", "bridge", "dummy", "netkit"];

/// Looks at all of it. Exit code 0: bytes go without a copy; 16: they do not.
///
/// # Errors
/// If the file or a device cannot be looked at.
pub fn run(path: &Path, devices: &[String], json: bool) -> Result<ExitCode> {
    let mut told = Vec::new();
    file(path, &mut told)?;
    kernel(&mut told);
    process(&mut told);
    for name in devices {
        device(name, &mut told)?;
    }
    if has_packet_sockets() {
        let words = "a packet socket is open in this network namespace (tcpdump, a DHCP client; `ss -0` names it): \
            the kernel copies what is sent zero-copy while it is";
        add(&mut told, Level::Error, "sockets", words);
    }
    let count = |level| {
        told.iter()
            .filter(|finding: &&Finding| finding.level == level)
            .count()
    };
    let doctor = Doctor {
        errors: count(Level::Error),
        unknown: count(Level::Unknown),
        warnings: count(Level::Warning),
        findings: told,
    };
    if json {
        show::json(&doctor)?;
    } else {
        let last = match doctor.errors {
            0 => "nothing here makes anybody copy\n".to_owned(),
            1 => "bytes are copied: one thing is in the way\n".to_owned(),
            errors => format!("bytes are copied: {errors} things are in the way\n"),
        };
        show::say(&(doctor::findings(&doctor.findings) + &last));
    }
    Ok(if doctor.errors == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(exit::ANSWERS_NOTHING)
    })
}

fn add(told: &mut Vec<Finding>, level: Level, subject: &str, text: impl Into<String>) {
    told.push(Finding {
        level,
        subject: subject.to_owned(),
        text: text.into(),
    });
}

fn file(path: &Path, told: &mut Vec<Finding>) -> Result<()> {
    let unusable = |error: std::io::Error| {
        Error::Usage(format!("{} cannot be looked at: {error}", path.display()))
    };
    // Who opens a FIFO to read it waits for a writer.
    let mut reading = OpenOptions::new();
    let file = reading.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let file = file.open(path).map_err(unusable)?;
    let lease = file
        .try_clone()
        .and_then(|file| ReadLease::take(file, libc_sigurg()));
    let device = file.metadata().map_err(unusable)?.dev();
    let mapped = MappedFile::new(file).map_err(unusable)?;
    let mount = mount_of(path);
    if mapped.is_dax() {
        add(
            told,
            Level::Fine,
            "file",
            "lies on persistent memory (DAX): its own pages are sent, zero-copy",
        );
    } else if MADE_UP.contains(&mount.kind.as_str()) {
        let words = format!(
            "is of {}: the kernel writes it as it is read, so it is read and then copied",
            mount.kind
        );
        add(told, Level::Error, "file", words);
    } else {
        let why = no_dax(&mount, device);
        let words = format!(
            "is read through the page cache: sendfile sends from there without a copy. Not on DAX: {why}"
        );
        add(told, Level::Fine, "file", words);
    }
    match lease {
        Ok(_) => add(
            told,
            Level::Fine,
            "lease",
            "a read lease can be had: bodies are of one version while they are sent",
        ),
        Err(error) => {
            let words = format!(
                "no read lease ({error}): somebody is writing, or the file is another user's. Bodies are compared by \
                 times and reset if they changed; CAP_LEASE or the file's owner avoids that"
            );
            add(told, Level::Warning, "lease", words);
        }
    }
    let seconds = number("/proc/sys/fs/lease-break-time").unwrap_or(45);
    if seconds < LEASE_SECONDS_MIN {
        let words = format!(
            "fs.lease-break-time is {seconds} s: below the deadline of sends, raise it to 45"
        );
        add(told, Level::Warning, "lease", words);
    }
    Ok(())
}

/// SIGURG: ignored by default.
const fn libc_sigurg() -> i32 {
    nix::sys::signal::Signal::SIGURG as i32
}

fn mount_of(path: &Path) -> Mount {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    mounts::mount_of(&mounts::table(), &path).unwrap_or_default()
}

fn no_dax(mount: &Mount, device: u64) -> String {
    let Mount { kind, options, .. } = mount;
    if !["ext4", "xfs", "ext2"].contains(&kind.as_str()) {
        return format!("{kind} has no DAX for files; ext4 and xfs have");
    }
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let queue = ["queue/dax", "../queue/dax"]
        .iter()
        .find_map(|end| number(&format!("/sys/dev/block/{major}:{minor}/{end}")));
    if queue != Some(1) {
        return format!(
            "the block device {major}:{minor} is no persistent memory (queue/dax is not 1)"
        );
    }
    if options.split(',').any(|option| option == "dax=never") {
        return "the file system is mounted with dax=never".to_owned();
    }
    if options
        .split(',')
        .any(|option| option == "dax" || option == "dax=always")
    {
        return "mounted with dax=always, so the file system refused it (block size other than 4096, reflink)".to_owned();
    }
    "mount with -o dax=always, or set the flag on the folder before files are made (`xfs_io -c 'chattr +x'`)".to_owned()
}

fn kernel(told: &mut Vec<Finding>) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .trim()
        .split(['.', '-'])
        .map_while(|word| word.parse().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < ZERO_COPY {
        add(
            told,
            Level::Error,
            "kernel",
            format!("Linux {}.{} has no MSG_ZEROCOPY", version.0, version.1),
        );
    } else if version < FREES_WAIT {
        let words = "before Linux 6.15, blocks of DAX files that are cut or deleted after a sender was killed may be given \
            away while its bytes are under way: end it by SIGTERM, and wait for its sockets (`ss -tn`)";
        add(told, Level::Warning, "kernel", words);
    } else {
        add(
            told,
            Level::Fine,
            "kernel",
            "sends zero-copy, and truncate waits for DAX pages that are under way",
        );
    }
}

fn process(told: &mut Vec<Finding>) {
    match Sender::new(Options::default()).lacks() {
        Some(lack) => add(told, Level::Error, "limits", lack),
        None => add(
            told,
            Level::Fine,
            "limits",
            "this user may pin what is under way",
        ),
    }
}

fn device(name: &str, told: &mut Vec<Finding>) -> Result<()> {
    let device = Device::find(name)?;
    let driver = driver(&device).unwrap_or_default();
    if name == "lo" || LOCAL_DRIVERS.contains(&driver.as_str()) {
        let words = format!(
            "is local ({}): its receiver is this kernel, which copies",
            if driver.is_empty() { "lo" } else { &driver }
        );
        add(told, Level::Error, name, words);
    } else if sends_in_place(&device)? {
        add(
            told,
            Level::Fine,
            name,
            "reads bytes where they lie (scatter-gather and checksum offload are on)",
        );
    } else {
        let words = format!(
            "scatter-gather or checksum offload is off, so the kernel copies: `ethtool -K {} sg on tx on`",
            quoted(name.as_bytes())
        );
        add(told, Level::Error, name, words);
    }
    Ok(())
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_is_found_and_the_last_one_counts() {
        let table = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
            2 1 259:0 / /pmem rw - ext4 /dev/pmem0 rw,dax=always\n\
            3 1 0:5 / /pmem/tmp rw shared:3 - tmpfs tmpfs rw\n\
            4 1 259:1 / /pmem rw - xfs /dev/pmem1 rw,dax=inode\n";
        let of = |path: &str| {
            let found = mounts::mount_of(table, Path::new(path));
            found.unwrap_or_default().kind
        };
        assert_eq!(of("/etc/x"), "ext4");
        assert_eq!(of("/pmem/x"), "xfs");
        assert_eq!(of("/pmem/tmp/x"), "tmpfs");
        assert_eq!(of("/pmemory/x"), "ext4");
    }

    #[test]
    fn what_the_kernel_makes_up_is_copied() {
        let mut told = Vec::new();
        file(Path::new("/proc/self/status"), &mut told).expect("a file");
        let found = told.iter().find(|finding| finding.subject == "file");
        let found = found.expect("a finding");
        assert_eq!(found.level, Level::Error, "{}", found.text);
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).expect("a fifo");
        for path in [fifo.as_path(), dir.path(), Path::new("/dev/null")] {
            let mut told = Vec::new();
            let refused = file(path, &mut told).expect_err("no regular file");
            assert!(refused.to_string().contains("regular files"), "{refused}");
        }
    }

    #[test]
    fn what_is_in_the_way_of_dax_is_named() {
        let mount = |kind: &str, options: &str| Mount {
            kind: kind.to_owned(),
            options: options.to_owned(),
            ..Mount::default()
        };
        assert!(no_dax(&mount("tmpfs", "rw"), 0).contains("tmpfs has no DAX"));
        assert!(no_dax(&mount("ext4", "rw"), 0).contains("no persistent memory"));
    }
}
