// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Watching the programs at work: while somebody traces, traced ones (`bpf/trace_xdp.bpf.c`,
//! `bpf/trace_tc.bpf.c`: the same sources, watched from outside) take their places.
//!
//! Invariants:
//! 1. Each link is swapped by one system call, and only if it still runs what it is thought to run: a
//!    replacement or a detach at the same time wins, whichever comes first.
//! 2. Both share maps and marks, as builds do that replace each other ([`crate::promote`]), so a packet
//!    may meet the one at XDP and the other at TC.
//! 3. Nothing of a trace is pinned, and no link is held open: a detach finds what it expects. What a
//!    killed one leaves on links is taken back by [`Links::untrace`], and traces nobody (the lease).
//!
//! (Programs can also be watched by others hung around them, fentry and fexit. Kernels that allow no
//! change of code at run time refuse that; this needs nothing that a boost does not.)

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use erb_abi::{self as abi, Control, trace_event, trace_lease, trace_options};
use libbpf_rs::{
    MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel, Program,
    RingBuffer, RingBufferBuilder, set_print,
};

use crate::attach::{Hook, Links, program_id, verified};
use crate::load::{
    is_of_absorption, keep_message, leave_out_absorption, libbpf_messages, program_pin,
    without_prefetch,
};
use crate::mapped::mapped;
use crate::programs::{TRACE_TC, TRACE_XDP};
use crate::{CacheSize, Error, Result, SET_BYTES, Sizes, TableSize};

/// Where programs are swapped, in the order in which links are made.
const HOOKS: [Hook; 3] = [Hook::Egress, Hook::Ingress, Hook::Xdp];

/// Maps of which there is one for all objects.
const SHARED: [&str; 3] = ["trace_ring", "trace_misses", "trace_leases"];

/// Events taken per look, so that signals and limits are looked at in between.
const EVENTS_PER_LOOK: usize = 4096;

/// Which packets are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceFilter {
    /// Of this client, IPv4 as `::ffff:a.b.c.d`.
    pub client: Option<[u8; 16]>,
    /// And of this port of it; 0: any.
    pub client_port: u16,
    /// Those to Redis that have this argument.
    pub key: Option<Vec<u8>>,
}

impl TraceFilter {
    /// The key as a request has it: a bulk string. Empty without a key.
    fn word(&self) -> Vec<u8> {
        let Some(key) = &self.key else {
            return Vec::new();
        };
        let mut word = format!("${}\r\n", key.len()).into_bytes();
        word.extend(key);
        word.extend(b"\r\n");
        word
    }

    fn options(&self) -> Result<trace_options> {
        let word = self.word();
        let mut options = trace_options {
            client_addr: self.client.unwrap_or_default(),
            client_port_be: self.client_port.to_be(),
            by_client: u8::from(self.client.is_some()),
            word_len: word.len() as u32,
            ..trace_options::default()
        };
        let room = options.word.get_mut(..word.len());
        room.ok_or_else(|| {
            Error::Size(format!(
                "the key is longer than {} bytes: such keys are never answered by ERB, so each of \
                 its packets goes up for that reason",
                abi::KEY_BYTES_MAX
            ))
        })?
        .copy_from_slice(&word);
        Ok(options)
    }
}

/// One packet that met one program.
#[derive(Clone, Debug)]
pub struct Traced {
    /// What the program made of it.
    pub event: trace_event,
    /// The first bytes of its payload, if it came from a client.
    pub payload: Vec<u8>,
}

/// Packets that were not shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceMisses {
    /// Nobody took them from the ring in time.
    pub lost: u64,
    /// What could be searched of their payload has not the key.
    pub unsearched: u64,
}

/// Whether a trace still sees all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtWork {
    /// The traced programs are at work.
    Traced,
    /// Others are: attach anew.
    Others,
    /// None are.
    None,
}

/// Traced programs, and the events that they tell.
pub struct Tracer {
    root: PathBuf,
    pinned: [u32; HOOKS.len()],
    ring: RingBuffer<'static>,
    events: Rc<RefCell<Vec<Traced>>>,
    misses: MapHandle,
    leases: MapHandle,
    objects: Vec<Object>,
    at_work: bool,
}

