// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A function fits on a screen, a file into a head. What was longer when the rule came is listed
//! with its length and may only shrink.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::assert_none;
use crate::files::{self, File};

/// Longest function, lines from `fn` (C: the line of its name) to the closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Longest file. Tables (`.def`) are exempt: they are read by searching.
const FILE_LINES_MAX: usize = 600;

/// Longer files: name, most lines.
const FILES_RATCHET: [(&str, usize); 0] = [];
/// Here functions are tables of rows, which are read by searching, as `.def` files are.
const TABLES: &str = "crates/proof/packets/tests/";
/// Longer functions: file, name, most lines.
const FUNCTIONS_RATCHET: [(&str, &str, usize); 0] = [];

#[test]
fn files_are_short() {
    let mut complaints = Vec::new();
    for file in files::sources() {
        if !file.is(&[".rs", ".c", ".h"]) {
            continue;
        }
        let lines = file.text.lines().count();
        let listed = FILES_RATCHET.iter().find(|(name, _)| *name == file.name);
        let name = &file.name;
        complaints.extend(judge(
            name,
            lines,
            FILE_LINES_MAX,
            listed.map(|(_, max)| *max),
        ));
    }
    assert_none("a file has at most 600 lines", &complaints);
}

#[test]
fn functions_are_short() {
    let mut complaints = Vec::new();
    for file in files::sources() {
        if file.name.starts_with(TABLES) {
            continue;
        }
        for function in functions_of(&file) {
            let listed = FUNCTIONS_RATCHET
                .iter()
                .find(|(name, function_name, _)| {
                    *name == file.name && *function_name == function.name
                })
                .map(|(_, _, max)| *max);
            let label = format!("{}:{} {}", file.name, function.line, function.name);
            complaints.extend(judge(&label, function.lines, FUNCTION_LINES_MAX, listed));
        }
    }
    assert_none("a function has at most 70 lines", &complaints);
}

fn judge(label: &str, lines: usize, max: usize, listed: Option<usize>) -> Option<String> {
    match listed {
        Some(_) if lines <= max => Some(format!(
            "{label}: has {lines} lines now, take it off the list of longer ones"
        )),
        Some(listed) if lines > listed => Some(format!(
            "{label}: had {listed} lines, has {lines}; what is listed may only shrink"
        )),
        None if lines > max => Some(format!("{label}: has {lines} lines, divide it")),
        _ => None,
    }
}

struct Function {
    name: String,
    line: usize,
    lines: usize,
}

fn functions_of(file: &File) -> Vec<Function> {
    if file.is(&[".rs"]) {
        rust_functions(file)
    } else if file.is(&[".c", ".h"]) {
        c_functions(&file.text)
    } else {
        Vec::new()
    }
}

fn rust_functions(file: &File) -> Vec<Function> {
    let parsed = syn::parse_file(&file.text)
        .unwrap_or_else(|error| panic!("{} is no Rust: {error}", file.name));
    let mut found = Found(Vec::new());
    found.visit_file(&parsed);
    found.0
}

struct Found(Vec<Function>);

impl Found {
    fn note(&mut self, name: &syn::Ident, signature: &impl Spanned, block: &syn::Block) {
        let line = signature.span().start().line;
        self.0.push(Function {
            name: name.to_string(),
            line,
            lines: block.span().end().line + 1 - line,
        });
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        self.note(&node.sig.ident, &node.sig, &node.block);
        visit::visit_item_fn(self, node);
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        self.note(&node.sig.ident, &node.sig, &node.block);
        visit::visit_impl_item_fn(self, node);
    }
}

/// By the shape that clang-format gives: a body's braces stand alone in the first column.
fn c_functions(text: &str) -> Vec<Function> {
    let lines: Vec<&str> = text.lines().collect();
    let mut functions = Vec::new();
    let mut open = None;
    for (index, line) in lines.iter().enumerate() {
        match (*line, open) {
            ("{", _) => open = Some(c_signature_start(&lines, index)),
            ("}", Some(start)) => {
                let start: usize = start;
                let before = lines[start].split('(').next().unwrap_or_default();
                let name = before.split([' ', '*', '\t']).next_back();
                functions.push(Function {
                    name: name.unwrap_or_default().to_owned(),
                    line: start + 1,
                    lines: index + 1 - start,
                });
                open = None;
            }
            _ => {}
        }
    }
    functions
}

/// First line of the signature that ends above the brace; its further lines are indented.
fn c_signature_start(lines: &[&str], brace: usize) -> usize {
    let mut start = brace.saturating_sub(1);
    while start > 0 && lines[start].starts_with([' ', '\t']) {
        start -= 1;
    }
    start
}

#[test]
fn functions_are_found() {
    let c = "INLINE int a(int b,\n\t     int c)\n{\n\treturn b;\n}\n\nstruct x {\n};\n";
    let found = c_functions(c);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].name.as_str(), found[0].lines), ("a", 5));
    let rust = File {
        name: "x.rs".into(),
        text: "impl X {\n    fn a() {\n    }\n}\nfn b() {}\n".into(),
    };
    let found: Vec<_> = rust_functions(&rust)
        .into_iter()
        .map(|function| (function.name, function.line, function.lines))
        .collect();
    assert_eq!(found, [("a".to_owned(), 2, 2), ("b".to_owned(), 5, 1)]);
}

#[test]
fn the_list_only_shrinks() {
    assert_eq!(judge("x", 70, 70, None), None);
    assert!(judge("x", 71, 70, None).is_some());
    assert_eq!(judge("x", 80, 70, Some(80)), None);
    assert!(judge("x", 81, 70, Some(80)).is_some());
    assert!(judge("x", 70, 70, Some(80)).is_some());
}
