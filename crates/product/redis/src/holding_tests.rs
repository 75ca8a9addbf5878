// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What comes again, when and in which order; what is kept at most.

use erb_abi::{ControlBlock as _, INJECT_DONE, INJECT_FULL, INJECT_GONE, INJECT_WAITS, conn_key};

use super::*;
use crate::doubles::{Recorder, Stand};

const HOLD_MAX_NS: u64 = 1000 * MS;

/// A packet of this client, of two bytes, which waits for this LSN.
fn held(client: u16, seq: u32, waits_for: u64) -> HeldPacket {
    HeldPacket {
        key: conn_key {
            client_port_be: client,
            ..conn_key::default()
        },
        cookie: client.into(),
        waits_for,
        syncs: false,
        delay: None,
        seq,
        payload_bytes: 2,
        ifindex: 3,
        frame: format!("{client}:{seq}").into_bytes(),
    }
}

struct Bench {
    holding: Holding,
    path: Recorder,
    machine: Stand,
}

impl Bench {
    fn new() -> Self {
        Self {
            holding: Holding::new(HOLD_MAX_NS),
            path: Recorder::default(),
            machine: Stand::default(),
        }
    }

    /// These come, and a turn at this time; what came again.
    fn turn(&mut self, now: u64, new: impl IntoIterator<Item = HeldPacket>) -> Vec<String> {
        self.path.held.borrow_mut().extend(new);
        let done = self.holding.turn(&mut self.path, &self.machine, now);
        done.expect("a turn");
        self.path.take_log()
    }

    fn give(&self, lsn: u64, drained: u64) {
        self.path.control().give_lsns(lsn);
        self.path.control().set_drained(drained);
    }
}

#[test]
fn copies_come_again_in_order_when_all_that_they_wait_for_is_drained() {
    let mut bench = Bench::new();
    bench.give(9, 0);
    assert_eq!(bench.holding.next_ns(), None);
    let new = [held(1, 10, 3), held(2, 50, 2), held(1, 12, 4)];
    assert!(bench.turn(0, new).is_empty());
    assert_eq!(bench.holding.next_ns(), Some(LOOK_NS));
    // What its client repeats meanwhile is there.
    assert!(bench.turn(1, [held(1, 10, 3), held(1, 12, 4)]).is_empty());
    let state = bench.holding.state();
    assert_eq!((state.connections, state.packets, state.bytes), (2, 3, 12));
    bench.give(9, 3);
    assert_eq!(bench.turn(MS, []), ["inject 2:50"], "the other waits for 4");
    bench.give(9, 4);
    assert!(bench.turn(MS + 1, []).is_empty(), "not looked at so soon");
    assert_eq!(bench.turn(2 * MS, []), ["inject 1:10", "inject 1:12"]);
    assert_eq!(bench.holding.state(), HoldingState::default());
    assert_eq!(bench.holding.next_ns(), None);
}

#[test]
fn what_the_program_says_decides() {
    let mut bench = Bench::new();
    bench.give(9, 5);
    let said = [(INJECT_WAITS, 7), (INJECT_GONE, 0), (INJECT_FULL, 0)];
    bench.path.injected.borrow_mut().extend(said);
    let new = [
        held(1, 10, 3),
        held(1, 12, 3),
        held(2, 50, 2),
        held(2, 52, 2),
        held(3, 1, 1),
    ];
    let came = bench.turn(0, new);
    assert_eq!(came, ["inject 1:10", "inject 2:50", "inject 3:1"]);
    assert_eq!(
        bench.holding.next_ns(),
        Some(0),
        "the kernel may take it at once"
    );
    let state = bench.holding.state();
    assert_eq!(
        (state.connections, state.packets),
        (2, 3),
        "the second is gone"
    );
    assert_eq!(bench.turn(0, []), ["inject 3:1"]);
    bench.give(9, 7);
    bench.path.injected.borrow_mut().push_back((INJECT_DONE, 0));
    assert_eq!(bench.turn(MS, []), ["inject 1:10", "inject 1:12"]);
    assert_eq!(bench.holding.state(), HoldingState::default());
}

