// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SETs that are answered in Redis's place (bpf/splice/absorb.h, bpf/redis/absorb.h): what they answer, what their
//! records say, and which are left to Redis. Nothing is drained here.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use erb_abi::{
    ControlPlane as _, DELAY_MARK_NS, Delay, LOG_BYTES, LogWriter, Logs, Recorded, STUCK_NS,
    Written,
};
use erb_packets::fixture::{self, Bench};
use erb_packets::row::moved;
use erb_packets::scene::{
    META_TO_TC, Scene, TCX_DROP, TCX_NEXT, V4, V4_BARE, V4_NO_TS, V4_VLAN, V6, V6_VLAN, XDP_DROP,
    XDP_PASS, XDP_TX,
};
use erb_wire::resp::command;

use crate::order::the_copy;
use crate::{GET_KEY, SET_KEY, bulk, fast, get, spliced};

/// A write of a key that the rows use for nothing else: what goes up leaves its mark.
const SET_NOPE: &[u8] = b"*3\r\n$3\r\nSET\r\n$4\r\nnope\r\n$1\r\n1\r\n";

/// How far the clocks of a test and of the program may be apart.
const CLOCKS_APART_MS: u64 = 60_000;

/// The log, from where it stood when it was opened.
struct Log {
    logs: Logs,
    from: Vec<u64>,
}

impl Log {
    /// Opens the door to absorption; [`Drop`] shuts it, and all is drained.
    fn open(bench: &Bench) -> Self {
        let logs = bench.logs();
        let control = bench.dp.control();
        control.set_watch(logs.count() as u32);
        control.set_absorb(true);
        // Whatever waits is not late, however slow the test.
        logs.set_drained(logs.lsn(), u64::MAX >> 1);
        let from = (0..logs.count()).map(|ring| logs.head(ring)).collect();
        Self { logs, from }
    }

    /// What was appended since, in the order of LSNs.
    fn take(&mut self) -> Vec<Recorded> {
        let mut records = Vec::new();
        for ring in 0..self.logs.count() {
            while self.from[ring] < self.logs.head(ring) {
                let (record, next) = self.logs.record(ring, self.from[ring]);
                records.push(record);
                self.from[ring] = next;
            }
        }
        records.sort_by_key(|record| record.lsn);
        records
    }

    fn drain(&self) {
        for ring in 0..self.logs.count() {
            self.logs.set_tail(ring, self.logs.head(ring));
        }
        self.logs.set_drained(self.logs.lsn(), 0);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.drain();
    }
}

/// A bench at which writes may be answered; not any more behind it.
fn absorbing(work: impl FnOnce(&mut Bench, &mut Log) + Send + 'static) {
    fixture::with(|bench| {
        let mut log = Log::open(bench);
        work(bench, &mut log);
        let control = bench.dp.control();
        control.set_absorb(false);
        control.set_watch(0);
    });
}

fn counts(scene: &Scene, before: &[u64]) -> Vec<(&'static str, u64)> {
    let mut counted = moved(before, &scene.bench.stats());
    counted.retain(|name, _| !name.starts_with("EGRESS_") && !name.starts_with("CACHE_"));
    counted.into_iter().collect()
}

/// Sends a request by XDP. Returns the answer, if it was answered there.
fn ask(scene: &mut Scene, request: &[u8]) -> Option<Vec<u8>> {
    let segment = scene.segment(request);
    let outcome = scene.up(&segment);
    (outcome.verdict == XDP_TX).then(|| scene.take_answer(&outcome))
}

/// Takes what a SET has put into the cache out of it: the next row fills it.
fn forget_key(scene: &Scene) {
    let forgotten = scene.bench.dp.invalidate(&[b"key"]);
    forgotten.expect("erb_invalidate");
}

/// Whether no CPU says that it is at a write, and the entry is not at one either.
fn is_over(scene: &Scene) -> bool {
    let entry = scene.entry().expect("tracked");
    let idle = (0..scene.bench.logs().count()).all(|cpu| scene.bench.busy(cpu) as u32 == 0);
    idle && u32::from(entry.spoke) & erb_abi::ABSORBING == 0
}

