// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is asked for.

use super::*;

#[test]
fn words_are_kernels_or_checks() {
    assert_eq!(word("load"), Ok(Word::Check(Check::Load)));
    assert_eq!(word("6.12"), Ok(Word::Kernel(Wanted::Series((6, 12)))));
    assert_eq!(word("newest"), Ok(Word::Kernel(Wanted::Newest)));
    assert_eq!(word("debug"), Ok(Word::Kernel(Wanted::Debug)));
    let error = word("lode").unwrap_err();
    assert!(error.contains("lode") && error.contains("paths"), "{error}");
}

#[derive(clap::Parser, Debug)]
struct Command {
    #[command(flatten)]
    args: VmArgs,
}

fn args(words: &[&str]) -> Result<VmArgs, clap::Error> {
    let words = ["vm"].iter().chain(words);
    <Command as clap::Parser>::try_parse_from(words).map(|command| command.args)
}

#[test]
fn an_option_that_no_check_takes_is_refused() {
    for (words, option) in [
        (&["load", "--only=history"][..], "--only"),
        (&["paths", "--cycles=5"], "--cycles"),
        (&["--lying"], "--lying"),
        (&["kmod", "--seed=7"], "--seed"),
        (&["writes", "--boots=2"], "--boots"),
        (&["power", "--cuts=all"], "--cuts"),
    ] {
        let unfit = args(words).unwrap().fits().unwrap_err();
        assert_eq!(unfit.option, option);
    }
    let unfit = args(&["load", "--cycles=5"]).unwrap().fits().unwrap_err();
    let said = "--cycles is for kmod, sink alone, and wanted is load";
    assert_eq!(unfit.to_string(), said);
    for words in [
        &["load", "kmod", "--cycles=5", "--only=log"][..],
        &["--only=history", "--seconds=1000000"],
        &["power", "writes", "--lying", "--seed=7", "--boots=1"],
    ] {
        assert_eq!(args(words).unwrap().fits(), Ok(()));
    }
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for words in [
        &["kmod", "--only=log erb_cycles=0"][..],
        &["kmod", "--only=*"],
        &["load", "--seconds=18446744073709551615"],
        &["6.12", "--list-kernels"],
    ] {
        assert!(args(words).is_err(), "{words:?}");
    }
    assert!(can_be_told(Path::new("/srv/\u{e9}rb/target/vm")).is_ok());
    assert!(can_be_told(Path::new("/srv/my project/target/vm")).is_err());
}

#[test]
fn who_comes_second_waits_until_the_first_has_ended() {
    let path = std::env::temp_dir().join(format!("erb-vm-lock-{}", std::process::id()));
    let first = lock_file(&path, "it").unwrap();
    let second = std::thread::scope(|scope| {
        let second = scope.spawn(|| lock_file(&path, "it").map(|_| std::time::Instant::now()));
        std::thread::sleep(std::time::Duration::from_millis(200));
        let ended = std::time::Instant::now();
        drop(first);
        second.join().unwrap().unwrap() >= ended
    });
    assert!(second);
    fs::remove_file(path).unwrap();
}

#[test]
fn who_may_not_make_devices_is_told_before_anything_is_downloaded() {
    let paths = args(&["load", "paths"]).unwrap();
    assert_eq!(may(&paths, true), Ok(()));
    let said = may(&paths, false).unwrap_err().to_string();
    assert!(said.contains("`paths`") && said.contains("sudo"), "{said}");
    assert_eq!(may(&args(&["load", "kmod"]).unwrap(), false), Ok(()));
    assert_eq!(may(&args(&["paths", "--build"]).unwrap(), false), Ok(()));
}
