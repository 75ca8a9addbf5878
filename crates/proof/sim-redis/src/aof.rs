// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The append-only log: what is written when, and how it is read again.
//!
//! Invariants:
//! 1. The log is written before any reply of the turn leaves, and with `always` also synced; if that
//!    fails, the server ends and the replies never leave.
//! 2. With `everysec` a write waits for a running fsync, but at most 2 s.
//! 3. The changes of one command, transaction or expiry are one block: MULTI and EXEC around more
//!    than one; a block cut short is not loaded.

use crate::client::Argv;
use crate::dispatch::{bytes, find_command, lower};
use crate::resp::parse_i64;
use crate::script::NOBODY;
use crate::server::Redis;
use crate::types::{AppendFsync, Change, StartError};

const FILE: &str = "appendonlydir/appendonly.aof.1.incr.aof";
/// A mark, the longest number, and the line's end.
const NUMBER_LINE_MAX: usize = 24;
const SECOND_NS: u64 = 1_000_000_000;
/// How long a write waits for a running fsync.
const POSTPONE_NS_MAX: u64 = 2 * SECOND_NS;

/// State of the log.
#[derive(Debug, Default)]
pub(crate) struct Aof {
    /// Blocks of this unit: database and command.
    unit: Vec<(u32, Argv)>,
    buffer: Vec<u8>,
    selected: Option<u32>,
    unsynced: bool,
    /// When the running background fsync ends.
    pub(crate) fsync_done_ns: Option<u64>,
    last_fsync_ns: u64,
    postponed_ns: Option<u64>,
    write_error: Option<&'static str>,
    fsync_error: Option<&'static str>,
}

impl Aof {
    /// Why writes are refused (MISCONF).
    pub(crate) fn error(&self) -> Option<&'static str> {
        self.write_error.or(self.fsync_error)
    }

    fn put(&mut self, argv: &[crate::types::Bytes]) {
        erb_wire::resp::push_command(&mut self.buffer, argv);
    }

    fn put_in(&mut self, db: u32, argv: &Argv) {
        if self.selected != Some(db) {
            self.put(&[bytes("SELECT"), bytes(&db.to_string())]);
            self.selected = Some(db);
        }
        self.put(argv);
    }
}

impl Redis {
    /// Adds a change to the log's current block.
    pub(crate) fn log_other(&mut self, db: u32, argv: Argv) {
        if !self.loading && self.config.appendfsync != AppendFsync::Off {
            self.aof.unit.push((db, argv));
        }
    }

    /// A block ends (`propagatePendingCommands`).
    pub(crate) fn end_of_unit(&mut self) {
        let unit = std::mem::take(&mut self.aof.unit);
        let Some((first, _)) = unit.first() else {
            return;
        };
        let several = unit.len() > 1;
        if several {
            self.aof.put_in(*first, &vec![bytes("MULTI")]);
        }
        for (db, argv) in &unit {
            self.aof.put_in(*db, argv);
        }
        if several {
            self.aof.put(&[bytes("EXEC")]);
        }
    }

    /// The background fsync ends when its time has come.
    pub(crate) fn poll_fsync(&mut self) {
        if self
            .aof
            .fsync_done_ns
            .is_some_and(|done| done <= self.now_ns)
        {
            self.aof.fsync_done_ns = None;
            self.aof.fsync_error = self.disk.fsync(FILE).err().map(|_| "Input/output error");
            self.aof.unsynced &= self.aof.fsync_error.is_some();
        }
    }

    /// `flushAppendOnlyFile`.
    pub(crate) fn flush_log(&mut self, force: bool) {
        let mode = self.config.appendfsync;
        if mode == AppendFsync::Off {
            return;
        }
        self.poll_fsync();
        if !self.aof.buffer.is_empty() {
            if mode == AppendFsync::EverySec && !force && self.aof.fsync_done_ns.is_some() {
                let since = *self.aof.postponed_ns.get_or_insert(self.now_ns);
                if self.now_ns.saturating_sub(since) < POSTPONE_NS_MAX {
                    return;
                }
            }
            self.aof.postponed_ns = None;
            if !self.write_log() {
                return;
            }
        }
        self.sync_log(force);
    }

