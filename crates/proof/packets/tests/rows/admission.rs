// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection leaves FAST by what its commands say of it, and comes back by `erb_admit`; one that
//! is older than ERB is taken up at a boundary that an answer must prove (bpf/redis/modes.h, admit.h).

use std::collections::BTreeMap;

use erb_abi::{self as abi, ControlPlane as _};
use erb_packets::fixture::{self, Bench};
use erb_packets::frame::Segment;
use erb_packets::row::{Expect, Row, check, moved};
use erb_packets::scene::{META_TRANSLATED, Scene, V4, V6, XDP_PASS, XDP_TX, patient};

use crate::{GET_KEY, PING, bulk, fast};

/// Changes what the connection is, in a way that a list shows.
const STATEFUL: &[u8] = b"*3\r\n$6\r\nCLIENT\r\n$8\r\nNO-EVICT\r\n$3\r\noff\r\n";
const OK: &[u8] = b"+OK\r\n";

/// What moved while `work` was done, egress and housekeeping left out.
fn counted(scene: &mut Scene, work: impl FnOnce(&mut Scene)) -> BTreeMap<&'static str, u64> {
    let before = scene.bench.stats();
    work(scene);
    let mut counted = moved(&before, &scene.bench.stats());
    counted.retain(|name, _| !name.starts_with("EGRESS_") && !name.contains("ACK"));
    counted
}

fn expect(counted: &BTreeMap<&'static str, u64>, wanted: &[(&'static str, u64)]) {
    assert_eq!(counted, &wanted.iter().copied().collect());
}

/// The sweep's row for this connection, once it is one that a list may admit.
fn candidate(scene: &Scene) -> abi::admit_row {
    patient("the sweep names the connection", || {
        let report = scene.bench.dp.walk().expect("erb_sweep");
        let row = report
            .admit
            .iter()
            .find(|row| row.key.client_port_be == scene.port.to_be());
        row.copied()
    })
}

/// A connection under access rules that the daemon has read: number 0 is none.
fn connect(bench: &mut Bench) -> Scene<'_> {
    bench.dp.control().set_rights(1);
    Scene::connect(bench, V4)
}

/// What the daemon says after a list that shows database 0, RESP2 and a user of all rights.
fn admit(scene: &Scene, row: abi::admit_row, act: abi::admit_act) -> bool {
    let request = abi::admit_io {
        row,
        rights: scene.bench.dp.control().rights(),
        db: 0,
        resp: 2,
        act: act as u8,
        done: 0,
        owed: 0,
        slow: 0,
    };
    scene.bench.dp.admit_conn(&request).expect("erb_admit")
}

/// GET of the cached key: answered, or not.
fn asks(scene: &mut Scene, answered: bool) {
    let segment = scene.segment(GET_KEY);
    let outcome = scene.up(&segment);
    if answered {
        assert_eq!(outcome.verdict, XDP_TX, "it is answered");
        assert_eq!(scene.take_answer(&outcome), bulk(b"value"));
        return;
    }
    assert_eq!(outcome.verdict, XDP_PASS, "it is Redis's");
    scene.read_request(GET_KEY);
    scene.reply(&bulk(b"value"));
    scene.acknowledge();
}

#[test]
fn what_changes_a_connection_is_counted_and_ends_its_answers() {
    let turns = |name, shape| {
        Row::xdp(
            name,
            shape,
            fast,
            |scene| scene.segment(STATEFUL),
            Expect::Same,
            &[
                ("CONN_BYPASS", 1),
                ("REFUSE_COMMAND", 1),
                ("STATEFUL", 1),
                ("UP_TRANSLATED", 1),
            ],
        )
    };
    check(vec![
        turns("a stateful command", V4),
        turns("a stateful command, IPv6", V6),
        Row::xdp(
            "access rules have changed since the connection was judged",
            V4,
            |scene| {
                fast(scene);
                scene.edit(|entry| entry.h.rights = entry.h.rights.wrapping_add(1));
            },
            |scene| scene.segment(GET_KEY),
            Expect::Same,
            &[("REFUSE_RIGHTS", 1), ("UP_TRANSLATED", 1)],
        ),
        Row::xdp(
            "no answer to a stateful connection",
            V4,
            |scene| {
                fast(scene);
                scene.request(STATEFUL);
                scene.reply(OK);
                scene.acknowledge();
            },
            |scene| scene.segment(PING),
            Expect::Same,
            &[("REFUSE_BYPASS", 1), ("UP_TRANSLATED", 1)],
        ),
    ]);
}

