// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers of Redis's mixed signedness: values stay far from the bounds.

/// To the signed type of Redis.
pub(crate) trait Signed {
    /// The signed type.
    type To;
    /// The same bits, signed.
    fn signed(self) -> Self::To;
}

impl Signed for u64 {
    type To = i64;
    fn signed(self) -> i64 {
        self as i64
    }
}

impl Signed for usize {
    type To = i64;
    fn signed(self) -> i64 {
        self as i64
    }
}

impl Signed for u32 {
    type To = i32;
    fn signed(self) -> i32 {
        self as i32
    }
}

/// From the signed type of Redis.
pub(crate) trait Unsigned {
    /// The same bits, unsigned.
    fn unsigned(self) -> u64;
}

impl Unsigned for i64 {
    fn unsigned(self) -> u64 {
        self as u64
    }
}
