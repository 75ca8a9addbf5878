// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb trace`: packets to standard output, everything else to standard error.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant, UNIX_EPOCH};

use erb_daemon::trace::{Change, Trace, check_may_trace, filter};
use erb_daemon::{Error, Result, enter_base_mount_namespace};
use erb_datapath::TraceMisses;
use erb_report::Packet;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::args::TraceArgs;
use crate::{detach, exit};

/// Between two looks at the ring while nothing comes: live for people, and nobody is woken up for
/// a packet.
const LOOK: Duration = Duration::from_millis(10);

/// Runs the command.
pub fn run(args: &TraceArgs) -> Result<ExitCode> {
    let filter = filter(
        args.client.as_deref(),
        args.key.as_ref().map(|key| key.as_bytes()),
    )?;
    check_may_trace()?;
    enter_base_mount_namespace()?;
    let run_dir = detach::run_dir(&args.which)?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ended))
            .map_err(Error::io("could not watch signals"))?;
    }
    let mut trace = Trace::begin(run_dir, filter, || {
        eprintln!("loading the programs that trace, which takes some seconds");
    })?;
    for remark in trace.remarks() {
        eprintln!("note: {remark}");
    }
    eprintln!("tracing; Ctrl-C ends it");
    let mut session = Session {
        args,
        until: args
            .seconds
            .map(|seconds| Instant::now() + Duration::from_secs(seconds)),
        left: args.limit.unwrap_or(u64::MAX),
        shown: 0,
        lost: 0,
    };
    let end = session.follow(&mut trace, &ended)?;
    let misses = trace.misses()?;
    drop(trace);
    eprint!("{}", summary(session.shown, misses, args));
    if matches!(end, End::Gone) {
        eprintln!("error: ERB was detached: there is nothing left to trace");
        return Ok(ExitCode::from(exit::NOT_BOOSTED));
    }
    Ok(ExitCode::SUCCESS)
}

/// Why it ended.
enum End {
    /// As asked for: a signal, the time, the number of packets.
    Asked,
    /// The reader of its output has what it wanted.
    Unread,
    /// ERB was detached.
    Gone,
}

struct Session<'a> {
    args: &'a TraceArgs,
    until: Option<Instant>,
    left: u64,
    shown: u64,
    lost: u64,
}

impl Session<'_> {
    fn follow(&mut self, trace: &mut Trace, ended: &AtomicBool) -> Result<End> {
        loop {
            let asked = ended.load(Ordering::Relaxed)
                || self.until.is_some_and(|until| Instant::now() >= until);
            // What came until then is shown: the look comes first.
            let packets = trace.take();
            if !self.show(&packets)? {
                return Ok(End::Unread);
            }
            if asked || self.left == 0 {
                return Ok(End::Asked);
            }
            let began = Instant::now();
            match trace.look()? {
                None => {}
                Some(Change::Gone) => return Ok(End::Gone),
                Some(Change::Replaced) => {
                    // Loading anew is no part of the time that was asked for.
                    self.until = self.until.map(|until| until + began.elapsed());
                    eprintln!(
                        "note: ERB's programs were replaced; the new ones are traced from here on, \
                         packets of the last moment were not seen"
                    );
                }
            }
            let lost = trace.misses()?.lost;
            if lost > self.lost {
                eprintln!(
                    "note: {} packets were lost: more came than could be written",
                    lost - self.lost
                );
                self.lost = lost;
            }
            if packets.is_empty() {
                sleep(LOOK);
            }
        }
    }

    /// Writes the packets; false if nobody reads them any more.
    fn show(&mut self, packets: &[Packet]) -> Result<bool> {
        let room = usize::try_from(self.left).unwrap_or(usize::MAX);
        let packets = &packets[..packets.len().min(room)];
        if packets.is_empty() {
            return Ok(true);
        }
        let mut text = String::new();
        for packet in packets {
            if self.args.json {
                let json = serde_json::to_string(packet);
                text += &json.map_err(|error| Error::Usage(error.to_string()))?;
                text.push('\n');
            } else {
                // Writing into a string cannot fail.
                let _ = line(&mut text, packet, self.args.explain);
            }
        }
        self.left -= packets.len() as u64;
        self.shown += packets.len() as u64;
        let mut output = std::io::stdout().lock();
        match output
            .write_all(text.as_bytes())
            .and_then(|()| output.flush())
        {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Error::io("could not write to standard output")(error)),
        }
    }
}

