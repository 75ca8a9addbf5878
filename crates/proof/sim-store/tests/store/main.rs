// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The storage engine on a disk with faults, against models of what it promises: one file for each subject.

mod cache;
mod crash;
mod expiry;
mod growth;
mod image;
mod memory;
mod model;
mod padding;
mod repair;
mod retention;
mod rot;
mod scrub;
mod space;
mod traps;
mod versions;
