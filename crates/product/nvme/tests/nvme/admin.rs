// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The admin queue: what the controller is, features, events, logs, discovery, and who may do what.

use erb_nvme::backend::Target as RollTo;
use erb_nvme::backend::{
    Change, Condition, Damage, Kept, Key, Retention, RollBack, Selector, Write,
};
use erb_nvme::client::calls;
use erb_nvme::layout::{self, ListingRequest};
use erb_nvme::status::Status;
use erb_nvme::target::{ANY_CONTROLLER, DISCOVERY_NQN, Event, feature, log, page, property};

use crate::raw::{Raw, connect};
use crate::world::{ALICE, BOB, NQN, READER, WRITER, World, settings};

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[test]
fn properties_say_what_the_controller_can() {
    let mut world = World::usual();
    let (admin, _) = world.controller(ALICE);
    let mut get = |offset| world.call(admin, calls::property_get(offset)).result;
    assert_eq!(
        get(property::CAP),
        127 | 1 << 16 | 30 << 24 | 1 << 37 | 1 << 43
    );
    assert_eq!(get(property::VS), 0x0002_0000);
    assert_eq!((get(property::CC), get(property::CSTS)), (0x0046_0061, 1));
    assert_eq!(get(0x38), 0);
    // Shut down: complete at once.
    let shut = calls::property_set(property::CC, 0x0046_4061);
    assert!(world.call(admin, shut).status.is_ok());
    assert_eq!(
        world
            .call(admin, calls::property_get(property::CSTS))
            .result,
        1 | 2 << 2
    );
    let identify = calls::identify(page::CONTROLLER, 0, 0);
    assert_eq!(world.call(admin, identify).status, Status::SEQUENCE);
}

#[test]
fn the_controller_says_what_linux_asks_of_it() {
    let mut world = World::usual();
    let (admin, _) = world.controller(ALICE);
    let id = world.links[admin].client.controller();
    let found = world
        .call(admin, calls::identify(page::CONTROLLER, 0, 0))
        .data;
    assert_eq!(found.len(), 4096);
    assert_eq!(&found[4..24], b"ERB1                ");
    assert_eq!(
        (found[77], u16_at(&found, 78), u32_at(&found, 80)),
        (8, id, 0x0002_0000)
    );
    assert_eq!(
        (found[111], found[259], found[261], u16_at(&found, 320)),
        (1, 3, 6, 10)
    );
    assert_eq!(
        (found[512], found[513], u16_at(&found, 514)),
        (0x66, 0x44, 128)
    );
    assert_eq!((found[525], u32_at(&found, 536)), (0, 0x0010_0001));
    assert_eq!((u32_at(&found, 1792), u32_at(&found, 1796)), (516, 1));
    assert_eq!((u16_at(&found, 1800), found[1803]), (0, 1));
    assert!(found[768..].starts_with(NQN.as_bytes()));
}

#[test]
fn namespaces_are_those_that_the_host_may_see() {
    let mut world = World::usual();
    let (admin, _) = world.controller(ALICE);
    let mut identify = |page, namespace, set| {
        let reply = world.call(admin, calls::identify(page, namespace, set));
        (reply.status, reply.data)
    };
    for (page, set) in [(page::ACTIVE, 0), (page::ACTIVE_OF_SET, 1)] {
        let (_, list) = identify(page, 0, set);
        assert_eq!((u32_at(&list, 0), u32_at(&list, 4)), (1, 0));
        assert_eq!(u32_at(&identify(page, 1, set).1, 0), 0);
    }
    assert_eq!(identify(page::NAMESPACE, 2, 0).0, Status::INVALID_NAMESPACE);
    let (_, plain) = identify(page::NAMESPACE, 1, 0);
    assert_eq!((u64_at(&plain, 0), plain[130]), (1 << 18, 12));
    let (_, kv) = identify(page::NAMESPACE_OF_SET, 1, 1);
    assert_eq!((u64_at(&kv, 0), u64_at(&kv, 16)), (1 << 30, 1 << 20));
    assert_eq!((u16_at(&kv, 72), u32_at(&kv, 76), kv[25]), (16, 1 << 20, 0));
    let (_, names) = identify(page::DESCRIPTORS, 1, 0);
    assert_eq!((names[0], names[1], names[20], names[21]), (2, 16, 3, 16));
    assert_eq!((names[40], names[41], names[44]), (4, 1, 1));
    assert_eq!(identify(page::INDEPENDENT, 1, 0).1[14], 1);
    assert_eq!(u64_at(&identify(page::COMMAND_SETS, 0, 0).1, 0), 3);
    let (_, version) = identify(page::CONTROLLER_OF_SET, 0, 1);
    assert_eq!((version[0], version[1], u16_at(&version, 2)), (0, 3, 1));
    assert_eq!(identify(0x40, 1, 0).0, Status::INVALID_FIELD);
}

