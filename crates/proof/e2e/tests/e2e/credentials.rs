// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Passwords and users of the daemon's own connection.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Output;

use erb_check::net::Conn;
use erb_e2e::calls::{call, expect};
use erb_e2e::lab::{STATE_WAIT, TestLab, erb_bin, wait};
use erb_e2e::status::brief;
use erb_lab::End;

/// Exit code of `erb --help`.
const NO_REDIS: i32 = 7;
/// A word that is found nowhere else.
const SECRET: &str = "Xyzzy-4711";

/// A lab that is not boosted, a connection that no password shuts out, and a place for a password.
struct Safe {
    lab: TestLab,
    admin: Conn,
    file: PathBuf,
}

impl Safe {
    fn new(name: &str) -> Self {
        let mut lab = TestLab::up(name, &["--direct"]);
        lab.use_run_dir(format!("/run/erb/e2e-{name}"));
        let admin = lab.unseen();
        let file = std::env::temp_dir().join(format!("erb-e2e-{name}"));
        Self { lab, admin, file }
    }

    fn put(&self, password: &str, mode: u32) {
        fs::write(&self.file, format!("{password}\n")).expect("password file");
        fs::set_permissions(&self.file, Permissions::from_mode(mode)).expect("its mode");
    }

    fn boost(&self, words: &[&str]) -> Output {
        self.lab.boost(&[&["--dev", "s0"], words].concat())
    }

    fn boost_by_file(&self, words: &[&str]) -> Output {
        let file = self.file.display().to_string();
        self.boost(&[&["--redis-password-file", &file], words].concat())
    }

    fn refused(&self, output: &Output, word: &str) -> String {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(NO_REDIS), "{said}");
        assert!(said.contains(word), "{word:?} is missing in {said:?}");
        assert!(!said.contains(SECRET), "{said:?}");
        assert!(!self.lab.run_dir().join("bpf").exists(), "pins are left");
        said
    }

    fn wait_for_feed(&self) {
        wait(STATE_WAIT, || {
            let status = self.lab.try_status()?;
            let up = status.redis.feed_up;
            up.then_some(())
                .ok_or_else(|| format!("no feed: {}", brief(&status)))
        });
    }

    fn wait_for_reason(&self, word: &str) {
        wait(STATE_WAIT, || {
            let s = self.lab.try_status()?;
            let told = s.not_serving.iter().any(|why| why.contains(word));
            (!s.serving && told && !s.redis.feed_up)
                .then_some(())
                .ok_or_else(|| format!("no refusal about {word:?}: {}", brief(&s)))
        });
    }

    fn detach(&self) {
        let output = self.lab.erb(&["detach", "--force"]);
        assert!(output.status.success(), "{output:?}");
    }

    /// The secret is in nothing that the daemon shows or leaves.
    fn assert_silent(&self) {
        let pid = self.lab.status().pid;
        let status = self.lab.erb(&["status", "--json"]).stdout;
        let mut shown = vec![("status", status)];
        for (name, path) in [
            ("ps", format!("/proc/{pid}/cmdline")),
            (
                "notes",
                self.lab.run_dir().join("notes.json").display().to_string(),
            ),
            ("log", self.lab.run_dir().join("log").display().to_string()),
        ] {
            shown.push((name, fs::read(path).expect("what is shown")));
        }
        for (name, bytes) in shown {
            assert!(!String::from_utf8_lossy(&bytes).contains(SECRET), "{name}");
        }
    }
}

