// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything that can be known to fail before anything is changed.

use std::path::Path;
use std::time::{Duration, Instant};

use caps::{CapSet, Capability};
use erb_abi::DEVICES_MAX;
use erb_datapath::{Device, check_layers, foreign_xdp};
use erb_redis::resp::{Frame, RespStream, error, pairs};
use erb_redis::rights::{
    Credentials, DEFAULT_USER, RIGHTS, WRITE_RIGHTS, advice, is_unknown, lacks_right, missing,
};
use erb_redis::{RedisState, TRIAL};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::addr::RedisAddr;
use crate::credentials::CredentialSource;
use crate::machine::Connection;
use crate::privilege::as_at_work;
use crate::sockets::listens_on;
use crate::{Error, Result};

/// Oldest kernel that the programs are tried on (Debian 13's).
const KERNEL_MIN: (u32, u32) = (6, 12);

/// What the daemon must be allowed to do, and what for.
const CAPABILITIES: [(Capability, &str); 4] = [
    (Capability::CAP_BPF, "loading programs"),
    (Capability::CAP_NET_ADMIN, "attaching them to devices"),
    (Capability::CAP_PERFMON, "reading socket fields in programs"),
    (
        Capability::CAP_SYS_ADMIN,
        "mounting the bpffs that holds the pins",
    ),
];

/// Time that Redis has for the first answers; Redis 7.0 takes some 0.6 ms of it for each user.
const REDIS_ANSWER_MAX: Duration = Duration::from_secs(10);

/// Checks capabilities.
///
/// # Errors
/// [`Error::Privilege`] naming the missing ones.
pub fn check_privileges() -> Result<()> {
    let missing: Vec<String> = CAPABILITIES
        .iter()
        .filter(|(capability, _)| {
            !caps::has_cap(None, CapSet::Effective, *capability).unwrap_or(false)
        })
        .map(|(capability, what_for)| format!("{capability} ({what_for})"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::Privilege(format!(
        "missing {}; run as root",
        missing.join(", ")
    )))
}

/// Checks the kernel's release and that it describes its types.
///
/// # Errors
/// [`Error::Kernel`] if it is too old or has no BTF.
pub fn check_kernel() -> Result<()> {
    let names =
        nix::sys::utsname::uname().map_err(Error::io("could not ask for the kernel's release"))?;
    check_release(&names.release().to_string_lossy())?;
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err(Error::Kernel(
            "the kernel has no BTF (/sys/kernel/btf/vmlinux is missing): boot one that is built with \
             CONFIG_DEBUG_INFO_BTF, as those of distributions are"
                .to_owned(),
        ));
    }
    Ok(())
}

fn check_release(release: &str) -> Result<()> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let mut next = || {
        numbers
            .next()
            .and_then(|number| number.parse::<u32>().ok())
            .unwrap_or(0)
    };
    let found = (next(), next());
    if found < KERNEL_MIN {
        let (major, minor) = KERNEL_MIN;
        return Err(Error::Kernel(format!(
            "Linux {release} is too old: ERB needs {major}.{minor} or newer; boot such a kernel"
        )));
    }
    Ok(())
}

/// Looks the devices up and checks that no XDP program is on them.
///
/// # Errors
/// [`Error::Datapath`] for a missing device or one that cannot be boosted, [`Error::Usage`] for one
/// that is named twice and for too many.
pub fn check_devices(names: &[String]) -> Result<Vec<Device>> {
    let mut devices: Vec<Device> = Vec::new();
    for name in names {
        let device = Device::find(name)?;
        if devices.contains(&device) {
            return Err(Error::Usage(format!("device {name} is given twice")));
        }
        devices.push(device);
    }
    if devices.len() > DEVICES_MAX as usize {
        return Err(Error::Usage(format!(
            "{} devices are given: at most {DEVICES_MAX} can be boosted together",
            devices.len()
        )));
    }
    check_layers(&devices)?;
    Ok(devices)
}

