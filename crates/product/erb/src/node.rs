// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb node`.

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use erb_node::{
    Contents, Error, Format, GROWTH_SIGNAL, Grow, Grown, NEW_RETENTION, NoGrowth, Node, Note,
    Options, Retention, Rot,
};
use erb_report::NodeStatus;
use indicatif::{BinaryBytes, ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit;
use crate::host;
use crate::kv;
use crate::kv_keep;
use crate::node_args::{
    CheckArgs, FormatArgs, GrowArgs, NodeCommand, NodeStatusArgs, StartArgs, StopArgs,
};
use crate::watch_args::Watching;

/// Time that a node has to say how it is.
const STATUS_MAX: Duration = Duration::from_secs(2);

/// Runs the command.
pub fn run(command: &NodeCommand) -> ExitCode {
    let done = match command {
        NodeCommand::Format(args) => return ended(format(args)),
        NodeCommand::Grow(args) => return ended(grow(args)),
        NodeCommand::Check(args) => return ended(check(args)),
        NodeCommand::Start(args) => return start_watched(args),
        NodeCommand::Host { command } => host::run(command),
        NodeCommand::Stop(args) => return stop(args),
        NodeCommand::Status(args) => return status(args),
    };
    ended(done.map(|()| Ok(())))
}

/// Ends a command: what it has told is part of it.
fn ended(done: Result<kv::Done, Error>) -> ExitCode {
    match done {
        Ok(told) => kv::done(told),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(code(&error))
        }
    }
}

/// The code of an error of the node.
pub const fn code(error: &Error) -> u8 {
    match error {
        Error::NotAFile(_)
        | Error::NotLoopback(_)
        | Error::Exists(_)
        | Error::UnknownHost(_)
        | Error::KnownHost(_)
        | Error::SubsystemNqn(_)
        | Error::Nqn(_) => exit::USAGE,
        Error::SecretsFile { .. }
        | Error::NoSecrets(_)
        | Error::NotPrivate { .. }
        | Error::Hosts { .. }
        | Error::OldHosts { .. } => exit::SECRETS_FILE,
        Error::Grow {
            source: NoGrowth::Superblock(_),
            ..
        } => exit::NO_STORE,
        Error::Size(_) | Error::Layout(_) | Error::Grow { .. } => exit::SIZE,
        Error::Address { .. } => exit::ADDRESS,
        Error::InUse { .. } | Error::Growing(_) | Error::NotANode { .. } => exit::STORE_IN_USE,
        Error::File { .. }
        | Error::NotDirect(_)
        | Error::InMemory(_)
        | Error::Open { .. }
        | Error::Short { .. }
        | Error::Clock(_) => exit::NO_STORE,
        Error::NotRunning(_) => exit::NO_NODE,
        Error::Descriptors(_)
        | Error::Failed
        | Error::Late
        | Error::NotGrown { .. }
        | Error::System { .. } => exit::FAILED,
    }
}

fn bytes(text: &str) -> Result<u64, Error> {
    erb_datapath::parse_bytes(text).map_err(|error| Error::Size(error.to_string()))
}

