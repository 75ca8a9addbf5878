// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which lines of CLIENT LIST and ACL LIST admit a connection.

use erb_abi::ControlBlock as _;

use super::*;
use crate::client_list::parse;

const LINE: &str = "id=3 addr=10.0.0.2:40000 laddr=10.0.0.1:6379 fd=8 name= age=1 idle=0 flags=N \
    db=7 sub=0 psub=0 ssub=0 multi=-1 qbuf=0 qbuf-free=20474 argv-mem=0 multi-mem=0 rbs=1024 rbp=0 \
    obl=0 oll=0 omem=0 tot-mem=22298 events=r cmd=get user=default redir=-1 resp=2";

fn users(lines: &[&str]) -> Users {
    Users::of(
        &lines
            .iter()
            .map(|line| (*line).to_owned())
            .collect::<Vec<_>>(),
    )
}

fn open() -> Users {
    users(&["user default on nopass sanitize-payload ~* &* +@all"])
}

/// The reason's name, where nothing is asked again.
fn why_never(verdict: Verdict) -> Option<&'static str> {
    match verdict {
        Verdict::Never(why) => Some(abi::Slow::of(why).name),
        _ => None,
    }
}

fn judged(line: &str, users: &Users) -> Verdict {
    judge(&abi::admit_row::default(), &parse(line)[0], users)
}

#[test]
fn a_plain_line_admits_with_its_database_and_version() {
    assert_eq!(judged(LINE, &open()), Verdict::Fast { db: 7, resp: 2 });
    let line = LINE
        .replace("resp=2", "resp=3")
        .replace("flags=N", "flags=e capa=");
    assert_eq!(judged(&line, &open()), Verdict::Fast { db: 7, resp: 3 });
}

#[test]
fn what_ends_by_itself_is_asked_again() {
    for (from, to) in [
        ("flags=N", "flags=b"),
        ("flags=N", "flags=u"),
        ("flags=N", "flags=xb"),
        ("qbuf=0", "qbuf=12"),
        ("obl=0", "obl=5"),
        ("oll=0", "oll=1"),
        (" qbuf=0", ""),
        (" oll=0", ""),
        (" flags=N", ""),
    ] {
        assert_eq!(
            judged(&LINE.replace(from, to), &open()),
            Verdict::Later,
            "{to}"
        );
    }
}

#[test]
fn what_only_a_command_can_end_is_not() {
    for (from, to, why) in [
        ("flags=N", "flags=t", "barred"),
        ("flags=N", "flags=x", "multi"),
        ("flags=N", "flags=O", "monitor"),
        ("flags=N", "flags=S", "silent"),
        ("flags=N", "flags=P", "subscribed"),
        ("flags=N", "flags=d", "watch"),
        ("flags=N", "flags=r", "flags"),
        ("flags=N", "flags=Q", "flags"),
        ("flags=N", "flags=N capa=r", "barred"),
        ("multi=-1", "multi=1", "multi"),
        (" multi=-1", "", "multi"),
        (" sub=0", " sub=1", "subscribed"),
        ("psub=0", "psub=1", "subscribed"),
        ("ssub=0", "ssub=2", "subscribed"),
        (" ssub=0", "", "subscribed"),
        ("resp=2", "resp=2 watch=1", "watch"),
        ("db=7", "db=65535", "flags"),
        ("db=7 ", "", "flags"),
        ("resp=2", "resp=4", "flags"),
        ("user=default", "user=bob", "user"),
        (" user=default", "", "user"),
    ] {
        assert_eq!(
            why_never(judged(&LINE.replace(from, to), &open())),
            Some(why),
            "{to}"
        );
    }
}

/// Valkey 8.1 shows a transaction without commands behind EXEC, DISCARD and RESET: the flag is what tells.
#[test]
fn a_transaction_that_has_ended_is_told_from_an_open_one_by_its_flag() {
    let ended = LINE.replace("multi=-1", "multi=0");
    assert_eq!(judged(&ended, &open()), judged(LINE, &open()));
    let is_open = ended.replace("flags=N", "flags=x");
    assert_eq!(why_never(judged(&is_open, &open())), Some("multi"));
    let without = ended.replace("flags=N ", "");
    assert_eq!(judged(&without, &open()), Verdict::Later);
}

#[test]
fn older_connections_that_only_listen_are_told_from_others() {
    let judged = |act, line: &str| {
        let row = abi::admit_row {
            act: act as u8,
            ..Default::default()
        };
        judge(&row, &parse(line)[0], &open())
    };
    let replica = LINE.replace("flags=N", "flags=S");
    let subscriber = LINE
        .replace("flags=N", "flags=P")
        .replace(" sub=0", " sub=1");
    for line in [&replica, &subscriber] {
        for act in [abi::ADMIT_TRIAL, abi::ADMIT_LISTEN] {
            assert_eq!(judged(act, line), Verdict::Listen, "{line}");
            let half = line.replace("argv-mem=0", "argv-mem=3");
            assert_ne!(judged(act, &half), Verdict::Listen, "{half}");
            let unread = line.replace("qbuf=0", "qbuf=3");
            assert_ne!(judged(act, &unread), Verdict::Listen, "{unread}");
        }
        assert!(why_never(judged(abi::ADMIT_FAST, line)).is_some());
    }
    let free = subscriber.replace("resp=2", "resp=3");
    let judged_free = judged(abi::ADMIT_TRIAL, &free);
    assert_eq!(judged_free, Verdict::Never(abi::CMD_UNCOUNTABLE));
    assert_eq!(judged(abi::ADMIT_LISTEN, LINE), Verdict::Later);
    let monitor = LINE.replace("flags=N", "flags=SO");
    let judged_monitor = judged(abi::ADMIT_TRIAL, &monitor);
    assert_eq!(judged_monitor, Verdict::Never(abi::CMD_MONITOR));
}

