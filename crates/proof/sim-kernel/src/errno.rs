// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors that helpers return, negated.

pub(crate) const ENOENT: i64 = 2;
pub(crate) const E2BIG: i64 = 7;
pub(crate) const EACCES: i64 = 13;
pub(crate) const EFAULT: i64 = 14;
pub(crate) const EEXIST: i64 = 17;
pub(crate) const EINVAL: i64 = 22;
pub(crate) const EOPNOTSUPP: i64 = 95;
/// The kernel's own, which user space never sees.
pub(crate) const ENOTSUPP: i64 = 524;
