// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is watched: a boost, a storage node, a file server. Each has a status of its own, with its metrics and its page.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::dashboard::File;
use crate::declared::Metric;

/// A status that is served.
pub trait Watched: Serialize + Send + Sync + 'static {
    /// Its metrics.
    const METRICS: &'static [Metric];

    /// The files of its page. The first is at `/`.
    const FILES: &'static [File];

    /// What the page shows that does not change, beside the metrics: members of an object.
    fn declared() -> Map<String, Value>;

    /// What the page shows that is no metric: members of an object.
    fn told(&self) -> Map<String, Value> {
        Map::new()
    }
}
