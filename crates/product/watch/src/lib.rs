// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What programs and people watch ERB by.
//!
//! - [`declared`]: every metric, once.
//! - [`text()`]: a status as Prometheus reads it.
//! - [`dashboard`]: it as people read it, with [`history`] and [`flows`].
//! - [`details`]: keys and connections, for whom it is allowed.
//! - [`Endpoint`]: that over HTTP.

mod answer;
pub mod dashboard;
pub mod declared;
pub mod details;
pub mod flows;
pub mod history;
mod http;
mod text;
mod values;

pub use http::{
    Asker, CONNECTIONS_MAX, Endpoint, Error, FRESH, HEAD_BYTES_MAX, HEAD_TIME_MAX, LIFE_MAX,
    TOKEN_BYTES_MIN,
};
pub use text::{Format, text};