#[test]
fn a_plain_set_is_answered_and_its_record_says_what_it_said() {
    for shape in [V4, V6, V4_NO_TS, V4_BARE, V4_VLAN, V6_VLAN] {
        for begin in [fast as fn(&mut Scene), spliced] {
            absorbing(move |bench, log| {
                let mut scene = Scene::connect(bench, shape);
                begin(&mut scene);
                let (before, lsn) = (scene.bench.stats(), scene.bench.dp.control().lsn());
                assert_eq!(ask(&mut scene, SET_KEY).as_deref(), Some(&b"+OK\r\n"[..]));
                let counted = counts(&scene, &before);
                assert!(counted.contains(&("ABSORBED", 1)), "{counted:?}");
                assert!(counted.contains(&("FAST_PACKET", 1)), "{counted:?}");
                let record = Recorded {
                    lsn: lsn + 1,
                    db: 0,
                    key: b"key".to_vec(),
                    value: b"1".to_vec(),
                    expiry_ms: 0,
                };
                assert_eq!(log.take(), [record]);
                assert!(is_over(&scene));
                // Read back at once, though Redis knows nothing of it.
                assert_eq!(ask(&mut scene, GET_KEY), Some(bulk(b"1")));
                scene.bench.empty_cache();
                forget_key(&scene);
            });
        }
    }
}

#[test]
fn what_goes_up_behind_it_waits_for_it() {
    absorbing(|bench, log| {
        let mut scene = Scene::connect(bench, V4);
        fast(&mut scene);
        assert!(ask(&mut scene, SET_KEY).is_some());
        let before = scene.bench.stats();
        let segment = scene.segment(b"*2\r\n$4\r\nINCR\r\n$3\r\nkey\r\n");
        let outcome = scene.xdp(&segment.bytes());
        assert_eq!(outcome.verdict, XDP_DROP);
        assert!(counts(&scene, &before).contains(&("HELD", 1)));
        let lsn = scene.bench.dp.control().lsn();
        assert_eq!(scene.entry().expect("tracked").waits_for, lsn);
        log.drain();
        assert_eq!(scene.up(&segment).verdict, XDP_PASS);
    });
}

#[test]
fn times_are_absolute_in_the_record_and_the_entry_ends_with_them() {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("now")
        .as_millis() as u64;
    let at_s = (now / 1000 + 500).to_string();
    let at_ms = (now + 500_000).to_string();
    let cases = [
        ("EX", "500".to_owned()),
        ("px", "500000".to_owned()),
        ("EXAT", at_s),
        ("PxAt", at_ms),
    ];
    for (option, number) in cases {
        absorbing(move |bench, log| {
            let control = bench.dp.control();
            control.set_wall_minus_mono_ns(wall_minus_monotonic_ns());
            let mut scene = Scene::connect(bench, V4);
            fast(&mut scene);
            let set = command(&[
                b"SET",
                b"key",
                b"timed",
                option.as_bytes(),
                number.as_bytes(),
            ]);
            assert_eq!(
                ask(&mut scene, &set).as_deref(),
                Some(&b"+OK\r\n"[..]),
                "{option}"
            );
            let records = log.take();
            let expiry_ms = records[0].expiry_ms;
            assert!(
                expiry_ms.abs_diff(now + 500_000) < CLOCKS_APART_MS,
                "{option}: {expiry_ms}"
            );
            assert_eq!(records[0].value, b"timed");
            assert_eq!(ask(&mut scene, GET_KEY), Some(bulk(b"timed")));
            // The wall clock goes past it: it is not answered any more.
            let control = scene.bench.dp.control();
            control.set_wall_minus_mono_ns(wall_minus_monotonic_ns() + 600_000_000_000);
            let late = scene.segment(GET_KEY);
            assert_eq!(scene.xdp(&late.bytes()).verdict, XDP_DROP, "{option}");
            log.drain();
            forget_key(&scene);
        });
    }
}

/// What the daemon keeps in the control block.
fn wall_minus_monotonic_ns() -> i64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("a clock");
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).expect("now");
    wall.as_nanos() as i64 - (now.tv_sec() * 1_000_000_000 + now.tv_nsec())
}

