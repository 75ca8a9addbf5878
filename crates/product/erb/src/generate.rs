// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb completions` and `erb man`: what shells and man(1) read, from the arguments as they are declared.

use std::fs;
use std::io::Write;
use std::process::ExitCode;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use erb_daemon::{Error, Result};

use crate::args::Cli;
use crate::watch_args::ManArgs;

/// Prints the completions for a shell.
pub fn completions(shell: Shell) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "erb", &mut text);
    let mut output = std::io::stdout();
    output
        .write_all(&text)
        .and_then(|()| output.flush())
        .map_err(Error::io("could not write the completions"))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for `erb` and one for each of its commands, named as man(1) looks for them.
pub fn man(args: &ManArgs) -> Result<ExitCode> {
    let what = format!("could not write man pages to {}", args.folder.display());
    fs::create_dir_all(&args.folder).map_err(Error::io(&what))?;
    for (name, page) in pages(&Cli::command()).map_err(Error::io(&what))? {
        fs::write(args.folder.join(name), page).map_err(Error::io(&what))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// File names and pages of a command and all that it has.
fn pages(root: &Command) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    // With its globals in each command, and names such as erb-node-start.
    let mut root = root.clone().disable_help_subcommand(true);
    root.build();
    let (mut pages, mut left) = (Vec::new(), vec![root]);
    while let Some(command) = left.pop() {
        let name = command.get_display_name().unwrap_or(command.get_name());
        let mut page = Vec::new();
        let file = format!("{name}.1");
        left.extend(
            command
                .get_subcommands()
                .filter(|it| !it.is_hide_set())
                .cloned(),
        );
        clap_mangen::Man::new(command).render(&mut page)?;
        pages.push((file, page));
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_is_shown_has_a_page() {
        let pages = pages(&Cli::command()).unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in [
            "erb.1",
            "erb-boost.1",
            "erb-top.1",
            "erb-node-start.1",
            "erb-kv-put.1",
        ] {
            assert!(names.contains(&name), "{name} is not among {names:?}");
        }
        for (name, page) in &pages {
            let text = String::from_utf8_lossy(page);
            assert!(
                text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"),
                "{name}"
            );
            assert!(!name.contains("guard"), "{name} is nobody's to type");
        }
        let (_, boost) = pages
            .iter()
            .find(|(name, _)| name == "erb-boost.1")
            .unwrap();
        assert!(String::from_utf8_lossy(boost).contains("\\-\\-cache\\-size"));
    }

    #[test]
    fn every_shell_completes_every_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "erb", &mut text);
            let text = String::from_utf8_lossy(&text);
            for word in ["boost", "detach", "top", "node"] {
                assert!(text.contains(word), "{shell}: {word}");
            }
        }
    }
}
