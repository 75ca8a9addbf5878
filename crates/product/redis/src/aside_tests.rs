// SPDX-License-Identifier: Apache-2.0 OR MIT

use erb_abi::{self as abi, ControlBlock as _};

use super::*;
use crate::clock::TICK_NS;
use crate::doubles::Recorder;

/// A load as the data path would count it.
#[derive(Clone, Copy)]
struct Load {
    reads: u64,
    /// Of 100 look-ups: found, by the whole cache and by the sample.
    found: u64,
    sampled: u64,
    /// Of 100 reads: fills.
    fills: u64,
}

/// Far more keys than entries, all the same.
const BAD: Load = Load {
    reads: 640_000,
    found: 1,
    sampled: 1,
    fills: 2,
};

const GOOD: Load = Load {
    found: 90,
    sampled: 90,
    fills: 1,
    ..BAD
};

struct Player {
    path: Recorder,
    aside: Aside,
    /// In each second.
    seen: Seen,
    now: u64,
}

impl Player {
    fn new() -> Self {
        let path = Recorder::default();
        let aside = Aside::begin(&path);
        Self {
            path,
            aside,
            seen: Seen::default(),
            now: SECOND_NS,
        }
    }

    fn count(&self, stat: abi::erb_stat, more: u64) {
        *self.path.stats.borrow_mut().entry(stat).or_default() += more;
    }

    fn tick(&mut self, load: Load) {
        let reads = load.reads * TICK_NS / SECOND_NS;
        let part = |of: u64, share: u64| of * share / 100;
        if self.path.look_mask() == 0 {
            let hits = part(reads, load.found);
            self.count(abi::STAT_FAST_GET, hits);
            self.count(abi::STAT_REFUSE_MISS, reads - hits);
            self.count(abi::STAT_FILL_INSERTED, part(reads, load.fills));
        } else {
            let looked = reads / u64::from(SAMPLE);
            let found = part(looked, load.sampled);
            self.count(abi::STAT_FAST_GET, found);
            self.count(abi::STAT_SAMPLE_FOUND, found);
            self.count(abi::STAT_REFUSE_MISS, looked - found);
            self.count(abi::STAT_SAMPLE_MISSED, looked - found);
            self.count(abi::STAT_REFUSE_ASIDE, reads - looked);
            self.count(abi::STAT_FILL_INSERTED, part(looked, load.fills));
        }
        self.now += TICK_NS;
        self.aside.tick(&self.path, self.now).unwrap();
        if self.now.is_multiple_of(SECOND_NS) {
            self.aside.second(&self.path, self.seen, self.now).unwrap();
        }
    }

    /// Plays so many seconds; the level afterwards.
    fn play(&mut self, seconds: u64, load: Load) -> u8 {
        for _ in 0..seconds * SECOND_NS / TICK_NS {
            self.tick(load);
        }
        self.aside.state().level
    }

    fn entered(&self) -> [u64; 3] {
        let [to_0, to_1, to_2, to_3] = self.aside.state().entered;
        assert_eq!(to_3, 0, "by hand alone");
        [to_0, to_1, to_2]
    }
}

#[test]
fn a_load_that_turns_bad_is_left_and_one_that_turns_good_again_is_found_within_seconds() {
    let mut player = Player::new();
    assert_eq!(player.play(20, GOOD), 0);
    assert_eq!(player.play(4, BAD), 0);
    assert_eq!(player.play(2, BAD), 1);
    assert_eq!((player.path.look_mask(), player.path.fill_mask()), (63, 0));
    assert_eq!(player.play(11, BAD), 2);
    assert_eq!(player.path.fill_mask(), 63);
    assert_eq!(player.aside.state().sample_hit_ratio, Some(0.01));
    assert_eq!(player.aside.state().why, Why::SampleLost.text());
    assert_eq!(player.play(2, GOOD), 0);
    assert_eq!(player.path.look_mask(), 0);
    assert_eq!(player.aside.state().why, Why::SamplePays.text());
    assert_eq!(player.entered(), [1, 1, 1]);
}

