// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stream between two processes of the server ends after its bytes.

use std::io::{Read as _, Write as _};

use erb_sim::server::Pipe;

#[test]
fn a_pipe_ends_after_its_bytes() {
    let mut pipe = Pipe::default();
    let mut bytes = [0; 8];
    assert!(pipe.read(&mut bytes).is_err());
    pipe.redis_write(b"abc");
    pipe.redis_close();
    assert_eq!(pipe.read(&mut bytes).expect("bytes"), 3);
    assert_eq!(pipe.read(&mut bytes).expect("the end"), 0);
    assert!(pipe.write(b"x").is_err());
}
