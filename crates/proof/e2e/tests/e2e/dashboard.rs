// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dashboard in a real browser: it shows what happens, says when answers end and why, and runs
//! nothing of what it shows. Pictures of it are kept in the folder of the build.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use erb_e2e::browser::{Browser, Sight};
use erb_e2e::calls::{call, get, set};
use erb_e2e::lab::{STATE_WAIT, TestLab, wait};
use erb_e2e::process::signal;
use erb_e2e::turn::Turn;
use erb_lab::End;
use erb_report::{ConnLine, HotKey, HotKeys, Status, shown_key};
use erb_watch::Endpoint;
use erb_watch::details::Detail;
use nix::sys::signal::Signal;

const AT: &str = "127.0.0.1:9279";
const TOKEN: &str = "a-token-of-some-length";
/// Narrow as a telephone.
const NARROW: u32 = 360;
const PICTURES: [(&str, Sight); 3] = [
    ("light", sight("light", 1280)),
    ("dark", sight("dark", 1280)),
    ("narrow", sight("light", NARROW)),
];
/// A status that is fully filled.
const FILLED: &str = include_str!("../../../../product/report/tests/status.json");

const fn sight(scheme: &'static str, width: u32) -> Sight {
    Sight { scheme, width }
}

/// A number as the page writes it.
fn number(text: &str) -> f64 {
    let digits: String = text
        .chars()
        .filter(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    digits.parse().unwrap_or(0.0)
}

fn keep_pictures(browser: &mut Browser) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (name, sight) in PICTURES {
        browser.look(sight);
        browser.picture(&folder.join(format!("dashboard-{name}.png")));
    }
    let width = browser.value("document.documentElement.scrollWidth");
    assert!(
        width
            .as_u64()
            .is_some_and(|width| width <= u64::from(NARROW)),
        "the narrow page is {width} wide"
    );
    browser.look(PICTURES[0].1);
}

/// Left moves a chart's cursor, `p` pauses, and the cursor's place is written.
fn keys_work(browser: &mut Browser) {
    wait(STATE_WAIT, || {
        browser.value("document.querySelector('#charts figure > svg').focus()");
        browser.key("ArrowLeft");
        let said = browser.text("#charts .readout");
        said.contains("answered").then_some(()).ok_or(said)
    });
    for pressed in ["true", "false"] {
        browser.key("p");
        let found = browser.value("document.getElementById('pause').getAttribute('aria-pressed')");
        assert_eq!(found, pressed);
    }
}

/// Pictures have names, tables go with them, the state is a live region.
fn a_screen_reader_is_told(browser: &mut Browser) {
    let told = browser.told();
    let has = |role: &str, name: &str| {
        told.iter()
            .any(|(is, said)| is == role && said.contains(name))
    };
    for (role, name) in [
        ("image", "Packets' way"),
        ("image", "Reads, a second, over the last hour"),
        ("heading", "Reasons of refusal"),
        ("columnheader", "What it means"),
        ("button", "Pause"),
    ] {
        assert!(has(role, name), "{role} {name:?} is not in {told:?}");
    }
    assert!(told.iter().any(|(role, _)| role == "status"), "{told:?}");
}

/// Redis stands still, and a command that may change it is on its way: the gate is shut.
fn the_gates_closing_shows(lab: &TestLab, browser: &mut Browser) {
    let mut changer = lab.client();
    call(&mut changer, "PING");
    signal(lab.redis_pid(), Signal::SIGSTOP);
    changer
        .send(b"*4\r\n$6\r\nCONFIG\r\n$3\r\nSET\r\n$8\r\nhz-not-a\r\n$1\r\n1\r\n")
        .expect("send");
    let shut = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait(STATE_WAIT, || {
            let (said, gate) = (browser.text("#verdict"), browser.text("#way-gate-word"));
            (said.contains("not given") && gate == "closed")
                .then(|| browser.text("#reasons"))
                .filter(|why| !why.is_empty())
                .ok_or_else(|| format!("{said} {gate}"))
        })
    }));
    signal(lab.redis_pid(), Signal::SIGCONT);
    let why = shut.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    assert!(why.contains("configuration"), "{why}");
    wait(STATE_WAIT, || {
        let (said, gate) = (browser.text("#verdict"), browser.text("#way-gate-word"));
        (said.contains("are given") && gate == "open")
            .then_some(())
            .ok_or_else(|| format!("{said} {gate}"))
    });
}

