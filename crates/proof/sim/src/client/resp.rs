// SPDX-License-Identifier: Apache-2.0 OR MIT
//! As much of RESP as a client needs: requests as bytes, and where a reply ends.

pub use erb_wire::resp::command as request;

/// What stands at the start of a reply stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Not all of it is there yet.
    Incomplete,
    /// A reply of so many bytes.
    Reply(usize),
    /// A push (RESP3), or a message of a subscription, of so many bytes.
    Push(usize),
    /// No RESP.
    Broken,
}

fn line(bytes: &[u8], from: usize) -> Option<(&[u8], usize)> {
    let end = bytes[from..].windows(2).position(|pair| pair == b"\r\n")?;
    Some((&bytes[from..from + end], from + end + 2))
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// End of the element that begins at `from`; `Ok(None)` if it is not all there.
fn end_of(bytes: &[u8], from: usize) -> Result<Option<usize>, ()> {
    let mut left = 1_u64;
    let mut at = from;
    while left > 0 {
        let Some(&kind) = bytes.get(at) else {
            return Ok(None);
        };
        let Some((text, next)) = line(bytes, at + 1) else {
            return Ok(None);
        };
        at = next;
        left -= 1;
        match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
            b'$' | b'=' | b'!' => match number(text).ok_or(())? {
                -1 => {}
                len => {
                    at += usize::try_from(len).map_err(drop)? + 2;
                    if at > bytes.len() {
                        return Ok(None);
                    }
                }
            },
            b'*' | b'~' | b'>' | b'%' | b'|' => {
                let count = number(text).ok_or(())?.max(0);
                let count = u64::try_from(count).map_err(drop)?;
                left += if matches!(kind, b'%' | b'|') {
                    2 * count
                } else {
                    count
                };
                left += u64::from(kind == b'|');
            }
            _ => return Err(()),
        }
    }
    Ok(Some(at))
}

/// What stands at the start of `bytes`. `subscribed`: arrays that begin with `message` are pushes.
#[must_use]
pub fn next(bytes: &[u8], subscribed: bool) -> Found {
    match end_of(bytes, 0) {
        Err(()) => Found::Broken,
        Ok(None) => Found::Incomplete,
        Ok(Some(len)) => {
            let message = subscribed
                && [&b"$7\r\nmessage\r\n"[..], b"$8\r\npmessage\r\n"]
                    .iter()
                    .any(|name| {
                        bytes[..len]
                            .get(4..)
                            .is_some_and(|rest| rest.starts_with(name))
                    });
            if bytes[0] == b'>' || message {
                Found::Push(len)
            } else {
                Found::Reply(len)
            }
        }
    }
}