#[test]
fn what_redis_is_to_judge_goes_up_as_it_came() {
    let long = vec![b'k'; erb_abi::KEY_BYTES_MAX as usize + 1];
    let sets: Vec<(Vec<u8>, &str)> = vec![
        (command(&[b"SET", b"nope", b"v", b"NX"]), "REFUSE_COMMAND"),
        (command(&[b"SET", b"nope", b"v", b"GET"]), "REFUSE_COMMAND"),
        (command(&[b"SET", b"nope"]), "REFUSE_COMMAND"),
        (
            command(&[b"SET", b"nope", b"v", b"NX", b"GET"]),
            "ABSORB_FORM",
        ),
        (
            command(&[b"SET", b"nope", b"v", b"EX", b"0"]),
            "ABSORB_FORM",
        ),
        (
            command(&[b"SET", b"nope", b"v", b"EX", b"-1"]),
            "ABSORB_FORM",
        ),
        (
            command(&[b"SET", b"nope", b"v", b"EX", b"+1"]),
            "ABSORB_FORM",
        ),
        (
            command(&[b"SET", b"nope", b"v", b"EX", b"01"]),
            "ABSORB_FORM",
        ),
        (
            command(&[b"SET", b"nope", b"v", b"EX", b"1 "]),
            "ABSORB_FORM",
        ),
        (command(&[b"SET", b"nope", b"v", b"EX", b""]), "ABSORB_FORM"),
        (
            command(&[b"SET", b"nope", b"v", b"EX", b"1000000000000000"]),
            "ABSORB_FORM",
        ),
        (
            command(&[b"SET", b"nope", b"v", b"EXAT", b"1000"]),
            "ABSORB_FORM",
        ),
        (
            command(&[b"SET", b"nope", b"v", b"PXAT", b"1000"]),
            "ABSORB_FORM",
        ),
        (
            command(&[b"SET", b"nope", b"v", b"EZ", b"10"]),
            "ABSORB_FORM",
        ),
        (
            command(&[b"SET", b"nope", b"v", b"EX\0\0", b"10"]),
            "ABSORB_FORM",
        ),
        (command(&[b"SET", b"", b"v"]), "ABSORB_FORM"),
        (command(&[b"SET", &long, b"v"]), "ABSORB_FORM"),
        ([SET_NOPE, SET_NOPE].concat(), "ABSORB_FORM"),
        ([SET_NOPE, &SET_NOPE[..9]].concat(), "ABSORB_FORM"),
        (SET_NOPE[..SET_NOPE.len() - 3].to_vec(), "ABSORB_FORM"),
        (
            b"*3\r\n$3\r\nSET\r\n$04\r\nnope\r\n$1\r\nv\r\n".to_vec(),
            "ABSORB_FORM",
        ),
    ];
    for (set, reason) in sets {
        absorbing(move |bench, log| {
            let mut scene = Scene::connect(bench, V4);
            fast(&mut scene);
            let text = String::from_utf8_lossy(&set).into_owned();
            let before = scene.bench.stats();
            let segment = scene.segment(&set);
            let outcome = scene.xdp(&segment.bytes());
            assert_eq!(outcome.verdict, XDP_PASS, "{text}");
            assert_eq!(
                outcome.frame,
                segment.bytes(),
                "{text}: nothing was spliced, so nothing is translated"
            );
            let counted = counts(&scene, &before);
            assert!(counted.contains(&(reason, 1)), "{text}: {counted:?}");
            assert!(
                !counted.iter().any(|(name, _)| *name == "ABSORBED"),
                "{text}"
            );
            assert!(log.take().is_empty() && is_over(&scene), "{text}");
        });
    }
}