#[test]
fn a_list_brings_it_back_unless_it_has_moved_on() {
    fixture::with(|bench| {
        let mut scene = connect(bench);
        fast(&mut scene);
        scene.request(STATEFUL);
        let report = scene.bench.dp.walk().expect("erb_sweep");
        let (named, waiting) = (report.admit.len(), report.waiting);
        assert_eq!((named, waiting), (0, 1), "not before its answer");
        scene.reply(OK);
        scene.acknowledge();
        asks(&mut scene, false);
        let old = candidate(&scene);
        assert_eq!(u32::from(old.act), abi::ADMIT_FAST);
        // Between the list and its judgement another such command goes up.
        scene.request(STATEFUL);
        scene.reply(OK);
        scene.acknowledge();
        let late = counted(&mut scene, |scene| {
            assert!(!admit(scene, old, abi::ADMIT_FAST));
        });
        expect(&late, &[("ADMIT_MOVED", 1)]);
        asks(&mut scene, false);
        let row = candidate(&scene);
        let back = counted(&mut scene, |scene| {
            assert!(admit(scene, row, abi::ADMIT_FAST));
        });
        expect(&back, &[("ADMITTED", 1)]);
        asks(&mut scene, true);
        // The rules change while the next list is judged.
        scene.acknowledge();
        scene.request(STATEFUL);
        scene.reply(OK);
        scene.acknowledge();
        let row = candidate(&scene);
        let rights = scene.bench.dp.control().rights();
        scene.bench.dp.control().set_rights(rights + 1);
        let mut request = abi::admit_io {
            row,
            rights,
            db: 0,
            resp: 2,
            act: abi::ADMIT_FAST as u8,
            done: 0,
            owed: 0,
            slow: 0,
        };
        assert!(!scene.bench.dp.admit_conn(&request).expect("erb_admit"));
        request.rights = rights + 1;
        assert!(scene.bench.dp.admit_conn(&request).expect("erb_admit"));
        scene.bench.dp.control().set_rights(rights);
    });
}

/// A connection that is older than ERB, quiet.
fn older(scene: &mut Scene) {
    scene.bench.dp.control().set_admit(0);
    scene.request(PING);
    scene.reply(b"+PONG\r\n");
    scene.acknowledge();
    scene.bench.dp.control().set_admit(1);
    let control = scene.bench.dp.control();
    control.set_gate_ack(control.gate_seen());
    assert_eq!(
        u32::from(scene.entry().expect("tracked").state),
        abi::CONN_OLD
    );
    // Its share of the fence: the daemon has proof that Redis has executed all.
    let report = scene.bench.dp.walk().expect("erb_sweep");
    for row in &report.rows {
        scene.bench.dp.release(row, false).expect("erb_release");
    }
}

fn on_trial(scene: &mut Scene) {
    older(scene);
    let row = candidate(scene);
    assert_eq!(u32::from(row.act), abi::ADMIT_TRIAL);
    let counted = counted(scene, |scene| {
        assert!(admit(scene, row, abi::ADMIT_TRIAL));
    });
    expect(&counted, &[("TRIAL", 1)]);
}

/// A command goes up; Redis answers like this.
fn answered(scene: &mut Scene, request: &[u8], reply: &[u8]) {
    let segment: Segment = scene.segment(request);
    let outcome = scene.up(&segment);
    assert_eq!(outcome.meta, Some(META_TRANSLATED));
    scene.read_request(request);
    scene.reply(reply);
    scene.acknowledge();
}

#[test]
fn an_older_connection_is_taken_up_when_an_answer_has_proved_the_boundary() {
    fixture::with(|bench| {
        let mut scene = connect(bench);
        scene.bench.fill(b"key", b"value", 0);
        on_trial(&mut scene);
        let counted = counted(&mut scene, |scene| answered(scene, PING, b"+PONG\r\n"));
        assert_eq!(counted.get("TRIAL_FAILED"), None, "{counted:?}");
        let kept = u32::from(scene.entry().expect("tracked").h.kept);
        assert_eq!(kept & abi::CONN_K_TRIAL, 0, "proved");
    });
}

/// Admits a row on trial behind a reply that is owed.
fn admit_owed(scene: &Scene, row: abi::admit_row) -> bool {
    let request = abi::admit_io {
        row,
        rights: scene.bench.dp.control().rights(),
        act: abi::ADMIT_TRIAL as u8,
        owed: 1,
        slow: 0,
        ..Default::default()
    };
    scene.bench.dp.admit_conn(&request).expect("erb_admit")
}

