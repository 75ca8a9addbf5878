// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the kernel keeps its sockets: memory that stays a socket's when the socket is gone and then
//! is another's (`SLAB_TYPESAFE_BY_RCU`). A program that remembers an address sees just that.
//!
//! H1. A home never moves and is never freed while its world lives.
//! H2. A living socket has at most one home; a home is given away only when its socket is gone.

use std::ffi::c_void;

use crate::Sock;
use crate::datapath::Inner;
use crate::kernel::tcp_state;

/// One piece of such memory.
pub(crate) struct Home {
    mirror: Box<[u64]>,
    sock: u64,
    last: Sock,
}

impl Inner {
    fn at_home(&self, home: &Home) -> *mut c_void {
        let full = self.library.mirror_parts()[0];
        home.mirror
            .as_ptr()
            .cast::<u8>()
            .wrapping_add(full)
            .cast_mut()
            .cast()
    }

    /// Number and `tcp_sock` of the socket's home; the first gone socket's becomes it.
    pub(crate) fn home_of(&self, sock: u64, last: Sock) -> (usize, *mut c_void) {
        let mut homes = self.homes.borrow_mut();
        let free = |home: &Home| self.kernel.view(home.sock).is_none();
        let found = homes
            .iter()
            .position(|home| home.sock == sock)
            .or_else(|| homes.iter().position(free));
        let number = found.unwrap_or(homes.len());
        if found.is_none() {
            let words = self.library.mirror_bytes().div_ceil(8);
            homes.push(Home {
                mirror: vec![0; words].into(),
                sock,
                last,
            });
        }
        let home = &mut homes[number];
        home.sock = sock;
        home.last = last;
        self.fill(&mut home.mirror, &last);
        (number, self.at_home(home))
    }

    /// Where the mirrors of all homes are.
    pub(crate) fn home_mirrors(&self) -> Vec<usize> {
        let homes = self.homes.borrow();
        let at = homes.iter().map(|home| home.mirror.as_ptr() as usize);
        at.collect()
    }

    /// The home at this address, whoever lives there now.
    pub(crate) fn home_at(&self, at: *const c_void) -> Option<(usize, *mut c_void)> {
        let number = self
            .homes
            .borrow()
            .iter()
            .position(|home| self.at_home(home).cast_const() == at)?;
        self.refresh_homes(&[number]);
        Some((number, at.cast_mut()))
    }

    /// Shows the sockets as they are now; one that is gone as it last was, closed.
    pub(crate) fn refresh_homes(&self, numbers: &[usize]) {
        let mut homes = self.homes.borrow_mut();
        for number in numbers {
            let home = &mut homes[*number];
            match self.kernel.view(home.sock) {
                Some(sock) => home.last = sock,
                None => home.last.state = tcp_state::CLOSE,
            }
            self.fill(&mut home.mirror, &home.last);
        }
    }
}
