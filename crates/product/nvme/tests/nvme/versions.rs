// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Our commands: versions, conditions, batches, listings of a moment, roll backs.

use erb_nvme::backend::Target as RollTo;
use erb_nvme::backend::{Change, Condition, Head, Key, RollBack, Selector, Write};
use erb_nvme::client::calls;
use erb_nvme::layout::{self, ListingRequest};
use erb_nvme::status::{Filled, Status};
use sha2::{Digest, Sha256};

use crate::world::{ALICE, World};

fn plain(key: &[u8]) -> Key {
    Key::Plain(key.to_vec())
}

#[test]
fn a_put_says_its_version_and_a_get_finds_each() {
    let mut world = World::usual();
    let (_, io) = world.controller(ALICE);
    let mut put = |value: u8| {
        world
            .call(io, calls::put_value(1, b"k", vec![value], None))
            .result
    };
    let versions = [put(1), put(2), put(3)];
    assert!(versions[0] < versions[1] && versions[1] < versions[2]);
    let mut get = |at| {
        let found = world.call(io, calls::get(1, &plain(b"k"), at, false, 10));
        (found.status, found.data.first().copied())
    };
    assert_eq!(get(Selector::Head), (Status::OK, Some(3)));
    assert_eq!(get(Selector::Version(versions[0])), (Status::OK, Some(1)));
    assert_eq!(get(Selector::Back(1)), (Status::OK, Some(2)));
    assert_eq!(get(Selector::AsOf(versions[1])), (Status::OK, Some(2)));
    assert_eq!(get(Selector::Back(3)), (Status::NO_SUCH_VERSION, None));
    assert_eq!(get(Selector::AsOf(u64::MAX)), (Status::FUTURE, None));
    world.target.backend().trimmed_below = versions[1];
    let old = calls::get(1, &plain(b"k"), Selector::Version(versions[0]), false, 10);
    assert_eq!(world.call(io, old).status, Status::TRIMMED);
    let mut wrong = calls::get(1, &plain(b"k"), Selector::Head, false, 10);
    wrong.sqe = wrong.sqe.with_word(11, wrong.sqe.word(11) | 4 << 16);
    assert_eq!(world.call(io, wrong).status, Status::INVALID_FIELD);
}

#[test]
fn a_head_comes_before_the_value_and_says_who_wrote_it() {
    let mut world = World::usual();
    let (_, io) = world.controller(ALICE);
    let version = world
        .call(io, calls::put_value(1, b"k", vec![5; 100], None))
        .result;
    let found = world.call(io, calls::get(1, &plain(b"k"), Selector::Head, true, 84));
    assert_eq!((found.result, found.data.len()), (100, 84));
    let head = layout::head_of(&found.data).expect("a head");
    assert_eq!(
        (head.version, head.source, head.bytes, head.writer),
        (version, version, 100, 1)
    );
    assert_eq!(&found.data[64..], &[5; 20]);
}

#[test]
fn a_put_on_a_condition_says_which_head_there_is_instead() {
    let mut world = World::usual();
    let (_, io) = world.controller(ALICE);
    let first = world
        .call(io, calls::put_value(1, b"k", vec![1], Some(0)))
        .result;
    let refused = world.call(io, calls::put_value(1, b"k", vec![2], Some(0)));
    assert_eq!((refused.status, refused.result), (Status::MISMATCH, first));
    let second = world.call(io, calls::put_value(1, b"k", vec![2], Some(first)));
    assert!(second.status.is_ok());
    let gone = calls::delete_key(1, &plain(b"k"), Some(first));
    assert_eq!(world.call(io, gone).status, Status::MISMATCH);
    assert!(
        world
            .call(io, calls::delete_key(1, &plain(b"k"), Some(second.result)))
            .status
            .is_ok()
    );
    assert!(
        world
            .call(io, calls::put_value(1, b"k", vec![3], Some(0)))
            .status
            .is_ok()
    );
}

#[test]
fn long_keys_go_with_the_data_and_are_found_by_their_digest() {
    let mut world = World::usual();
    let (_, io) = world.controller(ALICE);
    let key = vec![b'x'; 1000];
    let version = world
        .call(io, calls::put_value(1, &key, b"long".to_vec(), Some(0)))
        .result;
    let digest: [u8; 16] = Sha256::digest(&key)[..16].try_into().expect("16 bytes");
    let digest = Key::Digest(digest);
    let found = world.call(io, calls::get(1, &digest, Selector::Head, false, 10));
    assert_eq!(found.data, b"long");
    let rows = world.call(io, calls::versions(1, &digest, 0, 4096)).data;
    assert_eq!(layout::versions_of(&rows).map(|it| it.0.len()), Some(1));
    assert!(
        world
            .call(io, calls::delete_key(1, &digest, Some(version)))
            .status
            .is_ok()
    );
    assert!(
        world
            .call(io, calls::restore(1, &digest, Selector::Back(1)))
            .status
            .is_ok()
    );
    assert_eq!(world.target.backend().value(1, &key), Some(&b"long"[..]));
    // The standard's list has no room for it; ours has.
    let list = world.call(io, calls::list(1, b"", 4096)).data;
    assert_eq!(layout::list_of(&list), Some(Vec::new()));
    let page = world.call(io, calls::keys(1, b"xx", 0, 4096)).data;
    assert_eq!(
        layout::page_of(&page).map(|it| it.0[0].key.len()),
        Some(1000)
    );
    for data in [&[][..], &[9], &[5, 0, 1], &[0, 0, 1]] {
        let mut wrong = calls::put_value(1, &key, Vec::new(), None);
        wrong.sqe = wrong
            .sqe
            .with_word(10, u32::try_from(data.len()).expect("small"));
        wrong.data = data.to_vec();
        assert_eq!(world.call(io, wrong).status, Status::INVALID_FIELD);
    }
}