/// Trap 15.
#[test]
fn without_the_kv_command_set_there_is_no_namespace() {
    let mut world = World::usual();
    let mut admin = Raw::agreed(&mut world, Default::default());
    let id = admin
        .call(&mut world, connect(ALICE, 0, ANY_CONTROLLER))
        .result;
    let enabled = admin.call(&mut world, calls::property_set(property::CC, 0x0046_0001));
    assert!(enabled.status.is_ok());
    admin.start(&mut world, &calls::identify(page::ACTIVE, 0, 0), false);
    let pdus = admin.pdus(&mut world);
    assert!(pdus[0][24..].iter().all(|byte| *byte == 0), "an empty list");
    let plain = admin.call(&mut world, calls::identify(page::NAMESPACE, 1, 0));
    assert_eq!(plain.status, Status::INVALID_NAMESPACE);
    let (mut io, _) = Raw::queue(
        &mut world,
        ALICE,
        1,
        u16::try_from(id & 0xffff).expect("16"),
    );
    let store = calls::store(1, b"k", vec![1], Condition::Any);
    assert_eq!(io.call(&mut world, store).status, Status::INVALID_NAMESPACE);
    // A command set that there is not.
    let wrong = admin.call(&mut world, calls::property_set(property::CC, 0x0046_0011));
    assert_eq!(wrong.status, Status::INVALID_FIELD);
}

#[test]
fn features_are_set_and_read() {
    let mut world = World::usual();
    let admin = world.connect(settings(ALICE, 0, ANY_CONTROLLER));
    assert_eq!(world.links[admin].client.io_queues(), 4);
    let queues = world.call(admin, calls::set_feature(feature::QUEUES, 0, 99 << 16 | 99));
    assert_eq!(queues.result, 15 << 16 | 15);
    assert_eq!(
        world
            .call(admin, calls::get_feature(feature::QUEUES, 0))
            .result,
        15 << 16 | 15
    );
    for value in [0xffff, 0xffff_0000] {
        let wrong = calls::set_feature(feature::QUEUES, 0, value);
        assert_eq!(world.call(admin, wrong).status, Status::INVALID_FIELD);
    }
    assert!(
        world
            .call(admin, calls::set_feature(feature::EVENTS, 0, 0xffff_ffff))
            .status
            .is_ok()
    );
    let events = world
        .call(admin, calls::get_feature(feature::EVENTS, 0))
        .result;
    assert_eq!(events, 1 | 1 << 8 | 1 << 31);
    assert!(
        world
            .call(admin, calls::set_feature(feature::KEEP_ALIVE, 0, 9000))
            .status
            .is_ok()
    );
    assert_eq!(
        world
            .call(admin, calls::get_feature(feature::KEEP_ALIVE, 0))
            .result,
        9000
    );
    assert!(
        world
            .call(admin, calls::set_feature(feature::COMMAND_SETS, 0, 0))
            .status
            .is_ok()
    );
    let other = calls::set_feature(feature::COMMAND_SETS, 0, 1);
    assert_eq!(world.call(admin, other).status, Status::INVALID_FIELD);
    assert_eq!(
        world.call(admin, calls::get_feature(0x06, 0)).status,
        Status::INVALID_FIELD
    );
    let retention = Retention {
        min_age_us: 1,
        keep_deleted_us: 2,
        min_count: 3,
    };
    assert!(
        world
            .call(admin, calls::set_retention(1, &retention))
            .status
            .is_ok()
    );
    let found = world.call(admin, calls::retention(1)).data;
    assert_eq!(layout::retention_of(&found), Some(retention));
    // Queues that exist are not counted anew.
    let id = world.links[admin].client.controller();
    world.connect(settings(ALICE, 1, id));
    let late = calls::set_feature(feature::QUEUES, 0, 0);
    assert_eq!(world.call(admin, late).status, Status::SEQUENCE);
}

