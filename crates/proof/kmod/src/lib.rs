// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of `kmod/core/`, the C of the kernel module that knows no kernel. There is nothing here but them: see `tests`.
//! The module itself is tried by `erb lab vm kmod`.
