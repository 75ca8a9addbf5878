// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb boost --config FILE`, `erb config`: options of `erb boost` out of a TOML file.
//!
//! A key is an option's long name. What the file says is put before what was typed, as words, and parsed
//! with it: so a value means the same in both, and every option of `erb boost` can be in a file.
//!
//! Invariants:
//! 1. What is typed wins over the file, an option as a whole: one `--dev` replaces all of the file's.
//! 2. What the file says is an option of `erb boost` that is shown, with a value of its kind, or an error with
//!    file and line.
//! 3. A file that others may write, or that is another user's, is refused: it decides what root does.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches, Subcommand};
use erb_daemon::trusted::{self, Refused};
use erb_daemon::{Error, MetricsConfig, Result};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::args::{BoostArgs, Cli};
use crate::boost;
use crate::show::say;

/// The option that names the file.
const OPTION: &str = "--config";
/// The command whose options a file has.
const BOOST: &str = "boost";
/// Options that make no sense in a file.
const NOT_IN_FILES: [&str; 3] = ["config", "foreground", "take-over"];
/// A file that is longer is some other file.
const BYTES_MAX: u64 = 64 << 10;
/// Permission bits that the file must not have.
const FORBIDDEN_MODE: u32 = 0o022;

/// What `erb config` does.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Say whether `erb boost --config FILE` would take the file, and what it would run.
    ///
    /// Names and values are looked at, not the machine: `erb doctor` does that. Changes nothing.
    Check {
        /// The file.
        file: PathBuf,
    },
    /// Print every option of `erb boost`, as it is with this file: a file again.
    Show {
        /// The file [default: none, so all options as they are without one].
        file: Option<PathBuf>,
    },
}

/// Runs the command.
pub fn run(command: &ConfigCommand) -> Result<ExitCode> {
    match command {
        ConfigCommand::Check { file } => check(file),
        ConfigCommand::Show { file } => show(file.as_deref()),
    }
}

/// The words of the command line, those of the file that it names before those that were typed.
pub fn expanded(words: Vec<OsString>) -> Result<Vec<OsString>> {
    if words.get(1).is_none_or(|word| word != BOOST) {
        return Ok(words);
    }
    let typed = &words[2..];
    let Some(file) = named_file(typed) else {
        return Ok(words);
    };
    let from_file = words_of(Path::new(&file), |option| is_typed(typed, option))?;
    let (program, typed) = words.split_at(2);
    Ok([program, &from_file, typed].concat())
}

/// The file that `--config` names, if it does.
fn named_file(typed: &[OsString]) -> Option<OsString> {
    typed.iter().enumerate().find_map(|(at, word)| {
        if word == OPTION {
            return typed.get(at + 1).cloned();
        }
        let joined = word.to_str()?.strip_prefix(OPTION)?.strip_prefix('=')?;
        Some(joined.into())
    })
}

fn is_typed(typed: &[OsString], option: &str) -> bool {
    let is = |word: &OsStr| {
        let word = word.to_string_lossy();
        let name = word.strip_prefix("--").unwrap_or_default();
        name == option || name.split_once('=').is_some_and(|(name, _)| name == option)
    };
    typed.iter().any(|word| is(word))
}

fn boost_command() -> Command {
    let command = Cli::command();
    let boost = command.find_subcommand(BOOST);
    boost.cloned().unwrap_or(command)
}

/// An option that can be in a file.
fn option<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    options(command).find(|it| it.get_long() == Some(name))
}

fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|it| {
        let is_own = it
            .get_long()
            .is_some_and(|name| !NOT_IN_FILES.contains(&name));
        is_own
            && !it.is_hide_set()
            && !matches!(
                it.get_action(),
                ArgAction::Help | ArgAction::HelpLong | ArgAction::HelpShort | ArgAction::Version
            )
    })
}

fn read(file: &Path) -> Result<String> {
    let bad = |why: String| Error::Usage(format!("{}: {why}", file.display()));
    let opened = trusted::open(file, FORBIDDEN_MODE).map_err(|refused| match refused {
        Refused::Mode(mode) => bad(format!(
            "may be written by others (mode {mode:o}); `chmod go-w` it"
        )),
        refused => bad(refused.to_string()),
    })?;
    let mut text = String::new();
    let length = opened.take(BYTES_MAX + 1).read_to_string(&mut text);
    match length.map_err(|error| bad(format!("cannot be read: {error}")))? {
        length if length as u64 > BYTES_MAX => {
            Err(bad(format!("is longer than {BYTES_MAX} bytes")))
        }
        _ => Ok(text),
    }
}

