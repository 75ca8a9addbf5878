// SPDX-License-Identifier: Apache-2.0 OR MIT
//! End-to-end scenarios: what ERB must show, each in a lab of its own. Needs root
//! and the release build of `erb`. `ERB_LONG=1` uses the full numbers.

mod admission;
mod aside;
mod attach;
mod bench;
mod churn;
mod classes;
mod clients;
mod credentials;
mod dashboard;
mod devices;
mod doctor;
mod documents;
mod exchanges;
mod expiry;
mod failures;
mod faults;
mod feed;
mod files;
mod fills;
mod held;
mod history;
mod hostile;
mod loopback;
mod makers;
mod master;
mod metrics;
mod mixed;
mod node;
mod order;
mod other_end;
mod other_machine;
mod pipelines;
mod port;
mod renamed;
mod replace;
mod replica;
mod servers;
mod service;
mod state;
mod suite;
mod through;
mod times;
mod trace;
