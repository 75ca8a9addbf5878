// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The simulator as a whole: what runs reach, that they are the same runs again, and that deliberate mistakes
//! are seen.

mod campaign;
mod canary;
mod coverage;
mod documents;
mod echo;
mod judged;
mod lane;
mod lane_mistakes;
mod latency;
mod mutations;
mod runs;
mod scenarios;
mod unit;
mod world;
