// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Helpers on packets: `net/core/filter.c` of Linux 6.12.

use crate::csum;
use crate::datapath::{Tc, guard_packet, run_egress};
use crate::errno::{EFAULT, EINVAL};
use crate::exec::{enter, exec};
use crate::library::{SkbCtx, XdpCtx};
use crate::packet::{Csum, Packet};

/// Offsets and lengths that `bpf_xdp_load_bytes` takes.
const XDP_BYTES_MAX: u32 = 0xffff;
/// `SKB_MAX_ALLOC`: four pages less `skb_shared_info`.
const SKB_BYTES_MAX: u32 = 4 * 4096 - 320;
const ETH_BYTES: u32 = 14;
const OFFSET_MAX: u32 = i32::MAX as u32;
/// `BPF_F_RECOMPUTE_CSUM | BPF_F_INVALIDATE_HASH`.
const STORE_FLAGS: u64 = 3;
/// `BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0 | BPF_F_MARK_ENFORCE | BPF_F_HDR_FIELD_MASK`.
const CSUM_FLAGS: u64 = 0x7f;
const CSUM_PSEUDO: u64 = 0x10;
const CSUM_MANGLED_0: u64 = 0x20;
const CSUM_ENFORCE: u64 = 0x40;
const CSUM_SIZE: u64 = 0x0f;

fn xdp_range(len: usize, off: u32, bytes: u32) -> Result<std::ops::Range<usize>, i64> {
    if off > XDP_BYTES_MAX || bytes > XDP_BYTES_MAX {
        return Err(-EFAULT);
    }
    let range = off as usize..(off + bytes) as usize;
    if range.end > len {
        return Err(-EINVAL);
    }
    Ok(range)
}

/// # Safety
/// `ctx` must be the running program's; no reference to its packet may be alive.
unsafe fn xdp_packet<'a>(ctx: *mut XdpCtx) -> &'a mut Packet {
    // SAFETY: Datapath::run_xdp put a live packet there.
    unsafe { &mut *(*ctx).packet }
}

/// # Safety
/// As for `xdp_packet`.
unsafe fn skb_packet<'a>(ctx: *const SkbCtx) -> &'a mut Packet {
    // SAFETY: Datapath::run_skb put a live packet there.
    unsafe { &mut *(*ctx).packet }
}

/// # Safety
/// `ctx` must be the running program's, `to` valid for `len` bytes.
pub(crate) unsafe extern "C-unwind" fn xdp_load(
    ctx: *mut XdpCtx,
    off: u32,
    to: *mut u8,
    len: u32,
) -> i64 {
    enter("bpf_xdp_load_bytes");
    // SAFETY: the caller's promise.
    let packet = unsafe { xdp_packet(ctx) };
    match xdp_range(packet.len(), off, len) {
        Ok(range) => {
            let from = &packet.bytes()[range];
            // SAFETY: the caller's promise; packets and maps do not overlap.
            unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
            0
        }
        Err(error) => error,
    }
}

/// # Safety
/// `ctx` must be the running program's, `from` valid for `len` bytes.
pub(crate) unsafe extern "C-unwind" fn xdp_store(
    ctx: *mut XdpCtx,
    off: u32,
    from: *const u8,
    len: u32,
) -> i64 {
    enter("bpf_xdp_store_bytes");
    // SAFETY: the caller's promise.
    let packet = unsafe { xdp_packet(ctx) };
    match xdp_range(packet.len(), off, len) {
        Ok(range) => {
            let to = &mut packet.bytes_mut()[range];
            // SAFETY: the caller's promise; packets and maps do not overlap.
            unsafe { to.as_mut_ptr().copy_from_nonoverlapping(from, to.len()) };
            0
        }
        Err(error) => error,
    }
}

/// # Safety
/// `ctx` must be the running program's.
unsafe fn xdp_moved(ctx: *mut XdpCtx, done: i64) -> i64 {
    // SAFETY: the caller's promise.
    let (ctx, packet) = unsafe { (&mut *ctx, xdp_packet(ctx)) };
    [ctx.data_meta, ctx.data, ctx.data_end] = packet.pointers();
    guard_packet(exec().inner(), packet);
    done
}

