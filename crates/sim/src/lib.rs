// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The simulator: clients, links, kernels, Redis and the daemon around the data path, from one seed.
