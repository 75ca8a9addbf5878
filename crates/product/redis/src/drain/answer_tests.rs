// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Answers to batches, in all pieces, and what is none.

use super::answer::{Answer, End, Next};

const WHOLE: &[u8] = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n-ERR no\r\n+OK\r\n";

/// Feeds the bytes in such pieces; what is not taken comes again with the next.
fn in_pieces(mut answer: Answer, bytes: &[u8], piece: usize) -> (usize, Next) {
    let (mut from, mut to) = (0, 0);
    loop {
        to = (to + piece).min(bytes.len());
        let (taken, next) = answer.take(&bytes[from..to]).unwrap();
        from += taken;
        if next != Next::More || to == bytes.len() {
            return (from, next);
        }
    }
}

#[test]
fn an_answer_is_the_same_in_whatever_pieces_it_comes() {
    let script = b"$22\r\n0 ERR no\n12 ERR never\n\r\n+PONG\r\n";
    for piece in 1..=WHOLE.len() {
        let (taken, next) = in_pieces(Answer::to_transaction(3), WHOLE, piece);
        let errors = vec![(1, "ERR no".to_owned())];
        assert_eq!(
            (taken, next),
            (WHOLE.len(), Next::End(End::Executed(errors)))
        );
        let (taken, next) = in_pieces(Answer::to_script(13), script, piece);
        let errors = vec![(0, "ERR no".to_owned()), (12, "ERR never".to_owned())];
        assert_eq!(
            (taken, next),
            (script.len() - 7, Next::End(End::Executed(errors)))
        );
    }
}

#[test]
fn a_push_between_replies_is_left_where_it_is() {
    let replies: [&[u8]; 5] = [
        b"+OK\r\n",
        b"+QUEUED\r\n",
        b"+QUEUED\r\n",
        b"+QUEUED\r\n",
        b"*3\r\n+OK\r\n+OK\r\n+OK\r\n",
    ];
    for before in 0..replies.len() {
        let mut answer = Answer::to_transaction(3);
        let said = [&replies[..before].concat(), &b">2\r\n+x\r\n"[..]].concat();
        let (taken, next) = answer.take(&said).unwrap();
        assert_eq!((taken, next), (said.len() - 8, Next::Push));
        let (_, next) = answer.take(&replies[before..].concat()).unwrap();
        assert_eq!(next, Next::End(End::Executed(Vec::new())));
    }
    let mut script = Answer::to_script(1);
    assert_eq!(script.take(b">1\r\n").unwrap(), (0, Next::Push));
}

#[test]
fn the_first_error_is_why_nothing_was_executed() {
    let cases: [(&[u8], &str); 5] = [
        (
            b"+OK\r\n-OOM full\r\n-NO x\r\n+QUEUED\r\n-EXECABORT Transaction discarded because of \
              previous errors.\r\n",
            "OOM full",
        ),
        (
            b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n-EXECABORT Transaction discarded because of: \
              MISCONF disk\r\n",
            "MISCONF disk",
        ),
        // MULTI itself was refused: what follows was executed, each by itself.
        (
            b"-NOPERM multi\r\n+OK\r\n+OK\r\n-NOPERM mset\r\n-ERR EXEC without MULTI\r\n",
            "NOPERM multi",
        ),
        (
            b"-NOAUTH x\r\n-NOAUTH x\r\n-NOAUTH x\r\n-NOAUTH x\r\n-NOAUTH x\r\n",
            "NOAUTH x",
        ),
        (
            b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n-LOADING x\r\n",
            "LOADING x",
        ),
    ];
    for (said, why) in cases {
        for piece in 1..said.len() {
            let (taken, next) = in_pieces(Answer::to_transaction(3), said, piece);
            assert_eq!(
                (taken, next),
                (said.len(), Next::End(End::Refused(why.into())))
            );
        }
    }
}

#[test]
fn what_is_no_answer_ends_the_connection() {
    for said in [
        &b"+PONG\r\n"[..],
        b"+OK\r\n+OK\r\n",
        b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n",
        b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n_\r\n",
        b"+OK\r\n-ERR x\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n",
        b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n:1\r\n",
        b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n>1\r\n",
        &[b'+'; 5000],
    ] {
        let end = Answer::to_transaction(3).take(said);
        assert!(end.is_err(), "{}: {end:?}", String::from_utf8_lossy(said));
    }
    for said in [
        &b"+OK\r\n"[..],
        b"$-1\r\n",
        b"$99999999\r\n",
        b"$4\r\n9 x\n\r\n",
        b"$2\r\nx\n\r\n",
        b"*0\r\n",
    ] {
        assert!(Answer::to_script(3).take(said).is_err());
    }
}
