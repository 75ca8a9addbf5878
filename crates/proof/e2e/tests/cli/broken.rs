// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What breaks from outside: a Redis that is none, places that cannot be written, devices that go,
//! daemons that died. Each is told with what to do next, and there is always a way on.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use crate::place::{Place, assert_refused, wait_for};

const REDIS: &str = "127.0.0.1:6379";

#[test]
fn what_answers_otherwise_than_redis_is_told() {
    let place = Place::new();
    for (reply, words) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            ["did not answer", "is this a Redis?", "--redis"],
        ),
        (b"+a\r\n+b\r\n+c\r\n", ["version", "Redis?", "--redis"]),
    ] {
        let redis = place.fake_redis(reply);
        let output = place.erb(&["boost", "--dev", &place.device(), "--redis", &redis]);
        assert_refused(&output, 7, &words);
    }
    place.assert_untouched();
}

#[test]
fn commands_that_redis_lacks_are_named() {
    let mut place = Place::new();
    let renamed = |name: &'static str| ["--rename-command", name, ""];
    place.start_redis_with(&[renamed("CONFIG"), renamed("GETRANGE"), renamed("TOUCH")].concat());
    let words = ["CONFIG GET, GETRANGE, TOUCH", "rename-command"];
    assert_refused(&place.boost(), 7, &words);
    for name in ["HELLO", "INFO"] {
        place.stop_redis();
        place.start_redis_with(&renamed(name));
        assert_refused(&place.boost(), 7, &[name, "rename-command"]);
    }
    place.assert_untouched();
}

#[test]
fn places_that_cannot_be_written_are_named_and_another_is_asked_for() {
    let place = Place::with_redis();
    let device = place.device();
    let words = [
        "boost",
        "--dev",
        &device,
        "--redis",
        REDIS,
        "--cache-size",
        "4M",
    ];
    let refused = |run_dir: &Path, word: &str| {
        let output = place.erb_at(&place.server(), run_dir, &[], &words);
        assert_refused(&output, 1, &[word, "--run-dir"]);
        assert!(!run_dir.exists(), "{run_dir:?} is left");
    };
    fs::write(place.folder.join("file"), "").unwrap();
    refused(&place.folder.join("file/run"), "Not a directory");
    let small = place.folder.join("small");
    fs::create_dir(&small).unwrap();
    mount(&["-t", "tmpfs", "-o", "size=4k", "tmpfs"], &small);
    fs::write(small.join("fills"), [0; 4096]).unwrap();
    refused(&small.join("run"), "No space left");
    mount(&["-o", "remount,ro"], &small);
    refused(&small.join("run"), "Read-only");
    assert!(
        Command::new("umount")
            .arg(&small)
            .status()
            .unwrap()
            .success()
    );
    place.assert_untouched();
}

fn mount(options: &[&str], folder: &Path) {
    let mut command = Command::new("mount");
    let status = command.args(options).arg(folder).status().unwrap();
    assert!(status.success(), "mount {options:?}");
}

#[test]
fn who_may_not_look_is_not_told_that_nothing_is_boosted() {
    let place = Place::new();
    let run_dir = place.run_dir();
    fs::create_dir(&run_dir).unwrap();
    fs::set_permissions(&run_dir, Permissions::from_mode(0o700)).unwrap();
    chown(&run_dir, Some(65534), None).unwrap();
    // Root without this is as any other user.
    let by = [
        "setpriv",
        "--bounding-set",
        "-dac_override,-dac_read_search",
    ];
    for command in ["status", "detach"] {
        let output = place.erb_by(&by, &[command]);
        assert_refused(&output, 3, &[&run_dir.display().to_string(), "run as root"]);
    }
    fs::remove_dir(&run_dir).unwrap();
}

