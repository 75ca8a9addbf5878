// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb kv`.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use erb_kv::{
    Client, Error, Head, Identity, Listed, RollBack, Selector, Status, Target, VALUE_BYTES_MAX,
};
use erb_report::shell::{quoted, quoted_path};
use serde_json::{Value, json};

use crate::ask::is_wanted;
use crate::exit;
use crate::kv_args::{
    Caution, DelArgs, GetArgs, KvCommand, LsArgs, OfKey, OnlyUrl, PutArgs, RestoreArgs,
    RollbackArgs, UndoArgs, VersionsArgs, Which, Who,
};
use crate::moment::{COUNTER_BITS, version_of};
use crate::{kv_keep, kv_transfer};

/// Why a command has not done what it was told.
pub enum Failed {
    /// The node, or the way to it.
    Kv(Error),
    /// A file, or standard input.
    Io(String),
    /// A file with secrets that is not to be read.
    SecretFile(erb_node::Error),
    /// What was typed.
    Usage(String),
    /// No roll back that can be undone has this id.
    NoRollBack(u64),
    /// Whoever was asked has not said yes.
    NotWanted,
    /// Nobody reads standard output any more.
    Unread,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Kv(error)
    }
}

/// What came of a command.
pub type Done = Result<(), Failed>;

/// The code of an error of the client.
pub fn code(error: &Error) -> u8 {
    match error {
        Error::Url(_) | Error::Size => exit::USAGE,
        Error::Unreachable { .. } | Error::Refused(_) => exit::NODE_UNREACHABLE,
        Error::NotLetIn(_) => exit::NOT_LET_IN,
        Error::Lost => exit::NOT_KNOWN,
        Error::NotTaken(_) | Error::Answer | Error::System(_) => exit::FAILED,
        Error::Status { status, .. } => match *status {
            Status::ABSENT | Status::NO_SUCH_VERSION => exit::NO_KEY,
            Status::MISMATCH | Status::PRESENT => exit::CONDITION,
            Status::VALUE_SIZE | Status::KEY_SIZE => exit::USAGE,
            Status::INTERNAL => exit::FAILED,
            _ => exit::NODE_REFUSES,
        },
    }
}

/// Ends a command.
pub fn done(done: Done) -> ExitCode {
    let (error, code) = match done {
        // As of `head`, which has what it wants.
        Ok(()) | Err(Failed::Unread) => return ExitCode::SUCCESS,
        Err(Failed::Kv(error)) => (error.to_string(), code(&error)),
        Err(Failed::Io(error)) => (error, exit::FAILED),
        Err(Failed::SecretFile(error)) => (error.to_string(), exit::SECRETS_FILE),
        Err(Failed::Usage(error)) => (error, exit::USAGE),
        Err(Failed::NoRollBack(id)) => (
            format!(
                "{id} is no roll back of these keys, or older than the last 4,096: nothing was changed. `erb kv \
                 rollback` has printed the id, and takes any moment that is kept"
            ),
            exit::NO_KEY,
        ),
        Err(Failed::NotWanted) => ("nothing was changed".to_owned(), exit::FAILED),
    };
    eprintln!("error: {error}");
    ExitCode::from(code)
}

/// Runs the command.
pub fn run(command: &KvCommand) -> ExitCode {
    done(match command {
        KvCommand::Put(args) => put(args),
        KvCommand::Get(args) => get(args),
        KvCommand::Del(args) => del(args),
        KvCommand::Ls(args) => ls(args),
        KvCommand::Versions(args) => versions(args),
        KvCommand::Restore(args) => restore(args),
        KvCommand::Rollback(args) => rollback(args),
        KvCommand::Undo(args) => undo(args),
        KvCommand::Snapshot { command } => kv_keep::snapshot(command),
        KvCommand::Export(args) => kv_transfer::export(args),
        KvCommand::Import(args) => kv_transfer::import(args),
        KvCommand::Retention(args) => kv_keep::retention(args),
        KvCommand::Damaged(node) => kv_keep::damaged(node),
    })
}

/// Connects to what was typed, as whom was typed.
pub fn connect(node: &OnlyUrl) -> Result<Client, Failed> {
    connect_to(&node.url, &node.who)
}

