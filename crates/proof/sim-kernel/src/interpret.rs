// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lets somebody else run the programs: an interpreter of the objects that are loaded into kernels,
//! on the same maps, packets, sockets and helpers as the compiled C.
//!
//! Kernel structures are the mirrors, laid out as `bpf/base/kernel_types.h` says. So an object's own
//! offsets are right before any relocation, but for `tcp_sock___usec` (`shim/sim.h`).

use std::ffi::c_void;
use std::rc::Rc;

use crate::datapath::{Datapath, Inner};
use crate::exec::exec;
use crate::helpers::OPS;
use crate::library::SkbCtx;
use crate::map::Map;
use crate::packet::Packet;

/// Runs programs in place of the compiled ones.
pub trait Interpreter {
    /// Runs the program of this name; what it returns.
    fn run(&self, program: &'static str, call: &Call) -> i32;
}

/// Bytes that a program may touch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Area {
    /// Whose they are: a map's name, `packet`, `context`, `socket` or `record`.
    pub name: String,
    /// Where the first one lies; a multiple of 64 is the begin of a cache line. In a hash it is so as
    /// the kernel lays elements out: its own header, key, value.
    pub offset: usize,
}

/// `sizeof(struct htab_elem)` without key and value.
const ELEMENT_HEADER: usize = 48;

/// One execution of a program: its context, and what the kernel gives it.
pub struct Call {
    ctx: *mut c_void,
    ctx_bytes: usize,
    packet: *const Packet,
}

impl Call {
    pub(crate) fn new<C>(ctx: *mut C, packet: *const Packet) -> Self {
        Self {
            ctx: ctx.cast(),
            ctx_bytes: size_of::<C>(),
            packet,
        }
    }

    /// The program's argument.
    #[must_use]
    pub fn ctx(&self) -> u64 {
        self.ctx as u64
    }

    /// Whose the bytes are; none: a program must not touch them.
    #[must_use]
    pub fn area(&self, at: u64, bytes: usize) -> Option<Area> {
        let at = usize::try_from(at).ok()?;
        let within = |base: usize, len: usize| {
            let offset = at.checked_sub(base)?;
            (offset.checked_add(bytes)? <= len).then_some(offset)
        };
        let area = |name: &str, offset| Area {
            name: name.to_owned(),
            offset,
        };
        // SAFETY: the packet lives through the call; helpers change it in between only.
        let [meta, _, end] = unsafe { (*self.packet).pointers() }.map(|pointer| pointer as usize);
        if within(meta, end - meta).is_some() {
            return Some(area("packet", at));
        }
        if let Some(offset) = within(self.ctx as usize, self.ctx_bytes) {
            return Some(area("context", offset));
        }
        let me = exec();
        let inner = me.inner();
        let mirrors = me.held.iter().map(|held| held.mirror.as_ptr() as usize);
        let mirrors = mirrors.chain(inner.home_mirrors());
        let size = inner.library.mirror_bytes();
        if let Some(offset) = { mirrors }.find_map(|base| within(base, size)) {
            return Some(area("socket", offset));
        }
        let shapes = inner.library.maps().iter().enumerate();
        shapes.into_iter().find_map(|(number, shape)| {
            let (values, before) = match &*inner.map(number) {
                Map::Array(values) | Map::PerCpu { values, .. } => (values, 0),
                Map::Hash(hash) => {
                    let key = shape.key_bytes.next_multiple_of(8);
                    (hash.values(), ELEMENT_HEADER + key)
                }
                Map::Ring(ring) => return ring.find(within).map(|at| area("record", at)),
            };
            let offset = within(values.start(), values.stride() * values.count())?;
            let inside = offset % values.stride() + bytes <= values.bytes().next_multiple_of(8);
            inside.then(|| area(&shape.name, before + offset))
        })
    }

    /// `bpf_cast_to_kern_ctx`, as `shim/bpf_helpers.h` has it.
    ///
    /// # Safety
    /// The program must be one of TC.
    #[must_use]
    pub unsafe fn kern_ctx(&self) -> u64 {
        let ctx = self.ctx.cast::<SkbCtx>();
        // SAFETY: the caller's promise.
        unsafe {
            (*ctx).route_ifindex = (*ctx).route;
            (*ctx).route_dst = (&raw const (*ctx).route_ifindex) as usize;
            let refdst = (&raw const (*ctx).route_dst) as usize | 1;
            (*ctx).refdst = if (*ctx).route == 0 { 0 } else { refdst };
            (&raw const (*ctx).refdst) as u64
        }
    }

    /// `bpf_rdonly_cast` of a socket's address.
    #[must_use]
    pub fn cast_socket(&self, at: u64) -> u64 {
        // SAFETY: any address may be asked for.
        unsafe { (OPS.sk_cast)(at as *const c_void) as u64 }
    }

    /// Calls a helper by the number that it has in the kernel (`include/uapi/linux/bpf.h`). A map is
    /// named by [`crate::Library::map_number`]. Returns the helper's name and result; none: no
    /// program calls it so far.
    ///
    /// # Safety
    /// The arguments must be such as the verifier would let pass.
    #[must_use]
    pub unsafe fn helper(&self, number: i32, a: [u64; 5]) -> Option<(&'static str, u64)> {
        // SAFETY: the caller's promise.
        unsafe { helper(number, a) }
    }
}

/// What a helper returns, as a program finds it in R0.
trait Result64 {
    fn bits(self) -> u64;
}

impl Result64 for () {
    fn bits(self) -> u64 {
        0
    }
}