/// # Safety
/// `ctx` must be the running program's.
pub(crate) unsafe extern "C-unwind" fn xdp_head(ctx: *mut XdpCtx, delta: i32) -> i64 {
    enter("bpf_xdp_adjust_head");
    // SAFETY: the caller's promise.
    unsafe { xdp_moved(ctx, unguarded(xdp_packet(ctx)).adjust_head(delta)) }
}

/// # Safety
/// `ctx` must be the running program's.
pub(crate) unsafe extern "C-unwind" fn xdp_tail(ctx: *mut XdpCtx, delta: i32) -> i64 {
    enter("bpf_xdp_adjust_tail");
    // SAFETY: the caller's promise.
    unsafe { xdp_moved(ctx, unguarded(xdp_packet(ctx)).adjust_tail(delta)) }
}

/// # Safety
/// `ctx` must be the running program's.
pub(crate) unsafe extern "C-unwind" fn xdp_meta(ctx: *mut XdpCtx, delta: i32) -> i64 {
    enter("bpf_xdp_adjust_meta");
    // SAFETY: the caller's promise.
    unsafe { xdp_moved(ctx, unguarded(xdp_packet(ctx)).adjust_meta(delta)) }
}

/// The simulator itself may touch the room that the program may not.
fn unguarded(packet: &mut Packet) -> &mut Packet {
    if crate::SANITIZED {
        let (at, bytes) = packet.buffer();
        // SAFETY: the packet's own buffer.
        unsafe { (exec().inner().library.symbols().unguard)(at.cast(), bytes as u64) };
    }
    packet
}

/// # Safety
/// `ctx` must be the running program's, `to` valid for `len` bytes.
pub(crate) unsafe extern "C-unwind" fn skb_load(
    ctx: *const SkbCtx,
    off: u32,
    to: *mut u8,
    len: u32,
) -> i64 {
    enter("bpf_skb_load_bytes");
    // SAFETY: the caller's promise.
    let packet = unsafe { skb_packet(ctx) };
    let end = off as usize + len as usize;
    if off > OFFSET_MAX || end > packet.len() {
        // SAFETY: the caller's promise.
        unsafe { to.write_bytes(0, len as usize) };
        return -EFAULT;
    }
    let from = &packet.bytes()[off as usize..end];
    // SAFETY: the caller's promise; packets and maps do not overlap.
    unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    0
}

/// # Safety
/// `ctx` must be the running program's, `from` valid for `len` bytes.
pub(crate) unsafe extern "C-unwind" fn skb_store(
    ctx: *mut SkbCtx,
    off: u32,
    from: *const u8,
    len: u32,
    flags: u64,
) -> i64 {
    enter("bpf_skb_store_bytes");
    if flags & !STORE_FLAGS != 0 {
        return -EINVAL;
    }
    // SAFETY: the caller's promise.
    let packet = unsafe { skb_packet(ctx) };
    let end = off as usize + len as usize;
    if off > OFFSET_MAX || end > packet.len() {
        return -EFAULT;
    }
    let to = &mut packet.bytes_mut()[off as usize..end];
    // SAFETY: the caller's promise; packets and maps do not overlap.
    unsafe { to.as_mut_ptr().copy_from_nonoverlapping(from, to.len()) };
    0
}

/// `__bpf_skb_min_len`: headers up to the network header, and up to a checksum that the device has
/// yet to complete.
fn skb_bytes_min(packet: &Packet) -> u32 {
    if packet.csum != Csum::Partial {
        return ETH_BYTES;
    }
    let bytes = packet.bytes();
    let l3 = if bytes.get(12..14) == Some(&[0x81, 0]) {
        18
    } else {
        14
    };
    let header = match bytes.get(l3).map_or(0, |byte| byte >> 4) {
        4 => usize::from(bytes[l3] & 15) * 4,
        _ => 40,
    };
    (l3 + header + 18) as u32
}

