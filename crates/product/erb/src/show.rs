// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The status report for people.

use std::fmt::Write as _;
use std::io::Write as _;

use erb_daemon::{Error, Result};
use erb_datapath::Programs;
use erb_report::{
    AsideReport, AttachMode, JournalReport, ProgramsReport, RedisReport, Status, VlanOffload,
    WaitingReport, WritesReport,
};

use crate::exit;

/// Kinds of counters in the order in which they are shown, with a heading.
const KINDS: [(&str, &str); 5] = [
    ("answered", "answered by the fast path"),
    ("refused", "went up to Redis, by reason"),
    ("passed", "passed as a matter of course"),
    ("dropped", "dropped; TCP repeats them"),
    ("event", "events"),
];

/// Writes to standard output; what cannot be written ends the command. A reader that has gone
/// (`erb status | head`) is no error: it has what it wanted.
pub fn say(text: &str) {
    match written(text) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("error: could not write to standard output: {error}");
            std::process::exit(i32::from(exit::FAILED));
        }
        _ => {}
    }
}

/// The same of what is done already, and must not end for want of being told.
pub fn mention(text: &str) {
    let _ = written(text);
}

fn written(text: &str) -> std::io::Result<()> {
    let mut output = std::io::stdout();
    output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
}

/// Prints a value as JSON.
pub fn json(value: &impl serde::Serialize) -> Result<()> {
    let text =
        serde_json::to_string_pretty(value).map_err(|error| Error::Usage(error.to_string()))?;
    say(&(text + "\n"));
    Ok(())
}

/// Prints the report.
pub fn status(status: &Status) {
    say(&text(status));
}

fn text(status: &Status) -> String {
    let mut out = String::new();
    // Writing into a string cannot fail.
    let _ = head(&mut out, status);
    let _ = tables(&mut out, status);
    let _ = counters(&mut out, status);
    out
}

fn head(out: &mut String, status: &Status) -> std::fmt::Result {
    let (daemon, mode) = (daemon(status), &status.mode);
    writeln!(
        out,
        "daemon       {daemon}, mode {mode}, {}",
        status.run_dir
    )?;
    for device in &status.devices {
        let mode = match device.mode {
            AttachMode::Native => "native XDP and TC".to_owned(),
            AttachMode::Tc => format!("TC alone: {}", device.why_not_native),
        };
        let vlan = match device.vlan {
            VlanOffload::WasOff => "",
            VlanOffload::SwitchedOff(_) => ", VLAN tag offload switched off",
            VlanOffload::Fixed => ", VLAN tag offload fixed: tagged traffic goes up",
        };
        let gone = if device.gone {
            "; gone: should it come back, `erb detach` and boost again"
        } else {
            ""
        };
        writeln!(
            out,
            "device       {} ({mode}{vlan}){gone}",
            device.device.name
        )?;
    }
    programs(out, &status.programs)?;
    if status.serving {
        writeln!(out, "serving      yes")?;
    } else {
        writeln!(out, "serving      no: {}", status.not_serving.join("; "))?;
    }
    let redis = &status.redis;
    let feed = if redis.feed_up { "up" } else { "down" };
    write!(
        out,
        "Redis        {} port {}, feed {feed}",
        redis.address, redis.port
    )?;
    if redis.version.is_empty() {
        writeln!(out)?; // nobody has told the daemon yet
    } else {
        writeln!(
            out,
            ", version {}, role {}, maxmemory {} ({}), timeout {} s",
            redis.version, redis.role, redis.maxmemory, redis.maxmemory_policy, redis.timeout_s
        )?;
    }
    if !redis.listens.is_empty() {
        let listens: Vec<String> = redis.listens.iter().map(ToString::to_string).collect();
        writeln!(out, "listens      {}", listens.join(", "))?;
    }
    if let Some(at) = &status.metrics_at {
        writeln!(out, "metrics      {at}")?;
    }
    if let Some(at) = &status.dashboard_at {
        writeln!(out, "dashboard    {at}")?;
    }
    for note in &status.notes {
        writeln!(out, "note         {note}")?;
    }
    if !redis.version.is_empty() {
        commands(out, redis)?;
    }
    lease(out, status)
}

