// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page that is made from what is declared of it: tiles, charts and tables of metrics. The storage node and the file
//! server have one. A boost's has a picture of its own: [`crate::dashboard`].

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::dashboard::{File, SCRIPT, file, page};

/// What is shown of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Shown {
    /// Its value.
    Value,
    /// How fast it rises, a second.
    Rate,
}

/// One line of a chart, or one tile: a series by its whole name, its labels included.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Series {
    /// As people read it.
    pub label: &'static str,
    /// Its name, as Prometheus writes it. One that ends in `*` stands for the sum of all that begin so.
    pub name: &'static str,
    /// What is shown of it.
    pub shown: Shown,
}

impl Series {
    pub(crate) const fn value(label: &'static str, name: &'static str) -> Self {
        let shown = Shown::Value;
        Self { label, name, shown }
    }

    pub(crate) const fn rate(label: &'static str, name: &'static str) -> Self {
        let shown = Shown::Rate;
        Self { label, name, shown }
    }
}

/// Lines over the last hour.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Chart {
    /// Its title.
    pub title: &'static str,
    /// What its numbers are.
    pub unit: &'static str,
    /// Its lines, at most four.
    pub series: &'static [Series],
}

/// Metrics with their values, and with the sentences that are declared of them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Table {
    /// Its title.
    pub title: &'static str,
    /// Whole names of metrics.
    pub metrics: &'static [&'static str],
}

/// A page.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Board {
    /// Whose page it is.
    pub title: &'static str,
    /// The metric whose words say more of it.
    pub about: &'static str,
    /// Metrics that are above 0 if something is wrong, and what that is.
    pub wrong: &'static [(&'static str, &'static str)],
    /// What is read first.
    pub tiles: &'static [Series],
    /// Charts.
    pub charts: &'static [Chart],
    /// Tables.
    pub tables: &'static [Table],
}

/// The files of such a page.
#[rustfmt::skip]
pub const FILES: &[File] = &[
    file("/", "text/html; charset=utf-8", page!("board.js", "page/board.html")),
    file("/dashboard.css", "text/css; charset=utf-8", include_str!("page/dashboard.css")),
    file("/board.js", SCRIPT, include_str!("page/board.js")),
    file("/look.js", SCRIPT, include_str!("page/look.js")),
    file("/chart.js", SCRIPT, include_str!("page/chart.js")),
    file("/words.js", SCRIPT, include_str!("page/words.js")),
    file("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

/// The page as its script reads it.
pub(crate) fn declared(board: &Board) -> Map<String, Value> {
    [("board".to_owned(), json!(board))].into_iter().collect()
}