#[test]
fn versions_are_listed_newest_first_and_page_by_page() {
    let mut world = World::usual();
    let (_, io) = world.controller(ALICE);
    for value in 0..10 {
        world.call(io, calls::put_value(1, b"k", vec![value], None));
    }
    world.call(io, calls::delete_key(1, &plain(b"k"), None));
    world.call(io, calls::restore(1, &plain(b"k"), Selector::Back(3)));
    let (mut rows, mut below) = (Vec::new(), 0);
    loop {
        let room = 64 + 5 * 48;
        let page = world
            .call(io, calls::versions(1, &plain(b"k"), below, room))
            .data;
        let (mut page, has_more, _) = layout::versions_of(&page).expect("versions");
        rows.append(&mut page);
        below = rows.last().expect("a row").version;
        if !has_more {
            break;
        }
    }
    assert_eq!(rows.len(), 12);
    assert!(
        rows.windows(2)
            .all(|pair| pair[0].version > pair[1].version)
    );
    assert_eq!(
        (rows[0].flags, rows[1].flags),
        (Head::RESTORED, Head::DELETED)
    );
    assert_eq!(rows[0].source, rows[4].version);
}

/// Trap 76.
#[test]
fn a_batch_is_all_or_nothing_and_names_a_key_once() {
    let mut world = World::usual();
    let (_, io) = world.controller(ALICE);
    let put = |key: &[u8], condition| Write {
        key: plain(key),
        change: Change::Put(key.to_vec()),
        condition,
    };
    let first = [
        put(b"a", Condition::Any),
        put(&[b'b'; 500], Condition::Head(0)),
    ];
    let version = world.call(io, calls::batch(1, &first)).result;
    let twice = [put(b"c", Condition::Any), put(b"c", Condition::Any)];
    assert_eq!(
        world.call(io, calls::batch(1, &twice)).status,
        Status::INVALID_FIELD
    );
    let half = [
        put(b"d", Condition::Any),
        put(b"a", Condition::Head(version + 5)),
    ];
    let refused = world.call(io, calls::batch(1, &half));
    assert_eq!(
        (refused.status, refused.result),
        (Status::MISMATCH, version)
    );
    assert_eq!(world.target.backend().value(1, b"d"), None);
    let mixed = [
        Write {
            key: plain(b"a"),
            change: Change::Delete,
            condition: Condition::Head(version),
        },
        put(b"d", Condition::Any),
    ];
    assert!(world.call(io, calls::batch(1, &mixed)).status.is_ok());
    let restore = [Write {
        key: plain(b"a"),
        change: Change::Restore(Selector::Version(version)),
        condition: Condition::Any,
    }];
    assert!(world.call(io, calls::batch(1, &restore)).status.is_ok());
    assert_eq!(world.target.backend().value(1, b"a"), Some(&b"a"[..]));
    assert_eq!(
        world.call(io, calls::batch(1, &[])).status,
        Status::INVALID_FIELD
    );
    let many: Vec<Write> = (0..4097_u32)
        .map(|key| put(&key.to_le_bytes(), Condition::Any))
        .collect();
    assert_eq!(
        world.call(io, calls::batch(1, &many)).status,
        Status::INVALID_FIELD
    );
    assert!(world.call(io, calls::batch(1, &many[1..])).status.is_ok());
}

