// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A TCP stack as a model: what Linux does on the wire, without a kernel, a clock or I/O.
