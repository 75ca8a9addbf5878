// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results of `erb bench workload` as tables for people.

use comfy_table::{CellAlignment, Table, presets};

use super::report::{CLIENT, PER_S, WARM, WorkloadReport, cost_of, warm_after_s};
use crate::stats::Spread;

impl WorkloadReport {
    /// The tables that people read.
    pub fn to_table(&self) -> String {
        let over = self.over;
        let mut text = format!(
            "{}, {} connections over {over}\n",
            self.workload, self.conns
        );
        text += &format!("{}\n{}\n", self.costs(), self.latencies());
        if self
            .servers
            .iter()
            .any(|server| !server.runs[0].series.is_empty())
        {
            text += &format!("{}\n", self.series());
        }
        for server in &self.servers {
            if let Some(warm) = server.warm_after_s {
                let (name, after, runs) = (server.server, warm.median, server.runs.len());
                text += &format!(
                    "{name}: a second with a hit ratio of {WARM} ended after {after:.1} s ({:.1}-{:.1}, \
                     {} of {runs} runs)\n",
                    warm.min,
                    warm.max,
                    server.runs.iter().filter_map(warm_after_s).count()
                );
            }
        }
        for (pair, ratio) in &self.ratios {
            text += &format!("{pair}: {ratio:.3} times better\n");
        }
        for note in &self.notes {
            text += &format!("note: {note}\n");
        }
        let machine = &self.machine;
        text += &format!(
            "{}, {} cores, Linux {}\n",
            machine.processor, machine.cores, machine.kernel
        );
        text
    }

    fn costs(&self) -> Table {
        let (cost, heading) = cost_of(self.over);
        let mut table = table(&[
            "server",
            "operations/s",
            "(min-max)",
            heading,
            "(min-max)",
            "client ns",
            "hit ratio",
            "(min-max)",
            "possible",
            "by TC",
        ]);
        for server in &self.servers {
            let of = |figure: &str| format!("{:.0}", server.median(figure));
            let share =
                |share: Option<f64>| share.map_or_else(|| "-".to_owned(), |it| format!("{it:.4}"));
            let whole = |figure: &str| {
                let spread = server.figures.get(figure);
                spread.map_or_else(String::new, |it| format!("{:.0}-{:.0}", it.min, it.max))
            };
            let hits = server.hit_ratio;
            table.add_row([
                server.server.to_owned(),
                of(PER_S),
                whole(PER_S),
                of(cost),
                whole(cost),
                of(CLIENT),
                share(hits.map(|it| it.median)),
                hits.map_or_else(String::new, |it| format!("{:.4}-{:.4}", it.min, it.max)),
                share(server.repeated_ratio.map(|it| it.median)),
                share(server.tc_share),
            ]);
        }
        align(&mut table, 1);
        table
    }

    fn latencies(&self) -> Table {
        let mut table = table(&[
            "server",
            "operation",
            "command",
            "p50 us",
            "(min-max)",
            "p99 us",
            "(min-max)",
            "p99.9 us",
            "(min-max)",
        ]);
        for server in &self.servers {
            for one in &server.operations {
                let mut row = vec![
                    server.server.to_owned(),
                    one.operation.to_owned(),
                    one.command.clone(),
                ];
                for spread in [one.p50_us, one.p99_us, one.p999_us] {
                    row.push(format!("{:.0}", spread.median));
                    row.push(format!("{:.0}-{:.0}", spread.min, spread.max));
                }
                table.add_row(row);
            }
        }
        align(&mut table, 3);
        table
    }

    /// For each second of a cold start, medians of the runs.
    fn series(&self) -> Table {
        let mut table = table(&["server", "second", "operations/s", "hit ratio", "possible"]);
        for server in &self.servers {
            let seconds = server.runs.iter().map(|run| run.series.len()).max();
            for number in 0..seconds.unwrap_or(0) {
                let all = server.runs.iter().filter_map(|run| run.series.get(number));
                let per_s = Spread::of(all.clone().map(|second| second.operations_per_s));
                let hits = Spread::of(all.clone().filter_map(|second| second.hit_ratio));
                let possible = Spread::of(all.filter_map(|second| second.repeated_ratio));
                let share = |spread: Option<Spread>| {
                    spread.map_or_else(|| "-".to_owned(), |it| format!("{:.4}", it.median))
                };
                table.add_row([
                    server.server.to_owned(),
                    (number + 1).to_string(),
                    per_s.map_or_else(String::new, |it| format!("{:.0}", it.median)),
                    share(hits),
                    share(possible),
                ]);
            }
        }
        align(&mut table, 1);
        table
    }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(header);
    table
}

/// Figures stand to the right, from this column on.
fn align(table: &mut Table, from: usize) {
    for column in table.column_iter_mut().skip(from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