/// Its device is down, or gone: others do not wait for that, and nobody tries it all the time.
#[test]
fn what_the_kernel_does_not_take_for_long_is_left_to_its_client() {
    let mut bench = Bench::new();
    bench.give(9, 5);
    let by_another = HeldPacket {
        ifindex: 4,
        ..held(3, 1, 1)
    };
    let new = [held(1, 10, 3), held(2, 50, 3), by_another];
    let full = (INJECT_FULL, 0);
    bench.path.injected.borrow_mut().push_back(full);
    assert_eq!(bench.turn(0, new), ["inject 1:10"]);
    bench.path.injected.borrow_mut().push_back(full);
    assert_eq!(bench.turn(REFUSED_NS - 1, []), ["inject 1:10"]);
    assert_eq!(bench.holding.next_ns(), Some(REFUSED_NS - 1));
    bench.path.injected.borrow_mut().extend([full, full]);
    let tried = ["inject 1:10", "inject 2:50", "inject 3:1"];
    assert_eq!(bench.turn(REFUSED_NS, []), tried);
    assert_eq!(bench.holding.state(), HoldingState::default());
    // Once it has taken one, another refusal is of a moment.
    bench.turn(REFUSED_NS, [held(1, 10, 3)]);
    bench.path.injected.borrow_mut().push_back(full);
    bench.turn(9 * REFUSED_NS, [held(1, 10, 3)]);
    assert_eq!(bench.holding.state().packets, 1);
}

#[test]
fn who_waits_too_long_is_ended_with_or_without_a_copy() {
    let mut bench = Bench::new();
    bench.give(9, 0);
    let without = HeldPacket {
        frame: Vec::new(),
        ..held(2, 50, 2)
    };
    // Whose socket nobody has named is left alone.
    let unnamed = HeldPacket {
        cookie: UNNAMED,
        ..held(4, 1, 3)
    };
    bench.turn(0, [held(1, 10, 3), without, unnamed]);
    bench.turn(HOLD_MAX_NS / 2, [held(3, 1, 3)]);
    assert_eq!(bench.holding.state().since_ns, Some(0));
    bench.turn(HOLD_MAX_NS, []);
    assert!(bench.machine.destroyed.borrow().is_empty());
    assert!(bench.turn(HOLD_MAX_NS + LOOK_NS, []).is_empty());
    assert_eq!(*bench.machine.destroyed.borrow(), [1, 2]);
    let state = bench.holding.state();
    assert_eq!((state.connections, state.packets, state.ended), (1, 1, 2));
    // Who need not wait any more is not ended, however late it is.
    bench.give(9, 3);
    assert_eq!(bench.turn(9 * HOLD_MAX_NS, []), ["inject 3:1"]);
    assert_eq!(bench.holding.state().ended, 2);
}

/// Who asks who has his writes waits as long as he says, once these are drained; else as everybody does.
#[test]
fn who_waits_for_replicas_is_ended_when_he_would_not_wait_longer() {
    let mut bench = Bench::new();
    bench.give(9, 0);
    let wait = |client: u16, text: &str| {
        let frame = [b"heads", text.as_bytes()].concat();
        HeldPacket {
            syncs: true,
            payload_bytes: u32::try_from(text.len()).expect("short"),
            frame,
            ..held(client, 10, 3)
        }
    };
    let new = [
        wait(1, "WAIT 1 3500\r\n"),
        wait(2, "WAIT 1 0\r\n"),
        wait(3, "EVALSHA x 0\r\n"),
        wait(4, "WAITAOF 1 0 10\r\n"),
    ];
    bench.turn(0, new);
    bench.give(9, 3);
    let ended = |bench: &mut Bench, ms: u64| {
        bench.turn(ms * MS, []);
        bench.machine.destroyed.borrow().clone()
    };
    assert_eq!(ended(&mut bench, 1_000), []);
    assert_eq!(ended(&mut bench, 1_001), [3]);
    assert_eq!(ended(&mut bench, 3_000), [3], "two askings and a sync");
    assert_eq!(ended(&mut bench, 3_001), [3, 4]);
    assert_eq!(ended(&mut bench, 3_500), [3, 4]);
    assert_eq!(ended(&mut bench, 3_501), [3, 4, 1]);
    assert_eq!(ended(&mut bench, 599_000), [3, 4, 1], "for ever");
    assert_eq!(ended(&mut bench, 600_001), [3, 4, 1, 2], "nearly");
    // Where the drain itself stands still all wait alike.
    let mut bench = Bench::new();
    bench.give(9, 0);
    bench.turn(0, [wait(1, "WAIT 1 3500\r\n")]);
    assert_eq!(ended(&mut bench, 1_001), [1]);
}