    fn write_log(&mut self) -> bool {
        let before = self.disk.read(FILE).map_or(0, <[u8]>::len);
        let written = self.disk.append(FILE, &self.aof.buffer);
        if written == Ok(self.aof.buffer.len()) {
            self.aof.write_error = None;
            self.aof.buffer.clear();
            self.aof.unsynced = true;
            return true;
        }
        // A part is taken back, so that the next try begins at the block's begin.
        self.disk.truncate(FILE, before);
        self.aof.write_error = Some("No space left on device");
        self.down |= self.config.appendfsync == AppendFsync::Always;
        false
    }

    fn sync_log(&mut self, force: bool) {
        if !self.aof.unsynced {
            return;
        }
        match self.config.appendfsync {
            AppendFsync::Always => {
                self.down |= self.disk.fsync(FILE).is_err();
                self.aof.unsynced = false;
            }
            AppendFsync::EverySec if force => {
                self.aof.unsynced = self.disk.fsync(FILE).is_err();
            }
            AppendFsync::EverySec => {
                let new_second = self.now_ns / SECOND_NS > self.aof.last_fsync_ns / SECOND_NS;
                if new_second && self.aof.fsync_done_ns.is_none() {
                    let takes = self.random.u64(0..=self.config.fsync_ns_max);
                    self.aof.last_fsync_ns = self.now_ns;
                    self.aof.fsync_done_ns = Some(self.now_ns + takes);
                    self.poll_fsync();
                }
            }
            AppendFsync::Off | AppendFsync::No => {}
        }
    }

    /// Reads the log into the empty server.
    pub(crate) fn load(&mut self) -> Result<(), StartError> {
        let Some(content) = self.disk.read(FILE).map(<[u8]>::to_vec) else {
            return Ok(());
        };
        self.loading = true;
        self.make_nobody(0);
        let loaded = self.replay(&content);
        self.clients.remove(&NOBODY);
        self.loading = false;
        self.changes = Vec::<Change>::new();
        self.served.clear();
        self.stats = crate::info::Stats::default();
        self.command_stats.clear();
        let valid = loaded?;
        if valid < content.len() {
            if !self.config.load_truncated {
                return Err(StartError::Truncated);
            }
            self.disk.truncate(FILE, valid);
        }
        Ok(())
    }

    /// Executes the log's commands; returns where the last whole block ends.
    fn replay(&mut self, content: &[u8]) -> Result<usize, StartError> {
        let (mut at, mut valid) = (0, 0);
        let mut block: Option<Vec<Argv>> = None;
        while at < content.len() {
            let found = read_command(&content[at..]).ok_or(StartError::BadFormat(at))?;
            let Some((argv, length)) = found else { break };
            at += length;
            let name = lower(&argv[0]);
            if name == "multi" {
                block = Some(Vec::new());
                continue;
            }
            if name != "exec" {
                if let Some(block) = &mut block {
                    block.push(argv);
                    continue;
                }
            }
            let commands = if name == "exec" {
                block.take().unwrap_or_default()
            } else {
                vec![argv]
            };
            for argv in &commands {
                let command = find_command(argv).ok_or(StartError::BadFormat(valid))?;
                self.call(NOBODY, command, argv);
            }
            valid = at;
        }
        Ok(valid)
    }
}

/// One command of the log and its length. None: bad format; Some(None): cut short.
fn read_command(content: &[u8]) -> Option<Option<(Argv, usize)>> {
    let mut at = 0;
    let Some(count) = read_number(content, b'*', &mut at)? else {
        return Some(None);
    };
    let mut argv = Argv::new();
    for _ in 0..count {
        let Some(length) = read_number(content, b'$', &mut at)? else {
            return Some(None);
        };
        let Some(word) = content.get(at..at.saturating_add(length)) else {
            return Some(None);
        };
        at += length;
        match content.get(at..at + 2) {
            Some(b"\r\n") => at += 2,
            Some(_) => return None,
            None => return Some(None),
        }
        argv.push(word.into());
    }
    (!argv.is_empty()).then_some(Some((argv, at)))
}

/// A line of a mark and a number.
fn read_number(content: &[u8], mark: u8, at: &mut usize) -> Option<Option<usize>> {
    let rest = content.get(*at..).unwrap_or_default();
    if rest.first().is_some_and(|byte| *byte != mark) {
        return None;
    }
    let Some(end) = rest
        .windows(2)
        .take(NUMBER_LINE_MAX)
        .position(|pair| pair == b"\r\n")
    else {
        return (rest.len() < NUMBER_LINE_MAX).then_some(None);
    };
    *at += end + 2;
    Some(Some(usize::try_from(parse_i64(&rest[1..end])?).ok()?))
}
