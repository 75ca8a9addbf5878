// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The data path run by hand, helper by helper and CPU by CPU.

mod answers;
mod corpus;
mod far;
mod hashing;
mod mutants;
mod programs;
mod races;
mod streams;
mod torture;
mod window;
