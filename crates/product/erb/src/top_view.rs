// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb top` as characters. What it says by colour it also says in words.

use erb_report::{AttachMode, DeviceReport, Status};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row as TableRow, Table, TableState, Wrap};

use crate::top_lists;
use crate::top_model::{List, Sort, Top};

/// Lines of the head.
const HEAD: u16 = 8;
/// Lines in which the thing under the cursor is explained, with its frame.
const EXPLAINED: u16 = 5;

/// Keys, in the order in which they are needed.
const KEYS: &str =
    "q quit  space pause  s sort  / filter  tab list  h keys  enter explain  +/- pace";

/// Styles, all plain without colour.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Colours may be used.
    pub colour: bool,
}

impl Look {
    fn of(self, colour: Color) -> Style {
        if self.colour {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }

    fn kind(self, kind: &str) -> Style {
        match kind {
            "answered" | "fast" => self.of(Color::Green),
            "refused" | "bypass" => self.of(Color::Yellow),
            "dropped" | "old" => self.of(Color::Red),
            _ => Style::new(),
        }
    }
}

/// A rate or count with few digits.
#[must_use]
pub fn short(value: f64) -> String {
    match value {
        value if value >= 10_000_000.0 => format!("{:.0}M", value / 1_000_000.0),
        value if value >= 1_000_000.0 => format!("{:.1}M", value / 1_000_000.0),
        value if value >= 10_000.0 => format!("{:.0}k", value / 1_000.0),
        value if value >= 1_000.0 => format!("{:.1}k", value / 1_000.0),
        value if value >= 100.0 || value == 0.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

/// A count with few digits.
fn short_count(count: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "few digits are shown")]
    let rounded = count as f64;
    if count < 1_000 {
        count.to_string()
    } else {
        short(rounded)
    }
}

fn rate(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), short)
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0))
}

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, top: &Top, look: Look) {
    let explained = if top.explains { EXPLAINED } else { 0 };
    let [head, list, explanation, foot] = Layout::vertical([
        Constraint::Length(HEAD),
        Constraint::Min(3),
        Constraint::Length(explained),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let lines = match top.status() {
        Some(status) => head_lines(top, status, look),
        None => vec![Line::from("looking for the daemon")],
    };
    frame.render_widget(Paragraph::new(lines), head);
    draw_list(frame, top, look, list);
    if top.explains {
        explain(frame, top, explanation);
    }
    let line = if top.typing {
        format!("filter: {}_  enter takes it, esc ends it", top.filter)
    } else {
        KEYS.to_owned()
    };
    frame.render_widget(Paragraph::new(line), foot);
    clean(frame.buffer_mut());
}

/// Words of Redis, of devices and of errors may hold what a terminal obeys: control characters, and
/// those that turn the direction of writing.
fn clean(buffer: &mut Buffer) {
    let obeyed = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    for cell in &mut buffer.content {
        if cell.symbol().contains(obeyed) {
            cell.set_char('?');
        }
    }
}

/// The sum of these counters.
fn sum(status: &Status, names: &[&str]) -> u64 {
    names.iter().filter_map(|name| status.counter(name)).sum()
}

fn head_lines<'a>(top: &Top, status: &Status, look: Look) -> Vec<Line<'a>> {
    let device = |device: &DeviceReport| {
        let mode = match device.mode {
            _ if device.gone => "gone",
            AttachMode::Native => "XDP",
            AttachMode::Tc => "TC",
        };
        format!("{} ({mode})", device.device.name)
    };
    let devices: Vec<String> = status.devices.iter().map(device).collect();
    let pace = match (&top.failed, top.paused) {
        (Some(_), _) => "  LOST".to_owned(),
        (None, true) => "  PAUSED".to_owned(),
        (None, false) => format!("  every {} s", top.every.as_secs_f64()),
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let redis = &status.redis;
    let title = format!(
        "erb top  {}  daemon {}  Redis {} {} on {}",
        devices.join(", "),
        status.daemon,
        redis.version,
        redis.role,
        redis.port
    );
    let serving = match (&top.failed, status.serving) {
        (Some(why), _) => Span::styled(format!("no news: {why}"), look.of(Color::Red)),
        (None, true) => Span::styled("serving", look.of(Color::Green)),
        (None, false) => {
            let why = status.not_serving.join("; ");
            Span::styled(format!("NOT SERVING: {why}"), look.of(Color::Red))
        }
    };
    let title = Line::from(vec![Span::styled(title, bold), Span::from(pace)]);
    let figures = figures(top, status).map(Line::from);
    [title, Line::from(serving)]
        .into_iter()
        .chain(figures)
        .collect()
}

/// The lines with numbers.
fn figures(top: &Top, status: &Status) -> [String; 6] {
    let answered = |status: &Status| sum(status, &["FAST_PACKET", "FAST_PACKET_TC"]);
    let up = |status: &Status| sum(status, &["UP_TRANSLATED", "UP_UNTRACKED"]);
    let (conns, cache, aside) = (&status.connections, &status.cache, &status.aside);
    [
        format!(
            "packets/s    {} answered, {} went up; hits {} (of all time {})",
            rate(top.per_second(answered)),
            rate(top.per_second(up)),
            percent(top.hit_ratio()),
            percent(status.hit_ratio)
        ),
        format!(
            "connections  {}: {} fast, {} new, {} bypass, {} old; {} closing, {} not seen; {} hold keys",
            conns.total,
            conns.fast,
            conns.new,
            conns.bypass,
            conns.old,
            conns.closing,
            conns.unseen,
            status.held.total
        ),
        format!(
            "cache        {} of {} keys; {} fills/s, {} wait; lease {} ms, fence {}",
            cache.entries_estimate,
            cache.entries_max,
            rate(top.per_second(|status| status.cache.filled)),
            cache.fills_waiting,
            status.lease_left_ms,
            status.fence
        ),
        format!(
            "latency      {} (half / 99 of 100)",
            top_lists::latencies(&top.latency())
        ),
        saved(top, status),
        if aside.level == 0 {
            "aside        no".to_owned()
        } else {
            format!(
                "aside        level {} since {} s: {}",
                aside.level, aside.since_s, aside.why
            )
        },
    ]
}

/// Processor time of Redis that answers save: of one processor, and of all time.
fn saved(top: &Top, status: &Status) -> String {
    let commands = &status.commands;
    if commands.overhead_ns.is_none() {
        return "Redis saved  not known yet".to_owned();
    }
    let of_one = top.per_second(|status| status.commands.cpu_saved_ms);
    #[allow(clippy::cast_precision_loss, reason = "few digits are shown")]
    let seconds = commands.cpu_saved_ms as f64 / 1e3;
    format!(
        "Redis saved  {} of a processor, {} s in all (an estimate)",
        percent(of_one.map(|ms| ms / 1e3)),
        short(seconds)
    )
}

fn draw_list(frame: &mut Frame<'_>, top: &Top, look: Look, area: Rect) {
    let rows = top.rows();
    let mark = |sort: Sort, word: &'static str| {
        if top.sort == sort {
            format!("{word}*")
        } else {
            word.to_owned()
        }
    };
    let (count, name) = match top.list {
        List::Outcomes => ("count", "outcome"),
        List::Connections => ("went up", "client"),
        List::Processors => ("packets", "number"),
        List::Keys => ("about", "key"),
    };
    let head = [
        mark(Sort::Rate, "per s"),
        mark(Sort::Count, count),
        "kind".to_owned(),
        mark(Sort::Name, name),
        "what it says".to_owned(),
    ];
    let lines = rows.iter().map(|row| {
        TableRow::new([
            Cell::from(rate(row.per_second)),
            Cell::from(short_count(row.count)),
            Cell::from(Span::styled(row.kind.clone(), look.kind(&row.kind))),
            Cell::from(row.name.clone()),
            Cell::from(row.text.clone()),
        ])
    });
    let filtered = if top.filter.is_empty() {
        String::new()
    } else {
        format!(" with {:?}", top.filter)
    };
    let what = match top.list {
        List::Outcomes => "outcomes",
        List::Connections => "connections",
        List::Processors => "processors",
        List::Keys => "keys by heat, from a sample",
    };
    let title = format!("{what}: {}{filtered}", rows.len());
    let (name, text) = match top.list {
        List::Keys => (Constraint::Min(24), Constraint::Max(46)),
        _ => (Constraint::Length(24), Constraint::Min(10)),
    };
    let widths = [
        Constraint::Length(6),
        Constraint::Length(8),
        Constraint::Length(8),
        name,
        text,
    ];
    let table = Table::new(lines, widths)
        .header(TableRow::new(head).style(Style::new().add_modifier(Modifier::UNDERLINED)))
        .block(Block::new().borders(Borders::TOP).title(title))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .highlight_symbol(">");
    let mut state = TableState::new().with_selected(Some(top.cursor).filter(|_| !rows.is_empty()));
    frame.render_stateful_widget(table, area, &mut state);
}

fn explain(frame: &mut Frame<'_>, top: &Top, area: Rect) {
    let rows = top.rows();
    let text = rows.get(top.cursor).map_or_else(
        || "nothing is listed".to_owned(),
        |row| {
            let meaning = match (top.list, row.kind.as_str()) {
                (List::Outcomes, "answered") => "ERB sent bytes for it.",
                (List::Outcomes, "refused") => "It went up to Redis for this reason.",
                (List::Outcomes, "passed") => "It went on as a matter of course.",
                (List::Outcomes, "dropped") => "It was not delivered; TCP repeats it.",
                (List::Outcomes, _) => "Counted beside the packet's verdict.",
                (List::Connections, "new") => "Its first command is not answered yet.",
                (List::Connections, "fast") => "It may be answered.",
                (List::Connections, "bypass") => {
                    "Nothing is answered; Redis has to say how it stands."
                }
                (List::Connections, _) => {
                    "Older than ERB: not answered before Redis says how it stands."
                }
                (List::Processors, _) => "Packets that this processor met.",
                (List::Keys, _) => {
                    "Requests for it, from sampled packets; keys above 256 bytes are not told."
                }
            };
            format!(
                "{} ({}, {}): {}. {meaning}",
                row.name, row.kind, row.count, row.text
            )
        },
    );
    let block = Block::new().borders(Borders::TOP | Borders::BOTTOM);
    frame.render_widget(
        Paragraph::new(text).wrap(Wrap { trim: true }).block(block),
        area,
    );
}