#[test]
fn what_costs_nothing_is_no_reason() {
    let mut player = Player::new();
    let none = Load { reads: 0, ..BAD };
    assert_eq!(player.play(100, none), 0);
    let few = Load { reads: 400, ..BAD };
    assert_eq!(player.play(100, few), 0);
    assert_eq!(player.entered(), [0; 3]);
    player.play(3, BAD);
    player.play(30, none);
    assert_eq!(player.play(2, BAD), 1, "a pause says nothing");
    assert_eq!(player.play(61, none), 0, "nobody asks any more");
    assert_eq!(player.aside.state().why, Why::Few.text());
}

#[test]
fn half_the_time_of_each_does_not_flap() {
    let mut player = Player::new();
    for _ in 0..100 {
        player.play(3, GOOD);
        player.play(3, BAD);
    }
    assert_eq!(player.entered(), [0; 3]);
}

#[test]
fn a_cold_start_is_left_to_warm_up() {
    let mut player = Player::new();
    for second in 0..20 {
        let warming = Load {
            reads: 30_000,
            found: second * 2,
            sampled: 0,
            fills: 30,
        };
        assert_eq!(player.play(1, warming), 0, "second {second}");
    }
    let scanning = Load {
        found: 0,
        fills: 30,
        ..BAD
    };
    assert_eq!(player.play(7, scanning), 1, "nothing comes of its fills");
}

#[test]
fn half_writes_count_by_the_fills_that_they_cause() {
    let mut player = Player::new();
    let written = Load {
        reads: 50_000,
        found: 60,
        sampled: 60,
        fills: 100,
    };
    assert_eq!(player.play(6, written), 1);
    assert_eq!(player.play(60, written), 2);
    assert_eq!(player.entered(), [0, 1, 1]);
    // Without these fills as many answers are worth it.
    let read = Load {
        fills: 5,
        ..written
    };
    assert_eq!(player.play(2, read), 0);
}

/// Seconds until a try has found a few hot keys that lie elsewhere.
fn seconds_to_a_try(player: &mut Player) -> u64 {
    let hot = Load { sampled: 0, ..GOOD };
    let mut waited = 0;
    while player.play(1, hot) > 0 {
        waited += 1;
        assert!(waited <= 31, "a try at the latest every 30 s");
    }
    assert_eq!(player.aside.state().why, Why::TryPays.text());
    waited
}

#[test]
fn what_the_sample_does_not_show_a_try_shows() {
    let mut player = Player::new();
    player.play(6, BAD);
    assert!(seconds_to_a_try(&mut player) <= 2, "soon");
    assert_eq!(player.aside.state().tries, 1);
    player.play(306, BAD);
    let before = player.aside.state().tries;
    assert!((9..=14).contains(&before), "{before}: then less often");
    assert!(seconds_to_a_try(&mut player) > 0);
    assert_eq!(player.aside.state().tries, before + 1);
}

#[test]
fn who_comes_back_in_vain_again_and_again_is_tried_less_and_less_often() {
    let mut player = Player::new();
    player.play(6, BAD);
    // A try pays, for nothing else is asked meanwhile; the whole does not.
    let hot = Load { sampled: 0, ..GOOD };
    let mut tried = Vec::new();
    for _ in 0..6 {
        let mut waited = 0;
        while player.aside.tried.is_none() {
            player.tick(BAD);
            waited += TICK_NS;
        }
        tried.push(waited / SECOND_NS);
        while player.aside.tried.is_some() {
            player.tick(hot);
        }
        assert_eq!(player.aside.state().level, 0);
        while player.aside.state().level == 0 {
            player.tick(BAD);
        }
    }
    assert!(tried.is_sorted() && tried[5] >= 29, "{tried:?}");
}

