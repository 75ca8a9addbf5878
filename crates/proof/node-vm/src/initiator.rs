// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Linux's own initiator stores, retrieves, lists and deletes, beside what the node's own client sees.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use erb_kv::{Change, Client, Condition, Key, MarkKind, RollBack, Selector, Target, Url, Write};
use erb_nvme::client::{Call, Reply, calls};
use erb_nvme::layout::{self, HEAD_BYTES, ListingRequest};
use erb_nvme::status::Status;
use erb_nvme::target::log;
use nix::unistd::{Gid, Uid, setresgid, setresuid};

use crate::linux::{Device, FILL};

const NAMESPACE: u32 = 1;
const ROOM: usize = 1 << 20;
/// Around what lies in a capsule, in one H2CData, in one command, and what is no multiple of anything.
const SIZES: [usize; 16] = [
    0,
    1,
    3,
    100,
    511,
    4095,
    4096,
    8191,
    8192,
    8193,
    65_536,
    131_072,
    131_073,
    300_001,
    ROOM - 1,
    ROOM,
];
/// More keys than a page of the small room has.
const LISTED: usize = 300;
const SMALL_ROOM: usize = 1000;

/// Arguments.
#[derive(Debug, Args)]
pub struct Initiator {
    /// The namespace's device: /dev/ngXnY.
    namespace: PathBuf,
    /// The controller's device: /dev/nvmeX.
    controller: PathBuf,
    /// The node, for its own client.
    url: Url,
    /// What keys of this run begin with, at most 4 bytes.
    #[arg(long, default_value = "a")]
    prefix: String,
}

struct Check {
    linux: Device,
    admin: Device,
    own: Client,
    prefix: String,
}

type Run = fn(&mut Check) -> Result<()>;

/// Bytes that tell their length and place.
fn value(bytes: usize, salt: u8) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(bytes as u64 * 256 + u64::from(salt));
    let mut value = vec![0; bytes];
    random.fill(&mut value);
    value
}

fn said(reply: &Reply) -> String {
    format!("{:?}, result {:#x}", reply.status, reply.result)
}

