// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb journal`.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use erb_daemon::{Applied, Applies, Error, LastWrites, Result, apply, boot_id};
use erb_journal::{
    Entry, Hole, Segment, State, below, discard, holes, journals, segments, summary, unread,
};
use erb_report::shell::quoted_path;
use serde_json::{Value, json};

use crate::journal_args::{ApplyArgs, DiscardArgs, JournalCommand, PlaceArgs, ShowArgs};
use crate::kv::{shown, with_bytes};
use crate::show::{json as print_json, say};
use crate::{ask, exit};

/// Runs the command.
pub fn run(command: &JournalCommand) -> Result<ExitCode> {
    match command {
        JournalCommand::Check(args) => check(args),
        JournalCommand::Show(args) => show(args),
        JournalCommand::Apply(args) => apply_to(args),
        JournalCommand::Discard(args) => discard_all(args),
    }
}

fn read(path: &Path) -> Result<Vec<Segment>> {
    let what = format!("could not read the journal {}", path.display());
    let found = segments(path).map_err(Error::io(what))?;
    if found.is_empty() {
        for folder in below(path) {
            let (above, folder) = (path.display(), folder.display());
            eprintln!("{above} has no segments, and {folder} has some: is that one meant?");
        }
    }
    Ok(found)
}

/// In words, how a segment is.
fn words(state: &State) -> String {
    match state {
        State::Sound => "sound".to_owned(),
        State::Unmade => "never begun".to_owned(),
        State::Ends(why) => format!("ENDS: {why}"),
        State::Unread(why) => format!("UNREAD: {why}"),
    }
}

fn check(args: &PlaceArgs) -> Result<ExitCode> {
    let found = read(&args.path)?;
    let (records, _) = summary(&found);
    let is_sound = found.iter().all(Segment::is_sound);
    let holes = holes(&found);
    if args.json {
        let segments: Vec<Value> = found.iter().map(told).collect();
        let holes: Vec<Value> = holes.iter().map(told_hole).collect();
        print_json(&json!({
            "sound": is_sound, "records": records, "segments": segments, "holes": holes
        }))?;
    } else {
        let mut text = String::new();
        for segment in &found {
            let _ = writeln!(text, "{}", line(segment));
        }
        for hole in &holes {
            let _ = writeln!(text, "{}", hole_line(hole));
        }
        let _ = writeln!(
            text,
            "{} segments, {records} records, {}",
            found.len(),
            match is_sound {
                true => "all sound".to_owned(),
                false => faults(&found).join(", "),
            }
        );
        say(&text);
    }
    Ok(code(&found))
}