#[test]
fn what_stands_in_the_way_keeps_it_from_being_answered() {
    /// What stands in the way, how it comes to, and what is counted.
    type Obstacle = (&'static str, fn(&mut Scene), &'static str);
    let cases: [Obstacle; 6] = [
        (
            "a write of its own connection",
            |s| {
                s.request(b"*2\r\n$4\r\nINCR\r\n$4\r\nnope\r\n");
            },
            "ABSORB_MARKED",
        ),
        (
            "no lease",
            |s| s.bench.dp.control().set_lease_until_ns(0),
            "REFUSE_LEASE",
        ),
        (
            "the gate is shut",
            |s| {
                let control = s.bench.dp.control();
                control.set_gate_ack(control.gate_seen() + 1);
            },
            "REFUSE_FENCE",
        ),
        (
            "not serving",
            |s| s.bench.dp.control().set_serving(0),
            "REFUSE_NOT_SERVING",
        ),
        (
            "access rules moved",
            |s| {
                let control = s.bench.dp.control();
                control.set_rights(control.rights() + 1);
            },
            "REFUSE_RIGHTS",
        ),
        (
            "SET is not Redis's own",
            |s| {
                s.bench
                    .dp
                    .control()
                    .set_fast_off(1 << erb_abi::USUAL_KIND_SET);
            },
            "REFUSE_COMMAND",
        ),
    ];
    for (what, obstacle, reason) in cases {
        absorbing(move |bench, log| {
            let mut scene = Scene::connect(bench, V4);
            fast(&mut scene);
            obstacle(&mut scene);
            let before = scene.bench.stats();
            let segment = scene.segment(SET_NOPE);
            assert_eq!(scene.xdp(&segment.bytes()).verdict, XDP_PASS, "{what}");
            let counted = counts(&scene, &before);
            assert!(counted.contains(&(reason, 1)), "{what}: {counted:?}");
            assert!(log.take().is_empty() && is_over(&scene), "{what}");
            scene.bench.open_for_service();
        });
    }
}

#[test]
fn a_ring_is_filled_and_what_finds_no_room_is_delayed() {
    absorbing(|bench, log| {
        let mut ring = bench.dp.held_ring().expect("erb_held");
        ring.drain();
        let mut scene = Scene::connect(bench, V4);
        fast(&mut scene);
        let value = vec![b'v'; 1_300];
        for ring in 0..log.logs.count() {
            let mut writer = LogWriter::new(&log.logs, ring);
            while writer.room() >= 4_096 {
                writer.put(&Written {
                    lsn: 0,
                    key: b"filler",
                    value: &value,
                    ..Written::default()
                });
            }
        }
        let mut absorbed = 0;
        let before = loop {
            let before = scene.bench.stats();
            if ask(&mut scene, SET_KEY).is_none() {
                break before;
            }
            absorbed += 1;
            assert!(absorbed < 10_000, "a ring has an end");
        };
        assert!(counts(&scene, &before).contains(&("ABSORB_DELAYED", 1)));
        let copy = the_copy(&mut ring);
        assert_eq!(copy.delay, Some(Delay::Late));
        log.drain();
    });
}

/// A command of its set has no reply yet: the SET waits as a copy, and when that was for long it goes up.
#[test]
fn behind_a_command_it_is_delayed_and_then_goes_up() {
    for by_tc in [false, true] {
        absorbing(move |bench, log| {
            let mut ring = bench.dp.held_ring().expect("erb_held");
            ring.drain();
            let mut scene = Scene::connect(bench, V4);
            fast(&mut scene);
            // Its mark is as another connection's would be: here nothing is unanswered.
            scene.request(b"*2\r\n$4\r\nINCR\r\n$4\r\nnope\r\n");
            scene.edit(|entry| entry.replies = entry.requests);
            let segment = scene.segment(SET_NOPE);
            let sends = |scene: &Scene| {
                if by_tc {
                    scene.ingress(&segment.bytes(), 0).verdict
                } else {
                    scene.xdp(&segment.bytes()).verdict
                }
            };
            let (drops, passes) = if by_tc {
                (TCX_DROP, TCX_NEXT)
            } else {
                (XDP_DROP, XDP_PASS)
            };
            let before = scene.bench.stats();
            assert_eq!(sends(&scene), drops);
            let copy = the_copy(&mut ring);
            assert_eq!(copy.delay, Some(Delay::Marked));
            assert_eq!(copy.frame, segment.bytes());
            let next = scene.entry().expect("tracked").next;
            assert_eq!(next, segment.seq, "for TCP it has not come");
            // Twice and more: a program reads the time by ticks.
            std::thread::sleep(Duration::from_nanos(4 * u64::from(DELAY_MARK_NS)));
            assert_eq!(sends(&scene), passes, "it has waited for long");
            let counted = counts(&scene, &before);
            for name in ["ABSORB_DELAYED", "ABSORB_MARKED", "HELD_COPIED"] {
                assert!(counted.contains(&(name, 1)), "{name}: {counted:?}");
            }
            assert!(log.take().is_empty() && is_over(&scene));
            // The other tier's row is not to find that the set is known for it.
            std::thread::sleep(Duration::from_nanos(2 * u64::from(STUCK_NS)));
        });
    }
}