/// Checks that the devices have no XDP program yet.
///
/// # Errors
/// [`Error::Datapath`] saying whose program it is.
pub fn check_no_xdp(devices: &[Device]) -> Result<()> {
    for device in devices {
        if let Some(found) = foreign_xdp(device)? {
            return Err(erb_datapath::Error::ForeignXdp(found.describe(device)).into());
        }
    }
    Ok(())
}

/// Asks Redis who it is and what the user may do; returns its state and its port.
///
/// # Errors
/// [`Error::Redis`] if it cannot be reached or refuses the user, [`Error::RedisOld`] below 7.0,
/// [`Error::Credentials`] for a password file that cannot be used.
pub fn check_redis(
    address: &RedisAddr,
    source: &CredentialSource,
    port: Option<u16>,
) -> Result<(RedisState, u16)> {
    // The daemon reads it again when it has given up the rights that root has to all files.
    let credentials = as_at_work(|| source.read())?;
    let failed = |reason: String| Error::Redis {
        address: address.to_string(),
        reason,
    };
    // So it reaches a unix socket, too.
    let mut stream = as_at_work(|| Connection::unasked(address))
        .map(RespStream::new)
        .map_err(|error| failed(unreachable(address, &error)))?;
    let mut ask =
        |commands: &[&[&[u8]]]| ask(&mut stream, commands).map_err(|error| failed(silent(&error)));
    let hello = ask(&[
        &Credentials::hello(credentials.as_ref()),
        &[b"INFO", b"server", b"clients"],
        &[b"CONFIG", b"GET", b"port"],
    ])?;
    // What is no HELLO's answer is told below, by the version that is missing.
    let refusal = error(&hello[0]).and_then(|text| advice(source.user(), &text));
    if let Some(text) = refusal {
        return Err(failed(text));
    }
    let mut check_rights = || {
        let trials: Vec<&[&[u8]]> = RIGHTS.iter().map(|right| right.trial).collect();
        why_not(&ask(&trials)?, source.user()).map_or(Ok(()), |text| Err(failed(text)))
    };
    if error(&hello[1]).is_some_and(|text| lacks_right(&text)) {
        check_rights()?;
    }
    let mut state = RedisState::default();
    state.take_info(&hello[1]);
    if state.version.is_empty() {
        return Err(failed(without_version(error(&hello[1]))));
    }
    if !state.is_new_enough() {
        return Err(Error::RedisOld {
            address: address.to_string(),
            version: state.version,
        });
    }
    if error(&hello[0]).is_some_and(|text| is_unknown(&text)) {
        return Err(failed(missing("HELLO")));
    }
    check_rights()?;
    let configured = pairs(&hello[2])
        .into_iter()
        .find_map(|(_, value)| value.parse().ok());
    let port = port
        .or(address.port())
        .or(configured)
        .filter(|port| *port != 0);
    let port = port.ok_or_else(|| failed("listens on no TCP port; give --port".to_owned()))?;
    Ok((state, port))
}

/// Checks that ERB will answer in this Redis's place sooner or later.
///
/// # Errors
/// [`Error::AnswersNothing`] if it never will.
pub fn check_answers(address: &RedisAddr, state: &RedisState) -> Result<()> {
    match state.is_never_served() {
        Some(why) => Err(Error::AnswersNothing(format!(
            "ERB would answer nothing at {address}: {why}"
        ))),
        None => Ok(()),
    }
}

/// Checks that the daemon's user may do what a drain does: without DISCARD the feed would hang in its own trial.
///
/// # Errors
/// [`Error::Redis`] that says which rights are missing.
pub fn check_write_rights(address: &RedisAddr, source: &CredentialSource) -> Result<()> {
    let failed = |reason: String| Error::Redis {
        address: address.to_string(),
        reason,
    };
    let credentials = as_at_work(|| source.read())?;
    let mut stream = as_at_work(|| Connection::unasked(address))
        .map(RespStream::new)
        .map_err(|error| failed(unreachable(address, &error)))?;
    let hello = Credentials::hello(credentials.as_ref());
    let all: Vec<&[&[u8]]> = std::iter::once(&hello[..])
        .chain(TRIAL.iter().copied())
        .collect();
    let replies = ask(&mut stream, &all).map_err(|error| failed(silent(&error)))?;
    let lacking = replies
        .iter()
        .filter_map(error)
        .find(|text| lacks_right(text));
    match lacking {
        Some(text) => Err(failed(format!(
            "{text}: --mode write-back needs more rights, ACL SETUSER {} +{}",
            source.user().unwrap_or(DEFAULT_USER),
            WRITE_RIGHTS.join(" +")
        ))),
        None => Ok(()),
    }
}

