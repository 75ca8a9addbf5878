// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which boost is meant, and which process has the lock of a directory.

use super::*;

#[test]
fn the_lock_is_held_once() {
    let path = std::env::temp_dir().join(format!("erb-lock-test-{}", std::process::id()));
    let run_dir = RunDir::new(&path);
    assert!(!run_dir.is_locked());
    let held = run_dir.lock().unwrap();
    assert!(run_dir.is_locked());
    assert!(matches!(run_dir.lock(), Err(Error::AlreadyBoosted(_))));
    drop(held);
    assert!(!run_dir.is_locked());
    run_dir.remove(false).unwrap();
    assert!(!path.exists());
}

#[test]
fn the_boost_of_the_own_namespace_is_meant() {
    let root = std::env::temp_dir().join(format!("erb-meant-test-{}", std::process::id()));
    let make = |name: &str| {
        fs::create_dir_all(root.join(name)).unwrap();
        fs::write(root.join(name).join("lock"), "").unwrap();
    };
    let meant = |netns| {
        let found = RunDir::meant_in(&root, netns).map_err(|error| error.to_string());
        found.map(|(run_dir, others)| {
            let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
            let others: Vec<String> = others.iter().map(|path| name(path)).collect();
            (name(run_dir.path()), others)
        })
    };
    assert!(matches!(
        RunDir::meant_in(&root, 7),
        Err(Error::NotBoosted(_))
    ));
    make("eth0-5");
    assert_eq!(meant(5), Ok(("eth0-5".to_owned(), vec![])));
    assert_eq!(meant(7), Ok(("eth0-5".to_owned(), vec![])), "the only one");
    make("eth0-7");
    make("lab/one");
    let others = vec!["eth0-5".to_owned(), "one".to_owned()];
    assert_eq!(meant(7), Ok(("eth0-7".to_owned(), others)));
    let several = meant(9).unwrap_err();
    assert!(
        several.contains("3 boosts in other network namespaces"),
        "{several}"
    );
    make("eth1-7");
    let several = meant(7).unwrap_err();
    assert!(
        several.contains("2 boosts in this network namespace"),
        "{several}"
    );
    assert!(
        several.contains("eth1-7") && !several.contains("eth0-5"),
        "{several}"
    );
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn nothing_boosted() {
    let run_dir = RunDir::new(Path::new("/nonexistent/erb"));
    assert!(matches!(run_dir.notes(), Err(Error::NotBoosted(_))));
    assert!(!run_dir.has_pins());
}

#[test]
fn a_boost_that_may_not_be_looked_into_is_not_taken_for_none() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let root = tempfile::tempdir().expect("a folder");
    let boost = root.path().join("eth0-5");
    fs::create_dir(&boost).expect("a folder");
    assert!(matches!(
        RunDir::meant_in(root.path(), 5),
        Err(Error::NotBoosted(_))
    ));
    fs::write(boost.join("lock"), "").expect("a file");
    fs::set_permissions(&boost, fs::Permissions::from_mode(0o700)).expect("a mode");
    chown(&boost, Some(65_533), None).expect("an owner");
    let path = root.path().to_path_buf();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
    // A thread without the right to pass over modes is as one of another user.
    let found = std::thread::spawn(move || {
        for lost in [
            caps::Capability::CAP_DAC_OVERRIDE,
            caps::Capability::CAP_DAC_READ_SEARCH,
        ] {
            caps::drop(None, caps::CapSet::Effective, lost).expect("a capability less");
        }
        RunDir::meant_in(&path, 5).map(|(run_dir, _)| run_dir.path)
    });
    match found.join().expect("an answer") {
        Err(Error::Privilege(said)) => assert!(
            said.contains("eth0-5") && said.contains("run as root"),
            "{said}"
        ),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_emptied_directory_is_found_by_its_mount() {
    let root = tempfile::tempdir().expect("a folder");
    let run_dir = RunDir::new(&root.path().join("eth0-5"));
    fs::create_dir_all(run_dir.pins()).expect("a folder");
    let found = || RunDir::meant_in(root.path(), 5).map(|(found, _)| found.path);
    assert!(
        matches!(found(), Err(Error::NotBoosted(_))),
        "any folder may have that name"
    );
    assert!(run_dir.mount_pins().expect("a bpffs"));
    assert_eq!(found().expect("a boost"), run_dir.path());
    run_dir.remove(true).expect("its end");
}

#[test]
fn a_daemon_whose_directory_was_emptied_is_named() {
    let root = tempfile::tempdir().expect("a folder");
    let run_dir = RunDir::new(&root.path().join("eth0-5"));
    assert_eq!(run_dir.cut_off(), None, "there is none");
    let lock = run_dir.lock().expect("a lock");
    let own = Some(std::process::id());
    assert_eq!(run_dir.cut_off(), own, "its socket is gone");
    fs::remove_file(run_dir.path().join("lock")).expect("its end");
    let told = run_dir
        .check_not_cut_off()
        .expect_err("a refusal")
        .to_string();
    assert!(
        told.contains(&format!("kill {}", std::process::id())),
        "{told}"
    );
    let listener = std::os::unix::net::UnixListener::bind(run_dir.socket()).expect("a socket");
    assert_eq!(run_dir.cut_off(), None, "it can be asked");
    drop((listener, lock));
    assert_eq!(run_dir.cut_off(), None, "it has ended");
}
