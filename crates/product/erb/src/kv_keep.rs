// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb kv` about what is kept: retention and its lock, snapshots, damage.

use std::io::{self, IsTerminal};
use std::time::Duration;

use erb_kv::{Kept, MarkKind, Retention};
use serde_json::{Value, json};

use crate::kv::{Done, Failed, ask, connect, print, say, shown, with_bytes};
use crate::kv_args::{OnlyUrl, RetentionArgs, SnapshotCommand};

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A time, to the second where it is longer.
fn time(us: u64) -> String {
    let time = Duration::from_micros(us);
    let whole = Duration::from_secs(time.as_secs());
    let shown = if whole.is_zero() { time } else { whole };
    humantime::format_duration(shown).to_string()
}

/// Runs the command.
pub fn snapshot(command: &SnapshotCommand) -> Done {
    match command {
        SnapshotCommand::Take { node, for_time } => {
            let seconds = for_time.map_or(0, |time| time.as_secs());
            if for_time.is_some() && seconds == 0 {
                let short = "a snapshot that ends by itself is for a second at least";
                return Err(Failed::Usage(short.to_owned()));
            }
            let version = connect(node)?.snapshot_for(seconds)?;
            tell_snapshot(node, version, 0)
        }
        SnapshotCommand::Release { node, version } => Ok(connect(node)?.release(*version)?),
        SnapshotCommand::List(node) => {
            let marks = connect(node)?.marks()?.into_iter();
            for mark in marks.filter(|mark| mark.kind == MarkKind::Snapshot) {
                tell_snapshot(node, mark.id, mark.target)?;
            }
            Ok(())
        }
    }
}

fn tell_snapshot(node: &OnlyUrl, version: u64, left_us: u64) -> Done {
    let ends = (left_us > 0).then_some(left_us);
    if node.json {
        let mut line = json!({ "version": version.to_string() });
        if let Some(left_us) = ends {
            line["ends_in_us"] = json!(left_us);
        }
        return say(&line);
    }
    let ends = ends.map(|left_us| format!(" for another {}", time(left_us)));
    print(&format!("{version}{}", ends.unwrap_or_default()))
}

/// How long versions are kept, in lines.
pub fn lines(kept: &Kept) -> Vec<String> {
    let mut lines = retention_lines(&kept.retention);
    if kept.locked_us > 0 {
        lines.push(("locked for another", time(kept.locked_us)));
    }
    if let Some((less, in_us)) = &kept.less {
        let less = retention_lines(less).into_iter();
        let less: Vec<String> = less
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let when = format!("when the node has run for {}", time(*in_us));
        lines.push(("what is less waits", format!("{}; {when}", less.join(", "))));
    }
    let lines = lines.into_iter();
    lines
        .map(|(name, value)| format!("{name:<28}{value}"))
        .collect()
}

fn retention_lines(retention: &Retention) -> Vec<(&'static str, String)> {
    vec![
        ("versions are kept for", time(retention.min_age_us)),
        ("deleted keys for", time(retention.keep_deleted_us)),
        (
            "newest versions of each key",
            retention.min_count.to_string(),
        ),
    ]
}

/// The same as an object.
pub fn object(kept: &Kept) -> Value {
    let of = |retention: &Retention| {
        json!({
            "min_age_us": retention.min_age_us,
            "keep_deleted_us": retention.keep_deleted_us,
            "min_count": retention.min_count,
        })
    };
    let mut object = of(&kept.retention);
    object["less_waits"] = json!(kept.less.is_some());
    object["locked_us"] = json!(kept.locked_us);
    if let Some((less, in_us)) = &kept.less {
        object["less"] = of(less);
        object["less_in_us"] = json!(in_us);
    }
    object
}

/// Runs the command.
pub fn retention(args: &RetentionArgs) -> Done {
    let mut client = connect(&args.node)?;
    let now = client.retention()?;
    let wanted = Retention {
        min_age_us: args.min_age.map_or(now.min_age_us, us),
        keep_deleted_us: args.keep_deleted.map_or(now.keep_deleted_us, us),
        min_count: args.min_count.unwrap_or(now.min_count),
    };
    if let Some(lock_for) = args.lock_for.filter(|_| !args.yes) {
        if !io::stdin().is_terminal() {
            let nobody =
                "nobody can take a lock back, and nobody is there to be asked: --yes does it";
            return Err(Failed::Usage(nobody.to_owned()));
        }
        let lock_for = humantime::format_duration(lock_for);
        ask(&format!(
            "for {lock_for} that the node runs nobody can keep less or release snapshots, nor take that back. Go on?"
        ))?;
    }
    if wanted != now {
        client.set_retention(&wanted)?;
    }
    if let Some(lock_for) = args.lock_for {
        client.lock_retention(us(lock_for))?;
    }
    let kept = client.kept()?;
    if args.node.json {
        return say(&object(&kept));
    }
    for line in lines(&kept) {
        print(&line)?;
    }
    if kept.less.is_some() && wanted != now {
        print("to choose what is in force now cancels what waits")?;
    }
    Ok(())
}

/// Runs the command.
pub fn damaged(node: &OnlyUrl) -> Done {
    let found = connect(node)?.damage()?;
    for damage in &found {
        let is_known = !damage.key.is_empty();
        if node.json {
            let mut line = json!({ "address": damage.address });
            if is_known {
                with_bytes(&mut line, "key", &damage.key);
            }
            say(&line)?;
        } else if is_known {
            print(&format!("{:>16} {}", damage.address, shown(&damage.key)))?;
        } else {
            print(&format!(
                "{:>16} (it is not known whose it was)",
                damage.address
            ))?;
        }
    }
    match found.len() {
        0 => Ok(()),
        count => Err(Failed::Io(format!(
            "places of the store that are damaged: {count}; what lies there is refused, all else goes on"
        ))),
    }
}
