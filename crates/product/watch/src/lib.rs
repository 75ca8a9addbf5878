// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What programs and people watch ERB by.
//!
//! - [`declared`]: every metric, once; [`node`] and [`serve`] have those of the storage node and of the file server.
//! - [`Watched`]: whose status it is. [`text()`]: it as Prometheus reads it.
//! - [`dashboard`]: it as people read it, with [`history`] and [`flows`]; [`board`] is the page of the other two.
//! - [`details`]: keys and connections, for whom it is allowed.
//! - [`Endpoint`]: that over HTTP.

mod answer;
pub mod board;
pub mod dashboard;
pub mod declared;
pub mod details;
pub mod flows;
pub mod history;
mod http;
pub mod node;
pub mod serve;
mod text;
mod values;
mod watched;

pub use http::{
    Asker, CONNECTIONS_MAX, Endpoint, Error, FRESH, HEAD_BYTES_MAX, HEAD_TIME_MAX, LIFE_MAX,
    TOKEN_BYTES_MIN,
};
pub use text::{Format, text};
pub use watched::Watched;
