// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `erb top` shows, without a terminal: two looks at the status, and what keys change.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use crossterm::event::KeyCode;
use erb_report::{Counter, LatencyReport, Status};

use crate::top_lists::{self, Lately, Listed};

/// Shortest and longest time between looks.
pub const EVERY: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(250)..=Duration::from_secs(60);

/// Rows by which a page key moves.
const PAGE: usize = 10;
/// Longest filter: what is longer is somebody's paste.
const FILTER_CHARS_MAX: usize = 40;

/// What the lower part lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum List {
    /// Outcomes of the data path.
    #[default]
    Outcomes,
    /// Connections.
    Connections,
    /// Processors.
    Processors,
    /// Keys by heat; they are sampled from then on, and until some seconds behind the last look.
    Keys,
}

/// What the rows are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// The most a second first.
    #[default]
    Rate,
    /// The most of all first.
    Count,
    /// By name.
    Name,
}

/// What the terminal is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Todo {
    /// Draw again.
    Draw,
    /// Look at once, then draw.
    Look,
    /// End.
    Quit,
}

/// A row of the list.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// How often a second, between the last two looks; none after the first.
    pub per_second: Option<f64>,
    /// Of all time. Of a connection: its requests that went up.
    pub count: u64,
    /// Kind of an outcome, state of a connection.
    pub kind: String,
    /// Its name, or the client's address.
    pub name: String,
    /// Its sentence.
    pub text: String,
}

/// A status with its time.
#[derive(Clone, Debug)]
struct Look {
    at: Instant,
    status: Status,
    listed: Listed,
}

/// All that is shown, and how.
#[derive(Clone, Debug)]
pub struct Top {
    before: Option<Look>,
    now: Option<Look>,
    lately: Lately,
    /// Why the last look failed.
    pub failed: Option<String>,
    /// Time between looks.
    pub every: Duration,
    /// What is listed.
    pub list: List,
    /// What by.
    pub sort: Sort,
    /// Only rows with this in them.
    pub filter: String,
    /// Keys go into the filter.
    pub typing: bool,
    /// No looks.
    pub paused: bool,
    /// What the cursor is on is explained.
    pub explains: bool,
    /// Row of the cursor.
    pub cursor: usize,
}

impl Top {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(every: Duration) -> Self {
        Self {
            before: None,
            now: None,
            lately: Lately::default(),
            failed: None,
            every: every.clamp(*EVERY.start(), *EVERY.end()),
            list: List::default(),
            sort: Sort::default(),
            filter: String::new(),
            typing: false,
            paused: false,
            explains: false,
            cursor: 0,
        }
    }

    /// A look that succeeded, or why it did not.
    pub fn looked(&mut self, at: Instant, found: Result<(Status, Listed), String>) {
        match found {
            Ok((status, listed)) => {
                self.failed = None;
                self.lately.push(&status.latency);
                self.before = self.now.take();
                self.now = Some(Look { at, status, listed });
            }
            Err(why) => self.failed = Some(why),
        }
        self.keep_cursor();
    }