/// The same of parts.
pub fn connect_to(url: &str, who: &Who) -> Result<Client, Failed> {
    let url = url.parse()?;
    let Some(host) = &who.host_nqn else {
        return Ok(Client::connect(&url)?);
    };
    let secrets = who.secret_file.as_deref().map(erb_node::read_secrets);
    let identity = Identity {
        host: host.clone(),
        secrets: secrets.transpose().map_err(Failed::SecretFile)?,
    };
    Ok(Client::connect_as(&url, &identity)?)
}

/// Prints a line.
pub fn print(line: &str) -> Done {
    write(format!("{line}\n").as_bytes())
}

/// Prints an object as a line of JSON.
pub fn say(value: &Value) -> Done {
    print(&value.to_string())
}

fn write(bytes: &[u8]) -> Done {
    let mut out = io::stdout().lock();
    let written = out.write_all(bytes).and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failed::Unread,
        _ => Failed::Io(format!("standard output: {error}")),
    })
}

/// When a version was given, to the microsecond.
pub fn time_of(version: u64) -> String {
    if version == 0 {
        return "its beginning".to_owned();
    }
    let time = UNIX_EPOCH + Duration::from_micros(version >> COUNTER_BITS);
    format!("{} ({version})", humantime::format_rfc3339_micros(time))
}

pub fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// Bytes in JSON: as text if they are that, else as hexadecimal digits under another name.
pub fn with_bytes(object: &mut Value, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object[name] = json!(text),
        Err(_) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            object[format!("{name}_hex")] = json!(hex);
        }
    }
}

fn told(of: &OfKey, version: u64) -> Done {
    if !of.node.json {
        return print(&version.to_string());
    }
    let mut line = json!({ "version": version.to_string() });
    with_bytes(&mut line, "key", of.key.as_bytes());
    say(&line)
}

/// A value: all that there is to read, of which a byte too many is read at most.
fn value_from(from: impl Read, name: &str) -> Result<Vec<u8>, Failed> {
    let mut value = Vec::new();
    let read = from
        .take(VALUE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut value);
    read.map_err(|error| Failed::Io(format!("{name}: {error}")))?;
    if value.len() > VALUE_BYTES_MAX {
        let long = format!("{name} has more than {VALUE_BYTES_MAX} bytes, which a value may have");
        return Err(Failed::Usage(long));
    }
    Ok(value)
}

fn put(args: &PutArgs) -> Done {
    let value = match (&args.value, &args.file) {
        (Some(value), _) => value.as_bytes().to_vec(),
        (None, Some(path)) => {
            let name = path.display().to_string();
            let file = File::open(path).map_err(|error| Failed::Io(format!("{name}: {error}")))?;
            value_from(file, &name)?
        }
        (None, None) => value_from(io::stdin().lock(), "standard input")?,
    };
    let mut client = connect(&args.of.node)?;
    let version = client.put(args.of.key.as_bytes(), &value, args.if_version)?;
    told(&args.of, version)
}

fn selector(which: &Which, client: &mut Client) -> Result<Selector, Failed> {
    Ok(match which {
        Which {
            version: Some(version),
            ..
        } => Selector::Version(*version),
        Which {
            back: Some(back), ..
        } => Selector::Back(*back),
        Which {
            as_of: Some(moment),
            ..
        } => Selector::AsOf(moment.version(client)?),
        _ => Selector::Head,
    })
}

fn get(args: &GetArgs) -> Done {
    let mut client = connect(&args.of.node)?;
    let which = selector(&args.which, &mut client)?;
    let found = client.get(args.of.key.as_bytes(), which)?;
    if found.head.flags & Head::UNCERTAIN != 0 {
        eprintln!(
            "uncertain: version {} was made out of version {}, and something is lost that may have been \
             between; `erb kv damaged` tells where",
            found.head.version, found.head.source
        );
    }
    if !matches!(which, Selector::Head | Selector::Version(_)) {
        tell_lost(&mut client);
    }
    if args.of.node.json {
        let mut line = row(&found.head);
        with_bytes(&mut line, "key", args.of.key.as_bytes());
        with_bytes(&mut line, "value", &found.value);
        return say(&line);
    }
    write(&found.value)
}

fn del(args: &DelArgs) -> Done {
    let mut client = connect(&args.of.node)?;
    let version = client.delete(args.of.key.as_bytes(), args.if_version)?;
    if version == 0 {
        return Err(Failed::Kv(Error::Status {
            status: Status::ABSENT,
            result: 0,
        }));
    }
    told(&args.of, version)
}