#[test]
fn what_is_kept_is_bounded() {
    let mut bench = Bench::new();
    bench.holding.bounds = Bounds {
        of_one: 2,
        packets: 4,
        bytes: 16,
        connections: 3,
    };
    bench.give(9, 0);
    let kept = |bench: &Bench| {
        let state = bench.holding.state();
        (state.connections, state.packets, state.left_out)
    };
    bench.turn(0, (0..3).map(|n| held(1, 10 + 2 * n, 1)));
    assert_eq!(kept(&bench), (1, 2, 1), "of one connection");
    bench.turn(0, [held(2, 1, 1), held(3, 1, 1)]);
    assert_eq!(kept(&bench), (3, 4, 1));
    bench.turn(0, [held(4, 1, 1)]);
    assert_eq!(kept(&bench), (3, 4, 2), "too many connections");
    bench.turn(0, [held(2, 3, 1)]);
    assert_eq!(kept(&bench), (3, 4, 3), "too many packets");
    bench.give(9, 1);
    assert_eq!(bench.turn(MS, []).len(), 4);
    let long = HeldPacket {
        frame: vec![b'x'; 17],
        ..held(1, 1, 2)
    };
    bench.turn(MS, [long]);
    assert_eq!(kept(&bench), (1, 0, 4), "too many bytes");
}

/// Others find room, however many ask who has their writes.
#[test]
fn who_waits_for_replicas_fills_a_part_of_the_room() {
    let mut bench = Bench::new();
    bench.holding.bounds = Bounds {
        of_one: 8,
        packets: 8,
        bytes: 80,
        connections: 16,
    };
    bench.give(9, 3);
    let asks = |client, seq| HeldPacket {
        syncs: true,
        ..held(client, seq, 3)
    };
    let kept = |bench: &Bench| {
        let state = bench.holding.state();
        (state.connections, state.packets, state.left_out)
    };
    // What one has said before counts when he begins to ask.
    bench.turn(0, [held(1, 10, 9), asks(1, 12)]);
    assert_eq!(kept(&bench), (1, 2, 0));
    bench.turn(0, (2..6).map(|client| asks(client, 1)));
    assert_eq!(kept(&bench), (4, 2, 4), "packets; and one connection");
    bench.turn(0, (10..16).map(|client| held(client, 1, 9)));
    assert_eq!(kept(&bench), (10, 8, 4), "others have the rest");
    let long = HeldPacket {
        frame: vec![b'x'; 21],
        ..asks(1, 14)
    };
    bench.path.control().set_synced(1, 9);
    bench.give(9, 9);
    bench.turn(MS, []);
    assert_eq!(kept(&bench), (0, 0, 4));
    bench.path.control().begin_sync();
    bench.turn(MS, [long]);
    assert_eq!(kept(&bench), (1, 0, 5), "bytes");
    // All that is gone is counted as gone.
    bench.turn(MS, [asks(2, 1), asks(3, 1), asks(4, 1)]);
    assert_eq!(kept(&bench), (4, 2, 6));
}

