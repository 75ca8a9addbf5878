// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long requests take, and which keys are asked for most: told as they are, and keys as plain text whatever
//! clients call them.

use erb_check::net::Conn;
use erb_e2e::lab::{STATE_WAIT, TestLab, wait};
use erb_report::{LatencyReport, Status};

/// What a client may call a key, and how it is shown.
const HOSTILE: [(&str, &str); 3] = [
    ("\u{1b}[2J\u{7}\r\n\0", r"\x1b[2J\x07\r\n\x00"),
    (
        "<img src=x onerror=\"window.ran=1\">",
        "<img src=x onerror=\"window.ran=1\">",
    ),
    ("\u{202e}evil\u{2066}", r"\xe2\x80\xaeevil\xe2\x81\xa6"),
];
/// Of a key of Redis's largest usual size.
const LONG: usize = 64 << 10;
/// Characters of a key that `erb top` has room for, at least.
const COLUMN: usize = 20;

fn lab(name: &str, words: &[&str]) -> TestLab {
    let mut lab = TestLab::up(name, &["--direct"]);
    lab.use_run_dir(format!("/run/erb/e2e-{name}"));
    let output = lab.boost(&[&["--dev", "s0"], words].concat());
    assert!(output.status.success(), "{output:?}");
    lab.wait_admitting();
    lab.never_aside();
    lab
}

fn ask(client: &mut Conn, words: &[&str]) -> Vec<u8> {
    client
        .call(words)
        .unwrap_or_else(|broken| panic!("{}: {broken}", words[0]))
}

fn path<'a>(status: &'a Status, name: &str) -> &'a LatencyReport {
    let found = status.latency.iter().find(|it| it.path == name);
    found.unwrap_or_else(|| panic!("{name} is not in {:?}", status.latency))
}

/// Quantiles rise, samples are those of the buckets, and no more than were answered.
fn times_are_of_what_was_answered(status: &Status) {
    for name in ["hit", "up"] {
        let found = path(status, name);
        let (half, most) = (found.p50_ns, found.p99_ns);
        assert!(found.samples > 0 && found.sum_ns > 0, "{found:?}");
        assert!(half.is_some() && half <= most, "{found:?}");
        assert_eq!(
            found.buckets.iter().map(|it| it.count).sum::<u64>(),
            found.samples
        );
    }
    assert_eq!(path(status, "held").samples, 0, "nothing is held");
    let answered: u64 = status.processors.iter().map(|it| it.answered).sum();
    let counted = ["FAST_PACKET", "FAST_PACKET_TC"].map(|name| status.counter(name).unwrap_or(0));
    assert!(
        answered > 0 && answered <= counted.iter().sum(),
        "{answered} {counted:?}"
    );
    // One packet in 61, and no turn of the client's is a multiple of that.
    assert!(
        path(status, "hit").samples <= answered / 30 + 4,
        "{answered}"
    );
}

#[test]
fn times_are_told_by_way_and_hot_keys_as_plain_text() {
    let lab = lab("times", &[]);
    let mut client = lab.client();
    let long = "k".repeat(LONG);
    for (key, _) in HOSTILE {
        assert_eq!(ask(&mut client, &["SET", key, "value"]), b"+OK\r\n");
    }
    assert_eq!(ask(&mut client, &["SET", &long, "value"]), b"+OK\r\n");
    let top = |count: &str| {
        let words = [
            "top", "--batch", "--list", "keys", "--every", "250ms", "--count", count,
        ];
        let output = lab.erb(&words);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    // From here on keys are sampled.
    top("1");
    wait(STATE_WAIT, || {
        for _ in 0..200 {
            for (key, _) in HOSTILE {
                assert_eq!(ask(&mut client, &["GET", key]), b"$5\r\nvalue\r\n");
            }
            assert_eq!(ask(&mut client, &["ECHO", "a"]), b"$1\r\na\r\n");
        }
        assert_eq!(ask(&mut client, &["GET", &long]), b"$5\r\nvalue\r\n");
        let shown = top("1");
        let missing = HOSTILE
            .iter()
            .find(|(_, key)| !shown.contains(&key[..key.len().min(COLUMN)]));
        if let Some((_, key)) = missing {
            return Err(format!("{key} is not in {shown}"));
        }
        // The first ones may all have gone up.
        let status = lab.status();
        let timed = ["hit", "up"].map(|name| path(&status, name).samples);
        let all = timed.iter().all(|samples| *samples > 0);
        all.then_some(())
            .ok_or_else(|| format!("{timed:?} are timed"))
    });
    let shown = top("2");
    let obeyed = |c: char| (c.is_control() && c != '\n') || "\u{202e}\u{2066}".contains(c);
    assert!(!shown.contains(obeyed), "{shown:?}");
    assert!(
        !shown.contains("kkkk"),
        "what is longer is not told: {shown}"
    );

    times_are_of_what_was_answered(&lab.status());
}

#[test]
fn nothing_is_timed_if_that_was_asked_for() {
    let lab = lab("untimed", &["--no-timing"]);
    let mut client = lab.client();
    assert_eq!(ask(&mut client, &["SET", "key", "value"]), b"+OK\r\n");
    lab.heat(&mut client, "key");
    for _ in 0..300 {
        assert_eq!(ask(&mut client, &["GET", "key"]), b"$5\r\nvalue\r\n");
    }
    let status = lab.status();
    assert!(
        status.latency.iter().all(|it| it.samples == 0),
        "{:?}",
        status.latency
    );
    assert!(!status.processors.is_empty());
}
