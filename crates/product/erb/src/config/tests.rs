// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a file with options may say, and what is said of one that may not.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use clap::Parser;
use tempfile::NamedTempFile;

use super::*;
use crate::args::Command as Typed;

fn written(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn words(typed: &[&str]) -> Result<Vec<String>> {
    let words = typed.iter().map(OsString::from).collect();
    let words = expanded(words)?;
    Ok(words
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect())
}

/// Of `erb boost --config FILE` and these words.
fn boosted(text: &str, typed: &[&str]) -> BoostArgs {
    let file = written(text);
    let name = file.path().to_str().unwrap();
    let words = words(&[&["erb", "boost", "--config", name], typed].concat()).unwrap();
    match Cli::try_parse_from(words).unwrap().command {
        Typed::Boost(args) => args,
        _ => unreachable!("it is boost"),
    }
}

fn why_not(text: &str) -> String {
    let file = written(text);
    let error = parsed(Some(file.path())).unwrap_err().to_string();
    error.replace(&file.path().display().to_string(), "FILE")
}

const GOOD: &str = r#"
dev = ["eth0", "lo"]
redis = "127.0.0.1:6379"
cache-size = "64M"
connections = 4096
metrics = "127.0.0.1:9279"
"#;

#[test]
fn a_file_says_what_could_be_typed() {
    let args = boosted(GOOD, &[]);
    assert_eq!(args.dev, ["eth0", "lo"]);
    assert_eq!(
        (args.cache_size.as_str(), args.connections),
        ("64M", Some(4096))
    );
    assert_eq!(args.watched.metrics.unwrap().port(), 9279);
}

#[test]
fn numbers_of_any_base_are_what_they_are_in_toml() {
    for (text, value) in [
        ("4096", 4096),
        ("0x100", 256),
        ("0o1000", 512),
        ("0b10000000000", 1024),
        ("4_096", 4096),
    ] {
        let args = boosted(
            &format!("dev = \"e\"\nredis = \"h:1\"\nconnections = {text}\n"),
            &[],
        );
        assert_eq!(args.connections, Some(value), "{text}");
    }
    let said = why_not("dev = \"e\"\nredis = \"h:1\"\nconnections = -1\n");
    assert!(
        said.contains("FILE:3: connections takes no number below 0"),
        "{said}"
    );
}

#[test]
fn what_is_typed_wins_as_a_whole() {
    let args = boosted(GOOD, &["--dev", "eth1", "--cache-size=1G"]);
    assert_eq!(
        (args.dev, args.cache_size.as_str()),
        (vec!["eth1".to_owned()], "1G")
    );
    assert_eq!(args.connections, Some(4096), "and nothing else is lost");
}

#[test]
fn other_commands_and_no_file_stay_as_they_are() {
    for typed in [
        &["erb"][..],
        &["erb", "status"],
        &["erb", "detach", "--config", "/nothing"],
        &["erb", "boost", "--dev", "eth0"],
        &["erb", "boost", "--config"],
    ] {
        assert_eq!(words(typed).unwrap(), typed);
    }
}

#[test]
fn a_file_that_is_wrong_is_told_with_its_line() {
    for (text, why) in [
        (
            "dev = \"eth0\"\ncache = \"1M\"\n",
            "FILE:2: there is no option \"cache\"; there are: dev, redis,",
        ),
        (
            "\n\nforeground = true\n",
            "FILE:3: there is no option \"foreground\"",
        ),
        (
            "programs = \"/x\"\n",
            "FILE:1: there is no option \"programs\"",
        ),
        (
            "config = \"other\"\n",
            "FILE:1: there is no option \"config\"",
        ),
        (
            "redis = true\n",
            "FILE:1: redis takes text or a whole number",
        ),
        (
            "redis = [\"a\", \"b\"]\n",
            "FILE:1: redis takes text or a whole number",
        ),
        ("dev = [1.5]\n", "FILE:1: dev takes text or a whole number"),
        (
            "[dev]\nname = 1\n",
            "FILE:1: dev takes text or a whole number",
        ),
        ("dev = \"eth0\"\ndev = \"eth1\"\n", "duplicate key"),
        ("dev = eth0\n", "line 1, column 7"),
        (
            "dev = \"eth0\"\n",
            "required arguments were not provided: redis",
        ),
        (
            "dev = \"e\"\nredis = \"h:1\"\nport = 70000\n",
            "invalid value '70000' for '--port",
        ),
        (
            "dev = \"e\"\nredis = \"h:1\"\nmode = \"write\"\n",
            "invalid value 'write' for '--mode",
        ),
    ] {
        let said = why_not(text);
        assert!(said.contains(why), "{why:?} is not in {said:?}");
    }
}

#[test]
fn files_that_others_may_write_or_that_are_none_are_refused() {
    let file = written(GOOD);
    for (mode, good) in [(0o600, true), (0o644, true), (0o664, false), (0o646, false)] {
        std::fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
        let why = parsed(Some(file.path()));
        assert_eq!(why.is_ok(), good, "{mode:o}");
    }
    std::os::unix::fs::chown(file.path(), Some(65_534), None).expect("tests run as root");
    let why = parsed(Some(file.path())).unwrap_err().to_string();
    assert!(why.contains("belongs to user 65534"), "{why}");
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let why = parsed(Some(&pipe)).unwrap_err().to_string();
    assert!(why.ends_with("is no file"), "{why}");
    let none = parsed(Some(Path::new("/nothing"))).unwrap_err().to_string();
    assert!(none.starts_with("/nothing: cannot be read"), "{none}");
    assert!(parsed(Some(&std::env::temp_dir())).is_err());
    let long = written(&"#".repeat(100_000));
    assert!(
        parsed(Some(long.path()))
            .unwrap_err()
            .to_string()
            .contains("longer")
    );
}

#[test]
fn what_is_shown_is_a_file_that_says_the_same() {
    let file = written(GOOD);
    let found = parsed(Some(file.path())).unwrap();
    let command = boost_command();
    let shown: String = options(&command)
        .map(|it| line(&found, it, it.get_long().unwrap()) + "\n")
        .collect();
    assert!(shown.contains("dev = [\"eth0\", \"lo\"]\n"), "{shown}");
    assert!(shown.contains("# mode = \"read\"\n"), "{shown}");
    assert!(shown.contains("# tier = \"auto\"\n"), "{shown}");
    let again = written(&shown);
    let mut first = words_of(file.path(), |_| false).unwrap();
    let mut second = words_of(again.path(), |_| false).unwrap();
    first.sort();
    second.sort();
    assert_eq!(first, second);
    // With every mark taken away it is one too.
    let all: String = shown
        .lines()
        .filter(|line| !line.ends_with(" ="))
        .map(|line| line.trim_start_matches("# ").to_owned() + "\n")
        .collect();
    assert!(parsed(Some(written(&all).path())).is_ok(), "{all}");
}

#[test]
fn words_are_quoted_as_a_shell_takes_them() {
    assert_eq!(quoted("--dev=eth0"), "--dev=eth0");
    assert_eq!(quoted("--redis-user=a b'c"), r"'--redis-user=a b'\''c'");
}

/// An option that is added later can be in a file by itself.
#[test]
fn every_option_that_is_shown_can_be_in_a_file() {
    let command = boost_command();
    let names: Vec<&str> = options(&command).filter_map(Arg::get_long).collect();
    for name in [
        "dev",
        "redis",
        "redis-password-file",
        "tier",
        "metrics",
        "run-dir",
        "log",
    ] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
}

#[test]
fn what_a_boost_would_refuse_is_refused() {
    let at = |address: &str| {
        let text = format!("dev = [\"d\"]\nredis = \"127.0.0.1:1\"\nmetrics = \"{address}\"\n");
        let file = written(&text);
        check(file.path()).map_err(|error| error.to_string())
    };
    assert!(at("127.0.0.1:9279").is_ok());
    let why = at("0.0.0.0:9279").expect_err("others can reach it");
    assert!(why.contains("--metrics-token-file"), "{why}");
}
