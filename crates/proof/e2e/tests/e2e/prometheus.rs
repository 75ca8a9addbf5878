// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian's own Prometheus reads what is served and watches by the rules that are shipped.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use erb_e2e::lab::{STALL, STATE_WAIT, TestLab, wait};
use erb_e2e::process::{Owned, run};
use erb_lab::End;
use erb_lab::servers::{self, CANNOT_BE_HAD};
use erb_steady::skipped;

const ERB: &str = "127.0.0.1:9279";
const PROMETHEUS: &str = "127.0.0.1:9090";

/// Prometheus and promtool; nothing where Debian is out of reach.
fn programs() -> Option<[PathBuf; 2]> {
    match servers::prometheus() {
        Ok(programs) => Some(programs),
        Err(error) => {
            let error = format!("{error:#}");
            assert!(error.contains(CANNOT_BE_HAD), "{error}");
            skipped(error);
            None
        }
    }
}

fn shipped(name: &str) -> PathBuf {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../dist");
    dist.canonicalize().expect("dist").join(name)
}

#[test]
fn alerts_fire_as_their_tests_say() {
    let Some([_, promtool]) = programs() else {
        return;
    };
    let tests = shipped("erb-alerts-test.yml");
    let said = run(Command::new(promtool).args(["test", "rules"]).arg(tests));
    assert!(said.contains("SUCCESS"), "{said}");
}

/// What Prometheus answers to a query, as JSON.
fn query(lab: &TestLab, query: &str) -> Result<String, String> {
    let request = format!(
        "GET /api/v1/query?query={query} HTTP/1.1\r\nHost: {PROMETHEUS}\r\nConnection: close\r\n\r\n"
    );
    let to: SocketAddr = PROMETHEUS.parse().expect("an address");
    let answer = lab.inside(End::Server, || {
        let mut stream = TcpStream::connect_timeout(&to, STALL)?;
        stream.set_read_timeout(Some(STALL))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    });
    answer.map_err(|error: std::io::Error| error.to_string())
}

/// Waits until a query finds this value.
fn found(lab: &TestLab, asked: &str, value: &str) {
    let value = format!(",\"{value}\"]");
    wait(STATE_WAIT, || {
        let said = query(lab, asked)?;
        said.contains(&value).then_some(()).ok_or(said)
    });
}

#[test]
fn prometheus_reads_a_boost_and_an_alert_tells_of_its_end() {
    let Some([prometheus, _]) = programs() else {
        return;
    };
    let mut lab = TestLab::up("prometheus", &["--direct"]);
    lab.use_run_dir("/run/erb/e2e-prometheus");
    let lab = lab;
    let output = lab.boost(&["--dev", "s0", "--metrics", ERB]);
    assert!(output.status.success(), "{output:?}");
    lab.wait_admitting();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let config = folder.path().join("prometheus.yml");
    let rules = shipped("erb-alerts.yml");
    let text = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
         rule_files: [\"{}\"]\n\
         scrape_configs:\n  - job_name: erb\n    static_configs:\n      - targets: [\"{ERB}\"]\n",
        rules.display()
    );
    fs::write(&config, text).expect("a configuration");
    let program = prometheus.to_string_lossy().into_owned();
    let mut command = lab.lab().exec(End::Server, &program).expect("exec");
    command
        .arg(format!("--config.file={}", config.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            folder.path().join("data").display()
        ))
        .arg(format!("--web.listen-address={PROMETHEUS}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _prometheus = Owned::start(&mut command);
    found(&lab, "up", "1");
    found(&lab, "erb_serving", "1");
    // A counter, a sum over labels, a word, a rate.
    found(&lab, "erb_redis_feeds_made_total", "1");
    found(&lab, "sum(erb_connections)%3E%3Dbool%200", "1");
    found(&lab, "erb_device_info%7Bdevice%3D%22s0%22%7D", "1");
    found(&lab, "rate(erb_outcomes_total%5B1m%5D)%3E%3Dbool%200", "1");
    let output = lab.erb(&["detach", "--force"]);
    assert!(output.status.success(), "{output:?}");
    found(&lab, "up", "0");
    let pending = "ALERTS%7Balertname%3D%22ErbDaemonDead%22%7D";
    found(&lab, pending, "1");
}