/// What it does, and which process it is, if there is one.
fn daemon(status: &Status) -> String {
    match status.pid {
        0 => status.daemon.clone(),
        pid => format!("{} (pid {pid})", status.daemon),
    }
}

fn lease(out: &mut String, status: &Status) -> std::fmt::Result {
    let lease = match status.lease_left_ms {
        left if left > 0 => format!("{left} ms left"),
        _ if status.pid == 0 => "over: no daemon renews it".to_owned(),
        _ if status.connections.fast + status.connections.new == 0 => {
            "at rest, no connection to answer".to_owned()
        }
        _ => "over: Redis does not answer the daemon in time".to_owned(),
    };
    writeln!(out, "lease        {lease}, fence {}", status.fence)
}

fn programs(out: &mut String, programs: &ProgramsReport) -> std::fmt::Result {
    let own = Programs::builtin();
    writeln!(
        out,
        "programs     build {}{}{}{}",
        programs.build,
        if programs.build == own.build() {
            ""
        } else {
            " (not those of this erb: `erb boost` with the same arguments replaces them)"
        },
        if programs.whole {
            ""
        } else {
            "; a replacement or a trace was stopped half-way: `erb boost` again, or `erb trace`"
        },
        if programs.traced {
            "; traced: `erb trace` is at work"
        } else {
            ""
        }
    )
}

/// What came of Redis's command table.
fn commands(out: &mut String, redis: &RedisReport) -> std::fmt::Result {
    write!(out, "commands     {} known", redis.commands)?;
    if !redis.fast_off.is_empty() {
        write!(out, "; left to Redis: {}", redis.fast_off.join(", "))?;
    }
    if !redis.renamed.is_empty() {
        write!(out, "; renamed: {}", redis.renamed.join(" "))?;
    }
    writeln!(out)
}

fn tables(out: &mut String, status: &Status) -> std::fmt::Result {
    let conns = &status.connections;
    writeln!(
        out,
        "connections  {}: {} fast, {} new, {} bypass, {} older than ERB; {} closing, {} translated, {} unacknowledged; {} not seen",
        conns.total,
        conns.fast,
        conns.new,
        conns.bypass,
        conns.old,
        conns.closing,
        conns.translated,
        conns.unacked,
        conns.unseen
    )?;
    held(out, status)?;
    writes(out, &status.writes)?;
    waiting(out, &status.waiting)?;
    match status.hit_ratio {
        Some(ratio) => writeln!(out, "hit ratio    {:.2} %", ratio * 100.0)?,
        None => writeln!(out, "hit ratio    no GET seen yet")?,
    }
    aside(out, &status.aside)?;
    let cache = &status.cache;
    writeln!(
        out,
        "cache        about {} of at most {} entries in {} sets of {} bytes; fills {}, {} waiting, {} filled",
        cache.entries_estimate,
        cache.entries_max,
        cache.sets,
        cache.set_bytes,
        if cache.fills { "on" } else { "off" },
        cache.fills_waiting,
        cache.filled
    )?;
    let memory = &status.memory;
    writeln!(
        out,
        "memory       cache {} MiB ({} bytes per entry on average); connections {} MiB ({} x {} bytes)",
        memory.cache_total_bytes >> 20,
        memory.cache_entry_bytes_mean,
        memory.connections_total_bytes >> 20,
        memory.connections_max,
        memory.connection_bytes
    )
}

/// What is left out, as it does not pay.
fn aside(out: &mut String, aside: &AsideReport) -> std::fmt::Result {
    let left_out = match aside.level {
        0 if aside.to_1 + aside.to_2 + aside.to_3 == 0 => return Ok(()),
        0 => "no",
        1 => "look-ups but of a sample",
        3 => {
            let text = "closed: requests are not read, nothing is answered";
            return writeln!(
                out,
                "aside        {text}, since {} s: {}; `erb aside auto` opens it",
                aside.since_s, aside.why
            );
        }
        _ => "look-ups and fills but of a sample",
    };
    write!(
        out,
        "aside        {left_out}, since {} s: {}",
        aside.since_s, aside.why
    )?;
    if let Some(ratio) = aside.sample_hit_ratio {
        write!(out, "; hit ratio of the sample {:.2} %", ratio * 100.0)?;
    }
    writeln!(
        out,
        "; stepped aside {} times, came back {} times; Redis reports {}",
        aside.to_1,
        aside.to_0,
        if aside.reports_of_read {
            "changes of keys that were read"
        } else {
            "all changes"
        }
    )
}

