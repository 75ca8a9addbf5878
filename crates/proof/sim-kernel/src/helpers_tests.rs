// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Helpers at their edges, called as C calls them.

use std::ffi::c_void;
use std::net::SocketAddr;
use std::ptr::{null, null_mut};
use std::rc::Rc;

use crate::errno::{E2BIG, EFAULT, EINVAL};
use crate::exec::{self, Exec};
use crate::helpers::OPS;
use crate::kernel::tcp_state::{ESTABLISHED, LISTEN, NEW_SYN_RECV, TIME_WAIT};
use crate::library::{SkbCtx, XdpCtx};
use crate::{Card, Csum, Datapath, DatapathConfig, Kernel, Library, Packet, Sock};

/// Sockets by their clients' ports: the port is the state.
struct ByPort;

impl Kernel for ByPort {
    fn now_ns(&self) -> u64 {
        5
    }
    fn now_coarse_ns(&self) -> u64 {
        4
    }
    fn lookup(&self, ifindex: u32, local: SocketAddr, remote: SocketAddr) -> Option<u64> {
        assert_eq!(ifindex, 3);
        assert_eq!(local.port(), 6379);
        (remote.port() < 20).then(|| u64::from(remote.port()))
    }
    fn view(&self, sock: u64) -> Option<Sock> {
        Some(Sock {
            state: sock as u8,
            cookie: 9,
            ..Sock::default()
        })
    }
    fn transmit(&self, ifindex: u32, packet: Packet) {
        assert_eq!((ifindex, packet.ingress_ifindex, packet.mark), (7, 3, 55));
    }
    fn receive(&self, packet: Packet) -> bool {
        assert_eq!((packet.ifindex, packet.ingress_ifindex), (7, 7));
        packet.mark == 55
    }
    fn random(&self) -> u32 {
        6
    }
}

/// Calls helpers as if a program were running.
fn inside(config: DatapathConfig, calls: impl FnOnce(&Datapath)) {
    let path = Datapath::new(&Library::builtin(), config, Rc::new(ByPort));
    let mut state = Exec::new(1, 0);
    state.inner = Rc::as_ptr(&path.0);
    state.ifindex = 3;
    exec::set_exec(&raw mut state);
    calls(&path);
    exec::set_exec(null_mut());
    assert!(state.held.is_empty());
}

fn xdp(packet: &mut Packet) -> XdpCtx {
    let [data_meta, data, data_end] = packet.pointers();
    XdpCtx {
        data,
        data_end,
        data_meta,
        ingress_ifindex: 3,
        rx_queue_index: 0,
        egress_ifindex: 0,
        packet,
    }
}

#[test]
fn xdp_bytes_are_bounded() {
    inside(DatapathConfig::default(), |_| {
        let mut packet = Packet::received(&[7; 60], Card::VETH, 3);
        let ctx = &mut xdp(&mut packet);
        let mut bytes = [0; 8];
        let to = bytes.as_mut_ptr();
        // SAFETY: the context's packet lives, the buffer is 8 bytes long.
        unsafe {
            assert_eq!((OPS.xdp_load)(ctx, 52, to, 8), 0);
            assert_eq!((OPS.xdp_load)(ctx, 53, to, 8), -EINVAL);
            assert_eq!((OPS.xdp_load)(ctx, 0x1_0000, to, 8), -EFAULT);
            assert_eq!((OPS.xdp_store)(ctx, 60, to, 0), 0);
            assert_eq!((OPS.xdp_store)(ctx, 60, to, 1), -EINVAL);
            let data = ctx.data;
            assert_eq!((OPS.xdp_head)(ctx, -10), 0);
            assert_eq!((ctx.data, ctx.data_meta), (data - 10, data - 10));
            assert_eq!((OPS.xdp_meta)(ctx, -4), 0);
            assert_eq!(ctx.data_meta, data - 14);
            assert_eq!((OPS.xdp_tail)(ctx, -20), 0);
            assert_eq!(ctx.data_end - ctx.data, 50);
        }
        assert_eq!(bytes, [7; 8]);
    });
}

