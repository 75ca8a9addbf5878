// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine against a kernel that takes what it likes: short sends at every byte, `ENOBUFS`, `EAGAIN`,
//! completions late, joined and out of order, counters that wrap, peers that say nothing.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Error as IoError, Result as IoResult, Write};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;

use super::*;
use crate::guard::Guard;
use crate::ledger::Completion;
use crate::sender::Options;
use crate::sys::Piece;

/// What the kernel does at a call, in turn.
#[derive(Clone, Copy, Debug)]
pub(super) enum Does {
    Takes(usize),
    NoBuffers,
    Full,
    Interrupted,
    /// Takes all, and completes some of what is open: those from the n-th on, so many.
    Completes(usize, usize),
}

/// Memory of a zero-copy send, by its number, that was not read yet.
type Unread = (u64, Vec<Piece>);

/// A kernel that reads zero-copy memory only when it completes the send, as a device would.
#[derive(Debug, Default)]
pub(super) struct Fake {
    pub script: VecDeque<Does>,
    /// Bytes as the peer will see them: copied, or still read from memory.
    stream: Vec<Result<Vec<u8>, Unread>>,
    /// Zero-copy sends that are open.
    pub open: Vec<u64>,
    next: u64,
    completions: VecDeque<Completion>,
    copies: bool,
    aborted: bool,
    local: bool,
    pub calls: usize,
    /// The socket is not writable.
    pub stuffed: bool,
    /// Whether more was to follow, call by call.
    pub more: Vec<bool>,
    unacknowledged_bytes: u64,
}

// SAFETY: the addresses are of mappings that the engine must keep; that is what is tested.
unsafe impl Send for Fake {}

impl Fake {
    fn read(piece: &Piece) -> Vec<u8> {
        // SAFETY: the engine promises that what it sends stays mapped until its completion.
        unsafe { std::slice::from_raw_parts(piece.address, piece.length_bytes) }.to_vec()
    }

    pub fn complete(&mut self, from: usize, count: usize) {
        let end = (from + count).min(self.open.len());
        let mut numbers: Vec<u64> = self.open.drain(from.min(end)..end).collect();
        // Reads the memory at the last moment.
        for part in &mut self.stream {
            if let Err((number, pieces)) = part {
                if numbers.contains(number) {
                    *part = Ok(pieces.iter().flat_map(Self::read).collect());
                }
            }
        }
        // Neighbours are joined; runs come in reverse.
        while let Some(last) = numbers.pop() {
            let mut first = last;
            while numbers.last() == Some(&(first.wrapping_sub(1))) {
                first = numbers.pop().unwrap_or(first);
            }
            self.completions.push_back(Completion {
                first: first as u32,
                last: last as u32,
                copied: self.copies,
            });
        }
    }

    pub fn seen(&self) -> Vec<u8> {
        let bytes = self.stream.iter();
        bytes
            .flat_map(|part| part.as_ref().expect("complete").clone())
            .collect()
    }
}

impl Wire for Fake {
    fn guarded_by(&mut self, _guard: &Arc<Guard>) -> bool {
        true
    }

    fn stays_guarded(&mut self) {}

    fn enable(&mut self) -> IoResult<()> {
        Ok(())
    }

    fn send(&mut self, pieces: &[Piece], zero_copy: bool, more: bool) -> IoResult<usize> {
        self.calls += 1;
        self.more.push(more);
        let all: usize = pieces.iter().map(|piece| piece.length_bytes).sum();
        assert!(all > 0, "an empty call would be counted by nobody");
        let does = self.script.pop_front().unwrap_or(Does::Takes(usize::MAX));
        let (takes, completes) = match does {
            Does::Takes(bytes) => (bytes.clamp(1, all), None),
            Does::NoBuffers if zero_copy => return Err(IoError::from_raw_os_error(libc::ENOBUFS)),
            Does::NoBuffers => (all, None),
            Does::Full => return Err(IoError::from_raw_os_error(libc::EAGAIN)),
            Does::Interrupted => return Err(IoError::from_raw_os_error(libc::EINTR)),
            Does::Completes(from, count) => (all, Some((from, count))),
        };
        let mut left = takes;
        let taken = pieces.iter().map_while(|piece| {
            let length_bytes = piece.length_bytes.min(left);
            left -= length_bytes;
            (length_bytes > 0).then_some(Piece {
                length_bytes,
                ..*piece
            })
        });
        let taken: Vec<Piece> = taken.collect();
        if zero_copy {
            self.stream.push(Err((self.next, taken)));
            self.open.push(self.next);
            self.next += 1;
        } else {
            self.stream
                .push(Ok(taken.iter().flat_map(Self::read).collect()));
        }
        if let Some((from, count)) = completes {
            self.complete(from, count);
        }
        Ok(takes)
    }