#[test]
fn a_listing_shows_a_moment_whatever_is_written_meanwhile() {
    let mut world = World::usual();
    let (_, io) = world.controller(ALICE);
    for number in 0..50 {
        let key = format!("k{number}");
        world.call(io, calls::put_value(1, key.as_bytes(), vec![1], None));
    }
    let open = |moment, changed_since| ListingRequest {
        moment,
        changed_since,
        has_deleted: changed_since != 0,
        prefix: b"k".to_vec(),
    };
    let handle = world.call(io, calls::open_listing(1, &open(0, 0))).result;
    let (mut found, mut cursor, mut cuts) = (Vec::new(), 0, Vec::new());
    loop {
        let page = world.call(io, calls::listed_keys(1, handle, cursor, 300));
        let (rows, next, cut) = layout::page_of(&page.data).expect("a page");
        found.extend(rows.into_iter().map(|row| row.key));
        cuts.push(cut);
        for number in 0..5 {
            let key = format!("k9{}{number}", found.len());
            world.call(io, calls::put_value(1, key.as_bytes(), vec![1], None));
        }
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 50);
    assert!(cuts.len() > 5 && cuts.iter().all(|cut| *cut == cuts[0]));
    let changed = world
        .call(io, calls::open_listing(1, &open(0, cuts[0])))
        .result;
    let page = world
        .call(io, calls::listed_keys(1, changed, 0, 1 << 20))
        .data;
    let rows = layout::page_of(&page).expect("a page").0;
    assert_eq!(rows.len(), 5 * cuts.len(), "only what came since");
    let gone = calls::delete_key(1, &Key::Plain(b"k7".to_vec()), None);
    assert!(world.call(io, gone).status.is_ok());
    let since = world
        .call(io, calls::open_listing(1, &open(0, cuts[0])))
        .result;
    let page = world
        .call(io, calls::listed_keys(1, since, 0, 1 << 20))
        .data;
    let rows = layout::page_of(&page).expect("a page").0.into_iter();
    let deleted = rows.filter(|row| u32::from(row.flags) & Head::DELETED != 0);
    let deleted: Vec<Vec<u8>> = deleted.map(|row| row.key).collect();
    assert_eq!(deleted, [b"k7".to_vec()], "what is gone since is named");
    let future = calls::open_listing(1, &open(u64::MAX, 0));
    assert_eq!(world.call(io, future).status, Status::FUTURE);
    let none = calls::listed_keys(1, 999, 0, 300);
    assert_eq!(world.call(io, none).status, Status::INVALID_FIELD);
}

#[test]
fn sixteen_listings_are_open_and_each_ends_a_minute_after_its_last_page() {
    let mut world = World::usual();
    let (_, io) = world.controller(ALICE);
    let listing = ListingRequest {
        moment: 0,
        changed_since: 0,
        has_deleted: false,
        prefix: Vec::new(),
    };
    let first = world.call(io, calls::open_listing(1, &listing)).result;
    for _ in 1..16 {
        assert!(
            world
                .call(io, calls::open_listing(1, &listing))
                .status
                .is_ok()
        );
    }
    assert_eq!(
        world.call(io, calls::open_listing(1, &listing)).status,
        Status::BUSY
    );
    world.pass(40_000_000);
    assert!(
        world
            .call(io, calls::listed_keys(1, first, 0, 300))
            .status
            .is_ok()
    );
    world.pass(40_000_000);
    assert!(
        world
            .call(io, calls::listed_keys(1, first, 0, 300))
            .status
            .is_ok()
    );
    assert!(
        world
            .call(io, calls::open_listing(1, &listing))
            .status
            .is_ok(),
        "15 have ended"
    );
    assert_eq!(world.target.counts().listings, 2);
    world.pass(61_000_000);
    let late = calls::listed_keys(1, first, 0, 300);
    assert_eq!(world.call(io, late).status, Status::INVALID_FIELD);
}

#[test]
fn a_scope_rolls_back_after_a_dry_run_has_told_what_would_change() {
    let mut world = World::usual();
    let (admin, io) = world.controller(ALICE);
    let version = world
        .call(io, calls::put_value(1, b"a/1", vec![1], None))
        .result;
    world.call(io, calls::put_value(1, b"a/1", vec![2], None));
    world.call(io, calls::put_value(1, b"a/2", vec![2], None));
    world.call(io, calls::put_value(1, b"b", vec![2], None));
    let to = |is_dry_run| RollBack {
        prefix: b"a/".to_vec(),
        target: RollTo::Moment(version),
        unless_written_since: None,
        is_dry_run,
    };
    let dry = world.call(io, calls::roll_back(1, &to(true))).result;
    let marks = world.call(admin, calls::log(0xc1, 1, 0, 0, 4096)).data;
    let (_, marks) = layout::marks_of(&marks).expect("marks");
    assert_eq!((marks[0].id, marks[0].keys), (dry, 2));
    assert_eq!(world.target.backend().value(1, b"a/1"), Some(&[2][..]));
    assert!(
        world
            .call(io, calls::roll_back(1, &to(false)))
            .status
            .is_ok()
    );
    assert_eq!(world.target.backend().value(1, b"a/1"), Some(&[1][..]));
    assert_eq!(world.target.backend().value(1, b"a/2"), None);
    assert_eq!(world.target.backend().value(1, b"b"), Some(&[2][..]));
    let taken = world.call(io, calls::snapshot(1, 0)).result;
    assert!(world.call(io, calls::release(1, taken)).status.is_ok());
    assert_eq!(
        world.call(io, calls::release(1, taken)).status,
        Status::NO_SUCH_VERSION
    );
}

#[test]
fn a_full_store_says_so_to_writers_and_goes_on_for_restorers() {
    let mut world = World::usual();
    let (_, alice) = world.controller(ALICE);
    let (_, writer) = world.controller(crate::world::WRITER);
    world.target.backend().is_full = true;
    let put = calls::put_value(1, b"k", vec![1], None);
    let refused = world.call(writer, put.clone());
    assert_eq!(refused.status, Status::CAPACITY);
    assert_eq!(Filled::of_result(refused.result), Filled::Retained);
    assert!(world.call(alice, put).status.is_ok());
}
