// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics over HTTP and `erb top`: they say what the status says, outlive a replacement of the daemon, and are not
//! to be had by those who may not.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;

use erb_e2e::calls::{get, set};
use erb_e2e::lab::{STALL, STATE_WAIT, TestLab, wait};
use erb_lab::End;

/// Objects of another build.
const OTHER: &str = env!("ERB_OTHER_PROGRAMS");
/// Exit codes of `erb --help`.
const USAGE: i32 = 2;
const ADDRESS: i32 = 19;
const SECRETS_FILE: i32 = 29;

const AT: &str = "127.0.0.1:9279";
const TOKEN: &str = "Xyzzy-4711-Xyzzy-4711";

fn lab(name: &str) -> TestLab {
    let mut lab = TestLab::up(name, &["--direct"]);
    lab.use_run_dir(format!("/run/erb/e2e-{name}"));
    lab
}

/// What a reader at one end is answered, with these further lines of the head.
fn read(lab: &TestLab, end: End, at: SocketAddr, lines: &str) -> Result<String, String> {
    let request =
        format!("GET /metrics HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n{lines}\r\n");
    lab.inside(end, || {
        let mut stream = TcpStream::connect_timeout(&at, STALL)?;
        stream.set_read_timeout(Some(STALL))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    })
    .map_err(|error: std::io::Error| error.to_string())
}

fn metrics(lab: &TestLab) -> Result<String, String> {
    let answer = read(lab, End::Server, AT.parse().expect("an address"), "")?;
    if answer.starts_with("HTTP/1.1 200 ") {
        Ok(answer)
    } else {
        Err(answer)
    }
}

/// The value of this line.
#[track_caller]
fn value(text: &str, name: &str) -> f64 {
    let found = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let found = found.unwrap_or_else(|| panic!("{name} is not in {text}"));
    found.parse().unwrap_or_else(|_| panic!("{name} {found}"))
}

/// `erb top` has the word in its frame, and says without a terminal what is missing.
fn top_shows(lab: &TestLab, word: &str) {
    let top = lab.erb(&["top", "--batch", "--count", "1", "--every", "250ms"]);
    let shown = String::from_utf8_lossy(&top.stdout);
    assert!(top.status.success() && shown.contains(word), "{top:?}");
    let no_terminal = lab.erb(&["top"]);
    assert_eq!(no_terminal.status.code(), Some(USAGE), "{no_terminal:?}");
}

/// `erb report` has status, findings and log, and no addresses of this lab.
fn report_tells(lab: &TestLab) {
    let output = lab.erb(&["report"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["boost"]["status"]["serving"], true, "{text}");
    assert_eq!(
        report["boost"]["status"]["redis"]["address"], "address-1:6379",
        "{text}"
    );
    for list in ["doctor", "log"] {
        let lines = report["boost"][list].as_array();
        assert!(
            lines.is_some_and(|lines| !lines.is_empty()),
            "{list}: {text}"
        );
    }
    assert!(!text.contains("10.77.0."), "{text}");
}

#[test]
fn metrics_say_what_the_status_says_and_outlive_a_replacement() {
    let lab = lab("metrics");
    let words = ["--dev", "s0", "--metrics", AT];
    let output = lab.boost(&words);
    assert!(output.status.success(), "{output:?}");
    lab.wait_admitting();
    lab.never_aside();
    assert_eq!(
        lab.status().metrics_at.as_deref(),
        Some("http://127.0.0.1:9279/metrics")
    );

    let mut client = lab.client();
    set(&mut client, "key", "value");
    lab.heat(&mut client, "key");
    let before = metrics(&lab).expect("metrics");
    for name in [
        "erb_serving",
        "erb_redis_feed_up",
        "erb_daemon_state{state=\"running\"}",
    ] {
        assert!(
            (value(&before, name) - 1.0).abs() < f64::EPSILON,
            "{name}: {before}"
        );
    }
    let hits = |text: &str| value(text, "erb_cache_hits_total");
    wait(STATE_WAIT, || {
        for _ in 0..100 {
            get(&mut client, "key");
        }
        // Some may go up, where the lease comes late.
        let moved = hits(&metrics(&lab)?) - hits(&before);
        (moved >= 100.0)
            .then_some(())
            .ok_or_else(|| format!("{moved} hits"))
    });
    let (text, status) = (metrics(&lab).expect("metrics"), lab.status());
    assert!(hits(&text) <= status.cache.hits as f64, "{text}");
    let fast = value(
        &text,
        "erb_outcomes_total{outcome=\"FAST_GET\",kind=\"answered\"}",
    );
    assert!(fast >= 100.0, "{text}");

    top_shows(&lab, "FAST_GET");
    report_tells(&lab);

    let replaced = lab.boost(&[&words[..], &["--programs", OTHER]].concat());
    assert!(replaced.status.success(), "{replaced:?}");
    lab.wait_admitting();
    let build = format!("build=\"{}\"", lab.status().programs.build);
    wait(STATE_WAIT, || {
        let text = metrics(&lab)?;
        let is_new = text.contains(&build);
        is_new
            .then_some(())
            .ok_or_else(|| format!("no {build} in {text}"))
    });
    get(&mut client, "key");
    drop(client);
    let detached = lab.erb(&["detach", "--force"]);
    assert!(detached.status.success(), "{detached:?}");
    wait(STATE_WAIT, || {
        metrics(&lab).map_or(Ok(()), |text| Err(format!("still served: {text}")))
    });
}

#[test]
fn metrics_for_other_machines_need_the_token() {
    let lab = lab("metrics-token");
    let file = std::env::temp_dir().join("erb-e2e-metrics-token");
    let name = file.display().to_string();
    let put = |token: &str, mode: u32| {
        fs::write(&file, format!("{token}\n")).expect("token file");
        fs::set_permissions(&file, Permissions::from_mode(mode)).expect("its mode");
    };
    let at = SocketAddr::new(lab.address().ip(), 9279);
    let everywhere = ["--dev", "s0", "--metrics", "0.0.0.0:9279"];
    let with_file = [&everywhere[..], &["--metrics-token-file", &name]].concat();
    let refused = |words: &[&str], code: i32, word: &str| {
        let output = lab.boost(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(
            said.contains(word) && !said.contains("Xyzzy"),
            "{word:?}: {said:?}"
        );
        assert!(!lab.run_dir().join("bpf").exists(), "pins are left");
    };
    refused(&everywhere, USAGE, "--metrics-token-file");
    refused(&with_file, SECRETS_FILE, "cannot be read");
    put("Xyzzy", 0o600);
    refused(&with_file, SECRETS_FILE, "16");
    put(TOKEN, 0o644);
    refused(&with_file, SECRETS_FILE, "chmod 600");
    put(TOKEN, 0o600);
    let other = lab
        .inside(End::Server, || TcpListener::bind("0.0.0.0:9279"))
        .expect("listen");
    refused(&with_file, ADDRESS, "another process");
    drop(other);

    let output = lab.boost(&with_file);
    assert!(output.status.success(), "{output:?}");
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    let none = read(&lab, End::Client, at, "").expect("an answer");
    assert!(
        none.starts_with("HTTP/1.1 401 ") && !none.contains("erb_"),
        "{none}"
    );
    let good = read(&lab, End::Client, at, &bearer).expect("an answer");
    assert!(good.contains("\nerb_serving "), "{good}");
    fs::remove_file(&file).expect("token file");
}