impl Tracer {
    /// Loads the traced programs over the maps that are pinned in `root`, which must be of this
    /// layout. Nothing at work changes.
    ///
    /// # Errors
    /// [`Error::Pin`] if nothing is pinned there, [`Error::Load`] if the kernel refuses,
    /// [`Error::Size`] for a key that is too long.
    pub fn load(root: &Path, filter: &TraceFilter) -> Result<Self> {
        set_print(Some((PrintLevel::Info, keep_message)));
        let options = filter.options()?;
        let sizes = sizes_of(&Control::new(mapped(root, "erb_control")?))?;
        let mut objects: Vec<Object> = Vec::new();
        for bytes in [TRACE_XDP, TRACE_TC] {
            let mut object = ObjectBuilder::default()
                .pin_root_path(root)
                .and_then(|builder| builder.open_memory(&without_prefetch(bytes)))
                .map_err(refused)?;
            prepare(&mut object, &options, sizes, objects.first())?;
            leave_out_absorption(&mut object, None).map_err(refused)?;
            objects.push(object.load().map_err(refused)?);
        }
        let events = Rc::new(RefCell::new(Vec::new()));
        Ok(Self {
            root: root.to_path_buf(),
            pinned: pinned_ids(root)?,
            ring: ring(&map_of(&objects[0], "trace_ring")?, Rc::clone(&events))?,
            events,
            misses: map_of(&objects[0], "trace_misses")?,
            leases: map_of(&objects[0], "trace_leases")?,
            objects,
            at_work: false,
        })
    }

    /// Puts them to work on every link that runs the pinned program. What a killed trace left is
    /// taken back first. Returns whether all links were of that kind: not so after a replacement that
    /// was killed half-way.
    ///
    /// # Errors
    /// [`Error::Attach`] if a link cannot be changed.
    pub fn begin(&mut self) -> Result<bool> {
        let links = Links::new(&self.root);
        links.untrace()?;
        let whole = links.run_pinned();
        self.at_work = true;
        for hook in HOOKS {
            let programs = self.objects.iter().flat_map(Object::progs);
            let traced = programs
                .into_iter()
                .find(|program| program.name() == hook.traced())
                .ok_or_else(|| Error::map(hook.traced(), "is in no object"))?;
            links.swap(
                hook,
                open_program(&self.root, hook)?.as_fd(),
                traced.as_fd(),
            )?;
        }
        Ok(whole)
    }

    /// Lets the traced programs trace until then, `CLOCK_MONOTONIC`.
    ///
    /// # Errors
    /// [`Error::Map`] if it cannot be told.
    pub fn hold(&self, until_ns: u64) -> Result<()> {
        let lease = trace_lease { until_ns };
        self.leases
            .update(
                &0_u32.to_ne_bytes(),
                &lease.until_ns.to_ne_bytes(),
                MapFlags::ANY,
            )
            .map_err(|error| Error::map("trace_leases", error))
    }

    /// Takes what came since the last look, oldest first, at most a few thousand.
    pub fn take(&mut self) -> Vec<Traced> {
        self.ring.consume_raw_n(EVENTS_PER_LOOK);
        self.events.take()
    }

    /// Packets that were not shown so far.
    ///
    /// # Errors
    /// [`Error::Map`] if they cannot be read.
    pub fn misses(&self) -> Result<TraceMisses> {
        let count = |what: abi::trace_miss| {
            let values = self
                .misses
                .lookup_percpu(&what.to_ne_bytes(), MapFlags::ANY)
                .map_err(|error| Error::map("trace_misses", error))?
                .unwrap_or_default();
            let words = values.iter().filter_map(|bytes| bytes.first_chunk());
            Ok(words.map(|bytes| u64::from_ne_bytes(*bytes)).sum())
        };
        Ok(TraceMisses {
            lost: count(abi::TRACE_LOST)?,
            unsearched: count(abi::TRACE_UNSEARCHED)?,
        })
    }

    /// Whether what was pinned when it was loaded is still pinned.
    #[must_use]
    pub fn at_work(&self) -> AtWork {
        match pinned_ids(&self.root) {
            Ok(ids) if ids == self.pinned => AtWork::Traced,
            Ok(_) => AtWork::Others,
            Err(_) => AtWork::None,
        }
    }

    /// Instructions verified of each of its programs.
    ///
    /// # Errors
    /// [`Error::System`] if the kernel does not tell.
    pub fn verified(&self) -> Result<Vec<(String, u32)>> {
        let programs = self.objects.iter().flat_map(Object::progs);
        programs
            .filter(|program| !is_of_absorption(&program.name().to_string_lossy()))
            .map(|program| {
                let name = program.name().to_string_lossy().into_owned();
                Ok((name, verified(&program.as_fd())?))
            })
            .collect()
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        if self.at_work {
            // Where links or pins are gone there is nothing to take back.
            let _ = Links::new(&self.root).untrace();
        }
    }
}

fn refused(error: libbpf_rs::Error) -> Error {
    Error::Load {
        what: "the programs of `erb trace`".to_owned(),
        reason: error.to_string(),
        log: libbpf_messages(),
    }
}