#[test]
fn the_dashboard_shows_what_happens_and_why_not() {
    let mut lab = TestLab::up("dashboard", &["--direct"]);
    lab.use_run_dir("/run/erb/e2e-dashboard");
    let lab = lab;
    let output = lab.boost(&[
        "--dev",
        "s0",
        "--metrics",
        AT,
        "--dashboard",
        "--dashboard-details",
    ]);
    assert!(output.status.success(), "{output:?}");
    lab.wait_admitting();
    lab.never_aside();
    let exec = |program: &str| lab.lab().exec(End::Server, program).expect("exec");
    let mut browser = Browser::start(exec);
    let mut client = lab.client();
    set(&mut client, "key", "value");
    lab.heat(&mut client, "key");

    browser.look(PICTURES[0].1);
    browser.open(&format!("http://{AT}/"));
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                // The first after a miss is answered in TC, the second in XDP.
                for key in ["key", "key", &format!("missing-{number}")] {
                    get(&mut client, key);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let shown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            counts_move(&mut browser);
            a_reason_has_a_page(&mut browser);
            keys_work(&mut browser);
            a_screen_reader_is_told(&mut browser);
            times_and_processors_are_shown(&mut browser);
            keys_and_connections_are_shown(&mut browser);
            keep_pictures(&mut browser);
            the_gates_closing_shows(&lab, &mut browser);
        }));
        ends.store(true, Ordering::Relaxed);
        shown.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// A reason has a page of its own; what names none says so.
fn a_reason_has_a_page(browser: &mut Browser) {
    for (name, words) in [
        ("REFUSE_NEW", ["first command is Redis's", "Since the load"]),
        ("%", ["There is no such reason", "All reasons"]),
    ] {
        browser.value(&format!("location.hash = '#reason/{name}'"));
        wait(STATE_WAIT, || {
            let said = browser.text("#reason");
            let is_said = words.iter().all(|words| said.contains(words));
            is_said.then_some(()).ok_or(said)
        });
    }
    browser.value("location.hash = '#refused-title'");
    wait(STATE_WAIT, || {
        let hidden = browser.value("document.getElementById('reason').hidden");
        (hidden == true)
            .then_some(())
            .ok_or_else(|| hidden.to_string())
    });
}

/// Under load the rates are not 0, and what is counted since the load rises.
fn counts_move(browser: &mut Browser) {
    let hits = "#flows tbody tr:nth-child(7) td:last-child";
    wait(STATE_WAIT, || {
        let tile = browser.text("#tiles dd");
        let of_way = browser.text("#way [data-flow=hit_xdp] .count");
        (number(&tile) > 0.0 && number(&of_way) > 0.0)
            .then_some(())
            .ok_or_else(|| format!("{tile:?} {of_way:?}"))
    });
    let before = number(&browser.text(hits));
    wait(STATE_WAIT, || {
        let now = number(&browser.text(hits));
        (now > before && before > 0.0)
            .then_some(())
            .ok_or_else(|| format!("{before} {now}"))
    });
    let refused = browser.text("#refused tbody");
    assert!(
        refused.contains("REFUSE_NEW") && refused.contains("first command is Redis's"),
        "{refused}"
    );
}

/// Hits and what went up are timed, and some processor has met them.
fn times_and_processors_are_shown(browser: &mut Browser) {
    for (row, way) in ["hit", "up"].into_iter().enumerate() {
        let row = format!("#latency tbody tr:nth-child({})", row + 1);
        wait(STATE_WAIT, || {
            let half = browser.text(&format!("{row} td:nth-child(3)"));
            let is_timed = [" ns", " µs", " ms"]
                .iter()
                .any(|unit| half.ends_with(unit));
            (is_timed && browser.text(&format!("{row} th")) == way)
                .then_some(())
                .ok_or(half)
        });
    }
    wait(STATE_WAIT, || {
        let cells = browser.value("[...document.querySelectorAll('#processors tbody td')].map((it) => Number(it.textContent)).some((it) => it > 0)");
        (cells == true)
            .then_some(())
            .ok_or_else(|| cells.to_string())
    });
}

/// The hot key is found, and each connection has a page.
fn keys_and_connections_are_shown(browser: &mut Browser) {
    for part in ["keys-open", "connections-open"] {
        browser.value(&format!("document.getElementById('{part}').open = true"));
    }
    wait(STATE_WAIT, || {
        let said = browser.text("#keys tbody tr th");
        (said == "key").then_some(()).ok_or(said)
    });
    wait(STATE_WAIT, || {
        browser.value("document.querySelector('#each-connection a')?.click()");
        let said = browser.text("#conn");
        (said.contains("It may be answered from the cache") && said.contains("Unanswered"))
            .then_some(())
            .ok_or(said)
    });
    browser.value("location.hash = '#conn/10.0.0.250%3A1'");
    wait(STATE_WAIT, || {
        let said = browser.text("#conn-state");
        said.contains("not there").then_some(()).ok_or(said)
    });
    browser.value("location.hash = ''");
    wait(STATE_WAIT, || {
        let hidden = browser.value("document.getElementById('conn').hidden");
        (hidden == true)
            .then_some(())
            .ok_or_else(|| hidden.to_string())
    });
}

