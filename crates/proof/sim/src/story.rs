// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The story of a run: one line per thing that happened to a packet. The last lines are always
//! kept in a ring of events that cost little to record; text is made only when somebody reads.

use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use crate::ConnId;
use crate::time::{Ns, show};

/// Events kept when nobody asked for all.
const RING: usize = 400;

/// Where something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A client's machine.
    Client(usize),
    /// The network.
    Link,
    /// A CPU of the server.
    Cpu(usize),
    /// Redis.
    Redis,
    /// The daemon.
    Daemon,
    /// The world itself: crashes, phases.
    World,
}

/// What an event says.
#[derive(Clone, Debug)]
pub enum Note {
    /// A frame, kept as bytes and printed when read.
    Frame {
        /// What became of it.
        did: &'static str,
        /// The frame, from its Ethernet header on.
        bytes: Rc<[u8]>,
    },
    /// A fixed text.
    Text(&'static str),
    /// A made text.
    Made(String),
}

/// One event.
#[derive(Clone, Debug)]
pub struct Event {
    /// When.
    pub at: Ns,
    /// Where.
    pub place: Place,
    /// Connection, if it is about one.
    pub conn: Option<ConnId>,
    /// What.
    pub note: Note,
}

impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {:?}", show(self.at), self.place)?;
        if let Some(conn) = self.conn {
            write!(out, " c{conn}")?;
        }
        match &self.note {
            Note::Frame { did, bytes } => {
                write!(out, " {did} {}", erb_wire::layout::describe(bytes))
            }
            Note::Text(text) => write!(out, " {text}"),
            Note::Made(text) => write!(out, " {text}"),
        }
    }
}

/// How much is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Nothing.
    Nothing,
    /// The last events.
    #[default]
    Last,
    /// Everything.
    All,
}

/// The recorder.
#[derive(Debug, Default)]
pub struct Story {
    keep: Keep,
    events: VecDeque<Event>,
}

impl Story {
    /// A recorder that keeps `keep`.
    #[must_use]
    pub fn new(keep: Keep) -> Self {
        Self {
            keep,
            events: VecDeque::new(),
        }
    }

    /// Whether anything is recorded: if not, spare the making of texts.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.keep != Keep::Nothing
    }

    /// Whether everything is recorded: texts that cost much are made only then.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.keep == Keep::All
    }

    /// Records an event.
    pub fn push(&mut self, event: Event) {
        match self.keep {
            Keep::Nothing => return,
            Keep::Last if self.events.len() >= RING => drop(self.events.pop_front()),
            _ => {}
        }
        self.events.push_back(event);
    }

    /// The events kept, oldest first.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.events.iter()
    }

    /// As text, a line per event.
    #[must_use]
    pub fn text(&self) -> String {
        self.events
            .iter()
            .map(|event| format!("{event}\n"))
            .collect()
    }
}
