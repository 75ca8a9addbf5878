// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Carries connections from a listener to somewhere else.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::spawn;

/// Carries each connection that comes to one that `connect` makes, until they end.
///
/// # Panics
/// In a thread of its own, if the kernel refuses what it never refuses: the connection ends.
pub fn serve(listener: TcpListener, connect: impl Fn() -> TcpStream + Send + 'static) {
    spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = connect();
            for stream in [&near, &far] {
                stream.set_nodelay(true).expect("nodelay");
            }
            carry(
                near.try_clone().expect("clone"),
                far.try_clone().expect("clone"),
            );
            carry(far, near);
        }
    });
}

/// Copies one direction of a connection until it ends.
fn carry(mut from: TcpStream, mut to: TcpStream) {
    spawn(move || {
        // An error ends the connection as its end does.
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
}