    /// The newest status.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        self.now.as_ref().map(|look| &look.status)
    }

    /// How fast something has risen between the last two looks. What fell began anew.
    #[must_use]
    pub fn per_second(&self, of: impl Fn(&Status) -> u64) -> Option<f64> {
        let (before, now) = (self.before.as_ref()?, self.now.as_ref()?);
        let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
        let rise = of(&now.status).saturating_sub(of(&before.status));
        #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
        (seconds > 0.0).then(|| rise as f64 / seconds)
    }

    /// How long requests took lately, by path.
    #[must_use]
    pub fn latency(&self) -> Vec<LatencyReport> {
        self.lately.paths()
    }

    /// Hits among the reads between the last two looks.
    #[must_use]
    pub fn hit_ratio(&self) -> Option<f64> {
        let hits = self.per_second(|status| status.cache.hits)?;
        let misses = self.per_second(|status| status.cache.misses)?;
        (hits + misses > 0.0).then(|| hits / (hits + misses))
    }

    /// The rows, filtered and sorted.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = match self.list {
            List::Outcomes => self.outcomes(),
            List::Connections => {
                let found = self.now.iter().flat_map(|now| &now.listed.connections);
                found.map(top_lists::connection).collect()
            }
            List::Processors => self.processors(),
            List::Keys => self.keys(),
        };
        let filter = self.filter.to_lowercase();
        rows.retain(|row| {
            let has = |text: &str| text.to_lowercase().contains(&filter);
            has(&row.name) || has(&row.kind) || has(&row.text)
        });
        let rate = |row: &Row| row.per_second.unwrap_or(0.0);
        rows.sort_by(|a, b| {
            let counts = b.count.cmp(&a.count);
            let first = match self.sort {
                Sort::Rate => rate(b).total_cmp(&rate(a)).then(counts),
                Sort::Count => counts,
                Sort::Name => std::cmp::Ordering::Equal,
            };
            first.then_with(|| a.name.cmp(&b.name))
        });
        rows
    }

    /// What has happened at least once.
    fn outcomes(&self) -> Vec<Row> {
        let counters = self.status().map_or(&[][..], |status| &status.counters);
        let happened = counters.iter().filter(|counter| counter.count > 0);
        happened
            .map(|counter| Row {
                per_second: self.per_second(|status| status.counter(&counter.name).unwrap_or(0)),
                ..outcome(counter)
            })
            .collect()
    }

    fn processors(&self) -> Vec<Row> {
        let found = self.status().map_or(&[][..], |status| &status.processors);
        let row = |of: &erb_report::ProcessorReport| {
            let cpu = of.cpu;
            top_lists::processor(of, |what| {
                self.per_second(|status| {
                    let same = status.processors.iter().find(|was| was.cpu == cpu);
                    same.map_or(0, what)
                })
            })
        };
        found.iter().map(row).collect()
    }

    fn keys(&self) -> Vec<Row> {
        let Some(now) = &self.now else {
            return Vec::new();
        };
        let keys = &now.listed.keys;
        let before = self
            .before
            .as_ref()
            .filter(|before| (1..=keys.samples).contains(&before.listed.keys.samples));
        let before = before.map(|before| {
            let time = now.at.saturating_duration_since(before.at);
            (&before.listed.keys, time.as_secs_f64())
        });
        let row = |key| top_lists::key(key, keys, before);
        keys.keys.iter().map(row).collect()
    }

    /// Lists something else, which is asked for only while it is shown.
    fn turn_to(&mut self, list: List) -> Todo {
        self.list = list;
        self.cursor = 0;
        Todo::Look
    }

    /// What a key changes.
    pub fn key(&mut self, key: KeyCode) -> Todo {
        if self.typing {
            self.type_into_filter(key);
            self.keep_cursor();
            return Todo::Draw;
        }
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Todo::Quit,
            KeyCode::Char(' ') => {
                self.paused = !self.paused;
                return if self.paused { Todo::Draw } else { Todo::Look };
            }
            KeyCode::Char('s') => {
                self.sort = match self.sort {
                    Sort::Rate => Sort::Count,
                    Sort::Count => Sort::Name,
                    Sort::Name => Sort::Rate,
                };
            }
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('?') | KeyCode::Enter => self.explains = !self.explains,
            KeyCode::Char('+') => self.every = (self.every * 2).min(*EVERY.end()),
            KeyCode::Char('-') => self.every = (self.every / 2).max(*EVERY.start()),
            KeyCode::Tab => {
                return self.turn_to(match self.list {
                    List::Outcomes => List::Connections,
                    List::Connections => List::Processors,
                    List::Processors | List::Keys => List::Outcomes,
                });
            }
            // Not by the tab: whoever asks has keys sampled.
            KeyCode::Char('h') => {
                return self.turn_to(match self.list {
                    List::Keys => List::Outcomes,
                    _ => List::Keys,
                });
            }
            KeyCode::Up | KeyCode::Char('k') => self.cursor = self.cursor.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.cursor += 1,
            KeyCode::PageUp => self.cursor = self.cursor.saturating_sub(PAGE),
            KeyCode::PageDown => self.cursor += PAGE,
            KeyCode::Home => self.cursor = 0,
            KeyCode::End => self.cursor = usize::MAX,
            _ => {}
        }
        self.keep_cursor();
        Todo::Draw
    }

    fn type_into_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(typed)
                if !typed.is_control() && self.filter.chars().count() < FILTER_CHARS_MAX =>
            {
                self.filter.push(typed);
            }
            _ => {}
        }
    }

    /// The cursor stays on a row.
    fn keep_cursor(&mut self) {
        self.cursor = self.cursor.min(self.rows().len().saturating_sub(1));
    }
}