/// One packet for people.
fn line(out: &mut String, packet: &Packet, explain: bool) -> std::fmt::Result {
    let Packet {
        time_us,
        cpu,
        stage,
        ..
    } = packet;
    let time = UNIX_EPOCH + Duration::from_micros(*time_us);
    let time = humantime::format_rfc3339_micros(time).to_string();
    // Of 1970-01-02T03:04:05.000067Z what is between T and Z.
    write!(out, "{} cpu{cpu} {:<10} ", &time[11..26], stage.word())?;
    let (from, to) = match &*packet.direction {
        "in" => (&packet.client, &packet.server),
        _ => (&packet.server, &packet.client),
    };
    write!(
        out,
        "{from} > {to} {} seq {} ack {} len {}",
        packet.flags, packet.seq, packet.ack, packet.payload
    )?;
    if let Some(command) = &packet.command {
        write!(out, " {command}")?;
    }
    if let Some(key) = &packet.key {
        write!(out, " {key}")?;
    }
    write!(out, " => {}", packet.verdict.word())?;
    if let Some(reply) = packet.reply {
        write!(out, " len {reply}")?;
    }
    if let Some((seq, ack)) = packet.went_on.filter(|_| packet.reply.is_none()) {
        write!(out, " seq {seq} ack {ack}")?;
    }
    for (number, reason) in packet.reasons.iter().enumerate() {
        let sign = if number == 0 { ": " } else { " " };
        write!(out, "{sign}{}", reason.name)?;
        if reason.count > 1 {
            write!(out, "*{}", reason.count)?;
        }
    }
    if packet.reasons_more > 0 {
        write!(out, " and {} more", packet.reasons_more)?;
    }
    writeln!(out)?;
    if explain {
        for reason in &packet.reasons {
            writeln!(out, "    {:<22} {}", reason.name, reason.text)?;
        }
    }
    Ok(())
}

/// What is said at the end.
fn summary(shown: u64, misses: TraceMisses, args: &TraceArgs) -> String {
    let mut text = format!("{shown} packets shown");
    let mut also = |count: u64, what: &str| {
        if count > 0 {
            text += &format!("; {count} {what}");
        }
    };
    also(
        misses.lost,
        "were lost, for more came than could be written: choose by --client or --key, or write to a \
         file",
    );
    if args.key.is_some() {
        also(
            misses.unsearched,
            "could not be searched to their end for the key",
        );
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use erb_report::{Because, Stage, Verdict};

    fn packet() -> Packet {
        let reason = |name: &'static str, count| Because {
            name: name.into(),
            count,
            kind: "answered".into(),
            text: "what it means".into(),
        };
        Packet {
            time_us: (86_400 + 3 * 3600 + 4 * 60 + 5) * 1_000_000 + 67,
            cpu: 1,
            stage: Stage::Xdp,
            direction: "in".into(),
            ifindex: 2,
            client: "10.0.0.1:1000".to_owned(),
            server: "10.0.0.2:6379".to_owned(),
            flags: "P.".to_owned(),
            seq: 7,
            ack: 8,
            payload: 31,
            command: Some("GET".to_owned()),
            key: Some("key1".to_owned()),
            verdict: Verdict::Answered,
            went_on: Some((8, 38)),
            reply: Some(9),
            reasons: vec![reason("FAST_PACKET", 1), reason("FAST_GET", 2)],
            reasons_more: 0,
        }
    }

    fn text(packet: &Packet, explain: bool) -> String {
        let mut out = String::new();
        line(&mut out, packet, explain).unwrap();
        out
    }

    #[test]
    fn an_answer_on_one_line() {
        assert_eq!(
            text(&packet(), false),
            "03:04:05.000067 cpu1 XDP        10.0.0.1:1000 > 10.0.0.2:6379 P. seq 7 ack 8 len 31 \
             GET key1 => answered len 9: FAST_PACKET FAST_GET*2\n"
        );
    }

    #[test]
    fn reasons_are_explained_below_it() {
        let text = text(&packet(), true);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[2], "    FAST_GET               what it means");
    }

    #[test]
    fn a_translated_reply_goes_the_other_way() {
        let packet = Packet {
            stage: Stage::Egress,
            direction: "out".into(),
            command: None,
            key: None,
            verdict: Verdict::OutTranslated,
            reply: None,
            reasons: Vec::new(),
            reasons_more: 3,
            ..packet()
        };
        let text = text(&packet, false);
        assert!(
            text.contains("TC egress  10.0.0.2:6379 > 10.0.0.1:1000 "),
            "{text}"
        );
        assert!(
            text.ends_with(" => out translated seq 8 ack 38 and 3 more\n"),
            "{text}"
        );
    }

    #[test]
    fn the_end_says_what_was_not_shown() {
        let words = |words: &[&str]| {
            let cli = crate::args::Cli::parse_from([&["erb", "trace"], words].concat());
            match cli.command {
                crate::args::Command::Trace(args) => args,
                other => panic!("{other:?}"),
            }
        };
        let misses = TraceMisses {
            lost: 2,
            unsearched: 1,
        };
        let said = summary(5, misses, &words(&[]));
        assert!(said.starts_with("5 packets shown; 2 were lost"), "{said}");
        assert!(!said.contains("searched"), "{said}");
        let said = summary(5, misses, &words(&["--key", "k"]));
        assert!(
            said.ends_with("; 1 could not be searched to their end for the key\n"),
            "{said}"
        );
        assert_eq!(
            summary(0, TraceMisses::default(), &words(&[])),
            "0 packets shown\n"
        );
    }
}