#[test]
fn notes_that_mean_nothing_are_told_and_can_be_detached() {
    let place = Place::with_redis();
    place.boosted();
    place.crash();
    fs::write(place.run_dir().join("notes.json"), "{\"x").unwrap();
    for output in [place.erb(&["status"]), place.boost(), place.erb(&["trace"])] {
        assert_refused(&output, 2, &["notes.json", "another version", "detach"]);
    }
    let output = place.erb(&["detach"]);
    assert!(output.status.success(), "{output:?}");
    place.assert_untouched();
}

#[test]
fn what_a_dead_daemon_left_on_devices_that_are_gone_bars_no_way() {
    let place = Place::with_redis();
    let device = place.device();
    place.boosted();
    place.crash();
    let elsewhere = || place.erb_at(&place.client(), &place.run_dir(), &[], &["detach"]);
    assert_refused(&elsewhere(), 2, &["namespace", "ip netns exec"]);
    place.delete_device();
    wait_for("its end", || place.status()["devices"][0]["gone"] == true);
    assert_refused(&place.erb(&["trace"]), 12, &["nothing is boosted"]);
    // Another device of that name, as in a container that was started anew.
    place.add_device(&device);
    place.boosted();
    assert_eq!(place.status()["devices"][0]["gone"], false);
    place.crash();
    place.delete_device();
    // Whoever detaches, wherever: a namespace that is gone cannot be entered.
    let output = elsewhere();
    assert!(output.status.success(), "{output:?}");
    place.assert_untouched();
}

#[test]
fn a_device_that_went_while_others_stayed_is_told() {
    let place = Place::with_redis();
    let device = place.device();
    place.add_device("more0");
    let words = [
        "boost", "--dev", &device, "--dev", "more0", "--redis", REDIS,
    ];
    let output = place.erb(&[&words[..], &["--cache-size", "4M"]].concat());
    assert!(output.status.success(), "{output:?}");
    place.delete_device();
    wait_for("its end", || place.status()["devices"][0]["gone"] == true);
    assert_eq!(place.status()["devices"][1]["gone"], false);
    let output = place.erb(&["status"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("; gone: should it come back"), "{said}");
    let output = place.erb(&["detach"]);
    assert!(output.status.success(), "{output:?}");
    place.assert_untouched();
}

#[test]
fn a_folder_that_is_no_boost_is_left_alone() {
    let place = Place::new();
    let folder = place.folder.join("mine");
    fs::create_dir(&folder).unwrap();
    let refused = || {
        for command in ["detach", "status"] {
            let output = place.erb_at(&place.server(), &folder, &[], &[command]);
            assert_refused(&output, 12, &["nothing is boosted"]);
        }
    };
    refused();
    fs::create_dir(folder.join("bpf")).unwrap();
    let names = [
        "log",
        "lock",
        "notes.json",
        "notes.new",
        "boost.lock",
        "bpf/x",
    ];
    for name in names {
        fs::write(folder.join(name), name).unwrap();
    }
    refused();
    for name in names {
        assert_eq!(fs::read_to_string(folder.join(name)).unwrap(), name);
    }
    // A bpffs of somebody else's, as /sys/fs has one.
    let pins = folder.join("bpf");
    mount(&["-t", "bpf", "bpf"], &pins);
    fs::create_dir(pins.join("theirs")).unwrap();
    refused();
    assert!(pins.join("theirs").exists());
    let output = Command::new("umount").arg(&pins).status().unwrap();
    assert!(output.success());
}

#[test]
fn what_an_interrupted_boost_left_is_told_and_taken_away() {
    let place = Place::new();
    let run_dir = erb_daemon::RunDir::new(&place.run_dir());
    let killed_at: [fn(&erb_daemon::RunDir); 2] = [
        |run_dir| drop(run_dir.lock().unwrap()),
        |run_dir| {
            drop(run_dir.lock().unwrap());
            assert!(run_dir.mount_pins().unwrap());
        },
    ];
    for killed in killed_at {
        killed(&run_dir);
        let told = ["interrupted", "erb detach"];
        assert_refused(&place.erb(&["status"]), 12, &told);
        let output = place.erb(&["detach"]);
        assert!(output.status.success(), "{output:?}");
        place.assert_untouched();
    }
}