#[test]
fn a_record_runs_over_the_ring_s_end() {
    absorbing(|bench, log| {
        let mut scene = Scene::connect(bench, V4);
        fast(&mut scene);
        log.drain();
        for ring in 0..log.logs.count() {
            let at = (log.logs.head(ring) / u64::from(LOG_BYTES) + 1) * u64::from(LOG_BYTES) - 64;
            LogWriter::new(&log.logs, ring).begin_at(at);
            log.from[ring] = at;
        }
        let value: Vec<u8> = (0..1_000_u32).map(|byte| byte as u8).collect();
        for round in 0..3_u8 {
            let key = [b'k', round];
            let set = command(&[b"SET", &key, &value]);
            assert_eq!(ask(&mut scene, &set).as_deref(), Some(&b"+OK\r\n"[..]));
        }
        let records = log.take();
        assert_eq!(records.len(), 3);
        for (record, round) in records.iter().zip(0..) {
            assert_eq!(
                (&record.key[..], &record.value),
                (&[b'k', round][..], &value)
            );
        }
        assert!(records.windows(2).all(|two| two[0].lsn + 1 == two[1].lsn));
        // Too large for the classes that a SET's own entry may have: nothing old is answered, either.
        let (before, miss) = (scene.bench.stats(), scene.segment(&get("k\0")).bytes());
        scene.xdp(&miss);
        assert!(
            !counts(&scene, &before)
                .iter()
                .any(|(name, _)| *name == "FAST_GET")
        );
    });
}

/// The kernel has not got the acknowledgement that the SET brings: the TC tier answers it, and hands that on.
#[test]
fn the_tc_tier_absorbs_what_the_kernel_must_hear_of() {
    for shape in [V4, V6] {
        absorbing(move |bench, log| {
            bench.live(|bench| {
                let mut scene = Scene::connect(bench, shape);
                scene.make_answered();
                let before = scene.bench.stats();
                let segment = scene.segment(SET_KEY);
                let outcome = scene.xdp(&segment.bytes());
                assert_eq!(
                    (outcome.verdict, outcome.meta),
                    (XDP_PASS, Some(META_TO_TC))
                );
                assert!(log.take().is_empty());
                scene.snd = scene.snd.wrapping_add(SET_KEY.len() as u32);
                scene.to_kernel(&segment.bytes());
                let answer = scene.expect_from_kernel(|segment| !segment.payload.is_empty());
                assert_eq!(answer.payload, b"+OK\r\n");
                assert_eq!(answer.ack, scene.snd);
                scene.rcv = scene.rcv.wrapping_add(5);
                let counted = counts(&scene, &before);
                assert!(counted.contains(&("FAST_PACKET_TC", 1)), "{counted:?}");
                assert!(counted.contains(&("ABSORBED", 1)), "{counted:?}");
                assert_eq!(log.take().len(), 1);
                assert!(is_over(&scene));
                assert_eq!(scene.info().tcpi_unacked, 0, "the kernel knows");
                forget_key(&scene);
            });
        });
    }
}

/// What the programs of the TC tier say to a packet that no program has seen.
#[test]
fn tc_alone_absorbs_as_well() {
    absorbing(|bench, log| {
        let mut scene = Scene::connect(bench, V4);
        fast(&mut scene);
        let segment = scene.segment(SET_KEY);
        assert_eq!(scene.ingress(&segment.bytes(), 0).verdict, TCX_NEXT);
        assert_eq!(log.take().len(), 1);
        forget_key(&scene);
    });
}