impl Check {
    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}{name}", self.prefix).into_bytes()
    }

    /// A command that has to end well.
    fn done(&self, call: &Call) -> Result<Reply> {
        let reply = self.linux.call(call)?;
        ensure!(reply.status.is_ok(), "{:?}: {}", call.sqe, said(&reply));
        Ok(reply)
    }

    fn refused(&self, call: &Call, status: Status) -> Result<Reply> {
        let reply = self.linux.call(call)?;
        ensure!(
            reply.status == status,
            "{:?}: {} instead of {status:?}",
            call.sqe,
            said(&reply)
        );
        Ok(reply)
    }

    fn retrieved(&self, key: &[u8], room: usize) -> Result<Vec<u8>> {
        let mut reply = self.done(&calls::retrieve(NAMESPACE, key, room))?;
        let bytes = usize::try_from(reply.result)?;
        let came = bytes.min(room);
        // The kernel copies what is not aligned, and clears the copy first.
        let is = |fill| reply.data[came..].iter().all(|byte| *byte == fill);
        ensure!(is(FILL) || is(0), "more than the value came");
        reply.data.truncate(came);
        Ok(reply.data)
    }

    /// Values of all sizes, both ways.
    fn values(&mut self) -> Result<()> {
        for size in SIZES {
            let (theirs, ours) = (value(size, 1), value(size, 2));
            let (key, other) = (self.key(&format!("l{size}")), self.key(&format!("o{size}")));
            self.done(&calls::store(
                NAMESPACE,
                &key,
                theirs.clone(),
                Condition::Any,
            ))
            .with_context(|| format!("Store of {size} bytes"))?;
            let read = self.own.get(&key, Selector::Head)?.value;
            ensure!(read == theirs, "own client: {size} bytes are not as stored");
            self.own.put(&other, &ours, None)?;
            for room in [ROOM, size.max(1)] {
                let read = self.retrieved(&other, room);
                let read = read.with_context(|| format!("Retrieve of {size} into {room} bytes"))?;
                ensure!(read == ours, "Linux: {size} bytes are not as put");
            }
            if size > 3 {
                let read = self.retrieved(&other, size / 2)?;
                ensure!(
                    read == ours[..size / 2],
                    "Linux: the first half of {size} bytes"
                );
            }
        }
        Ok(())
    }

    /// Conditions, Exist, Delete, and what each refuses.
    fn standard(&mut self) -> Result<()> {
        let key = self.key("s");
        let store =
            |value: &[u8], condition| calls::store(NAMESPACE, &key, value.to_vec(), condition);
        self.refused(&calls::retrieve(NAMESPACE, &key, 100), Status::ABSENT)?;
        self.refused(&calls::exist(NAMESPACE, &key), Status::ABSENT)?;
        self.refused(&store(b"no", Condition::Present), Status::ABSENT)?;
        self.done(&store(b"one", Condition::Absent))?;
        self.refused(&store(b"no", Condition::Absent), Status::PRESENT)?;
        self.done(&store(b"two", Condition::Present))?;
        self.done(&calls::exist(NAMESPACE, &key))?;
        ensure!(self.own.get(&key, Selector::Back(1))?.value == b"one");
        self.done(&calls::delete(NAMESPACE, &key))?;
        self.refused(&calls::exist(NAMESPACE, &key), Status::ABSENT)?;
        // A delete of what is not there is an error if the host has asked for that alone.
        self.done(&calls::delete(NAMESPACE, &key))?;
        let absent = self.own.get(&key, Selector::Head);
        ensure!(absent.is_err_and(|error| error.status() == Some(Status::ABSENT)));
        self.refused(
            &calls::store(NAMESPACE, b"", vec![1], Condition::Any),
            Status::KEY_SIZE,
        )?;
        self.done(&Call::plain(
            erb_nvme::command::Sqe::new(0).in_namespace(NAMESPACE),
        ))
        .context("Flush")?;
        Ok(())
    }

    /// List, page for page, also behind a key that has gone.
    fn lists(&mut self) -> Result<()> {
        let wanted: BTreeSet<Vec<u8>> = (0..LISTED).map(|n| self.key(&format!("k{n}"))).collect();
        for key in &wanted {
            self.done(&calls::store(NAMESPACE, key, key.clone(), Condition::Any))?;
        }
        let (mut from, mut found, mut pages) = (Vec::new(), Vec::new(), 0);
        loop {
            let reply = self.done(&calls::list(NAMESPACE, &from, SMALL_ROOM))?;
            let keys = layout::list_of(&reply.data).context("a list that makes no sense")?;
            let fresh: Vec<_> = keys.into_iter().filter(|key| *key != from).collect();
            let Some(last) = fresh.last() else { break };
            from.clone_from(last);
            found.extend(fresh);
            pages += 1;
        }
        let all: BTreeSet<Vec<u8>> = found.iter().cloned().collect();
        ensure!(all.len() == found.len(), "a key came twice");
        ensure!(wanted.is_subset(&all), "a key is missing");
        ensure!(pages > 2, "{pages} pages");
        let mut listing = self.own.listing(b"", 0, 0)?;
        let mut own = BTreeSet::new();
        while let Some(rows) = self.own.page(&mut listing)? {
            own.extend(
                rows.into_iter()
                    .map(|row| row.key)
                    .filter(|key| key.len() <= 16),
            );
        }
        ensure!(own == all, "own client lists others");
        Ok(())
    }

    /// C1, C2, C6, C8, CC.
    fn versions(&mut self) -> Result<()> {
        let name = self.key("v");
        let key = Key::Plain(name.clone());
        let put =
            |value: &[u8], expected| calls::put_value(NAMESPACE, &name, value.to_vec(), expected);
        let first = self.done(&put(b"first", Some(0)))?.result;
        let second = self.done(&put(b"second", Some(first)))?.result;
        ensure!(first < second, "versions rise");
        let mismatch = self.refused(&put(b"no", Some(first)), Status::MISMATCH)?;
        ensure!(
            mismatch.result == second,
            "the head that there is: {}",
            said(&mismatch)
        );
        ensure!(self.own.get(&name, Selector::Version(first))?.value == b"first");
        let third = self.own.put(&name, b"third", Some(second))?;
        for (at, value) in [
            (Selector::Head, &b"third"[..]),
            (Selector::Back(1), b"second"),
            (Selector::Version(first), b"first"),
            (Selector::AsOf(second), b"second"),
        ] {
            let reply = self.done(&calls::get(NAMESPACE, &key, at, true, 4096))?;
            let head = layout::head_of(&reply.data).context("a head")?;
            let end = HEAD_BYTES + head.bytes as usize;
            ensure!(reply.data[HEAD_BYTES..end] == *value, "{at:?}");
            ensure!(
                reply.result == value.len() as u64,
                "{at:?}: the value's size"
            );
        }
        self.refused(
            &calls::get(NAMESPACE, &key, Selector::Version(first + 1), false, 4096),
            Status::NO_SUCH_VERSION,
        )?;
        self.done(&calls::restore(NAMESPACE, &key, Selector::Version(first)))?;
        ensure!(self.own.get(&name, Selector::Head)?.value == b"first");
        self.done(&calls::delete_key(NAMESPACE, &key, None))?;
        let reply = self.done(&calls::versions(NAMESPACE, &key, 0, 4096))?;
        let (rows, has_more, _) = layout::versions_of(&reply.data).context("versions")?;
        let (own, _) = self.own.versions(&name, 0)?;
        ensure!(rows == own && rows.len() == 5 && !has_more, "{rows:?}");
        ensure!(rows[2].version == third);
        Ok(())
    }

    /// C1, C2, C6 with a long key; C5; D5 and CA; D0; D4.
    fn ours(&mut self) -> Result<()> {
        let long = self.key(&"long key, ".repeat(100));
        let put = calls::put_value(NAMESPACE, &long, value(20_000, 3), None);
        self.done(&put)?;
        ensure!(self.own.get(&long, Selector::Head)?.value == value(20_000, 3));
        let rows: Vec<Write> = (0..40)
            .map(|number| Write {
                key: erb_kv::plain(&self.key(&format!("b/{number}"))),
                change: Change::Put(value(1000, number)),
                condition: Condition::Any,
            })
            .collect();
        let version = self.done(&calls::batch(NAMESPACE, &rows))?.result;
        let prefix = self.key("b/");
        for number in [0, 39] {
            let read = self
                .own
                .get(&self.key(&format!("b/{number}")), Selector::Head)?;
            ensure!(read.value == value(1000, number) && read.head.version == version);
        }
        let listing = ListingRequest {
            moment: 0,
            changed_since: 0,
            has_deleted: false,
            prefix: prefix.clone(),
        };
        let handle = self.done(&calls::open_listing(NAMESPACE, &listing))?.result;
        let (mut cursor, mut listed) = (0, 0);
        loop {
            let reply = self.done(&calls::listed_keys(NAMESPACE, handle, cursor, SMALL_ROOM))?;
            let (rows, next, _) = layout::page_of(&reply.data).context("a page")?;
            ensure!(
                rows.iter()
                    .all(|row| row.version == version && row.key.starts_with(&prefix))
            );
            (cursor, listed) = (next, listed + rows.len());
            if next == 0 {
                break;
            }
        }
        ensure!(listed == rows.len(), "{listed} listed");
        let held = self.done(&calls::snapshot(NAMESPACE, 0))?.result;
        let is_held = |mark: &erb_kv::Mark| mark.kind == MarkKind::Snapshot && mark.id == held;
        ensure!(
            self.own.marks()?.iter().any(is_held),
            "the snapshot is listed"
        );
        self.done(&calls::release(NAMESPACE, held))?;
        ensure!(!self.own.marks()?.iter().any(is_held), "it is released");
        // There is no other controller of this host: it is answered at once.
        self.done(&Call {
            sqe: calls::fence().sqe.in_namespace(NAMESPACE),
            ..calls::fence()
        })?;
        Ok(())
    }

    /// C9: counted, done, undone.
    fn roll_backs(&mut self) -> Result<()> {
        let keys: Vec<_> = (0..20)
            .map(|number| self.key(&format!("r/{number}")))
            .collect();
        let mut moment = 0;
        for key in &keys {
            moment = self
                .done(&calls::put_value(NAMESPACE, key, b"good".to_vec(), None))?
                .result;
        }
        for key in &keys {
            self.done(&calls::store(
                NAMESPACE,
                key,
                b"bad".to_vec(),
                Condition::Any,
            ))?;
        }
        let mut back = RollBack {
            prefix: self.key("r/"),
            target: Target::Moment(moment),
            unless_written_since: None,
            is_dry_run: true,
        };
        let id = self.done(&calls::roll_back(NAMESPACE, &back))?.result;
        let marks = self
            .admin
            .call(&calls::log(log::MARKS, NAMESPACE, 1, 0, 4096))?;
        let (_, marks) = layout::marks_of(&marks.data).context("marks")?;
        let counted = marks
            .iter()
            .find(|mark| mark.kind == MarkKind::DryRun && mark.id == id);
        ensure!(counted.is_some_and(|mark| mark.keys == 20), "{counted:?}");
        back.is_dry_run = false;
        let id = self.done(&calls::roll_back(NAMESPACE, &back))?.result;
        for key in &keys {
            ensure!(self.own.get(key, Selector::Head)?.value == b"good");
            ensure!(self.retrieved(key, 100)? == b"good");
        }
        back.target = Target::Moment(id - 1);
        self.own.roll_back(&back)?;
        for key in &keys {
            ensure!(self.retrieved(key, 100)? == b"bad");
        }
        Ok(())
    }

    /// Without CAP_SYS_ADMIN the kernel passes what the effects log names, and nothing from 80h on.
    fn unprivileged(&mut self) -> Result<()> {
        let (user, group) = (Uid::from_raw(65_534), Gid::from_raw(65_534));
        setresgid(group, group, group)?;
        setresuid(user, user, user)?;
        let key = self.key("u");
        self.done(&calls::store(
            NAMESPACE,
            &key,
            b"mine".to_vec(),
            Condition::Any,
        ))?;
        ensure!(self.retrieved(&key, 100)? == b"mine");
        self.done(&calls::list(NAMESPACE, b"", 4096))?;
        self.done(&calls::exist(NAMESPACE, &key))?;
        self.done(&calls::delete(NAMESPACE, &key))?;
        let ours = self
            .linux
            .call(&calls::put_value(NAMESPACE, &key, b"no".to_vec(), None));
        match ours {
            Err(_) => Ok(()),
            Ok(reply) => bail!("the kernel passes C1h without privilege: {}", said(&reply)),
        }
    }
}

/// Runs the checks.
pub fn run(args: &Initiator) -> Result<()> {
    let own = |url: &Url| Client::connect(url).context("the node's own client");
    let mut check = Check {
        linux: Device::io(Path::new(&args.namespace))?,
        admin: Device::admin(Path::new(&args.controller))?,
        own: own(&args.url)?,
        prefix: args.prefix.clone(),
    };
    let checks: [(&str, Run); 7] = [
        ("values of all sizes, both ways", Check::values),
        ("Store, Retrieve, Exist, Delete", Check::standard),
        ("List", Check::lists),
        ("put, get, versions, restore, delete", Check::versions),
        (
            "long keys, batches, listings, snapshots, fence",
            Check::ours,
        ),
        ("roll back and undo", Check::roll_backs),
        // The last: it gives its privileges away.
        ("without privilege", Check::unprivileged),
    ];
    let mut failed = 0;
    for (name, run) in checks {
        match run(&mut check) {
            Ok(()) => println!("passed: {name}"),
            Err(error) => {
                failed += 1;
                println!("FAILED: {name}: {error:#}");
            }
        }
    }
    ensure!(failed == 0, "{failed} failed");
    Ok(())
}
