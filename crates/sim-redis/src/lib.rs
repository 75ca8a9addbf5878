// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Redis and its disk as a model: commands, expiry, tracking, append-only log.
