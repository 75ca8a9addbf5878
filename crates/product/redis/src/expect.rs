// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the feed asks, and what it tells of the answers.

use bytes::Bytes;
use erb_abi::{self as abi, Again, Wanted};

use crate::calls::Calls;
use crate::client_list::ClientLine;
use crate::commands::CommandsReport;
use crate::fill::Filled;
use crate::reading::{Answered, Asked};
use crate::redis_state::RedisState;
use crate::reports::Reports;
use crate::size::Size;
use crate::usage::ByCommand;

/// Why CLIENT LIST is asked for.
#[derive(Debug, Default)]
pub(crate) struct Question {
    /// Proof for these connections.
    pub(crate) proof: Vec<abi::sweep_row>,
    /// Whether these may be admitted, and the rights' epoch at which that was asked.
    pub(crate) admit: Vec<abi::admit_row>,
    pub(crate) rights: u32,
}

/// What the daemon must act on, in order.
#[derive(Debug)]
pub(crate) enum Event {
    /// Tracking is on and the cache is empty.
    Ready,
    /// Calls as read before a lease.
    Calls(Calls),
    /// A PING written at this time (monotonic, ns) came back; so many shares of the fence were
    /// answered before.
    Lease { sent_ns: u64, answered: u64 },
    /// PING was answered by an error.
    NoLease(String),
    /// Redis's state, read after `gate_seen` had this value.
    State { state: Box<RedisState>, gate: u64 },
    /// CLIENT LIST.
    Clients {
        list: Vec<ClientLine>,
        question: Question,
    },
    /// Sizes of values that are to be filled; none: they could not be asked for.
    Sized(Vec<(Wanted, Option<Size>)>),
    /// Fills that ended.
    Filled(Vec<(Wanted, Filled)>),
    /// These keys were invalidated, and those of them are worth reading again; none: the whole cache.
    Invalidated { keys: Vec<Bytes>, again: Again },
    /// The answer to a batch of the drain is whole, and was taken: it was executed, or refused.
    Drained,
    /// Whether a batch would be executed now, or why not.
    WriteTrial(Result<(), String>),
    /// Redis's command table is loaded, and whether ERB can work with it; again: not for the first
    /// time on this feed.
    Commands {
        end: Result<CommandsReport, String>,
        again: bool,
    },
}

#[derive(Debug)]
pub(crate) enum Setup {
    Hello,
    Name,
    NoEvict,
    /// A question with line ends in it, which the error repeats: whether that is one line.
    LineEnds,
    /// The rest of that error, which was none.
    LineEndsRest,
    /// A transaction like a fill's: only whether it is allowed counts.
    Trial,
    List,
    Kill,
    Tracking,
}

#[derive(Debug)]
pub(crate) enum Expect {
    Setup(Setup),
    /// INFO before the PING of a lease.
    Calls,
    Pong {
        sent_ns: u64,
        answered: u64,
    },
    /// +OK of MULTI and SELECT, +QUEUED: any error shows again as EXEC's.
    FillStep,
    /// EXEC of sizes, of so many bytes with its question.
    Sizes {
        asked: Vec<Wanted>,
        answers: Answered,
        /// All elements of hash tables were looked at.
        whole: bool,
        bytes: usize,
    },
    /// The same of values.
    Exec {
        asked: Vec<Asked>,
        answers: Answered,
        /// The first answer is about hash tables, and whether their fields may expire.
        tables: Option<bool>,
        bytes: usize,
    },
    /// EXEC of TOUCH.
    Touched,
    /// EXEC behind which Redis tells of these changes.
    Reports(Reports),
    /// The drain's batch, whose answer it reads itself.
    Batch,
    /// A step of a batch that is discarded; `frame`: MULTI or DISCARD; `last`: that.
    WriteTrial {
        frame: bool,
        last: bool,
    },
    Config,
    Acl,
    /// `own`: what the daemon had asked for before.
    Info {
        gate: u64,
        own: ByCommand,
    },
    /// CLIENT LIST, the state's last part where a monitor may be attached.
    Monitors {
        gate: u64,
    },
    Clients(Question),
    /// COMMAND LIST.
    Names,
    /// COMMAND INFO of `asked`, where COMMAND LIST has said `listed`.
    Commands {
        listed: Vec<String>,
        asked: Vec<String>,
    },
}

impl Expect {
    /// The question, if its answer grows with Redis's clients, users or commands.
    pub(crate) const fn long_answer(&self) -> Option<&'static str> {
        match self {
            Self::Setup(Setup::List) | Self::Clients(_) | Self::Monitors { .. } => {
                Some("CLIENT LIST")
            }
            Self::Names | Self::Commands { .. } => Some("COMMAND INFO"),
            Self::Acl => Some("ACL LIST"),
            _ => None,
        }
    }
}