fn format(args: &FormatArgs) -> Result<kv::Done, Error> {
    let wanted = Format {
        path: args.path.clone(),
        bytes: args.size.as_deref().map(bytes).transpose()?,
        shards: args.shards,
        may_overwrite: args.force,
    };
    let bar = bar(args.json);
    let us = |time: Option<Duration>, new| {
        time.map_or(new, |it| u64::try_from(it.as_micros()).unwrap_or(u64::MAX))
    };
    let keeps = Retention {
        min_age_us: us(args.min_age, NEW_RETENTION.min_age_us),
        keep_deleted_us: us(args.keep_deleted, NEW_RETENTION.keep_deleted_us),
        min_count: args.min_count.unwrap_or(NEW_RETENTION.min_count),
    };
    let layout = erb_node::format_keeping(&wanted, keeps, &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let layout = layout?;
    Ok(if args.json {
        kv::say(&json!({
            "path": args.path.display().to_string(),
            "store_bytes": layout.store_bytes,
            "segment_bytes": layout.segment_bytes,
            "segments": layout.segments(),
            "shards": layout.shards,
        }))
    } else {
        kv::print(&format!(
            "{}: a store of {} with {} segments of {}, {}; start it by `erb node start`",
            args.path.display(),
            BinaryBytes(layout.store_bytes),
            layout.segments(),
            BinaryBytes(layout.segment_bytes),
            counted(u64::from(layout.shards), "shard")
        ))
    })
}

/// A bar of bytes, where somebody looks at it.
fn bar(is_silent: bool) -> ProgressBar {
    let bar = if std::io::stderr().is_terminal() && !is_silent {
        ProgressBar::new(0)
    } else {
        ProgressBar::hidden()
    };
    let style = ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {eta}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn grow(args: &GrowArgs) -> Result<kv::Done, Error> {
    let wanted = Grow {
        path: args.path.clone(),
        bytes: args.size.as_deref().map(bytes).transpose()?,
    };
    let bar = bar(args.json);
    let grown = erb_node::grow(&wanted, &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let Grown {
        before,
        now,
        is_running,
    } = grown?;
    Ok(if args.json {
        kv::say(&json!({
            "path": args.path.display().to_string(),
            "store_bytes": now.store_bytes,
            "store_bytes_before": before.store_bytes,
            "segments": now.segments(),
            "segments_before": before.segments(),
            "is_running": is_running,
        }))
    } else {
        let next = if is_running {
            "its node uses them"
        } else {
            "start it by `erb node start`"
        };
        kv::print(&format!(
            "{}: a store of {}, {} before, with {} segments more; {next}",
            args.path.display(),
            BinaryBytes(now.store_bytes),
            BinaryBytes(before.store_bytes),
            now.segments() - before.segments()
        ))
    })
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::System { what, source }
}

/// What can be read from once one of these has come.
fn signalled(signals: &[i32]) -> Result<UnixStream, Error> {
    let (told, comes) = UnixStream::pair().map_err(failed("no socket is to be had"))?;
    for signal in signals {
        let told = told.try_clone().map_err(failed("no socket is to be had"))?;
        let registered = signal_hook::low_level::pipe::register(*signal, told);
        registered.map_err(failed("signals cannot be waited for"))?;
    }
    Ok(comes)
}

/// What can be read from once the node shall end.
fn stopped(args: &StartArgs) -> Result<UnixStream, Error> {
    let stop = signalled(&[SIGINT, SIGTERM])?;
    if args.hosts.is_some() {
        // Who asks for the file to be read need not: it is read twice a second.
        let registered = signal_hook::flag::register(SIGHUP, Arc::default());
        registered.map_err(failed("signals cannot be waited for"))?;
    }
    Ok(stop)
}

fn tell(note: Note) {
    match note {
        Note::Hosts(count) => eprintln!("hosts: {} may connect", counted(count as u64, "host")),
        Note::HostsKept(error) => {
            eprintln!("warning: {error}; until then those may connect who could before");
        }
        Note::Grown(bytes) => eprintln!("the store has grown to {}", BinaryBytes(bytes)),
        Note::NotGrown(error) => eprintln!("warning: the store does not grow: {error}"),
        Note::Failed { from, why, count } => {
            let more = match count {
                1 => String::new(),
                count => format!(" ({count} times)"),
            };
            eprintln!("warning: {from}: {why}{more}");
        }
    }
}

/// Serves what the node says of itself to those who watch it.
fn watch(args: &StartArgs, watching: Watching, node: &Node) -> Result<(), Error> {
    let (asking, nqn) = (node.asking(), args.nqn.clone());
    let address = node.address().to_string();
    let index_max_bytes = bytes(&args.memory)?;
    watching.tell(&args.watched, args.json);
    let served = watching.serve(move |_| {
        let status = asking.status(STATUS_MAX);
        let status = status.ok_or_else(|| "the node does not answer".to_owned())?;
        Ok(NodeStatus {
            nqn: nqn.clone(),
            address: address.clone(),
            index_max_bytes,
            ..status
        })
    });
    served.map_err(|source| Error::System {
        what: "metrics cannot be served",
        source,
    })
}

/// The address at which a node is watched is taken before the store is opened.
fn start_watched(args: &StartArgs) -> ExitCode {
    match args.watched.bind() {
        Ok(watching) => ended(start(args, watching).map(|()| Ok(()))),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(exit::code(&error))
        }
    }
}

fn start(args: &StartArgs, watching: Option<Watching>) -> Result<(), Error> {
    let stop = stopped(args)?;
    let node = Node::open(&Options {
        path: args.path.clone(),
        address: args.listen,
        nqn: args.nqn.clone(),
        memory_bytes: bytes(&args.memory)?,
        value_cache_bytes: bytes(&args.value_cache)?,
        role: args.role.into(),
        hosts: args.hosts.clone(),
        is_open_to_all: args.insecure,
        is_clock_sure: args.clock_ok,
    })?;
    let node = node.growing(signalled(&[GROWTH_SIGNAL as i32])?);
    let url = format!("nvme://{}", node.address());
    if args.insecure {
        eprintln!(
            "warning: nobody needs a secret: whoever can reach {} may do what --role says",
            node.address()
        );
    }
    for line in damaged(node.contents()) {
        eprintln!("warning: {line}");
    }
    if let Some(watching) = watching {
        watch(args, watching, &node)?;
    }
    // It serves whether or not somebody reads this.
    if args.json {
        let mut line = described(node.contents());
        line["url"] = json!(url);
        line["nqn"] = json!(args.nqn);
        let _ = kv::say(&line);
    } else {
        let _ = kv::print(&format!(
            "ready: {} at {url}: {}; Ctrl-C ends",
            args.path.display(),
            sentence(node.contents())
        ));
    }
    // Who was not started by systemd has nobody to tell.
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
    let ended = node.run_and_tell(stop.as_fd(), &mut tell);
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
    if ended.is_ok() && !args.json {
        let _ = kv::print("ended: everything that was acknowledged is durable");
    }
    ended
}

fn described(contents: &Contents) -> Value {
    json!({
        "keys": contents.keys,
        "shards": contents.shards,
        "store_bytes": contents.store_bytes,
        "size_bytes": contents.size_bytes,
        "used_bytes": contents.used_bytes,
        "segment_bytes": contents.segment_bytes,
        "memory_bytes": contents.memory_bytes,
        "roll_backs": contents.roll_backs,
        "snapshots": contents.snapshots,
        "damaged": contents.damaged.iter().map(|rot| {
            let mut line = json!({ "address": rot.address, "bytes": rot.bytes });
            if let Some((_, key)) = &rot.key {
                kv::with_bytes(&mut line, "key", key);
            }
            line
        }).collect::<Vec<_>>(),
        "lost_entries_at": contents.lost_entries_at,
        "recovery_us": u64::try_from(contents.recovery.as_micros()).unwrap_or(u64::MAX),
    })
}

fn counted(count: u64, word: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {word}{plural}")
}

fn sentence(contents: &Contents) -> String {
    format!(
        "{}, {} of {} used, {}, recovered in {:.2} s",
        counted(contents.keys, "key"),
        BinaryBytes(contents.used_bytes),
        BinaryBytes(contents.size_bytes),
        counted(u64::from(contents.shards), "shard"),
        contents.recovery.as_secs_f64()
    )
}

fn check(args: &CheckArgs) -> Result<kv::Done, Error> {
    let bar = bar(args.json);
    let checked = erb_node::check_all(&args.path, &mut |read, all| {
        bar.set_length(all);
        bar.set_position(read);
    });
    bar.finish_and_clear();
    let (contents, what) = match checked {
        Ok(contents) => (contents, "it opens"),
        Err(Error::Open { .. }) if args.yes => {
            let contents = erb_node::repair(&args.path, args.clock_ok)?;
            (contents, "it was repaired, and opens")
        }
        Err(Error::Open { .. }) if args.repair => {
            let contents = erb_node::check_repair(&args.path)?;
            (contents, "it does not open; --yes makes of it")
        }
        Err(error) => return Err(error),
    };
    Ok(told_of(args, &contents, what))
}

/// What a check has come to.
fn told_of(args: &CheckArgs, contents: &Contents, what: &str) -> kv::Done {
    if args.json {
        kv::say(&described(contents))?;
    } else {
        kv::print(&format!(
            "{}: {what}: {}, {} and {}, {} of memory",
            args.path.display(),
            sentence(contents),
            counted(contents.roll_backs, "roll back"),
            counted(contents.snapshots, "snapshot"),
            BinaryBytes(contents.memory_bytes)
        ))?;
        for line in damaged(contents) {
            kv::print(&line)?;
        }
    }
    if contents.damaged.is_empty() && contents.lost_entries_at.is_none() {
        return Ok(());
    }
    Err(kv::Failed::Io(
        "something that was durable is damaged: put it back from a copy; all else is there"
            .to_owned(),
    ))
}

/// What a start has found to be damaged, a line each.
fn damaged(contents: &Contents) -> Vec<String> {
    let line = |rot: &Rot| match (&rot.key, rot.bytes) {
        (Some((_, key)), _) => format!("damaged: key {}, at byte {}", kv::shown(key), rot.address),
        (None, 0) => format!("lost: what lay at byte {}", rot.address),
        (None, bytes) => format!("lost: up to {bytes} bytes at byte {}", rot.address),
    };
    let lost = contents.lost_entries_at.map(|at| {
        format!(
            "lost: entries of the control log at byte {at}; a roll back, a snapshot, a batch or what is kept may be among them"
        )
    });
    contents.damaged.iter().map(line).chain(lost).collect()
}

fn stop(args: &StopArgs) -> ExitCode {
    match erb_node::stop(&args.path, args.wait) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!(
                "error: {}: its node was told to end and has not ended yet; --wait waits longer",
                args.path.display()
            );
            ExitCode::from(exit::FAILED)
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(code(&error))
        }
    }
}