/// # Safety
/// `ctx` must be the running program's.
pub(crate) unsafe extern "C-unwind" fn skb_change_tail(
    ctx: *mut SkbCtx,
    len: u32,
    flags: u64,
) -> i64 {
    enter("bpf_skb_change_tail");
    // SAFETY: the caller's promise.
    let (ctx, packet) = unsafe { (&mut *ctx, skb_packet(ctx)) };
    if flags != 0 || len > SKB_BYTES_MAX || len < skb_bytes_min(packet) {
        return -EINVAL;
    }
    unguarded(packet).resize(len as usize);
    ctx.update(packet);
    guard_packet(exec().inner(), packet);
    0
}

/// # Safety
/// `ctx` must be the running program's.
pub(crate) unsafe extern "C-unwind" fn skb_l4_csum(
    ctx: *mut SkbCtx,
    off: u32,
    from: u64,
    to: u64,
    flags: u64,
) -> i64 {
    enter("bpf_l4_csum_replace");
    if flags & !CSUM_FLAGS != 0 {
        return -EINVAL;
    }
    // SAFETY: the caller's promise.
    let packet = unsafe { skb_packet(ctx) };
    if off > XDP_BYTES_MAX || off & 1 != 0 || off as usize + 2 > packet.len() {
        return -EFAULT;
    }
    let at = off as usize;
    let field = u16::from_ne_bytes([packet.bytes()[at], packet.bytes()[at + 1]]);
    if flags & CSUM_MANGLED_0 != 0 && flags & CSUM_ENFORCE == 0 && field == 0 {
        return 0;
    }
    let diff = match flags & CSUM_SIZE {
        0 if from != 0 => return -EINVAL,
        0 => to as u32,
        2 => csum::add(!(from as u16) as u32, u32::from(to as u16)),
        4 => csum::add(!(from as u32), to as u32),
        _ => return -EINVAL,
    };
    let new = if packet.csum == Csum::Partial {
        if flags & CSUM_PSEUDO == 0 {
            return 0;
        }
        !csum::fold(csum::add(diff, u32::from(field)))
    } else {
        csum::replace_by_diff(field, diff)
    };
    let new = if new == 0 && flags & CSUM_MANGLED_0 != 0 {
        0xffff
    } else {
        new
    };
    packet.bytes_mut()[at..at + 2].copy_from_slice(&new.to_ne_bytes());
    0
}

/// `BPF_F_INGRESS`.
const INGRESS: u64 = 1;

/// A clone passes the egress program on this CPU, inside of the running one, and leaves; or it comes in by the
/// device.
///
/// # Safety
/// `ctx` must be the running program's.
pub(crate) unsafe extern "C-unwind" fn skb_clone_redirect(
    ctx: *mut SkbCtx,
    ifindex: u32,
    flags: u64,
) -> i64 {
    enter("bpf_clone_redirect");
    // SAFETY: the caller's promise.
    let (ctx, packet) = unsafe { (&*ctx, skb_packet(ctx)) };
    if flags & !INGRESS != 0 || packet.is_empty() || ifindex == 0 {
        return -EINVAL;
    }
    let mut clone = packet.duplicate();
    clone.ifindex = ifindex;
    clone.mark = ctx.mark;
    let kernel = std::rc::Rc::clone(&exec().inner().kernel);
    if flags & INGRESS != 0 {
        clone.ingress_ifindex = ifindex;
        return i64::from(!kernel.receive(clone)); // NET_RX_DROP
    }
    if run_egress(&mut clone) == Tc::Next {
        kernel.transmit(ifindex, clone);
    }
    0
}

/// # Safety
/// `ctx` must be the running program's.
pub(crate) unsafe extern "C-unwind" fn skb_cookie(ctx: *mut SkbCtx) -> u64 {
    enter("bpf_get_socket_cookie");
    // SAFETY: the caller's promise.
    unsafe { skb_packet(ctx) }.cookie
}