#[test]
fn who_waits_is_taken_up_with_the_reply_that_it_waits_for() {
    fixture::with(|bench| {
        let mut scene = connect(bench);
        older(&mut scene);
        let mut row = candidate(&scene);
        row.written = row.written.wrapping_sub(1);
        assert!(!admit_owed(&scene, row), "something was written since");
        let row = candidate(&scene);
        assert!(admit_owed(&scene, row));
        let report = scene.bench.dp.walk().expect("erb_sweep");
        assert!(report.admit.is_empty(), "it is on trial");
        let entry = |scene: &Scene| {
            let entry = scene.entry().expect("tracked");
            (
                u32::from(entry.h.kept) & abi::CONN_K_TRIAL,
                entry.requests,
                entry.replies,
            )
        };
        assert_eq!(entry(&scene), (abi::CONN_K_TRIAL, 1, 0), "and not given up");
        scene.reply(b"*-1\r\n");
        scene.acknowledge();
        assert_eq!(entry(&scene), (0, 1, 1), "proved");
    });
}

#[test]
fn an_error_proves_no_boundary() {
    fixture::with(|bench| {
        let mut scene = connect(bench);
        on_trial(&mut scene);
        let counted = counted(&mut scene, |scene| {
            answered(scene, PING, b"-ERR unknown\r\n")
        });
        assert_eq!(counted.get("TRIAL_FAILED"), Some(&1), "{counted:?}");
        let entry = scene.entry().expect("tracked");
        assert!(u32::from(entry.flags) & abi::CONN_F_SCAN_LOST != 0);
    });
}

/// A script's share of the fence stands until the daemon has handled what Redis reports of it; the
/// cache stays.
#[test]
fn what_a_script_closes_is_settled() {
    const EVAL: &[u8] = b"*3\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n0\r\n";
    fixture::with(|bench| {
        let mut scene = connect(bench);
        fast(&mut scene);
        scene.request(EVAL);
        scene.reply(b":1\r\n");
        scene.acknowledge();
        assert_eq!(scene.bench.dp.control().fence(), 1, "not settled yet");
        asks(&mut scene, false);
        let counted = counted(&mut scene, |scene| scene.bench.settle());
        expect(&counted, &[("FENCE_RELEASED", 1), ("FENCE_SETTLED", 1)]);
        asks(&mut scene, true);
    });
}

/// What a replica says by rote closes nothing; anything else it says is fenced by proof.
#[test]
fn an_older_listener_closes_nothing() {
    const ACK: &[u8] = b"*3\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n$6\r\n123456\r\n";
    const BOTH: &[u8] =
        b"*5\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n$1\r\n7\r\n$4\r\nFACK\r\n$1\r\n7\r\n";
    const OTHER: &[u8] = b"*3\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n$3\r\nSET\r\n";
    const UP: &[(&str, u64)] = &[("UP_TRANSLATED", 1)];
    fixture::with(|bench| {
        let mut scene = connect(bench);
        older(&mut scene);
        let row = candidate(&scene);
        let listens = counted(&mut scene, |scene| {
            assert!(admit(scene, row, abi::ADMIT_LISTEN));
        });
        expect(&listens, &[("LISTENER", 1)]);
        for words in [ACK, PING, BOTH, b"*1\r\n$4\r\nping\r\n"] {
            let said = counted(&mut scene, |scene| scene.request(words));
            expect(&said, UP);
        }
        let said = counted(&mut scene, |scene| scene.request(OTHER));
        assert_eq!(said.get("FENCE_PROOF"), Some(&1), "{said:?}");
        let said = counted(&mut scene, |scene| scene.request(ACK));
        assert_eq!(
            said.get("GATE_SHUT"),
            Some(&1),
            "no listener any more: {said:?}"
        );
    });
}

/// A list says that a connection stays out, for this reason.
fn judge(scene: &Scene, row: abi::admit_row, why: abi::slow_why) {
    let request = abi::admit_io {
        row,
        rights: scene.bench.dp.control().rights(),
        act: abi::ADMIT_JUDGED as u8,
        slow: why as u16,
        ..Default::default()
    };
    assert!(scene.bench.dp.admit_conn(&request).expect("erb_admit"));
}

fn noted(scene: &Scene) -> u32 {
    scene.entry().expect("tracked").h.slow.into()
}

