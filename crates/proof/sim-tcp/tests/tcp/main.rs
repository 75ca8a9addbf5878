// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model of TCP against Linux's rules: how connections begin and end, segments by hand, whole transfers.

mod ends;
mod rules;
mod transfer;
mod util;