#[test]
fn only_users_with_full_rights_are_admitted() {
    let as_bob = LINE.replace("user=default", "user=bob");
    for (rules, full) in [
        ("on #5e88 sanitize-payload ~* &* +@all", true),
        ("on nopass skip-sanitize-payload ~* &* +@all", true),
        ("on nopass sanitize-payload ~* &* alldbs +@all", true),
        ("on nopass sanitize-payload ~* &* db=0 +@all", false),
        ("on nopass sanitize-payload ~* &* resetdbs +@all", false),
        ("off #5e88 ~* &* +@all", false),
        ("on #5e88 ~a* &* +@all", false),
        ("on #5e88 %R~* &* +@all", false),
        ("on #5e88 ~* resetchannels +@all", false),
        ("on #5e88 ~* &* +@all -get", false),
        ("on #5e88 ~* &* +@all -@dangerous", false),
        ("on #5e88 ~* &* -@all +get", false),
        ("on #5e88 ~* &* +@all (~x resetchannels -@all +get)", false),
        ("on #5e88 ~* &* +@all rule-of-tomorrow", false),
        ("", false),
    ] {
        let users = users(&[
            "user default on #1 ~* &* +@all",
            &format!("user bob {rules}"),
        ]);
        let verdict = judged(&as_bob, &users);
        assert_eq!(verdict == Verdict::Fast { db: 7, resp: 2 }, full, "{rules}");
        assert!(full || verdict == Verdict::Never(abi::SLOW_USER), "{rules}");
    }
}

#[test]
fn with_a_password_the_default_user_must_have_authenticated() {
    let guarded = users(&["user default on #5e88 ~* &* +@all"]);
    assert_eq!(guarded.door(), abi::DOOR_SHUT);
    assert_eq!(open().door(), abi::DOOR_OPEN);
    for (rules, door) in [
        ("off nopass ~* &* +@all", abi::DOOR_SHUT),
        ("on nopass ~* &* +@read", abi::DOOR_UNKNOWN),
    ] {
        assert_eq!(users(&[&format!("user default {rules}")]).door(), door);
    }
    assert_eq!(users(&["user bob on"]).door(), abi::DOOR_UNKNOWN);
    assert_eq!(judged(LINE, &guarded), Verdict::Never(abi::SLOW_PASSWORD));
    let row = abi::admit_row {
        authed: 1,
        ..Default::default()
    };
    let line = &parse(LINE)[0];
    assert_eq!(
        judge(&row, line, &guarded),
        Verdict::Fast { db: 7, resp: 2 }
    );
}

#[test]
fn a_stream_is_taken_up_only_between_commands() {
    let row = abi::admit_row {
        act: abi::ADMIT_TRIAL as u8,
        ..Default::default()
    };
    let verdict = |line: &str| judge(&row, &parse(line)[0], &open());
    assert_eq!(verdict(LINE), Verdict::Trial { owed: 0 });
    let waits = |flags, command: &str| {
        let line = LINE.replace("flags=N", &format!("flags={flags}"));
        let line = line.replace("argv-mem=0", "argv-mem=40");
        verdict(&line.replace("cmd=get", &format!("cmd={command}")))
    };
    for command in ["blpop", "brpoplpush", "blmove", "xreadgroup", "wait"] {
        assert_eq!(waits("b", command), Verdict::Trial { owed: 1 }, "{command}");
        assert_eq!(waits("be", command), Verdict::Trial { owed: 1 });
        for flags in ["bx", "bu", "bP", "bS", "u"] {
            assert_eq!(waits(flags, command), Verdict::Later, "{flags}");
        }
    }
    for command in ["set", "some.module", "eval"] {
        assert_eq!(waits("b", command), Verdict::Later, "{command}");
    }
    assert_eq!(
        verdict(&LINE.replace("argv-mem=0", "argv-mem=4")),
        Verdict::Later
    );
    assert_eq!(verdict(&LINE.replace(" argv-mem=0", "")), Verdict::Later);
}

#[test]
fn a_connection_of_a_user_that_may_not_do_everything_is_told_with_the_rule_until_it_has_gone() {
    let path = crate::doubles::Recorder::default();
    let acl = |rules: &str| {
        let default = "user default on nopass ~* &* +@all".to_owned();
        vec![default, format!("user app {rules}")]
    };
    let mut admissions = Admissions::new(0);
    admissions.take_rights(&path, &acl("on #1 ~app:* &* +@all"));
    let line = LINE.replace("user=default", "user=app");
    let (client, server) = ("10.0.0.2:40000", "10.0.0.1:6379");
    let pair = TcpPair {
        client: client.parse().expect("an address"),
        server: server.parse().expect("an address"),
    };
    let row = abi::admit_row {
        key: crate::client_list::key_of(pair.client, pair.server),
        ..Default::default()
    };
    let listed = |admissions: &mut Admissions, line: &str| {
        let known = (path.rights(), false);
        let list = parse(line);
        admissions
            .admit(&path, &list, &[row], known)
            .expect("a list");
        admissions.limit_of(&pair)
    };
    let told = listed(&mut admissions, &line);
    assert_eq!(told.as_deref(), Some("app (~app:*)"));
    assert_eq!(listed(&mut admissions, LINE), None, "another user now");
    assert!(listed(&mut admissions, &line).is_some());
    let another = LINE.replace("10.0.0.2:40000", "10.0.0.2:40001");
    assert_eq!(listed(&mut admissions, &another), None, "gone");
}
