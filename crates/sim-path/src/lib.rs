// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The data path's own C, compiled for user space: helpers, maps, locks, packets, interleaved CPUs.
