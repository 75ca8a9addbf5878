// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One command of keys drawn uniformly, whose values never change: every byte of every reply is
//! compared with what the keys hold.

use anyhow::{Result, bail};

use crate::load::{Heard, Traffic};
use crate::work::{Places, Work};

/// What one client asks.
pub struct Fixed {
    work: Work,
    request: (Vec<u8>, Places),
    reply: (Vec<u8>, Places),
    random: u32,
}

impl Fixed {
    /// For client number `client`.
    pub fn new(work: Work, client: u32) -> Self {
        Self {
            work,
            request: work.request_template(),
            reply: work.reply_template(),
            random: (client + 1).wrapping_mul(0x9e37_79b9) | 1,
        }
    }
}

impl Traffic for Fixed {
    /// What must be answered.
    type Asked = Vec<u8>;
    const OPERATIONS: usize = 1;

    fn ask(&mut self, asked: &mut Vec<u8>, request: &mut Vec<u8>) -> Result<bool> {
        if request.is_empty() {
            request.extend_from_slice(&self.request.0);
            asked.extend_from_slice(&self.reply.0);
        }
        let (request_places, reply_places) = (self.request.1, self.reply.1);
        for place in 0..request_places.count {
            let digits = digits(draw(&mut self.random, self.work.keys));
            put(request, request_places, place, digits);
            if self.work.batch > 1 {
                put(asked, reply_places, place, digits);
                continue;
            }
            for copy in 0..reply_places.count {
                put(asked, reply_places, copy, digits);
            }
        }
        Ok(true)
    }

    fn hear(&mut self, asked: &mut Vec<u8>, reply: &[u8], request: &mut Vec<u8>) -> Result<Heard> {
        if !asked.starts_with(reply) {
            bail!(
                "to {:?} came {:?}",
                String::from_utf8_lossy(request),
                String::from_utf8_lossy(reply)
            );
        }
        Ok(if reply.len() < asked.len() {
            Heard::Part
        } else {
            Heard::Done(0)
        })
    }
}

fn put(bytes: &mut [u8], places: Places, place: u32, digits: [u8; 8]) {
    let at = (places.first + place * places.step) as usize;
    bytes[at..at + 8].copy_from_slice(&digits);
}

/// A number below `below`, uniform (xorshift, as the generator in XDP).
pub(crate) fn draw(random: &mut u32, below: u32) -> u32 {
    *random ^= *random << 13;
    *random ^= *random >> 17;
    *random ^= *random << 5;
    ((u64::from(*random) * u64::from(below)) >> 32) as u32
}

/// The last eight digits of a key.
fn digits(mut number: u32) -> [u8; 8] {
    let mut text = [b'0'; 8];
    for digit in text.iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Op, WorkArgs};
    use crate::work::key;

    #[test]
    fn digits_are_those_of_the_key() {
        for number in [0, 7, 42, 99_999_999] {
            assert_eq!(&digits(number)[..], &key(number).as_bytes()[8..]);
        }
    }

    #[test]
    fn draws_are_below_and_differ() {
        let mut random = 1;
        let drawn: Vec<u32> = (0..100).map(|_| draw(&mut random, 10)).collect();
        assert!(drawn.iter().all(|&number| number < 10));
        assert!((0..10).all(|number| drawn.contains(&number)));
    }

    #[test]
    fn only_the_bytes_of_the_keys_that_were_asked_for_are_right() {
        let work = Work::of(&WorkArgs {
            op: Op::Mget,
            keys: Some(1000),
            value_size: None,
            batch: Some(3),
            fields: None,
        });
        let mut fixed = Fixed::new(work.unwrap(), 0);
        let (mut asked, mut request) = (Vec::new(), Vec::new());
        assert!(fixed.ask(&mut asked, &mut request).unwrap());
        let right = asked.clone();
        let mut hear = |reply: &[u8]| fixed.hear(&mut asked, reply, &mut request);
        assert_eq!(hear(&right).unwrap(), Heard::Done(0));
        assert_eq!(hear(&right[..100]).unwrap(), Heard::Part);
        let mut other = right.clone();
        other[100] = b'y';
        assert!(hear(&other).is_err());
        assert!(
            hear(&[&right[..], b"+"].concat()).is_err(),
            "a byte too many"
        );
        assert!(hear(b"$-1\r\n").is_err());
    }
}