fn system(reason: std::io::Error) -> Error {
    Error::System {
        what: "could not ask what a program is".to_owned(),
        reason,
    }
}

fn open_program(root: &Path, hook: Hook) -> Result<OwnedFd> {
    let path = program_pin(root, hook.program());
    Program::fd_from_pinned_path(&path).map_err(|error| Error::Pin {
        what: path.display().to_string(),
        reason: error.to_string(),
    })
}

/// Ids of the pinned programs, in the order of [`HOOKS`].
fn pinned_ids(root: &Path) -> Result<[u32; HOOKS.len()]> {
    let mut ids = [0; HOOKS.len()];
    for (id, hook) in ids.iter_mut().zip(HOOKS) {
        *id = program_id(&open_program(root, hook)?).map_err(system)?;
    }
    Ok(ids)
}

fn map_of(object: &Object, name: &'static str) -> Result<MapHandle> {
    let found = object.maps().find(|map| map.name() == name);
    let found = found.ok_or_else(|| Error::map(name, "is not in the object"))?;
    MapHandle::try_from(&found).map_err(|error| Error::map(name, error))
}

/// The sizes that the maps at work have.
fn sizes_of(control: &Control) -> Result<Sizes> {
    let cache = (control.set_mask() + 1) * SET_BYTES;
    Ok(Sizes {
        cache: CacheSize::from_bytes(cache, u64::MAX)?,
        table: TableSize::of(control.conns_max(), u64::MAX)?,
        log_rings: 0,
    })
}

/// Tells an object what to look for, and which maps it has: those of `first` where there is but one.
fn prepare(
    object: &mut OpenObject,
    options: &trace_options,
    sizes: Sizes,
    first: Option<&Object>,
) -> Result<()> {
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if name.ends_with("rodata.options") {
            // SAFETY: the structure is plain integers with explicit padding, read as its bytes.
            let bytes = unsafe {
                std::slice::from_raw_parts(
                    std::ptr::from_ref(options).cast::<u8>(),
                    size_of::<trace_options>(),
                )
            };
            map.set_initial_value(bytes).map_err(refused)?;
        } else if let Some(entries) = sizes.entries_of(&name) {
            map.set_max_entries(entries).map_err(refused)?;
        } else if let Some(shared) = SHARED.into_iter().find(|shared| *shared == name)
            && let Some(first) = first
        {
            map.reuse_fd(map_of(first, shared)?.as_fd())
                .map_err(refused)?;
        }
    }
    Ok(())
}

fn ring(map: &MapHandle, events: Rc<RefCell<Vec<Traced>>>) -> Result<RingBuffer<'static>> {
    let refused = |error: libbpf_rs::Error| Error::map("trace_ring", error);
    let mut builder = RingBufferBuilder::new();
    builder
        .add(map, move |record| {
            events.borrow_mut().extend(read(record));
            0
        })
        .map_err(refused)?;
    builder.build().map_err(refused)
}

/// What a record of the ring says; none if it is shorter than an event.
fn read(record: &[u8]) -> Option<Traced> {
    let (head, payload) = record.split_at_checked(size_of::<trace_event>())?;
    // SAFETY: the length was checked; the structure is integers for which any bytes are valid, and
    // the read does not ask for alignment.
    let event = unsafe { head.as_ptr().cast::<trace_event>().read_unaligned() };
    // Records are padded to a multiple of 8.
    let held = payload.len().min(event.held as usize);
    Some(Traced {
        event,
        payload: payload[..held].to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_looked_for_as_a_bulk_string() {
        let filter = |key: &[u8]| TraceFilter {
            key: Some(key.to_vec()),
            ..TraceFilter::default()
        };
        assert_eq!(filter(b"a\r\n").word(), b"$3\r\na\r\n\r\n");
        assert_eq!(filter(b"").word(), b"$0\r\n\r\n");
        assert_eq!(TraceFilter::default().word(), b"");
        // The longest one fits.
        let longest = filter(&[7; abi::KEY_BYTES_MAX as usize]).word();
        assert!(longest.len() <= abi::TRACE_WORD_BYTES as usize);
    }

    #[test]
    fn records_of_the_ring_are_read() {
        assert!(read(&[0; 8]).is_none());
        let mut record = vec![0; size_of::<trace_event>()];
        let held = std::mem::offset_of!(trace_event, held);
        record[held..held + 4].copy_from_slice(&3_u32.to_ne_bytes());
        record.extend(b"abc\0\0\0\0\0");
        let traced = read(&record).unwrap();
        assert_eq!(traced.payload, b"abc");
        assert_eq!(traced.event.held, 3);
    }
}