/// How many of them are not whole, and of how many nobody knows.
fn faults(found: &[Segment]) -> Vec<String> {
    let (_, damaged) = summary(found);
    let counts = [
        (damaged, "end before their files do"),
        (unread(found), "cannot be read"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    counts
        .map(|(count, what)| format!("{count} {what}"))
        .collect()
}

/// Damage comes before what could not be read.
fn code(found: &[Segment]) -> ExitCode {
    let (_, damaged) = summary(found);
    match (damaged, unread(found)) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(exit::FAILED),
        _ => ExitCode::from(exit::JOURNAL_DAMAGED),
    }
}

fn line(segment: &Segment) -> String {
    let mut text = format!("{}: {}", segment.path.display(), words(&segment.state));
    let _ = write!(text, "; {} records", segment.records);
    if let Some((first, last)) = segment.lsns {
        let _ = write!(text, ", LSN {first} to {last}");
    }
    if let Some(identity) = segment.identity() {
        let _ = write!(
            text,
            "; journal {}, boot {}",
            identity.journal, identity.boot
        );
    }
    if segment.is_at_work {
        text.push_str("; a boost has it at work");
    }
    text
}

/// In words, what no segment has.
fn hole_line(hole: &Hole) -> String {
    let lsns = match hole.last - hole.first {
        0 => format!("LSN {} is", hole.first),
        _ => format!("LSN {} to {} are", hole.first, hole.last),
    };
    format!(
        "HOLE: {lsns} in no segment of journal {}: with --journal late that was in Redis before it was late; behind \
         a segment that ENDS, or with --journal all, it is missing; it may be in one that is UNREAD",
        hole.identity.journal
    )
}

fn told_hole(hole: &Hole) -> Value {
    json!({
        "journal": hole.identity.journal.to_string(),
        "boot": hole.identity.boot.to_string(),
        "first_lsn": hole.first,
        "last_lsn": hole.last,
    })
}

fn told(segment: &Segment) -> Value {
    let identity = segment.identity();
    json!({
        "path": segment.path.display().to_string(),
        "number": segment.number,
        "sound": segment.is_sound(),
        "state": words(&segment.state),
        "records": segment.records,
        "first_lsn": segment.lsns.map(|(first, _)| first),
        "last_lsn": segment.lsns.map(|(_, last)| last),
        "bytes": segment.bytes,
        "journal": identity.map(|of| of.journal.to_string()),
        "boot": identity.map(|of| of.boot.to_string()),
        "at_work": segment.is_at_work,
    })
}

/// Tells all records of some segments; what has none need not even be a file. What a boost has at work it may have
/// deleted since, as all of it is drained: that has none any more.
fn each(found: &[Segment], mut told: impl FnMut(Entry)) -> Result<()> {
    for segment in found.iter().filter(|one| one.records > 0) {
        let what = format!("could not read {}", segment.path.display());
        let listen = |entry| -> io::Result<()> {
            told(entry);
            Ok(())
        };
        match segment.tell(listen) {
            Err(error) if segment.is_at_work && error.kind() == io::ErrorKind::NotFound => {}
            done => done.map_err(Error::io(what))?,
        }
    }
    Ok(())
}

fn show(args: &ShowArgs) -> Result<ExitCode> {
    let found = read(&args.place.path)?;
    each(&found, |entry| match args.place.json {
        true => say(&format!("{}\n", record_json(&entry, args.no_values))),
        false => say(&record_line(&entry, args.no_values)),
    })?;
    warn_of_damage(&found);
    Ok(code(&found))
}

/// What lies behind the damage, or cannot be read, is neither shown nor applied; and it is deleted unseen.
fn warn_of_damage(found: &[Segment]) {
    if !found.iter().all(Segment::is_sound) {
        let faults = faults(found).join(", ");
        eprintln!("of the segments {faults}: see `erb journal check`");
    }
}

fn record_json(entry: &Entry, no_values: bool) -> Value {
    let mut object = json!({
        "lsn": entry.lsn,
        "database": entry.db,
        "value_bytes": entry.value.len(),
        "expiry_ms": (entry.expiry_ms != 0).then_some(entry.expiry_ms),
    });
    with_bytes(&mut object, "key", &entry.key);
    if !no_values {
        with_bytes(&mut object, "value", &entry.value);
    }
    object
}

fn record_line(entry: &Entry, no_values: bool) -> String {
    let value = match no_values {
        true => format!("{} bytes", entry.value.len()),
        false => shown(&entry.value),
    };
    let expiry = match entry.expiry_ms {
        0 => String::new(),
        at => format!("  expires {}", time_of(at)),
    };
    format!(
        "{}  db {}  {}  {value}{expiry}\n",
        entry.lsn,
        entry.db,
        shown(&entry.key)
    )
}

/// A time as people read it; far beyond their calendars as a number.
fn time_of(ms: u64) -> String {
    let is_near = ms < 253_402_300_800_000; // the year 10000
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(ms));
    match time.filter(|_| is_near) {
        Some(time) => humantime::format_rfc3339_millis(time).to_string(),
        None => format!("at {ms} ms"),
    }
}

/// What is nobody's; what somebody has at work is told and left.
fn idle(found: Vec<Segment>) -> Vec<Segment> {
    let (at_work, idle): (Vec<_>, Vec<_>) = found.into_iter().partition(|one| one.is_at_work);
    if !at_work.is_empty() {
        eprintln!(
            "{} segments are of a boost at work, which brings them to Redis by itself: left alone",
            at_work.len()
        );
    }
    idle
}