    fn sendfile(&mut self, file: &MappedFile, at: u64, length_bytes: usize) -> IoResult<usize> {
        let piece = file.piece(at, length_bytes).expect("mapped");
        self.send(&[piece], false, false)
    }

    fn is_local(&self) -> bool {
        self.local
    }

    fn is_writable(&self) -> bool {
        !self.stuffed
    }

    fn completion(&mut self) -> IoResult<Option<Completion>> {
        Ok(self.completions.pop_front())
    }

    fn unacknowledged_bytes(&self) -> IoResult<u64> {
        Ok(self.unacknowledged_bytes)
    }

    fn abort(&mut self) -> IoResult<()> {
        self.aborted = true;
        Ok(())
    }
}

const FILE_BYTES: usize = 3 << 20;

pub(super) fn content() -> &'static [u8] {
    static CONTENT: OnceLock<Vec<u8>> = OnceLock::new();
    let byte = |at: usize| (at * 7 + at / 251) as u8;
    CONTENT.get_or_init(|| (0..FILE_BYTES).map(byte).collect())
}

pub(super) fn file() -> Arc<MappedFile> {
    static FILE: OnceLock<File> = OnceLock::new();
    let written = || {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(content()).expect("room");
        file
    };
    // Nobody writes to it; each has a mapping and tickets of its own.
    let file = FILE.get_or_init(written).try_clone();
    Arc::new(MappedFile::new(file.expect("a descriptor")).expect("mapped"))
}

pub(super) fn options() -> Options {
    Options {
        page_cache: PageCache::ZeroCopy,
        copy_bytes_max: Some(0),
        ..Options::default()
    }
}

/// Time stands still where it is not what a test looks at: no machine is too slow for a deadline.
pub(super) fn now() -> Instant {
    static NOW: OnceLock<Instant> = OnceLock::new();
    *NOW.get_or_init(Instant::now)
}

pub(super) fn engine(first: u64) -> Engine<Fake> {
    let fake = Fake {
        next: first,
        ..Fake::default()
    };
    Engine::new(fake, first)
}

/// Advances to the end; the kernel completes all that is open when it has to be waited for.
pub(super) fn drive(engine: &mut Engine<Fake>, sender: &Sender) {
    for _ in 0..100_000 {
        let progress = engine.advance(sender, now()).expect("no error");
        if progress == Progress::Idle {
            let open = engine.wire().open.len();
            engine.wire_mut().complete(0, open);
            engine.completions(sender).expect("no error");
            return;
        }
    }
    panic!("the queue does not end");
}

fn does() -> impl Strategy<Value = Does> {
    prop_oneof![
        4 => (1_usize..70_000).prop_map(Does::Takes),
        1 => Just(Does::NoBuffers),
        1 => Just(Does::Full),
        1 => Just(Does::Interrupted),
        3 => (0_usize..6, 1_usize..20).prop_map(|(from, count)| Does::Completes(from, count)),
    ]
}

/// What a caller queues: a range of the file, or bytes between.
fn item() -> impl Strategy<Value = Option<Range<u64>>> {
    let size = FILE_BYTES as u64;
    prop_oneof![
        1 => Just(None),
        1 => (0..size).prop_map(|at| Some(at..at)),
        4 => (0..size, 0_u64..9000).prop_map(move |(at, length)| Some(at..(at + length).min(size))),
        1 => (0..size, 0_u64..700_000).prop_map(move |(at, length)| Some(at..(at + length).min(size))),
    ]
}

