// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `struct control` as the daemon uses it: its own part is written, the data path's part is read.

use std::ptr::addr_of_mut;
use std::sync::atomic::{AtomicI64, AtomicU16, AtomicU32, AtomicU64, Ordering};

use erb_abi::{control, hash_secret};

use crate::mapped::Mapped;

/// The shared control block. Every access is one atomic load or store.
pub struct Control {
    mapped: Mapped<control>,
}

macro_rules! fields {
    ($($(#[$doc:meta])* $field:ident, $set:ident: $value:ty, $atomic:ty;)*) => {
        impl Control {$(
            $(#[$doc])*
            #[must_use]
            pub fn $field(&self) -> $value {
                // SAFETY: the pointer is into a live shared mapping, aligned by repr(C), and only
                // ever accessed atomically from this process.
                unsafe { <$atomic>::from_ptr(addr_of_mut!((*self.mapped.ptr()).$field)) }
                    .load(Ordering::SeqCst)
            }
            #[doc = concat!("Sets `", stringify!($field), "`.")]
            pub fn $set(&self, value: $value) {
                // SAFETY: as for the reader above.
                unsafe { <$atomic>::from_ptr(addr_of_mut!((*self.mapped.ptr()).$field)) }
                    .store(value, Ordering::SeqCst);
            }
        )*}
    };
}

macro_rules! fields_read {
    ($($(#[$doc:meta])* $field:ident: $value:ty, $atomic:ty;)*) => {
        impl Control {$(
            $(#[$doc])*
            #[must_use]
            pub fn $field(&self) -> $value {
                // SAFETY: the pointer is into a live shared mapping, aligned by repr(C), and only
                // ever accessed atomically from this process.
                unsafe { <$atomic>::from_ptr(addr_of_mut!((*self.mapped.ptr()).$field)) }
                    .load(Ordering::SeqCst)
            }
        )*}
    };
}

fields! {
    /// Version of the shared layout.
    abi_version, set_abi_version: u32, AtomicU32;
    /// Redis's port, network order.
    port_be, set_port_be: u16, AtomicU16;
    /// 1: fast answers allowed.
    serving, set_serving: u32, AtomicU32;
    /// 1: detach under way.
    stopping, set_stopping: u32, AtomicU32;
    /// 1: new connections may be tracked from their first byte.
    admit, set_admit: u32, AtomicU32;
    /// 1: misses are reported and fills inserted.
    fills, set_fills: u32, AtomicU32;
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
}

fields_read! {
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
    /// When a connection last found no room in the table, ns; 0: never.
    no_room_ns: u64, AtomicU64;
}

impl Control {
    /// Sets `devices`: those that do not fit are left out, the rest is 0.
    pub fn set_devices(&self, indexes: &[u32]) {
        for place in 0..erb_abi::DEVICES_MAX as usize {
            let index = indexes.get(place).copied().unwrap_or(0);
            // SAFETY: as for the fields; the place is within the array.
            unsafe { AtomicU32::from_ptr(addr_of_mut!((*self.mapped.ptr()).devices[place])) }
                .store(index, Ordering::SeqCst);
        }
    }

    pub(crate) const fn new(mapped: Mapped<control>) -> Self {
        Self { mapped }
    }

    /// What the key hash is keyed with.
    #[must_use]
    pub fn hash_secret(&self) -> hash_secret {
        // SAFETY: the pointer is into a live shared mapping, aligned by repr(C); it is written
        // once, before any program is attached.
        unsafe { addr_of_mut!((*self.mapped.ptr()).hash).read_volatile() }
    }

    /// Sets it: only before anything is attached.
    pub(crate) fn set_hash_secret(&self, secret: hash_secret) {
        // SAFETY: as above; no program reads it yet.
        unsafe { addr_of_mut!((*self.mapped.ptr()).hash).write_volatile(secret) };
    }
}