#[test]
fn events_are_told_once_until_their_log_is_read_and_four_may_wait() {
    let mut world = World::usual();
    let (admin, _) = world.controller(ALICE);
    let waits: Vec<_> = (0..4).map(|_| world.start(admin, calls::event())).collect();
    world.run();
    assert_eq!(
        world.call(admin, calls::event()).status,
        Status::EVENT_LIMIT
    );
    world.target.happened(Event::Namespaces);
    world.run();
    assert!(world.links[admin].replies.is_empty(), "nobody asked for it");
    assert!(
        world
            .call(admin, calls::set_feature(feature::EVENTS, 0, 1 << 8 | 1))
            .status
            .is_ok()
    );
    for _ in 0..3 {
        world.target.happened(Event::Namespaces);
    }
    world.target.happened(Event::Capacity);
    world.run();
    let told: Vec<_> = waits
        .iter()
        .map(|id| world.links[admin].replies.get(id))
        .collect();
    let told: Vec<_> = told.iter().map(|reply| reply.map(|it| it.result)).collect();
    assert_eq!(told, [Some(0x04_0002), Some(0x02_0201), None, None]);
    // What happens since is told when the log has been read.
    world.target.happened(Event::Namespaces);
    world.run();
    assert!(!world.links[admin].replies.contains_key(&waits[2]));
    assert_eq!(
        world
            .call(admin, calls::log(log::CHANGED, 0, 0, 0, 4096))
            .data
            .len(),
        4096
    );
    world.run();
    assert_eq!(world.links[admin].replies[&waits[2]].result, 0x04_0002);
    world.pass(60_000_000);
    assert!(
        world.links[admin].client.is_up(),
        "an event may be waited for without end"
    );
}

#[test]
fn the_log_of_effects_has_what_is_served() {
    let mut world = World::usual();
    let (admin, _) = world.controller(ALICE);
    let effects = world
        .call(admin, calls::log(log::EFFECTS, 0, 1, 0, 4096))
        .data;
    let io = |opcode: usize| u32_at(&effects, 1024 + 4 * opcode);
    assert_eq!((io(0x01), io(0x02), io(0x10), io(0xc1)), (3, 1, 3, 3));
    assert_eq!(
        (io(0x04), u32_at(&effects, 4 * 0x06), u32_at(&effects, 4)),
        (0, 1, 0)
    );
    let plain = world
        .call(admin, calls::log(log::EFFECTS, 0, 0, 0, 4096))
        .data;
    assert_eq!(u32_at(&plain, 1024 + 4), 0);
    let supported = world
        .call(admin, calls::log(log::SUPPORTED, 0, 0, 0, 1024))
        .data;
    assert_eq!(
        (u32_at(&supported, 4 * 0xc1), u32_at(&supported, 4 * 0x70)),
        (1, 0)
    );
    let health = world
        .call(admin, calls::log(log::HEALTH, 0, 0, 0, 512))
        .data;
    // Damage that was found makes it unreliable.
    assert_eq!((health[0], health[3], health[160]), (4, 100, 7));
    let status = world.call(admin, calls::log(log::STATUS, 0, 0, 0, 64)).data;
    assert_eq!(
        layout::health_of(&status).map(|it| it.size_bytes),
        Some(1 << 30)
    );
    let none = calls::log(0x70, 0, 0, 0, 1024);
    assert_eq!(world.call(admin, none).status, Status::INVALID_LOG);
}

/// Trap 14.
#[test]
fn a_log_read_beyond_its_end_is_refused_and_one_that_changes_between_pieces_shows_it() {
    let mut world = World::usual();
    let (admin, io) = world.controller(ALICE);
    let beyond = calls::log(log::FIRMWARE, 0, 0, 512, 64);
    assert_eq!(world.call(admin, beyond).status, Status::INVALID_FIELD);
    let far = calls::log(log::FIRMWARE, 0, 0, u64::MAX - 3, 64);
    assert_eq!(world.call(admin, far).status, Status::INVALID_FIELD);
    let odd = calls::log(log::FIRMWARE, 0, 0, 2, 64);
    assert_eq!(world.call(admin, odd).status, Status::INVALID_FIELD);
    let over = world
        .call(admin, calls::log(log::FIRMWARE, 0, 0, 448, 128))
        .data;
    assert_eq!((over.len(), &over[64..]), (128, &[0; 64][..]));

    let roll_back = RollBack {
        prefix: Vec::new(),
        target: RollTo::Back(1),
        unless_written_since: None,
        is_dry_run: true,
    };
    assert!(
        world
            .call(io, calls::roll_back(1, &roll_back))
            .status
            .is_ok()
    );
    let first = world.call(admin, calls::log(log::MARKS, 1, 0, 0, 64)).data;
    assert!(
        world
            .call(io, calls::roll_back(1, &roll_back))
            .status
            .is_ok()
    );
    let rest = world.call(admin, calls::log(log::MARKS, 1, 0, 64, 64)).data;
    let again = world.call(admin, calls::log(log::MARKS, 1, 0, 0, 64)).data;
    assert_ne!(
        u64_at(&first, 0),
        u64_at(&again, 0),
        "the generation has moved"
    );
    assert_eq!(rest.len(), 64);
    let whole = world
        .call(admin, calls::log(log::MARKS, 1, 0, 0, 4096))
        .data;
    assert_eq!(
        layout::marks_of(&whole).map(|(_, marks)| marks.len()),
        Some(2)
    );
}