/// Of the test below; in a complete run many more.
fn cases() -> u32 {
    erb_steady::scaled(60, 2000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]
    #[test]
    fn the_peer_sees_what_was_queued_whatever_the_kernel_does(
        items in prop::collection::vec(item(), 1..60),
        script in prop::collection::vec(does(), 0..200),
        near_wrap: bool, copies: bool, by_sendfile: bool,
        copy_bytes_max in prop_oneof![Just(Some(0)), Just(Some(4096)), Just(Some(usize::MAX))],
    ) {
        let page_cache = if by_sendfile { PageCache::Sendfile } else { PageCache::ZeroCopy };
        let options = Options { copy_bytes_max, page_cache, ..options() };
        let (sender, file) = (Sender::new(options.clone()), file());
        let mut engine = engine(if near_wrap { u64::from(u32::MAX) - 5 } else { 0 });
        engine.wire_mut().script = script.into();
        engine.wire_mut().copies = copies;
        let content = content();
        let mut wanted = Vec::new();
        let ranges = items.iter().flatten();
        let empty = ranges.take_while(|range| range.is_empty()).count();
        for item in items {
            match item {
                None => {
                    engine.queue_bytes(b"between".to_vec());
                    wanted.extend_from_slice(b"between");
                }
                Some(range) => {
                    wanted.extend_from_slice(&content[range.start as usize..range.end as usize]);
                    engine.queue_range(&file, range);
                }
            }
        }
        prop_assert_eq!(engine.done_below(), empty as u64, "nothing is done behind what has not left");
        drive(&mut engine, &sender);
        prop_assert!(engine.wire().seen() == wanted);
        prop_assert_eq!(engine.open_tickets(), 0);
        prop_assert_eq!(file.open_tickets(), 0);
        prop_assert_eq!(engine.pinned_bytes(), 0);
        let counts = sender.counts();
        prop_assert_eq!(counts.pinned_bytes, 0);
        prop_assert!(counts.pinned_bytes_peak <= options.connection_pinned_bytes_max);
        let all = counts.zero_copy_bytes
            + counts.kernel_copied_bytes
            + counts.sendfile_bytes
            + counts.copied_bytes.iter().sum::<u64>();
        prop_assert_eq!(all, wanted.len() as u64);
        prop_assert!(engine.into_flight().is_none());
    }
}

fn may_stop_at_every_byte(options: Options) {
    let (sender, file, content) = (Sender::new(options), file(), content());
    let wanted = [b"head", &content[4090..5100], &content[..14]].concat();
    for stop in 1..1030 {
        let mut engine = engine(0);
        engine.wire_mut().script = [Does::Takes(stop)].into();
        engine.queue_bytes(b"head".to_vec());
        engine.queue_range(&file, 4090..4600);
        engine.queue_range(&file, 4600..5100);
        engine.queue_range(&file, 0..14);
        drive(&mut engine, &sender);
        assert_eq!(engine.wire().seen(), wanted, "{stop}");
    }
}

#[test]
fn a_send_may_stop_at_every_byte() {
    may_stop_at_every_byte(options());
    may_stop_at_every_byte(Options {
        copy_bytes_max: Some(4096),
        ..options()
    });
}

#[test]
fn heads_and_short_bodies_are_one_call_and_a_long_run_of_ranges_is_sent_zero_copy() {
    let copying = Options {
        copy_bytes_max: Some(4096),
        ..options()
    };
    let (sender, file) = (Sender::new(copying), file());
    // Who is asked for once is not mapped for it.
    assert!(!file.is_worth_mapping());
    (0..3).for_each(|_| file.hold());
    (0..3).for_each(|_| file.release());
    let mut engine = engine(0);
    for record in 0..8 {
        engine.queue_bytes(b"head".to_vec());
        engine.queue_range(&file, record * 1000..(record + 1) * 1000);
    }
    engine.advance(&sender, now()).expect("sent");
    assert_eq!((engine.wire().calls, engine.open_tickets()), (1, 0));
    engine.queue_bytes(b"head".to_vec());
    for record in 0..5 {
        engine.queue_range(&file, record * 1000..(record + 1) * 1000);
    }
    engine.advance(&sender, now()).expect("sent");
    assert_eq!((engine.wire().calls, engine.wire().open.len()), (3, 1));
    engine.wire_mut().complete(0, 1);
    engine.completions(&sender).expect("done");
    let counts = sender.counts();
    assert_eq!(counts.zero_copy_bytes, 5000);
    assert_eq!(counts.copied_bytes[Reason::Small as usize], 8 * 1004 + 4);
}