/// Why Redis's version is not known, where INFO was answered with this error or with a text without it.
fn without_version(refusal: Option<String>) -> String {
    match refusal {
        Some(text) if is_unknown(&text) => missing("INFO"),
        Some(text) => format!("answered INFO with {text:?}: try again when it answers"),
        None => "did not say its version: is this a Redis? If not, correct --redis".to_owned(),
    }
}

/// Why the replies to the trials of [`RIGHTS`] forbid to begin; none: they do not.
fn why_not(replies: &[Frame], user: Option<&str>) -> Option<String> {
    let rules = |wanted: fn(&str) -> bool| -> Vec<&str> {
        let found = replies.iter().zip(RIGHTS);
        found
            .filter(|(reply, _)| error(reply).is_some_and(|text| wanted(&text)))
            .map(|(_, right)| right.rule)
            .collect()
    };
    let lacking = rules(lacks_right);
    if !lacking.is_empty() {
        let text = format!("NOPERM for {}", lacking.join(", "));
        return Some(advice(user, &text).unwrap_or(text));
    }
    let unknown = rules(is_unknown);
    (!unknown.is_empty()).then(|| missing(&unknown.join(", ").replace('|', " ")))
}

/// What to do about a Redis to which there is no connection.
pub(crate) fn unreachable(address: &RedisAddr, error: &std::io::Error) -> String {
    let advice = match address {
        RedisAddr::Tcp(_) => {
            "start it, or correct --redis; if it runs in another network namespace, work in that \
             (`ip netns exec NAME erb ...`)"
        }
        RedisAddr::Unix(_) => {
            "start it, or correct --redis; `unixsocket` in redis.conf is its path"
        }
    };
    format!("could not be reached: {error}; is it running? {advice}")
}

/// What to do about a Redis that takes a connection and does not answer.
pub(crate) fn silent(error: &std::io::Error) -> String {
    let advice = match error.kind() {
        std::io::ErrorKind::TimedOut => {
            "it stands still or is busy: try again when `redis-cli ping` is answered"
        }
        std::io::ErrorKind::InvalidData => "is this a Redis? If not, correct --redis",
        _ => {
            "its log may say why: protected-mode, maxclients, or client-output-buffer-limit normal, \
             where that is less than CLIENT LIST takes, for example"
        }
    };
    format!("did not answer: {error}; {advice}")
}

/// Checks that something listens on the port in the caller's network namespace.
///
/// # Errors
/// [`Error::NoListener`] if not.
pub fn check_listener(port: u16) -> Result<()> {
    if listens_on(port)? {
        Ok(())
    } else {
        Err(Error::NoListener(port))
    }
}

/// Sends commands and waits for their replies.
pub(crate) fn ask(
    stream: &mut RespStream<Connection>,
    commands: &[&[&[u8]]],
) -> std::io::Result<Vec<Frame>> {
    let mut replies = Vec::new();
    ask_for(stream, commands, &mut replies)?;
    Ok(replies)
}