fn apply_to(args: &ApplyArgs) -> Result<ExitCode> {
    let (address, source) = (args.redis.parse()?, args.login.source()?);
    let found = idle(read(&args.path)?);
    warn_of_damage(&found);
    let left_out = unread(&found);
    let mut writes = LastWrites::default();
    let mut records = 0u64;
    // It is for the hint alone: a rescue system may not tell it.
    let boot = boot_id().ok();
    // LSNs of two journals do not compare: the later segment's come last.
    for journal in &journals(found) {
        if journal[0]
            .identity()
            .is_some_and(|of| Some(of.boot) == boot)
        {
            eprintln!(
                "these were kept since the machine was started: if their boost is still there, `erb boost` with the \
                 same arguments brings them to Redis by itself, in their order"
            );
        }
        let mut of_one = LastWrites::default();
        each(journal, |entry| {
            records += 1;
            of_one.take(entry);
        })?;
        writes.overlay(of_one);
    }
    let keys = writes.len();
    if args.dry_run {
        say(&format!(
            "{records} records; keys that would be written: {keys}\n"
        ));
        let trial = apply(&address, &source, &writes, Applies::OnTrial)?;
        return tell_applied(trial, "would be taken", "would be refused");
    }
    if keys == 0 {
        say(&format!("{records} records; there is nothing to write\n"));
        return Ok(all_but(left_out));
    }
    if !args.yes
        && !is_wanted(&format!(
            "keys that are overwritten at {}, whatever is there by now: {keys}",
            args.redis
        ))?
    {
        return Ok(ExitCode::from(exit::FAILED));
    }
    let done = apply(&address, &source, &writes, Applies::Truly)?;
    let is_done = done.refused == 0 && done.broke.is_none();
    let code = tell_applied(done, "written", "were refused")?;
    if is_done && left_out == 0 {
        eprintln!(
            "the segments stay: `erb journal discard {}` deletes them",
            quoted_path(&args.path)
        );
    }
    Ok(match is_done {
        true => all_but(left_out),
        false => code,
    })
}

