// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a reply ends.

use erb_sim::client::resp::{Found, next};

#[test]
fn replies_end_where_they_end() {
    let whole: [&[u8]; 8] = [
        b"+OK\r\n",
        b":12\r\n",
        b"$-1\r\n",
        b"$3\r\na\r\n\r\n",
        b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
        b"*-1\r\n",
        b"%1\r\n+a\r\n:1\r\n",
        b"-ERR x\r\n",
    ];
    for reply in whole {
        let mut more = reply.to_vec();
        more.extend_from_slice(b"+next");
        assert_eq!(next(&more, false), Found::Reply(reply.len()));
        for cut in 0..reply.len() {
            assert_eq!(
                next(&reply[..cut], false),
                Found::Incomplete,
                "{reply:?} {cut}"
            );
        }
    }
    assert_eq!(next(b"?\r\n", false), Found::Broken);
    let message = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n";
    assert_eq!(next(message, true), Found::Push(message.len()));
    assert_eq!(next(message, false), Found::Reply(message.len()));
    assert_eq!(next(b"_\r\n", true), Found::Reply(3));
}