#[test]
fn skb_bytes_are_bounded() {
    inside(DatapathConfig::default(), |_| {
        let mut packet = Packet::sent(&[7; 60], 3, 11);
        let ctx = &mut SkbCtx::of(&mut packet);
        let mut bytes = [1; 8];
        let to = bytes.as_mut_ptr();
        // SAFETY: as above.
        unsafe {
            assert_eq!((OPS.skb_load)(ctx, 53, to, 8), -EFAULT);
            assert_eq!(bytes, [0; 8], "cleared on failure");
            assert_eq!((OPS.skb_load)(ctx, 52, to, 8), 0);
            assert_eq!((OPS.skb_store)(ctx, 53, to, 8, 0), -EFAULT);
            assert_eq!((OPS.skb_store)(ctx, 52, to, 8, 4), -EINVAL);
            assert_eq!((OPS.skb_change_tail)(ctx, 13, 0), -EINVAL);
            assert_eq!((OPS.skb_change_tail)(ctx, 16_065, 0), -EINVAL);
            assert_eq!((OPS.skb_change_tail)(ctx, 100, 1), -EINVAL);
            assert_eq!((OPS.skb_change_tail)(ctx, 100, 0), 0);
            assert_eq!((ctx.len, ctx.data_end - ctx.data), (100, 100));
            assert_eq!((OPS.skb_cookie)(ctx), 11);
        }
    });
}

#[test]
fn a_partial_checksum_keeps_its_place_and_its_sum() {
    inside(DatapathConfig::default(), |_| {
        let mut packet = Packet::sent(&[0x45; 80], 3, 0);
        packet.csum = Csum::Partial;
        let ctx = &mut SkbCtx::of(&mut packet);
        // SAFETY: as above.
        unsafe {
            // An IPv4 header of 20 bytes, and TCP's up to its checksum.
            assert_eq!((OPS.skb_change_tail)(ctx, 14 + 20 + 17, 0), -EINVAL);
            assert_eq!((OPS.skb_change_tail)(ctx, 14 + 20 + 18, 0), 0);
            assert_eq!((OPS.skb_l4_csum)(ctx, 50, 0, 5, 0), 0);
            assert_eq!((*ctx.packet).bytes()[50..52], [0x45; 2], "no change");
            assert_eq!((OPS.skb_l4_csum)(ctx, 50, 0, 5, 0x10), 0);
            assert_eq!((*ctx.packet).bytes()[50..52], [0x4a, 0x45], "pseudo-header");
            (*ctx.packet).csum = Csum::None;
            assert_eq!((OPS.skb_l4_csum)(ctx, 50, 0, 1, 0), 0);
            assert_eq!((*ctx.packet).bytes()[50..52], [0x49, 0x45]);
            assert_eq!(
                (OPS.skb_l4_csum)(ctx, 50, 1, 1, 0),
                -EINVAL,
                "from must be 0"
            );
            assert_eq!((OPS.skb_l4_csum)(ctx, 51, 0, 1, 0), -EFAULT);
            assert_eq!((OPS.skb_l4_csum)(ctx, 52, 0, 1, 0), -EFAULT);
            assert_eq!((OPS.skb_l4_csum)(ctx, 50, 0, 1, 3), -EINVAL);
        }
    });
}

#[test]
fn a_clone_leaves_with_the_mark_of_its_moment() {
    inside(DatapathConfig::default(), |_| {
        let mut packet = Packet::received(&[0; 60], Card::VETH, 3);
        let ctx = &mut SkbCtx::of(&mut packet);
        ctx.mark = 55;
        // SAFETY: as above.
        unsafe {
            assert_eq!((OPS.skb_clone_redirect)(ctx, 7, 0), 0);
            assert_eq!((OPS.skb_clone_redirect)(ctx, 7, 1), 0, "it comes in");
            ctx.mark = 0;
            assert_eq!((OPS.skb_clone_redirect)(ctx, 7, 1), 1, "no room");
            assert_eq!((OPS.skb_clone_redirect)(ctx, 7, 2), -EINVAL);
            assert_eq!((OPS.skb_clone_redirect)(ctx, 0, 0), -EINVAL);
        }
    });
}