/// The same; the replies that have come are there, also where the others do not.
pub(crate) fn ask_for(
    stream: &mut RespStream<Connection>,
    commands: &[&[&[u8]]],
    replies: &mut Vec<Frame>,
) -> std::io::Result<()> {
    let until = Instant::now() + REDIS_ANSWER_MAX;
    for words in commands {
        stream.push(words);
    }
    stream.flush()?;
    while replies.len() < commands.len() {
        if let Some(frame) = stream.next_frame()? {
            replies.push(frame);
            continue;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        // What the connection does not take at once goes as Redis reads.
        let mut awaited = PollFlags::POLLIN;
        awaited.set(PollFlags::POLLOUT, stream.wants_write());
        poll(
            &mut [PollFd::new(
                std::os::fd::AsFd::as_fd(stream.get_ref()),
                awaited,
            )],
            timeout,
        )?;
        stream.fill().map_err(|end| {
            // Its last words, as "max number of clients reached".
            let said = replies.iter().find_map(error);
            said.map_or_else(
                || std::io::Error::new(end.kind(), end.to_string()),
                |said| std::io::Error::new(end.kind(), format!("{end}, with {said:?}")),
            )
        })?;
        stream.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> CredentialSource {
        CredentialSource::default()
    }

    /// Root reaches everybody's sockets; the daemon at work does not.
    #[test]
    fn a_socket_that_only_root_reaches_is_refused() {
        use std::os::unix::fs::{PermissionsExt, chown};
        let path = std::env::temp_dir().join(format!("erb-socket-test-{}", std::process::id()));
        let _listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        let nobodys = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&path, nobodys).expect("its mode");
        chown(&path, Some(65_534), Some(65_534)).expect("tests run as root");
        let address = format!("unix:{}", path.display());
        let address = address.parse().expect("an address");
        let refused = check_redis(&address, &none(), Some(6379)).expect_err("no way in");
        assert!(
            refused.to_string().contains("Permission denied"),
            "{refused}"
        );
    }

    #[test]
    fn kernel_releases() {
        for release in [
            "6.12.0",
            "6.12",
            "6.18.44-fc",
            "7.0-rc1",
            "6.12.38+deb13-amd64",
        ] {
            assert!(check_release(release).is_ok(), "{release}");
        }
        for release in ["6.11.9", "6.1.0-37-amd64", "5.15.0", "2.6.78", "", "x"] {
            assert!(
                matches!(check_release(release), Err(Error::Kernel(_))),
                "{release}"
            );
        }
    }

    #[test]
    fn unreachable_redis() {
        // Bound and never listening: the port is taken and refuses connections.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let found = check_redis(&RedisAddr::Tcp(address), &none(), None);
        assert!(matches!(found, Err(Error::Redis { .. })), "{found:?}");
    }

    #[test]
    fn old_redis_and_no_redis() {
        use std::io::{Read, Write};
        for (info, old) in [
            ("redis_version:6.2.14\r\n", true),
            ("hello:there\r\n", false),
        ] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = [0; 16];
                stream.read_exact(&mut asked).unwrap();
                write!(
                    stream,
                    "+hello\r\n${}\r\n{info}\r\n*2\r\n$4\r\nport\r\n$4\r\n6379\r\n",
                    info.len()
                )
                .unwrap();
                // What is closed with bytes unread is reset, and the answer may be lost with it.
                let _ = stream.read_to_end(&mut Vec::new());
            });
            let found = check_redis(&RedisAddr::Tcp(address), &none(), None);
            server.join().unwrap();
            match found {
                Err(Error::RedisOld { .. }) => assert!(old),
                Err(Error::Redis { .. }) => assert!(!old),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn what_info_is_answered_with_is_told() {
        let busy = "BUSY Redis is busy running a script.";
        let told = without_version(Some(busy.to_owned()));
        assert!(
            told.contains(busy) && !told.contains("is this a Redis"),
            "{told}"
        );
        let renamed = without_version(Some("ERR unknown command 'INFO'".to_owned()));
        assert!(renamed.contains("rename-command"), "{renamed}");
        assert!(without_version(None).contains("is this a Redis"));
    }

    #[test]
    fn a_device_is_named_once() {
        assert!(check_devices(&["lo".to_owned()]).is_ok());
        let twice = ["lo".to_owned(), "lo".to_owned()];
        assert!(matches!(check_devices(&twice), Err(Error::Usage(_))));
    }
}
