// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb top`: the terminal, time and the daemon around what [`top_model`](crate::top_model) decides
//! and [`top_view`](crate::top_view) draws.

use std::io::{ErrorKind, IsTerminal, Write, stdin, stdout};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read};
use erb_daemon::{Error, Request, Result, RunDir, enter_base_mount_namespace, request};
use erb_report::Status;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::{DefaultTerminal, Terminal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::top_lists::Listed;
use crate::top_model::{EVERY, List, Todo, Top};
use crate::top_view::{self, Look};
use crate::watch_args::TopArgs;
use crate::{detach, status};

/// Between looks at keys, answers of the daemon and signals.
const BEAT: Duration = Duration::from_millis(50);
/// Size of a frame that goes to no terminal.
const BATCH_SIZE: (u16, u16) = (132, 48);

/// What a look gives.
type Seen = std::result::Result<(Status, Listed), String>;

/// Runs the command.
pub fn run(args: &TopArgs) -> Result<ExitCode> {
    let every = args.every;
    if !EVERY.contains(&every) {
        return Err(Error::Usage(format!(
            "--every {}: between {} and {}",
            humantime::format_duration(every),
            humantime::format_duration(*EVERY.start()),
            humantime::format_duration(*EVERY.end())
        )));
    }
    enter_base_mount_namespace()?;
    let run_dir = detach::run_dir(&args.which)?;
    // What is not boosted at all is said before the terminal is taken.
    status::read(&run_dir)?;
    let mut top = Top::new(every);
    top.list = args.list;
    if args.batch {
        return batch(&run_dir, top, args.count);
    }
    if !stdout().is_terminal() || !stdin().is_terminal() {
        let why = "standard input and output are no terminal; --batch prints frames as text";
        return Err(Error::Usage(why.to_owned()));
    }
    let look = Look {
        colour: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    };
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP, SIGINT, SIGQUIT] {
        signal_hook::flag::register(signal, Arc::clone(&ended))
            .map_err(Error::io("could not take over signals"))?;
    }
    let (ask, seen) = looker(run_dir);
    let terminal = ratatui::try_init().map_err(Error::io("could not take the terminal"))?;
    let done = watch(terminal, top, look, &ask, &seen, &ended);
    ratatui::restore();
    done.map(|()| ExitCode::SUCCESS)
        .map_err(Error::io("the terminal"))
}

/// One look; connections and keys only where they are shown.
fn look(run_dir: &RunDir, list: List) -> Seen {
    let words = |error: Error| error.to_string();
    let status = status::read(run_dir).map_err(words)?;
    let mut listed = Listed::default();
    match list {
        List::Outcomes | List::Processors => {}
        List::Connections => {
            listed.connections = request(run_dir, &Request::Conns).map_err(words)?;
        }
        List::Keys => listed.keys = request(run_dir, &Request::Keys).map_err(words)?,
    }
    Ok((status, listed))
}

/// A thread that looks when it is asked: keys are heard while a daemon does not answer.
fn looker(run_dir: RunDir) -> (Sender<List>, Receiver<Seen>) {
    let (ask, asked) = channel();
    let (tell, seen) = channel();
    std::thread::spawn(move || {
        while let Ok(list) = asked.recv() {
            if tell.send(look(&run_dir, list)).is_err() {
                return;
            }
        }
    });
    (ask, seen)
}

/// Until somebody quits.
fn watch(
    mut terminal: DefaultTerminal,
    mut top: Top,
    style: Look,
    ask: &Sender<List>,
    seen: &Receiver<Seen>,
    ended: &AtomicBool,
) -> std::io::Result<()> {
    // The looker lives as long as these channels.
    let mut asked = ask.send(top.list).is_ok();
    let mut next = Instant::now() + top.every;
    while !ended.load(Ordering::Relaxed) {
        terminal.draw(|frame| top_view::draw(frame, &top, style))?;
        let mut todo = None;
        while todo.is_none() && !ended.load(Ordering::Relaxed) {
            match input()? {
                // Nothing is left to restore, and whoever drops the terminal would say so on what has gone too.
                Input::Gone => std::process::exit(0),
                Input::Keys if poll(Duration::ZERO)? => todo = heard(&read()?, &mut top),
                Input::Keys | Input::Nothing => {}
            }
            if let Ok(found) = seen.try_recv() {
                asked = false;
                top.looked(Instant::now(), found);
                todo = todo.or(Some(Todo::Draw));
            }
            let due = !top.paused && Instant::now() >= next;
            if !asked && (due || todo == Some(Todo::Look)) {
                asked = ask.send(top.list).is_ok();
                next = Instant::now() + top.every;
            }
        }
        if todo == Some(Todo::Quit) {
            break;
        }
    }
    Ok(())
}

/// What there is to read.
enum Input {
    Nothing,
    Keys,
    Gone,
}

/// Waits for keys, a beat at most. The library that reads them would read from a terminal that has gone for ever.
fn input() -> std::io::Result<Input> {
    let stdin = stdin();
    let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    match nix::poll::poll(
        &mut fds,
        PollTimeout::try_from(BEAT).unwrap_or(PollTimeout::ZERO),
    ) {
        Ok(0) | Err(Errno::EINTR) => return Ok(Input::Nothing),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let found = fds[0].revents().unwrap_or(PollFlags::POLLERR);
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    Ok(if found.intersects(gone) {
        Input::Gone
    } else {
        Input::Keys
    })
}

/// What an event asks for.
fn heard(event: &Event, top: &mut Top) -> Option<Todo> {
    match event {
        Event::Key(key) if key.kind == KeyEventKind::Press => {
            let ctrl_c =
                key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
            Some(if ctrl_c {
                Todo::Quit
            } else {
                top.key(key.code)
            })
        }
        Event::Resize(..) => Some(Todo::Draw),
        _ => None,
    }
}

/// Frames as text, from the second look on: rates need two.
fn batch(run_dir: &RunDir, mut top: Top, count: Option<u64>) -> Result<ExitCode> {
    let mut output = stdout();
    let mut printed = 0;
    top.looked(Instant::now(), look(run_dir, top.list));
    while count.is_none_or(|count| printed < count) {
        std::thread::sleep(top.every);
        top.looked(Instant::now(), look(run_dir, top.list));
        match writeln!(output, "{}", text(&top)).and_then(|()| output.flush()) {
            // Who reads has gone, with what he wanted.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            done => done.map_err(Error::io("could not write to standard output"))?,
        }
        printed += 1;
    }
    Ok(ExitCode::SUCCESS)
}

/// A frame as text.
fn text(top: &Top) -> String {
    let (width, height) = BATCH_SIZE;
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height)) else {
        return String::new();
    };
    let style = Look { colour: false };
    // Memory takes whatever is drawn.
    let _ = terminal.draw(|frame| top_view::draw(frame, top, style));
    lines(terminal.backend().buffer())
}

/// The characters, without blanks at ends of lines and without empty lines.
fn lines(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width);
    let mut text = String::new();
    for row in buffer.content.chunks(width) {
        let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        if !line.trim().is_empty() {
            text += line.trim_end();
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests;
