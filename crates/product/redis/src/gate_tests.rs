// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each condition shuts the gate, and lets it open again.

use erb_abi::ControlBlock as _;

use super::*;
use crate::doubles::Recorder;

const NOW: u64 = 1_000 * SECOND_NS;

/// A Redis against which nothing speaks.
fn willing() -> RedisState {
    RedisState {
        role: "master".to_owned(),
        info_is_read: true,
        ports: vec![6379],
        writes: WriteState {
            databases: Some(16),
            appendfsync: Some("everysec".to_owned()),
            min_replicas: Some(0),
            stops_unsaved: Some(true),
            unix_socket: Some(String::new()),
            log_is_written: Some(true),
            is_saved: Some(true),
            stays_master: Some(true),
            run_id: Some("1".to_owned()),
            uptime_s: Some(9),
            has_log: Some(true),
        },
        ..RedisState::default()
    }
}

fn seen(state: &RedisState) -> Seen<'_> {
    Seen {
        is_serving: true,
        state: Some(state),
        no_feed: None,
        names: None,
        tells_all: true,
        unseen: 0,
        port: 6379,
        refusal: None,
        journal: None,
        age_ns: 0,
    }
}

fn gate(allowed: Allowed) -> Gate {
    let mut gate = Gate::new(allowed);
    let view = MachineView::default();
    gate.second(&Recorder::default(), view, NOW).unwrap();
    gate.trial_sent(NOW);
    gate.trial_came(Ok(()));
    gate
}

fn decide(gate: &mut Gate, path: &Recorder, seen: &Seen<'_>, now: u64) {
    let against = gate.found_against(seen, now);
    gate.decide(path, against);
}