/// Keys and addresses of hostile clients.
fn hostile_details(detail: Detail) -> serde_json::Value {
    let html = "<img src=x onerror=\"window.ran=1\"><script>window.ran=1</script>&lt;";
    let keys = [html.as_bytes(), b"\x1b[2J\0\r\n", &[b'<'; 1 << 16]];
    let key = |key: &[u8]| HotKey {
        key: shown_key(key),
        count: 3,
        ..HotKey::default()
    };
    let line = ConnLine {
        client: html.to_owned(),
        state: html.to_owned(),
        ..ConnLine::default()
    };
    match detail {
        Detail::Keys => serde_json::to_value(HotKeys {
            one_of: 61,
            samples: 9,
            keys: keys.map(key).to_vec(),
        }),
        Detail::Connections => serde_json::to_value([line]),
    }
    .expect("JSON")
}

/// HTML in each word that may come from elsewhere.
fn hostile() -> Status {
    let html = "<img src=x onerror=\"window.ran=1\"><script>window.ran=1</script>&lt;";
    let mut status: Status = serde_json::from_str(FILLED).expect("a status");
    status.not_serving = vec![html.to_owned()];
    status.serving = false;
    status.redis.version = html.to_owned();
    status.redis.role = html.to_owned();
    status.programs.build = html.to_owned();
    status.devices[0].device.name = html.to_owned();
    status.aside.why = html.to_owned();
    status.held.clients[0].why = html.to_owned();
    let mut odd = status.counters[0].clone();
    odd.name = html.to_owned();
    odd.text = html.to_owned();
    "refused".clone_into(&mut odd.kind);
    odd.count = 7;
    status.counters.push(odd);
    status
}

#[test]
fn what_the_dashboard_shows_runs_nothing_and_needs_its_token() {
    let _turn = Turn::beside();
    let address = "127.0.0.1:0".parse().expect("an address");
    let endpoint = Endpoint::bind(address, Some(TOKEN.as_bytes().to_vec())).expect("an endpoint");
    let address = endpoint.address();
    endpoint
        .with_dashboard(true)
        .with_details(|detail| Ok(hostile_details(detail)))
        .serve(|_| Ok(hostile()))
        .expect("serve");
    let mut browser = Browser::start(|program| Command::new(program));
    browser.open(&format!("http://{address}/"));
    let shown = |id: &str| format!("document.getElementById('{id}')?.hidden === false");
    let waited = |browser: &mut Browser, id: &str| {
        wait(STATE_WAIT, || {
            (browser.value(&shown(id)) == true)
                .then_some(())
                .ok_or_else(|| format!("{id} is hidden"))
        });
    };
    waited(&mut browser, "login");
    let refused = browser.complaints().len();
    browser.value(&format!(
        "document.getElementById('token').value = '{TOKEN}'"
    ));
    browser.value("document.getElementById('login').requestSubmit()");
    waited(&mut browser, "board");
    wait(STATE_WAIT, || {
        let said = browser.text("#refused tbody");
        said.contains("<script>window.ran=1</script>&lt;")
            .then_some(())
            .ok_or(said)
    });
    for part in ["keys-open", "connections-open"] {
        browser.value(&format!("document.getElementById('{part}').open = true"));
    }
    wait(STATE_WAIT, || {
        let [keys, rows] = ["#keys tbody", "#each-connection tbody"].map(|at| browser.text(at));
        let both = rows.contains("<script>window.ran=1") && keys.contains(r"\x1b[2J\x00\r\n");
        both.then_some(()).ok_or(keys)
    });
    browser.value("document.querySelector('#each-connection a').click()");
    wait(STATE_WAIT, || {
        let said = browser.text("#conn-title");
        said.contains("<script>").then_some(()).ok_or(said)
    });
    for place in ["#reasons", "#held", "#about", "#keys tbody", "#conn-title"] {
        let said = browser.text(place);
        assert!(said.contains("<img src=x onerror"), "{place}: {said}");
    }
    let made = "document.querySelectorAll('main img, main script, main [onerror]').length";
    assert_eq!(browser.value(made), 0);
    assert_eq!(browser.value("typeof window.ran"), "undefined");
    // Were something to slip through, the browser itself would stop it.
    let slips = "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'done' } catch { return 'refused' } })()";
    assert_eq!(browser.value(slips), "refused");
    let told = browser.complaints();
    assert!(
        told[refused..].iter().all(|it| it.contains("TrustedHTML")),
        "{told:?}"
    );
}