#[test]
fn a_user_that_may_not_do_everything_has_a_reason_of_its_own_until_it_may() {
    fixture::with(|bench| {
        let mut scene = connect(bench);
        fast(&mut scene);
        scene.request(STATEFUL);
        scene.reply(OK);
        scene.acknowledge();
        assert_eq!(noted(&scene), abi::CMD_STATEFUL);
        let row = candidate(&scene);
        judge(&scene, row, abi::SLOW_USER);
        assert_eq!(noted(&scene), abi::SLOW_USER);
        let refused = counted(&mut scene, |scene| asks(scene, false));
        assert_eq!(refused.get("REFUSE_USER"), Some(&1), "{refused:?}");
        assert_eq!(refused.get("REFUSE_BYPASS"), None, "{refused:?}");
        // A daemon that names no reason leaves what is noted.
        scene.bench.dp.control().set_rights(2);
        judge(&scene, candidate(&scene), 0);
        assert_eq!(noted(&scene), abi::SLOW_USER);
        scene.bench.dp.control().set_rights(3);
        let row = candidate(&scene);
        assert!(admit(&scene, row, abi::ADMIT_FAST));
        assert_eq!(noted(&scene), abi::SLOW_NONE);
        asks(&mut scene, true);
    });
}

/// Commands that end answers, and what is noted of them.
const ENDS: &[(&[u8], abi::slow_why)] = &[
    (STATEFUL, abi::CMD_STATEFUL),
    (b"*1\r\n$5\r\nMULTI\r\n", abi::CMD_MULTI),
    (b"*2\r\n$5\r\nWATCH\r\n$1\r\nk\r\n", abi::CMD_WATCH),
    (b"*2\r\n$6\r\nSELECT\r\n$1\r\n9\r\n", abi::CMD_SELECT),
    (b"*2\r\n$4\r\nAUTH\r\n$1\r\np\r\n", abi::CMD_AUTH),
    (
        b"*5\r\n$5\r\nHELLO\r\n$1\r\n2\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$1\r\np\r\n",
        abi::CMD_HELLO,
    ),
    (b"*1\r\n$5\r\nRESET\r\n", abi::CMD_RESET),
    (
        b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n",
        abi::CMD_UNCOUNTABLE,
    ),
    (b"*1\r\n$7\r\nMONITOR\r\n", abi::CMD_MONITOR),
    (
        b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$3\r\nOFF\r\n",
        abi::CMD_SILENT,
    ),
    (
        b"*3\r\n$6\r\nCLIENT\r\n$8\r\nTRACKING\r\n$2\r\non\r\n",
        abi::CMD_BARRED,
    ),
    (b"CLIENT ID\r\n", abi::SLOW_INLINE),
    (b"*1\r\nnonsense\r\n", abi::SLOW_UNREADABLE),
];

#[test]
fn an_entry_notes_which_command_ended_its_answers() {
    for (request, why) in ENDS {
        fixture::with(|bench| {
            let mut scene = connect(bench);
            fast(&mut scene);
            assert_eq!(noted(&scene), abi::SLOW_NONE);
            scene.request(request);
            let text = String::from_utf8_lossy(request);
            assert_eq!(noted(&scene), *why, "{text:?}");
            let state = scene.entry().expect("tracked").state;
            assert_eq!(u32::from(state), abi::CONN_BYPASS, "{text:?}");
        });
    }
}

/// It goes up, and says nothing of its connection.
const LPOP: &[u8] = b"*2\r\n$4\r\nLPOP\r\n$1\r\nl\r\n";

#[test]
fn an_entry_notes_which_reply_ended_its_answers_and_how_it_began() {
    let noted_after = |steps: fn(&mut Scene)| {
        fixture::with(move |bench| {
            let mut scene = connect(bench);
            steps(&mut scene);
            noted(&scene)
        })
    };
    let refused = noted_after(|scene| {
        scene.request(PING);
        scene.reply(b"-NOAUTH Authentication required.\r\n");
    });
    assert_eq!(refused, abi::SLOW_REFUSED);
    let extra = noted_after(|scene| {
        fast(scene);
        scene.request(LPOP);
        scene.reply(b"$-1\r\n$-1\r\n");
    });
    assert_eq!(extra, abi::SLOW_EXTRA);
    let lost = noted_after(|scene| {
        fast(scene);
        scene.request(LPOP);
        scene.reply(b"no reply of RESP\r\n");
    });
    assert_eq!(lost, abi::SLOW_REPLIES);
    let door = noted_after(|scene| {
        scene.bench.dp.control().set_open(abi::DOOR_UNKNOWN);
        scene.request(PING);
        scene.reply(b"+PONG\r\n");
        scene.bench.dp.control().set_open(abi::DOOR_OPEN);
    });
    assert_eq!(door, abi::SLOW_DOOR);
    assert_eq!(noted_after(older), abi::SLOW_OLDER);
}