fn ls(args: &LsArgs) -> Done {
    let mut client = connect(&args.node)?;
    let moment = version_of(args.as_of, &mut client)?.unwrap_or(0);
    let since = version_of(args.changed_since, &mut client)?.unwrap_or(0);
    if moment > 0 || since > 0 {
        tell_lost(&mut client);
    }
    let prefix = args.prefix.as_bytes();
    let mut listing = if args.deleted {
        client.changes(prefix, moment, since)?
    } else {
        client.listing(prefix, moment, since)?
    };
    while let Some(page) = client.page(&mut listing)? {
        for listed in &page {
            tell_key(&args.node, listed)?;
        }
    }
    Ok(())
}

fn tell_key(node: &OnlyUrl, listed: &Listed) -> Done {
    let is_deleted = u32::from(listed.flags) & Head::DELETED != 0;
    if !node.json {
        let (version, key) = (listed.version, shown(&listed.key));
        let bytes = if is_deleted {
            "deleted".to_owned()
        } else {
            listed.bytes.to_string()
        };
        return print(&format!("{version:>20} {bytes:>8} {key}"));
    }
    let mut line = json!({ "version": listed.version.to_string(), "bytes": listed.bytes });
    if is_deleted {
        line["deleted"] = json!(true);
    }
    with_bytes(&mut line, "key", &listed.key);
    say(&line)
}

fn words(head: &Head) -> Vec<&'static str> {
    let all = [
        (Head::DELETED, "deleted"),
        (Head::RESTORED, "restored"),
        (Head::ROLLED_BACK, "rolled back"),
        (Head::GAP, "older ones are gone"),
        (Head::DAMAGED, "damaged"),
        (Head::UNCERTAIN, "uncertain"),
    ];
    let said = all.into_iter().filter(|(flag, _)| head.flags & flag != 0);
    said.map(|(_, word)| word).collect()
}

fn row(head: &Head) -> Value {
    json!({
        "version": head.version.to_string(),
        "source": head.source.to_string(),
        "bytes": head.bytes,
        "is": words(head),
        "writer": head.writer,
    })
}

/// Tells whoever asks for the past that something of it is lost, and nobody knows of which keys.
pub fn tell_lost(client: &mut Client) {
    // A node that cannot say it is no reason not to do what was asked for.
    let damage = client.damage().unwrap_or_default();
    let lost = damage.iter().filter(|it| it.key.is_empty()).count();
    if lost > 0 {
        eprintln!(
            "what lay at {lost} places of the store is lost, and it is not known of which keys: a key may have had another \
             version then, and what is seen is the one before; `erb kv damaged` lists the places"
        );
    }
}

fn versions(args: &VersionsArgs) -> Done {
    let mut client = connect(&args.of.node)?;
    tell_lost(&mut client);
    let mut below = 0;
    loop {
        let (rows, has_more) = client.versions(args.of.key.as_bytes(), below)?;
        for head in &rows {
            if args.of.node.json {
                say(&row(head))?;
                continue;
            }
            // A host that was not listed has no number.
            let writer = (head.writer > 0).then(|| format!("by host {}", head.writer));
            let is: Vec<_> = words(head)
                .into_iter()
                .map(String::from)
                .chain(writer)
                .collect();
            let line = format!(
                "{} {:>8} {}",
                time_of(head.version),
                head.bytes,
                is.join(", ")
            );
            print(line.trim_end())?;
        }
        match rows.last() {
            Some(last) if has_more => below = last.version,
            _ => return Ok(()),
        }
    }
}

fn restore(args: &RestoreArgs) -> Done {
    let Which {
        version,
        back,
        as_of,
    } = &args.which;
    if version.is_none() && back.is_none() && as_of.is_none() {
        let which =
            "which version? --version, --back or --as-of says so; `erb kv versions` lists them";
        return Err(Failed::Usage(which.to_owned()));
    }
    let mut client = connect(&args.of.node)?;
    let from = selector(&args.which, &mut client)?;
    if version.is_none() {
        tell_lost(&mut client);
    }
    let version = client.restore(args.of.key.as_bytes(), from)?;
    told(&args.of, version)
}