impl Result64 for u32 {
    fn bits(self) -> u64 {
        self.into()
    }
}

impl Result64 for u64 {
    fn bits(self) -> u64 {
        self
    }
}

impl Result64 for i64 {
    fn bits(self) -> u64 {
        self as u64
    }
}

impl<T> Result64 for *mut T {
    fn bits(self) -> u64 {
        self as u64
    }
}

macro_rules! helpers {
    ($($number:literal $name:ident $op:ident ($($index:tt)*);)*) => {
        /// # Safety
        /// As for `Call::helper`.
        unsafe fn helper(number: i32, a: [u64; 5]) -> Option<(&'static str, u64)> {
            match number {
                $($number => {
                    // SAFETY: the caller's promise.
                    let result = unsafe { (OPS.$op)($(a[$index] as _),*) };
                    Some((stringify!($name), result.bits()))
                })*
                _ => None,
            }
        }
    };
}

helpers! {
    1 bpf_map_lookup_elem map_lookup (0 1);
    2 bpf_map_update_elem map_update (0 1 2 3);
    3 bpf_map_delete_elem map_delete (0 1);
    5 bpf_ktime_get_ns ktime_ns ();
    7 bpf_get_prandom_u32 random ();
    9 bpf_skb_store_bytes skb_store (0 1 2 3 4);
    11 bpf_l4_csum_replace skb_l4_csum (0 1 2 3 4);
    13 bpf_clone_redirect skb_clone_redirect (0 1 2);
    26 bpf_skb_load_bytes skb_load (0 1 2 3);
    28 bpf_csum_diff csum_diff (0 1 2 3 4);
    38 bpf_skb_change_tail skb_change_tail (0 1 2);
    44 bpf_xdp_adjust_head xdp_head (0 1);
    46 bpf_get_socket_cookie skb_cookie (0);
    54 bpf_xdp_adjust_meta xdp_meta (0 1);
    65 bpf_xdp_adjust_tail xdp_tail (0 1);
    86 bpf_sk_release sk_release (0);
    93 bpf_spin_lock lock (0);
    94 bpf_spin_unlock unlock (0);
    99 bpf_skc_lookup_tcp sk_lookup (0 1 2 3 4);
    100 bpf_tcp_check_syncookie sk_check_cookie (0 1 2 3 4);
    131 bpf_ringbuf_reserve ring_reserve (0 1 2);
    132 bpf_ringbuf_submit ring_submit (0 1);
    133 bpf_ringbuf_discard ring_discard (0 1);
    137 bpf_skc_to_tcp_sock sk_to_tcp (0);
    138 bpf_skc_to_tcp_timewait_sock sk_to_timewait (0);
    139 bpf_skc_to_tcp_request_sock sk_to_request (0);
    160 bpf_ktime_get_coarse_ns ktime_coarse_ns ();
    189 bpf_xdp_load_bytes xdp_load (0 1 2 3);
    190 bpf_xdp_store_bytes xdp_store (0 1 2 3);
}

impl crate::Library {
    /// By what programs name a map. One that an object has for itself bears the object's name, too.
    #[must_use]
    pub fn map_number(&self, name: &str, object: &str) -> Option<u64> {
        let own = format!("{name}_{object}");
        let mut shapes = self.maps().iter();
        let found = shapes.position(|shape| shape.name == name || shape.name == own);
        found.map(|number| number as u64)
    }
}

/// An element of a map: the map's name, the key, the value.
pub type Element = (String, Vec<u8>, Vec<u8>);

impl Datapath {
    /// From now on network programs are run by this interpreter.
    ///
    /// # Panics
    /// If there is one already.
    pub fn interpret(&self, interpreter: Rc<dyn Interpreter>) {
        let set = self.0.interpreter.set(interpreter);
        assert!(set.is_ok(), "one interpreter is enough");
    }

    /// All elements of the maps that are shared, for comparisons; what is scratch is left out, so are elements of
    /// arrays that are all zero, as most are, and addresses in this process's memory.
    #[must_use]
    pub fn contents(&self) -> Vec<Element> {
        let inner: &Inner = &self.0;
        let shapes = inner.library.maps().iter().enumerate();
        let mut all = Vec::new();
        for (number, shape) in shapes.filter(|(_, shape)| shape.pinned()) {
            let name = || shape.name.clone();
            // SAFETY: values stay where they are (M1); no program runs.
            let bytes = |at: *mut u8, len| unsafe { std::slice::from_raw_parts(at, len) };
            match inner.map(number) {
                Map::Array(values) | Map::PerCpu { values, .. } => {
                    let zeros = vec![0; values.bytes()];
                    let values = (0..values.count())
                        .map(|index| (index, bytes(values.get(index), zeros.len())))
                        .filter(|(_, value)| *value != zeros);
                    all.extend(values.map(|(index, value)| {
                        (name(), index.to_le_bytes().to_vec(), value.to_vec())
                    }));
                }
                Map::Hash(hash) => {
                    for (key, at) in (0..hash.places()).filter_map(|place| hash.at(place)) {
                        let mut value = bytes(at, hash.value_bytes()).to_vec();
                        if number == inner.known.conns {
                            let at = std::mem::offset_of!(erb_abi::conn, tcp_sock);
                            value[at..at + 8].fill(0);
                        }
                        all.push((name(), key.to_vec(), value));
                    }
                }
                Map::Ring(ring) => {
                    let records = ring.records().enumerate();
                    all.extend(records.map(|(n, bytes)| (name(), n.to_le_bytes().to_vec(), bytes)));
                }
            }
        }
        all
    }
}