#[test]
fn a_try_that_fails_is_short_and_moves_the_sample() {
    let mut player = Player::new();
    player.play(6, BAD);
    let (mut open, mut samples) = (0, Vec::new());
    for _ in 0..64 * 30 * SECOND_NS / TICK_NS {
        player.tick(BAD);
        open += u64::from(player.path.look_mask() == 0);
        samples.push(player.path.look_at() % SAMPLE);
    }
    let tries = player.aside.state().tries;
    assert!((64..=68).contains(&tries), "{tries}");
    assert_eq!(open * TICK_NS, tries * TRY_NS);
    samples.sort_unstable();
    samples.dedup();
    assert_eq!(samples.len(), usize::from(SAMPLE), "each in its turn");
}

#[test]
fn a_sample_that_is_wrong_again_and_again_is_believed_more_and_more_seldom() {
    let mut player = Player::new();
    // MGETs over many sets: keys are found, whole requests are not.
    let wrong = Load { sampled: 90, ..BAD };
    player.play(3600, wrong);
    let [back, left, _] = player.entered();
    assert!((4..=9).contains(&back), "{back}");
    assert!(left - back <= 1);
    player.play(900, Load { found: 90, ..wrong });
    assert_eq!(player.aside.state().level, 0);
    player.play(6, wrong);
    assert_eq!(player.play(2, wrong), 0, "it has paid since: no doubt");
}

#[test]
fn who_only_misses_is_found_where_others_are_answered_and_nothing_warms_up() {
    let mut player = Player::new();
    player.play(3, GOOD);
    assert_eq!(player.path.vain_mask(), VAIN - 1);
    let at = player.path.look_at();
    player.play(1, GOOD);
    assert_ne!(player.path.look_at(), at, "it finds its keys in turn");
    player.play(1, Load { fills: 9, ..GOOD });
    assert_eq!(player.path.vain_mask(), 0, "fills warm the cache up");
    player.play(1, GOOD);
    player.play(1, Load { reads: 0, ..GOOD });
    assert_eq!(player.path.vain_mask(), 0);
}

#[test]
fn a_level_by_hand_stays_and_another_daemon_begins_anew() {
    let mut player = Player::new();
    player.aside.pin(&player.path, Some(2), player.now);
    assert_eq!(player.play(100, GOOD), 2);
    assert_eq!(player.aside.state().sample_hit_ratio, Some(0.9));
    assert_eq!(player.aside.state().why, Why::Pinned.text());
    player.aside.pin(&player.path, None, player.now);
    assert!(player.aside.state().why.contains("decided again"));
    assert_eq!(player.play(2, GOOD), 0);
    player.aside.pin(&player.path, Some(1), player.now);
    Aside::begin(&player.path);
    assert_eq!(player.path.look_mask(), 0);
}

#[test]
fn writes_of_what_nobody_reads_are_reason_enough() {
    let mut player = Player::new();
    let none = Load { reads: 0, ..BAD };
    let write = |player: &mut Player, seconds: u64, writes: u64| {
        for _ in 0..seconds {
            player.count(abi::STAT_MARK_TAKEN, writes);
            player.play(1, none);
        }
        player.aside.state().level
    };
    assert_eq!(write(&mut player, 100, 400), 0, "few");
    assert_eq!(write(&mut player, 4, 2_000), 0, "no haste");
    assert_eq!(write(&mut player, 2, 2_000), 1);
    assert_eq!(write(&mut player, 100, 2_000), 2, "they go on");
    assert_eq!(player.entered(), [0, 1, 1]);
    assert_eq!(write(&mut player, 62, 0), 0, "they have ended");
}