fn rollback(args: &RollbackArgs) -> Done {
    let mut client = connect(&args.node)?;
    let target = match (version_of(args.to, &mut client)?, args.back) {
        (Some(moment), _) => Target::Moment(moment),
        (None, back) => Target::Back(back.unwrap_or(0)),
    };
    let wanted = RollBack {
        prefix: args.prefix.as_bytes().to_vec(),
        target,
        unless_written_since: version_of(args.unless_written_since, &mut client)?,
        is_dry_run: false,
    };
    let id = roll(&mut client, &args.node, &wanted, args.caution)?;
    if let Some(id) = id.filter(|_| !args.node.json) {
        print(&format!(
            "rolled back, as version {id}; `{}` undoes it",
            undo_command(&args.node, id)
        ))?;
    }
    Ok(())
}

/// What a user types to undo a roll back, as the same user of the node.
fn undo_command(node: &OnlyUrl, id: u64) -> String {
    let mut words = vec!["erb kv undo".to_owned()];
    if let Some(host) = &node.who.host_nqn {
        words.extend(["--host-nqn".to_owned(), quoted(host.as_bytes())]);
    }
    if let Some(file) = &node.who.secret_file {
        words.extend(["--secret-file".to_owned(), quoted_path(file)]);
    }
    words.extend([quoted(node.url.as_bytes()), id.to_string()]);
    words.join(" ")
}

fn undo(args: &UndoArgs) -> Done {
    let mut client = connect(&args.node)?;
    let wanted = RollBack {
        prefix: args.prefix.as_bytes().to_vec(),
        target: Target::Undo(args.id),
        unless_written_since: (!args.all).then_some(args.id),
        is_dry_run: false,
    };
    let id = match roll(&mut client, &args.node, &wanted, args.caution) {
        Err(Failed::Kv(Error::Status { status, .. })) if status == Status::NO_SUCH_VERSION => {
            return Err(Failed::NoRollBack(args.id));
        }
        rolled => rolled?,
    };
    if let Some(id) = id.filter(|_| !args.node.json) {
        let command = undo_command(&args.node, id);
        print(&format!("undone, as version {id}; `{command}` undoes that"))?;
    }
    Ok(())
}

/// Counts, asks, and rolls back: the id, if that was done.
fn roll(
    client: &mut Client,
    node: &OnlyUrl,
    wanted: &RollBack,
    caution: Caution,
) -> Result<Option<u64>, Failed> {
    tell_lost(client);
    if caution.dry_run {
        let keys = client.count(wanted)?;
        if node.json {
            say(&json!({ "keys": keys, "dry_run": true }))?;
        } else {
            print(&format!("keys that would change: {keys}"))?;
        }
        return Ok(None);
    }
    if !caution.yes {
        let keys = client.count(wanted)?;
        confirm(keys)?;
    }
    let id = client.roll_back(wanted)?;
    if node.json {
        say(&json!({ "id": id.to_string() }))?;
    }
    Ok(Some(id))
}

fn confirm(keys: u64) -> Done {
    if !io::stdin().is_terminal() {
        return Err(Failed::Usage(format!(
            "keys that would change: {keys}; nobody is there to be asked: --yes does it, --dry-run only counts"
        )));
    }
    ask(&format!("keys that change: {keys}. Go on?"))
}

/// Asks on the terminal.
pub fn ask(question: &str) -> Done {
    match is_wanted(question) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failed::NotWanted),
        Err(error) => Err(Failed::Io(format!("standard input: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_so_that_a_terminal_survives_them() {
        assert_eq!(shown("käse".as_bytes()), "käse");
        assert_eq!(shown(b"a\x1b[2J"), "a\\x1b[2J");
        assert_eq!(shown(b"\xff"), "\\xff");
        let mut line = json!({});
        with_bytes(&mut line, "key", b"text");
        with_bytes(&mut line, "value", b"\xff\x00");
        assert_eq!(line, json!({ "key": "text", "value_hex": "ff00" }));
    }

    #[test]
    fn a_value_without_end_is_refused() {
        let whole = io::repeat(b'v').take(VALUE_BYTES_MAX as u64);
        let value = value_from(whole, "it").unwrap_or_default();
        assert_eq!(value.len(), VALUE_BYTES_MAX);
        let refused = value_from(io::repeat(b'v'), "standard input");
        assert!(matches!(refused, Err(Failed::Usage(why)) if why.contains("standard input")));
    }

    #[test]
    fn a_version_says_when_it_was_given() {
        let version = 1_800_000_000_000_123 << COUNTER_BITS;
        assert_eq!(
            time_of(version),
            format!("2027-01-15T08:00:00.000123Z ({version})")
        );
    }
}
