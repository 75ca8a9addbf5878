// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine when the kernel refuses, takes less, and completes in other orders: one case after the other.

use super::tests::{Does, Fake, content, drive, engine, file, now, options};
use super::*;

const SENDS: u64 = 6;
const SEND_BYTES: u64 = 20_000;

/// So many ranges, each with bytes before it, so that each is a send of its own.
fn queue_sends(engine: &mut Engine<Fake>, file: &Arc<MappedFile>) -> Vec<u8> {
    let content = content();
    let mut wanted = Vec::new();
    for number in 0..SENDS {
        let range = number * SEND_BYTES..(number + 1) * SEND_BYTES;
        engine.queue_bytes(vec![number as u8; 3]);
        wanted.extend_from_slice(&[number as u8; 3]);
        wanted.extend_from_slice(&content[range.start as usize..range.end as usize]);
        engine.queue_range(file, range);
    }
    wanted
}

/// With sends in flight that range is copied and the next is tried again; with none the limit itself is too low.
#[test]
fn without_buffers_at_any_send_that_one_is_copied_and_nothing_waits() {
    for refused in 0..SENDS {
        let (sender, file) = (Sender::new(options()), file());
        let mut engine = engine(0);
        let wanted = queue_sends(&mut engine, &file);
        // Each range is the second call of two.
        let calls = (0..=2 * refused).map(|_| Does::Takes(usize::MAX));
        engine.wire_mut().script = calls.chain([Does::NoBuffers]).collect();
        let progress = engine.advance(&sender, now()).expect("no error");
        assert_eq!(progress, Progress::Idle, "{refused}");
        let counts = sender.counts();
        assert_eq!(counts.copied_bytes[Reason::NoBuffers as usize], SEND_BYTES);
        let open = if refused == 0 { 0 } else { SENDS - 1 };
        assert_eq!(engine.wire().open.len() as u64, open, "{refused}");
        drive(&mut engine, &sender);
        assert_eq!(engine.wire().seen(), wanted, "{refused}");
        assert_eq!((file.open_tickets(), engine.pinned_bytes()), (0, 0));
    }
}

#[test]
fn without_buffers_at_every_send_everything_is_copied() {
    let (sender, file) = (Sender::new(options()), file());
    let mut engine = engine(0);
    let wanted = queue_sends(&mut engine, &file);
    // For a copied send it means nothing.
    engine.wire_mut().script = std::iter::repeat_n(Does::NoBuffers, 100).collect();
    drive(&mut engine, &sender);
    assert_eq!(engine.wire().seen(), wanted);
    let counts = sender.counts();
    assert_eq!(counts.zero_copy_bytes + counts.kernel_copied_bytes, 0);
    assert_eq!((file.open_tickets(), counts.pinned_bytes), (0, 0));
}

/// All orders of these numbers.
fn orders(numbers: &[usize]) -> Vec<Vec<usize>> {
    if numbers.is_empty() {
        return vec![Vec::new()];
    }
    let with_first = |first: usize| {
        let rest: Vec<usize> = numbers.iter().copied().filter(|it| *it != first).collect();
        let with = move |order: Vec<usize>| [vec![first], order].concat();
        orders(&rest).into_iter().map(with)
    };
    numbers.iter().copied().flat_map(with_first).collect()
}

/// Five sends over the wrap of the kernel's 32 bits, completed one by one in each of the 120 orders, and joined by
/// twos: a ticket is done with the last completion up to it, and never before.
#[test]
fn completions_in_any_order_and_joined_free_tickets_in_theirs_across_the_wrap() {
    for joined in [1, 2] {
        for order in orders(&[0, 1, 2, 3, 4]) {
            let first = u64::from(u32::MAX) - 2;
            let (sender, file) = (Sender::new(options()), file());
            let mut engine = engine(first);
            for _ in 0..5 {
                engine.queue_bytes(b"x".to_vec());
                engine.queue_range(&file, 0..SEND_BYTES);
            }
            engine.advance(&sender, now()).expect("sent");
            let mut done = [false; 5];
            for group in order.chunks(joined) {
                for number in group {
                    let open = &engine.wire().open;
                    let place = open.iter().position(|it| *it == first + *number as u64);
                    engine.wire_mut().complete(place.expect("open"), 1);
                    done[*number] = true;
                }
                engine.completions(&sender).expect("known");
                let below = done.iter().take_while(|it| **it).count();
                assert_eq!(engine.done_below(), below as u64, "{order:?}");
                assert_eq!(file.open_tickets(), 5 - below, "{order:?}");
            }
            assert_eq!(
                (sender.counts().pinned_bytes, engine.pinned_bytes()),
                (0, 0)
            );
        }
    }
}

#[test]
fn a_short_send_is_not_followed_by_one_that_takes_nothing() {
    for page_cache in [PageCache::ZeroCopy, PageCache::Sendfile] {
        let options = crate::sender::Options {
            page_cache,
            ..options()
        };
        let (sender, file) = (Sender::new(options), file());
        let mut engine = engine(0);
        engine.queue_range(&file, 0..200_000);
        engine.wire_mut().script = [Does::Takes(150_000)].into();
        engine.wire_mut().stuffed = true;
        for _ in 0..3 {
            let progress = engine.advance(&sender, now()).expect("no error");
            assert_eq!((progress, engine.wire().calls), (Progress::Blocked, 1));
        }
        engine.wire_mut().stuffed = false;
        drive(&mut engine, &sender);
        assert_eq!(engine.wire().calls, 2);
        assert_eq!(engine.wire().seen(), content()[..200_000]);
    }
}

/// Else TCP would send a packet that is not full behind each call.
#[test]
fn a_range_of_several_calls_is_one_run_of_full_packets() {
    let (sender, file) = (Sender::new(options()), file());
    let mut engine = engine(0);
    engine.queue_range(&file, 0..600 << 10);
    drive(&mut engine, &sender);
    assert_eq!(engine.wire().more, [true, true, false]);
}