#[test]
fn neighbours_are_one_piece_and_records_one_call() {
    let (sender, file) = (Sender::new(options()), file());
    let mut engine = engine(0);
    for record in 0..16 {
        engine.queue_range(&file, record * 4096..(record + 1) * 4096);
    }
    assert_eq!(
        engine.advance(&sender, now()).expect("sent"),
        Progress::Idle
    );
    assert_eq!(engine.wire().calls, 1);
    let Err((_, pieces)) = &engine.wire().stream[0] else {
        panic!("zero-copy");
    };
    assert_eq!(pieces.len(), 1);
    assert_eq!(pieces[0].length_bytes, 65_536);
    engine.wire_mut().complete(0, 1);
    engine.completions(&sender).expect("done");
    assert_eq!(engine.open_tickets(), 0);
}

#[test]
fn a_ticket_is_done_by_its_completion_and_not_by_the_send() {
    let (sender, file) = (Sender::new(options()), file());
    let mut engine = engine(0);
    let first = engine.queue_range(&file, 0..200_000);
    let second = engine.queue_range(&file, 200_000..400_000);
    engine.advance(&sender, now()).expect("sent");
    assert_eq!(file.open_tickets(), 2);
    // The second send is completed before the first: nothing is done.
    engine.wire_mut().complete(1, 1);
    engine.completions(&sender).expect("read");
    assert_eq!((engine.done_below(), file.open_tickets()), (first, 2));
    engine.wire_mut().complete(0, 1);
    engine.completions(&sender).expect("read");
    assert_eq!((engine.done_below(), file.open_tickets()), (second + 1, 0));
}

#[test]
fn a_silent_peer_is_aborted_and_holds_its_file_until_the_completion() {
    let (sender, file) = (Sender::new(options()), file());
    let mut engine = engine(0);
    engine.queue_range(&file, 0..100_000);
    let begin = now();
    engine.advance(&sender, begin).expect("sent");
    let deadline = sender.options().deadline;
    assert_eq!(engine.due(deadline), Some(begin + deadline));
    engine
        .advance(&sender, begin + deadline - Duration::from_millis(1))
        .expect("in time");
    let late = engine.advance(&sender, begin + deadline);
    assert!(matches!(late, Err(Error::Overdue { .. })), "{late:?}");
    assert!(engine.wire().aborted);
    assert_eq!(file.open_tickets(), 1);
    assert_eq!(sender.counts().overdue, 1);
    assert!(sender.counts().pinned_bytes >= 100_000);
    engine.wire_mut().complete(0, 1);
    engine.completions(&sender).expect("read");
    assert_eq!(file.open_tickets(), 0);
    assert_eq!(sender.counts().pinned_bytes, 0);
    assert!(matches!(engine.advance(&sender, begin), Err(Error::Failed)));
}

#[test]
fn a_peer_that_is_slow_gets_copies_until_it_has_caught_up() {
    let (sender, file) = (Sender::new(options()), file());
    let mut engine = engine(0);
    engine.queue_range(&file, 0..100_000);
    let begin = now();
    engine.advance(&sender, begin).expect("sent");
    engine.queue_range(&file, 0..50_000);
    let later = begin + sender.options().deadline / 3;
    engine.advance(&sender, later).expect("sent");
    assert_eq!(
        sender.counts().copied_bytes[Reason::SlowPeer as usize],
        50_000
    );
    engine.wire_mut().complete(0, 1);
    engine.queue_range(&file, 0..60_000);
    engine.advance(&sender, later).expect("sent");
    assert_eq!(engine.wire().open.len(), 1, "zero-copy again");
}