#[test]
fn answers_must_make_up_for_the_reports_of_writes_too() {
    let mut player = Player::new();
    let read = Load {
        reads: 10_000,
        found: 100,
        sampled: 100,
        fills: 0,
    };
    let beside = |player: &mut Player, seconds: u64, writes: u64| {
        for _ in 0..seconds {
            player.count(abi::STAT_MARK_TAKEN, writes);
            player.play(1, read);
        }
        player.aside.state().level
    };
    assert_eq!(beside(&mut player, 20, 10_000), 0, "as many writes");
    assert_ne!(beside(&mut player, 20, 30_000), 0, "three times as many");
}

/// Half writes: of so many requests, with hits and fills in each 100 reads.
fn half_writes(player: &mut Player, seconds: u64, requests: u64, [found, fills]: [u64; 2]) -> u8 {
    let load = Load {
        reads: requests / 2,
        found,
        sampled: found,
        fills,
    };
    for _ in 0..seconds {
        player.count(abi::STAT_MARK_TAKEN, requests / 2);
        player.play(1, load);
    }
    player.aside.state().level
}

#[test]
fn half_writes_are_left_within_a_second_if_nothing_has_paid_yet_and_else_within_two() {
    // Measured (docs/measured.md): three keys are read again for four writes.
    let measured = [30, 75];
    let mut player = Player::new();
    assert_eq!(half_writes(&mut player, 1, 40_000, measured), 2);
    assert_eq!(player.aside.state().why, Why::Hopeless.text());
    assert_eq!(player.path.fill_mask(), 63);
    half_writes(&mut player, 600, 40_000, measured);
    assert_eq!(player.entered(), [0, 0, 1], "for good");

    let mut player = Player::new();
    player.play(10, GOOD);
    assert_eq!(half_writes(&mut player, 1, 40_000, measured), 0);
    assert_eq!(half_writes(&mut player, 1, 40_000, measured), 2);
    assert_eq!(player.play(2, GOOD), 0, "reads alone come back");
    assert_eq!(player.entered(), [1, 0, 1]);
}

#[test]
fn a_second_of_writes_now_and_then_does_not_end_what_pays() {
    let mut player = Player::new();
    player.play(10, GOOD);
    for _ in 0..100 {
        half_writes(&mut player, 1, 40_000, [50, 45]);
        player.play(2, GOOD);
    }
    assert_eq!(player.entered(), [0; 3]);
}

#[test]
fn a_cache_that_warms_up_beside_few_writes_is_not_hopeless() {
    let mut player = Player::new();
    for second in 0..20 {
        player.count(abi::STAT_MARK_TAKEN, 1_500);
        let warming = Load {
            reads: 28_500,
            found: second * 4,
            sampled: 0,
            fills: 30,
        };
        assert_eq!(player.play(1, warming), 0, "second {second}");
    }
}

#[test]
fn half_writes_that_come_and_go_are_followed_and_nothing_else_is_tried() {
    let mut player = Player::new();
    player.play(10, GOOD);
    for _ in 0..200 {
        half_writes(&mut player, 3, 40_000, [50, 45]);
        player.play(3, GOOD);
    }
    assert_eq!(
        player.entered(),
        [200, 0, 200],
        "as often as the load turns"
    );
    assert_eq!(player.path.look_mask(), 0, "reads alone are answered");
}

#[test]
fn hashes_are_dearer_to_read() {
    let mut player = Player::new();
    let few_fills = [95, 5];
    assert_eq!(half_writes(&mut player, 20, 40_000, few_fills), 0);
    player.seen.hashes = 1_000;
    assert_ne!(half_writes(&mut player, 6, 40_000, few_fills), 0);
}

#[test]
fn answered_writes_pay_where_reads_do_not() {
    let mut player = Player::new();
    player.seen.reported = 1_000_000;
    for _ in 0..20 {
        player.count(abi::STAT_MARK_TAKEN, 1_000);
        player.play(1, BAD);
    }
    assert!(player.aside.shown().is_lost);
    player.count(abi::STAT_MARK_TAKEN, 1_000);
    player.count(abi::STAT_ABSORBED, 2_000);
    player.play(1, BAD);
    assert!(player.aside.shown().pays);
}
