// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows, and the table of them.

use std::fmt::Write;
use std::time::Duration;

use comfy_table::{Table, presets};
use serde::Serialize;

use crate::stats::Spread;

/// What section 8 of the design asks of a row.
#[derive(Clone, Debug, Serialize)]
pub struct Bar {
    /// In words.
    pub wanted: String,
    /// Whether the median reaches it; nothing: what it is compared with could not be had, or it is not asked here.
    pub is_reached: Option<bool>,
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// Of all figures of the row but ratios.
    pub unit: &'static str,
    /// The node's, or the store's in process.
    pub erb: Spread,
    /// What it is compared with.
    pub beside: Option<String>,
    /// Its figure.
    pub other: Option<Spread>,
    /// The node's figure by that, round by round.
    pub ratio: Option<Spread>,
    /// What the paper has.
    pub paper: Option<&'static str>,
    /// The bar that it belongs to.
    pub bar: Option<Bar>,
}

/// Figures of all rounds.
#[derive(Clone, Debug, Default)]
pub struct Rounds(pub Vec<f64>);

impl Rounds {
    pub fn push(&mut self, figure: f64) {
        self.0.push(figure);
    }

    fn spread(&self) -> Option<Spread> {
        Spread::of(self.0.iter().copied())
    }
}

/// Milliseconds.
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Microseconds.
pub fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The figure that so many of a hundred do not exceed.
pub fn percentile(figures: &[f64], share: usize) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() * share / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

impl Row {
    /// Figures of all rounds; there are some.
    pub fn new(what: impl Into<String>, unit: &'static str, erb: &Rounds) -> Self {
        Self {
            what: what.into(),
            unit,
            erb: erb.spread().unwrap_or(Spread {
                median: f64::NAN,
                min: f64::NAN,
                max: f64::NAN,
            }),
            beside: None,
            other: None,
            ratio: None,
            paper: None,
            bar: None,
        }
    }

    /// What was measured beside it; nothing of it: it could not be had.
    pub fn beside(mut self, name: impl Into<String>, erb: &Rounds, other: &Rounds) -> Self {
        self.beside = Some(name.into());
        self.other = other.spread();
        let ratios = erb.0.iter().zip(&other.0).map(|(erb, other)| erb / other);
        self.ratio = Spread::of(ratios);
        self
    }

    /// What the paper says of it.
    pub fn paper(mut self, says: &'static str) -> Self {
        self.paper = Some(says);
        self
    }

    /// A bar that the ratio's median is to reach.
    pub fn bar(mut self, wanted: impl Into<String>, reaches: impl Fn(f64) -> bool) -> Self {
        self.bar = Some(Bar {
            wanted: wanted.into(),
            is_reached: self.ratio.map(|ratio| reaches(ratio.median)),
        });
        self
    }

    /// A bar that this disk does not allow.
    pub fn bar_not_asked(mut self, wanted: String) -> Self {
        self.bar = Some(Bar {
            wanted,
            is_reached: None,
        });
        self
    }

    /// A bar that the figure itself is to reach.
    pub fn bar_of_figure(
        mut self,
        wanted: impl Into<String>,
        reaches: impl Fn(f64) -> bool,
    ) -> Self {
        self.bar = Some(Bar {
            wanted: wanted.into(),
            is_reached: Some(reaches(self.erb.median)),
        });
        self
    }
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct KvReport {
    /// Processors, which node, clients and what is compared share.
    pub processors: usize,
    /// Tasks that ran or waited for the disk in the minute before; more than a few: others used the machine too.
    pub load_before: f64,
    /// The same at the end, with what the measurement itself has run.
    pub load_after: f64,
    /// How long all of it took.
    pub seconds: f64,
    /// Rounds behind each figure, but of roll backs.
    pub rounds: u32,
    /// The version of db_bench, or why there is none.
    pub rocksdb: String,
    /// Figures.
    pub rows: Vec<Row>,
}

fn figure(number: f64) -> String {
    match number {
        number if number >= 1000.0 => format!("{number:.0}"),
        number if number >= 10.0 => format!("{number:.1}"),
        number => format!("{number:.2}"),
    }
}

fn spread(of: &Spread) -> String {
    format!(
        "{} ({} to {})",
        figure(of.median),
        figure(of.min),
        figure(of.max)
    )
}

fn or_dash<T>(of: Option<T>, text: impl Fn(T) -> String) -> String {
    of.map_or("–".to_owned(), text)
}

impl KvReport {
    /// For people.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header(["what", "ERB", "beside", "ratio", "paper", "bar", "reached"]);
        for row in &self.rows {
            let bar = row.bar.as_ref();
            let figure_of = |of: &Spread| format!("{} {}", figure(of.median), row.unit);
            let beside = row.beside.as_ref().map(|name| {
                let other = row.other.as_ref();
                format!("{name}: {}", other.map_or("–".to_owned(), figure_of))
            });
            table.add_row([
                row.what.clone(),
                figure_of(&row.erb),
                or_dash(beside, |text| text),
                or_dash(row.ratio.as_ref(), spread),
                or_dash(row.paper, str::to_owned),
                or_dash(bar, |bar| bar.wanted.clone()),
                or_dash(bar, |bar| match bar.is_reached {
                    Some(true) => "yes".to_owned(),
                    Some(false) => "NO".to_owned(),
                    None => "not known".to_owned(),
                }),
            ]);
        }
        let mut text = format!("{table}\n");
        let _ = writeln!(
            text,
            "medians, of ratios also the smallest and largest, of {} rounds, each with all that is compared; {} processors for all of it; load \
             {:.1} before, {:.1} after; {:.0} s; RocksDB: {}",
            self.rounds,
            self.processors,
            self.load_before,
            self.load_after,
            self.seconds,
            self.rocksdb
        );
        text
    }
}