#[test]
fn discovery_names_the_subsystem_to_hosts_that_may_connect() {
    for (host, entries) in [(ALICE, 1), ("nqn.2026-11.org.erb:nobody", 0)] {
        let mut world = World::usual();
        let mut wanted = settings(host, 0, ANY_CONTROLLER);
        wanted.subsystem = DISCOVERY_NQN.to_owned();
        let admin = world.connect(wanted);
        let identify = world
            .call(admin, calls::identify(page::CONTROLLER, 0, 0))
            .data;
        assert_eq!(identify[111], 2);
        let found = world.call(admin, calls::log(log::DISCOVERY, 0, 0, 0, 2048));
        assert_eq!(
            (u64_at(&found.data, 0), u64_at(&found.data, 8)),
            (1, entries)
        );
        if entries == 1 {
            let entry = &found.data[1024..];
            assert_eq!(
                (entry[0], entry[1], entry[2], u16_at(entry, 6)),
                (3, 1, 2, 0xffff)
            );
            assert!(entry[32..].starts_with(b"4420\0"));
            assert!(entry[256..].starts_with(NQN.as_bytes()));
            assert!(entry[512..].starts_with(b"127.0.0.1\0"));
        }
        let active = calls::identify(page::ACTIVE, 0, 0);
        assert_eq!(world.call(admin, active).status, Status::INVALID_FIELD);
        let changes = calls::set_feature(feature::EVENTS, 0, 1 << 31);
        assert!(world.call(admin, changes).status.is_ok());
        let event = world.start(admin, calls::event());
        world.target.happened(Event::Discovery);
        world.run();
        assert_eq!(world.links[admin].replies[&event].result, 0x70_f002);
        let found = world.call(admin, calls::log(log::DISCOVERY, 0, 0, 0, 1024));
        assert_eq!(u64_at(&found.data, 0), 2, "the log has another generation");
    }
}

/// Trap 44.
#[test]
fn a_writer_gets_none_of_what_others_may_do() {
    let mut world = World::usual();
    let (admin, io) = world.controller(WRITER);
    let written = world.call(io, calls::put_value(1, b"k", vec![1], None));
    assert!(written.status.is_ok());
    let key = Key::Plain(b"k".to_vec());
    assert!(
        world
            .call(io, calls::restore(1, &key, Selector::Head))
            .status
            .is_ok()
    );
    let roll_back = |is_dry_run| RollBack {
        prefix: Vec::new(),
        target: RollTo::Back(1),
        unless_written_since: None,
        is_dry_run,
    };
    let retention = Retention {
        min_age_us: 0,
        keep_deleted_us: 0,
        min_count: 1,
    };
    let done = world.target.backend().done;
    for call in [
        calls::roll_back(1, &roll_back(false)),
        calls::roll_back(1, &roll_back(true)),
        calls::snapshot(1, 0),
        calls::release(1, written.result),
    ] {
        assert_eq!(world.call(io, call).status, Status::DENIED);
    }
    for call in [
        calls::set_retention(1, &retention),
        calls::lock_retention(1, 1),
    ] {
        assert_eq!(world.call(admin, call).status, Status::DENIED);
    }
    // Commands that nobody has: formats, firmware, queues by command, namespaces.
    for opcode in [
        0x00, 0x01, 0x04, 0x05, 0x0d, 0x10, 0x11, 0x15, 0x80, 0x81, 0x84, 0xc0,
    ] {
        let mut call = calls::keep_alive();
        call.sqe = erb_nvme::command::Sqe::new(opcode).in_namespace(1);
        assert_eq!(
            world.call(admin, call).status,
            Status::INVALID_OPCODE,
            "{opcode:02x}h"
        );
    }
    assert_eq!(
        world.target.backend().done,
        done,
        "nothing of it came to the store"
    );
}

