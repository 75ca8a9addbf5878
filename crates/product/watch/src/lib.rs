// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What programs and people watch ERB by.
//!
//! - [`declared`]: every metric, once.
//! - [`text()`]: a status as Prometheus reads it.
//! - [`Endpoint`]: that over HTTP.

pub mod declared;
mod http;
mod text;

pub use http::{
    CONNECTIONS_MAX, Endpoint, Error, FRESH, HEAD_BYTES_MAX, HEAD_TIME_MAX, LIFE_MAX,
    TOKEN_BYTES_MIN,
};
pub use text::{Format, text};