/// What is answered in Redis's place, or why nothing is.
fn writes(out: &mut String, writes: &WritesReport) -> std::fmt::Result {
    if writes.conditions.is_empty() {
        return Ok(());
    }
    let way = match writes.open {
        true => "SETs are answered in Redis's place",
        false => "SETs go to Redis",
    };
    writeln!(
        out,
        "writes       {way}; {} answered and not in Redis since {} ms at most; {} drained as {} keys in {} batches",
        writes.waiting, writes.waiting_ms, writes.drained, writes.drained_keys, writes.batches
    )?;
    for against in writes.conditions.iter().filter(|one| !one.met) {
        writeln!(out, "             {}: {}", against.condition, against.why)?;
    }
    journal(out, &writes.journal)?;
    for refused in &writes.refused {
        writeln!(
            out,
            "LOST         a SET was answered that Redis will never take: {refused}"
        )?;
    }
    Ok(())
}

/// What is kept of it over a loss of power.
fn journal(out: &mut String, journal: &JournalReport) -> std::fmt::Result {
    match &journal.keeps[..] {
        "" => return Ok(()),
        "none" => {
            return writeln!(
                out,
                "journal      none: what waits for Redis is lost if the machine loses its power (--journal late)"
            );
        }
        _ => {}
    }
    writeln!(
        out,
        "journal      {} in {}, written by the {}: {} of what waits are there, in {} segments; {} written, {} failures{}",
        if journal.sound { "sound" } else { "NOT SOUND" },
        journal.folder,
        match &journal.sink[..] {
            "kmod" => "kernel module",
            _ => "daemon",
        },
        journal.waiting,
        journal.segments,
        journal.written,
        journal.failures,
        if journal.sound { "" } else { ", see above" }
    )?;
    match journal.left_what.is_empty() {
        true => Ok(()),
        false => writeln!(out, "LEFT         {}", journal.left_what),
    }
}

/// What waits until something is in Redis.
fn waiting(out: &mut String, waiting: &WaitingReport) -> std::fmt::Result {
    if *waiting == WaitingReport::default() {
        return Ok(());
    }
    writeln!(
        out,
        "waiting      {} connections since {:.1} s at most, until what was answered before them is in Redis: {} packets \
         kept ({} KiB), {} for want of room not; {} connections reset",
        waiting.connections,
        waiting.longest_ms as f64 / 1000.0,
        waiting.packets,
        waiting.bytes.div_ceil(1024),
        waiting.left_out,
        waiting.ended
    )
}

/// Whose commands keep keys from everybody for long.
fn held(out: &mut String, status: &Status) -> std::fmt::Result {
    for line in &status.held.clients {
        writeln!(
            out,
            "held         {} since {:.1} s by {}: {}",
            if line.all_keys {
                "all keys"
            } else {
                "some keys"
            },
            f64::from(line.held_ms) / 1000.0,
            line.client,
            line.why
        )?;
    }
    let more = status.held.total as usize - status.held.clients.len();
    if more > 0 {
        writeln!(out, "held         by {more} more")?;
    }
    Ok(())
}

fn counters(out: &mut String, status: &Status) -> std::fmt::Result {
    for (kind, heading) in KINDS {
        writeln!(out, "\n{heading}")?;
        let mut zero = 0;
        for counter in status
            .counters
            .iter()
            .filter(|counter| counter.kind == kind)
        {
            if counter.count == 0 {
                zero += 1;
                continue;
            }
            writeln!(
                out,
                "  {:>12}  {:<22} {}",
                counter.count, counter.name, counter.text
            )?;
        }
        if zero > 0 {
            writeln!(out, "  {zero:>12}  counters are zero (all are in --json)")?;
        }
    }
    Ok(())
}