impl Drop for Safe {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

#[test]
fn the_password_comes_from_a_file_or_the_environment_and_is_shown_nowhere() {
    let mut safe = Safe::new("password");
    expect(
        &mut safe.admin,
        &format!("CONFIG SET requirepass {SECRET}"),
        "+OK\r\n",
    );
    safe.refused(&safe.boost(&[]), "--redis-password-file");
    safe.refused(&safe.boost_by_file(&[]), "cannot be read");
    safe.put("wrong", 0o600);
    safe.refused(&safe.boost_by_file(&[]), "WRONGPASS");
    safe.put(SECRET, 0o644);
    safe.refused(&safe.boost_by_file(&[]), "chmod 600");
    safe.put(SECRET, 0o600);
    let folder = safe.file.with_extension("d");
    fs::create_dir_all(&folder).expect("a folder");
    std::os::unix::fs::chown(&folder, Some(65534), None).expect("another user's");
    fs::set_permissions(&folder, Permissions::from_mode(0o700)).expect("its alone");
    let open = std::mem::replace(&mut safe.file, folder.join("password"));
    safe.put(SECRET, 0o600);
    safe.refused(&safe.boost_by_file(&[]), "must belong to root");
    fs::remove_dir_all(&folder).expect("remove the folder");
    safe.file = open;
    let output = safe.boost_by_file(&[]);
    assert!(output.status.success(), "{output:?}");
    safe.wait_for_feed();
    safe.assert_silent();
    safe.detach();
    let mut command = safe.lab.lab().exec(End::Server, erb_bin()).expect("exec");
    let redis = safe.lab.address().to_string();
    command.args([
        "boost",
        "--dev",
        "s0",
        "--cache-size",
        "64M",
        "--redis",
        &redis,
    ]);
    command.arg("--run-dir").arg(safe.lab.run_dir());
    let output = command.env("ERB_REDIS_PASSWORD", SECRET).output();
    let output = output.expect("erb");
    assert!(output.status.success(), "{output:?}");
    safe.wait_for_feed();
    safe.assert_silent();
    safe.detach();
}

#[test]
fn a_user_with_just_the_rights_that_erb_asks_for_is_enough_and_less_is_told() {
    let mut safe = Safe::new("rights");
    safe.put(SECRET, 0o600);
    let as_erb = ["--redis-user", "erb"];
    safe.refused(&safe.boost_by_file(&as_erb), "WRONGPASS");
    expect(
        &mut safe.admin,
        &format!("ACL SETUSER erb on >{SECRET}"),
        "+OK\r\n",
    );
    let said = safe.refused(&safe.boost_by_file(&as_erb), "NOPERM for ping");
    let grant = said.split("ACL SETUSER").nth(1).expect("what to do").trim();
    let some_keys = grant.replace("~*", "~app:*");
    expect(
        &mut safe.admin,
        &format!("ACL SETUSER {some_keys}"),
        "+OK\r\n",
    );
    safe.refused(&safe.boost_by_file(&as_erb), "NOPERM for strlen");
    expect(&mut safe.admin, &format!("ACL SETUSER {grant}"), "+OK\r\n");
    let output = safe.boost_by_file(&as_erb);
    assert!(output.status.success(), "{output:?}");
    safe.wait_for_feed();
    let who = call(&mut safe.admin, "CLIENT LIST");
    let feed = who.lines().find(|line| line.contains("name=erb-feed"));
    assert!(feed.is_some_and(|line| line.contains("user=erb")), "{who}");
    for rule in ["info", "acl|list", "strlen", "memory|usage"] {
        expect(
            &mut safe.admin,
            &format!("ACL SETUSER erb -{rule}"),
            "+OK\r\n",
        );
        if ["strlen", "memory|usage"].contains(&rule) {
            // Nothing may be filled now; what the next connection tries shows it.
            call(&mut safe.admin, "CLIENT KILL USER erb");
        }
        safe.wait_for_reason("lacks rights");
        expect(
            &mut safe.admin,
            &format!("ACL SETUSER erb +{rule}"),
            "+OK\r\n",
        );
        safe.wait_for_feed();
    }
}

#[test]
fn a_password_that_is_changed_is_taken_from_the_file_without_a_new_boost() {
    let mut safe = Safe::new("rotation");
    expect(&mut safe.admin, "CONFIG SET requirepass first", "+OK\r\n");
    safe.put("first", 0o400);
    let output = safe.boost_by_file(&[]);
    assert!(output.status.success(), "{output:?}");
    safe.wait_for_feed();
    expect(
        &mut safe.admin,
        &format!("CONFIG SET requirepass {SECRET}"),
        "+OK\r\n",
    );
    call(&mut safe.admin, "CLIENT KILL TYPE normal SKIPME yes");
    safe.wait_for_reason("WRONGPASS");
    safe.put(SECRET, 0o666);
    safe.wait_for_reason("chmod 600");
    safe.put(SECRET, 0o600);
    safe.wait_for_feed();
    safe.assert_silent();
}
