// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Redis tells of what its writes depend on.

/// Settings and fields of INFO; none: Redis has not told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteState {
    /// `databases`.
    pub databases: Option<u32>,
    /// `appendfsync`.
    pub appendfsync: Option<String>,
    /// `min-replicas-to-write`.
    pub min_replicas: Option<u32>,
    /// `stop-writes-on-bgsave-error`.
    pub stops_unsaved: Option<bool>,
    /// `unixsocket`.
    pub unix_socket: Option<String>,
    /// `aof_last_write_status` is `ok`.
    pub log_is_written: Option<bool>,
    /// `rdb_last_bgsave_status` is `ok`.
    pub is_saved: Option<bool>,
    /// `master_failover_state` says that none is under way.
    pub stays_master: Option<bool>,
    /// `run_id`: another one after each start.
    pub run_id: Option<String>,
    /// `uptime_in_seconds`.
    pub uptime_s: Option<u64>,
    /// `aof_enabled`: what was written is there after a start, but for power.
    pub has_log: Option<bool>,
}

impl WriteState {
    /// A pair of CONFIG GET's reply.
    pub(crate) fn take_setting(&mut self, name: &str, value: String) {
        match name {
            "databases" => self.databases = value.parse().ok(),
            "appendfsync" => self.appendfsync = Some(value),
            "min-replicas-to-write" => self.min_replicas = value.parse().ok(),
            "stop-writes-on-bgsave-error" => self.stops_unsaved = Some(value != "no"),
            "unixsocket" => self.unix_socket = Some(value),
            _ => {}
        }
    }

    /// A line of INFO.
    pub(crate) fn take_field(&mut self, name: &str, value: &str) {
        match name {
            "aof_last_write_status" => self.log_is_written = Some(value == "ok"),
            "rdb_last_bgsave_status" => self.is_saved = Some(value == "ok"),
            "uptime_in_seconds" => self.uptime_s = value.parse().ok(),
            "run_id" => self.run_id = Some(value.to_owned()),
            "aof_enabled" => self.has_log = Some(value == "1"),
            "master_failover_state" => self.stays_master = Some(value == "no-failover"),
            _ => {}
        }
    }
}