/// Whoever applies and then deletes must not delete so many segments, of which nobody knows what they have.
fn all_but(left_out: usize) -> ExitCode {
    if left_out == 0 {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {left_out} segments cannot be read, and are not applied");
    ExitCode::from(exit::FAILED)
}

/// Says what came of it, whatever ended it.
fn tell_applied(done: Applied, taken: &str, refused: &str) -> Result<ExitCode> {
    say(&format!("{} keys {taken}\n", done.keys));
    if done.refused > 0 {
        let mut text = format!("error: {} keys {refused} by Redis:\n", done.refused);
        for (db, key, why) in &done.named {
            let _ = writeln!(text, "  db {db}  {}: {why}", shown(key));
        }
        let more = done.refused - done.named.len();
        if more > 0 {
            let _ = writeln!(text, "  and {more} more");
        }
        eprint!("{text}");
    }
    match done.broke {
        Some(why) => {
            if done.unknown > 0 {
                eprintln!(
                    "error: {} keys were sent and not answered: they may be {taken} or not; to apply again is harmless \
                     while nobody else writes",
                    done.unknown
                );
            }
            eprintln!("error: the rest was not sent");
            Err(why)
        }
        None if done.refused > 0 => Ok(ExitCode::from(exit::REDIS)),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn discard_all(args: &DiscardArgs) -> Result<ExitCode> {
    let found = idle(read(&args.path)?);
    if let Some(other) = found.iter().find(|one| !one.is_ours()) {
        let why = match &other.state {
            State::Unread(why) => why.as_str(),
            _ => "it is no segment of a journal",
        };
        return Err(Error::Usage(format!(
            "{} is not deleted: {why}",
            other.path.display()
        )));
    }
    let (records, _) = summary(&found);
    if found.is_empty() {
        say("there is nothing to delete\n");
        return Ok(ExitCode::SUCCESS);
    }
    warn_of_damage(&found);
    if !args.yes
        && !is_wanted(&format!(
            "{} segments are deleted, with {records} records that may be nowhere else",
            found.len()
        ))?
    {
        return Ok(ExitCode::from(exit::FAILED));
    }
    let (mut deleted, mut failed) = (0, None);
    for segment in &found {
        let what = format!("could not delete {}", segment.path.display());
        match discard(segment).map_err(Error::io(what)) {
            Ok(true) => deleted += 1,
            Ok(false) => eprintln!(
                "{} is at work, or another journal's, by now: left alone",
                segment.path.display()
            ),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    say(&format!("{deleted} of {} segments deleted\n", found.len()));
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// Asks whoever sits there.
fn is_wanted(what: &str) -> Result<bool> {
    if !io::stdin().is_terminal() {
        return Err(Error::Usage(format!(
            "{what}; nobody is there to be asked: --yes does it"
        )));
    }
    ask::is_wanted(&format!("{what}. Go on?")).map_err(Error::io("could not read standard input"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn what_is_no_segment_is_not_deleted() {
        let folder = tempfile::tempdir().expect("a folder");
        let discarded = |path: PathBuf| discard_all(&DiscardArgs { path, yes: true });
        let mine = folder.path().join("mine");
        let damaged = folder.path().join("0123456789abcdef.erbj");
        for path in [&mine, &damaged] {
            std::fs::write(path, "something else").expect("a file");
        }
        assert!(matches!(discarded(mine.clone()), Err(Error::Usage(_))));
        assert!(discarded(folder.path().to_path_buf()).is_ok());
        assert!(mine.exists() && !damaged.exists());
    }

    #[test]
    fn whoever_shows_a_damaged_journal_does_not_succeed() {
        let folder = tempfile::tempdir().expect("a folder");
        let shown = |path: PathBuf| {
            let place = PlaceArgs { path, json: true };
            let args = ShowArgs {
                place,
                no_values: true,
            };
            format!("{:?}", show(&args).expect("it is read"))
        };
        let code = |code: ExitCode| format!("{code:?}");
        assert_eq!(shown(folder.path().to_path_buf()), code(ExitCode::SUCCESS));
        let damaged = folder.path().join("0123456789abcdef.erbj");
        std::fs::write(&damaged, "something else").expect("a file");
        for path in [folder.path().to_path_buf(), damaged] {
            assert_eq!(shown(path), code(ExitCode::from(exit::JOURNAL_DAMAGED)));
        }
    }

    #[test]
    fn what_cannot_be_read_is_no_damage_and_no_success() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_path_buf();
        // Root may read any file, but no folder as one.
        std::fs::create_dir(path.join("0123456789abcdef.erbj")).expect("a folder");
        let found = read(&path).expect("the folder");
        assert!(words(&found[0].state).starts_with("UNREAD: "), "{found:?}");
        assert_eq!(faults(&found), ["1 cannot be read"]);
        assert_eq!(told(&found[0])["sound"], false);
        let place = PlaceArgs { path, json: true };
        let failed = format!("{:?}", ExitCode::from(exit::FAILED));
        let checked = check(&place).expect("it is read");
        assert_eq!(format!("{checked:?}"), failed);
        let args = ShowArgs {
            place,
            no_values: true,
        };
        let shown = show(&args).expect("it is read");
        assert_eq!(format!("{shown:?}"), failed);
    }

    #[test]
    fn whoever_applies_all_but_what_cannot_be_read_does_not_succeed() {
        let folder = tempfile::tempdir().expect("a folder");
        let args = ApplyArgs {
            path: folder.path().to_path_buf(),
            redis: "127.0.0.1:6379".to_owned(),
            login: crate::args::LoginArgs {
                redis_user: None,
                redis_password_file: None,
            },
            dry_run: false,
            yes: true,
        };
        let applied = || format!("{:?}", apply_to(&args).expect("there is nothing to write"));
        let code = |code: ExitCode| format!("{code:?}");
        assert_eq!(applied(), code(ExitCode::SUCCESS));
        std::fs::create_dir(args.path.join("0123456789abcdef.erbj")).expect("a folder");
        assert_eq!(applied(), code(ExitCode::from(exit::FAILED)));
    }

    #[test]
    fn a_hole_is_a_line_and_an_object_for_programs() {
        let identity = erb_journal::Identity {
            journal: erb_journal::Id([1; 16]),
            boot: erb_journal::Id([2; 16]),
        };
        let hole = |first, last| Hole {
            identity,
            first,
            last,
        };
        let line = hole_line(&hole(5, 9));
        assert!(
            line.starts_with("HOLE: LSN 5 to 9 are in no segment of journal 0101"),
            "{line}"
        );
        assert!(hole_line(&hole(5, 5)).starts_with("HOLE: LSN 5 is in no"));
        assert_eq!(told_hole(&hole(5, 9))["last_lsn"], 9);
    }

    #[test]
    fn a_record_is_a_line_that_a_terminal_survives() {
        let mut entry = Entry {
            lsn: 7,
            db: 1,
            expiry_ms: 0,
            key: b"k\x1b[2J".to_vec(),
            value: b"one\ntwo".to_vec(),
        };
        assert_eq!(
            record_line(&entry, false),
            "7  db 1  k\\x1b[2J  one\\ntwo\n"
        );
        entry.expiry_ms = 1_800_000_000_123;
        assert_eq!(
            record_line(&entry, true),
            "7  db 1  k\\x1b[2J  7 bytes  expires 2027-01-15T08:00:00.123Z\n"
        );
        assert_eq!(time_of(u64::MAX), format!("at {} ms", u64::MAX));
        let json = record_json(&entry, false);
        assert_eq!(json["value"], "one\ntwo");
        assert_eq!(json["lsn"], 7);
    }
}