#[test]
fn pinned_memory_stays_below_its_bounds_and_the_rest_is_copied() {
    let bounds = Options {
        connection_pinned_bytes_max: 300 << 10,
        pinned_bytes_max: 500 << 10,
        ..options()
    };
    let (sender, file) = (Sender::new(bounds), file());
    let mut engines: Vec<_> = (0..3).map(|_| engine(0)).collect();
    for engine in &mut engines {
        for _ in 0..20 {
            engine.queue_range(&file, 0..100 << 10);
        }
        while engine.advance(&sender, now()).expect("sent") != Progress::Idle {}
        assert!(engine.pinned_bytes() <= 300 << 10);
    }
    let counts = sender.counts();
    assert!(
        counts.pinned_bytes <= 500 << 10 && counts.pinned_bytes > 300 << 10,
        "{counts:?}"
    );
    assert!(
        counts.copied_bytes[Reason::OverBound as usize] > 4 << 20,
        "{counts:?}"
    );
}

#[test]
fn the_kernels_copies_are_seen_after_eight_and_ours_take_over() {
    let (sender, file) = (Sender::new(options()), file());
    let mut engine = engine(0);
    engine.wire_mut().copies = true;
    engine.wire_mut().script = std::iter::repeat_n(Does::Completes(0, 9), 40).collect();
    for _ in 0..40 {
        engine.queue_bytes(b"x".to_vec());
        engine.queue_range(&file, 0..50_000);
        engine.advance(&sender, now()).expect("sent");
    }
    let counts = sender.counts();
    assert_eq!(counts.kernel_copied_bytes, 8 * 50_000, "{counts:?}");
    assert_eq!(
        counts.copied_bytes[Reason::KernelCopies as usize],
        32 * 50_000
    );
    assert_eq!(engine.copies(), Some(Reason::KernelCopies));
}

#[test]
fn a_limit_that_lets_nothing_through_is_not_asked_at_each_send() {
    let (sender, file) = (Sender::new(options()), file());
    let mut engine = engine(0);
    engine.wire_mut().script = [Does::NoBuffers].into();
    for _ in 0..10 {
        engine.queue_bytes(b"x".to_vec());
        engine.queue_range(&file, 0..50_000);
    }
    engine.wire_mut().script = [Does::Takes(1), Does::NoBuffers].into();
    engine.advance(&sender, now()).expect("sent");
    let counts = sender.counts();
    assert_eq!(counts.copied_bytes[Reason::NoBuffers as usize], 50_000);
    assert_eq!(counts.copied_bytes[Reason::Refused as usize], 9 * 50_000);
    assert_eq!(engine.wire().calls, 21, "one call failed");
}

#[test]
fn what_sendfile_sent_is_done_when_it_is_acknowledged() {
    let (sender, file) = (Sender::new(Options::default()), file());
    let mut engine = engine(0);
    engine.wire_mut().unacknowledged_bytes = 5;
    engine.queue_range(&file, 0..1000);
    engine.queue_bytes(b"1234".to_vec());
    engine.advance(&sender, now()).expect("sent");
    assert_eq!(engine.done_below(), 0, "one byte of it is not acknowledged");
    engine.wire_mut().unacknowledged_bytes = 4;
    engine.completions(&sender).expect("looked");
    assert_eq!((engine.done_below(), file.open_tickets()), (1, 0));
    assert_eq!(sender.counts().sendfile_bytes, 1000);
}

#[test]
fn a_completion_of_nothing_ends_the_connection() {
    let (sender, file) = (Sender::new(options()), file());
    let mut engine = engine(0);
    engine.queue_range(&file, 0..50_000);
    engine.advance(&sender, now()).expect("sent");
    let stray = Completion {
        first: 7,
        last: 7,
        copied: false,
    };
    engine.wire_mut().completions.push_back(stray);
    assert!(matches!(engine.completions(&sender), Err(Error::Stray(_))));
    assert_eq!(file.open_tickets(), 1, "what is in flight is still held");
}

#[test]
fn a_dropped_flight_leaves_its_mapping_for_good() {
    let (sender, file) = (Sender::new(options()), file());
    let mut engine = engine(0);
    engine.queue_range(&file, 0..50_000);
    engine.advance(&sender, now()).expect("sent");
    let weak = Arc::downgrade(&file);
    drop(file);
    let flight = engine.into_flight().expect("a send is open");
    drop(flight);
    assert_eq!(
        weak.strong_count(),
        1,
        "nobody unmaps what the kernel reads"
    );
    assert!(sender.counters().pinned_bytes.load(Relaxed) > 0);
}
