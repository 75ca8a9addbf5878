// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the dashboard tells of keys and of single connections, if whoever boosted has asked for it.
//!
//! # Invariants
//! 1. Bounded: [`ROWS_MAX`] rows an answer. The daemon is asked at most once in [`FRESH`], however many read.
//! 2. What comes from clients is text in JSON: keys as [`erb_report::shown_key`] shows them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::Mutex;

/// What was told this short ago is told again: each look walks all connections.
pub const FRESH: Duration = Duration::from_secs(1);
/// Rows of an answer.
pub const ROWS_MAX: usize = 1000;

/// What may be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Keys by heat, as [`erb_report::HotKeys`].
    Keys,
    /// Connections, a list of [`erb_report::ConnLine`].
    Connections,
}

impl Detail {
    /// What is served at this path.
    #[must_use]
    pub fn at(path: &str) -> Option<Self> {
        match path {
            "/keys.json" => Some(Self::Keys),
            "/connections.json" => Some(Self::Connections),
            _ => None,
        }
    }
}

type Told = (Instant, Result<Arc<Value>, String>);
type Ask = dyn Fn(Detail) -> Result<Value, String> + Send + Sync;

/// What was told last, and whom to ask.
pub(crate) struct Details {
    ask: Arc<Ask>,
    keys: Mutex<Option<Told>>,
    connections: Mutex<Option<Told>>,
}

impl std::fmt::Debug for Details {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Details")
    }
}

impl Details {
    pub(crate) fn new(
        ask: impl Fn(Detail) -> Result<Value, String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            ask: Arc::new(ask),
            keys: Mutex::new(None),
            connections: Mutex::new(None),
        }
    }

    /// The newest, not older than [`FRESH`].
    pub(crate) async fn ask(&self, detail: Detail) -> Result<Arc<Value>, String> {
        let mut last = match detail {
            Detail::Keys => &self.keys,
            Detail::Connections => &self.connections,
        }
        .lock()
        .await;
        let fresh = last.as_ref().filter(|(when, _)| when.elapsed() < FRESH);
        if let Some((_, told)) = fresh {
            return told.clone();
        }
        let (when, ask) = (Instant::now(), Arc::clone(&self.ask));
        let told = tokio::task::spawn_blocking(move || ask(detail)).await;
        let told = told
            .unwrap_or_else(|error| Err(error.to_string()))
            .map(Arc::new);
        *last = Some((when, told.clone()));
        told
    }
}

/// The answer; of connections `client=ADDRESS` asks for those of one client, or for one with its port.
pub(crate) fn json(detail: Detail, found: &Value, query: &str) -> String {
    if detail == Detail::Keys {
        return found.to_string();
    }
    let all = found.as_array().map_or(&[][..], Vec::as_slice);
    let client = query.strip_prefix("client=").map(decoded);
    let is_wanted = |row: &&Value| {
        let address = row
            .get("client")
            .and_then(Value::as_str)
            .unwrap_or_default();
        client.as_deref().is_none_or(|client| {
            let port = address.strip_prefix(client);
            port.is_some_and(|port| port.is_empty() || port.starts_with(':'))
        })
    };
    let wanted: Vec<&Value> = all.iter().filter(is_wanted).collect();
    let rows = &wanted[..wanted.len().min(ROWS_MAX)];
    json!({ "total": wanted.len(), "rows": rows }).to_string()
}

/// Percent-encoding taken off, as far as addresses need it; what is none stays as it is.
fn decoded(text: &str) -> String {
    let plain = text.replace("%3A", ":").replace("%3a", ":");
    let plain = plain.replace("%5B", "[").replace("%5b", "[");
    plain.replace("%5D", "]").replace("%5d", "]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_chosen_by_client_and_bounded() {
        let row = |number: usize| json!({ "client": format!("10.0.0.{}:{number}", number % 2) });
        let all: Value = (1..=3 * ROWS_MAX).map(row).collect();
        let found = |query: &str| -> Value {
            serde_json::from_str(&json(Detail::Connections, &all, query)).unwrap()
        };
        assert_eq!(found("")["total"], 3 * ROWS_MAX);
        assert_eq!(found("")["rows"].as_array().unwrap().len(), ROWS_MAX);
        assert_eq!(found("client=10.0.0.1")["total"], 3 * ROWS_MAX / 2);
        assert_eq!(found("client=10.0.0.1%3A7")["rows"], json!([row(7)]));
        for nothing in [
            "client=10.0.0",
            "client=10.0.0.1%3A",
            "client=%%%",
            "client=",
        ] {
            assert_eq!(found(nothing)["total"], 0, "{nothing}");
        }
    }
}
