// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Many connections, driven by one thread. What each asks next is decided when it has been answered.
//!
//! Invariants:
//! 1. A connection has at most one call under way.
//! 2. A call is told once, also if it is lost. Who has lost its connection is asked for nothing more.

use erb_nvme::client::{Call, CallId, Reply, calls};
use erb_nvme::limits::TRANSFER_BYTES_MAX;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::error::Error;
use crate::{Client, Got, Head, Selector, Value, got, named};

/// Time is looked at so often while answers are awaited.
const LOOK_MS: u16 = 100;

/// What is asked of a node.
#[derive(Clone, Debug)]
pub enum Ask {
    /// A key gets a value: its version is told.
    Put {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
    },
    /// A key gets a delete marker: its version is told; 0: it had no value.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
    /// A key's value.
    Get {
        /// The key.
        key: Vec<u8>,
        /// Which version.
        at: Selector,
    },
    /// A key gets the content of one of its versions: the new version is told.
    Restore {
        /// The key.
        key: Vec<u8>,
        /// Which version.
        from: Selector,
    },
}

/// What came of it.
#[derive(Debug)]
pub enum Told {
    /// A version.
    Version(u64),
    /// A value.
    Value(Value),
}

/// What connections are to do.
pub trait Work {
    /// Why it ends early.
    type Failed: From<Error>;

    /// What a connection asks next; none: it has nothing to do any more.
    fn next(&mut self, connection: usize) -> Option<Ask>;

    /// What came of what it has asked.
    ///
    /// # Errors
    /// All ends. What others have asked is on its way, and nobody hears what comes of it.
    fn told(&mut self, connection: usize, told: Result<Told, Error>) -> Result<(), Self::Failed>;
}

/// What an answer will be.
#[derive(Clone, Copy, Debug)]
enum Awaited {
    Version,
    Value,
    /// A value whose head is known: with it there was no room.
    Rest(Head),
}

struct Member {
    client: Client,
    awaited: Option<(CallId, Awaited, Vec<u8>)>,
    is_writing: bool,
}

/// Connections to one node.
pub struct Crowd {
    members: Vec<Member>,
    epoll: Epoll,
}

fn system(error: nix::errno::Errno) -> Error {
    Error::System(error.into())
}

impl Member {
    fn ask(&mut self, ask: Ask) -> Result<(), Error> {
        let namespace = self.client.namespace;
        let (call, awaited, key): (Call, Awaited, Vec<u8>) = match ask {
            Ask::Put { key, value } => {
                crate::check_put(&key, &value)?;
                let call = calls::put_value(namespace, &key, value, None);
                (call, Awaited::Version, key)
            }
            Ask::Delete { key } => {
                let call = calls::delete_key(namespace, &named(&key)?, None);
                (call, Awaited::Version, key)
            }
            Ask::Get { key, at } => {
                let call = calls::get(namespace, &named(&key)?, at, true, TRANSFER_BYTES_MAX);
                (call, Awaited::Value, key)
            }
            Ask::Restore { key, from } => {
                let call = calls::restore(namespace, &named(&key)?, from);
                (call, Awaited::Version, key)
            }
        };
        let id = self.client.queue.begin(call)?;
        self.awaited = Some((id, awaited, key));
        Ok(())
    }

    /// What has come; none: it is still awaited.
    fn told(&mut self) -> Option<Result<Told, Error>> {
        let (id, awaited, key) = self.awaited.take()?;
        let Some(reply) = self.client.queue.ended(id) else {
            self.awaited = Some((id, awaited, key));
            return None;
        };
        match reply.and_then(|reply| self.read(reply, awaited, key)) {
            Ok(told) => told.map(Ok),
            Err(error) => Some(Err(error)),
        }
    }