fn outcome(counter: &Counter) -> Row {
    Row {
        per_second: None,
        count: counter.count,
        kind: counter.kind.clone(),
        name: counter.name.clone(),
        text: counter.text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use erb_report::{ConnLine, HotKey, HotKeys, ProcessorReport};

    use super::*;

    fn status(get: u64, miss: u64) -> Status {
        let counter = |name: &str, kind: &str, count| Counter {
            name: name.to_owned(),
            kind: kind.to_owned(),
            text: format!("what {name} counts"),
            count,
        };
        let mut status = Status {
            counters: vec![
                counter("FAST_GET", "answered", get),
                counter("REFUSE_MISS", "refused", miss),
                counter("INVARIANT", "event", 0),
            ],
            ..Status::default()
        };
        (status.cache.hits, status.cache.misses) = (get, miss);
        status
    }

    fn listed(connections: Vec<ConnLine>) -> Listed {
        Listed {
            connections,
            ..Listed::default()
        }
    }

    fn top() -> Top {
        let mut top = Top::new(Duration::from_secs(1));
        let begin = Instant::now();
        top.looked(begin, Ok((status(1_000, 5_000), Listed::default())));
        let line = ConnLine {
            client: "10.0.0.2:40000".to_owned(),
            state: "fast".to_owned(),
            requests: 9,
            replies: 8,
            ..ConnLine::default()
        };
        let later = begin + Duration::from_secs(2);
        top.looked(later, Ok((status(1_600, 5_200), listed(vec![line]))));
        top
    }

    fn names(top: &Top) -> Vec<String> {
        top.rows().into_iter().map(|row| row.name).collect()
    }

    #[test]
    fn rates_are_of_the_last_two_looks() {
        let top = top();
        assert_eq!(top.hit_ratio(), Some(0.75));
        let rows = top.rows();
        assert_eq!(rows[0].per_second, Some(300.0));
        assert_eq!(
            (rows[1].name.as_str(), rows[1].per_second),
            ("REFUSE_MISS", Some(100.0))
        );
        assert_eq!(rows.len(), 2, "what never happened is not listed");
    }

    #[test]
    fn counts_that_fell_began_anew() {
        let mut top = top();
        top.looked(
            Instant::now() + Duration::from_secs(9),
            Ok((status(5, 0), Listed::default())),
        );
        assert_eq!(top.rows()[0].per_second, Some(0.0));
        assert_eq!(top.hit_ratio(), None);
    }

    #[test]
    fn rows_are_sorted_by_rate_count_and_name() {
        let mut top = top();
        assert_eq!(names(&top), ["FAST_GET", "REFUSE_MISS"]);
        top.key(KeyCode::Char('s'));
        assert_eq!(names(&top), ["REFUSE_MISS", "FAST_GET"]);
        top.key(KeyCode::Char('s'));
        assert_eq!(names(&top), ["FAST_GET", "REFUSE_MISS"]);
    }

    #[test]
    fn a_filter_is_typed_and_keys_are_letters_meanwhile() {
        let mut top = top();
        for key in "/Refq".chars() {
            assert_eq!(top.key(KeyCode::Char(key)), Todo::Draw);
        }
        assert_eq!(names(&top), [""; 0]);
        top.key(KeyCode::Backspace);
        assert_eq!(names(&top), ["REFUSE_MISS"]);
        top.key(KeyCode::Enter);
        assert_eq!(top.key(KeyCode::Char('q')), Todo::Quit);
        top.key(KeyCode::Char('/'));
        top.key(KeyCode::Esc);
        assert_eq!(names(&top).len(), 2);
        top.key(KeyCode::Char('/'));
        for _ in 0..1_000 {
            top.key(KeyCode::Char('x'));
        }
        assert_eq!(top.filter.len(), FILTER_CHARS_MAX);
    }

    #[test]
    fn the_cursor_stays_on_a_row() {
        let mut top = top();
        for (key, row) in [
            (KeyCode::Up, 0),
            (KeyCode::Down, 1),
            (KeyCode::Down, 1),
            (KeyCode::Home, 0),
            (KeyCode::End, 1),
            (KeyCode::PageUp, 0),
            (KeyCode::PageDown, 1),
        ] {
            top.key(key);
            assert_eq!(top.cursor, row, "{key:?}");
        }
        top.looked(Instant::now(), Ok((status(0, 0), Listed::default())));
        assert_eq!(top.cursor, 0);
    }

    #[test]
    fn a_look_that_fails_keeps_what_was_seen() {
        let mut top = top();
        top.looked(Instant::now(), Err("the daemon does not answer".to_owned()));
        assert_eq!(top.rows().len(), 2);
        assert!(top.failed.is_some());
    }

    #[test]
    fn connections_are_a_list_of_their_own() {
        let mut top = top();
        top.key(KeyCode::Down);
        assert_eq!(top.key(KeyCode::Tab), Todo::Look);
        assert_eq!(
            (names(&top), top.cursor),
            (vec!["10.0.0.2:40000".to_owned()], 0)
        );
        assert!(top.rows()[0].text.contains("1 unanswered"));
    }

    #[test]
    fn processors_and_keys_are_lists_and_keys_are_not_met_by_the_tab() {
        let mut top = top();
        for _ in 0..2 {
            top.key(KeyCode::Tab);
        }
        assert_eq!(top.list, List::Processors);
        let mut found = status(1_700, 5_300);
        found.processors = vec![ProcessorReport {
            cpu: 3,
            answered: 80,
            up: 15,
            down: 5,
        }];
        let key = HotKey {
            key: r"a\x1b".to_owned(),
            key_bytes: 2,
            db: 0,
            count: 9,
            error: 0,
        };
        let keys = HotKeys {
            one_of: 61,
            samples: 10,
            keys: vec![key],
        };
        let seen = Listed {
            keys,
            ..Listed::default()
        };
        top.looked(Instant::now() + Duration::from_secs(9), Ok((found, seen)));
        assert_eq!(
            (names(&top), top.rows()[0].count),
            (vec!["  3".to_owned()], 100)
        );
        top.key(KeyCode::Tab);
        assert_eq!(top.list, List::Outcomes);
        assert_eq!(
            (top.key(KeyCode::Char('h')), top.list),
            (Todo::Look, List::Keys)
        );
        assert_eq!(names(&top), [r"a\x1b"]);
        assert!(top.rows()[0].text.starts_with("90.0 % of 10 samples"));
        top.key(KeyCode::Char('h'));
        assert_eq!(top.list, List::Outcomes);
    }

    #[test]
    fn pause_and_pace() {
        let mut top = top();
        assert_eq!(top.key(KeyCode::Char(' ')), Todo::Draw);
        assert!(top.paused);
        assert_eq!(top.key(KeyCode::Char(' ')), Todo::Look);
        for (key, bound) in [('+', EVERY.end()), ('-', EVERY.start())] {
            for _ in 0..20 {
                top.key(KeyCode::Char(key));
            }
            assert_eq!(top.every, *bound);
        }
    }
}