#[test]
fn retention_is_locked_by_an_admin_and_everybody_sees_for_how_long() {
    let mut world = World::usual();
    let (admin, _) = world.controller(ALICE);
    let (reader, _) = world.controller(READER);
    let kept = |world: &mut World, link| {
        let found = world.call(link, calls::retention(1)).data;
        layout::kept_of(&found).expect("retention")
    };
    let before = kept(&mut world, reader);
    assert_eq!((before.locked_us, before.less), (0, None));
    let lock = |us| calls::lock_retention(1, us);
    assert_eq!(world.call(reader, lock(77)).status, Status::DENIED);
    assert!(world.call(admin, lock(77)).status.is_ok());
    let locked = kept(&mut world, reader);
    assert_eq!(
        locked,
        Kept {
            locked_us: 77,
            ..before
        },
        "nothing else has changed"
    );
    let shorter = calls::set_retention(1, &before.retention);
    assert_eq!(world.call(admin, shorter).status, Status::LOCKED);
    let mut odd = lock(78);
    odd.sqe = odd.sqe.with_word(11, 2);
    assert_eq!(world.call(admin, odd).status, Status::INVALID_FIELD);
}

#[test]
fn damage_is_told_with_its_keys_to_who_may_read_the_namespace() {
    let mut world = World::usual();
    let (admin, _) = world.controller(ALICE);
    let read = |world: &mut World, namespace| {
        world.call(admin, calls::log(log::DAMAGE, namespace, 1, 0, 4096))
    };
    let none = read(&mut world, 1).data;
    assert_eq!(layout::damage_of(&none), Some((1, Vec::new())));
    let rows = vec![
        Damage {
            address: 1 << 40,
            namespace: 1,
            key: vec![0xff; 1024],
        },
        Damage {
            address: 4096,
            namespace: 0,
            key: Vec::new(),
        },
        Damage {
            address: 77,
            namespace: 1,
            key: b"k".to_vec(),
        },
    ];
    world.target.backend().damage = rows.clone();
    let found = read(&mut world, 1).data;
    assert_eq!(layout::damage_len(&found), Some(64 + 3 * 16 + 1024 + 8));
    assert_eq!(layout::damage_of(&found), Some((1, rows)));
    assert_eq!(read(&mut world, 0).status, Status::INVALID_NAMESPACE);
    assert_eq!(read(&mut world, 9).status, Status::INVALID_NAMESPACE);
}

#[test]
fn a_reader_reads_and_an_admin_may_do_everything() {
    let mut world = World::usual();
    let (_, alice) = world.controller(ALICE);
    let (_, reader) = world.controller(READER);
    let key = Key::Plain(b"k".to_vec());
    let version = world
        .call(alice, calls::put_value(1, b"k", vec![1], None))
        .result;
    let batch = [Write {
        key: key.clone(),
        change: Change::Delete,
        condition: Condition::Any,
    }];
    let changes = [
        calls::store(1, b"k", vec![2], Condition::Any),
        calls::delete(1, b"k"),
        calls::put_value(1, b"k", vec![2], None),
        calls::batch(1, &batch),
        calls::delete_key(1, &key, None),
        calls::restore(1, &key, Selector::Version(version)),
        calls::snapshot(1, 0),
    ];
    for call in changes {
        assert_eq!(world.call(reader, call.clone()).status, Status::DENIED);
        assert!(world.call(alice, call.clone()).status.is_ok(), "{call:?}");
    }
    let listing = ListingRequest {
        moment: 0,
        changed_since: 0,
        has_deleted: false,
        prefix: Vec::new(),
    };
    for call in [
        calls::retrieve(1, b"k", 10),
        calls::get(1, &key, Selector::Head, true, 100),
        calls::versions(1, &key, 0, 4096),
        calls::keys(1, b"", 0, 4096),
        calls::open_listing(1, &listing),
    ] {
        assert!(world.call(reader, call).status.is_ok());
    }
}

#[test]
fn hosts_that_are_taken_off_the_list_lose_their_controllers() {
    let mut world = World::usual();
    let (_, alice) = world.controller(ALICE);
    let (_, bob) = world.controller(BOB);
    let mut hosts = crate::world::config(Default::default()).hosts;
    hosts.retain(|host| host.nqn != BOB);
    world.target.set_hosts(hosts);
    world.run();
    assert!(world.links[bob].target_ended.is_some());
    assert!(
        world
            .call(alice, calls::store(1, b"k", vec![1], Condition::Any))
            .status
            .is_ok()
    );
    let again = world.open(settings(BOB, 0, ANY_CONTROLLER), true);
    world.run();
    let ended = world.links[again].client_ended;
    assert_eq!(
        ended,
        Some(erb_nvme::client::Ended::Refused(Status::CONNECT_HOST))
    );
}