#[test]
fn sums_are_refused_as_each_kernel_does() {
    let bytes = [0xff; 1024];
    // SAFETY: the lengths are within the buffer.
    let sum = |from: u32, to: u32| unsafe {
        (OPS.csum_diff)(bytes.as_ptr(), from, bytes.as_ptr(), to, 1)
    };
    inside(DatapathConfig::default(), |_| {
        assert_eq!(sum(0, 3), -EINVAL);
        assert_eq!(sum(0, 516), -EINVAL);
        assert_eq!(sum(260, 256), -EINVAL);
        assert_eq!(sum(0, 512), 1, "all ones are 0");
        assert_eq!(sum(0, 0), 1);
    });
    let folded = DatapathConfig {
        csum_folded: true,
        ..DatapathConfig::default()
    };
    inside(folded, |_| {
        assert_eq!(sum(0, 1024), 1);
        assert_eq!(sum(0, 3), -EINVAL);
    });
}

#[test]
fn a_socket_is_what_its_state_says() {
    inside(DatapathConfig::default(), |_| {
        for state in [ESTABLISHED, LISTEN, TIME_WAIT, NEW_SYN_RECV] {
            let mut tuple = [0u8; 12];
            tuple[9] = state;
            tuple[10..].copy_from_slice(&6379u16.to_be_bytes());
            let find = |bytes: u32, netns: u64, flags: u64| {
                // SAFETY: the tuple is 12 bytes long; other lengths are refused first.
                unsafe { (OPS.sk_lookup)(null_mut(), tuple.as_ptr(), bytes, netns, flags) }
            };
            assert!(find(13, u64::MAX, 0).is_null());
            assert!(find(12, 0, 0).is_null());
            assert!(find(12, u64::MAX, 1).is_null());
            let sk = find(12, u64::MAX, 0);
            assert!(!sk.is_null());
            // SAFETY: sk is held.
            unsafe {
                let casts: [*mut c_void; 3] = [
                    (OPS.sk_to_tcp)(sk),
                    (OPS.sk_to_timewait)(sk),
                    (OPS.sk_to_request)(sk),
                ];
                let expected = match state {
                    TIME_WAIT => [false, true, false],
                    NEW_SYN_RECV => [false, false, true],
                    _ => [true, false, false],
                };
                assert_eq!(casts.map(|cast| !cast.is_null()), expected, "{state}");
                (OPS.sk_release)(sk);
            }
        }
    });
}

#[test]
fn the_table_of_connections_fills_up() {
    let config = DatapathConfig {
        conns: 2,
        ..DatapathConfig::default()
    };
    inside(config, |path| {
        let map = path.0.known.conns as u64;
        let value = vec![0u8; size_of::<erb_abi::conn>()];
        let add = |first: u8| {
            let mut key = [0u8; size_of::<erb_abi::conn_key>()];
            key[0] = first;
            // SAFETY: key and value are as long as the map's.
            unsafe { (OPS.map_update)(map, key.as_ptr(), value.as_ptr(), 1) }
        };
        assert_eq!([add(1), add(2), add(3)], [0, 0, -E2BIG]);
        // SAFETY: arrays' keys are u32; the index is out of range.
        let set = unsafe { (OPS.map_lookup)(path.0.known.sets as u64, [0xffu8; 4].as_ptr()) };
        assert!(set.is_null());
    });
}

#[test]
fn clocks_and_chance_are_the_worlds() {
    inside(DatapathConfig::default(), |_| {
        // SAFETY: no arguments.
        unsafe {
            assert_eq!((OPS.ktime_ns)(), 5);
            assert_eq!((OPS.ktime_coarse_ns)(), 4);
            assert_eq!((OPS.random)(), 6);
            assert_eq!((OPS.csum_diff)(null(), 0, null(), 0, 0), 0);
        }
    });
}