/// How much is cached, and what that was good for.
fn cached(health: &erb_kv::Health) -> String {
    let gets = health.cache_hits + health.cache_misses;
    format!(
        "{}; {} of {} needed no disk",
        BinaryBytes(health.cached_bytes),
        health.cache_hits,
        counted(gets, "get")
    )
}

fn status(args: &NodeStatusArgs) -> ExitCode {
    kv::done((|| {
        let mut client = kv::connect_to(&args.url, &args.who)?;
        let (health, kept) = (client.health()?, client.kept()?);
        let time = |version| kv::time_of(version);
        if args.json {
            let mut line = kv_keep::object(&kept);
            let health = json!({
                "keys": health.keys,
                "size_bytes": health.size_bytes,
                "used_bytes": health.used_bytes,
                "is_full": health.is_full,
                "damaged": health.damaged,
                "cached_bytes": health.cached_bytes,
                "cache_hits": health.cache_hits,
                "cache_misses": health.cache_misses,
                "watermark": health.watermark.to_string(),
                "floor": health.floor.to_string(),
            });
            for (name, value) in health.as_object().into_iter().flatten() {
                line[name] = value.clone();
            }
            return kv::say(&line);
        }
        let full = if health.is_full {
            ": full, writers are refused"
        } else {
            ""
        };
        let rows = [
            ("keys", health.keys.to_string()),
            (
                "used",
                format!(
                    "{} of {}{full}",
                    BinaryBytes(health.used_bytes),
                    BinaryBytes(health.size_bytes)
                ),
            ),
            ("values in memory", cached(&health)),
            ("history is whole from", time(health.floor)),
            ("everything is durable up to", time(health.watermark)),
        ];
        let damage = format!(
            "{}; `erb kv damaged` names what the scrub has found",
            health.damaged
        );
        let damage = ("damage since the start", damage);
        let is_damaged = health.damaged > 0;
        for (name, value) in rows.into_iter().chain(is_damaged.then_some(damage)) {
            kv::print(&format!("{name:<28}{value}"))?;
        }
        for line in kv_keep::lines(&kept) {
            kv::print(&line)?;
        }
        Ok(())
    })())
}
