// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the instructions of a packet go: by function, by line, by helper, and which lines of memory
//! they touch.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::machine::{Machine, Run};
use crate::play::Played;
use crate::program::Line;

/// Of each line of a C file, by number, the function that it is in. By the shape that clang-format
/// gives: a body's braces stand alone in the first column, a signature's further lines are indented.
fn functions(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = vec![String::new(); lines.len() + 1];
    let mut begin = 0;
    for (index, line) in lines.iter().enumerate() {
        match *line {
            "{" => {
                let above = lines[..index]
                    .iter()
                    .rposition(|it| !it.starts_with(['\t', ' ']));
                begin = above.unwrap_or(0);
            }
            "}" => {
                let before = lines[begin].split('(').next().unwrap_or_default();
                let name = before.rsplit([' ', '*', '\t']).next().unwrap_or_default();
                found[begin + 1..=index + 1].fill(name.to_owned());
            }
            _ => {}
        }
    }
    found
}

/// The tree's sources, read when they are asked for.
#[derive(Default)]
struct Sources(BTreeMap<String, Vec<String>>);

impl Sources {
    fn function(&mut self, line: &Line) -> String {
        let file = self.0.entry(line.file.clone()).or_insert_with(|| {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
            functions(&std::fs::read_to_string(root.join(&line.file)).unwrap_or_default())
        });
        let name = file.get(line.number as usize).cloned().unwrap_or_default();
        format!("{name} ({})", line.file)
    }
}

fn sorted(counts: BTreeMap<String, u32>, text: &mut String, most: usize) {
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
    for (name, count) in counts.into_iter().take(most) {
        let _ = writeln!(text, "{count:8}  {name}");
    }
}

fn of_run(machine: &Machine, run: &Run, sources: &mut Sources, most: usize) -> String {
    let object = machine.object(run.program);
    let (mut by_function, mut by_line) = (BTreeMap::new(), BTreeMap::new());
    let executed = run
        .executed
        .iter()
        .enumerate()
        .filter(|(_, count)| **count > 0);
    for (at, count) in executed {
        let Some(line) = object.line(at) else {
            continue;
        };
        *by_function.entry(sources.function(line)).or_default() += count;
        *by_line
            .entry(format!("{}:{}", line.file, line.number))
            .or_default() += count;
    }
    let mut by_area = BTreeMap::new();
    for (name, _) in &run.lines {
        *by_area.entry(name.clone()).or_default() += 1;
    }
    let mut text = format!(
        "{}: {} instructions\n  by function\n",
        run.program,
        run.total()
    );
    sorted(by_function, &mut text, usize::MAX);
    text += "  by line\n";
    sorted(by_line, &mut text, most);
    text += "  calls of helpers and kernel functions (what they do themselves is not counted)\n";
    sorted(run.calls.clone(), &mut text, usize::MAX);
    text += "  lines of memory touched, but for what helpers touch\n";
    sorted(by_area, &mut text, usize::MAX);
    text
}

/// All of one packet, with so many source lines.
#[must_use]
pub fn of(machine: &Machine, played: &Played, most: usize) -> String {
    let mut sources = Sources::default();
    let runs = played
        .runs
        .iter()
        .map(|run| of_run(machine, run, &mut sources, most));
    format!("{}\n{}", played.case, runs.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::functions;

    #[test]
    fn a_line_is_in_the_function_whose_body_it_is_in() {
        let c = "static int x;\nstruct a {\n\tint b;\n};\n\nint one(void);\n\nINLINE u32 *two(int a,\n\t\tint b)\n{\n\n\treturn 0;\n}\n";
        let found = functions(c);
        assert_eq!(found[12], "two");
        assert_eq!(found[8], "two");
        assert_eq!((&found[6][..], &found[7][..]), ("", ""));
    }
}