#[test]
fn a_turn_takes_no_more_than_the_backlog_has_room_for() {
    let mut bench = Bench::new();
    bench.give(1, 1);
    let new = (0..PER_TURN as u16 + 2).map(|client| held(client, 1, 1));
    assert_eq!(bench.turn(0, new).len(), PER_TURN);
    assert_eq!(bench.holding.next_ns(), Some(0));
    assert_eq!(bench.turn(0, []).len(), 2);
    assert_eq!(bench.holding.next_ns(), None);
}

/// Where more wait than a turn takes, a low address is no privilege, and who is delayed once more goes to the end.
#[test]
fn who_came_first_comes_again_first() {
    let late = |client: u16| HeldPacket {
        delay: Some(Delay::Late),
        ..held(client, 1, 3)
    };
    let mut bench = Bench::new();
    bench.give(9, 3);
    bench.path.control().set_absorb(true);
    let (old, each) = (4 * YOUNG_NS, PER_TURN as u16);
    for block in (0..3).rev() {
        let at = old - u64::from(block);
        bench.turn(at, (block * each..(block + 1) * each).rev().map(late));
    }
    bench.path.control().set_fresh_ns(old);
    for block in (0..3).rev() {
        let some = bench.turn(old + MS, []);
        assert_eq!(some.len(), PER_TURN);
        // As soon as they come they are delayed again.
        let clients = some.iter().filter_map(|line| {
            let client = line.strip_prefix("inject ")?.split_once(':')?.0;
            client.parse::<u16>().ok()
        });
        bench
            .path
            .held
            .borrow_mut()
            .extend(clients.clone().map(late));
        let mut came: Vec<u16> = clients.collect();
        came.sort_unstable();
        let those: Vec<u16> = (block * each..(block + 1) * each).collect();
        assert_eq!(came, those);
    }
}

#[test]
fn a_write_that_is_delayed_comes_again_when_there_is_room_for_it() {
    let late = |client, seq| HeldPacket {
        delay: Some(Delay::Late),
        ..held(client, seq, 3)
    };
    let mut bench = Bench::new();
    bench.give(9, 3);
    bench.path.control().set_absorb(true);
    let old = 4 * YOUNG_NS;
    assert!(
        bench.turn(old, [late(1, 10)]).is_empty(),
        "what waits is old"
    );
    assert_eq!(bench.holding.next_ns(), Some(old + LOOK_NS));
    // What is drained makes it young.
    bench.path.control().set_fresh_ns(old);
    let at = old + YOUNG_NS - 1;
    assert_eq!(bench.turn(at, []), ["inject 1:10"]);
    assert!(bench.turn(at + 1, [late(1, 12)]).is_empty());
    // Or all is, or SETs go up from now on.
    bench.give(9, 9);
    assert_eq!(bench.turn(at + MS, []), ["inject 1:12"]);
    bench.give(10, 9);
    assert!(bench.turn(at + 2 * MS, [late(2, 10)]).is_empty());
    bench.path.control().set_absorb(false);
    assert_eq!(bench.turn(at + 3 * MS, []), ["inject 2:10"]);
    // Nobody keeps it for longer than the data path would.
    bench.path.control().set_absorb(true);
    assert!(bench.turn(at + 4 * MS, [late(3, 10)]).is_empty());
    let end = at + 4 * MS + u64::from(erb_abi::DELAY_NS) / 2;
    assert_eq!(bench.turn(end, []), ["inject 3:10"]);
}

#[test]
fn behind_a_command_it_comes_again_in_a_moment() {
    let mut bench = Bench::new();
    bench.give(9, 9);
    bench.path.control().set_absorb(true);
    let marked = HeldPacket {
        delay: Some(Delay::Marked),
        ..held(1, 10, 3)
    };
    assert!(bench.turn(MS, [marked]).is_empty());
    bench.holding.look();
    assert!(bench.turn(MS + 1, []).is_empty(), "a reply takes longer");
    assert_eq!(bench.turn(2 * MS, []), ["inject 1:10"]);
}
