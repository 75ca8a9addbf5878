// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Helpers on sockets: look-up, release, and the casts, which look at the socket's state.

use std::ffi::c_void;
use std::net::{IpAddr, SocketAddr};

use crate::errno::{EINVAL, ENOENT};
use crate::exec::{Held, enter, exec, violation};
use crate::kernel::tcp_state::{LISTEN, NEW_SYN_RECV, TIME_WAIT};

/// Sizes of `bpf_sock_tuple.ipv4` and `.ipv6`.
const TUPLE_V4: usize = 12;
const TUPLE_V6: usize = 36;
/// `BPF_F_CURRENT_NETNS`.
const CURRENT_NETNS: i32 = -1;
/// Flags of a TCP header, and sizes of the headers without options.
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const TCP_BYTES: u32 = 20;
const IPV4_BYTES: u32 = 20;
const IPV6_BYTES: u32 = 40;

fn address(bytes: &[u8], port: [u8; 2]) -> SocketAddr {
    let ip = match *bytes {
        [a, b, c, d] => IpAddr::from([a, b, c, d]),
        _ => {
            let mut octets = [0; 16];
            octets.copy_from_slice(bytes);
            IpAddr::from(octets)
        }
    };
    SocketAddr::new(ip, u16::from_be_bytes(port))
}

/// # Safety
/// `tuple` must be valid for `bytes` bytes.
pub(crate) unsafe extern "C-unwind" fn sk_lookup(
    _ctx: *mut c_void,
    tuple: *const u8,
    bytes: u32,
    netns: u64,
    flags: u64,
) -> *mut c_void {
    enter("bpf_skc_lookup_tcp");
    let bytes = bytes as usize;
    if flags != 0 || netns as i32 != CURRENT_NETNS || (bytes != TUPLE_V4 && bytes != TUPLE_V6) {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    let tuple = unsafe { std::slice::from_raw_parts(tuple, bytes) };
    let ip = if bytes == TUPLE_V4 { 4 } else { 16 };
    let port = |at: usize| [tuple[at], tuple[at + 1]];
    let remote = address(&tuple[..ip], port(2 * ip));
    let local = address(&tuple[ip..2 * ip], port(2 * ip + 2));
    let me = exec();
    let (inner, device) = (me.inner(), me.ifindex);
    let found = inner.kernel.lookup(device, local, remote);
    found
        .and_then(|sock| inner.hold(sock))
        .unwrap_or(std::ptr::null_mut())
}

/// The reference whose mirror is at this address.
fn held(sk: *mut c_void, helper: &str) -> &'static mut Held {
    let found = exec()
        .held
        .iter_mut()
        .find(|held| held.mirror.as_ptr().cast::<c_void>() == sk.cast_const());
    match found {
        Some(held) => held,
        None => violation(&format!("{helper} on what is not a socket that is held")),
    }
}

/// # Safety
/// `sk` must be what a look-up gave.
pub(crate) unsafe extern "C-unwind" fn sk_release(sk: *mut c_void) -> i64 {
    enter("bpf_sk_release");
    let me = exec();
    let found = me
        .held
        .iter()
        .position(|held| held.mirror.as_ptr().cast::<c_void>() == sk.cast_const());
    match found {
        Some(index) => drop(me.held.swap_remove(index)),
        None => violation("bpf_sk_release on what is not a socket that is held"),
    }
    0
}

/// `bpf_tcp_check_syncookie`.
///
/// # Safety
/// `sk` must be what a look-up gave, `ip` and `tcp` valid for their lengths.
pub(crate) unsafe extern "C-unwind" fn sk_check_cookie(
    sk: *mut c_void,
    ip: *const u8,
    ip_bytes: u32,
    tcp: *const u8,
    tcp_bytes: u32,
) -> i64 {
    enter("bpf_tcp_check_syncookie");
    let listens = held(sk, "bpf_tcp_check_syncookie").last.state == LISTEN;
    if !listens || tcp_bytes < TCP_BYTES || ip_bytes < IPV4_BYTES {
        return -EINVAL;
    }
    // SAFETY: the caller's promise.
    let (ip, tcp) = unsafe {
        (
            std::slice::from_raw_parts(ip, ip_bytes as usize),
            std::slice::from_raw_parts(tcp, tcp_bytes as usize),
        )
    };
    if tcp[13] & ACK == 0 || tcp[13] & (RST | SYN) != 0 {
        return -ENOENT;
    }
    let port = |at: usize| [tcp[at], tcp[at + 1]];
    let (remote, local) = match ip[0] >> 4 {
        4 => (address(&ip[12..16], port(0)), address(&ip[16..20], port(2))),
        6 if ip_bytes >= IPV6_BYTES => {
            (address(&ip[8..24], port(0)), address(&ip[24..40], port(2)))
        }
        _ => return -EINVAL,
    };
    let number = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
    let kernel = &exec().inner().kernel;
    match kernel.is_cookie(local, remote, number(4), number(8)) {
        true => 0,
        false => -ENOENT,
    }
}

fn part(sk: *mut c_void, index: usize) -> *mut c_void {
    let at = exec().inner().library.mirror_parts()[index];
    // SAFETY: the offset lies within the mirror.
    unsafe { sk.cast::<u8>().add(at).cast() }
}

/// Any full socket, listeners too.
///
/// # Safety
/// `sk` must be what a look-up gave.
pub(crate) unsafe extern "C-unwind" fn sk_to_tcp(sk: *mut c_void) -> *mut c_void {
    enter("bpf_skc_to_tcp_sock");
    match held(sk, "bpf_skc_to_tcp_sock").last.state {
        TIME_WAIT | NEW_SYN_RECV => std::ptr::null_mut(),
        _ => part(sk, 0),
    }
}

/// # Safety
/// `sk` must be what a look-up gave.
pub(crate) unsafe extern "C-unwind" fn sk_to_timewait(sk: *mut c_void) -> *mut c_void {
    enter("bpf_skc_to_tcp_timewait_sock");
    match held(sk, "bpf_skc_to_tcp_timewait_sock").last.state {
        TIME_WAIT => part(sk, 1),
        _ => std::ptr::null_mut(),
    }
}

/// # Safety
/// `sk` must be what a look-up gave.
pub(crate) unsafe extern "C-unwind" fn sk_to_request(sk: *mut c_void) -> *mut c_void {
    enter("bpf_skc_to_tcp_request_sock");
    match held(sk, "bpf_skc_to_tcp_request_sock").last.state {
        NEW_SYN_RECV => part(sk, 2),
        _ => std::ptr::null_mut(),
    }
}

/// `bpf_rdonly_cast` of a `tcp_sock`: the address of one that is held, or of one that was held once
/// and may be gone.
///
/// # Safety
/// None: any address may be asked for.
pub(crate) unsafe extern "C-unwind" fn sk_cast(at: *const c_void) -> *mut c_void {
    enter("bpf_rdonly_cast");
    let me = exec();
    let full = me.inner().library.mirror_parts()[0];
    let held = me.held.iter().find(|held| {
        held.mirror
            .as_ptr()
            .cast::<u8>()
            .wrapping_add(full)
            .cast::<c_void>()
            == at
    });
    let home = match held {
        Some(held) => Some(me.inner().home_of(held.sock, held.last)),
        None => me.inner().home_at(at),
    };
    let Some((number, at)) = home else {
        violation("bpf_rdonly_cast of what never was a socket's address");
    };
    me.casts.push(number);
    at
}