/// What the file says as words, without the options that are typed already.
fn words_of(file: &Path, is_typed: impl Fn(&str) -> bool) -> Result<Vec<OsString>> {
    let text = read(file)?;
    let table = DeTable::parse(&text).map_err(|error| {
        Error::Usage(format!(
            "{}: {}",
            file.display(),
            error.to_string().trim_end()
        ))
    })?;
    let command = boost_command();
    let mut words = Vec::new();
    for (name, value) in table.get_ref() {
        let line = text[..name.span().start].matches('\n').count() + 1;
        let said = option_words(&command, name.get_ref(), value)
            .map_err(|why| Error::Usage(format!("{}:{line}: {why}", file.display())))?;
        if !is_typed(name.get_ref()) {
            words.extend(said.into_iter().map(OsString::from));
        }
    }
    Ok(words)
}

/// One option as words; else what is wrong with it.
fn option_words(
    command: &Command,
    name: &str,
    value: &Spanned<DeValue<'_>>,
) -> std::result::Result<Vec<String>, String> {
    let Some(option) = option(command, name) else {
        let known: Vec<&str> = options(command).filter_map(Arg::get_long).collect();
        return Err(format!(
            "there is no option {name:?}; there are: {}",
            known.join(", ")
        ));
    };
    let one = |value: &DeValue<'_>| match value {
        DeValue::String(text) => Ok(format!("--{name}={text}")),
        DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix())
            .map(|number| format!("--{name}={number}"))
            .map_err(|_| format!("{name} takes no number below 0 or above {}", u64::MAX)),
        _ => Err(format!("{name} takes text or a whole number")),
    };
    match (option.get_action(), value.get_ref()) {
        (ArgAction::SetTrue, DeValue::Boolean(true)) => Ok(vec![format!("--{name}")]),
        (ArgAction::SetTrue, DeValue::Boolean(false)) => Ok(Vec::new()),
        (ArgAction::SetTrue, _) => Err(format!("{name} takes true or false")),
        (ArgAction::Append, DeValue::Array(values)) => {
            values.iter().map(|value| one(value.get_ref())).collect()
        }
        (_, value) => Ok(vec![one(value)?]),
    }
}

/// What clap makes of a file's words.
fn parsed(file: Option<&Path>) -> Result<ArgMatches> {
    let words = file.map_or_else(|| Ok(Vec::new()), |file| words_of(file, |_| false))?;
    let words = [vec![OsString::from("erb boost")], words].concat();
    let mut command = boost_command().no_binary_name(false);
    if file.is_none() {
        // Without a file nothing has to be there.
        command = command.mut_args(|it| it.required(false));
    }
    command.try_get_matches_from(words).map_err(|error| {
        let text = error.render().to_string();
        let why = text.lines().next().unwrap_or_default();
        let why = why.strip_prefix("error: ").unwrap_or(why);
        let missing = options(&boost_command())
            .filter_map(Arg::get_long)
            .filter(|name| text.contains(&format!("\n  --{name} ")))
            .map(|name| format!(" {name}"))
            .collect::<String>();
        let file = file.map_or_else(String::new, |file| format!("{}: ", file.display()));
        Error::Usage(format!("{file}{why}{missing}"))
    })
}

fn check(file: &Path) -> Result<ExitCode> {
    let found = parsed(Some(file))?;
    let args =
        BoostArgs::from_arg_matches(&found).map_err(|error| Error::Usage(error.to_string()))?;
    let config = boost::config(&args)?;
    config
        .metrics
        .as_ref()
        .map_or(Ok(()), MetricsConfig::check)?;
    let words = words_of(file, |_| false)?;
    let words: Vec<String> = words
        .iter()
        .map(|word| quoted(&word.to_string_lossy()))
        .collect();
    say(&format!("erb boost {}\n", words.join(" ")));
    Ok(ExitCode::SUCCESS)
}

/// As a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@%+[]".contains(c);
    if word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn show(file: Option<&Path>) -> Result<ExitCode> {
    let found = parsed(file)?;
    let command = boost_command();
    let mut text = String::new();
    for option in options(&command) {
        let name = option.get_long().unwrap_or_default();
        let help = option
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        text += &format!(
            "\n# {}\n{}\n",
            help.replace('\n', " "),
            line(&found, option, name)
        );
    }
    say(text.trim_start());
    Ok(ExitCode::SUCCESS)
}

/// An option as a line of a file; behind `#` if it is as it would be without the line.
fn line(found: &ArgMatches, option: &Arg, name: &str) -> String {
    let id = option.get_id().as_str();
    if matches!(option.get_action(), ArgAction::SetTrue) {
        let mark = if found.get_flag(id) { "" } else { "# " };
        return format!("{mark}{name} = {}", found.get_flag(id));
    }
    let text =
        |value: &OsStr| toml::Value::String(value.to_string_lossy().into_owned()).to_string();
    let values: Vec<String> = found.get_raw(id).into_iter().flatten().map(text).collect();
    let is_given = found.value_source(id) == Some(ValueSource::CommandLine);
    let mark = if is_given { "" } else { "# " };
    match (option.get_action(), values.as_slice()) {
        (_, []) => format!("# {name} ="),
        (ArgAction::Append, values) => format!("{mark}{name} = [{}]", values.join(", ")),
        (_, values) => format!("{mark}{name} = {}", values.join("")),
    }
}

#[cfg(test)]
mod tests;
