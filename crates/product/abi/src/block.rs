// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `struct control` as user space uses it: its own part is written, the data path's part is read.
//! A field that Rust needs is listed here and nowhere else.

use std::ptr::addr_of_mut;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::values::Values;
use crate::{DEVICES_MAX, control, hash_secret, log_order};

/// The shared control block. Every access is one atomic load or store.
pub struct Control(Values);

macro_rules! fields {
    ($($(#[$doc:meta])* $field:ident $(, $set:ident)?: $value:ty, $atomic:ty;)*) => {
        impl Control {$(
            $(#[$doc])*
            #[must_use]
            pub fn $field(&self) -> $value {
                // SAFETY: the block is live, aligned by repr(C), and this process only ever accesses its
                // fields atomically.
                unsafe { <$atomic>::from_ptr(addr_of_mut!((*self.at()).$field)) }
                    .load(Ordering::SeqCst)
            }
            $(
                #[doc = concat!("Sets `", stringify!($field), "`.")]
                pub fn $set(&self, value: $value) {
                    // SAFETY: as for the reader above.
                    unsafe { <$atomic>::from_ptr(addr_of_mut!((*self.at()).$field)) }
                        .store(value, Ordering::SeqCst);
                }
            )?
        )*}

        /// The control block, from wherever it is: the fields of [`Control`], which who stands in
        /// between may change on their way.
        pub trait ControlBlock {
            /// The block itself.
            fn control(&self) -> &Control;
            /// Whether anything that was answered in the server's place may not be there yet.
            fn outstanding(&self) -> bool {
                self.control().lsn() != self.control().drained()
            }
            $(
                $(#[$doc])*
                fn $field(&self) -> $value {
                    self.control().$field()
                }
                $(
                    #[doc = concat!("Sets `", stringify!($field), "`.")]
                    fn $set(&self, value: $value) {
                        self.control().$set(value);
                    }
                )?
            )*
        }
    };
}

fields! {
    /// Version of the shared layout.
    abi_version, set_abi_version: u32, AtomicU32;
    /// Redis's port, network order.
    port_be, set_port_be: u16, AtomicU16;
    /// Reads look into a set only if `(set ^ look_at) & look_mask` is 0.
    look_mask, set_look_mask: u8, AtomicU8;
    /// See [`Self::look_mask`].
    look_at, set_look_at: u8, AtomicU8;
    /// The same mask for keys that are read again when they were written.
    fill_mask, set_fill_mask: u16, AtomicU16;
    /// 1: what is cached as absent is answered.
    absent, set_absent: u8, AtomicU8;
    /// 1: the value of a SET is answered from its reply on.
    write_through, set_write_through: u8, AtomicU8;
    /// The same mask for connections whose reads miss again and again.
    vain_mask, set_vain_mask: u32, AtomicU32;
    /// 1: fast answers allowed.
    serving, set_serving: u32, AtomicU32;
    /// What goes on no more (`enum stopping`).
    stopping, set_stopping: u32, AtomicU32;
    /// 1: no operator has said that the cache be closed, or opened.
    closed_by_itself, set_closed_by_itself: u32, AtomicU32;
    /// 1: new connections may be tracked from their first byte.
    admit, set_admit: u16, AtomicU16;
    /// 1: error and status replies are one line each, whatever they repeat of their requests.
    one_line, set_one_line: u16, AtomicU16;
    /// 1: misses are reported and fills inserted.
    fills, set_fills: u32, AtomicU32;
    /// A key is reported at its n-th miss.
    miss_fill_at, set_miss_fill_at: u32, AtomicU32;
    /// Not 0: one of so many misses is reported, and none is counted.
    miss_one_of, set_miss_one_of: u32, AtomicU32;
    /// End of the lease, `CLOCK_MONOTONIC`, ns.
    lease_until_ns, set_lease_until_ns: u64, AtomicU64;
    /// `CLOCK_REALTIME - CLOCK_MONOTONIC`, ns.
    wall_minus_mono_ns, set_wall_minus_mono_ns: i64, AtomicI64;
    /// Each connection sends a command up this often, ns; 0 = never.
    heartbeat_up_ns, set_heartbeat_up_ns: u64, AtomicU64;
    /// `gate_seen` up to which Redis's state was read again.
    gate_ack, set_gate_ack: u64, AtomicU64;
    /// Moves when access rules change: older admissions end.
    rights, set_rights: u32, AtomicU32;
    /// What a new connection may do without a password (`enum door`).
    open, set_open: u32, AtomicU32;
    /// Class of names that the command table lacks.
    unknown_class, set_unknown_class: u32, AtomicU32;
    /// Number of cache sets - 1.
    set_mask, set_set_mask: u64, AtomicU64;
    /// Places in the table of connections.
    conns_max, set_conns_max: u32, AtomicU32;
    /// Those that one client address may have.
    client_conns_max, set_client_conns_max: u32, AtomicU32;
    /// What `erb_settle` settles up to.
    settle_to, set_settle_to: u64, AtomicU64;
    /// Bit `1 << FAST_KIND_x`: the command is not as the fast path knows it.
    fast_off, set_fast_off: u32, AtomicU32;
    /// Commands with unknown keys on their way.
    fence: u64, AtomicU64;
    /// Moves when the fence opens or closes and at every clear.
    global_version: u64, AtomicU64;
    /// Shares of the fence, ever, that wait or waited to be settled.
    fence_answered: u64, AtomicU64;
    /// Of these: given back.
    fence_settled: u64, AtomicU64;
    /// Commands seen that may change Redis's configuration.
    gate_seen: u64, AtomicU64;
    /// Entries of another epoch are absent.
    cache_epoch: u32, AtomicU32;
    /// 1: sampled packets are timed.
    sampling, set_sampling: u32, AtomicU32;
    /// 1: their keys are reported.
    heat, set_heat: u32, AtomicU32;
    /// When a connection last found no room in the table, ns; 0: never.
    no_room_ns: u64, AtomicU64;
}

impl Control {
    /// The block in `erb_control`.
    #[must_use]
    pub const fn new(values: Values) -> Self {
        Self(values)
    }

    fn at(&self) -> *mut control {
        self.0.at(0)
    }

    /// Sets `devices`: those that do not fit are left out, the rest is 0.
    pub fn set_devices(&self, indexes: &[u32]) {
        for place in 0..DEVICES_MAX as usize {
            let index = indexes.get(place).copied().unwrap_or(0);
            // SAFETY: as for the fields; the place is within the array.
            unsafe { AtomicU32::from_ptr(addr_of_mut!((*self.at()).devices[place])) }
                .store(index, Ordering::SeqCst);
        }
    }

    /// A word of `order`.
    fn order_word(&self, of: impl Fn(*mut log_order) -> *mut u64) -> &AtomicU64 {
        // SAFETY: an aligned word of the live block, only ever accessed as an atomic.
        unsafe { AtomicU64::from_ptr(of(addr_of_mut!((*self.at()).order))) }
    }

    /// A number of `order`.
    fn order_number(&self, of: impl Fn(*mut log_order) -> *mut u32) -> &AtomicU32 {
        // SAFETY: an aligned word of the live block, only ever accessed as an atomic.
        unsafe { AtomicU32::from_ptr(of(addr_of_mut!((*self.at()).order))) }
    }

    /// The last LSN given.
    #[must_use]
    pub fn lsn(&self) -> u64 {
        // SAFETY: the pointer is to the whole order.
        let lsn = self.order_word(|order| unsafe { &raw mut (*order).lsn });
        lsn.load(Ordering::SeqCst)
    }

    /// Gives LSNs up to this one: for who stands in for the programs.
    pub fn give_lsns(&self, lsn: u64) {
        // SAFETY: as above.
        let word = self.order_word(|order| unsafe { &raw mut (*order).lsn });
        word.fetch_max(lsn, Ordering::SeqCst);
    }

    /// Whether writes may be answered in the server's place. Only while [`Self::set_watch`] was said, and the programs
    /// that do so are there.
    pub fn set_absorb(&self, may: bool) {
        // SAFETY: the pointer is to the whole order.
        let absorb = self.order_number(|order| unsafe { &raw mut (*order).absorb });
        absorb.store(may.into(), Ordering::SeqCst);
    }

    /// Whether writes may be answered.
    #[must_use]
    pub fn absorb(&self) -> bool {
        // SAFETY: the pointer is to the whole order.
        let absorb = self.order_number(|order| unsafe { &raw mut (*order).absorb });
        absorb.load(Ordering::SeqCst) != 0
    }

    /// `CLOCK_MONOTONIC`, ns: what was answered until then is in Redis.
    #[must_use]
    pub fn fresh_ns(&self) -> u64 {
        // SAFETY: the pointer is to the whole order.
        let fresh = self.order_word(|order| unsafe { &raw mut (*order).fresh_ns });
        fresh.load(Ordering::SeqCst)
    }

    /// The same, for who stands in for the drain.
    pub fn set_fresh_ns(&self, fresh_ns: u64) {
        // SAFETY: the pointer is to the whole order.
        let fresh = self.order_word(|order| unsafe { &raw mut (*order).fresh_ns });
        fresh.store(fresh_ns, Ordering::SeqCst);
    }

    /// So many CPUs may answer writes from now on: who goes up looks at what they do.
    pub fn set_watch(&self, cpus: u32) {
        // SAFETY: the pointer is to the whole order.
        let watch = self.order_number(|order| unsafe { &raw mut (*order).watch });
        watch.store(cpus, Ordering::SeqCst);
    }

    /// The last LSN of which all before it and it are in Redis.
    #[must_use]
    pub fn drained(&self) -> u64 {
        // SAFETY: as above.
        let drained = self.order_word(|order| unsafe { &raw mut (*order).drained });
        drained.load(Ordering::SeqCst)
    }

    /// Moves it on; it never goes back, whoever else drains.
    pub fn set_drained(&self, lsn: u64) {
        // SAFETY: as above.
        let drained = self.order_word(|order| unsafe { &raw mut (*order).drained });
        drained.fetch_max(lsn, Ordering::SeqCst);
    }

    /// Number of the last asking where all is that is drained.
    #[must_use]
    pub fn sync_begun(&self) -> u32 {
        // SAFETY: the pointer is to the whole order.
        let begun = self.order_number(|order| unsafe { &raw mut (*order).sync_begun });
        begun.load(Ordering::SeqCst)
    }

    /// The next one is about to begin; its number.
    pub fn begin_sync(&self) -> u32 {
        // SAFETY: the pointer is to the whole order.
        let begun = self.order_number(|order| unsafe { &raw mut (*order).sync_begun });
        begun.fetch_add(1, Ordering::SeqCst).wrapping_add(1)
    }

    /// Number of the last one that was answered.
    #[must_use]
    pub fn sync_done(&self) -> u32 {
        // SAFETY: the pointer is to the whole order.
        let done = self.order_number(|order| unsafe { &raw mut (*order).sync_done });
        done.load(Ordering::SeqCst)
    }

    /// Up to which LSN all was where WAIT would count it, when that one began.
    #[must_use]
    pub fn synced(&self) -> u64 {
        // SAFETY: as above.
        let synced = self.order_word(|order| unsafe { &raw mut (*order).synced });
        synced.load(Ordering::SeqCst)
    }

    /// This asking is answered: all up to this LSN, which was drained when it began, is there.
    pub fn set_synced(&self, number: u32, lsn: u64) {
        // SAFETY: as above.
        let synced = self.order_word(|order| unsafe { &raw mut (*order).synced });
        synced.fetch_max(lsn, Ordering::SeqCst);
        // SAFETY: the pointer is to the whole order.
        let done = self.order_number(|order| unsafe { &raw mut (*order).sync_done });
        done.store(number, Ordering::SeqCst);
    }

    /// Whether Redis has refused a drain for long: what may cure that is not held.
    pub fn set_refused(&self, has: bool) {
        // SAFETY: the pointer is to the whole order.
        let refused = self.order_number(|order| unsafe { &raw mut (*order).refused });
        refused.store(has.into(), Ordering::SeqCst);
    }

    /// Whether that was said.
    #[must_use]
    pub fn refused(&self) -> bool {
        // SAFETY: the pointer is to the whole order.
        let refused = self.order_number(|order| unsafe { &raw mut (*order).refused });
        refused.load(Ordering::SeqCst) != 0
    }

    /// What the key hash is keyed with.
    #[must_use]
    pub fn hash_secret(&self) -> hash_secret {
        // SAFETY: the block is live; this is written once, before any program is attached.
        unsafe { addr_of_mut!((*self.at()).hash).read_volatile() }
    }

    /// Sets it: only before anything is attached.
    pub fn set_hash_secret(&self, secret: hash_secret) {
        // SAFETY: as above; no program reads it yet.
        unsafe { addr_of_mut!((*self.at()).hash).write_volatile(secret) };
    }
}
