// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Generates the Rust mirror of `bpf/base/abi.h` and `bpf/trace/trace.h` (bindgen, with layout checks) and the
//! tables of reasons and commands, so that nothing shared with the data path is written down twice.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use layout::{MARKS, REASONS, SHARED, fingerprint};

#[path = "src/layout.rs"]
mod layout;

fn main() -> Result<()> {
    let bpf = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../../bpf");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for file in [REASONS, "redis/commands.def", "nagle.h", "trace/trace.h"]
        .iter()
        .chain(SHARED)
        .chain(MARKS)
    {
        println!("cargo:rerun-if-changed={}", bpf.join(file).display());
    }
    println!("cargo:rerun-if-changed=wrapper.h");
    generate_mirror(&bpf, &out.join("mirror.rs"))?;
    generate_reasons(&bpf.join(REASONS), &out.join("reasons.rs"))?;
    generate_latencies(&bpf.join("base/latency.def"), &out.join("latencies.rs"))?;
    generate_commands(&bpf.join("redis/commands.def"), &out.join("commands.rs"))?;
    generate_fast(&bpf.join("redis/fast.def"), &out.join("fast.rs"))?;
    generate_usual(&bpf.join("redis/usual.def"), &out.join("usual.rs"))?;
    generate_slow(&bpf.join("redis/slow.def"), &out.join("slow.rs"))?;
    generate_layout(&bpf, &out.join("layout.rs"))?;
    Ok(())
}

fn generate_layout(bpf: &Path, to: &Path) -> Result<()> {
    let layout = fingerprint(|file| {
        let path = bpf.join(file);
        fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))
    })?;
    let code = format!(
        "/// Fingerprint of what programs of different builds share; only equal ones work together.\n\
         pub const LAYOUT: u64 = {layout:#018x};\n"
    );
    fs::write(to, code).with_context(|| format!("could not write {}", to.display()))
}

fn generate_mirror(bpf: &Path, to: &Path) -> Result<()> {
    bindgen::Builder::default()
        .header("wrapper.h")
        .clang_arg(format!("-I{}", bpf.display()))
        .clang_arg("-std=gnu11")
        .allowlist_file(".*/bpf/(base/abi|base/limits|redis/abi|redis/log|nagle|trace/trace)\\.h")
        .prepend_enum_name(false)
        .derive_default(true)
        .derive_debug(true)
        .derive_partialeq(true)
        .derive_eq(true)
        .derive_hash(true)
        .layout_tests(true)
        .wrap_unsafe_ops(true)
        // Flexible array; only the data path looks into slots.
        .blocklist_type("slot")
        .generate()
        .context(
            "bindgen could not read bpf/base/abi.h (is libclang installed? Debian: libclang1-19)",
        )?
        .write_to_file(to)
        .with_context(|| format!("could not write {}", to.display()))
}

/// The argument lists of all `MACRO(...)` lines of a definition file, split at commas outside
/// quotes and trimmed.
fn definitions(path: &Path, macro_name: &str) -> Result<Vec<Vec<String>>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))?;
    let opening = format!("{macro_name}(");
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| line.starts_with(&opening)) {
        let inner = line[opening.len()..]
            .rsplit_once(')')
            .map(|(inner, _)| inner);
        let inner = inner.with_context(|| format!("no closing bracket: {line}"))?;
        let mut fields = vec![String::new()];
        let mut quoted = false;
        for letter in inner.chars() {
            match letter {
                '"' => quoted = !quoted,
                ',' if !quoted => fields.push(String::new()),
                other => fields.last_mut().expect("never empty").push(other),
            }
        }
        rows.push(fields.iter().map(|field| field.trim().to_owned()).collect());
    }
    ensure!(
        !rows.is_empty(),
        "no {macro_name} lines in {}",
        path.display()
    );
    Ok(rows)
}

fn generate_reasons(from: &Path, to: &Path) -> Result<()> {
    let rows = definitions(from, "REASON")?;
    let mut code = format!(
        "/// All reasons, in the order of the stats map.\npub const REASONS: [Reason; {}] = [\n",
        rows.len()
    );
    for row in &rows {
        ensure!(row.len() == 3, "REASON needs name, kind and text: {row:?}");
        let kind = match row[1].as_str() {
            "answered" => "Answered",
            "refused" => "Refused",
            "passed" => "Passed",
            "dropped" => "Dropped",
            "event" => "Event",
            other => anyhow::bail!("unknown kind {other} in {row:?}"),
        };
        writeln!(
            code,
            "Reason {{ name: {:?}, kind: Kind::{kind}, text: {:?} }},",
            row[0], row[2]
        )?;
    }
    code.push_str("];\n");
    fs::write(to, code).with_context(|| format!("could not write {}", to.display()))
}

fn generate_latencies(from: &Path, to: &Path) -> Result<()> {
    let rows = definitions(from, "LATENCY")?;
    let mut code = format!(
        "/// All of them, in the order of `enum latency_path`.\npub const LATENCIES: [LatencyPath; {}] = [\n",
        rows.len()
    );
    for row in &rows {
        ensure!(
            row.len() == 3,
            "LATENCY needs two names and a text: {row:?}"
        );
        writeln!(
            code,
            "LatencyPath {{ name: {:?}, text: {:?} }},",
            row[1], row[2]
        )?;
    }
    code.push_str("];\n");
    fs::write(to, code).with_context(|| format!("could not write {}", to.display()))
}

