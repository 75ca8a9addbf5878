// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `erb top` looks like, on terminals of any size, with words of others in it.

use erb_report::{
    AttachMode, Counter, Device, DeviceReport, HotKey, HotKeys, LatencyBucket, LatencyReport,
    VlanOffload, shown_key,
};

use super::*;

fn latency(path: &str, count: u64) -> LatencyReport {
    let bucket = LatencyBucket {
        from_ns: 192,
        below_ns: Some(224),
        count,
    };
    LatencyReport {
        path: path.to_owned(),
        samples: count,
        buckets: Vec::from_iter((path == "hit").then_some(bucket)),
        ..LatencyReport::default()
    }
}

fn status(count: u64) -> Status {
    let mut status = Status {
        daemon: "running".to_owned(),
        serving: true,
        lease_left_ms: 80,
        devices: vec![DeviceReport {
            device: Device {
                name: "eth0".to_owned(),
                ifindex: 2,
            },
            mode: AttachMode::Native,
            why_not_native: String::new(),
            vlan: VlanOffload::WasOff,
            gone: false,
        }],
        ..Status::default()
    };
    status.redis.version = "7.0.15".to_owned();
    (status.cache.hits, status.cache.misses) = (3 * count, count);
    (status.commands.overhead_ns, status.commands.cpu_saved_ms) = (Some(6_000), count / 50);
    status.latency = ["hit", "held"].map(|path| latency(path, count)).to_vec();
    for (name, kind, text) in [
        (
            "FAST_PACKET",
            "answered",
            "packets answered from the cache at XDP",
        ),
        ("REFUSE_MISS", "refused", "key not in the cache"),
        (
            "UP_TRANSLATED",
            "passed",
            "payload packets translated and passed up",
        ),
    ] {
        status.counters.push(Counter {
            name: name.to_owned(),
            kind: kind.to_owned(),
            text: text.to_owned(),
            count,
        });
    }
    status
}

fn top() -> Top {
    let mut top = Top::new(Duration::from_secs(1));
    let begin = Instant::now();
    top.looked(begin, Ok((status(1_000), Listed::default())));
    top.looked(
        begin + Duration::from_secs(1),
        Ok((status(13_500), Listed::default())),
    );
    top
}

fn drawn(top: &Top, (width, height): (u16, u16), colour: bool) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| top_view::draw(frame, top, Look { colour }))
        .unwrap();
    terminal
}

fn shown(top: &Top, size: (u16, u16)) -> String {
    lines(drawn(top, size, false).backend().buffer())
}

#[test]
fn the_usual_terminal_has_room_for_what_matters() {
    let text = shown(&top(), (80, 24));
    for words in [
        "erb top  eth0 (XDP)  daemon running  Redis 7.0.15",
        "every 1 s",
        "serving",
        "12k answered, 12k went up; hits 75.0 % (of all time -)",
        "lease 80 ms",
        "latency      hit 208 ns / 223 ns, held - (half / 99 of 100)",
        "Redis saved  25.0 % of a processor, 0.3 s in all (an estimate)",
        "aside        no",
        "outcomes: 3",
        ">12k",
        "FAST_PACKET",
        "q quit  space pause",
    ] {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
}

#[test]
fn every_size_can_be_drawn() {
    let mut top = top();
    top.explains = true;
    for size in [(1, 1), (2, 3), (10, 5), (40, 8), (80, 24), (300, 100)] {
        let _ = shown(&top, size);
    }
    let _ = shown(&Top::new(Duration::from_secs(1)), (80, 24));
}

#[test]
fn what_is_under_the_cursor_is_explained() {
    let mut top = top();
    top.key(KeyCode::Char('/'));
    for key in "refuse".chars() {
        top.key(KeyCode::Char(key));
    }
    top.key(KeyCode::Enter);
    top.key(KeyCode::Enter);
    let text = shown(&top, (80, 24));
    assert!(
        text.contains(
            "REFUSE_MISS (refused, 13500): key not in the cache. It went up to Redis for this"
        ),
        "{text}"
    );
    assert!(text.contains("with \"refuse\""), "{text}");
}

#[test]
fn a_daemon_that_is_lost_is_said_with_what_was_seen_last() {
    let mut top = top();
    top.looked(Instant::now(), Err("the daemon does not answer".to_owned()));
    let text = shown(&top, (80, 24));
    assert!(
        text.contains("LOST") && text.contains("no news: the daemon does not answer"),
        "{text}"
    );
    assert!(text.contains("FAST_PACKET"), "{text}");
}

#[test]
fn why_nothing_is_served_is_said() {
    let mut top = top();
    let mut found = status(20_000);
    (found.serving, found.not_serving) = (false, vec!["the feed is down".to_owned()]);
    top.looked(Instant::now(), Ok((found, Listed::default())));
    assert!(shown(&top, (80, 24)).contains("NOT SERVING: the feed is down"));
}

#[test]
fn without_colour_nothing_is_coloured_and_all_is_said() {
    let colours = |colour| {
        let terminal = drawn(&top(), (80, 24), colour);
        let cells = terminal.backend().buffer().content.iter();
        cells
            .filter(|cell| cell.fg != ratatui::style::Color::Reset)
            .count()
    };
    assert_eq!(colours(false), 0);
    assert!(colours(true) > 0);
}

#[test]
fn words_of_others_do_not_reach_the_terminal_as_control_characters() {
    let mut top = top();
    let mut found = status(20_000);
    found.redis.version = "7\u{1b}[2J\u{7}\n\u{202e}".to_owned();
    found.devices[0].device.name = "e\u{1b}]0;x\u{7}".to_owned();
    top.looked(Instant::now(), Ok((found, Listed::default())));
    let text = shown(&top, (80, 24));
    assert!(
        !text.chars().any(|c| c.is_control() && c != '\n'),
        "{text:?}"
    );
}

#[test]
fn keys_of_clients_are_plain_text_whatever_is_in_them() {
    let mut top = top();
    top.key(KeyCode::Char('h'));
    let hostile: [&[u8]; 4] = [
        b"\x1b[2J\x07\r\nq",
        "\u{202e}<script>alert(1)</script>".as_bytes(),
        &[b'k'; 1 << 16],
        b"",
    ];
    let keys = hostile.map(|key| HotKey {
        key: shown_key(key),
        key_bytes: u32::try_from(key.len()).unwrap(),
        count: 3,
        ..HotKey::default()
    });
    let keys = HotKeys {
        one_of: 61,
        samples: 12,
        keys: keys.to_vec(),
    };
    let listed = Listed {
        keys,
        ..Listed::default()
    };
    top.looked(Instant::now(), Ok((status(20_000), listed)));
    for size in [(80, 24), (1, 1), (300, 100)] {
        let text = shown(&top, size);
        assert!(
            !text.chars().any(|c| c.is_control() && c != '\n'),
            "{text:?}"
        );
    }
    let text = shown(&top, (132, 30));
    assert!(text.contains("keys by heat, from a sample: 4"), "{text}");
    assert!(text.contains(r"\x1b[2J\x07\r\nq"), "{text}");
    assert!(text.contains("25.0 % of 12 samples; 65536 bytes"), "{text}");
}

#[test]
fn events_other_than_presses_change_nothing() {
    let mut top = top();
    assert_eq!(heard(&Event::FocusLost, &mut top), None);
    assert_eq!(heard(&Event::Resize(1, 1), &mut top), Some(Todo::Draw));
    let ctrl_c = crossterm::event::KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(heard(&Event::Key(ctrl_c), &mut top), Some(Todo::Quit));
}