/// What speaks against it in this state.
fn names(gate: &Gate, seen: &Seen<'_>) -> Vec<&'static str> {
    let found = gate.found_against(seen, NOW);
    found.iter().map(|one| one.condition.name()).collect()
}

#[test]
fn it_is_shut_where_what_waits_could_not_be_kept() {
    let (path, state) = (Recorder::default(), willing());
    let mut gate = gate(Allowed::default());
    let full = || Some("the disk is full".to_owned());
    let seen = Seen {
        journal: full(),
        ..seen(&state)
    };
    assert_eq!(names(&gate, &seen), ["journal"]);
    decide(&mut gate, &path, &seen, NOW);
    assert!(!gate.is_open());
    let mended = Seen {
        journal: None,
        ..seen
    };
    decide(&mut gate, &path, &mended, NOW);
    assert!(gate.is_open() && path.control().absorb());
}

#[test]
fn it_opens_where_nothing_speaks_against_it_and_shuts_at_the_first_word() {
    let (path, state) = (Recorder::default(), willing());
    let mut gate = gate(Allowed::default());
    decide(&mut gate, &path, &seen(&state), NOW);
    assert!(gate.is_open() && path.control().absorb());
    let silent = Seen {
        is_serving: false,
        ..seen(&state)
    };
    decide(&mut gate, &path, &silent, NOW);
    assert!(!gate.is_open() && !path.control().absorb());
    assert_eq!(gate.against()[0].condition, Condition::Serving);
    decide(&mut gate, &path, &seen(&state), NOW);
    assert_eq!((gate.is_open(), gate.opened()), (true, 2));
    gate.forget(&path);
    assert!(!path.control().absorb());
    decide(&mut gate, &path, &seen(&state), NOW);
    assert!(!gate.is_open(), "nothing was tried over the next feed");
}

#[test]
fn what_redis_tells_or_does_not_tell_speaks_against_it() {
    let with = |change: fn(&mut RedisState)| {
        let mut state = willing();
        change(&mut state);
        names(&gate(Allowed::default()), &seen(&state))
    };
    let found = [
        with(|state| state.role = "slave".to_owned()),
        with(|state| state.writes.stays_master = Some(false)),
        with(|state| state.writes.min_replicas = Some(1)),
        with(|state| state.writes.min_replicas = None),
        with(|state| state.writes.appendfsync = Some("always".to_owned())),
        with(|state| state.writes.appendfsync = None),
        with(|state| state.writes.log_is_written = Some(false)),
        with(|state| state.writes.is_saved = Some(false)),
        with(|state| state.maxmemory = 1),
        with(|state| state.events = "Kg".to_owned()),
        with(|state| state.modules = vec!["m".to_owned()]),
        with(|state| state.info_is_read = false),
        with(|state| state.ports.push(6380)),
        with(|state| state.writes.unix_socket = Some("/s".to_owned())),
        with(|state| state.writes.unix_socket = None),
    ];
    let want = [
        "role", "role", "replicas", "replicas", "log", "log", "log", "snapshot", "memory",
        "events", "modules", "modules", "clients", "clients", "clients",
    ];
    assert_eq!(found, want.map(|name| vec![name]));
    let none = [
        with(|state| state.writes.appendfsync = Some("no".to_owned())),
        with(|state| {
            state.writes.is_saved = Some(false);
            state.writes.stops_unsaved = Some(false);
        }),
        with(|state| {
            state.maxmemory = 1;
            state.maxmemory_policy = "allkeys-lru".to_owned();
        }),
    ];
    assert_eq!(none, [const { Vec::<&str>::new() }; 3]);
}

#[test]
fn the_operator_takes_upon_himself_who_is_not_seen_and_modules() {
    let mut state = willing();
    state.ports.push(6380);
    state.writes.unix_socket = Some("/s".to_owned());
    state.modules = vec!["m".to_owned()];
    let view = || MachineView {
        unseen_devices: vec!["eth1".to_owned()],
        kernel: None,
    };
    let look = |allowed| {
        let mut gate = gate(allowed);
        gate.second(&Recorder::default(), view(), NOW).unwrap();
        names(&gate, &seen(&state))
    };
    let (unseen, modules) = (true, true);
    let found = look(Allowed::default());
    assert_eq!(found, ["clients", "clients", "clients", "modules"]);
    let both = Allowed { unseen, modules };
    assert_eq!(look(both), [""; 0]);
}

#[test]
fn machine_feed_and_drain_speak_against_it() {
    let state = willing();
    let look = |change: fn(&mut Seen<'_>)| {
        let mut seen = seen(&state);
        change(&mut seen);
        names(&gate(Allowed::default()), &seen)
    };
    let found = [
        look(|seen| seen.state = None),
        look(|seen| seen.tells_all = false),
        look(|seen| seen.unseen = 1),
        look(|seen| seen.refusal = Some("OOM".to_owned())),
        look(|seen| seen.age_ns = AGE_MAX_NS + 1),
    ];
    let want = ["role", "reports", "table", "drain", "age"];
    assert_eq!(found, want.map(|name| vec![name]));
    let renamed = Seen {
        names: Some("MSET has another name".to_owned()),
        ..seen(&state)
    };
    assert_eq!(names(&gate(Allowed::default()), &renamed), ["commands"]);
    let fresh = Gate::new(Allowed::default());
    assert_eq!(names(&fresh, &seen(&state)), ["clients", "trial"]);
    let mut rt = gate(Allowed::default());
    rt.machine = Some(MachineView {
        kernel: Some("PREEMPT_RT".to_owned()),
        ..MachineView::default()
    });
    assert_eq!(names(&rt, &seen(&state)), ["kernel"]);
}

/// A Redis that is away says nothing of its commands, its state or its reports.
#[test]
fn without_a_feed_that_is_told_and_what_waits() {
    let away = || "Redis cannot be reached".to_owned();
    let nothing = RedisState::default();
    let seen = Seen {
        is_serving: false,
        state: None,
        no_feed: Some(away()),
        names: Some("not read".to_owned()),
        tells_all: false,
        refusal: Some("not told".to_owned()),
        journal: Some("full".to_owned()),
        age_ns: AGE_MAX_NS + 1,
        ..seen(&nothing)
    };
    let gate = gate(Allowed::default());
    assert_eq!(names(&gate, &seen), ["serving", "age", "journal"]);
    assert_eq!(gate.found_against(&seen, NOW)[0].text, away());
}

#[test]
fn a_trial_that_is_refused_or_does_not_come_back_shuts_it() {
    let state = willing();
    let mut gate = gate(Allowed::default());
    gate.trial_sent(NOW - AGE_MAX_NS);
    assert_eq!(names(&gate, &seen(&state)), [""; 0], "it may come yet");
    gate.trial_sent(NOW - AGE_MAX_NS - 1);
    assert_eq!(names(&gate, &seen(&state)), ["trial"]);
    gate.trial_came(Err("NOPERM".to_owned()));
    let found = gate.found_against(&seen(&state), NOW);
    assert!(found[0].text.contains("NOPERM"), "{found:?}");
    gate.trial_sent(NOW);
    gate.trial_came(Ok(()));
    assert_eq!(names(&gate, &seen(&state)), [""; 0]);
}

#[test]
fn what_does_not_pay_rests_longer_each_time_and_is_believed_again_by_and_by() {
    let (path, state) = (Recorder::default(), willing());
    let mut gate = gate(Allowed::default());
    let mut now = NOW;
    let mut second = |gate: &mut Gate, absorbed: u64, held: u64, uncopied: u64| {
        now = now.max(gate.worth.until_ns) + SECOND_NS;
        let mut stats = path.stats.borrow_mut();
        for (stat, more) in [
            (abi::STAT_ABSORBED, absorbed),
            (abi::STAT_HELD, held),
            (abi::STAT_HELD_UNCOPIED, uncopied),
        ] {
            *stats.entry(stat).or_default() += more;
        }
        drop(stats);
        gate.second(&path, MachineView::default(), now).unwrap();
        decide(gate, &path, &seen(&state), now);
        gate.worth.until_ns.saturating_sub(now) / SECOND_NS
    };
    assert_eq!(second(&mut gate, 1_000, 125, 1), 0, "one of eight");
    assert!(gate.is_open());
    assert_eq!(second(&mut gate, 0, 63, 63), 0, "too few to tell");
    assert_eq!(second(&mut gate, 1_000, 126, 0), 1);
    assert!(!gate.is_open());
    assert_eq!(second(&mut gate, 0, 0, 0), 0);
    assert!(gate.is_open(), "tried again");
    let rests: Vec<u64> = (0..8).map(|_| second(&mut gate, 100, 100, 0)).collect();
    assert_eq!(rests, [2, 4, 8, 16, 32, 60, 60, 60]);
    assert_eq!(second(&mut gate, 63_000, 64, 64), 60, "without copies");
    for _ in 0..70 {
        second(&mut gate, 1_000, 0, 0);
    }
    assert_eq!(second(&mut gate, 100, 100, 0), 1, "long forgotten");
}

#[test]
fn behind_a_rest_a_tenth_of_a_second_tells() {
    let (path, state) = (Recorder::default(), willing());
    let mut gate = gate(Allowed::default());
    let mut now = NOW;
    let mut ticks = |gate: &mut Gate, ticks: u64, of_each: [u64; 3]| {
        for _ in 0..ticks {
            now += 10 * MS;
            let stats = [abi::STAT_ABSORBED, abi::STAT_HELD, abi::STAT_MARK_TAKEN];
            for (stat, more) in stats.into_iter().zip(of_each) {
                *path.stats.borrow_mut().entry(stat).or_default() += more * u64::from(gate.is_open);
            }
            gate.tick(&path, now).unwrap();
            if now.is_multiple_of(SECOND_NS) {
                gate.second(&path, MachineView::default(), now).unwrap();
            }
            decide(gate, &path, &seen(&state), now);
        }
        gate.is_open()
    };
    const WAITS: [u64; 3] = [10, 9, 0];
    const VAIN: [u64; 3] = [0, 0, 50];
    const PAYS: [u64; 3] = [50, 1, 5];
    assert!(
        ticks(&mut gate, 99, WAITS),
        "the first second is a whole one"
    );
    assert!(!ticks(&mut gate, 150, WAITS));
    for (load, rest) in [(WAITS, 190), (VAIN, 390), (WAITS, 790)] {
        assert!((0..9_000).any(|_| ticks(&mut gate, 1, load)), "it opens");
        let opened = gate.opened();
        assert!(ticks(&mut gate, 9, load), "too soon to tell");
        assert!(!ticks(&mut gate, 2, load), "{load:?}");
        assert!(!ticks(&mut gate, rest, load), "longer than {rest} ticks");
        assert_eq!(gate.opened(), opened);
    }
    assert!((0..9_000).any(|_| ticks(&mut gate, 1, PAYS)), "it opens");
    assert!(ticks(&mut gate, 500, PAYS));
}

#[test]
fn bytes_that_came_past_the_programs_shut_it_for_a_minute() {
    let (path, state) = (Recorder::default(), willing());
    for (unseen, want) in [(false, vec!["clients"]), (true, vec![])] {
        let mut gate = gate(Allowed {
            unseen,
            ..Allowed::default()
        });
        *path
            .stats
            .borrow_mut()
            .entry(abi::STAT_BYTES_UNSEEN)
            .or_default() = 3;
        let at = NOW + SECOND_NS;
        gate.second(&path, MachineView::default(), at).unwrap();
        let names_at = |now| {
            let found = gate.found_against(&seen(&state), now);
            found
                .iter()
                .map(|one| one.condition.name())
                .collect::<Vec<_>>()
        };
        assert_eq!(names_at(at), want);
        assert_eq!(names_at(at + UNSEEN_REST_NS - 1), want);
        assert_eq!(names_at(at + UNSEEN_REST_NS), [""; 0]);
    }
}

#[test]
fn where_no_write_can_be_answered_it_rests() {
    let (path, state) = (Recorder::default(), willing());
    let mut gate = gate(Allowed::default());
    let mut now = NOW;
    let mut second = |gate: &mut Gate, absorbed: u64, up: u64| {
        now += SECOND_NS;
        let mut stats = path.stats.borrow_mut();
        *stats.entry(abi::STAT_ABSORBED).or_default() += absorbed;
        *stats.entry(abi::STAT_MARK_TAKEN).or_default() += up;
        drop(stats);
        gate.second(&path, MachineView::default(), now).unwrap();
        decide(gate, &path, &seen(&state), now);
        gate.is_open()
    };
    assert!(second(&mut gate, 0, 90_000), "it was not open");
    assert!(second(&mut gate, 0, 90_000), "nor all the time");
    assert!(second(&mut gate, 0, 999), "too few to tell");
    assert!(second(&mut gate, 1_000, 8_000), "one of eight");
    assert!(!second(&mut gate, 999, 8_000));
    let against = gate.found_against(&seen(&state), NOW + 5 * SECOND_NS);
    assert!(
        against[0].text.contains("alone in its packet"),
        "{against:?}"
    );
    assert!(second(&mut gate, 0, 90_000), "tried again");
    assert!(second(&mut gate, 0, 90_000), "for a whole second");
    assert!(!second(&mut gate, 0, 90_000));
}

#[test]
fn names_are_words_for_metrics_and_differ() {
    let names: Vec<&str> = Condition::ALL.iter().map(|one| one.name()).collect();
    let distinct: std::collections::BTreeSet<&&str> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
    let is_word = |name: &&str| name.bytes().all(|byte| byte.is_ascii_lowercase());
    assert!(names.iter().all(is_word));
    let page = include_str!("../../../../docs/operating/write-back.md");
    for one in Condition::ALL {
        let row = format!("| `{}` | {} |", one.name(), one.means());
        assert!(
            page.contains(&row),
            "docs/operating/write-back.md has no row {row}"
        );
    }
}