/// Rows of classes come with their class, the others with the constant that C has.
fn generate_slow(from: &Path, to: &Path) -> Result<()> {
    let of_commands = definitions(from, "SLOW_COMMAND")?;
    let others = definitions(from, "SLOW")?;
    let mut code = format!(
        "/// All of them.\npub const SLOW: [Slow; {}] = [\n",
        of_commands.len() + others.len()
    );
    for (prefix, row) in of_commands
        .iter()
        .map(|row| ("", row))
        .chain(others.iter().map(|row| ("SLOW_", row)))
    {
        ensure!(
            row.len() == 3,
            "SLOW needs a number, a name and a text: {row:?}"
        );
        writeln!(
            code,
            "Slow {{ why: {prefix}{}, name: {:?}, text: {:?} }},",
            row[0], row[1], row[2]
        )?;
    }
    code.push_str("];\n");
    fs::write(to, code).with_context(|| format!("could not write {}", to.display()))
}

fn generate_commands(from: &Path, to: &Path) -> Result<()> {
    let rows = definitions(from, "COMMAND")?;
    let mut keys: BTreeMap<String, String> = BTreeMap::new();
    for row in definitions(from, "KEYS")? {
        let [name, first, last, step] = row.as_slice() else {
            anyhow::bail!("KEYS needs name, first, last and step: {row:?}");
        };
        ensure!(
            rows.iter()
                .any(|row| row[0] == *name && row[1] == "CMD_MARK"),
            "KEYS of {name:?}, which is no CMD_MARK"
        );
        let text = format!("Keys {{ first: {first}, last: {last}, step: {step}, keynum: 0 }}");
        keys.insert(name.clone(), text);
    }
    let mut orders = BTreeMap::new();
    for kind in ["NEVER_HELD", "CURES", "SYNCED", "REPEATS"] {
        for name in definitions(from, kind)?.into_iter().flatten() {
            let is_known = rows.iter().any(|row| row[0] == name);
            ensure!(is_known, "{kind} of {name:?}, which is no COMMAND");
            let before = orders.insert(name, kind);
            ensure!(
                before.is_none(),
                "{kind} names a command that was named before"
            );
        }
    }
    let mut code = format!(
        "/// All commands whose class is known.\npub const COMMANDS: [Command; {}] = [\n",
        rows.len()
    );
    for row in &rows {
        ensure!(
            row.len() == 3,
            "COMMAND needs name, class and count: {row:?}"
        );
        ensure!(
            row[0].split('|').all(|part| part.len() <= 24),
            "name longer than NAME_BYTES_MAX: {row:?}"
        );
        let argc: u32 = row[2]
            .parse()
            .with_context(|| format!("argument count of {row:?}"))?;
        let keys = match keys.get(&row[0]) {
            Some(keys) => keys,
            None if row[1] == "CMD_MARK" => "Keys::FIRST",
            None => "Keys::NONE",
        };
        writeln!(
            code,
            "Command {{ name: {:?}, class: {}, argc: {argc}, keys: {keys}, order: {} }},",
            row[0],
            row[1],
            orders
                .get(&row[0])
                .map_or("0".to_owned(), |kind| format!("ORDER_{kind} as u16"))
        )?;
    }
    code.push_str("];\n");
    fs::write(to, code).with_context(|| format!("could not write {}", to.display()))
}

fn generate_usual(from: &Path, to: &Path) -> Result<()> {
    let rows = definitions(from, "USUAL")?;
    let mut code = format!(
        "/// All writes that the express lane knows.\npub const USUAL_WRITES: [UsualWrite; {}] = [\n",
        rows.len()
    );
    for row in &rows {
        ensure!(
            row.len() == 3,
            "USUAL needs kind, name and a count: {row:?}"
        );
        writeln!(
            code,
            "UsualWrite {{ name: {:?}, kind: USUAL_KIND_{}, args: {} }},",
            row[1], row[0], row[2],
        )?;
    }
    code.push_str("];\n");
    fs::write(to, code).with_context(|| format!("could not write {}", to.display()))
}

fn generate_fast(from: &Path, to: &Path) -> Result<()> {
    let rows = definitions(from, "FAST")?;
    let mut code = format!(
        "/// All commands that the fast path answers.\npub const FAST_COMMANDS: [FastCommand; {}] = [\n",
        rows.len()
    );
    for row in &rows {
        ensure!(
            row.len() == 4,
            "FAST needs kind, name and two counts: {row:?}"
        );
        writeln!(
            code,
            "FastCommand {{ name: {:?}, kind: FAST_KIND_{kind}, stat: STAT_FAST_{kind}, least: {}, most: {} }},",
            row[1],
            row[2],
            row[3],
            kind = row[0]
        )?;
    }
    code.push_str("];\n");
    fs::write(to, code).with_context(|| format!("could not write {}", to.display()))
}