    /// None: there is more to ask for.
    fn read(
        &mut self,
        reply: Reply,
        awaited: Awaited,
        key: Vec<u8>,
    ) -> Result<Option<Told>, Error> {
        let head = match awaited {
            Awaited::Version => return Ok(Some(Told::Version(reply.result))),
            Awaited::Value => match got(reply.data)? {
                Got::Whole(value) => return Ok(Some(Told::Value(value))),
                Got::Cut(head) => head,
            },
            Awaited::Rest(head) if reply.data.len() == head.bytes as usize => {
                let value = reply.data;
                return Ok(Some(Told::Value(Value { head, value })));
            }
            Awaited::Rest(_) => return Err(Error::Answer),
        };
        let at = Selector::Version(head.version);
        let namespace = self.client.namespace;
        let call = calls::get(namespace, &named(&key)?, at, false, TRANSFER_BYTES_MAX);
        let id = self.client.queue.begin(call)?;
        self.awaited = Some((id, Awaited::Rest(head), key));
        Ok(None)
    }
}

impl Crowd {
    /// Of these clients, each of which becomes a connection.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn new(clients: impl IntoIterator<Item = Client>) -> Result<Self, Error> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(system)?;
        let mut members = Vec::new();
        for (number, client) in (0..).zip(clients) {
            let stream = client.queue.stream();
            stream.set_nonblocking(true).map_err(Error::System)?;
            let event = EpollEvent::new(EpollFlags::EPOLLIN, number);
            epoll.add(stream, event).map_err(system)?;
            members.push(Member {
                client,
                awaited: None,
                is_writing: false,
            });
        }
        Ok(Self { members, epoll })
    }

    /// How many connections there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Does all of a work.
    ///
    /// # Errors
    /// As the work says. Behind an error these connections are of no use any more.
    pub fn run<W: Work>(&mut self, work: &mut W) -> Result<(), W::Failed> {
        let mut busy = 0_usize;
        for number in 0..self.members.len() {
            busy += usize::from(self.begin(number, work)?);
        }
        while busy > 0 {
            let mut events = [EpollEvent::empty(); 128];
            let woken = self.epoll.wait(&mut events, EpollTimeout::from(LOOK_MS));
            let woken = match woken {
                Err(nix::errno::Errno::EINTR) => 0,
                woken => woken.map_err(system)?,
            };
            if woken == 0 {
                // Time alone may end them.
                for number in 0..self.members.len() {
                    busy -= usize::from(self.go_on(number, work)?);
                }
            }
            for event in &events[..woken] {
                busy -= usize::from(self.go_on(event.data() as usize, work)?);
            }
        }
        Ok(())
    }

    /// Asks for what is next. False: nothing is.
    fn begin<W: Work>(&mut self, number: usize, work: &mut W) -> Result<bool, W::Failed> {
        let Some(ask) = work.next(number) else {
            return Ok(false);
        };
        self.members[number].ask(ask)?;
        self.members[number].client.queue.send_now();
        self.listen(number)?;
        Ok(true)
    }

    /// A connection goes on. True: it has nothing to do any more.
    fn go_on<W: Work>(&mut self, number: usize, work: &mut W) -> Result<bool, W::Failed> {
        let member = &mut self.members[number];
        let queue = &mut member.client.queue;
        if member.awaited.is_none() {
            queue.take();
            if queue.is_over() {
                // It is readable for ever.
                self.epoll.delete(queue.stream()).map_err(system)?;
            }
            return Ok(false);
        }
        queue.send_now();
        queue.take();
        let Some(told) = self.members[number].told() else {
            self.members[number].client.queue.send_now();
            self.listen(number)?;
            return Ok(false);
        };
        let is_lost = matches!(told, Err(Error::Lost));
        work.told(number, told)?;
        if is_lost {
            let stream = self.members[number].client.queue.stream();
            // It is readable for ever.
            self.epoll.delete(stream).map_err(system)?;
            return Ok(true);
        }
        Ok(!self.begin(number, work)?)
    }

    /// Hears when it can be written to, if something is left to be written.
    fn listen(&mut self, number: usize) -> Result<(), Error> {
        let member = &mut self.members[number];
        let is_writing = member.client.queue.has_output();
        if is_writing == member.is_writing {
            return Ok(());
        }
        member.is_writing = is_writing;
        let mut flags = EpollFlags::EPOLLIN;
        flags.set(EpollFlags::EPOLLOUT, is_writing);
        let mut event = EpollEvent::new(flags, number as u64);
        let stream = member.client.queue.stream();
        self.epoll.modify(stream, &mut event).map_err(system)
    }
}
